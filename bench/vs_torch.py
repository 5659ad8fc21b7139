#!/usr/bin/env python3
"""Training steps of hc_bench and of the same model in PyTorch (bench/torch_peer.py), in turn.

For every variant three programs are kept ready, hctrain's, PyTorch's and hctrain's with plain residuals, and take turns, so
that what the machine does meanwhile happens to all. A turn is a step, or several of a small model: threads of one program that
still wait for more would spoil the first steps of the next. Ratios are taken within a round; medians over rounds are printed.

With --best PyTorch is tried first in all its forms, eager and compiled, in fp32 and bf16, and the fastest is compared.
"""
import argparse
import json
import os
import statistics
import sys

from compare import Program, fail, progress

HERE = os.path.dirname(os.path.abspath(__file__))
# Options that both programs take: of configs/M.conf, of configs/llama_M.conf, and of nanoGPT's recipe for CPUs with the characters of
# tinyshakespeare.
M = {"n_streams": 4, "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304, "batch_size": 1}
PRESETS = {
    "M": M,
    "llama_M": {**M, "n_kv_head": 4, "norm": "rmsnorm", "position": "rope", "mlp": "swiglu"},
    "small": {**M, "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 65, "batch_size": 12},
}
STEPS = {"M": 1, "llama_M": 1, "small": 100}  # of a turn
FORMS = [(dtype, compiled) for dtype in ("fp32", "bf16") for compiled in (False, True)]  # of PyTorch, on a CPU


def turn(program, steps):
    """Seconds of a step. The first tenth of several wakes threads that slept meanwhile."""
    return statistics.median([program.step() for _ in range(steps)][steps // 10:])


def hctrain(arguments, residual):
    command = [arguments.hc_bench, "--step-on-demand", "--device", arguments.device, "--residual", residual]
    for name, value in arguments.model.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    command += ["--gradient-accumulation-steps", "1", "--dtype", arguments.dtype]
    return Program("hc_bench %s" % residual, command)


def torch(arguments, residual, dtype, compiled):
    command = [sys.executable, os.path.join(HERE, "torch_peer.py"), "--residual", residual, "--threads",
               str(arguments.threads), "--device", arguments.torch_device, "--dtype", dtype]
    for name, value in arguments.model.items():
        command += ["--" + name, str(value)]
    return Program("PyTorch %s" % residual, command + ["--compile"] * compiled + ["--transformers"] * arguments.transformers)


def tokens_of(arguments):
    return arguments.model["batch_size"] * arguments.model["block_size"]


def form_name(form):
    dtype, compiled = form
    return "%s %s" % (dtype, "compiled" if compiled else "eager")


def peer_of(arguments, residual):
    """What PyTorch trains beside this variant: transformers' Llama has plain residual connections."""
    return "rc" if arguments.transformers else residual


def fastest_form(arguments, residual):
    """Of PyTorch, and {form: tokens per second}, each alone; measured once."""
    rates = arguments.rates.setdefault(residual, {})
    if rates:
        return max(rates, key=rates.get), rates
    for form in FORMS:
        progress("%s: PyTorch %s" % (residual, form_name(form)))
        program = torch(arguments, residual, *form)
        for _ in range(2):
            turn(program, arguments.steps)
        seconds = min(turn(program, arguments.steps) for _ in range(4))
        program.end()
        rates[form] = tokens_of(arguments) / seconds
    return max(rates, key=rates.get), rates


def compare(arguments, residual):
    peer, form, rates = peer_of(arguments, residual), (arguments.torch_dtype, arguments.compile), {}
    if arguments.best:
        form, rates = fastest_form(arguments, peer)
    programs = [hctrain(arguments, residual), torch(arguments, peer, *form)]
    if residual != "rc":
        programs.append(hctrain(arguments, "rc"))
    rounds = []
    for number in range(arguments.warmup + arguments.rounds):
        order = programs if number % 2 == 0 else programs[::-1]
        seconds = {program: turn(program, arguments.steps) for program in order}
        if number >= arguments.warmup:
            rounds.append([seconds[program] for program in programs])
        progress("%-9s round %d of %d " % (residual, number + 1, arguments.warmup + arguments.rounds))
    progress("")
    ours, theirs = programs[0].end(), programs[1].end()
    for program in programs[2:]:
        program.end()
    if peer == residual and ours["parameters"] != theirs["parameters"]:
        fail("not the same model: %d and %d parameters" % (ours["parameters"], theirs["parameters"]))
    tokens = tokens_of(arguments)
    median = [statistics.median(column) for column in zip(*rounds)]
    speed = tokens / median[0]
    return {
        "residual": residual, "tokens_per_second": speed, "torch_tokens_per_second": tokens / median[1],
        "torch_form": form_name(form), "torch_forms": {form_name(tried): rate for tried, rate in rates.items()},
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
    parser.add_argument("--dtype", choices=["auto", "fp32", "bf16", "fp16"], default="fp32",
                        help="of activations; PyTorch's by autocast; auto: hctrain's own choice, and PyTorch's fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager PyTorch")
    parser.add_argument("--best", action="store_true", help="the fastest form of PyTorch on this CPU, see above; takes minutes a variant")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch")
    parser.add_argument("--variants", default="rc,hc,mhc,mhc_lite,shc", help="those of hc_train --list-residuals that torch_peer.py has")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--transformers", action="store_true", help="compare every variant of llama_M with the package transformers' Llama, "
                        "which has plain residual connections")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="M",
                        help="M: configs/M.conf; llama_M: configs/llama_M.conf; small: nanoGPT's recipe for CPUs. Options below change it")
    parser.add_argument("--steps", type=int, help="of a turn; default: 1, with small 100")
    for name in M:
        parser.add_argument("--" + name.replace("_", "-"), type=int)
    arguments = parser.parse_args()
    arguments.torch_dtype = "fp32" if arguments.dtype == "auto" else arguments.dtype
    arguments.rates = {}  # of PyTorch's forms, see fastest_form
    arguments.steps = arguments.steps or STEPS[arguments.preset]
    given = {name: getattr(arguments, name) for name in M if getattr(arguments, name) is not None}
    arguments.model = {**PRESETS[arguments.preset], **given}
    if arguments.transformers and arguments.preset != "llama_M":
        parser.error("--transformers is for --preset llama_M")
    return arguments


def processor():
    with open("/proc/cpuinfo") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def main():
    arguments = parse()
    rows = []
    print("| residual | tokens/s | PyTorch | its form | ratio | to rc | of GEMM | peak GiB | PyTorch | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for residual in arguments.variants.split(","):
        row = compare(arguments, residual)
        rows.append(row)
        print("| %s | %.1f | %.1f | %s | %.2f | %.3f | %.0f %% of %.0f GFLOP/s | %.2f | %.2f | %.2f |" % (
            residual, row["tokens_per_second"], row["torch_tokens_per_second"], row["torch_form"], row["ratio_to_torch"],
            row["ratio_to_rc"], 100 * row["mfu"], 1e-9 * row["gemm_rate"], row["peak_bytes"] / 2 ** 30,
            row["torch_peak_bytes"] / 2 ** 30, row["peak_bytes"] / row["torch_peak_bytes"]), flush=True)
    print("tokens/s: medians of the rounds; ratios: medians of those within a round, `to rc` to an rc that runs beside the variant. The "
          "quotient of two medians is another number where the machine's speed changes from round to round")
    print("hctrain in %s; PyTorch %s, %d threads; %s; medians of %d rounds" % (
        arguments.dtype, rows[0]["torch"], arguments.threads, processor(), arguments.rounds))
    for row in rows if arguments.best else ():
        print("PyTorch %s alone: %s tokens/s" % (row["residual"], ", ".join(
            "%s %.1f" % (form, rate) for form, rate in row["torch_forms"].items())))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
