#!/usr/bin/env python3
"""Predicts the time of a data-parallel training step on machines that are not there: build/hc_scaling runs the program's own exchange of
gradients for each rank on simulated links, memories and clocks (bench/scaling/).

  bench/scaling.py check ONE.json MANY.json [...]   measurements of hc_bench --ranks --json on one rank and on several, beside predictions
  bench/scaling.py predict                          the tables of docs/notes/scaling.md: M on GPUs by the roofline (hc_bench --roofline)

When gradients are complete, and how long a micro-step takes, is measured or from the roofline; links are the table below. BUILD (build)
in the environment names the folder with hc_bench and hc_scaling.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("BUILD", HERE.parent / "build"))

# Bytes a second and seconds; what they are is said in bench/scaling/world.h. `pcie`: PCIe 4 x16 from pinned memory. `memory`: a host
# with two sockets of eight DDR4-3200 channels has 410e9 by its data sheet. `rank_memory`: four threads of a rank. `wire`: 100 Gbit/s.
GPUS = dict(cpu=0, per_host=8, pcie=22e9, memory=250e9, rank_memory=30e9, wire=12.5e9, latency=5e-6, overhead=1e-6, nap=50e-6, long_nap=50e-6,
            jitter=0.01, straggler=0.0, steps=5)

# name, ranks, and what is other than above
MACHINES = [
    ("8 A6000 on PCIe 4, one host", dict(ranks=8)),
    ("the same, copies at 6 GB/s, memory at 100 GB/s", dict(ranks=8, pcie=6e9, memory=100e9)),
    ("the same as the first, one rank 5 % slower", dict(ranks=8, straggler=0.05)),
    ("64 devices, 8 hosts, 100 Gbit/s a host", dict(ranks=64)),
    ("1024 devices, 128 hosts, 100 Gbit/s a host", dict(ranks=1024)),
    ("1024 devices, 128 hosts, 400 Gbit/s a host", dict(ranks=1024, wire=50e9)),
]


def simulate(facts):
    result = subprocess.run([BUILD / "hc_scaling"], input=json.dumps(facts), text=True, check=True, stdout=subprocess.PIPE)
    return json.loads(result.stdout)


# ---- measurements beside predictions from one rank

def rates_of(many):
    """The memory as hc_bench measured it on all ranks at once; the wire and messages by the exchange alone."""
    sent = many["bytes_alone"] / many["seconds"]["exchange_alone"] if many["seconds"]["exchange_alone"] else 1e9
    near = many["near"]
    return dict(GPUS, cpu=int(many["cpu"]), ranks=many["ranks"], per_host=near, memory=many["memory_rate"] * near,
                rank_memory=many["memory_rate"], wire=max(sent * near, 1.0), long_nap=0.5e-3, jitter=0.0, steps=5, pcie=1e12)


def check(paths):
    one = json.loads(pathlib.Path(paths[0]).read_text())
    micro = one["seconds"]["compute"]["median"] / one["micro_steps"]
    print("| model | ranks | hosts | measured ms: compute, exposed, rest, step | predicted | step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for path in paths[1:]:
        many = json.loads(pathlib.Path(path).read_text())
        measured = [many["seconds"][name]["median"] for name in ("compute", "exposed", "rest", "step")]
        computing = micro * many["micro_steps"]
        result = simulate(dict(rates_of(many), computing=computing, schedule=many["schedule"], rows=0, bf16=0))
        rest = one["seconds"]["rest"]["median"]
        predicted = [result["gradients_at"] - result["exposed"], result["exposed"], rest, result["gradients_at"] + rest]
        text = [", ".join("%.0f" % (1e3 * value) for value in values) for values in (measured, predicted)]
        print("| %s, %d layers | %d | %d | %s | %s | %+.0f %% |" % (many["residual"], many["n_layer"], many["ranks"], many["across"], *text,
                                                              100 * (predicted[-1] / measured[-1] - 1)))


# ---- larger machines

def roofline(options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "roofline.json"
        subprocess.run([BUILD / "hc_bench", "--roofline", *options, "--json", path], check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


def predict(arguments):
    facts = roofline(["--as", arguments.device, "--config", HERE.parent / "configs" / "M.conf", "--residual", "shc", "--dtype", "bf16",
                    "--batch-size", "8", "--gradient-accumulation-steps", "2"])
    micro, rest = facts["micro_step"]["seconds"], facts["optimiser_step"]["seconds"]
    print("| machine | micro-steps a rank | gradients | compute ms | exposed ms | step ms | tokens/s | efficiency |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, machine in MACHINES:
        for steps in arguments.micro_steps:
            for dtype, bf16 in (("fp32", 0), ("bf16", 1)):
                tokens = machine["ranks"] * 8 * 1024
                rows = min(arguments.distinct * (tokens / 65536) ** 0.5, 50304)
                apart = int(rows) * 768 if rows <= 50304 / 2 else 0
                result = simulate(dict(GPUS, **machine, computing=micro * steps, schedule=facts["schedule"], rows=apart, bf16=bf16))
                alone, step = micro * steps + rest, result["gradients_at"] + rest
                print("| %s | %d | %s | %.0f | %.1f | %.0f | %.3g | %.0f %% |" % (
                    name, steps, dtype, 1e3 * alone, 1e3 * result["exposed"], 1e3 * step, tokens * steps / step, 100 * alone / step))
                sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("check", help="predictions beside measurements")
    one.add_argument("files", nargs="+")
    two = commands.add_parser("predict", help="machines of docs/notes/scaling.md")
    two.add_argument("--device", default="a6000", help="for the roofline, as hc_bench --as")
    two.add_argument("--micro-steps", type=int, nargs="+", default=[1, 2], help="of each rank in a step")
    two.add_argument("--distinct", type=float, default=12000,
                     help="distinct tokens among 65536 of a corpus; in other numbers of tokens there are more by the square root")
    arguments = parser.parse_args()
    if arguments.command == "check":
        check(arguments.files)
    else:
        predict(arguments)


if __name__ == "__main__":
    main()
