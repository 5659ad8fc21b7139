#!/usr/bin/env python3
"""Connections of hctrain.model beside what hc_probe computes: H of every sublayer from the same streams. And checkpoints as PyTorch reads them.

  PYTHONPATH=src/python tests/compare_connections.py

Needs torch and numpy, and no network. Trains a small model of each connection that has matrices H_res until tokens have different ones. Entries may differ
by 1e-5. The exit status says whether none did by more.
"""
import sys
import tempfile
from pathlib import Path

import hctrain
import hctrain.model
import numpy
import torch

LIMIT = 1e-5
STREAMS = {"ohc": 4, "krom": 4, "shc": 4}  # others have 3
WITHOUT_MATRICES = {"rc", "gated", "attnres", "mudd"}
SETTINGS = {"n_layer": 3, "n_head": 2, "n_embd": 32, "block_size": 32, "batch_size": 4, "gradient_accumulation_steps": 1, "max_iters": 60, "warmup_iters": 1,
            "learning_rate": 0.05, "eval_iters": 0, "device": "pocl", "dtype": "fp32"}


@torch.no_grad()
def compare(checkpoint, tokens):
    """The largest difference of an entry of H_pre, H_post and H_res, and how much H_res differs between tokens."""
    found = hctrain.probe(checkpoint, tokens, streams=True, grad=False, device="pocl", dtype="fp32")
    differences, spread = [0.0] * 3, 0.0
    for sublayer, connection in enumerate(hctrain.model.load(checkpoint).connections()):
        ours = connection(torch.from_numpy(found[f"streams.{sublayer}"]))
        theirs = [torch.from_numpy(found[f"{name}.{sublayer}"]) for name in ("h_pre", "h_post", "h_res")]
        differences = [max(before, (a - b).abs().max().item()) for before, a, b in zip(differences, ours, theirs)]
        spread = max(spread, theirs[2].std(dim=(0, 1)).max().item())
    return differences, spread


def reads_what_torch_reads(checkpoint):
    """Whether read_checkpoint gives PyTorch the tensors that model.py reads by itself, and keeps bfloat16."""
    ours, theirs = hctrain.read_checkpoint(checkpoint).torch(), hctrain.model.read_safetensors(checkpoint / "model.safetensors")
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with tempfile.TemporaryDirectory() as folder:
        path, tensor = Path(folder, "a"), torch.randn(5, 7).bfloat16()
        header = b'{"a":{"dtype":"BF16","shape":[5,7],"data_offsets":[0,70]}}'
        path.write_bytes(len(header).to_bytes(8, "little") + header + tensor.view(torch.int16).numpy().tobytes())
        tensors = hctrain.Tensors(path)
        return same and torch.equal(tensors.torch()["a"], tensor) and numpy.array_equal(tensors["a"], tensor.float().numpy())


def main():
    failed = 0
    tokens = numpy.random.default_rng(1).integers(32, 127, (2, 32))
    print(f"{'off by':14} {'H_pre':>9} {'H_post':>9} {'H_res':>9}    deviation of H_res over tokens")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text("".join(f"{i} green bottles, and {i * i} more\n" for i in range(3000)))
        data = hctrain.prepare(folder / "data", folder / "text")
        for residual in sorted(hctrain.model.CONNECTIONS.keys() - WITHOUT_MATRICES):
            run = hctrain.train(SETTINGS, data_dir=data, out_dir=folder / residual, residual=residual, n_streams=STREAMS.get(residual, 3))
            differences, spread = compare(run.checkpoints[-1], tokens)
            good = max(differences) <= LIMIT and reads_what_torch_reads(run.checkpoints[-1])
            failed += not good
            print(f"{residual:14}", *(f"{value:9.1e}" for value in differences), f"   {spread:.2g}", "" if good else "   DIFFERS")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
