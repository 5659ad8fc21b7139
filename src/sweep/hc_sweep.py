#!/usr/bin/env python3
"""hc_sweep: trains a model for each of several settings and seeds, and compares their losses. Needs nothing but Python 3.9."""
import os
import signal
import subprocess
import sys

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "../lib/hctrain/sweep")))  # in a wheel this file is no link

from plan import fail, find_programs, printable, read_arguments  # noqa: E402
from report import Report  # noqa: E402
from runs import Needs, Sweep, Table, cores, lock, on_stop, uses_cpu  # noqa: E402

DONE, FAILED, INTERRUPTED = 0, 1, 130


def print_version(programs):
    text = subprocess.run([programs / "hc_train", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(text.replace("hc_train", "hc_sweep", 1), end="")


def train(plan, table, options):
    """Returns the Sweep after all that could run has run."""
    programs = find_programs()
    sweep = Sweep(plan, table, options.out, programs, options.note or "")
    sweep.adopt()
    if sweep.needs.missing()[0]:
        sweep.check(options.device)
        table.write()  # the settings, before any run has them
        count = options.jobs or (cores() if len(options.device) == 1 and uses_cpu(programs, options.device[0]) else len(options.device))
        sweep.train([options.device[i % len(options.device)] for i in range(count)])
    return sweep


def run(words):
    plan, options = read_arguments(words)
    if plan is None:
        print_version(find_programs())
        return DONE
    descriptor = lock(options.out)
    table = Table(options.runs or options.out / "runs.tsv", plan)
    sweep = None if options.table else train(plan, table, options)
    report = Report(plan, Needs(plan, table), options.correct)
    report.write(options.out)
    os.close(descriptor)
    print(report.table(), report.sentences(), report.ends_of_lists(), sep="\n", end="")
    if report.missing():
        print("Runs are missing of:", printable("; ".join(report.missing())))
    if sweep and sweep.stopped:
        print("hc_sweep: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    for failed, why in sweep.failed.items() if sweep else ():
        print(f"hc_sweep: {printable(sweep.folder(failed))} failed: {printable(why)}", file=sys.stderr)
    return FAILED if report.missing() else DONE


if __name__ == "__main__":
    try:
        on_stop(signal.default_int_handler)
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        fail(error)
