#!/usr/bin/env python3
"""The tables of docs/variants.md: what each residual variant costs, how exact it is, how fast, and what it learns on one budget.

  sh ci/study.sh                         trains them all (out/study), and measures their matrices
  bench/variants.py --measure            measures their speed (speed.json in --study), some minutes on an idle machine
  bench/variants.py                      prints the tables
  bench/variants.py --write              writes them into docs/variants.md, between the lines that say so

BUILD (build) in the environment names the folder with the programs.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from between import write_between
from residuals import listed

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("BUILD", HERE.parent / "build"))
DOCUMENT = HERE.parent / "docs" / "variants.md"

STREAMS = range(2, 9)
FAST = (2, 4, 8)  # numbers of streams whose speed is measured
SLOW = [("mhc_lite", 8)]  # 40320 permutations: M does not fit an A6000, and the CPU takes minutes
COUNTED = ["--roofline", "--as", "a6000", "--config", HERE.parent / "configs" / "M.conf", "--dtype", "bf16"]
TIMED = ["--config", HERE.parent / "configs" / "tiny.conf", "--vocab-size", "256", "--device", "pocl", "--steps", "20", "--warmup", "3"]


def variants():
    """{name: numbers of streams} as hc_train --list-residuals says them, without rc."""
    found = {}
    for name, takes, _ in listed(BUILD):
        found[name] = list(STREAMS) if "to" in takes else [int(word) for word in takes.replace(",", "").replace("or", "").split()]
    found.pop("rc")
    return found


def bench(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "bench.json"
        subprocess.run([BUILD / "hc_bench", *arguments, "--json", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(path.read_text())


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)] + ["| " + " | ".join(row) + " |" for row in rows]


# ---- costs, counted


def count(name, streams):
    """Of model M: thousands of parameters in hyper-connections; and a token's MFLOP and kB in them, forward and backward. The bytes are
    counted by the roofline; the operations are those of the formulas: C (6 n R + 6 n^2 + 12 n) in a sublayer with R projections, for products
    with W and for mixing; the identity is mixed like any other matrix."""
    roofline = bench(*COUNTED, "--residual", name, "--n-streams", str(streams))
    [part] = [part for part in roofline["parts"] if part["part"] == "hyper-connections" and part["step"] == "micro_step"]
    tokens = roofline["tokens"] / roofline["micro_steps"]
    channels, sublayers = roofline["n_embd"], 2 * roofline["n_layer"]
    row = channels * (1 if name == "hc" else streams)  # whose gain is of no projection; the small parameters are fewer than a row
    projections = roofline["auxiliary"] // sublayers // row - 1
    operations = sublayers * channels * (6 * streams * projections + 6 * streams ** 2 + 12 * streams)
    return roofline["auxiliary"] / 1e3, operations / 1e6, part["bytes"] / tokens / 1e3


def costs():
    counted = {name: {n: count(name, n) for n in takes if (name, n) not in SLOW} for name, takes in variants().items()}
    lines = []
    for place, (what, form) in enumerate((("thousands of parameters in hyper-connections", "%.0f"),
                                          ("MFLOP a token in them, forward and backward", "%.3g"),
                                          ("kilobytes a token that their kernels read and write, forward and backward", "%.0f"))):
        rows = [[f"`{name}`"] + [form % of[n][place] if n in of else "" for n in STREAMS] for name, of in counted.items()]
        lines += ["", what[0].upper() + what[1:] + ":", ""] + table(["n ="] + [str(n) for n in STREAMS], rows)
    return lines


# ---- exactness, losses and speed, measured


def runs_of(study):
    """{variant: {seed: run of analysis.json}}"""
    runs = {}
    for run in json.loads((study / "report" / "analysis.json").read_text())["runs"]:
        runs.setdefault(run["config"]["residual"], {})[run["name"].rpartition("-")[2]] = run
    return runs


def exactness(runs):
    """The largest deviations of row sums, column sums and norm from 1 after training, and the smallest entry, over all seeds."""
    of = [run["checkpoints"][-1]["h"] for run in runs.values()]
    off = [max(max(abs(h[key]["min"] - 1), abs(h[key]["max"] - 1)) for h in of) for key in ("row_sum", "column_sum")]
    return [f"{value:.1e}" for value in off + [max(abs(h["norm_max"] - 1) for h in of)]] + [f"{min(h['smallest_entry'] for h in of):.3f}"]


def learned(runs, base):
    """Mean validation loss over the seeds, its difference to the identity's of the same seed, and the range of that."""
    losses = {seed: run["record"]["final"]["val_loss"] for seed, run in runs.items()}
    differences = [losses[seed] - base[seed]["record"]["final"]["val_loss"] for seed in losses]
    return [f"{statistics.mean(losses.values()):.4f}", f"{statistics.mean(differences):+.4f}", f"{min(differences):+.4f} to {max(differences):+.4f}"]


def distance(runs):
    of = [run["checkpoints"][-1]["h"] for run in runs.values()]
    return [f"{statistics.mean(h['identity_distance'] for h in of):.3g}",
            f"{statistics.mean(h['sublayers'][-1]['stream_cosine'] for h in of):.2f}",
            f"{statistics.mean(h['sublayers'][-1]['product_second_mean'] for h in of):.3f}"]


def measured(study):
    runs = runs_of(study)
    seeds = len(runs["identity"])
    rows = [[f"`{name}`"] + (exactness(of) + distance(of) if name != "rc" else [""] * 7) + learned(of, runs["identity"]) for name, of in runs.items()]
    head = ["", "row sums", "column sums", "norm", "smallest entry", "from I", "cosine", "second singular value", "validation loss", "to identity",
            f"range of {seeds}"]
    return ["", "After 2000 iterations of the study:", ""] + table(head, rows)


def speeds(study):
    cases = {(case["residual"], case["n_streams"]): case for case in json.loads((study / "speed.json").read_text())["cases"]}
    plain = cases["rc", 1]["tokens_per_second"]
    rows = [[f"`{name}`"] + [f"{cases[name, n]['tokens_per_second'] / plain:.2f}" if (name, n) in cases else "" for n in FAST] for name in variants()]
    lines = ["", f"Tokens a second, relative to rc ({plain:.0f}):", ""]
    return lines + table(["n ="] + [str(n) for n in FAST], rows)


def measure(study):
    wanted = ["rc"] + [f"{name}:{n}" for name, takes in variants().items() for n in FAST if n in takes and (name, n) not in SLOW]
    (study / "speed.json").write_text(json.dumps(bench(*TIMED, "--compare", ",".join(wanted)), indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=pathlib.Path, default=HERE.parent / "out" / "study", help="what ci/study.sh made (out/study)")
    parser.add_argument("--measure", action="store_true", help="measure speeds first")
    parser.add_argument("--write", action="store_true", help="into the document")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.study)
    text = "\n".join(costs() + measured(arguments.study) + speeds(arguments.study)) + "\n\n"
    if not arguments.write:
        print(text)
        return
    write_between(DOCUMENT, "bench/variants.py", text)


if __name__ == "__main__":
    main()
