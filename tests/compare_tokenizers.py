#!/usr/bin/env python3
"""Tokens from build/tests/tokenize beside those of Hugging Face's tokenizers or of tiktoken: the same, and how fast, on one core each.

  tests/compare_tokenizers.py [--tokenizer tokenizer.json]... [--vocab-file gpt2.tiktoken] [TEXT...]

Needs numpy, and tokenizers for a tokenizer.json or tiktoken for GPT-2's vocabulary (pip install), and no network. Beside the files given it
takes texts of its own: every character of Unicode alone, among letters, digits, spaces and combining marks, random mixtures, long runs, control
tokens. tests/text/make_tokenizers.py trains vocabularies to compare with.
"""
import argparse
import os
import random
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"

import numpy  # noqa: E402

PART = 20000  # characters of a document, of which their faster function encodes many
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


# ---- the other programs: a function from a text to its tokens, with the seconds that it took

class HuggingFace:
    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(path)
        self.added = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self.decode = self.tokenizer.decode

    def encode(self, text, parse):
        """The seconds are those of the faster of two ways."""
        self.tokenizer.encode_special_tokens = not parse
        start = time.perf_counter()
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        seconds = time.perf_counter() - start
        parts = [text[at:at + PART] for at in range(0, len(text), PART)]
        start = time.perf_counter()
        self.tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        return tokens, min(seconds, time.perf_counter() - start)


class Tiktoken:
    added = ()

    def __init__(self, path):
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe
        self.encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=load_tiktoken_bpe(path), special_tokens={"<|endoftext|>": 50256})
        self.decode = self.encoding.decode

    def encode(self, text, _parse):
        start = time.perf_counter()
        tokens = self.encoding.encode_ordinary(text)
        return tokens, time.perf_counter() - start


# ---- comparison

def compare(program, path, name, text, peer, parse):
    """Prints a line; true if the tokens are the same."""
    done = subprocess.run([program, path, "parse" if parse else "text"], input=text.encode(), capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    tokens, seconds = numpy.frombuffer(done.stdout, "<u4").tolist(), float(done.stderr)
    expected, theirs = peer.encode(text, parse)
    megabytes = len(text.encode()) / 1e6
    print("%-4s %-36s %8.3f MB %9d tokens %8.1f MB/s, theirs %6.1f MB/s" %
          ("same" if tokens == expected else "DIFF", name, megabytes, len(expected), megabytes / (seconds + 1e-9), megabytes / (theirs + 1e-9)),
          flush=True)
    if tokens != expected:
        at = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), min(len(tokens), len(expected)))
        print("     from token %d on: %s, theirs %s: %r" % (at, tokens[at:at + 8], expected[at:at + 8], peer.decode(expected[max(at - 3, 0):at + 5])))
    return tokens == expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="append", default=[], metavar="tokenizer.json")
    parser.add_argument("--vocab-file", help="GPT-2's vocabulary in tiktoken's format")
    parser.add_argument("--program", default="build/tests/tokenize")
    parser.add_argument("texts", nargs="*", help="files; bytes that are no UTF-8 are replaced")
    arguments = parser.parse_args()
    peers = [(path, HuggingFace(path)) for path in arguments.tokenizer] + [(path, Tiktoken(path)) for path in filter(None, [arguments.vocab_file])]
    if not peers:
        parser.error("give --tokenizer or --vocab-file")
    wrong = 0
    for path, peer in peers:
        print(path)
        for name, text in texts(arguments.texts, list(peer.added)):
            for parse in (False, True) if name == "added tokens" else (False,):
                wrong += not compare(arguments.program, path, name, text, peer, parse)
    print("%d differences" % wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
