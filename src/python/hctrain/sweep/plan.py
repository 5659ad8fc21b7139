"""What a sweep shall run: hc_sweep's options, and those of hc_train, which it passes on."""
import argparse
import itertools
import math
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from ..files import Error, printable, read_file
from ..settings import NO_TRAINING, NUMBER, lines_of

LARGEST_FILE = 16 << 20  # bytes of a config, a sweep file or a table of runs
MOST_SETTINGS, MOST_RUNS = 1000, 10000  # of a sweep: the time of comparisons grows with the square of the settings
SET_HERE = ("seed", "out_dir", "device", "start_over")  # options of hc_train that users cannot pass on


def fail(text, status=1):
    print("hc_sweep:", printable(text), file=sys.stderr)
    sys.exit(status)


def find_programs():
    """The folder of hc_train: this program's own, or one of PATH."""
    beside = Path(os.path.abspath(sys.argv[0])).parent
    found = beside / "hc_train" if (beside / "hc_train").exists() else shutil.which("hc_train")
    return Path(found).parent if found else fail("hc_train is neither beside this program nor in a folder of PATH")


def read_content(path):
    """Of this file, or else, as with hc_train's --config, of the one that was installed with the programs. Ends the program if there is neither."""
    if not os.path.exists(path):
        installed = find_programs().resolve().parent / "share" / "hctrain" / path
        path = installed if installed.exists() else fail(f"there is no file {path}")
    return read_file(path, LARGEST_FILE)


def read_text(path):
    return read_content(path).decode("utf-8-sig", "surrogateescape")


def read_lines(path):
    """(name, value as text) of each line `name = value` of a config or sweep file; hc_train itself checks those of configs."""
    content = read_content(path)
    try:
        yield from (line[:2] for line in lines_of(content, printable(path)))
    except Error as error:
        fail(error, 2)


def meaning(text):
    """What is equal for values that mean the same: 1e-3 and 0.001 do."""
    return float(text) if NUMBER.fullmatch(text) else text


def number_text(value):
    """A float as hc_train takes it, also where it wants a whole number, and without rounding: 1000000, 0.001, 1.953125e-06."""
    return str(int(value)) if value.is_integer() and value < 1 << 53 else repr(value)


class Plan(NamedTuple):
    configs: tuple  # paths
    settings: dict  # of hc_train, for all runs, beside those of the configs
    vary: dict  # {name: values}; a value may bring other settings along: "mhc+read_delay=true"
    best: dict  # {name: values to choose from}; only one: the first of a search by factors of two
    seeds: tuple
    best_seed: int  # of the runs that choose the best value
    bases: tuple  # {name: value} of what the table compares with

    def all_choices(self):
        """Of each setting that is compared: a value for every --vary."""
        return list(itertools.product(*self.vary.values()))

    def common(self):
        """{name: value} of everything that all runs share."""
        found = {}
        for path in self.configs:
            found.update(read_lines(path))
        return found | self.settings

    def base_of(self, choices, base):
        """The choices with what the base says instead."""
        return tuple(base.get(name, value) for name, value in zip(self.vary, choices))

    def assignments(self, choices):
        """[(name, value)] of the choices."""
        return [one for name, text in zip(self.vary, choices) for one in assignments_of(name, text)]

    def label(self, values):
        """{name: value} of --vary as reports name them: with their names if there are several, since values of two may look alike."""
        return ", ".join(f"{name}={short(value)}" if len(self.vary) > 1 else short(value) for name, value in values.items())


def assignments_of(name, choice):
    """[(name, value)] of a value of --vary and of what it brings along."""
    value, *more = re.split(r"\+(?=\w+=)", choice)
    return [(name, value), *(tuple(one.split("=", 1)) for one in more)]


def short(choice):
    """A value of --vary without "=true" behind what it brings along."""
    return " + ".join(part.removesuffix("=true") for part in re.split(r"\+(?=\w+=)", choice))


# ---- options

HELP = """Trains a model for each of several settings and seeds, and compares their validation losses.

Every option that is not listed here is one of hc_train's, for all runs. Each run is a folder in --out. The same command goes on
where it was stopped: complete runs are kept and interrupted ones resumed. Ctrl-C stops the runs, which save checkpoints first.
--out gets table.md, table.tsv and differences.svg, and hc_analyze takes it as a folder of runs."""

