#!/usr/bin/env python3
"""Training steps of hc_bench and of the same model in PyTorch (bench/torch_peer.py), a step each in turn.

For every variant three programs are kept ready, hctrain's, PyTorch's and hctrain's with plain residuals, and take turns, so
that what the machine does meanwhile happens to all. Ratios are taken within a round; medians over rounds are printed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = {"n_streams": 4, "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304,
         "batch_size": 1}  # options that both programs take, and their defaults here: configs/M.conf


class Program:
    """One that takes a step for each line that it is sent."""

    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("vs_torch.py: %s ended early (exit status %s)" % (self.name, self.process.wait()))
        return json.loads(line)

    def step(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # hear() says that it is gone
        return self.hear()["seconds"]

    def end(self):
        self.process.stdin.close()
        self.facts.update(self.hear())
        self.process.wait()
        return self.facts


def hctrain(arguments, residual):
    command = [arguments.hc_bench, "--turns", "--device", arguments.device, "--residual", residual]
    for name in MODEL:
        command += ["--" + name.replace("_", "-"), str(getattr(arguments, name))]
    command += ["--gradient-accumulation-steps", "1", "--dtype", arguments.dtype]
    return Program("hc_bench %s" % residual, command)


def torch(arguments, residual):
    command = [sys.executable, os.path.join(HERE, "torch_peer.py"), "--residual", residual, "--threads",
               str(arguments.threads), "--device", arguments.torch_device, "--dtype", arguments.dtype]
    for name in MODEL:
        command += ["--" + name, str(getattr(arguments, name))]
    return Program("PyTorch %s" % residual, command)


def compare(arguments, residual):
    programs = [hctrain(arguments, residual), torch(arguments, residual)]
    if residual != "rc":
        programs.append(hctrain(arguments, "rc"))
    rounds = []
    for number in range(arguments.warmup + arguments.rounds):
        order = programs if number % 2 == 0 else programs[::-1]
        seconds = {program: program.step() for program in order}
        if number >= arguments.warmup:
            rounds.append([seconds[program] for program in programs])
        print("\r%-9s round %d of %d " % (residual, number + 1, arguments.warmup + arguments.rounds), end="",
              file=sys.stderr, flush=True)
    print("\r%40s\r" % "", end="", file=sys.stderr)
    ours, theirs = programs[0].end(), programs[1].end()
    for program in programs[2:]:
        program.end()
    if ours["parameters"] != theirs["parameters"]:
        sys.exit("vs_torch.py: not the same model: %d and %d parameters" % (ours["parameters"], theirs["parameters"]))
    tokens = arguments.batch_size * arguments.block_size
    median = [statistics.median(column) for column in zip(*rounds)]
    speed = tokens / median[0]
    return {
        "residual": residual, "tokens_per_second": speed, "torch_tokens_per_second": tokens / median[1],
        "ratio_to_torch": statistics.median(row[1] / row[0] for row in rounds),
        "ratio_to_rc": statistics.median(row[0] / row[-1] for row in rounds) if residual != "rc" else 1.0,
        "mfu": speed * ours["flops_per_token"] / ours["gemm_rate"], "gemm_rate": ours["gemm_rate"],
        # on a GPU what the process has on the host says nothing, and the plan is what is allocated
        "peak_bytes": ours["peak_bytes"] if ours["cpu"] else ours["planned_bytes"],
        "torch_peak_bytes": theirs["peak_bytes"],
        "torch": theirs["torch"], "rounds": rounds,
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hc-bench", default=os.path.join(HERE, "..", "build", "hc_bench"))
    parser.add_argument("--device", default="pocl", help="for hc_bench")
    parser.add_argument("--torch-device", default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32", help="of activations; PyTorch's by autocast")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch")
    parser.add_argument("--variants", default="rc,hc,mhc,mhc_lite,shc", help="those of hc_train --list-residuals that torch_peer.py has")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--json", help="file for the figures")
    for name, value in MODEL.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    return parser.parse_args()


def main():
    arguments = parse()
    rows = []
    print("| residual | tokens/s | PyTorch | ratio | to rc | of GEMM | peak GiB | PyTorch | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for residual in arguments.variants.split(","):
        row = compare(arguments, residual)
        rows.append(row)
        print("| %s | %.1f | %.1f | %.2f | %.3f | %.0f %% of %.0f GFLOP/s | %.2f | %.2f | %.2f |" % (
            residual, row["tokens_per_second"], row["torch_tokens_per_second"], row["ratio_to_torch"],
            row["ratio_to_rc"], 100 * row["mfu"], 1e-9 * row["gemm_rate"], row["peak_bytes"] / 2 ** 30,
            row["torch_peak_bytes"] / 2 ** 30, row["peak_bytes"] / row["torch_peak_bytes"]), flush=True)
    print("%s; PyTorch %s, %d threads; medians of %d rounds" % (arguments.dtype, rows[0]["torch"], arguments.threads, arguments.rounds))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
