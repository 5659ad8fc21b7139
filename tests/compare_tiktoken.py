#!/usr/bin/env python3
"""GPT-2's tokens from build/tests/tokenize beside tiktoken's: the same, and how fast, on one core each.

  tests/compare_tiktoken.py --vocab-file gpt2.tiktoken [TEXT...]

Needs tiktoken and numpy (pip install tiktoken numpy) and no network. Beside the files given it takes texts of its own: every
character of Unicode alone and among letters, random mixtures of what the pattern tells apart, long runs, nothing at all.
"""
import argparse
import random
import subprocess
import sys
import time

import numpy
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext import openai_public


def gpt2(ranks):
    pattern = getattr(openai_public, "r50k_pat_str", None)
    if pattern is None:  # older ones have it inside of a function that downloads
        pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(ranks),
                             special_tokens={"<|endoftext|>": 50256})


CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def mixture(chance, alphabet, count):
    return "".join(chance.choice(alphabet) for _ in range(count))


def own_texts():
    chance = random.Random(1)
    every = CHARACTERS
    signs = ["a", "B", "é", "ß", "中", "ω", "1", "٣", "½", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\u0085",
             "\u200b", "\u180e", "'", "'s", "'ll", "'S", "’", "!", "_", "#", "<|endoftext|>", "\U0001f600", "\u0301", "\x00", "\x1c", "\x1f"]
    yield "nothing", ""
    yield "one space", " "
    yield "every character", "".join(every)
    yield "every character between letters", "".join("a%sb %s\n" % (character, character) for character in every)
    yield "every character twice after a space", " ".join(2 * character for character in every)
    yield "random characters", mixture(chance, every, 1000000)
    yield "random signs", mixture(chance, signs, 2000000)
    yield "a run of spaces", "a" + 100000 * " " + "b" + 100001 * " "
    yield "a run of line ends", "a" + 50000 * "\n" + " b" + 50000 * "\r\n"
    yield "a run of one letter", 30000 * "a"
    yield "a run of signs", 30000 * "!?" + 30000 * "\U0001f600"
    yield "letters without a space", mixture(chance, "abcdefghijklmnopqrstuvwxyz", 100000)


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


def ours(program, ranks, text):
    done = subprocess.run([program, ranks], input=text.encode(), capture_output=True)
    if done.returncode:
        sys.exit("compare_tiktoken.py: " + done.stderr.decode())
    return numpy.frombuffer(done.stdout, "<u2"), float(done.stderr)


def compare(arguments, encoding, name, text):
    tokens, seconds = ours(arguments.program, arguments.vocab_file, text)
    start = time.perf_counter()
    expected = numpy.array(encoding.encode_ordinary(text), "<u2")
    theirs = time.perf_counter() - start
    megabytes = len(text.encode()) / 1e6
    same = numpy.array_equal(tokens, expected)
    print("%-4s %-36s %8.3f MB %9d tokens %8.1f MB/s, tiktoken %6.1f MB/s" %
          ("same" if same else "DIFF", name, megabytes, len(expected), megabytes / (seconds + 1e-9),
           megabytes / (theirs + 1e-9)), flush=True)
    if not same:
        at = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), min(len(tokens), len(expected)))
        print("     from token %d on: %s, tiktoken %s: %r" %
              (at, tokens[at:at + 8].tolist(), expected[at:at + 8].tolist(),
               encoding.decode(expected[max(at - 3, 0):at + 5].tolist())))
    return same, megabytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-file", required=True, help="GPT-2's vocabulary in tiktoken's format")
    parser.add_argument("--program", default="build/tests/tokenize")
    parser.add_argument("texts", nargs="*", help="files; bytes that are no UTF-8 are replaced")
    arguments = parser.parse_args()
    encoding = gpt2(arguments.vocab_file)
    results = []
    for path in arguments.texts:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            results.append(compare(arguments, encoding, path, file.read()))
    for name, text in own_texts():
        results.append(compare(arguments, encoding, name, text))
    wrong = sum(not same for same, _ in results) + compare_classes(arguments.program, arguments.vocab_file)
    print("%d texts, %.1f MB, %d different" % (len(results), sum(size for _, size in results), wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
