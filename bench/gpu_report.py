#!/usr/bin/env python3
"""The report of ci/gpu.sh: from results.json, logs and timings in a folder, as far as they are there.

  bench/gpu_report.py FOLDER > report.md
"""
import collections
import json
import pathlib
import re
import shlex
import sys

BAD = ("failed", "timed out")
LAST_LINES = 8  # of a log of what failed


def read_json(folder, name):
    try:
        return json.loads((folder / (name + ".json")).read_text())
    except (OSError, ValueError):
        return None


def read_log(folder, name):
    try:
        return (folder / name).read_text(errors="replace").replace("\r", "\n").rstrip()
    except OSError:
        return ""


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows])


def indented(text):
    return "\n".join(("    " + line).rstrip() for line in text.splitlines())


def code(text):
    return f"`{str(text).replace('`', chr(39))}`"


def shell(words, environment=()):
    return " ".join([f"{name}={shlex.quote(value)}" for name, value in dict(environment).items()] + [shlex.quote(word) for word in words])


def same_fault(one, other):
    """Whether both failed for the same reason: the errors agree but for numbers and the program that reports them."""
    return "kernel" in one and "kernel" in other and all(
        re.sub(r"^\w+: |\d+", "", one[name]) == re.sub(r"^\w+: |\d+", "", other[name]) for name in ("error", "kernel"))


# ---- the head

def outcome(step):
    counts = collections.Counter(result["result"] for result in step["commands"])
    words = ", ".join(f"{counts[result]} {result}" for result in ("passed", *BAD, "left out") if counts[result])
    return words or "left out"


def summary(steps):
    return table(["step", "", "seconds", "limit"], [[step["title"], outcome(step), f"{step['seconds']:.0f}" if "seconds" in step else "under way",
                                                     f"{step['limit']:.0f}"] for step in steps])


def faults(folder, steps):
    groups = []
    for step in steps:
        for result in step["commands"]:
            if result["result"] in BAD:
                group = next((group for group in groups if same_fault(group[0][1], result)), None)
                if group:
                    group.append((step, result))
                else:
                    groups.append([(step, result)])
    return "\n\n".join(fault(folder, group) for group in groups) or "Nothing."


def fault(folder, group):
    step, result = group[0]
    lines = [f"### {step['name']}: {result['name']} {result['result']}", "", f"- error: {code(result['error'][:600])}"]
    if result["kernel"]:
        lines.append(f"- kernel: {code(result['kernel'])}")
    if result["case"]:
        lines.append(f"- smallest case that fails{' or does not end' if result['case_hangs'] else ''}: {code(result['case'])}, "
                     f"{code(shell(result['case_words'], result['case_environment']))}, log `{result['case_log']}`")
    lines.append(f"- command: {code(shell(result['words'], result['environment']))}, log `{result['log']}`, whose end is")
    lines += ["", indented("\n".join(line[:200] for line in read_log(folder, result["log"]).splitlines()[-LAST_LINES:]))]
    if len(group) > 1:
        lines += ["", "The same in " + ", ".join(f"{step['name']}: {result['name']}" for step, result in group[1:]) + "."]
    return "\n".join(lines)


# ---- the steps

def devices(folder, step):
    parts = [(result, read_log(folder, result["log"])) for result in step["commands"] if result["result"] == "passed"]
    return "\n\n".join(f"{code(shell([pathlib.Path(result['words'][0]).name, *result['words'][1:]]))}\n\n{indented(text)}" for result, text in parts)


def cell(result):
    return f"{result['seconds']:.1f} s" if result["result"] == "passed" else result["result"]


def compiled(folder, step):
    found = {tuple(result["name"].rsplit("-", 1)): cell(result) for result in step["commands"]}
    types = sorted({dtype for _, dtype in found})
    names = list(dict.fromkeys(name for name, _ in found))
    return ("Time to compile all programs of a training step of a small model, but for those that an earlier command has compiled.\n\n"
            + table(["residual", *types], [[name, *(found.get((name, dtype), "") for dtype in types)] for name in names]))


def checks(folder, step):
    rows = []
    for result in step["commands"]:
        lines = [line for line in read_log(folder, result["log"]).splitlines() if re.match(r"largest errors|.*\d+ cases, |step  |\[  PASSED|all losses", line)]
        rows.append([result["name"], cell(result), code(lines[0][:160]) if lines and result["result"] == "passed" else ""])
    return table(["check", "", "what it printed"], rows)


def per_kernel(rows, calls):
    """{name: [calls, seconds, limit]} of rows of kernels, of which some have several rows."""
    kernels = {}
    for row in rows:
        entry = kernels.setdefault(row["name"], [0, 0.0, row.get("limit", "")])
        entry[0] += row[calls]
        entry[1] += row["seconds"]
    return kernels


def against_roofline(profile, roofline):
    """The clock beside the roofline: milliseconds of a step with one micro-step, by kernel, most measured first."""
    steps = profile["profiled_steps"]
    measured = per_kernel(profile["kernels"], "calls")
    predicted = per_kernel([row for row in roofline["kernels"] if row["launches"]] if roofline else [], "launches")
    rows, sums = [], [0.0, 0.0]
    for name in sorted(measured.keys() | predicted.keys(), key=lambda name: -measured.get(name, [0, 0.0])[1]):
        calls, seconds, _ = measured.get(name, [0, 0.0, ""])
        launches, expected, limit = predicted.get(name, [0, 0.0, ""])
        sums = [sums[0] + seconds / steps, sums[1] + expected]
        rows.append([code(name), f"{calls / steps:g}", launches, f"{1e3 * seconds / steps:.3f}", f"{1e3 * expected:.3f}",
                     f"{seconds / steps / expected:.2f}" if expected and seconds else "", limit])
    rows.append(["in all", "", "", f"{1e3 * sums[0]:.3f}", f"{1e3 * sums[1]:.3f}", f"{sums[0] / sums[1]:.2f}" if sums[1] else "", ""])
    return table(["kernel", "launches", "in the roofline", "measured ms", "predicted ms", "ratio", "limited by"], rows)


