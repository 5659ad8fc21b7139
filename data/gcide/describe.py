#!/usr/bin/env python3
"""Writes the source of the token files into meta.json: the dictionary, and that its markup was stripped.

  data/gcide/describe.py META DICTIONARY
"""
import hashlib
import json
import os
import sys


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    meta_path, dictionary = sys.argv[1:]
    with open(meta_path, encoding="utf-8") as file:
        meta = json.load(file)
    with open(dictionary, "rb") as file:
        source = {
            "path": os.fsencode(dictionary).decode("utf-8", "backslashreplace"),
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.sha256(file.read()).hexdigest(),
        }
    meta["strip_markup"] = "gcide"
    meta["sources"] = [source]
    with open(meta_path + ".part", "w", encoding="utf-8") as file:
        json.dump(meta, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(meta_path + ".part", meta_path)


if __name__ == "__main__":
    main()
