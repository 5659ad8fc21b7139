#!/usr/bin/env python3
"""What every residual variant learns on one budget, with several seeds.

  bench/budgets.py nanogpt              nanoGPT's recipe for CPUs on tiny Shakespeare; an hour on two cores
  bench/budgets.py modern               the same with a block of today, three variants; a quarter of an hour on two cores
  bench/budgets.py fair                 20 tokens a parameter, each variant at the learning rate that suits it; an hour on two cores
  bench/budgets.py BUDGET --table       the table of the runs that are there; --write: into its document

Runs go to out/BUDGET (--out), at low priority, and variants side by side: models as small as these learn more in all from two runs with
a thread each than from one with two. Runs that are complete are not run again, and those that were interrupted go on, so the same command
goes on where it was stopped. BUILD (build) in the environment names the folder with the programs.

A learning rate is chosen by runs with a seed of their own, apart by factors of two, until the best has a worse one on either side.
Differences are means over runs of the same seed, with 95 % intervals by Student's t: hc_analyze computes them. They do not say what another corpus
or another size of the model would do.
"""
import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tables import listed, split, write_between

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", ROOT / "build")).resolve()


class Budget(NamedTuple):
    config: str
    corpus: str  # of data/
    seeds: tuple
    chooses_rate: bool  # for each variant, from the config's on; else that one is for all
    bases: tuple  # variants that the table compares all with
    document: str
    variants: tuple = ()  # that are trained; none: all


BUDGETS = {"nanogpt": Budget("shakespeare_char_cpu.conf", "shakespeare", (1337, 1, 2), False, ("rc", "identity"), "docs/study.md"),
           "modern": Budget("modern_char_cpu.conf", "shakespeare", (1337, 1, 2), False, ("rc", "identity"), "docs/study.md", ("rc", "identity", "shc")),
           "fair": Budget("fair.conf", "gcide", (1, 2, 3, 4, 5), True, ("rc", "identity", "mhc_lite"), "docs/study.md")}
DIVERGED = "diverged"  # a file in the folder of such a run, which would diverge again wherever it goes on
CHOOSING = 100  # the seed of runs that choose a rate


def variants():
    """{name: what it is, in words}"""
    return {name: words.partition(" (")[0].partition(", of which")[0] for name, _, words in listed(BUILD)}


def setting(budget, name):
    """What its config says, as text."""
    lines = (ROOT / "configs" / budget.config).read_text(encoding="utf-8").splitlines()
    [value] = [line.partition("=")[2] for line in lines if line.partition("=")[0].strip() == name]
    return value


def default_jobs(device):
    """A variant a processor, as far as there are variants; one on a device that all would share."""
    return min(len(os.sched_getaffinity(0)), len(variants())) if device == "pocl" else 1


def threads(jobs):
    """Environment variables that divide the processors between so many runs, unless the user has set them."""
    share = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    return {"OMP_NUM_THREADS": share, "POCL_MAX_PTHREAD_COUNT": share} | os.environ if jobs > 1 else None


def train(options, run, environment):
    """hc_train's exit status; what it says goes on to stderr."""
    command = ["nice", "-n", "19", BUILD / "hc_train", *options]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace")
    for line in process.stderr:
        sys.stderr.write(f"{run.name}: {line}")
        if line.startswith("hc_train: ") and "not finite" in line:
            (run / DIVERGED).touch()
    return process.wait()