EXAMPLES = """examples:
  hc_sweep --config configs/tiny.conf --data-dir data/mine --vary residual=rc,mhc,shc --out out/residuals
  hc_sweep --config configs/tiny.conf --data-dir data/mine --vary optimizer=adamw,muon --best learning_rate=1e-3 --out out/optimizers
  hc_sweep --config configs/M.conf --data-dir data/owt --vary residual=rc,shc --vary n_layer=6,12 --device 0,1,2,3 --out out/depth
  hc_sweep --sweep configs/fair.sweep --data-dir data/mine --out out/fair

Exit status: 0 done, 1 runs failed or are missing, 2 wrong usage, 130 interrupted."""


def name_and_values(text):
    """(name, values) of NAME=VALUE,..."""
    name, found, values = text.partition("=")
    values = values.split(",")
    meanings = {tuple((one, meaning(value)) for one, value in assignments_of(name, value)) for value in values}
    if not name or not found or not all(values) or len(meanings) < len(values) or not text.isprintable():
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not of the form NAME=VALUE,... with different values")
    return name.replace("-", "_"), tuple(values)


def positive_numbers(text):
    """(name, numbers) of NAME=NUMBER,..."""
    name, values = name_and_values(text)
    numbers = tuple(float(value) if NUMBER.fullmatch(value) else 0.0 for value in values)
    if not all(0 < number < 1e30 for number in numbers):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' needs numbers above 0")
    return name, numbers


def assignments(text):
    """{name: value} of NAME=VALUE[,NAME=VALUE]..."""
    found = dict(part.partition("=")[::2] for part in text.split(","))
    return {name.replace("-", "_"): value for name, value in found.items()}


def seeds(text):
    words = text.split(",")
    found = tuple(int(word) if re.fullmatch("[0-9]{1,16}", word) else -1 for word in words)
    if len(set(found)) < len(found) or min(found) < 0:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not of the form N,... with different whole numbers")
    return found


def make_parser():
    parser = argparse.ArgumentParser(prog="hc_sweep", description=HELP, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="hc_sweep --vary NAME=VALUE,... --out DIR [OPTIONS] [OPTIONS OF hc_train]", allow_abbrev=False)
    add = parser.add_argument
    add("--sweep", type=Path, help="file of options: a line `name = value` for each; options of the command line replace them")
    add("--config", type=Path, action="append", metavar="FILE", help="hc_train's config; may be repeated")
    add("--vary", type=name_and_values, action="append", metavar="NAME=VALUE,...", help="a setting and its values; may be repeated, for all "
        f"combinations, at most {MOST_SETTINGS}. A value may bring others along: residual=rc,mhc+read_delay=true")
    add("--best", type=positive_numbers, action="append", metavar="NAME=NUMBER,...", help="a setting that each combination has at its best value, "
        "by runs with --best-seed: the best of a list, or with one number a search by factors of two from there until both neighbours are worse. May be "
        "repeated: the next one is then chosen at the best of those before it")
    add("--best-seed", type=int, metavar="N", help="seed of the runs that choose it (100)")
    add("--seeds", type=seeds, metavar="N,...", help="seeds of the runs that are compared (1,2,3)")
    add("--base", type=assignments, action="append", metavar="NAME=VALUE", help="a value of --vary that the others are compared with, may be repeated (the "
        "first value of each --vary)")
    add("--correct", action=argparse.BooleanOptionalAction, help="correct intervals for their number, and name the pairs that can be told apart "
        "(default: yes)")
    add("--device", metavar="WORD,...", help="as hc_train's --device; several: runs take turns on them (auto)")
    add("--jobs", type=int, metavar="N", help="runs side by side (one a device; on a CPU one a core)")
    add("--out", type=Path, metavar="DIR", help="folder of the runs and results")
    add("--runs", type=Path, metavar="FILE", help="table of the runs that are complete (runs.tsv in --out)")
    add("--note", metavar="TEXT", help="kept in the table with each new run, such as a commit")
    add("--table", action="store_true", default=None, help="train nothing: write the table of the runs that are there")
    add("--version", action="store_true", help="print the version, and stop")
    return parser


