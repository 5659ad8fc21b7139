#!/usr/bin/env python3
"""data/gcide/strip_markup.py and the scripts around it: markup goes, whatever the input is the memory stays small, and failures show.

  tests/corpus/strip_gcide.py HC_PREPARE      the program that data/gcide/prepare.sh calls
"""
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "data/gcide/strip_markup.py")
PREPARE = os.path.join(ROOT, "data/gcide/prepare.sh")

TEXT = rb'''
00-database-info
   A notice.

Lamina \Lam"i*na\ (l[a^]m"[i^]*n[.a]), n.; pl. L. {Lamin[ae]}
   (-n[=e]) E. {Laminas} (-n[.a]z). [L. cf. {Lamella} and a long
   [Gr. ?] word.]
   1. A thin plate  or scale ; a layer. --Gray. [Obs.]
      [1913 Webster]

   2. (Bot.) [He] said "[They] were" {Di*chot"o*mous*ly} (so).
   [1913 Webster] Laminar

Laminar \Lam"i*nar\, a. [Cf. F.]
   Thin.
   [1913 Webster] -- {Lam"i*nar*ly}, adv.
   [PJC]

   [PJC]

   [Webster 1913 Suppl.] Roband \Rob"and\, n. (Naut.)
   A piece 90[deg] [unclosed {x}'''
EXPECTED = b'''Lamina, n.; pl. L. Laminae E. Laminas. 1. A thin plate or scale; a layer. --Gray.
2. (Bot.) [He] said "[They] were" Dichotomously (so).

Laminar, a. Thin. -- Laminarly, adv.

Roband, n. (Naut.) A piece 90 deg. unclosed x
'''


def expect(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: {got!r} instead of {wanted!r}")


def run(path, data=b""):
    """Exit status, output and errors of the script."""
    result = subprocess.run([sys.executable, SCRIPT, path], input=data, capture_output=True, check=False)
    return result.returncode, result.stdout, result.stderr


def run_in_pieces(data, piece):
    """What comes out when the input comes through a pipe, so many bytes at a time."""
    process = subprocess.Popen([sys.executable, SCRIPT, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    for at in range(0, len(data), piece):
        process.stdin.write(data[at:at + piece])
    process.stdin.close()
    text = process.stdout.read()
    expect(process.wait(), 0, "exit status")
    return text


def check_markup():
    expect(run("-", TEXT), (0, EXPECTED, b""), "the entries")
    expect(run_in_pieces(TEXT, 1), EXPECTED, "a byte at a time")
    expect(run_in_pieces(TEXT, 7), EXPECTED, "seven bytes at a time")
    expect(run("-", b""), (0, b"", b""), "nothing")
    expect(run("-", b"a \\"), (0, b"a\n", b""), "a headword that is not closed")
    expect(run("-", b"caf\xe9 \\caf\\\n \xff\xc3\xa9 [\xe9] \0"), (0, b"caf\xe9 \xff\xc3\xa9\0\n", b""), "bytes that are not ASCII")


def check_hostile():
    """Lines without an end, brackets in brackets: no more time or memory than for others."""
    for unit in b"[", b"]", b"(", b"{", b"\\", b"[a", b"a\n", b" .", b"[[a]]", b"\0", b"A \\x\n":
        data = b"H \\H\\\n" + unit * (300000 // len(unit))
        status, text, errors = run("-", data)
        expect((status, errors), (0, b""), f"many {unit!r}")
        expect(len(text) <= len(data), True, f"the size of many {unit!r}")


def check_files(folder):
    path = os.path.join(folder, "dictionary")
    packed = gzip.compress(TEXT)
    for content in TEXT, packed, gzip.compress(TEXT[:300]) + gzip.compress(TEXT[300:]):
        with open(path, "wb") as file:
            file.write(content)
        expect(run(path), (0, EXPECTED, b""), "a file")
    for content, reason in (packed[:-20], b"ended before"), (packed + b"more", b"gzip"), (b"\x28\xb5\x2f\xfd", b"zstd -dc"):
        with open(path, "wb") as file:
            file.write(content)
        status, _, errors = run(path)
        expect((status, reason in errors, b"Traceback" in errors), (1, True, False), f"a damaged file ({errors})")
    for path in folder, os.path.join(folder, "missing"):
        status, _, errors = run(path)
        expect((status, b"Traceback" in errors), (1, False), f"a wrong path ({errors})")


def check_prepare(folder, hc_prepare):
    """Token files of a dictionary: meta.json has the dictionary as the source; a damaged one makes no token files."""
    dictionary, out = os.path.join(folder, "gcide.dz"), os.path.join(folder, "out")
    command = ["sh", PREPARE, out, hc_prepare]
    environment = dict(os.environ, GCIDE_DICT=dictionary)
    content = gzip.compress(TEXT * 100)
    with open(dictionary, "wb") as file:
        file.write(content[:-10])
    expect(subprocess.run(command, env=environment, capture_output=True, check=False).returncode != 0, True, "a damaged dictionary")
    expect(os.path.exists(out), False, "the results of a damaged dictionary")
    with open(dictionary, "wb") as file:
        file.write(content)
    subprocess.run(command, env=environment, capture_output=True, check=True)
    with open(os.path.join(out, "meta.json"), encoding="utf-8") as file:
        meta = json.load(file)
    expect(meta["strip_markup"], "gcide", "strip_markup")
    expect(meta["sources"], [{"path": dictionary, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}], "sources")
    expect(meta["train_tokens"] + meta["val_tokens"], len(run(dictionary)[1]), "tokens")
    expect(sorted(os.listdir(out)), ["meta.json", "train.bin", "val.bin"], "the folder")
    again = subprocess.run(command, env=environment, capture_output=True, check=True)
    expect(again.stdout, f"{out} is up to date\n".encode(), "the second time")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    check_markup()
    check_hostile()
    with tempfile.TemporaryDirectory() as folder:
        check_files(folder)
        check_prepare(folder, os.path.abspath(sys.argv[1]))


if __name__ == "__main__":
    main()
