#!/usr/bin/env python3
"""Batches in sequence, read from token shards by this file alone, and those that hc_train uses: the same losses.

    read_shards.py BUILD [MPIRUN]

hc_prepare --shards writes shards. hc_train --train-batches sequential trains on them for more than one pass, stopped once and resumed,
and with MPIRUN also on 2 and 4 ranks. hc_probe --train makes the same steps on the batches that are read here. Only the standard library
is needed.
"""
import array
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

BLOCK, ROWS, MICRO, STEPS, SHARD = 16, 1, 4, 19, 170  # a step has 64 tokens
SHAPE = ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", BLOCK, "--device", "pocl", "--seed", "5"]
OPTIMIZER = ["--learning-rate", "1e-2", "--warmup-iters", "2", "--lr-decay-iters", STEPS, "--min-lr", "1e-3"]


def run(program, *arguments):
    done = subprocess.run([*map(str, program), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{program} {arguments}: {done.stderr}")
    return done.stderr


def read_shard(path):
    """Tokens of a shard, as its header says."""
    data = path.read_bytes()
    magic, version, count = struct.unpack_from("<3i", data)
    assert (magic, version, len(data)) == (20240520, 1, 1024 + 2 * count), path
    return struct.unpack_from(f"<{count}H", data, 1024)


def batches(paths, tokens):
    """The batches of so many tokens, with a last target each, from the shards again and again."""
    while True:
        for shard in map(read_shard, sorted(paths)):
            for at in range(0, len(shard) - tokens, tokens):
                yield shard[at:at + tokens + 1]


def write_batches(path, found):
    """The tensors x and y [steps, micro, rows, BLOCK] as a safetensors file."""
    tensors = [array.array("i", [token for batch in found for token in batch[first:len(batch) - 1 + first]]).tobytes() for first in (0, 1)]
    shape, size = [len(found), MICRO, ROWS, BLOCK], len(tensors[0])
    header = json.dumps({name: {"dtype": "I32", "shape": shape, "data_offsets": [size * i, size * (i + 1)]} for i, name in enumerate("xy")}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(tensors))


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def compare(name, found, wanted):
    assert len(found) == len(wanted) == STEPS, f"{name}: {len(found)} steps"
    worst = max(abs(a - b) / b for a, b in zip(found, wanted))
    print(f"{name}: losses differ by {worst:.1e}")
    return worst < 1e-5


def main():
    build, mpirun = pathlib.Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        random.seed(1)
        (folder / "text").write_text("".join(random.choice("abcdefgh \n") for _ in range(1000)))
        run([build / "hc_prepare"], "--out", folder / "data", "--shards", SHARD, "--val-fraction", "0", folder / "text")
        paths = list((folder / "data").glob("*train*.bin"))
        reader = batches(paths, BLOCK * ROWS * MICRO)
        write_batches(folder / "batches", [next(reader) for _ in range(STEPS)])

        def train(out, *more, ranks=1):
            launcher = [*mpirun, "-np", ranks] if ranks > 1 else []
            return run([*launcher, build / "hc_train"], *SHAPE, *OPTIMIZER, "--data-dir", folder / "data", "--out-dir", folder / out, "--batch-size", ROWS,
                       "--gradient-accumulation-steps", MICRO, "--train-batches", "sequential", "--eval-iters", 0, *more)

        train("start", "--max-iters", "0")
        run([build / "hc_probe"], "--train", "--checkpoint", folder / "start/ckpt-0", "--batch", folder / "batches", "--out", folder / "probe", "--device",
            "pocl", *OPTIMIZER)
        wanted = json.loads((folder / "probe/losses.json").read_text())["losses"]
        train("one", "--max-iters", "8")
        said = train("one", "--init-from", "resume", "--max-iters", STEPS)
        assert said.count("iteration 12 begins again with the first tokens") == 1, said  # six shards have two batches each
        good = compare(f"1 rank, {len(paths)} shards", losses(folder / "one"), wanted)
        for ranks in (2, 4) if mpirun else ():
            train(f"on-{ranks}", "--max-iters", STEPS, ranks=ranks)
            good &= compare(f"{ranks} ranks", losses(folder / f"on-{ranks}"), wanted)
        assert good, "the batches are not those of the shards"


main()
