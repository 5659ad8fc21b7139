"""Files tokenizer.json that are refused, or that contradict themselves, where tokens are those of the tokenizers package."""
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED

FOLDER = Path(__file__).resolve().parent / "tokenizers"
END_OF_TEXT = {"id": 0, "content": "<|endoftext|>"}
NO_VOCABULARY, NO_STRINGS, YES_OR_NO = "is not in the vocabulary", "model.merges[3]: it must be two strings", "it must be true or false"
SPACED = [END_OF_TEXT, {"id": 400, "content": "<a>", "rstrip": True}, {"id": 401, "content": " sp"}, {"id": 402, "content": "  "},
          {"id": 403, "content": " x", "lstrip": True}]
TWICE = [END_OF_TEXT, {"id": 400, "content": "<a>", "special": True}, {"id": 401, "content": "<a>", "rstrip": True}]


class OddTokenizers(programs.Case):
    @classmethod
    def begin(cls):
        """The corpus is not needed."""

    def load(self, family):
        return json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))

    def change(self, family, path, value):
        """Writes a family's file with this value at a path such as "model/merges/0"; -1 is behind the last."""
        document = inner = self.load(family)
        *outer, last = path.split("/")
        for name in outer:
            inner = inner[int(name) if isinstance(inner, list) else name]
        if last == "-1":
            inner.append(value)
        else:
            inner[int(last) if isinstance(inner, list) else last] = value
        self.put_json("bad.json", document)

    def prepare(self, *words, **setup):
        self.call("hc_prepare", "--out", "@out", "--val-fraction", "0", "@text.jsonl", *words, **setup)

    def tokens(self, text, tokenizer, *words):
        """With that of the text's end behind them."""
        self.put_json("text.jsonl", {"text": text})
        self.prepare("--tokenizer", tokenizer, *words)
        return [token for (token,) in struct.iter_unpack("<H", self.path("out/train.bin").read_bytes())]

    def refused(self, says):
        self.put_json("text.jsonl", {"text": "a"})
        self.prepare("--tokenizer", "@bad.json", status=FAILED, says=[says, "bad.json"])

    def test_missing_byte(self):
        """Text with a byte that has no token loses it."""
        tokenizer = self.load("gpt2")
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["中"] = vocabulary.pop("~")
        self.put_json("missing.json", tokenizer)
        self.assertEqual(self.tokens(".~.", "@missing.json"), self.tokens("..", "@missing.json"))

    def test_odd_files(self):
        """Of white space at added tokens, too."""
        for path, value, text, special, *tokens in [
                ("added_tokens", SPACED, "q<a> spx", "parse", 81, 400, 401, 88),
                ("added_tokens", SPACED, "q<a>     sp", "parse", 81, 400, 402, 402, 401),
                ("added_tokens", SPACED, "q<a>   x", "parse", 81, 400, 402, 403),
                ("added_tokens", SPACED, "q<a>      x z", "parse", 81, 400, 402, 402, 402, 88, 221, 90),
                ("added_tokens", [END_OF_TEXT, {"id": 400, "content": "\n\t", "lstrip": True, "rstrip": True}], "q\n\t \n\tx", "parse", 81, 400, 88),
                ("added_tokens", TWICE, "q<a> b", "text", 81, 28, 65, 30, 281),
                ("added_tokens", TWICE, "q<a> b", "parse", 81, 400, 66),
                # any numbers
                ("added_tokens", [{**END_OF_TEXT, "id": 7}, {"id": 405, "content": "<b>"}, {"id": 5, "content": "<a>"}], "q<a>b<b>", "parse",
                 81, 401, 66, 400),
                ("model/vocab/ine", 450, "x in", "parse", 88, 304),  # a number without a token
                ("model/merges/-1", ["h", "e"], "hes", "parse", 72, 263)]:  # the last of two places of a merge counts
            with self.subTest(path=path, text=text):
                self.change("gpt2", path, value)
                self.assertEqual(self.tokens(text, "@bad.json", "--special-tokens", special)[:-1], tokens)

    def test_end_of_text(self):
        for family, end, *words in [("gpt2", 0), ("llama3", 401), ("qwen2", 400), ("qwen2", 402, "--end-of-text", "<|im_end|>")]:
            self.assertEqual(self.tokens("a", FOLDER / f"{family}.json", *words)[-1], end)
        self.prepare("--tokenizer", FOLDER / "qwen2.json", "--end-of-text", "im_end", status=FAILED,
                     says="added_tokens has no 'im_end' (--end-of-text)")

    def test_refusals(self):
        split, isolated = "pre_tokenizer/pretokenizers/0", "Split is supported with the behavior Isolated"
        for says, family, path, value in [
                ("model.type is 'Unigram': hctrain reads byte-level BPE, as of GPT-2, SmolLM2, Llama 3 and Qwen", "gpt2", "model/type", "Unigram"),
                ("model.type is 'WordPiece'", "gpt2", "model/type", "WordPiece"),
                ("model.byte_fallback is set", "gpt2", "model/byte_fallback", True),
                ("model.dropout is set", "gpt2", "model/dropout", 0.1),
                ("model.continuing_subword_prefix is set", "gpt2", "model/continuing_subword_prefix", "##"),
                ("model.end_of_word_suffix is set", "gpt2", "model/end_of_word_suffix", "</w>"),
                ("model.vocab is missing", "gpt2", "model/vocab", []),
                ("model.merges is missing", "gpt2", "model/merges", None),
                ("it has no 'model'", "gpt2", "model", []),
                *(("model.vocab: the number of '!' is not a whole number", "gpt2", "model/vocab/!", number) for number in (-1, 1.5, "1")),
                ("model.vocab, '!': token 1048576: the numbers of tokens must be below", "gpt2", "model/vocab/!", 1048576),
                ("two tokens have the number 2", "gpt2", "model/vocab/!", 2),
                ("token 400 is empty", "gpt2", "model/vocab/", 400),
                *((f"model.merges[3]: 'zzz' {NO_VOCABULARY}", "gpt2", "model/merges/3", merge) for merge in (["a", "zzz"], "zzz a")),
                ("model.merges[3]: the two strings together are not in the vocab", "gpt2", "model/merges/3", ["!", "~"]),
                *((NO_STRINGS, "gpt2", "model/merges/3", merge) for merge in (["a"], "ab", 5)),
                ("added_tokens is not a list", "gpt2", "added_tokens", 5),
                ("added_tokens has neither '<|endoftext|>' nor", "gpt2", "added_tokens", []),
                ("added_tokens[0]: 'id' is -1: it must be a whole number from 0", "gpt2", "added_tokens/0/id", -1),
                ("added_tokens[0]: 'id' is \"0\": it must be a whole number", "gpt2", "added_tokens/0/id", "0"),
                ("added_tokens[0]: two tokens have the number 400", "qwen2", "model/vocab/!", 400),
                ("added_tokens[0]: it must have an 'id', and a 'content' of 1 to", "qwen2", "added_tokens/0/content", ""),
                ("it must be a string without NUL", "qwen2", "added_tokens/0/content", "a\0b"),
                (f"'special' is \"yes\": {YES_OR_NO}", "qwen2", "added_tokens/0/special", "yes"),
                (f"'lstrip' is 1: {YES_OR_NO}", "qwen2", "added_tokens/0/lstrip", 1),
                (f"'ignore_merges' is \"true\": {YES_OR_NO}", "gpt2", "model/ignore_merges", "true"),
                ("pre_tokenizer: 'invert' is 0: it must be true or", "llama3", f"{split}/invert", 0),
                ("added_tokens[0]: '<|endoftext|>' has 'single_word'", "qwen2", "added_tokens/0/single_word", True),
                ("the normalizer 'NFKC' is not supported", "qwen2", "normalizer/type", "NFKC"),
                ("'Lowercase'", "qwen2", "normalizer", {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}),
                ("the pre_tokenizer has 0 steps", "gpt2", "pre_tokenizer", None),
                ("the pre_tokenizer does not end with ByteLevel", "gpt2", "pre_tokenizer/type", "Metaspace"),
                ("add_prefix_space is not supported", "gpt2", "pre_tokenizer/add_prefix_space", True),
                ("hctrain knows the expressions of GPT-2, SmolLM2", "gpt2", "pre_tokenizer/use_regex", False),
                ("Digits without individual_digits", "smollm2", f"{split}/individual_digits", False),
                (isolated, "llama3", f"{split}/behavior", "Removed"),
                (isolated, "llama3", f"{split}/invert", True),
                ("the pre_tokenizer 'Split' is not", "llama3", f"{split}/pattern", {"String": " "}),
                ("Llama 3, Qwen 2, 3 and 3.5, and o200k, but not '\\s+'", "llama3", f"{split}/pattern/Regex", "\\s+"),
                ("the decoder 'WordPiece' is not supported", "gpt2", "decoder/type", "WordPiece")]:
            with self.subTest(path=path, value=value):
                self.change(family, path, value)
                self.refused(says)

    def test_broken_files(self):
        for says, content in [("bad.json:1: maximum parsing depth", 100000 * "["), ("bad.json:1", "{"), ("it has no 'model'", "[]"),
                              ("duplicate", '{"a":1,"a":2}')]:
            self.put("bad.json", content)
            self.refused(says)
        self.remove("bad.json")
        self.refused("is not there")


if __name__ == "__main__":
    programs.main()
