"""hc_sweep's command: what it does from its arguments to the exit status."""
import os
import subprocess
import sys

from ..files import Error, on_stop, printable
from .plan import fail, find_programs, read_arguments
from .report import Report, foreign_file
from .runs import Needs, Sweep, Table, cores, lock, uses_cpu

DONE, FAILED = 0, 1


def print_version(programs):
    done = subprocess.run([programs / "hc_train", "--version"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        fail(f"hc_train --version ended with exit status {done.returncode}")
    print(done.stdout.replace("hc_train", "hc_sweep", 1), end="")


def train(plan, table, options):
    """Returns the Sweep after all that could run has run."""
    programs = find_programs()
    sweep = Sweep(plan, table, options.out, programs, options.note or "")
    sweep.adopt()
    missing, _, total = sweep.needs.missing()
    if missing:
        sweep.check(options.device)
        table.write()  # the settings, before any run has them
        count = options.jobs or (cores() if len(options.device) == 1 and uses_cpu(programs, options.device[0]) else len(options.device))
        sweep.train([options.device[i % len(options.device)] for i in range(min(count, total))])
    return sweep


def run(plan, options):
    """Raises KeyboardInterrupt where the runs were stopped."""
    path = options.runs or options.out / "runs.tsv"
    if options.table and not path.exists():
        fail(f"there is no table of runs {path}, and --table trains none")
    if in_the_way := foreign_file(options.out):
        fail(f"{in_the_way} is not a file that hc_sweep has written: it is not replaced. Rename it, or give another --out")
    descriptor = lock(options.out)
    table = Table(path, plan)
    sweep = None if options.table else train(plan, table, options)
    report = Report(plan, Needs(plan, table), options.correct)
    report.write(options.out)
    os.close(descriptor)
    print(report.table(), report.sentences(), report.ends_of_lists(), sep="\n", end="")
    if report.missing():
        print("Runs are missing of:", printable("; ".join(report.missing())))
    if sweep and sweep.stopped:
        raise KeyboardInterrupt
    for failed, why in sweep.failed.items() if sweep else ():
        print(f"hc_sweep: {printable(sweep.folder(failed))} failed: {printable(why)}", file=sys.stderr)
    return FAILED if report.missing() else DONE


def main(words):
    """The exit status; raises KeyboardInterrupt where it was stopped."""
    on_stop(always=True)
    try:
        plan, options = read_arguments(words)
        if plan is None:
            print_version(find_programs())
            return DONE
        return run(plan, options)
    except Error as error:
        return fail(error)
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}" if error.filename else error)
