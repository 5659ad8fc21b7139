"""Documents to token files: the files have what was given, in the order and split that were asked for."""
import base64
import gzip
import json
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED

DOCUMENTS = 3000
TOKENS = [*(bytes([byte]) for byte in range(256)), b" t", b"he", b" the", b" a", b"in", b"\n\n", b"  ", "ä".encode()]
END_OF_TEXT = len(TOKENS)
# white space of all kinds, characters of one to four bytes
WORDS = [" the", "the", " a\n", "in ", "\n\n", "   ", " 12345", "!?", "\t", "ä", " 日本", "😀", "\u3000", "'s", "\u00a0"]
OUT = "out"


class Documents(programs.Case):
    @classmethod
    def begin(cls):
        cls.put("vocabulary", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(TOKENS)))
        chosen = random.Random(1)
        cls.texts = ["" if i % 100 == 7 else "".join(chosen.choices(WORDS, k=chosen.randrange(300))) for i in range(DOCUMENTS)]
        cls.put("lines.jsonl", cls.lines_of(0, DOCUMENTS))

    @classmethod
    def lines_of(cls, first, end):
        """Documents as JSON lines, with empty ones between them."""
        return "".join(json.dumps({"id": i, "text": cls.texts[i]}, ensure_ascii=i % 2 == 1) + ("\n  \r\n" if i % 50 == 3 else "\n")
                       for i in range(first, end))

    def prepare(self, *words, out=OUT, **setup):
        """Of lines shuffled, a hundredth is held out; later options win."""
        self.call("hc_prepare", "--tokenizer", "gpt2", "--vocab-file", "@vocabulary", "--val-fraction", "0.01", "--seed", "5", "--threads", "3",
                  "--out", f"@{out}", *words, **setup)

    def fails(self, says, *words):
        """And leaves nothing."""
        self.prepare(*words, out="failed", status=FAILED, says=says)
        self.assertFalse(self.has("failed"))

    def bytes_of(self, name="train.bin"):
        return self.path(f"{OUT}/{name}").read_bytes()

    def bytes_of_both(self):
        return self.bytes_of(), self.bytes_of("val.bin")

    def documents(self, name="train.bin"):
        """Those of a token file as texts, in order."""
        found, text = [], b""
        for (token,) in struct.iter_unpack("<H", self.bytes_of(name)):
            if token == END_OF_TEXT:
                found.append(text.decode())
                text = b""
            else:
                text += TOKENS[token]
        self.assertEqual(text, b"")  # every document has an end
        return found

    def has_all_documents(self, held_out):
        """Both files together have the documents, each once, and val.bin has so many of them, or one more or less."""
        train, val = self.documents(), self.documents("val.bin")
        self.assertEqual(sorted(train + val), sorted(self.texts))
        self.assertLessEqual(abs(len(val) - held_out), 1)

    def test_shuffled(self):
        self.prepare("@lines.jsonl")
        self.has_all_documents(DOCUMENTS // 100)
        self.assertLess(sum(map(str.__eq__, self.documents(), self.texts)), DOCUMENTS // 20)  # few are at their place
        first = self.bytes_of_both()
        self.assertEqual(self.json(f"{OUT}/meta.json")["train_tokens"], len(first[0]) // 2)
        self.prepare("--threads", "1", "@lines.jsonl")
        self.assertEqual(self.bytes_of_both(), first)
        self.prepare("--seed", "6", "@lines.jsonl")
        self.assertNotEqual(self.bytes_of_both()[0], first[0])
        self.has_all_documents(DOCUMENTS // 100)

    def test_kept_order(self):
        self.prepare("--no-shuffle", "--val-fraction", "0", "@lines.jsonl")
        self.assertFalse(self.has(f"{OUT}/val.bin"))
        self.assertEqual(self.documents(), self.texts)

    def test_sources(self):
        """The same documents from a file, from standard input (with many buckets instead of one), and from several compressed files."""
        self.prepare("@lines.jsonl")
        first = self.bytes_of_both()
        with open(self.path("lines.jsonl"), "rb") as lines:
            self.prepare("--documents", "jsonl", "-", stdin=lines)
        self.assertEqual(self.bytes_of_both(), first)
        for part in range(3):
            self.put(f"part-{part}", gzip.compress(self.lines_of(DOCUMENTS * part // 3, DOCUMENTS * (part + 1) // 3).encode()))
        self.prepare("--documents", "jsonl", "@part-0", "@part-1", "@part-2")
        self.assertEqual(self.bytes_of_both(), first)

    def put_order(self, count, step):
        """Document (i step + 11) % count for each i."""
        order = [(i * step + 11) % count for i in range(count)]
        self.put("order", struct.pack(f"<{count}Q", *order))
        return order

    def test_listed_order(self):
        words = ("--order", "@order", "--val-fraction", "0.0101", "@lines.jsonl")
        order = self.put_order(DOCUMENTS, 1009)
        self.prepare(*words)
        val = self.documents("val.bin")
        self.assertEqual(len(val), 31)  # 0.0101 of them, rounded up
        self.assertEqual(val + self.documents(), [self.texts[number] for number in order])
        self.put_order(DOCUMENTS - 1, 1)
        self.fails("lists 2999 documents, but the input has 3000", *words)
        self.put_order(DOCUMENTS, 3)  # each third, three times
        self.fails("each number below that once", *words)
        self.put("order", bytes(100))
        self.fails("should have 8 for each document", *words)

    def test_val_source(self):
        """A file that is held out has its documents in val.bin, and no others."""
        train = DOCUMENTS // 10
        self.put("train.jsonl", self.lines_of(0, train))
        self.put("val.jsonl", self.lines_of(train, DOCUMENTS))
        self.prepare("@train.jsonl", "--val", "@val.jsonl")
        self.has_all_documents(DOCUMENTS - train)
        self.assertEqual(sorted(self.documents("val.bin")), sorted(self.texts[train:]))

    def test_files(self):
        """A file of several MiB is one document, encoded in parts; its tokens are those of the whole, which a line is encoded as. So are those of the
        chunks that running text is cut into."""
        large = 4 * "".join(self.texts)
        self.put("whole.jsonl", json.dumps({"text": large}))
        self.prepare("--val-fraction", "0", "@whole.jsonl")
        whole = self.bytes_of()
        for name, text in (("a", "in the"), ("b", large), ("c", "")):
            self.put(name, text)
        self.prepare("--documents", "files", "--val-fraction", "0", "--no-shuffle", "@a", "@b", "@c")
        end = struct.pack("<H", END_OF_TEXT)
        self.assertEqual(self.bytes_of(), struct.pack("<3H", 260, 258, END_OF_TEXT) + whole + end)
        self.prepare("--documents", "chunks", "--val-fraction", "0", "@b")
        self.assertEqual(self.bytes_of(), whole)
        self.prepare("--documents", "chunks", "--val-fraction", "0.1", "@b")
        train, val = (len(tokens) for tokens in self.bytes_of_both())
        self.assertEqual(train + val, len(whole))
        self.assertAlmostEqual(val / len(whole), 0.1, delta=0.02)

    def test_bytes(self):
        """Bytes as tokens: a blank line ends a document. In the input, a byte order mark, and a number that no machine has."""
        self.put("two.jsonl", '\ufeff{"id":123456789012345678901,"text":"one"}\r\n{"text":"two\\u0000"}')
        self.prepare("--tokenizer", "byte", "--val-fraction", "0", "--no-shuffle", "@two.jsonl")
        self.assertEqual(self.bytes_of(), b"".join(bytes([byte, 0]) for byte in b"one\n\ntwo\0\n\n"))

    def test_no_white_space(self):
        """Words longer than a part, of characters of three bytes: cut between two of them."""
        text = "中" * 3000001
        self.put("long", text)
        for kind in ("files", "chunks"):
            self.prepare("--documents", kind, "--val-fraction", "0", "@long")
            train = self.bytes_of()
            self.assertEqual(len(train), 2 * (3 * len(text) + 1))
            self.assertEqual(train[:6 * len(text):2], text.encode())

    def test_bad_input(self):
        for says, content in [(":3: not JSON at byte", b'{"text":"a"}\n\n{"text":"b"\n'),
                              (":1: no field 'text'; there is 'body', 'url' (choose with --field)", b'{"body":"a", "url":"b"}\n'),
                              (":1: field 'text' is not a string", b'{"text":5}\n'),
                              (":3: not a JSON object", b'\n\n["text"]\n'),
                              (":2: not UTF-8 (byte 0xff)", b'{"text":"a"}\n{"text":"\xff"}\n'),
                              (":1: not JSON at byte", b'{"text":"\\ud800"}\n'),
                              ("(--invalid replace puts U+FFFD there)", b'{"text":"\\ud800"}\n'),
                              (":1: field 'text' is not a string", b'{"text":NaN}\n'),
                              (":1: not JSON at byte", b'{"text":"a"} x\n'),
                              (": its compressed data ends in the middle", b"\x1f\x8b\x08\0\0\0\0\0")]:
            self.put("bad.jsonl", content)
            self.fails(f"bad.jsonl{says}" if says.startswith(":") else says, "@lines.jsonl", "@bad.jsonl")
        self.put("latin.txt", b"one\ntwo \xe4\n")
        files = ("--documents", "files", "@latin.txt", "--val-fraction", "0")
        self.fails("latin.txt:2: not UTF-8 (byte 0xe4)", *files)
        self.prepare(*files, "--invalid", "replace")
        self.assertEqual(self.documents(), ["one\ntwo \ufffd\n"])

    def test_beyond_json(self):
        """What JSON does not have, in fields that are not read, and half a surrogate pair in the one that is."""
        self.put("beyond.jsonl", '{"score":NaN,"text":"one","size":1e999,"name":"\\u0000"}\n{"text":"a\\ud83db","score":-Infinity}\n')
        words = ("--val-fraction", "0", "--no-shuffle", "@beyond.jsonl")
        self.fails("beyond.jsonl:2: not JSON at byte", *words)
        self.prepare(*words, "--invalid", "replace")
        self.assertEqual(self.documents(), ["one", "a\ufffdb"])

    def test_byte_order_mark(self):
        """It is no part of running text."""
        self.put("marked.txt", "\ufeffone\n")
        self.put("binary.txt", b"one\0\xff\n")
        files = ("--documents", "files", "--val-fraction", "0")
        self.prepare(*files, "@marked.txt")
        self.assertEqual(self.documents(), ["one\n"])
        self.fails("binary.txt is no text: it has NUL bytes", *files, "@binary.txt")


if __name__ == "__main__":
    programs.main()
