#!/usr/bin/env python3
"""Tables of the documents that are counted or measured by the programs.

  bench/tables.py roofline               docs/notes/gpu.md: a training step of model M on GPUs, estimated (hc_bench --roofline)
  bench/tables.py memory                 docs/notes/memory.md: settings with which pretrained models fit into 8, 16 and 24 GB (hc_train --fit)
  bench/tables.py adapters               docs/pretrained.md: with which frozen weights adapters of pretrained models fit into 6 to 24 GB (the same)
  bench/tables.py family                 docs/variants.md: all residual connections in one table, with a step of model M on an A6000, estimated
  bench/tables.py variants               docs/variants.md: H_res and speed of each residual variant. Needs ci/study.sh's runs
                                         (--study, out/study)
  bench/tables.py fair                   docs/study.md: what ci/study.sh --budget fair has found (out/fair); also nanogpt, modern and s2hc,
                                         and depth (bench/depth_*.tsv; out/depth_*, or bench/depth_h.json, for H_res)
  bench/tables.py variants --measure     also measures the speeds (speed.json in --study), some minutes on an idle machine

Prints the tables; with --write puts them into the document. BUILD (build) in the environment names the folder with the programs.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src" / "python"))
from hctrain import paired
from family import FAMILY
import depth

BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build"))
END = "<!-- to here -->\n"


def split(document, script):
    """Returns the text before and after the lines of the document (a Path) that the script writes."""
    begin = f"<!-- {script} writes from here -->\n"
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{document}: no lines between \"{begin.strip()}\" and \"{END.strip()}\"")
    return before + found, ended + after


def write_between(document, script, text):
    """Replaces the lines of the document that the script wrote before by text (whole lines)."""
    before, after = split(document, script)
    document.write_text(before + text + after, encoding="utf-8")


def listed(build):
    """(name, numbers of streams, description) of each residual variant, from the 12-wide columns of `hc_train --list-residuals`."""
    lines = subprocess.run([build / "hc_train", "--list-residuals"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [(line[:12].strip(), line[12:24].strip(), line[24:]) for line in lines]


@dataclasses.dataclass
class Connection:
    """A row of `hc_train --list-residuals`, or one with an option of its own."""
    summary: str
    source: str
    promises: str
    options: tuple  # of hc_train and hc_bench


def parse_description(text):
    """(summary, source, promises) of a description: "summary (source); exact promises; settings: ..."."""
    text, *rest = text.split("; ")
    promises = [one.removeprefix("exact ") for one in rest if one.startswith("exact ")]
    depth = 0
    for place in range(len(text) - 1 if text.endswith(")") else -1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if depth == 0:
            return text[:place].rstrip(), text[place + 1:-1], ", ".join(promises)
    return text, "", ", ".join(promises)


def connections(build):
    """{name: Connection} of all residual connections that the programs have."""
    found = {name: Connection(*parse_description(text), ("--residual", name)) for name, _, text in listed(build)}
    options = subprocess.run([build / "hc_train", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    if "read-delay" in options and "mhc" in found:
        mhc = found["mhc"]
        found["mhc + read_delay"] = Connection("mhc, read with the H_pre of the sublayer before", "DeepSeek-V4.1, arXiv 2609.19969", mhc.promises,
                                               (*mhc.options, "--read-delay"))
    return found


def bench(*arguments, command=(BUILD / "hc_bench",)):
    """Returns the JSON of hc_bench or compare.py."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "bench.json"
        subprocess.run([*command, *arguments, "--json", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(path.read_text())


def table(heads, rows, align="---", texts=1):
    """The first `texts` columns are aligned to the left, the others as `align` says."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * texts + f" {align} |" * (len(heads) - texts)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


# ---- roofline

DEVICES = ["a6000", "h200", "mi300x", "rx7900xtx", "arc770"]
MODEL = ["--roofline", "--config", ROOT / "configs" / "M.conf", "--dtype", "bf16"]
LARGE = 0.005  # share of a micro-step's time from which on a kernel counts as large


def roofline():
    """A row per device and variant: 8 x 1024 tokens a micro-step in bf16, two micro-steps a step."""
    rows, modules = [], []
    for device in DEVICES:
        for variant in ("rc", "shc"):
            facts = bench(*MODEL, "--as", device, "--residual", variant, "--batch-size", "8", "--gradient-accumulation-steps", "2")
            micro, optimizer = facts["micro_step"], facts["optimiser_step"]
            own = [row for row in facts["parts"] if row["step"] == "micro_step"]
            frame = sum(row["bytes"] for row in facts["parts"] if row["part"] == "hyper-connections") / (2 * facts["n_layer"])
            narrow = sum(0 < row["groups"] < 2 * facts["cores"] for row in facts["kernels"]
                         if row["step"] == "micro_step" and row["seconds"] >= LARGE * micro["seconds"])
            seconds = micro["seconds"] + optimizer["seconds"] / facts["micro_steps"]
            rows.append([device, variant, micro["launches"], micro["waits"], f"{1e-6 * micro['bytes']:,.0f}", f"{1e-6 * frame:.0f}", narrow,
                         f"{1e3 * micro['seconds']:.1f}", f"{1e3 * optimizer['seconds']:.1f}",
                         f"{round(facts['batch_size'] * facts['block_size'] / seconds, -2):,.0f}"])
            if (device, variant) == ("a6000", "shc"):
                modules = [[row["part"], f"{1e3 * row['seconds']:.1f}"] for row in sorted(own, key=lambda row: -row["seconds"])]
    heads = ["device", "residual", "launches", "waits", "MB", "MB a sublayer", "narrow", "ms a micro-step", "ms optimizer", "tokens/s"]
    return "\n" + table(heads, rows) + "\n" + table(["module, shc on a6000", "ms a micro-step"], modules) + "\n"


# ---- memory

# Shapes of pretrained models, as their config.json has them.
PRETRAINED = {
    "Qwen3-0.6B": {"n_embd": 1024, "n_layer": 28, "n_head": 16, "n_kv_head": 8, "head_dim": 128, "mlp_width": 3072, "vocab_size": 151936,
                   "qk_norm": "true"},
    "Qwen3-1.7B": {"n_embd": 2048, "n_layer": 28, "n_head": 16, "n_kv_head": 8, "head_dim": 128, "mlp_width": 6144, "vocab_size": 151936,
                   "qk_norm": "true"},
}
ADAPTED = {
    "SmolLM2-1.7B": {"n_embd": 2048, "n_layer": 24, "n_head": 32, "mlp_width": 8192, "vocab_size": 49152},
    "Qwen3-1.7B": PRETRAINED["Qwen3-1.7B"],
    "Qwen3-4B": {"n_embd": 2560, "n_layer": 36, "n_head": 32, "n_kv_head": 8, "head_dim": 128, "mlp_width": 9728, "vocab_size": 151936,
                 "qk_norm": "true"},
    "Llama-3.1-8B": {"n_embd": 4096, "n_layer": 32, "n_head": 32, "n_kv_head": 8, "mlp_width": 14336, "vocab_size": 128256, "tie_embeddings": "false"},
}
LLAMA = ["--norm=rmsnorm", "--position=rope", "--mlp=swiglu", "--bias=false", "--tie-embeddings=true"]
STEP = ["--block-size=1024", "--batch-size=8", "--gradient-accumulation-steps=4"]
SHC = ["--residual=shc", "--n-streams=4"]
TRAINED = {"all, with rc": ["--residual=rc"], "all, with shc and 4 streams": SHC,
           "only shc": [*SHC, r"--freeze=\.(attn|mlp)\.|wte|ln_"]}
SIZES = {8: "7.5GiB", 16: "15.5GiB", 24: "23.5GiB"}  # half a GiB for the driver and a screen


def fit(shape, size, *options):
    """The options that hc_train --fit chooses, and the memory of the plan; or why nothing fits, and what the smallest plan needs."""
    shape = [f"--{name.replace('_', '-')}={value}" for name, value in shape.items()]
    run = subprocess.run([BUILD / "hc_train", f"--fit={size}:rx7900xtx", *LLAMA, *shape, *STEP, *options], stderr=subprocess.PIPE, text=True)
    if run.returncode:
        least = re.search(r"nothing fits into .*: the smallest plan needs (\S+ \S+), with", run.stderr)
        if not least:
            raise SystemExit(run.stderr)
        return "nothing", least[1]
    chosen = re.search(r"^fit +\S+ \S+: (.*)$", run.stderr, re.M)[1].replace(" --dtype bf16", "")
    return f"`{chosen}`", re.search(r"in all +(\S+ \S+)", run.stderr)[1]


def memory():
    """A row per model, connection and size: 32 x 1024 tokens a step in bf16."""
    rows = []
    for model, shape in PRETRAINED.items():
        for name, options in TRAINED.items():
            for gigabytes, size in SIZES.items():
                rows.append([model, name, f"{gigabytes} GB", *fit(shape, size, *options)])
    return "\n" + table(["model", "what is trained", "GPU", "options", "memory; of the smallest plan, if none fits"], rows, "---", 4) + "\n"


def adapters():
    """A row per model: for each size the widest weights with which adapters of rank 16 fit, and the micro-batch."""
    rows = []
    for model, shape in ADAPTED.items():
        row = [model]
        for gigabytes in (6, 8, 12, 16, 24):
            fitting = []
            for kept in ("bf16", "int8", "nf4"):
                chosen, _ = fit(shape, f"{gigabytes - 0.5}GiB", "--residual=rc", "--lora-rank=16", "--dtype=bf16", f"--frozen-weights={kept}")
                if chosen != "nothing":
                    more = ["recompute"] if "recompute" in chosen else []
                    more += ["moments"] if "moments" in chosen else []
                    fitting.append((len(more), " ".join([kept, re.search(r"--batch-size (\d+)", chosen)[1], *more])))
            # the widest of all, and the widest that needs no more than its own weights
            row.append("; ".join(dict.fromkeys(text for _, text in (fitting[:1] + [one for one in fitting if one[0] == 0][:1]))) or "nothing")
        rows.append(row)
    return "\n" + table(["of 1024 tokens, rank 16", *(f"{size} GB" for size in (6, 8, 12, 16, 24))], rows, "---", 1) + "\n"


# ---- all connections


def family():
    """A row for each, of model M with the streams that it has by default, 8 x 1024 tokens a micro-step in bf16."""
    rows, plain = [], None
    for name, connection in connections(BUILD).items():
        facts = bench(*MODEL, "--as", "a6000", "--batch-size", "8", "--gradient-accumulation-steps", "1", *connection.options)
        plain = plain or facts
        sublayers, added = 2 * facts["n_layer"], facts["parameters"] - plain["parameters"]
        moved = sum(row["bytes"] for row in facts["parts"] if row["part"] == "hyper-connections") / facts["tokens"] / sublayers
        row = [connection.promises.replace("row sums, column sums, spectral norms, signs", "doubly stochastic"), connection.source, f"{100 * added / plain['parameters']:.2f}", "", f"{1e-3 * moved:.1f}",
               f"{1e3 * (facts['micro_step']['seconds'] + facts['optimiser_step']['seconds']):.1f}"]
        words = FAMILY.get(name)
        if words:
            row[3] = f"{3e-6 * sublayers * facts['n_embd'] * words.work(facts['n_streams'], facts['n_embd'], facts['n_layer']):.1f}"
        rows.append([f"`{name}`", *([words.formula, words.parameters, words.public_code] if words else [""] * 3), *row])
    heads = ["`--residual`", "formula", "parameters a sublayer", "public code", "exact", "source", "parameters at M, %", "MFLOP a token", "KB a sublayer",
             "ms a step"]
    return table(heads, rows, "---:", 6)


# ---- variants

STREAMS = range(2, 9)
TIMED_STREAMS = (2, 4, 8)
SLOW = [("mhc_lite", 8)]  # 40320 permutations: the CPU takes minutes
TIMED = ["--config", ROOT / "configs" / "tiny.conf", "--vocab-size", "256", "--device", "pocl", "--steps", "20", "--warmup", "3"]


def variants():
    """{name: numbers of streams} of all variants but rc."""
    found = {}
    for name, takes, _ in listed(BUILD):
        found[name] = list(STREAMS) if "to" in takes else [int(word) for word in takes.replace(",", "").replace("or", "").split()]
    for without_matrices in ("rc", "gated", "attnres", "mudd", "dense", "laurel", "dar"):
        found.pop(without_matrices, None)
    return found


def distance(runs):
    of = [run["checkpoints"][-1]["h"] for run in runs.values()]
    return [f"{statistics.mean(h['identity_distance'] for h in of):.3g}",
            f"{statistics.mean(h['sublayers'][-1]['stream_cosine'] for h in of):.2f}",
            f"{statistics.mean(h['sublayers'][-1]['product_second_mean'] for h in of):.3f}"]


def measured(study):
    runs = {}
    for run in json.loads((study / "report" / "analysis.json").read_text())["runs"]:
        if run["checkpoints"][-1].get("h"):
            runs.setdefault(run["config"]["residual"], {})[run["name"].rpartition("-")[2]] = run
    rows = [[f"`{name}`", *distance(of)] for name, of in runs.items()]
    head = ["", "from I", "cosine, last sublayer", "second singular value"]
    return "\nAfter 2000 iterations of the study:\n\n" + table(head, rows, "---:")


def speeds(study):
    cases = {(case["residual"], case["n_streams"]): case["tokens_per_second"] for case in json.loads((study / "speed.json").read_text())["cases"]}
    plain = cases["rc", 1]
    rows = [[f"`{name}`"] + [f"{cases[name, n] / plain:.2f}" if (name, n) in cases else "" for n in TIMED_STREAMS] for name in variants()]
    return f"\nTokens a second, relative to rc ({plain:.0f}):\n\n" + table(["n ="] + [str(n) for n in TIMED_STREAMS], rows, "---:")


def measure(study):
    wanted = ["rc"] + [f"{name}:{n}" for name, takes in variants().items() for n in TIMED_STREAMS if n in takes and (name, n) not in SLOW]
    (study / "speed.json").write_text(json.dumps(bench(",".join(wanted), *TIMED, command=(ROOT / "bench" / "compare.py", "--hc-bench", BUILD / "hc_bench")), indent=1) + "\n")


# ---- sweeps

SWEEPS = ("nanogpt", "modern", "fair")


def sweep(name):
    """hc_sweep's table; below fair's, its picture."""
    heads, _, *rows = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in (ROOT / "out" / name / "table.md").read_text().splitlines()]
    kept = [place for place, head in enumerate(heads) if head not in ("seeds", "deviation", "better than")]  # table.md and pairs.tsv have these
    heads, *rows = [[row[place] for place in kept] for row in (heads, *rows)]
    return table(["connection", *heads[1:]], rows, "---:") + "\n![Differences to rc and identity with their intervals](images/fair.svg)\n" * (name == "fair")


# ---- the settings of s2HC's text and code

SETTINGS = {"": "the text's", "hc_start=layer": "`hc_start layer`", "hc_init=litgpt": "`hc_init litgpt`",
            "decay_all=true+decay_hc_gain=one": "`decay_all`, `decay_hc_gain one`", "stream_reduce=sum_norm": "`stream_reduce sum_norm`",
            "freeze_gamma=false": "gamma trained", "init=litgpt": "`init litgpt`"}
NO_EFFECT = ("hc+hc_norm_eps=0", "hc+h_res_transposed=true")  # which the page says in a sentence


def interval(values, base):
    """The mean difference of numbers by seeds, with its 95 % interval."""
    found = paired.difference(values, base)
    return f"{found.mean:+.4f} ± {found.half_width(1):.4f}" if found else ""


def s2hc():
    """Losses of bench/s2hc.tsv, and H_res at the end of each run (out/s2hc), over its last micro-batch and all sublayers."""
    losses, distances = {}, {}
    for line in (ROOT / "bench" / "s2hc.tsv").read_text().splitlines():
        if line.count("\t") == 4 and not line.startswith(("#", "residual\t")):
            choice, seed, loss = line.split("\t")[:3]
            last = json.loads((ROOT / "out" / "s2hc" / f"residual={choice},seed={seed}" / "h_statistics.jsonl").read_text().splitlines()[-1])
            for values, value in ((losses, float(loss)), (distances, statistics.fmean(last["identity_distance"]))):
                values.setdefault(choice, {})[seed] = value
    rows, order = [], list(SETTINGS)
    for choice in sorted((one for one in losses if not one.endswith(NO_EFFECT)), key=lambda one: (one[:3] != "shc", order.index(one[4:]) if one[4:] in order else len(order))):
        residual, _, changed = choice.partition("+")
        against = [interval(values[choice], values.get(residual, {})) if changed else "" for values in (losses, distances)]
        means = [statistics.fmean(values[choice].values()) for values in (losses, distances)]
        rows.append([f"`{residual}`", SETTINGS.get(changed, "the code's"), f"{means[0]:.4f}", against[0], f"{means[1]:.3f}", against[1]])
    return table(["connection", "setting", "loss", "loss, to the text's", "distance from the identity", "distance, to the text's"], rows, "---:", 2)


# ---- depth


def depths():
    """(text, SVG) of the depth study."""
    (heads, rows), sentences, (h_heads, h_rows), picture = depth.study(ROOT)
    text = table(heads, rows, "---:") + "\n" + sentences + "\n![Gains over rc, and H_res, against depth](images/depth.svg)\n"
    return text + ("\n" + table(h_heads, h_rows, "---:") if h_rows else ""), picture


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["roofline", "memory", "adapters", "family", "variants", "s2hc", "depth", *SWEEPS])
    parser.add_argument("--study", type=pathlib.Path, default=ROOT / "out" / "study", help="folder of ci/study.sh's runs (out/study)")
    parser.add_argument("--measure", action="store_true", help="measure speeds first")
    parser.add_argument("--write", action="store_true", help="write the tables into the document")
    arguments = parser.parse_args()
    if arguments.table == "roofline":
        document, text = ROOT / "docs" / "notes" / "gpu.md", roofline()
    elif arguments.table == "adapters":
        document, text = ROOT / "docs" / "pretrained.md", adapters()
    elif arguments.table == "memory":
        document, text = ROOT / "docs" / "notes" / "memory.md", memory()
    elif arguments.table == "family":
        document, text = ROOT / "docs" / "variants.md", family()
    elif arguments.table == "s2hc":
        document, text = ROOT / "docs" / "study.md", s2hc()
    elif arguments.table == "depth":
        document = ROOT / "docs" / "study.md"
        text, picture = depths()
    elif arguments.table in SWEEPS:
        document, text = ROOT / "docs" / "study.md", sweep(arguments.table)
    else:
        if arguments.measure:
            measure(arguments.study)
        document, text = ROOT / "docs" / "variants.md", measured(arguments.study) + speeds(arguments.study) + "\n"
    if arguments.write and arguments.table == "fair":
        shutil.copy(ROOT / "out" / "fair" / "differences.svg", ROOT / "docs" / "images" / "fair.svg")
    if arguments.write and arguments.table == "depth":
        (ROOT / "docs" / "images" / "depth.svg").write_text(picture, encoding="utf-8")
    if arguments.write:
        write_between(document, f"bench/tables.py {arguments.table}", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
