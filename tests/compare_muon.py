#!/usr/bin/env python3
"""Muon here and in PyTorch: the same weights after each of four steps.

  tests/compare_muon.py [--build build] [--device pocl]

Needs torch 2.9 or later, numpy and safetensors (pip install torch numpy safetensors) and no network. Two small models have matrices of
six shapes, wide, tall and square. hc_probe --train makes steps from the same weights on the same batch; its gradients at the weights
before each step go to torch.optim.Muon, with each form of muon_scale, another momentum and other coefficients. Printed is by how much the
weights differ, relative to the norm of torch's change of the matrix. torch iterates in bf16, which alone differs by several per cent, so its
conversion to bf16 is made one to fp32; a last row has both in bf16. Exit status: 0, or 1 if one differs by more than is allowed.
"""
import argparse
import json
import os
import sys
import tempfile

import torch
from compared_programs import Programs
from safetensors.torch import load_file, save_file

VOCABULARY, STEPS = 97, 4
SHAPE = {"n_layer": 2, "n_head": 2, "n_kv_head": 1, "head_dim": 32, "n_embd": 48, "vocab_size": VOCABULARY, "block_size": 24, "bias": False,
         "dropout": 0.0, "norm": "rmsnorm", "norm_eps": 1e-6, "position": "rope", "mlp": "swiglu", "residual": "rc", "n_streams": 1}
RATE = 0.01

to_bf16 = torch.Tensor.bfloat16


class Bench(Programs):
    def start(self, mlp_width):
        """A checkpoint of random weights."""
        options = [f"--{name.replace('_', '-')}={str(value).lower()}" for name, value in (SHAPE | {"mlp_width": mlp_width}).items()]
        out = self.path("run")
        self.run("hc_train", "--data-dir", self.data(VOCABULARY, "byte"), "--out-dir", out, "--device", self.device, "--max-iters", 0, "--eval-iters", 0,
                 "--seed", 1, *options)
        return os.path.join(out, "ckpt-0")

    def steps(self, folder, tokens, targets, count, options):
        """A checkpoint with the weights after so many steps."""
        if count == 0:
            return folder
        batch, out = self.path("batches"), self.path("steps")
        save_file({"x": tokens.int().expand(count, 1, -1, -1).contiguous(), "y": targets.int().expand(count, 1, -1, -1).contiguous()}, batch)
        self.run("hc_probe", "--train", "--checkpoint", folder, "--batch", batch, "--out", out, "--device", self.device, "--optimizer", "muon",
                 "--learning-rate", RATE, "--lr-schedule", "constant", "--warmup-iters", 0, "--grad-clip", 0, *options)
        os.link(os.path.join(folder, "config.json"), os.path.join(out, "config.json"))
        return out


def matrices(tensors):
    """{name: matrix} of those that Muon updates: queries, keys and values apart."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("attn.c_attn.weight"):
            query = SHAPE["n_head"] * SHAPE["head_dim"]
            key = SHAPE["n_kv_head"] * SHAPE["head_dim"]
            found |= {f"{name}.{part}": rows for part, rows in zip("qkv", tensor.split([query, key, key]))}
        elif ".h." in name and tensor.dim() == 2:
            found[name] = tensor
    return {name: tensor.clone() for name, tensor in found.items()}


def compare(bench, title, folder, dtype, ours, theirs, tolerance):
    """Prints the largest difference of each shape; returns whether all are allowed, and the shapes."""
    generator = torch.Generator().manual_seed(2)
    tokens, targets = torch.randint(VOCABULARY, (2, 4, SHAPE["block_size"]), generator=generator)
    ours = (*ours, "--dtype", dtype, "--muon-dtype", dtype)
    weights = matrices(load_file(os.path.join(folder, "model.safetensors")))
    muon = torch.optim.Muon(weights.values(), lr=RATE, **theirs)
    off = {}
    for count in range(STEPS):
        before = bench.steps(folder, tokens, targets, count, ours)
        gradients = matrices(bench.probe(before, tokens, targets, "--dtype", dtype)[2])
        start = matrices(load_file(os.path.join(before, "model.safetensors")))
        after = matrices(load_file(os.path.join(bench.steps(folder, tokens, targets, count + 1, ours), "model.safetensors")))
        for name, weight in weights.items():
            weight.copy_(start[name])
            weight.grad = gradients[name]
        muon.step()
        for name, weight in weights.items():
            difference = ((weight - after[name]).norm() / (weight - start[name]).norm()).item()
            off[tuple(weight.shape)] = max(difference, off.get(tuple(weight.shape), 0.0))
    held = max(off.values()) <= tolerance
    print("  %-4s %-40s" % ("ok" if held else "DIFF", title), " ".join("%dx%d %.1e " % (*shape, value) for shape, value in sorted(off.items())), flush=True)
    return held, set(off)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the programs (build)")
    parser.add_argument("--device", default="pocl", help="as hc_train's --device (pocl)")
    arguments = parser.parse_args()
    cases = [("match_rms_adamw", ("--weight-decay", 0.1), {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.1}),
             ("original", ("--muon-scale", "original", "--weight-decay", 0.1), {"adjust_lr_fn": "original", "weight_decay": 0.1}),
             ("momentum 0.8, 12 steps of 2, -1.5, 0.5", ("--muon-momentum", 0.8, "--muon-steps", 12, "--muon-coefficients", "2, -1.5, 0.5", "--weight-decay", 0.1,
                                               "--muon-weight-decay", 0),
              {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8, "ns_steps": 12, "ns_coefficients": (2, -1.5, 0.5), "weight_decay": 0.0})]
    held, shapes = [], set()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(arguments, scratch)
        for mlp_width in (80, 48):
            print(f"difference of the weights to the norm of torch's change, mlp_width {mlp_width}")
            folder = bench.start(mlp_width)
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                assert json.load(file)["mlp_width"] == mlp_width
            torch.Tensor.bfloat16 = torch.Tensor.float
            for title, ours, theirs in cases:
                done, seen = compare(bench, title, folder, "fp32", ours, theirs, 1e-4)
                held.append(done)
                shapes |= seen
            torch.Tensor.bfloat16 = to_bf16
            held.append(compare(bench, "bf16 in both", folder, "bf16", cases[0][1], cases[0][2], 0.2)[0])
    print(f"{len(shapes)} shapes of matrices")
    sys.exit(0 if all(held) and len(shapes) >= 6 else 1)


if __name__ == "__main__":
    main()
