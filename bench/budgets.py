#!/usr/bin/env python3
"""What every residual connection learns on one budget, with several seeds.

  bench/budgets.py nanogpt              nanoGPT's recipe for CPUs on tiny Shakespeare; an hour on two cores
  bench/budgets.py modern               the same with a block of today, three connections; a quarter of an hour on two cores
  bench/budgets.py fair                 a block of today, 20 tokens a parameter, each connection at the learning rate that suits it; about a
                                        minute a run on two cores, and at least eight runs a connection
  bench/budgets.py BUDGET --table       the table of the runs that are there; --write: into its document, and fair's picture beside it

Runs go to out/BUDGET (--out), at low priority, and connections side by side: models as small as these learn more in all from two runs with
a thread each than from one with two. bench/BUDGET.tsv (--runs) keeps the final validation loss of each run. Runs that are there are not
run again, and those that were interrupted go on, so the same command goes on where it was stopped. BUILD (build) in the environment names
the folder with the programs.

A learning rate is chosen by runs with a seed of their own, apart by factors of two, until the best has a worse one on either side.
Differences are means over runs of the same seed, with 95 % intervals by Student's t (bench/paired.py). fair's are corrected for the number
of intervals in the table, and its pairs by Holm's procedure. They do not say what another corpus or another size of the model would do.
"""
import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import intervals
import paired
from tables import connections, split, table, write_between

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", ROOT / "build")).resolve()


class Budget(NamedTuple):
    config: str
    corpus: str  # of data/
    seeds: tuple
    fair: bool  # a learning rate for each connection, not the config's for all, and intervals that are corrected
    connections: tuple = ()  # that are trained; none: all
    first_rate: float = 0.0  # where the choice of a learning rate begins; 0: at the config's


BUDGETS = {"nanogpt": Budget("shakespeare_char_cpu.conf", "shakespeare", (1337, 1, 2), False),
           "modern": Budget("modern_char_cpu.conf", "shakespeare", (1337, 1, 2), False, ("rc", "identity", "shc")),
           "fair": Budget("fair.conf", "gcide", (1, 2, 3, 4, 5), True, first_rate=4e-3)}
BASES = ("rc", "identity")  # that the table compares all with
DOCUMENT = ROOT / "docs" / "study.md"
PICTURE = ROOT / "docs" / "images" / "fair.svg"
DIVERGED = "diverged"  # a file in the folder of such a run, which would diverge again wherever it goes on
CHOOSING = 100  # the seed of runs that choose a rate


def settings(budget):
    """Its config, {name: value as text}."""
    lines = (line.partition("#")[0].partition("=") for line in (ROOT / "configs" / budget.config).read_text(encoding="utf-8").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines if name.strip()}


def default_jobs(device):
    """A run a processor; one on a device that all would share."""
    return len(os.sched_getaffinity(0)) if device == "pocl" else 1


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


