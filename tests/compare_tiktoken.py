#!/usr/bin/env python3
"""GPT-2's tokens from build/tests/tokenize beside tiktoken's: the same, and how fast, on one core each.

  tests/compare_tiktoken.py --vocab-file gpt2.tiktoken [TEXT...]

Needs tiktoken and numpy (pip install tiktoken numpy) and no network. Beside the files given it takes texts of its own: every
character of Unicode alone and among letters, random mixtures of what the pattern tells apart, long runs, nothing at all.
"""
import argparse
import subprocess
import sys
import time

import numpy
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext import openai_public

from text.comparison import CHARACTERS, compare, ours, read_texts


def gpt2(ranks):
    pattern = getattr(openai_public, "r50k_pat_str", None)
    if pattern is None:  # older ones have it inside of a function that downloads
        pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(ranks),
                             special_tokens={"<|endoftext|>": 50256})


def members(class_of):
    """The characters that tiktoken finds for a class: all others give no token."""
    finder = tiktoken.Encoding("class", pat_str=class_of, mergeable_ranks={bytes([byte]): byte for byte in range(256)},
                               special_tokens={})
    return {character for character in CHARACTERS if finder.encode_ordinary(character)}


def compare_classes(program, ranks):
    """After a letter, only a letter belongs to the piece; likewise after a number and after a sign. White space is the rest."""
    classes = {"letters": ("a", members(r"\p{L}")), "numbers": ("1", members(r"\p{N}")),
               "signs": ("!", members(r"[^\s\p{L}\p{N}]"))}
    wrong = 0
    for name, (before, expected) in classes.items():
        text = "".join("%s%s\n" % (before, character) for character in CHARACTERS).encode()
        done = subprocess.run([program, ranks, "pieces"], input=text, capture_output=True, check=True)
        ends = set(numpy.frombuffer(done.stdout, "<u4").tolist())
        at, found = 0, set()
        for character in CHARACTERS:
            if at + 1 not in ends:
                found.add(character)
            at += 2 + len(character.encode())
        different = sorted(found ^ expected)
        wrong += len(different)
        print("%-4s %-36s %d characters%s" % ("DIFF" if different else "same", name, len(expected),
                                              "".join(" U+%04X" % ord(c) for c in different[:20])))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-file", required=True, help="GPT-2's vocabulary in tiktoken's format")
    parser.add_argument("--program", default="build/tests/tokenize")
    parser.add_argument("texts", nargs="*", help="files; bytes that are no UTF-8 are replaced")
    arguments = parser.parse_args()
    encoding = gpt2(arguments.vocab_file)
    wrong = compare_classes(arguments.program, arguments.vocab_file)
    for name, text in read_texts(arguments.texts):
        tokens, seconds = ours(arguments.program, arguments.vocab_file, text)
        start = time.perf_counter()
        expected = numpy.array(encoding.encode_ordinary(text), "<u4")
        theirs = time.perf_counter() - start
        wrong += not compare(name, text, tokens, seconds, expected, theirs, encoding.decode)
    print("%d differences" % wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
