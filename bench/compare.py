#!/usr/bin/env python3
"""Measures training steps of several residual variants side by side.

  bench/compare.py rc,shc:2,shc:4 [--steps N] [--warmup N] [--json FILE] [--hc-bench PATH] OPTIONS OF hc_bench...

VARIANTS are names of `hc_train --list-residuals`, with numbers of streams as in shc:4 (default: --n-streams). Each has a process of its own,
`hc_bench --step-on-demand`. All of them take a step in turn, which is a round, so that what the machine does meanwhile happens to all. What
`--dtype auto` chooses for the first one holds for the others.
"""
import argparse
import atexit
import contextlib
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MOST_CASES = 32
GIB = 2 ** 30


def fail(text, status=1):
    print("%s: %s" % (os.path.basename(sys.argv[0]), text), file=sys.stderr)
    sys.exit(status)


def progress(text):
    """Replaces the last line of a terminal."""
    if sys.stderr.isatty():
        print("\r\033[K" + text, end="", file=sys.stderr, flush=True)


class Program:
    """`hc_bench --step-on-demand`, or another one that takes a step for each line that it is sent."""

    def __init__(self, name, command):
        self.name = name
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            fail("cannot start %s: %s" % (command[0], error.strerror))
        atexit.register(self.stop)
        self.facts = self.hear()

    def hear(self):
        try:
            return json.loads(self.process.stdout.readline())
        except ValueError:
            self.process.stdin.close()
            status = self.process.wait()
        fail("%s ended early (exit status %d); its message above says why, or it was killed for want of memory" % (self.name, status),
             2 if status == 2 else 1)

    def step(self):
        """Seconds."""
        with contextlib.suppress(BrokenPipeError):  # hear() says that it is gone
            os.write(self.process.stdin.fileno(), b"\n")
        return self.hear()["seconds"]

    def end(self):
        """What is known of the model, now with the most memory that it has had, and the time of kernels."""
        self.process.stdin.close()
        self.facts.update(self.hear())
        self.process.wait()
        return self.facts

    def stop(self):
        """Of a script that ends before."""
        self.process.kill()
        self.process.wait()


def take_rounds(programs, warmup, steps):
    """Seconds [programs][steps]. Every other round goes backwards, so that no program always follows the same one."""
    rounds = []
    for number in range(warmup + steps):
        order = programs if number % 2 == 0 else programs[::-1]
        seconds = {program: program.step() for program in order}
        rounds.append([seconds[program] for program in programs])
        progress("round %d/%d" % (number + 1, warmup + steps))
    progress("")
    return [list(column) for column in zip(*rounds[warmup:])]


def compare(arguments, options):
    programs, dtype = [], []
    for case in arguments.variants.split(","):
        name, _, streams = case.partition(":")
        command = [arguments.hc_bench, *options, "--step-on-demand", "--residual=" + name, *dtype]
        programs.append(Program("hc_bench for " + case, command + ["--n-streams=" + streams] * (":" in case)))
        dtype = ["--dtype=" + programs[0].facts["dtype"]]
    seconds = take_rounds(programs, arguments.warmup, arguments.steps)
    cases = [program.end() for program in programs]
    gemm_rate = max(case["gemm_rate"] for case in cases)  # all have measured the same GEMMs: the highest is what the device can do
    plain = next((column for case, column in zip(cases, seconds) if case["residual"] == "rc"), None)
    for case, column in zip(cases, seconds):
        median = statistics.median(column)
        case["seconds"] = {"step": {"min": min(column), "median": median, "max": max(column)}}
        case["tokens_per_second"] = case["tokens"] / median
        case["mfu"] = case["tokens_per_second"] * case["flops_per_token"] / gemm_rate
        case["ratio_to_rc"] = statistics.median(own / rc for own, rc in zip(column, plain)) if plain else None
    return cases


def print_table(cases, steps):
    first = cases[0]
    print("device   %s, GEMMs by %s at %.1f GFLOP/s" % (first["device"], first["gemm"], 1e-9 * max(case["gemm_rate"] for case in cases)))
    if first["dtype_reason"]:
        print("dtype    %s: %s" % (first["dtype"], first["dtype_reason"]))
    if first["warning"]:
        print("warning  %s" % first["warning"], file=sys.stderr)
    print("model    %d layers, %d channels, vocabulary %d (%s), %d tokens a step; medians of %d rounds" % (
        first["n_layer"], first["n_embd"], first["vocab_size"], first["vocab_source"], first["tokens"], steps))
    print("residual   n  parameters   auxiliary   step ms  tokens/s   of GEMM  planned     peak   to rc")
    for case in cases:
        print("%-9s %2d %11.4g %11.4g %9.1f %9.1f %7.1f %% %4.2f GiB %4.2f GiB" % (
            case["residual"], case["n_streams"], case["parameters"], case["auxiliary"], 1e3 * case["seconds"]["step"]["median"],
            case["tokens_per_second"], 100 * case["mfu"], case["planned_bytes"] / GIB, case["peak_bytes"] / GIB),
            "" if case["ratio_to_rc"] is None else "%7.3f" % case["ratio_to_rc"])
    print("of GEMM  the model's FLOPs a second, relative to the rate of GEMMs alone above\n"
          "planned  memory on the device; peak: the most that the process has had")
    if first["ratio_to_rc"] is not None:
        print("to rc    time of a step divided by that of rc in the same round, median of the rounds. It is not the quotient of two\n"
              "         medians above: a machine that is slower in some rounds changes those, and not the ratios within a round")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("variants", metavar="VARIANTS")
    parser.add_argument("--steps", type=int, default=10, help="rounds to measure")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before those, not measured")
    parser.add_argument("--json", metavar="FILE", help="file for the results; hc_analyze --bench draws them")
    parser.add_argument("--hc-bench", metavar="PATH", default=os.path.join(HERE, "..", "build", "hc_bench"))
    arguments, options = parser.parse_known_args()
    if arguments.steps < 1 or arguments.warmup < 0:
        parser.error("--steps is a number from 1, and --warmup from 0")
    if arguments.variants.count(",") >= MOST_CASES:
        parser.error("takes %d variants at most" % MOST_CASES)
    try:
        cases = compare(arguments, options)
        print_table(cases, arguments.steps)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump({"steps": arguments.steps, "cases": cases}, file, indent=1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        fail("cannot write %s: %s" % (arguments.json, error.strerror))


if __name__ == "__main__":
    main()