def sweep_file(parser, path):
    """Options of a sweep file as arguments; its configs are found beside it."""
    flags = {"correct": ("--no-correct", "--correct"), "table": (None, "--table")}
    for name, value in read_lines(path):
        if name in flags and value in ("true", "false"):
            value = flags[name][value == "true"]
            yield from [value] if value else []
        elif name in ("sweep", "version"):
            parser.error(f"{printable(path)} has {name}, which is for the command line")
        else:
            yield f"--{name.replace('_', '-')}={Path(path).parent / value if name == 'config' else value}"


def training_settings(parser, words):
    """{name: value} of options that hc_sweep does not know: --name value, --name=value, --name, --no-name."""
    found = {}
    words = list(words)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--") or name == "--":
            parser.error(f"there is no option before '{printable(name)}'")
        name = name[2:].replace("-", "_")
        if not equals:
            negated = name.startswith("no_")
            name = name[3:] if negated else name
            value = "false" if negated else words.pop(0) if words and not words[0].startswith("--") else "true"
        if name in SET_HERE:
            parser.error(f"hc_sweep chooses --{name.replace('_', '-')} itself")
        if name in NO_TRAINING:
            parser.error(f"with --{name.replace('_', '-')} hc_train trains nothing that hc_sweep could compare")
        found[name] = value
    return found


def read_arguments(words):
    """(Plan, options) of the command line."""
    parser = make_parser()
    options, rest = parser.parse_known_args(words)
    if options.version:
        return None, options
    if options.sweep:
        defaults, rest_of_file = parser.parse_known_args(list(sweep_file(parser, options.sweep)))
        rest = rest_of_file + rest
        for name, value in vars(defaults).items():
            if getattr(options, name) is None:
                setattr(options, name, value)
    vary, best = dict(options.vary or ()), dict(options.best or ())
    plan = Plan(tuple(options.config or ()), training_settings(parser, rest), vary, best, options.seeds or (1, 2, 3),
                100 if options.best_seed is None else options.best_seed, tuple(options.base or ({name: values[0]} for name, values in vary.items())))
    options.correct = options.correct is not False
    options.device = (options.device or "auto").split(",")
    check(parser, plan, options)
    return plan, options


def check(parser, plan, options):
    """Ends the program if options are missing or contradict one another, or if with some no run ends with a validation loss."""
    if not plan.vary or not options.out:
        parser.error("--vary and --out are needed")
    settings = math.prod(map(len, plan.vary.values()))
    if settings > MOST_SETTINGS or settings * len(plan.seeds) > MOST_RUNS:
        parser.error(f"--vary makes {settings} settings with {len(plan.seeds)} seeds each, and hc_sweep takes at most {MOST_SETTINGS} settings and {MOST_RUNS} runs")
    everywhere = [*plan.best, *plan.settings, *SET_HERE, *NO_TRAINING]
    twice = any(len(set(names)) < len(names) for names in ([name for name, _ in plan.assignments(choices)] + everywhere for choices in plan.all_choices()))
    if twice or len(plan.vary) < len(options.vary) or len(plan.best) < len(options.best or ()):
        parser.error("each setting can be given once: for all runs, by --vary, or by --best")
    if plan.best and plan.best_seed in plan.seeds:
        parser.error(f"--best-seed {plan.best_seed} is one of --seeds: values chosen by a seed look better with it than they are")
    if options.jobs is not None and options.jobs < 1:
        parser.error("--jobs needs a number of at least 1")
    common = plan.common()
    varied = [one for name, choices in plan.vary.items() for choice in choices for one in assignments_of(name, choice)]
    if any(name == "eval_iters" and meaning(value) == 0 for name, value in [*common.items(), *varied]):
        parser.error("with eval_iters = 0 runs have no validation losses, which hc_sweep compares")
    for name in NO_TRAINING:
        if common.get(name, "false") != "false":
            parser.error(f"with {name} hc_train trains nothing that hc_sweep could compare: take it out of the config")
    if common.get("init_from") == "resume":
        parser.error("hc_sweep resumes interrupted runs itself, without --init-from resume")
    for base in plan.bases:
        for name, value in base.items():
            if value not in plan.vary.get(name, ()):
                parser.error(f"--base {printable(name)}={printable(value)} is not one of the values of --vary")
