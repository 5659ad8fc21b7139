#!/usr/bin/env python3
"""The runs of the paper that brought shc, from data to a report: of its first version (Beyond the Birkhoff Polytope), with each number beside the
paper's, or with --paper s2hc those of its public code.

  examples/paper/paper.py --scale tiny                      everything with tiny models on tiny Shakespeare: about a minute
  examples/paper/paper.py --scale paper --dry-run           what the real thing would run
  examples/paper/paper.py --scale paper --ranks 8           the real thing on eight GPUs of this host
  examples/paper/paper.py --scale paper --launcher "srun -n 16" --only table1 --models M
  examples/paper/paper.py --paper s2hc --scale tiny         Qwen3-0.6B on FineWeb-Edu, likewise: rc, hc, mhc, mhc_lite, krom and shc

Parts, in the order in which they run; --paper s2hc has costs, table1 (6 runs) and h_res:
  costs        hours of every run by the roofline of data sheets; needs no GPU
  throughput   tokens/s against the number of streams; mhc_lite with 8 streams is refused where it does not fit
  table1       trains rc, hc, mhc, mhc_lite and shc, models M and L, on OpenWebText and FineWeb-Edu: 20 runs
  table2       perplexities of five other corpora, of the models trained on FineWeb-Edu
  h_res        measures the residual matrices of the trained models; trains the identity baseline of M

Ctrl-C saves a checkpoint and stops. The same command resumes: interrupted runs continue, and finished ones are not
repeated. OUT/report.md is written anew after each step. Options of hc_train may follow after --, as in: -- --recompute layer

docs/reproduce.md says how to get the data, what each part costs, and what the paper leaves open."""
import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import report

HERE = Path(__file__).resolve().parent
PARTS = ("costs", "throughput", "table1", "table2", "h_res")
PALOMA = {"c4": "c4_en", "dolma": "dolma-v1_5", "falcon": "falcon-refinedweb", "redpajama": "redpajama", "wikitext": "wikitext_103"}
TEXTS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst")
MPI_ENVIRONMENT = {"HWLOC_COMPONENTS": "-opencl"}  # else mpirun loads OpenCL's drivers, whose LLVM takes SIGUSR1 that it should pass on to ranks
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Paper(NamedTuple):
    parts: tuple
    models: dict  # name: its file in configs/
    corpora: dict  # name: its folder in data/corpus/
    variants: tuple
    baseline: str  # the model of which the identity is trained, too
    seed: int


PAPERS = {"first": Paper(PARTS, {"M": "M.conf", "L": "L.conf"}, {"openwebtext": "openwebtext", "fineweb_edu": "fineweb_edu"},
                         ("rc", "hc", "mhc", "mhc_lite", "shc"), "M", 1337),
          "s2hc": Paper(("costs", "table1", "h_res"), {"Qwen3-0.6B": "s2hc_qwen3_0.6B.conf"}, {"fineweb_edu": "fineweb_edu_qwen3"},
                        ("rc", "hc", "mhc", "mhc_lite", "krom", "shc"), "", 42)}


class Scale(NamedTuple):
    configs: dict  # of each model, and of each corpus
    held_out: dict  # of each corpus: options of hc_prepare where its source is text
    train: tuple  # options of hc_train
    bench: tuple  # options of hc_bench
    streams: dict  # of the sweep: numbers of streams of each variant
    samples: int  # sequences on which H_res is measured


class Run(NamedTuple):
    model: str
    corpus: str
    variant: str


class Failed(Exception):
    pass


