#!/usr/bin/env python3
"""Checks where functions of the C library are called (CTest's `calls`): only runtime/files opens files, since it does not wait for named
pipes, and only runtime/system/message.h prints human-readable text, since it escapes control characters in names.

    ci/calls.py
"""
import glob
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from functions import without_comments  # noqa: E402

# Calls, and the files that may make them beside those that the comment explains.
RULES = (
    (r"\b(fopen|open|openat|creat|freopen)\(", "open a file by files_open, files_read or input_open", (
        "runtime/files/*",  # the openers
        "runtime/vulkan/compiler.c",  # a library of its own: files in its own folder, /dev/null
        "runtime/system/host.c", "runtime/system/host_memory.c",  # below runtime/files; /proc and /sys
        "runtime/device/program_cache.c",  # no links, no pipes, nobody else's files
        "src/corpus/token_writer.c",  # to write, and only new or regular files
        "src/training/run_folder.c",  # to write, and only regular files
        "src/programs/program.c", "src/training/train_setup.c",  # /dev/null
    )),
    (r"\b(v?f?printf|v?dprintf|f?puts)\(", "print by message_print (runtime/system/message.h), or name the file in ci/calls.py", (
        "runtime/system/message.c", "runtime/system/progress.c",  # the printers
        "runtime/options/*", "src/variants/residual.c", "src/operations/kernels.c", "runtime/device/profiler.c",  # words of our own tables
        "runtime/files/*", "runtime/vulkan/compiler.c", "runtime/device/program.c", "src/training/run_folder.c",  # write files
        "src/sampling/sample_print.c",  # a line of dashes
    )),
)


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    wrong = 0
    for pattern, instead, places in RULES:
        allowed = {path for place in places for path in glob.glob(place)}
        unused = [place for place in places if not glob.glob(place)]
        for path in sorted(set(glob.glob("src/*/*.c") + glob.glob("runtime/*/*.c")) - allowed):
            with open(path, encoding="utf-8") as file:
                text = without_comments(file.read())
            for found in re.finditer(r"(?<![.>])" + pattern, text):
                print("%s:%d: %s: %s" % (path, text.count("\n", 0, found.start()) + 1, found.group(1), instead))
                wrong += 1
        for place in unused:
            print("ci/calls.py names %s, which is not there" % place)
            wrong += 1
    print("%d calls where they are not allowed" % wrong)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
