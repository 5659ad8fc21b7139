#!/usr/bin/env python3
"""The tokens of a tokenizer.json from build/tests/tokenize beside those of Hugging Face's tokenizers: the same, and how fast, on
one core each.

  tests/compare_tokenizers.py --tokenizer tokenizer.json [--tokenizer ...] [TEXT...]

Needs tokenizers and numpy (pip install tokenizers numpy) and no network. Beside the files given it takes texts of its own: every
character of Unicode alone, among letters, digits, spaces and combining marks, random mixtures, long runs, control tokens.
tests/text/make_tokenizers.py trains vocabularies to compare with.
"""
import argparse
import os
import random
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"

import numpy  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from text.comparison import CHARACTERS, compare, mixture, ours, read_texts  # noqa: E402

PART = 20000  # characters of a document, of which their faster function encodes many


def more_texts(tokenizer):
    """Texts for contractions, normalization and added tokens."""
    chance = random.Random(2)
    marks = [chr(code) for code in range(0x300, 0x370)] + list("\u093c\u09be\u0c56\u0d57\u1161\u11a8\u1175\u0344\u0301")
    bases = list("aeoAEOÅé가각") + ["\u1100", "\u1105", "\u09c7", "\u0dd9", "\u212b", "\u2126", "\uf900", "\U0002f800"]
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    yield "every character after an apostrophe", "".join("a'%sx '%s " % (c, c) for c in CHARACTERS)
    yield "every character among digits", "".join("1%s2 %s3" % (c, c) for c in CHARACTERS)
    yield "every character before line ends", "".join("%s\n%s\r\n\n %s \n" % (c, c, c) for c in CHARACTERS)
    yield "every character among marks", "".join("a%s\u0316\u0301b a\u0301%s%s\u0323\u0300" % (c, c, c) for c in CHARACTERS)
    yield "bases and marks", mixture(chance, bases + marks, 500000)
    yield "a run of marks", "a" + mixture(chance, marks[:112], 50000)
    yield "added tokens", mixture(chance, added + ["a", " ", "\n", "<|", "|>", "<", "e\u0301", added[0][:-1], "1", "."], 100000)


def encode(tokenizer, text):
    """All tokens, and the seconds of the faster of two ways."""
    start = time.perf_counter()
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    seconds = time.perf_counter() - start
    parts = [text[at:at + PART] for at in range(0, len(text), PART)]
    start = time.perf_counter()
    tokenizer.encode_batch_fast(parts, add_special_tokens=False)
    return numpy.array(tokens, "<u4"), min(seconds, time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="append", required=True)
    parser.add_argument("--program", default="build/tests/tokenize")
    parser.add_argument("texts", nargs="*", help="files; bytes that are no UTF-8 are replaced")
    arguments = parser.parse_args()
    wrong = 0
    for path in arguments.tokenizer:
        tokenizer = Tokenizer.from_file(path)
        print("%s, %d tokens" % (path, tokenizer.get_vocab_size()))
        for name, text in [*read_texts(arguments.texts), *more_texts(tokenizer)]:
            for word in ["text", "parse"] if name == "added tokens" else ["text"]:
                tokenizer.encode_special_tokens = word == "text"
                tokens, seconds = ours(arguments.program, path, text, word)
                expected, theirs = encode(tokenizer, text)
                wrong += not compare(name, text, tokens, seconds, expected, theirs, tokenizer.decode)
    print("%d differences" % wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
