#!/usr/bin/env python3
"""Writes a report of the checks and timings that ci/gpu.sh left in a folder.

  bench/gpu_report.py FOLDER DOCUMENT
"""
import datetime
import json
import pathlib
import sys

TYPES = ["fp32", "bf16", "fp16"]


def read_json(folder, name):
    path = folder / (name + ".json")
    return json.loads(path.read_text()) if path.exists() else None


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def checks(folder):
    rows = [line.split("\t") for line in (folder / "checks.txt").read_text().splitlines()]
    return table(["check", "", "seconds", "command"], [[name, result, seconds, f"`{command}`"] for name, result, seconds, command in rows])


def speeds(folder):
    rows = []
    for dtype in TYPES:
        bench = read_json(folder, "bench-" + dtype)
        for case in bench["cases"] if bench else []:
            step = case["seconds"]["step"]["median"]
            rows.append([dtype, case["residual"], case["n_streams"], f"{1e3 * step:.1f}", f"{case['tokens_per_second']:.0f}",
                         f"{case['ratio_to_rc']:.3f}", case["gemm"], case["attention"], f"{1e-12 * case['gemm_rate']:.1f}", f"{100 * case['mfu']:.0f} %",
                         f"{case['planned_bytes'] / 2 ** 30:.2f}"])
    return table(["dtype", "residual", "n", "step ms", "tokens/s", "to rc", "products by", "attention on", "at TFLOP/s", "used of that", "GiB"], rows)


def peers(folder):
    rows = []
    for dtype in TYPES:
        for row in read_json(folder, "torch-" + dtype) or []:
            rows.append([dtype, row["residual"], f"{row['tokens_per_second']:.0f}", f"{row['torch_tokens_per_second']:.0f}",
                         f"{row['ratio_to_torch']:.2f}", f"{row['peak_bytes'] / 2 ** 30:.2f}", f"{row['torch_peak_bytes'] / 2 ** 30:.2f}"])
    if not rows:
        return "There was no PyTorch on this machine."
    return table(["dtype", "residual", "tokens/s", "PyTorch", "ratio", "GiB", "PyTorch"], rows)


def per_kernel(rows, calls, keep):
    """{name: [calls, seconds]} of rows of kernels, of which some have several rows."""
    kernels = {}
    for row in filter(keep, rows):
        entry = kernels.setdefault(row["name"], [0, 0.0])
        entry[0] += row[calls]
        entry[1] += row["seconds"]
    return kernels


def against_roofline(profile, roofline):
    """The clock beside the roofline: milliseconds of a step with one micro-step, by kernel, most measured first."""
    steps = profile["profiled_steps"]
    measured = per_kernel(profile["kernels"], "calls", lambda row: True)
    predicted = per_kernel(roofline["kernels"], "launches", lambda row: row["launches"])
    rows, sums = [], [0.0, 0.0]
    for name in sorted(measured.keys() | predicted.keys(), key=lambda name: -measured.get(name, [0, 0.0])[1]):
        calls, seconds = measured.get(name, [0, 0.0])
        launches, expected = predicted.get(name, [0, 0.0])
        sums = [sums[0] + seconds / steps, sums[1] + expected]
        rows.append([f"`{name}`", f"{calls / steps:g}", launches, f"{1e3 * seconds / steps:.3f}", f"{1e3 * expected:.3f}",
                     f"{seconds / steps / expected:.2f}" if expected and seconds else ""])
    rows.append(["in all", "", "", f"{1e3 * sums[0]:.3f}", f"{1e3 * sums[1]:.3f}", f"{sums[0] / sums[1]:.2f}"])
    return table(["kernel", "launches", "in the roofline", "measured ms", "predicted ms", "ratio"], rows)


def rooflines(folder):
    text = []
    for variant in ["rc", "shc"]:
        profile, roofline = read_json(folder, "profile-" + variant), read_json(folder, "roofline-" + variant)
        if profile and roofline:
            step = profile["seconds"]["step"]["median"]
            text.append(f"{variant} in bf16, a step with one micro-step, of which the clock says {1e3 * step:.1f} ms and the data sheet of "
                        f"{roofline['title']} what is below:\n\n{against_roofline(profile, roofline)}")
    return "\n\n".join(text) or "Nothing to compare: there is no data sheet of this device, and `ROOFLINE_AS` names none that is like it."


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    text = f"""# Measured on a GPU

Measured by `ci/gpu.sh` on {datetime.date.today()}.

    {(folder / "devices.txt").read_text().strip().replace(chr(10), chr(10) + "    ")}

## Checks

{checks(folder)}

## Speed

Model M or what `MODEL` named, random tokens, a step each in turn, medians; "used of that" is the share of the rate of products alone.

{speeds(folder)}

## Beside the roofline

Kernels by the clock and by `hc_bench --roofline` ([gpu.md](gpu.md)): above 1, slower than predicted.

{rooflines(folder)}

## Beside PyTorch

The same model in eager mode (`bench/torch_peer.py`), bf16 by autocast, a step each in turn.

{peers(folder)}
"""
    pathlib.Path(sys.argv[2]).write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
