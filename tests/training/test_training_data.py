"""Token files that move, change or become shorter under a run, those of large vocabularies, and token shards."""
import base64
import os
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED

ENDLESS = ("--max-iters", "100000", "--checkpoint-interval", "100000")
SAMPLE = ("hc_sample", "--device", "pocl", "--max-new-tokens", "4", "--checkpoint")


class TrainingData(programs.Case):
    def write_over(self, name, source, is_turned):
        """The tokens of a file over another one in place, which keeps its size: as they are, or turned round."""
        tokens = self.path(source).read_bytes()
        turned = b"".join(tokens[at:at + 2] for at in range(len(tokens) - 2, -1, -2))
        with open(self.path(name), "r+b", buffering=0) as file:
            file.write(turned if is_turned else tokens)

    def as_if_unharmed(self, run, at, unharmed):
        """It goes on for three iterations as if nothing had happened."""
        self.resume(run, "--max-iters", at + 3)
        self.train(unharmed, "--max-iters", at + 3)
        self.same_run(run, unharmed, f"ckpt-{at + 3}")

    def stopped(self, run, name, says):
        """The iteration at which it ended, with a checkpoint that is not a periodic one."""
        self.ended(run.finish(), FAILED, says)
        at = self.newest(name, 1)
        self.assertEqual(self.lines(f"{name}/metrics.jsonl"), at)
        return at

    def test_name_of_the_data_may_be_any_bytes(self):
        self.copy("data", "data-\udcff")
        self.train("oddly-named", "--data-dir", "@data-\udcff", "--max-iters", "10")
        self.resume("oddly-named", "--max-iters", "20")
        self.train("plainly-named")
        self.same_run("oddly-named", "plainly-named", "ckpt-20")

    def test_exchanged_data_must_be_accepted(self):
        self.copy("data", "changing")
        self.train("exchanged", "--data-dir", "@changing", "--max-iters", "10")
        self.write_over("changing/train.bin", "changing/train.bin", True)
        self.resume("exchanged", "--max-iters", "15", status=FAILED, says="--accept-new-data")
        self.assertTrue(self.has("exchanged/ckpt-10"))
        self.assertEqual(self.lines("exchanged/metrics.jsonl"), 10)
        self.resume("exchanged", "--max-iters", "15", "--accept-new-data")
        self.resume("exchanged", "--max-iters", "20")
        self.assertTrue(self.has("exchanged/ckpt-20"))
        self.write_over("changing/train.bin", "changing/train.bin", True)  # back: no longer what it trained on last
        self.resume("exchanged", "--max-iters", "25", status=FAILED, says="--accept-new-data")

    def test_data_may_move(self):
        self.copy("data", "data-here")
        self.train("data-moved", "--data-dir", "@data-here", "--max-iters", "10")
        self.rename("data-here", "data-there")
        self.resume("data-moved", "--data-dir", "@data-there", "--max-iters", "15")
        self.resume("data-moved", "--max-iters", "20")
        self.train("data-stayed")
        self.same_run("data-moved", "data-stayed", "ckpt-20")

    def test_data_that_becomes_shorter_ends_the_run_with_a_checkpoint(self):
        self.copy("data", "shrinking")
        run = self.start(*self.training("shortened", "--data-dir", "@shrinking", *ENDLESS))
        run.wait_for(lambda: self.lines("shortened/metrics.jsonl") > 2)
        os.truncate(self.path("shrinking/train.bin"), self.path("shrinking/train.bin").stat().st_size // 4 * 2)
        at = self.stopped(run, "shortened", "became shorter")
        self.copy("data/train.bin", "shrinking/train.bin")
        self.as_if_unharmed("shortened", at, "unshortened")

    def test_data_that_is_written_over_ends_the_run_with_a_checkpoint(self):
        """No step is made with what was written. Times alone do not matter."""
        self.copy("data", "rewritten")
        run = self.start(*self.training("overwritten", "--data-dir", "@rewritten", *ENDLESS))
        run.wait_for(lambda: self.lines("overwritten/metrics.jsonl") > 2)
        self.write_over("rewritten/train.bin", "data/train.bin", False)
        os.link(self.path("rewritten/val.bin"), self.path("rewritten/link"))
        lines = self.lines("overwritten/metrics.jsonl")
        run.wait_for(lambda: self.lines("overwritten/metrics.jsonl") > lines + 2)
        self.write_over("rewritten/train.bin", "data/train.bin", True)
        at = self.stopped(run, "overwritten", "was changed while it was in use")
        self.resume("overwritten", "--max-iters", at + 3, status=FAILED, says="--accept-new-data")
        self.write_over("rewritten/train.bin", "data/train.bin", False)
        self.as_if_unharmed("overwritten", at, "not-overwritten")

    # ---- 4 bytes a token: a vocabulary that needs them is trained on, scored and sampled from; and tokens that fit into 2 bytes give the same bits
    # from files of either kind

    def make_data(self, folder, token_bytes, vocabulary):
        """Token files whose content depends on the vocabulary alone."""
        self.put_json(f"{folder}/meta.json", {"vocab_size": vocabulary, "token_bytes": token_bytes})
        chosen = random.Random(1)
        for name in ("train.bin", "val.bin"):
            few = [chosen.randrange(20) for _ in range(2000)]
            tokens = [vocabulary - 1 - token if i % 2 else token for i, token in enumerate(few)]
            self.put(f"{folder}/{name}", struct.pack("<2000" + ("I" if token_bytes == 4 else "H"), *tokens))

    def train_on(self, data, run, *more, **setup):
        self.train(run, "--data-dir", f"@{data}", "--max-iters", "4", "--eval-iters", "2", *more, **setup)

    def test_vocabulary_of_70000(self):
        """Uniform at first, then the 40 tokens that come are learned."""
        self.make_data("large", 4, 70000)
        self.train_on("large", "run")
        self.train_on("large", "run", "--init-from", "resume", "--max-iters", "6")
        self.call("hc_eval", "--checkpoint", "@run/ckpt-6", "--device", "pocl", "--data", "@large")
        self.call(*SAMPLE, "@run/ckpt-6", "--tokenizer", "byte", "--prompt", "a")
        lines = self.metrics("run")  # 0 and 5 are evaluations
        self.assertTrue(11 < lines[1]["loss"] < 11.4, lines[1])  # log 70000 = 11.16
        self.assertLess(lines[6]["loss"], lines[1]["loss"] - 1)

    def test_text_of_a_large_vocabulary(self):
        """From text to text, with all single bytes, all pairs of bytes, and the end of text: 65793 tokens. Each two bytes of a word are one."""
        tokens = [bytes([byte]) for byte in range(256)] + [bytes(divmod(pair, 256)) for pair in range(65536)]
        self.put("pairs.tiktoken", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        self.put("lines.txt", "abcdefgh\n" * 200)
        vocabulary = ("--vocab-file", "@pairs.tiktoken")
        prepare = ("hc_prepare", "--tokenizer", "gpt2", *vocabulary, "--documents", "files", "--val-fraction", "0", "@lines.txt", "--out")
        self.call(*prepare, "@pairs")
        self.assertIn('"token_bytes": 4', self.text("pairs/meta.json"))
        stored = self.path("pairs/train.bin").read_bytes()
        self.assertEqual(len(stored), 4 * (200 * 5 + 1))  # four pairs and a newline, and the end of text
        self.assertEqual(struct.unpack("<1001I", stored)[::1000], (256 + ord("a") * 256 + ord("b"), 256 + 65536))
        self.call(*prepare, "@shards", "--shards", "600")
        shards = [self.path(f"shards/corpus_train_{i:06}.bin").read_bytes() for i in range(2)]
        self.assertEqual([len(shard) for shard in shards], [1024 + 4 * 600, 1024 + 4 * 401])  # behind llm.c's headers
        self.assertEqual(b"".join(shard[1024:] for shard in shards), stored)
        for data in ("pairs", "shards"):
            self.train(f"of-{data}", "--data-dir", f"@{data}", "--max-iters", "2")
        self.same_run("of-pairs", "of-shards", "ckpt-2")
        self.call(*SAMPLE, "@of-pairs/ckpt-2", *vocabulary, "--prompt", "abcd")

    def test_two_and_four_bytes_are_the_same(self):
        self.make_data("two", 2, 300)
        self.make_data("four", 4, 300)
        self.train_on("two", "of-two")
        self.train_on("four", "of-four")
        self.same_metrics("of-two", "of-four")
        self.same_file("of-two/ckpt-4/model.safetensors", "of-four/ckpt-4/model.safetensors")

    # ---- the same text in train.bin and val.bin, and in llm.c's token shards; batches in sequence

    def test_shards_give_the_same_bits_as_one_file(self):
        self.call("hc_prepare", "--out", "@prepared", "--shards", "7000", "@text.txt")
        self.train_on("prepared", "of-parts")
        self.train_on("data", "of-plain")
        self.same_metrics("of-parts", "of-plain")
        self.same_file("of-parts/ckpt-4/model.safetensors", "of-plain/ckpt-4/model.safetensors")
        self.train("of-passes", "--data-dir", "@prepared", "--train-batches", "sequential", "--batch-size", "64", "--max-iters", "40",
                   says="begins again with the first tokens of")
        shard = bytearray(self.path("prepared/corpus_train_000001.bin").read_bytes())
        shard[1024] ^= 1  # the first token behind the header
        self.put("prepared/corpus_train_000001.bin", shard)
        self.train_on("prepared", "of-parts", "--init-from", "resume", "--max-iters", "6", status=FAILED,
                      says="prepared/*train*.bin is not the file that")

    def test_sequence_goes_on_where_it_stopped(self):
        words = ("--eval-interval", "2", "--train-batches", "sequential")
        tokens = self.path("data/train.bin").stat().st_size // 2
        passes = (tokens - 1) // 64
        self.train_on("data", "in-one", *words,
                      says=f"batches  in sequence: {passes} iterations read {64 * passes} of {tokens} tokens of train.bin\n")
        self.train_on("data", "in-two", *words, "--max-iters", "2")
        self.train_on("data", "in-two", *words, "--init-from", "resume")
        self.same_run("in-one", "in-two", "ckpt-4")
        self.train_on("data", "too-large", *words, "--gradient-accumulation-steps", "600", status=FAILED,
                      says="data/train.bin: no file has the 38400 tokens of an iteration and one more, which train_batches = sequential takes "
                           f"from one file (the largest has {tokens} tokens)")

    def test_wrong_files(self):
        self.make_data("wrong", 4, 70000)
        for says, meta in [("wrong/train.bin: token 69999 at position ", {"vocab_size": 69999, "token_bytes": 4}),
                           ("wrong/meta.json: 'token_bytes' is neither 2 nor 4", {"vocab_size": 70000, "token_bytes": 8}),
                           ('say so with "token_bytes": 4', {"vocab_size": 70000}),
                           ("wrong/train.bin has a wrong size (6 bytes)", {"vocab_size": 70000, "token_bytes": 4})]:
            self.put_json("wrong/meta.json", meta)
            if "size (" in says:
                self.put("wrong/train.bin", "123456")
            self.train_on("wrong", "refused", status=FAILED, says=says)


if __name__ == "__main__":
    programs.main()