def commit():
    """Of the sources, as far as git knows it; with "+" behind it, changed since."""
    done = subprocess.run(["git", "describe", "--always", "--exclude", "*", "--dirty=+"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False)
    return done.stdout.strip() or "unknown"


class Runs:
    """The table of runs that are done: a text file with tabs, of which git keeps what out/ would lose."""
    COLUMNS = ("connection", "learning_rate", "seed", "val_loss", "commit", "device")

    def __init__(self, path, budget):
        """Reads it, if it exists; one with runs by another config is refused."""
        digest = hashlib.sha256("\n".join(f"{name}={value}" for name, value in sorted(settings(budget).items())).encode()).hexdigest()
        self.path, self.rows, self.lock, self.commit = path, {}, threading.Lock(), commit()
        self.head = f"# configs/{budget.config} {digest[:12]}\n" + "\t".join(self.COLUMNS) + "\n"
        if path.exists():
            text = path.read_text(encoding="utf-8")
            if not text.startswith(self.head) and text.count("\n") > 2:
                sys.exit(f"{path}: these runs had another configs/{budget.config}; move them away with their folder, or give others by --runs and --out")
            for line in text[len(self.head):].splitlines():
                name, rate, seed, *rest = line.split("\t")
                self.rows[name, float(rate), int(seed)] = rest

    def loss(self, name, rate, seed):
        """None: not there; infinite: it diverged."""
        row = self.rows.get((name, rate, seed))
        return row and float(row[0])

    def write(self):
        lines = ["\t".join([name, f"{rate:g}", str(seed), *row]) for (name, rate, seed), row in sorted(self.rows.items())]
        whole = self.path.with_suffix(".new")
        whole.write_text(self.head + "".join(line + "\n" for line in lines), encoding="utf-8")
        whole.replace(self.path)

    def add(self, name, rate, seed, loss, device):
        with self.lock:
            self.rows[name, rate, seed] = [f"{loss:.6f}", self.commit, device]
            self.write()

    def forget(self, name):
        self.rows = {key: row for key, row in self.rows.items() if key[0] != name}
        self.write()


class Study:
    def __init__(self, budget, runs, out, device, jobs):
        """runs: a Runs; jobs: how many runs go on side by side; 0: nothing shall be trained."""
        self.budget, self.runs, self.out, self.device, self.jobs = budget, runs, out, device, jobs
        self.stopped = None  # why no more runs begin
        self.settings, self.connections = settings(budget), connections(BUILD)
        self.iterations, self.rate = int(self.settings["max_iters"]), float(self.settings["learning_rate"])
        self.corpus = ROOT / "data" / "corpus" / budget.corpus

    def names(self):
        return self.budget.connections or tuple(self.connections)

    def loss(self, run):
        """The last validation loss in the folder of a complete run, else None."""
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

    def folder(self, name, rate, seed):
        return self.out / f"{name.replace(' ', '')}-{rate:g}-{seed}"

    def forget(self, name):
        """Removes all runs of a connection."""
        self.runs.forget(name)
        for run in self.out.glob(f"{name.replace(' ', '')}-[0-9]*"):
            shutil.rmtree(run)

    def train(self, name, rate, seed):
        """Begins a run or goes on with it, until its end."""
        run = self.folder(name, rate, seed)
        if self.stopped:
            sys.exit(self.stopped)
        if any(run.glob("ckpt-[0-9]*")):
            options = ["--init-from", "resume"]
        else:
            options = ["--config", ROOT / "configs" / self.budget.config, *self.connections[name].options, "--seed", str(seed), "--data-dir", self.corpus,
                       "--learning-rate", f"{rate:g}", "--min-lr", f"{rate / 10:g}", "--keep-checkpoints", "1", "--no-tensorboard", "--start-over"]
        status = train([*options, "--device", self.device, "--out-dir", run], run, threads(self.jobs))
        if self.loss(run) is None:
            self.stop(f"{run} did not end (status {status}); run this again to go on")
            sys.exit(self.stopped)

    def run(self, name, rate, seed):
        """The loss of one run, trained if need be; None: not there, and none shall be trained."""
        loss = self.runs.loss(name, rate, seed)
        if loss is None:
            run = self.folder(name, rate, seed)
            if self.loss(run) is None and self.jobs:
                self.train(name, rate, seed)
            loss = self.loss(run)
            if loss is not None:
                self.runs.add(name, rate, seed, loss, self.device)
        return loss

    def best_rate(self, name):
        """None where runs are missing."""
        if not self.budget.fair:
            return self.rate
        losses = {}

        def try_rate(rate):
            losses[rate] = self.run(name, rate, CHOOSING)
            return losses[rate] is not None

        best = self.budget.first_rate or self.rate
        while try_rate(best) and try_rate(best / 2) and try_rate(best * 2):
            better = min(losses, key=losses.get)
            if better == best:
                return best
            best = better
        return None

    def losses(self, name):
        """(rate, {seed: loss})"""
        rate = self.best_rate(name)
        if not rate:
            return None, {}
        found = {seed: self.run(name, rate, seed) for seed in self.budget.seeds}
        return rate, {seed: loss for seed, loss in found.items() if loss is not None}

    def all_losses(self):
        """{connection: its rate and losses}"""
        with ThreadPoolExecutor(self.jobs or 1) as pool:
            return dict(zip(self.names(), pool.map(self.losses, self.names())))


# ---- what comes out


class Report:
    """Of a study's losses: the document's table, the picture, the pairs."""

    def __init__(self, study, all_losses):
        self.study, self.all_losses = study, all_losses
        self.missing = [name for name, (_, losses) in all_losses.items() if len(losses) < len(study.budget.seeds)]
        self.compared = {name: losses for name, (_, losses) in all_losses.items() if losses and all(map(math.isfinite, losses.values()))}
        self.differences = paired.to_bases(self.compared, BASES)
        self.comparisons = len(self.differences) if study.budget.fair else 1
        self.pairs = paired.all_pairs(self.compared)

    def interval(self, name, base):
        """Of the difference to a base, or None."""
        found = self.differences.get((name, base))
        return found and intervals.Interval(found.mean, found.half_width(self.comparisons))

    def table(self):
        fair = self.study.budget.fair
        heads = ["connection", ""] + ["learning rate"] * fair + ["seeds", "mean", "deviation"] + [f"to {base}" for base in BASES] + ["better than"] * fair
        rows = []
        for name, (rate, losses) in self.all_losses.items():
            if losses:
                rows.append([f"`{name}`", self.study.connections[name].summary] + [f"{rate:g}"] * fair + [len(losses), *self.mean(name)] +
                            [self.text(name, base) for base in BASES] + [self.better_than(name)] * fair)
        return table(heads, rows, "---:", 2)

    def mean(self, name):
        losses = self.compared.get(name, {})
        return [f"{statistics.fmean(losses.values()):.4f}" if losses else "diverged", f"{statistics.stdev(losses.values()):.4f}" if len(losses) > 1 else ""]

    def text(self, name, base):
        found = self.interval(name, base)
        return f"{found.mean:+.4f} ± {found.half_width:.4f}" if found else ""

    def better_than(self, name):
        return ", ".join(f"`{pair.worse}`" for pair in self.pairs if pair.better == name and pair.p < 0.05)

    def pairs_text(self):
        return "better\tworse\tpairs\tdifference\tp\tp by Holm\n" + "".join(
            f"{pair.better}\t{pair.worse}\t{pair.difference.pairs}\t{pair.difference.mean:+.4f}\t{pair.difference.p:.2g}\t{pair.p:.2g}\n" for pair in self.pairs)

    def picture(self):
        names = sorted(self.compared, key=lambda name: statistics.fmean(self.compared[name].values()))
        panels = [(f"difference to {base}", [self.interval(name, base) for name in names]) for base in BASES]
        return intervals.draw(names, panels, "nats a byte, 95 % for all together")

    def section(self):
        """What stands in the document."""
        text = self.table()
        if self.study.budget.fair:
            text += f"\n![Differences to {BASES[0]} and {BASES[1]} with their intervals](images/{PICTURE.name})\n"
        return text


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("budget", choices=BUDGETS)
    parser.add_argument("--out", type=Path, help="folder of the runs (out/BUDGET)")
    parser.add_argument("--runs", type=Path, help="table of the runs (bench/BUDGET.tsv)")
    parser.add_argument("--device", default="pocl", help="as hc_train's --device (pocl)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (pocl: one a processor; else 1)")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N (fair: 5); more make intervals narrower")
    parser.add_argument("--again", action="append", default=[], metavar="CONNECTION", help="remove its runs, and run them again; may be repeated")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="put the table into the document, and draw the picture")
    arguments = parser.parse_args()
    if arguments.jobs is None:
        arguments.jobs = default_jobs(arguments.device)
    if arguments.jobs < 1 or (arguments.seeds is not None and arguments.seeds < 2):
        parser.error("--jobs needs a number of at least 1, and --seeds one of at least 2")
    return arguments