class Study:
    def __init__(self, name, out, device, jobs):
        """jobs: how many variants train side by side; 0: nothing shall be trained."""
        self.name, self.budget, self.out, self.device, self.jobs = name, BUDGETS[name], out, device, jobs
        self.stopped = None  # why no more runs begin
        self.iterations = int(setting(self.budget, "max_iters"))
        self.corpus = ROOT / "data" / "corpus" / self.budget.corpus

    def loss(self, run):
        """The last validation loss of a complete run, else None."""
        try:
            records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        except (FileNotFoundError, ValueError):
            return None
        if (run / DIVERGED).exists():
            return math.inf
        losses = [record["val_loss"] for record in records if record.get("iter") == self.iterations and "val_loss" in record]
        return losses[-1] if losses and (run / f"ckpt-{self.iterations}").is_dir() else None

    def stop(self, why):
        """Runs that are under way are waited for, others do not begin."""
        self.stopped = self.stopped or why

    def folder(self, variant, seed, rate):
        """Of a run; rate None: the config's."""
        return self.out / (f"{variant}-{rate:g}-{seed}" if rate else f"{variant}-{seed}")

    def run(self, variant, seed, rate=None):
        """The loss of one run, trained if need be; None: not there, and none shall be trained."""
        run = self.folder(variant, seed, rate)
        loss = self.loss(run)
        if loss is None and self.jobs:
            if self.stopped:
                sys.exit(self.stopped)
            if any(run.glob("ckpt-[0-9]*")):
                options = ["--init-from", "resume"]
            else:
                options = ["--config", ROOT / "configs" / self.budget.config, "--residual", variant, "--seed", str(seed),
                           "--data-dir", self.corpus, "--keep-checkpoints", "1", "--no-tensorboard", "--start-over"]
                options += ["--learning-rate", f"{rate:g}", "--min-lr", f"{rate / 10:g}"] if rate else []
            status = train([*options, "--device", self.device, "--out-dir", run], run, threads(self.jobs))
            loss = self.loss(run)
            if loss is None:
                self.stop(f"{run} did not end (status {status}); run this again to go on")
                sys.exit(self.stopped)
        return loss

    def best_rate(self, variant):
        """None where the budget's config has the rate, or where runs are missing."""
        if not self.budget.chooses_rate:
            return None
        losses = {}

        def try_rate(rate):
            losses[rate] = self.run(variant, CHOOSING, rate)
            return losses[rate] is not None

        best = float(setting(self.budget, "learning_rate"))
        while try_rate(best) and try_rate(best / 2) and try_rate(best * 2):
            better = min(losses, key=losses.get)
            if better == best:
                return best
            best = better
        return None

    def losses(self, variant):
        """(rate, {seed: loss})"""
        rate = self.best_rate(variant)
        if self.budget.chooses_rate and not rate:
            return None, {}
        found = {seed: self.run(variant, seed, rate) for seed in self.budget.seeds}
        return rate, {seed: loss for seed, loss in found.items() if loss is not None}

    def all_losses(self, names):
        """{variant: its losses}"""
        with ThreadPoolExecutor(self.jobs or 1) as pool:
            return dict(zip(names, pool.map(self.losses, names)))


def comparison(study, all_losses):
    """{variant: {base: hc_analyze's mean difference and 95 % interval, as text}} of variants without a run that diverged."""
    runs = [study.folder(variant, seed, rate) for variant, (rate, losses) in all_losses.items() if all(map(math.isfinite, losses.values())) for seed in losses]
    if not runs:
        return {}
    with tempfile.TemporaryDirectory(prefix="hc-budgets-") as out:
        command = [BUILD / "hc_analyze", "--out", out, "--baselines", ",".join(study.budget.bases), *runs]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
        if done.returncode:
            sys.exit(done.stderr)
        variants_compared = json.loads((Path(out) / "analysis.json").read_text(encoding="utf-8"))["comparison"]["variants"]
    return {one["residual"]: {base: f"{found['final']['mean']:+.4f} ± {found['final']['half_width']:.4f}"
                              for base, found in one["differences"].items() if found.get("pairs", 0) > 1} for one in variants_compared}


def table(study):
    """The document's lines, and the variants whose runs are not all there."""
    words = variants()
    all_losses = study.all_losses(study.budget.variants or words)
    compared = comparison(study, all_losses)
    seeds, bases = study.budget.seeds, study.budget.bases
    missing = [variant for variant, (_, losses) in all_losses.items() if len(losses) < len(seeds)]
    head = ["`--residual`", ""] + (["learning rate"] if study.budget.chooses_rate else []) + [f"seed {seed}" for seed in seeds] + ["mean"]
    head += [f"to {base}" for base in bases]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for variant, (rate, losses) in all_losses.items():
        if not losses:
            continue
        row = [f"`{variant}`", words[variant]] + ([f"{rate:g}"] if rate else []) + [f"{losses[seed]:.4f}" if seed in losses else "" for seed in seeds]
        row += [f"{statistics.fmean(losses.values()):.4f}"]
        row += [compared.get(variant, {}).get(base, "") for base in bases]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n", missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("budget", choices=BUDGETS)
    parser.add_argument("--out", type=Path, help="folder of the runs (out/BUDGET)")
    parser.add_argument("--device", default="pocl", help="as hc_train's --device (pocl)")
    parser.add_argument("--jobs", type=int, metavar="N", help="variants that train side by side (pocl: one a processor; else 1)")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="put the table into the budget's document")
    arguments = parser.parse_args()
    out = (arguments.out or ROOT / "out" / arguments.budget).resolve()
    jobs = arguments.jobs if arguments.jobs is not None else default_jobs(arguments.device)
    if jobs < 1:
        parser.error("--jobs needs a number of at least 1")
    study = Study(arguments.budget, out, arguments.device, 0 if arguments.table else jobs)
    document, script = ROOT / study.budget.document, f"bench/budgets.py {study.name}"
    split(document, script)  # before hours of training
    if study.jobs:
        signal.signal(signal.SIGINT, lambda *_: study.stop("interrupted; run this again to go on"))  # hc_train hears it, too, and saves first
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run(["sh", ROOT / "data" / study.budget.corpus / "prepare.sh", study.corpus, BUILD / "hc_prepare"], check=True)
    text, missing = table(study)
    print(text)
    if missing:
        print("runs are missing of", *missing)
    elif arguments.write:
        write_between(document, script, text)


if __name__ == "__main__":
    main()