def profiles(folder, step):
    notes = {result["name"]: result for result in step["commands"]}
    text = []
    for residual in ("rc", "shc"):
        profile, roofline = read_json(folder, "profile-" + residual), read_json(folder, "roofline-" + residual)
        if not profile:
            continue
        seconds = profile["seconds"]["step"]["median"]
        beside = f"beside the data sheet of {roofline['title']}" if roofline else "without a roofline estimate: " + notes.get(
            "roofline-" + residual, {}).get("error", "it was not made")
        text.append(f"{residual} in {profile['dtype']}: a step with one micro-step of {profile['batch_size']} x {profile['block_size']} tokens takes {1e3 * seconds:.1f} ms, "
                    f"median of {profile['profiled_steps']} with the profile, {profile['tokens_per_second']:.0f} tokens/s; GEMMs by {profile['gemm']}, "
                    f"{1e-12 * profile['gemm_rate']:.2f} TFLOP/s alone; attention on {profile['attention']}; {profile['planned_bytes'] / 2 ** 30:.2f} GiB planned; {beside}.\n\n"
                    + against_roofline(profile, roofline))
    return "\n\n".join(text)


def peers(folder, step):
    rows = []
    for result in step["commands"]:
        for row in read_json(folder, result["name"]) or []:
            rows.append([row["residual"], row["torch_form"], f"{row['tokens_per_second']:.0f}", f"{row['torch_tokens_per_second']:.0f}",
                         f"{row['ratio_to_torch']:.2f}", f"{row['peak_bytes'] / 2 ** 30:.2f}", f"{row['torch_peak_bytes'] / 2 ** 30:.2f}"])
    return ("The same model (`bench/torch_peer.py`), a step each in turn; bf16 of PyTorch is by autocast. A ratio above 1: hctrain is faster.\n\n"
            + table(["residual", "PyTorch's form", "tokens/s", "PyTorch", "ratio", "GiB", "PyTorch"], rows)) if rows else ""


def gemms(folder, step):
    text = []
    for residual in ("rc", "shc"):
        result = read_json(folder, "gemm-" + residual)
        rows = [[code(row["name"]), row["calls"], f"{1e6 * row['seconds']:.1f}", f"{1e6 * row['torch_seconds']:.1f}",
                 f"{1e-12 * row['flops'] / row['seconds']:.2f}" if row["seconds"] else "", f"{1e-12 * row['flops'] / row['torch_seconds']:.2f}",
                 f"{row['torch_seconds'] / row['seconds']:.2f}" if row["seconds"] else ""] for row in result["rows"]] if result else []
        if rows:
            text.append(f"{residual} in {result['dtype']}:\n\n" + table(["GEMM", "calls", "us", "torch.matmul", "TFLOP/s", "torch.matmul", "ratio"], rows))
    return ("The GEMMs of the profile above. hctrain's have their epilogues in them, but not the sums of split-K (`mma_parts`). A ratio above 1: hctrain is faster.\n\n" + "\n\n".join(text)) if text else ""


def speeds(folder, step):
    rows = []
    for result in step["commands"]:
        bench = read_json(folder, result["name"])
        for case in bench["cases"][1:] if bench else []:
            rows.append([case["residual"], case["n_streams"], f"{1e3 * case['seconds']['step']['median']:.1f}", f"{case['tokens_per_second']:.0f}",
                         f"{case['ratio_to_rc']:.3f}", f"{100 * case['mfu']:.0f} %", f"{case['planned_bytes'] / 2 ** 30:.2f}"])
    return ("In bf16, a step in turn with rc; *of GEMM*: the model's FLOPs relative to the rate of GEMMs alone.\n\n"
            + table(["residual", "n", "step ms", "tokens/s", "to rc", "of GEMM", "GiB"], rows)) if rows else ""


WRITERS = {"devices": devices, "compile": compiled, "self-tests": checks, "golden": checks, "profile": profiles, "torch": peers, "gemm": gemms,
           "bits": checks, "speed": speeds}


def section(folder, step):
    parts = [step["note"], WRITERS[step["name"]](folder, step)]
    late = [result["name"] for result in step["commands"] if result.get("error") == "no time was left"]
    other = [f"{result['name']}: {result['error']}" for result in step["commands"] if result["result"] == "left out" and result["name"] not in late]
    parts += ["No time was left for " + ", ".join(late) + "."] * bool(late) + ["Left out: " + "; ".join(other) + "."] * bool(other)
    return f"## {step['title']}\n\n" + ("\n\n".join(part for part in parts if part) or "Nothing was measured.")


def report(folder, results):
    steps = results["steps"]
    used = sum(step.get("seconds", 0.0) for step in steps) / 60
    head = f"""# What a GPU does with hctrain

Measured by `ci/gpu.sh` on {results['date']}, device `{results['device']}`, model `{results['model']}`, in {used:.1f} of {results['minutes']:g} minutes.

{summary(steps)}

## What failed

{faults(folder, steps)}
"""
    return head + "".join(f"\n{section(folder, step)}\n" for step in steps)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    print(report(folder, json.loads((folder / "results.json").read_text())), end="")


if __name__ == "__main__":
    main()
