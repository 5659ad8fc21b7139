#!/usr/bin/env python3
"""The rate of PyTorch's matrix products on a GPU, in the shapes of a model's forward pass: what its vendor's library reaches."""
import argparse
import json
import time

import torch

SHAPES = {"c_attn": (8192, 2304, 768), "c_fc": (8192, 3072, 768), "c_proj": (8192, 768, 3072), "square": (4096, 4096, 4096)}


def rate(device, dtype, m, n, k):
    """FLOP/s of x [m, k] w [n, k]^T, the best of ten after three to warm up."""
    x, w = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    best = float("inf")
    for turn in range(13):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            x @ w.t()
        torch.cuda.synchronize()
        if turn >= 3:
            best = min(best, (time.perf_counter() - start) / 10)
    return 2.0 * m * n * k / best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    rates = {dtype: {name: rate(arguments.device, getattr(torch, full), *shape) for name, shape in SHAPES.items()}
             for dtype, full in (("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"))}
    with open(arguments.json, "w") as file:
        json.dump({"torch": torch.__version__, "rates": rates}, file, indent=1)


if __name__ == "__main__":
    main()
