#!/usr/bin/env python3
"""Trains twice and compares every bit of the losses and of the last checkpoint.

  bench/same_bits.py HC_TRAIN FOLDER OPTIONS OF hc_train...

Prints the first iteration whose numbers differ, and the tensors. The runs are in FOLDER/first and FOLDER/second, and are removed if they agree.
"""
import json
import pathlib
import shutil
import subprocess
import sys

CLOCK = ("time", "tokens_per_sec", "mfu")  # what the clock decides


def train(program, folder, options):
    shutil.rmtree(folder, ignore_errors=True)
    status = subprocess.run([program, *options, "--out-dir", str(folder)], check=False).returncode
    if status != 0:
        sys.exit(f"cannot train: exit status {status}")


def metrics(folder):
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        yield {name: value for name, value in json.loads(line).items() if name not in CLOCK}


def tensors(path):
    """(name, bytes) of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
        for name, tensor in sorted(header.items()):
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                file.seek(start + begin)
                yield name, file.read(end - begin)


def differences(first, second):
    runs = [list(metrics(folder)) for folder in (first, second)]
    if not runs[0]:
        yield "no line of metrics.jsonl was written"
    if len(runs[0]) != len(runs[1]):
        yield f"numbers of lines of metrics.jsonl differ: {len(runs[0])} and {len(runs[1])}"
    for one, other in zip(*runs):
        if one != other:
            yield f"the losses differ first in {one} and {other}"
            break
    files = sorted(path.relative_to(first) for path in first.glob("ckpt-*/*.safetensors"))
    if not files:
        yield "no checkpoint was written"
    for path in files:
        names = [name for (name, one), (_, other) in zip(tensors(first / path), tensors(second / path)) if one != other]
        if names:
            yield f"{len(names)} tensors of {path} differ: {', '.join(names[:8])}{', ...' * (len(names) > 8)}"


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    first, second = (pathlib.Path(sys.argv[2]) / name for name in ("first", "second"))
    for folder in (first, second):
        train(sys.argv[1], folder, sys.argv[3:])
    found = list(differences(first, second))
    if found:
        sys.exit("\n".join(found))
    print("all losses and all weights of the last checkpoint are the same")
    shutil.rmtree(first)
    shutil.rmtree(second)


if __name__ == "__main__":
    main()