def open_study(arguments):
    """The study that the arguments name."""
    budget = BUDGETS[arguments.budget]
    if arguments.seeds:
        budget = budget._replace(seeds=tuple(range(1, arguments.seeds + 1)))
    runs = Runs(arguments.runs or ROOT / "bench" / f"{arguments.budget}.tsv", budget)
    study = Study(budget, runs, (arguments.out or ROOT / "out" / arguments.budget).resolve(), arguments.device, 0 if arguments.table else arguments.jobs)
    unknown = [name for name in arguments.again if name not in study.connections]
    if unknown:
        sys.exit(f"--again: there is no connection {unknown[0]}; there are {', '.join(study.connections)}")
    for name in arguments.again:
        study.forget(name)
    return study


def main():
    arguments = read_arguments()
    script = f"bench/budgets.py {arguments.budget}"
    split(DOCUMENT, script)  # before hours of training
    study = open_study(arguments)
    if study.jobs:
        signal.signal(signal.SIGINT, lambda *_: study.stop("interrupted; run this again to go on"))  # hc_train hears it, too, and saves first
        study.out.mkdir(parents=True, exist_ok=True)
        subprocess.run(["sh", ROOT / "data" / study.budget.corpus / "prepare.sh", study.corpus, BUILD / "hc_prepare"], check=True)
    report = Report(study, study.all_losses())
    print(report.section())
    if study.budget.fair:
        print(report.pairs_text())
    if report.missing:
        print("runs are missing of", *report.missing)
    elif arguments.write:
        write_between(DOCUMENT, script, report.section())
        if study.budget.fair:
            PICTURE.write_text(report.picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
