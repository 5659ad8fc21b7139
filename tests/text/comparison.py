"""What tests/compare_tiktoken.py and tests/compare_tokenizers.py share: texts, build/tests/tokenize, and the comparison."""
import random
import subprocess
import sys

import numpy

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


def read_texts(paths):
    """Files, of which bytes that are no UTF-8 are replaced, and then the texts of this file."""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            yield path, file.read()
    yield from own_texts()


def ours(program, vocabulary, text, word="text"):
    """The tokens of a text, and the seconds that encoding took."""
    done = subprocess.run([program, vocabulary, word], input=text.encode(), capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return numpy.frombuffer(done.stdout, "<u4"), float(done.stderr)


def compare(name, text, tokens, seconds, expected, theirs, decode):
    """Prints a line; true if the tokens are the same."""
    megabytes = len(text.encode()) / 1e6
    same = numpy.array_equal(tokens, expected)
    print("%-4s %-36s %8.3f MB %9d tokens %8.1f MB/s, theirs %6.1f MB/s" %
          ("same" if same else "DIFF", name, megabytes, len(expected), megabytes / (seconds + 1e-9), megabytes / (theirs + 1e-9)),
          flush=True)
    if not same:
        at = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), min(len(tokens), len(expected)))
        print("     from token %d on: %s, theirs %s: %r" % (at, tokens[at:at + 8].tolist(), expected[at:at + 8].tolist(),
                                                          decode(expected[max(at - 3, 0):at + 5].tolist())))
    return same