def scales(paper, shared):
    """shared: the folder that has configs/ and data/."""
    configs = {name: shared / "configs" / file for name, file in paper.models.items()}
    if paper is PAPERS["first"]:
        configs.update({corpus: shared / "configs" / f"{corpus}.conf" for corpus in paper.corpora})
    some = tuple(range(2, 9))
    return {"paper": Scale(configs, {"openwebtext": ("--val-fraction", "0.0005", "--seed", "2357"), "fineweb_edu": ("--val-fraction", "0.005", "--seed", "42")},
                           ("--dtype", "bf16", "--statistics-interval", "100"), ("--dtype", "bf16"),
                           {"rc": (1,), "mhc": some, "mhc_lite": some, "shc": some}, 1024),
            "tiny": Scale({model: HERE / f"tiny_{model}.conf" for model in paper.models}, {corpus: () for corpus in paper.corpora},
                          (), ("--vocab-size", "256", "--steps", "5"),
                          {"rc": (1,), "mhc": (2, 4, 8), "mhc_lite": (2, 4), "shc": (2, 4, 8)}, 32)}


def settings_of(*configs):
    """The settings of config files, as text; later files win."""
    lines = [line.partition("#")[0] for config in configs for line in config.read_text(encoding="utf-8").splitlines()]
    return {name.strip(): value.strip() for name, found, value in (line.partition("=") for line in lines) if found}


