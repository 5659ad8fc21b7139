#!/usr/bin/env python3
"""Times torch.matmul for each GEMM that a profile of hc_bench has, in the same shape, layout and type.

  bench/torch_gemm.py PROFILE.json RESULT.json DEVICE

gemm_nt MxNxK is A[M, K] B[N, K]^T, gemm_tn A[K, M]^T B[K, N], gemm_nn A[M, K] B[K, N]. hctrain's times are those of its kernels, which
also add to the result or apply a bias or an activation function where training needs it; torch.matmul does not.
"""
import json
import os
import statistics
import sys
import time

import torch

SECONDS, ROUNDS = 0.02, 5  # each round takes about so long; the median of the rounds counts


def synchronize(device):
    if device != "cpu":
        getattr(torch, device.partition(":")[0]).synchronize()


def seconds_of(call, count, device):
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(device)
    return (time.perf_counter() - begin) / count


def matmul_seconds(transposed, m, n, k, dtype, device):
    a = torch.randn((k, m) if transposed[0] == "t" else (m, k), dtype=dtype, device=device)
    b = torch.randn((n, k) if transposed[1] == "t" else (k, n), dtype=dtype, device=device)
    a, b = a.T if transposed[0] == "t" else a, b.T if transposed[1] == "t" else b
    product = torch.matmul(a, b)
    if tuple(product.shape) != (m, n):
        raise ValueError(f"the product is wrong: its shape is {tuple(product.shape)}")
    once = min(seconds_of(lambda: torch.matmul(a, b), 1, device) for _ in range(3))
    count = max(1, min(1000, int(SECONDS / max(once, 1e-7))))
    return statistics.median(seconds_of(lambda: torch.matmul(a, b), count, device) for _ in range(ROUNDS))


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    if not os.path.exists(sys.argv[1]):
        print(f"there is no profile {sys.argv[1]}")
        sys.exit(77)
    with open(sys.argv[1], encoding="utf-8") as file:
        profile = json.load(file)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[profile["dtype"]]
    rows, failed = [], 0
    for kernel in profile["kernels"]:
        name, _, shape = kernel["name"].partition(" ")
        if not name.startswith("gemm_") or not shape:
            continue
        try:
            m, n, k = (int(word) for word in shape.split("x"))
            seconds = matmul_seconds(name[5:], m, n, k, dtype, sys.argv[3])
        except Exception as error:  # of this shape; the others go on
            print(f"{kernel['name']}: error: {error}", flush=True)
            failed += 1
            continue
        flops = 2.0 * m * n * k
        rows.append({"name": kernel["name"], "calls": kernel["calls"], "flops": flops, "seconds": kernel["seconds"] / kernel["calls"],
                     "torch_seconds": seconds})
        print(f"{kernel['name']}: {rows[-1]['seconds']:.3e} s, torch.matmul {seconds:.3e} s", flush=True)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"dtype": profile["dtype"], "torch": torch.__version__, "rows": rows}, file, indent=1)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
