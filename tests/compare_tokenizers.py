#!/usr/bin/env python3
"""Tokens of hc_prepare beside those of Hugging Face's tokenizers or of tiktoken: the same.

  tests/compare_tokenizers.py [--tokenizer tokenizer.json]... [--vocab-file gpt2.tiktoken] [TEXT...]

Needs numpy, and tokenizers for a tokenizer.json or tiktoken for GPT-2's vocabulary (pip install), and no network. Beside the files given it
takes texts of its own: every character of Unicode alone, among letters, digits, spaces and combining marks, random mixtures, long runs, control
tokens. tests/text/make_tokenizers.py trains vocabularies to compare with.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


# ---- texts

def mixture(chance, alphabet, count):
    return "".join(chance.choice(alphabet) for _ in range(count))


def texts(paths, added):
    """(name, text) of the files, of which bytes that are no UTF-8 are replaced, and of this script's own texts."""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            yield path, file.read()
    chance, every = random.Random(1), CHARACTERS
    signs = ["a", "B", "é", "ß", "中", "ω", "1", "٣", "½", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u0085",
             "\u200b", "\u180e", "'", "'s", "'ll", "'S", "’", "!", "_", "#", "<|endoftext|>", "\U0001f600", "\u0301", "\x00", "\x1c", "\x1f"]
    marks = [chr(code) for code in range(0x300, 0x370)] + list("\u093c\u09be\u0c56\u0d57\u1161\u11a8\u1175\u0344\u0301")
    bases = list("aeoAEOÅé가각") + ["\u1100", "\u1105", "\u09c7", "\u0dd9", "\u212b", "\u2126", "\uf900", "\U0002f800"]
    yield "nothing", ""
    yield "one space", " "
    yield "every character", "".join(every)
    yield "every character between letters", "".join(f"a{c}b {c}\n" for c in every)
    yield "every character twice after a space", " ".join(2 * c for c in every)
    yield "every character after an apostrophe", "".join(f"a'{c}x '{c} " for c in every)
    yield "every character among digits", "".join(f"1{c}2 {c}3" for c in every)
    yield "every character among signs", "".join(f"!{c}\n" for c in every)
    yield "every character before line ends", "".join(f"{c}\n{c}\r\n\n {c} \n" for c in every)
    yield "every character among marks", "".join(f"a{c}\u0316\u0301b a\u0301{c}{c}\u0323\u0300" for c in every)
    yield "random characters", mixture(chance, every, 1000000)
    yield "random signs", mixture(chance, signs, 2000000)
    yield "bases and marks", mixture(chance, bases + marks, 500000)
    yield "a run of marks", "a" + mixture(chance, marks[:112], 50000)
    yield "a run of spaces", "a" + 100000 * " " + "b" + 100001 * " "
    yield "a run of line ends", "a" + 50000 * "\n" + " b" + 50000 * "\r\n"
    yield "a run of one letter", 30000 * "a"
    yield "a run of signs", 30000 * "!?" + 30000 * "\U0001f600"
    yield "letters without a space", mixture(chance, "abcdefghijklmnopqrstuvwxyz", 100000)
    if added:
        yield "added tokens", mixture(chance, added + ["a", " ", "\n", "<|", "|>", "<", "e\u0301", added[0][:-1], "1", "."], 100000)


# ---- the other programs: a function from a text to its tokens

class HuggingFace:
    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(path)
        self.added = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self.options, self.decode = ["--tokenizer", path], self.tokenizer.decode

    def encode(self, text, parse):
        self.tokenizer.encode_special_tokens = not parse
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Tiktoken:
    added = ()

    def __init__(self, path):
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe
        self.encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=load_tiktoken_bpe(path), special_tokens={"<|endoftext|>": 50256})
        self.options, self.decode = ["--tokenizer", "gpt2", "--vocab-file", path], self.encoding.decode

    def encode(self, text, _parse):
        return self.encoding.encode_ordinary(text)


# ---- comparison

def prepared(program, options, text, parse):
    """The tokens of a document but its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
        done = subprocess.run([program, *options, "--special-tokens", "parse" if parse else "text", "--val-fraction", "0", "--out", folder / "out",
                               folder / "text.jsonl"], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        size = json.loads((folder / "out/meta.json").read_text()).get("token_bytes", 2)
        return numpy.fromfile(folder / "out/train.bin", f"<u{size}").tolist()[:-1]


def compare(program, name, text, peer, parse):
    """Prints a line; true if the tokens are the same."""
    tokens, expected = prepared(program, peer.options, text, parse), peer.encode(text, parse)
    print(f"{'same' if tokens == expected else 'DIFF'} {name}: {len(expected)} tokens", flush=True)
    if tokens != expected:
        at = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), min(len(tokens), len(expected)))
        print(f"     from token {at} on: {tokens[at:at + 8]}, theirs {expected[at:at + 8]}: {peer.decode(expected[max(at - 3, 0):at + 5])!r}")
    return tokens == expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="append", default=[], metavar="tokenizer.json")
    parser.add_argument("--vocab-file", help="GPT-2's vocabulary in tiktoken's format")
    parser.add_argument("--program", default="build/hc_prepare")
    parser.add_argument("texts", nargs="*", help="files; bytes that are no UTF-8 are replaced")
    arguments = parser.parse_args()
    peers = [HuggingFace(path) for path in arguments.tokenizer] + [Tiktoken(path) for path in filter(None, [arguments.vocab_file])]
    if not peers:
        parser.error("give --tokenizer or --vocab-file")
    wrong = 0
    for peer in peers:
        for name, text in texts(arguments.texts, list(peer.added)):
            for parse in (False, True) if name == "added tokens" else (False,):
                wrong += not compare(arguments.program, name, text, peer, parse)
    print(f"{wrong} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
