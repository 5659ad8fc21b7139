"""hc_prepare: token files, meta.json, and what is left when it fails."""
import collections
import gzip
import hashlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

GPT2_SHARD = 20240520  # the number that a shard of llm.c begins with


def make_text(size, salt):
    """Lines of text, about this many bytes, with a blank line every ten."""
    lines, length = [], 0
    while length < size:
        lines.append(("\n" if len(lines) % 10 == 9 else "") + f"{salt} line {len(lines)} of some text\n")
        length += len(lines[-1])
    return "".join(lines)


class Prepare(programs.Case):
    @classmethod
    def begin(cls):
        """The corpus is not needed."""

    def prepare(self, folder, *words, **setup):
        return self.call("hc_prepare", "--out", f"@{folder}", *words, **setup)

    def meta(self, folder):
        return self.json(f"{folder}/meta.json")

    def tokens(self, folder, name):
        """Those of bytes, of <folder>/<name>.bin, as a text."""
        stored = self.path(f"{folder}/{name}.bin").read_bytes()
        self.assertEqual(stored[1::2], bytes(len(stored) // 2))
        return stored[::2].decode("latin-1")

    def split_of(self, text, train, val):
        """Every chunk of the split text is a line's beginning to a line's end: merging by lines gives the text again."""
        places = {"train": 0, "val": 0}
        parts = {"train": train, "val": val}
        for line in text.splitlines(keepends=True):
            part = next((name for name in parts if parts[name].startswith(line, places[name])), None)
            self.assertIsNotNone(part, f"{line!r} is in neither part at its place")
            places[part] += len(line)
        self.assertEqual(places, {name: len(part) for name, part in parts.items()})

    def test_split(self):
        """Up to the length of a paragraph, and for large texts, where whole chunks are held out, up to one chunk."""
        for size, fraction, tolerance in [(5000000, 0.5, 65536 / 5e6), (5000000, 0.1, 1e-4), (300000, 0.1, 1e-3), (5000, 0.1, 0.05), (2000000, 0.5, 1e-4),
                                          (200000, 0.01, 1e-3)]:
            with self.subTest(size=size, fraction=fraction):
                text = make_text(size, 1)
                source = self.put("source.txt", text)
                self.assertEqual(self.prepare("split/out", "--val-fraction", fraction, source).said, "")
                train, val, meta = self.tokens("split/out", "train"), self.tokens("split/out", "val"), self.meta("split/out")
                self.split_of(text, train, val)
                self.assertAlmostEqual(len(val) / len(text), fraction, delta=tolerance)
                self.assertEqual((meta["vocab_size"], meta["tokenizer"], meta["train_tokens"], meta["val_tokens"]), (256, "byte", len(train), len(val)))
                self.assertAlmostEqual(meta["held_out_fraction"], len(val) / len(text), delta=1e-9)
                shares = [count / len(train) for count in collections.Counter(train).values()]
                self.assertAlmostEqual(meta["unigram_entropy"], -sum(share * math.log(share) for share in shares), delta=1e-8)
                first = meta["sources"][0]
                self.assertEqual((first["path"], first["bytes"], first["sha256"]),
                                 (str(source), len(text), hashlib.sha256(text.encode()).hexdigest()))
                self.assertEqual(self.entries("split/out"), 3)

    def test_share_and_seed(self):
        """The share that is held out depends neither on the seed, nor on how the text is divided into files, and is printed. The same seed gives the
        same bytes, another one others."""
        text = make_text(300000, 7)
        self.put("first.txt", text[:100000])
        self.put("second.txt", text[100000:])
        held_out = []
        for seed in (1, 2, 3, 4, 5, 6, 7, 8, 1):
            printed = self.prepare("share", "--seed", seed, "@first.txt", "@second.txt").printed.decode()
            held_out.append(self.tokens("share", "val"))
            meta = self.meta("share")
            self.assertAlmostEqual(meta["held_out_fraction"], 0.1, delta=0.001)
            self.assertIn(f"{meta['val_tokens']} held out ({100 * meta['held_out_fraction']:.3g} % of all; asked for: 10 %)", printed)
            self.assertIn("the loss of a model that knows only how often", printed)
        self.assertEqual(held_out[0], held_out[8])
        self.assertNotEqual(held_out[0], held_out[1])

    def test_share_of_compressed_text(self):
        """A compressed source holds more text than bytes, so its stored bytes are not the size of the text."""
        self.put("plain.txt", make_text(100000, 7))
        self.put("packed.txt.gz", gzip.compress(make_text(500000, 8).encode()))
        self.prepare("mixed", "@plain.txt", "@packed.txt.gz")
        self.assertAlmostEqual(self.meta("mixed")["held_out_fraction"], 0.1, delta=0.04)

    def test_val_file(self):
        self.put("head.txt", "one\ntwo\n")
        self.put("empty.txt", "")
        tail = self.put("tail.txt", "three\nfour\n")
        self.prepare("val-file", "@head.txt", "--val", "@empty.txt", status=FAILED, says="the file to hold out has no text")
        self.prepare("val-file", "@empty.txt", "--val", tail, status=FAILED, says="the files to train on have no text")
        self.prepare("val-file", "@head.txt", "--val", "@head.txt", "--order", tail, "--documents", "files", status=WRONG_USAGE,
                     says="--order and --val both say what is held out")
        self.assertFalse(self.has("val-file"))
        self.prepare("val-file", "@head.txt", "--val", tail)
        self.assertEqual((self.tokens("val-file", "train"), self.tokens("val-file", "val")), ("one\ntwo\n", "three\nfour\n"))
        meta = self.meta("val-file")
        self.assertEqual((meta["val_tokens"], meta["val_source"]), (11, str(tail)))

    def prepare_piped(self, text, *words):
        run = self.start("hc_prepare", *words, "-", stdin=subprocess.PIPE)
        with run.process.stdin as pipe:
            pipe.write(text)
        self.ended(run.finish())

    def test_pipe(self):
        """Standard input may be a pipe, behind a file, too."""
        self.put("before.txt", "one\ntwo\n")
        text = make_text(200000, 3)
        self.prepare_piped(text.encode(), "--val-fraction=0", "--out", "@piped", "@before.txt")
        self.assertEqual(self.tokens("piped", "train"), "one\ntwo\n" + text)
        self.assertFalse(self.has("piped/val.bin"))
        self.assertEqual(len(self.meta("piped")["sources"]), 2)

    def test_bytes_without_lines_from_a_pipe_are_divided(self):
        """A part is held out, though nobody knows beforehand how long the text is, and it has no lines to divide it at."""
        text = bytes(i * 7 % 256 for i in range(256)).replace(b"\n", b"\0") * 1172
        self.prepare_piped(text, "--out", "@bytes-out")
        meta = self.meta("bytes-out")
        self.assertGreater(meta["val_tokens"], 0)
        self.assertEqual(meta["train_tokens"] + meta["val_tokens"], len(text))

    def joined(self, folder, split, each):
        """The tokens of llm.c's shards <folder>/corpus_<split>_*.bin, behind one another as in one token file. All have `each` tokens, the last one at
        most as many."""
        found = b""
        for path in sorted(self.path(folder).glob(f"corpus_{split}_*.bin")):
            self.assertEqual(path.name, f"corpus_{split}_{len(found) // (2 * each):06}.bin")
            self.assertEqual(len(found) % (2 * each), 0)
            shard = path.read_bytes()
            count = (len(shard) - 1024) // 2
            self.assertIn(count, range(1, each + 1))
            self.assertEqual(shard[:1024], b"".join(number.to_bytes(4, "little") for number in (GPT2_SHARD, 1, count)).ljust(1024, b"\0"))
            found += shard[1024:]
        return found

    def test_shards(self):
        """They have the tokens of train.bin and val.bin. Either kind of results replaces the other."""
        self.put("sharded.txt", make_text(20000, 6))
        self.prepare("whole", "@sharded.txt")
        self.prepare("sharded", "@sharded.txt")
        self.prepare("sharded", "--shards", "1000", "@sharded.txt")
        meta = self.meta("sharded")
        self.assertEqual((meta["vocab_size"], meta["shard_tokens"]), (256, 1000))
        self.assertEqual(self.entries("sharded"), 1 + sum(math.ceil(meta[name] / 1000) for name in ("train_tokens", "val_tokens")))
        for split in ("train", "val"):
            self.assertEqual(self.joined("sharded", split, 1000), self.path(f"whole/{split}.bin").read_bytes())
        self.prepare("sharded", "--shards", "7000", "--val-fraction", "0", "@sharded.txt")
        self.assertEqual(self.entries("sharded"), 4)
        self.prepare("whole", "--val-fraction", "0", "@sharded.txt")
        self.assertEqual(self.joined("sharded", "train", 7000), self.path("whole/train.bin").read_bytes())

    def test_refused_shards(self):
        """Shards of others are not written beside, and a shard is no input of the command that replaces it."""
        self.put("refused.txt", make_text(9000, 6))
        shards = ("--shards", "5000")
        self.prepare("refused", *shards, "@refused.txt")
        self.prepare("refused", *shards, "@refused/corpus_train_000001.bin", status=FAILED,
                     says="refused/corpus_train_000001.bin is an input of this command")
        self.link("refused/corpus_val_000000.bin", "link.txt")
        self.prepare("refused", "@refused.txt", "@link.txt", status=FAILED, says="refused/corpus_val_000000.bin is an input of this command")
        self.rename("refused/corpus_train_000001.bin", "refused/corpus_train_00001.bin")
        for words, new in ((shards, "ones"), ((), "files")):
            self.prepare("refused", *words, "@refused.txt", status=FAILED,
                         says=f"refused has corpus_train_00001.bin, which would be read as a token shard beside the new {new}")
            self.assertTrue(self.has("refused/corpus_train_000000.bin"))
        self.assertFalse(self.has("refused/train.bin"))
        self.put("refused/corpus_train_00001.bin", "only named as one")
        self.prepare("refused", "@refused.txt")
        self.assertEqual(self.entries("refused"), 4)

    def test_what_resumes(self):
        """What can be resumed by another command only is not promised to the same one."""
        self.put("resumes.txt", make_text(9000, 6))
        for words, advice in ((("--shards", "1"), "give --shards 2 or more"), (("--seed", "2"), "choose another --out")):
            self.prepare("resumes", *words, "@resumes.txt", status=FAILED, says=f"{advice}\nThe unfinished work is kept; to give up, remove ")
        self.prepare("resumes", "--shards", "5000", "@resumes.txt")

    def test_what_is_refused(self):
        self.put("good.txt", "a\nb\n")
        self.put("empty.txt", "")
        out = ("--out", "@wrong")
        for status, says, *words in [(WRONG_USAGE, "--out is missing", "x.txt"),
                                     (WRONG_USAGE, "no input files", *out),
                                     (WRONG_USAGE, "--val-fraction: 0.9 is out of range 0 .. 0.5", *out, "--val-fraction", "0.9", "x"),
                                     (FAILED, "missing.txt: No such file", *out, "@good.txt", "@missing.txt"),
                                     (FAILED, "it is empty", *out, "@empty.txt"),
                                     (FAILED, "it is a folder", *out, "@."),
                                     (FAILED, "once only", *out, "-", "-"),
                                     (FAILED, "too few to hold out 1 %", *out, "--val-fraction", "0.01", "@good.txt"),
                                     (FAILED, "good.txt: File exists", "--out", "@good.txt", "@good.txt")]:
            with self.subTest(words):
                self.call("hc_prepare", *words, status=status, says=says)
                self.assertFalse(self.has("wrong"))

    def test_disk_full(self):
        """An older result stays as it was; a new one replaces it and leaves other files alone."""
        self.put("large.txt", make_text(3000000, 4))
        self.put("small.txt", make_text(5000, 4))
        self.prepare("full", "@large.txt", status=FAILED, says="full/.hc_prepare/train.bin: File too large", file_bytes=1000000)
        self.assertFalse(self.has("full"))
        self.prepare("full", "@small.txt")
        before = self.tokens("full", "train")
        self.put("full/notes.txt", "mine")
        self.prepare("full", "@large.txt", status=FAILED, file_bytes=1000000)
        self.assertEqual(self.tokens("full", "train"), before)
        self.assertEqual(self.entries("full"), 4)
        self.prepare("full", "--val-fraction", "0", "@large.txt")
        self.assertEqual(sorted(os.listdir(self.path("full"))), ["meta.json", "notes.txt", "train.bin"])

    def test_interrupt(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            run = self.start("hc_prepare", "--out", "@interrupted", "-", stdin=subprocess.PIPE)
            with run.process.stdin as pipe:
                pipe.write(b"some text\n")
                pipe.flush()
                run.wait_for(lambda: self.has("interrupted"))
                run.interrupt(number)
            self.ended(run, INTERRUPTED, "interrupted, nothing written")
            self.assertFalse(self.has("interrupted"))


if __name__ == "__main__":
    programs.main()
