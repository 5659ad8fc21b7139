"""Trains small models on emulated GPUs and on PoCL: their losses must be alike. Of each run all kernels of a step are executed as a GPU gets
them, fused frames, matrix cores and the optimizer included.

    train_alike.py BUILD [--only TEXT]

Exit status: 0, or 1 if a run fails or its losses differ by more than the type of its activations explains."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

RESIDUALS = ("rc", "identity", "hc", "mhc", "mhc_lite", "shc", "krom", "circulant", "go_mhc", "ohc", "gated", "attnres", "mudd", "wide")
# largest difference of a loss, of some 5.5
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 5e-4}
MODEL = ("--n-layer 2 --n-head 1 --n-embd 64 --block-size 32 --batch-size 2 --max-iters 3 --warmup-iters 0 --eval-interval 3 --eval-iters 1 "
         "--log-interval 1 --seed 3").split()

# name, device, options
CASES = ([(f"{residual}, bf16", "sm_80", ["--residual", residual, "--dtype", "bf16"]) for residual in RESIDUALS]
         + [(f"{residual}, {dtype}", "sm_80", ["--residual", residual, "--dtype", dtype]) for residual in ("rc", "mhc", "shc") for dtype in ("fp32", "fp16")]
         + [("mhc, bf16", device, ["--residual", "mhc", "--dtype", "bf16"]) for device in ("gfx90a", "gfx1100", "gfx1201", "Arc", "Max")]
         + [("shc, dropout, recompute, two micro-steps", "sm_80", ["--residual", "shc", "--dtype", "bf16", "--dropout", "0.1", "--recompute", "layer",
                                                                   "--gradient-accumulation-steps", "2", "--bias"])])


def losses(folder):
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        return [line.get("loss", line.get("val_loss")) for line in map(json.loads, file)]


def train(build, data, folder, device, options, environment):
    """The losses, or a text that says what went wrong."""
    result = subprocess.run([os.path.join(build, "hc_train"), "--data-dir", data, "--out-dir", folder, "--device", device, *MODEL, *options],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return losses(folder) if result.returncode == 0 else "\n".join(result.stdout.splitlines()[-5:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as scratch:
        plain = {**os.environ, "XDG_CACHE_HOME": os.path.join(scratch, "cache")}
        plain.pop("OCL_ICD_VENDORS", None)
        emulated = {**plain, "OCL_ICD_VENDORS": os.path.join(arguments.build, "tests", "emulator", "vendors") + "/"}
        text, data = os.path.join(scratch, "text"), os.path.join(scratch, "data")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(f"The {i}th line says that {i * i % 97} is not {i * 7 % 31}.\n" for i in range(400))
        subprocess.run([os.path.join(arguments.build, "hc_prepare"), "--out", data, text], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        known = {}
        for number, (name, device, options) in enumerate(CASES):
            if arguments.only not in f"{name} {device}":
                continue
            if name not in known:
                known[name] = train(arguments.build, data, os.path.join(scratch, f"pocl{number}"), "pocl", options, plain)
            got = train(arguments.build, data, os.path.join(scratch, f"run{number}"), device, options, emulated)
            limit = TOLERANCE[options[options.index("--dtype") + 1]]
            fine = isinstance(got, list) and isinstance(known[name], list) and len(got) == len(known[name]) > 0 \
                and max(abs(a - b) for a, b in zip(got, known[name])) <= limit
            print(f"{'ok     ' if fine else 'FAILED '} {name}, {device}: {got}, on PoCL {known[name]}", flush=True)
            status |= not fine
    return status


if __name__ == "__main__":
    sys.exit(main())