class Work:
    """What is asked for, where things are, and programs that are started one after the other."""

    def __init__(self, options, changed, more, programs, shared):
        """changed: the options that differ from their defaults, for the report's commands."""
        self.options, self.changed, self.more, self.programs = options, changed, more, programs
        self.text = shared / "data/shakespeare/shakespeare.txt"
        self.paper = PAPERS[options.paper]
        self.paper_configs = {model: shared / "configs" / file for model, file in self.paper.models.items()}
        self.scale = scales(self.paper, shared)[options.scale]
        self.out = options.out.resolve()
        self.launcher = options.launcher or (["mpirun", "-np", str(options.ranks)] if options.ranks > 1 else [])
        self.settings = {model: settings_of(self.scale.configs[model]) for model in self.paper.models}
        self.iterations = {model: int(settings["max_iters"]) for model, settings in self.settings.items()}
        self.process, self.stopping, self.failures, self.prepared = None, False, [], set()

    # ---- programs

    def stop(self, *_):
        """A program saves and ends at the first signal, and ends at once at the second. SIGUSR1 is what mpirun and srun pass on to ranks."""
        first, self.stopping = not self.stopping, True
        if self.process:
            self.process.send_signal(signal.SIGUSR1 if first else signal.SIGTERM)

    def call(self, program, *arguments, launched=False, expected=None):
        """Runs a program to its end. Returns the line of its messages that has the words `expected`, if it failed with that; None where all
        is well; raises Failed where it is not, and KeyboardInterrupt after a signal."""
        command = [*(self.launcher if launched else []), self.programs / program, *arguments]
        command = [str(word) for word in command]
        if self.stopping:
            raise KeyboardInterrupt
        print("$", shlex.join(command), flush=True)
        if self.options.dry_run:
            return None
        found = None
        try:  # in a session of its own: Ctrl-C is for stop() to pass on, in the way that ranks survive
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE if expected else None, text=True,
                                            errors="replace", start_new_session=True, env={**MPI_ENVIRONMENT, **os.environ})
        except OSError as error:
            raise Failed(f"cannot start {command[0]}: {error.strerror}") from error
        with self.process:
            if self.stopping:  # since it was looked at
                self.process.send_signal(signal.SIGUSR1)
            for line in self.process.stderr or ():
                sys.stderr.write(line)
                found = line.strip() if expected in line else found
            status = self.process.wait()
        self.process = None
        if self.stopping:
            raise KeyboardInterrupt
        if status and not found:
            raise Failed(f"{program} ended with status {status}: {shlex.join(command)}")
        return found if status else None

    def step(self, words, function, *arguments):
        """One step of the work; what fails is said, and others follow only with --keep-going."""
        print(f"\n== {words}", flush=True)
        try:
            function(*arguments)
        except Failed as failed:
            self.failures.append(str(failed))
            if not self.options.keep_going:
                raise
            print(f"paper.py: {failed}; going on with the rest", file=sys.stderr)
        finally:
            if not self.options.dry_run:
                report.write(self)

    # ---- data

    def source(self, corpus):
        """Where a corpus comes from: a folder of token files, or of text."""
        if self.options.scale == "tiny":
            return self.out / "tiny" / corpus
        return Path(self.options.data.get(corpus, f"data/corpus/{self.paper.corpora[corpus]}")).resolve()

    def tokenizer(self, corpus):
        """Options of hc_prepare: s2HC's models have Qwen3's tokens."""
        if self.options.scale == "tiny":
            return []
        return ["--tokenizer", "gpt2" if self.options.paper == "first" else self.source(corpus) / "tokenizer.json"]

    def data(self, corpus):
        """The folder of its token files."""
        source = self.source(corpus)
        return self.out / "data" / corpus if not (source / "train.bin").exists() and self.texts(corpus) else source

    def texts(self, corpus):
        if self.options.scale == "tiny":
            return [self.source(corpus) / "text.txt"]
        return sorted(path for path in self.source(corpus).glob("*") if path.name.endswith(TEXTS) and path.name != "tokenizer.json")

    def documents(self, name):
        """The files of one of the five corpora that perplexity is of."""
        folder = self.out / "tiny/paloma" if self.options.scale == "tiny" else self.options.paloma.resolve()
        return sorted(path for path in (folder / PALOMA[name] / "test").glob("*") if path.name.endswith(TEXTS))

    def missing(self):
        """What of the paper's data is not there, in words."""
        if self.options.scale == "tiny":
            return []
        lines = []
        needs = {"table1", "h_res"} & set(self.options.only)
        for corpus in self.options.corpora if needs else []:
            if not (self.data(corpus) / "train.bin").exists() and not self.texts(corpus):
                made = f"data/{corpus}/prepare.sh makes it" if self.options.paper == "first" else "docs/reproduce.md has the commands that make it"
                lines.append(f"{self.source(corpus)} has neither train.bin nor JSON lines: {made}, or give --data {corpus}=DIR")
            elif self.texts(corpus) and self.options.paper == "s2hc" and not (self.source(corpus) / "tokenizer.json").exists() \
                    and not (self.data(corpus) / "train.bin").exists():
                lines.append(f"{self.source(corpus)} has no tokenizer.json: put Qwen3's beside the JSON lines")
        if "table2" in self.options.only:
            lines += [f"{self.options.paloma}/{PALOMA[name]}/test has no JSON lines: give --paloma DIR" for name in PALOMA if not self.documents(name)]
        return lines

    def make_tiny(self):
        """Two corpora and five others, cut from tiny Shakespeare."""
        folder = self.out / "tiny"
        if folder.is_dir() or self.options.dry_run:
            return
        text = self.text.read_text(encoding="ascii")
        made = folder.with_name("tiny.new")
        shutil.rmtree(made, ignore_errors=True)
        for place, corpus in enumerate(self.paper.corpora):
            (made / corpus).mkdir(parents=True)
            (made / corpus / "text.txt").write_text(text[200000 * place:200000 * (place + 1)], encoding="ascii")
        for place, name in enumerate(PALOMA.values()):
            (made / "paloma" / name / "test").mkdir(parents=True)
            begin = 500000 + 100000 * place
            lines = "".join(json.dumps({"text": text[at:at + 1000]}) + "\n" for at in range(begin, begin + 4000, 1000))
            (made / "paloma" / name / "test/part.jsonl").write_text(lines, encoding="ascii")
        made.rename(folder)

    def prepare(self, corpus):
        if self.texts(corpus) and corpus not in self.prepared and not (self.data(corpus) / "train.bin").exists():
            self.prepared.add(corpus)
            self.call("hc_prepare", *self.tokenizer(corpus), *self.scale.held_out[corpus], "--out", self.data(corpus), *self.texts(corpus))

    # ---- runs

    def folder(self, run):
        return self.out / "runs" / f"{run.model}-{run.corpus}" / run.variant

    def last(self, run):
        return self.folder(run) / f"ckpt-{self.iterations[run.model]}"

    def batch(self, model):
        """Options for another micro-batch with as many sequences in an iteration."""
        size = self.options.micro_batch
        if not size:
            return []
        rows = int(self.settings[model]["batch_size"]) * int(self.settings[model]["gradient_accumulation_steps"])
        if rows % size:
            raise Failed(f"--micro-batch {size} does not divide the {rows} sequences of an iteration of model {model}")
        return ["--batch-size", size, "--gradient-accumulation-steps", rows // size]

    def configs(self, run):
        names = [run.model] + [run.corpus] * (run.corpus in self.scale.configs)
        return [word for name in names for word in ("--config", self.scale.configs[name])]

    def connection(self, variant):
        """The words for a variant. rc has no H_res that s2HC's settings could transpose."""
        return ["--residual", variant, *(["--no-h-res-transposed"] if self.options.paper == "s2hc" and variant == "rc" else [])]

    def train(self, run):
        folder = self.folder(run)
        if not self.last(run).is_dir():
            self.prepare(run.corpus)
            begin = ["--init-from", "resume"]
            if not any(folder.glob("ckpt-[0-9]*")):
                begin = [*self.configs(run), *self.connection(run.variant), "--seed", self.options.seed, *self.scale.train, "--start-over"]
                for stale in folder.glob("*.json"):  # evaluations of a run that was removed
                    stale.unlink()
            self.call("hc_train", *begin, *self.batch(run.model), "--data-dir", self.data(run.corpus), "--device", self.options.device,
                      "--out-dir", folder, *self.more, launched=True)
        self.evaluate(run, "validation", "--data", self.data(run.corpus), "--split", "val")

    def evaluate(self, run, name, *what):
        result = self.folder(run) / f"{name}.json"
        if not result.exists():
            self.call("hc_eval", "--checkpoint", self.last(run), "--device", self.options.device, "--json", result, *what, launched=True)

    def perplexities(self, run):
        for name in PALOMA:
            self.evaluate(run, f"eval-{name}", *self.documents(name))

    def measure(self, model, corpus):
        """hc_analyze on the runs that are complete."""
        all_runs = [Run(model, corpus, variant) for variant in report.measured(self)]
        runs = [self.folder(run) for run in all_runs if self.options.dry_run or self.last(run).is_dir()]
        if not runs:
            return
        out = self.out / "analysis" / f"{model}-{corpus}"
        known = report.read(out / "analysis.json")
        if known and [one["path"] for one in known["runs"]] == [str(run) for run in runs]:
            return
        bench = report.write_bench(self)
        self.call("hc_analyze", "--out", out, "--data-dir", self.data(corpus), "--samples", self.scale.samples, "--device", self.options.device,
                  *(["--bench", bench] if bench and model == "M" else []), *runs)

    # ---- benchmarks

    def bench(self, result, *arguments, launched=False):
        """hc_bench's JSON; where the model does not fit, result.refused with its words."""
        if not result.exists():
            if not self.options.dry_run:
                result.parent.mkdir(parents=True, exist_ok=True)
            refused = self.call("hc_bench", *arguments, "--json", result, launched=launched, expected="not enough memory")
            if refused:
                result.with_suffix(".refused").write_text(refused + "\n", encoding="utf-8")
        return result.exists()

    def speed(self, variant, streams):
        self.bench(self.out / "throughput" / f"{variant}-{streams}.json", "--config", self.scale.configs["M"], *self.batch("M"), *self.scale.bench,
                   "--residual", variant, "--n-streams", streams, "--device", self.options.device, launched=True)

    def paper_settings(self):
        """Of the paper's models, at any scale."""
        return {model: settings_of(config) for model, config in self.paper_configs.items()}

    def roofline(self, device, model, variant, streams, sizes=(8, 4, 2, 1)):
        """A training step of the paper's model by a data sheet, with the largest micro-batch that fits."""
        name = f"{device}-{model}-{variant}-{streams}"
        settings = self.paper_settings()[model]
        rows = int(settings["batch_size"]) * int(settings["gradient_accumulation_steps"]) // report.DEVICES[device]
        for size in sizes:
            if self.bench(self.out / "costs" / f"{name}.json", "--roofline", "--as", device, "--config", self.paper_configs[model], "--dtype", "bf16",
                          *self.connection(variant), "--n-streams", streams, "--batch-size", size,
                          "--gradient-accumulation-steps", rows // size) or self.options.dry_run:
                break


def costs(work):
    for device in report.DEVICES:
        for model, variant in report.costed(work):
            work.roofline(device, model, variant, report.streams_of(variant))
    for variant in ("mhc", "mhc_lite", "shc") if "throughput" in work.paper.parts else ():
        for streams in range(2, 9):
            if streams != report.streams_of(variant):  # that one is among report.costed
                work.roofline("a6000", "M", variant, streams, (8,))


def throughput(work):
    for variant, numbers in work.scale.streams.items():
        for streams in numbers:
            if variant in work.options.variants:
                work.speed(variant, streams)


def all_steps(work):
    """(words, function, arguments ...) of every step that is asked for."""
    options = work.options
    runs = [Run(model, corpus, variant) for model in options.models for corpus in options.corpora for variant in options.variants]
    steps = []
    if options.scale == "tiny":
        steps.append(("texts from tiny Shakespeare", work.make_tiny))
    if "costs" in options.only:
        steps.append(("costs: every run by data sheets", costs, work))
    if "throughput" in options.only:
        steps.append(("throughput: tokens/s against streams", throughput, work))
    if "table1" in options.only:
        steps += [(f"table1: {run.variant}, model {run.model}, {run.corpus}", work.train, run) for run in runs]
    if "table2" in options.only:
        steps += [(f"table2: {run.variant}, model {run.model}", work.perplexities, run) for run in runs
                  if run.corpus == "fineweb_edu" and (options.dry_run or "table1" in options.only or work.last(run).is_dir())]
    if "h_res" in options.only:
        if work.paper.baseline in options.models:
            baseline = Run(work.paper.baseline, options.corpora[0], "identity")
            steps.append((f"h_res: the identity baseline, model {baseline.model}, {baseline.corpus}", work.train, baseline))
        steps += [(f"h_res: model {model}, {corpus}", work.measure, model, corpus) for model in options.models for corpus in options.corpora]
    return steps


def several(choices):
    """For argparse: words separated by commas, in the order of choices."""
    def parse(text):
        words = text.split(",")
        unknown = [word for word in words if word not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not among {', '.join(choices)}")
        return [word for word in choices if word in words]
    return parse


class Data(argparse.Action):
    def __call__(self, parser, options, text, name=None):
        corpus, _, folder = text.partition("=")
        options.data = {**options.data, corpus: folder}


def parse(arguments):
    which = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    which.add_argument("--paper", choices=PAPERS, default="first", help="its first version, or what s2HC's public code trains (first)")
    paper = PAPERS[which.parse_known_args(arguments)[0].paper]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[which], allow_abbrev=False)
    parser.add_argument("--scale", choices=("tiny", "paper"), required=True)
    parser.add_argument("--out", type=Path, help="folder of runs, results and report.md (out/paper-SCALE, out/s2hc-SCALE)")
    for name, choices in (("only", paper.parts), ("models", tuple(paper.models)), ("corpora", tuple(paper.corpora)), ("variants", paper.variants)):
        parser.add_argument(f"--{name}", type=several(choices), default=list(choices), metavar="A,B", help=f"of {', '.join(choices)} (all)")
    parser.add_argument("--ranks", type=int, default=1, help="processes on this host, by mpirun (1)")
    parser.add_argument("--launcher", type=shlex.split, default=[], metavar="WORDS",
                        help='what starts the processes instead, e.g. "srun -n 16" or "mpirun --host a:8,b:8 -np 16"')
    parser.add_argument("--device", default="auto", help="as hc_train's --device (auto)")
    parser.add_argument("--seed", type=int, default=paper.seed, help=f"of every run ({paper.seed})")
    parser.add_argument("--micro-batch", type=int, default=0, metavar="N", help="sequences at a time on each device, where memory is short: iterations "
                        "keep their number of sequences")
    parser.add_argument("--data", action=Data, default={}, metavar="CORPUS=DIR",
                        help="its token files, or JSON lines that hc_prepare makes them of, with --paper s2hc beside Qwen3's tokenizer.json "
                        "(data/corpus/CORPUS, or data/corpus/fineweb_edu_qwen3)")
    parser.add_argument("--paloma", type=Path, default=Path("data/corpus/paloma"), metavar="DIR", help="Paloma's data (data/corpus/paloma)")
    parser.add_argument("--programs", type=Path, metavar="DIR", help="folder of hc_train and the others (build/, or where the PATH has them)")
    parser.add_argument("--keep-going", action="store_true", help="go on with other runs when one fails")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    if options.ranks < 1 or options.micro_batch < 0:
        parser.error("--ranks and --micro-batch are numbers of at least 1")
    for corpus, folder in options.data.items():
        if corpus not in paper.corpora or not folder:
            parser.error(f"--data {corpus}={folder}: give {' or '.join(f'{name}=DIR' for name in paper.corpora)}")
    not_of_parts = ("scale", "out", "only", "report", "dry_run")  # what report.command() adds itself, and what would keep it from running
    changed = {name: value for name, value in vars(options).items() if name not in not_of_parts and value != parser.get_default(name)}
    options.out = options.out or Path(f"out/{'paper' if options.paper == 'first' else options.paper}-{options.scale}")
    return parser, options, changed, arguments[end + 1:]


def find_programs(folder):
    """The folder of the programs, and the one with configs/ and data/."""
    found = folder or (HERE.parents[1] / "build" if (HERE.parents[1] / "build/hc_train").exists() else shutil.which("hc_train"))
    if not found or not (Path(found) / "hc_train").exists() and not Path(found).is_file():
        sys.exit("paper.py: there is no hc_train; build it first (sh ci/build.sh), or give --programs DIR")
    programs = Path(found).resolve()
    programs = programs.parent if programs.is_file() else programs
    for shared in (HERE.parents[1], programs.parent / "share/hctrain"):
        if (shared / "configs/M.conf").exists():
            return programs, shared
    sys.exit(f"paper.py: configs/M.conf is neither in {HERE.parents[1]} nor in {programs.parent / 'share/hctrain'}")


def main():
    parser, options, changed, more = parse(sys.argv[1:])
    programs, shared = find_programs(options.programs)
    work = Work(options, changed, more, programs, shared)
    if options.report:
        report.write(work)
        return
    missing = "\n  ".join(work.missing())
    if missing and not options.dry_run:
        parser.error(f"data is missing:\n  {missing}\ndocs/reproduce.md says how to get it; --only runs the parts that do without")
    if missing:
        print(f"data is missing:\n  {missing}")
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays in force
            signal.signal(number, work.stop)
    steps = all_steps(work)
    try:
        for place, (words, function, *arguments) in enumerate(steps, 1):
            work.step(f"{place} of {len(steps)}: {words}", function, *arguments)
    except KeyboardInterrupt:
        sys.stderr.write("paper.py: interrupted; the same command goes on from here\n")
        sys.exit(130)
    except Failed as failed:
        sys.exit(f"paper.py: {failed}\nThe same command goes on from here; --keep-going would go on with the other runs")
    if work.failures:
        sys.exit("\n  ".join(["paper.py: these failed:", *work.failures]))


if __name__ == "__main__":
    main()
