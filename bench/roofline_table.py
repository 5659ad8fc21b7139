#!/usr/bin/env python3
"""The roofline's tables (hc_bench --roofline) of model M, 8 x 1024 tokens a micro-step in bf16, for several variants and GPUs that need
not be there: what was before the kernels were changed, and what is now.

  bench/roofline_table.py                   prints them
  bench/roofline_table.py --write           writes them into docs/gpu.md, between the lines that say so
  bench/roofline_table.py --keep            keeps today's figures as those from before, in bench/roofline_before.json

BUILD (build) in the environment names the folder with hc_bench.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from between import write_between

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("BUILD", HERE.parent / "build"))
BEFORE = HERE / "roofline_before.json"
DOCUMENT = HERE.parent / "docs" / "gpu.md"

DEVICES = ["a6000", "h200", "mi300x", "rx7900xtx", "arc770"]
VARIANTS = ["rc", "mhc", "shc"]
OPTIONS = ["--config", HERE.parent / "configs" / "M.conf", "--dtype", "bf16", "--batch-size", "8", "--gradient-accumulation-steps", "2"]
HOT = 0.005  # of a micro-step's time, from which on a kernel is of the hot path


def roofline(device, variant):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "roofline.json"
        command = [BUILD / "hc_bench", "--roofline", "--as", device, "--residual", variant, *OPTIONS, "--json", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


def figures(facts):
    """What the tables have of a roofline, in the units that they have it in."""
    micro, optimiser, steps = facts["micro_step"], facts["optimiser_step"], facts["micro_steps"]
    seconds = micro["seconds"] + optimiser["seconds"] / steps
    parts = {row["part"]: round(1e3 * row["seconds"], 2) for row in facts["parts"] if row["step"] == "micro_step"}
    frame = sum(row["bytes"] for row in facts["parts"] if row["part"] == "hyper-connections") / (2 * facts["n_layer"])
    kernels = [row for row in facts["kernels"] if row["step"] == "micro_step" and row["seconds"] >= HOT * micro["seconds"]]
    return {
        "launches": micro["launches"], "waits": micro["waits"], "MB": round(1e-6 * micro["bytes"]), "frame_MB": round(1e-6 * frame),
        "narrow": sum(0 < row["groups"] < 2 * facts["cores"] for row in kernels), "ms": round(1e3 * micro["seconds"], 1),
        "optimiser_ms": round(1e3 * optimiser["seconds"], 2),
        "tokens_per_second": round(facts["batch_size"] * facts["block_size"] / seconds, -2), "parts": parts,
    }


def measure():
    return {device: {variant: figures(roofline(device, variant)) for variant in VARIANTS} for device in DEVICES}


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def change(before, now, style="{:,}"):
    """One figure where nothing has changed, else both."""
    return style.format(now) if before == now else style.format(before) + " → " + style.format(now)


def all_devices(before, now):
    columns = [("launches", "{}"), ("waits", "{}"), ("MB", "{:,}"), ("frame_MB", "{}"), ("narrow", "{}"), ("ms", "{:.1f}"),
               ("optimiser_ms", "{:.1f}"), ("tokens_per_second", "{:,.0f}")]
    rows = [[device, variant] + [change(before[device][variant][name], now[device][variant][name], style) for name, style in columns]
            for device in DEVICES for variant in VARIANTS]
    return table(["device", "residual", "launches", "waits", "MB", "MB a sublayer", "narrow", "ms a micro-step", "ms optimiser", "tokens/s"],
                 rows)


def parts(before, now):
    old, new = before["a6000"]["shc"], now["a6000"]["shc"]
    names = sorted(old["parts"], key=old["parts"].get, reverse=True) + [name for name in new["parts"] if name not in old["parts"]]
    rows = [[name, old["parts"].get(name, 0.0), new["parts"].get(name, 0.0)] for name in names]
    rows.append(["in all", old["ms"], new["ms"]])
    return table(["part of a micro-step, ms", "before", "now"], [[name, f"{a:.1f}", f"{b:.1f}"] for name, a, b in rows])


def goals(before, now):
    old, new = before["a6000"]["shc"], now["a6000"]["shc"]
    return table(["a micro-step of shc on an RTX A6000", "before", "now", "goal"], [
        ["launches", old["launches"], new["launches"], "420"],
        ["MB of a hyper-connection's sublayer, forward and backward", old["frame_MB"], new["frame_MB"], "450"],
        ["waits of the host", old["waits"], new["waits"], "0"],
        [f"narrow kernels among those with {100 * HOT:.1f} % of the time or more", old["narrow"], new["narrow"], "0"],
        ["the roofline's ms", old["ms"], new["ms"], f"{0.55 * old['ms']:.0f}"],
    ])


def text(before, now):
    return f"""{all_devices(before, now)}
Where one figure has become another, both are there: before → now.

{parts(before, now)}
{goals(before, now)}"""


def write(block):
    write_between(DOCUMENT, "bench/roofline_table.py", "\n" + block + "\n")


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--write"], ["--keep"]):
        sys.exit(__doc__)
    now = measure()
    if arguments == ["--keep"]:
        BEFORE.write_text(json.dumps(now, indent=None, separators=(", ", ": ")).replace('}}, "', '}},\n"').replace('}, "', '},\n "') + "\n")
        return
    block = text(json.loads(BEFORE.read_text()), now)
    if arguments:
        write(block)
    else:
        print(block)


if __name__ == "__main__":
    main()
