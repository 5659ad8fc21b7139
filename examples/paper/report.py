"""report.md of paper.py: what the programs wrote as JSON, each number beside the paper's."""
import json
import math
import os
import shlex
from pathlib import Path

NAMES = {"rc": "RC", "identity": "identity", "hc": "HC", "mhc": "mHC", "mhc_lite": "mHC-lite", "krom": "KromHC", "shc": "sHC"}  # in the order of pictures
CORPORA = {"openwebtext": "OpenWebText", "fineweb_edu": "FineWeb-Edu"}
DEVICES = {"a6000": 8, "rx7900xtx": 1, "h100": 1}  # of data sheets, and how many of each
AVERAGED = 200  # iterations of the training loss that Table 1 has
MISSING = "not run yet"


def read(path):
    """A file of JSON, or None where it is not there or not whole."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def streams_of(variant):
    """In the paper's tables."""
    return 1 if variant == "rc" else 4


def measured(work):
    """The variants of which H_res is measured."""
    return [variant for variant in NAMES if variant in work.paper.variants or variant == "identity" and work.paper.baseline]


def costed(work):
    """(model, variant) of all runs."""
    return [(model, variant) for model in work.paper.models for variant in measured(work) if variant != "identity" or model == work.paper.baseline]


def paper():
    return json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))


def write_bench(work):
    """The sweep in one file, as hc_analyze --bench reads it; None before there is any."""
    cases = [read(path) for path in sorted((work.out / "throughput").glob("*-*.json"))]
    if not cases:
        return None
    path = work.out / "throughput/all.json"
    path.write_text(json.dumps({"cases": [case for case in cases if case]}), encoding="utf-8")
    return path


# ---- cells and tables

def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def beside(theirs, ours, digits=3, sign="", relative=False):
    """The paper's number, ours, and the difference. ours: a number, or words, or None for what is missing. sign: "+" to have one before positive
    numbers, too."""
    if ours is None or isinstance(ours, str):
        return f"{theirs:{sign}.{digits}f} / {ours or MISSING}"
    difference = f"{100 * (ours / theirs - 1):+.1f} %" if relative else f"{ours - theirs:+.{digits}f}"
    return f"{theirs:{sign}.{digits}f} / {ours:{sign}.{digits}f} ({difference})"


def short(path):
    """As it is written in this folder."""
    path, here = Path(path).resolve(), Path.cwd()
    return str(path.relative_to(here) if here in path.parents else path)


def option_words(name, value):
    """The words of the command line that give an option of paper.py this value."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    if isinstance(value, dict):
        return [word for key, text in value.items() for word in (flag, f"{key}={text}")]
    if name == "launcher":
        return [flag, shlex.join(value)]
    return [flag, ",".join(value) if isinstance(value, list) else str(value)]


def command(work, part):
    """What runs a part with the options that this report was made with."""
    words = ["python3", short(Path(__file__).with_name("paper.py")), "--scale", work.options.scale, "--out", short(work.out), "--only", part]
    for name, value in work.changed.items():
        words += option_words(name, value)
    return shlex.join(words + (["--", *work.more] if work.more else []))


def part(work, name, title, lines):
    """A section; where something is missing, with the command that runs it."""
    text = "\n".join(lines)
    if MISSING in text:
        narrowed = ", ".join(f"--{choice}" for choice in ("models", "corpora", "variants") if choice in work.changed)
        text += f"\nWhat has not been run yet{f' (all of it without {narrowed})' if narrowed else ''}:\n\n    {command(work, name)}\n"
    return f"## {title}\n\n{text}"


# ---- Table 1

def losses(run, iterations):
    """{"train": ..., "val": ...} of a run: numbers, or words where they are missing."""
    done = max((int(path.name[5:]) for path in run.glob("ckpt-*") if path.name[5:].isdigit()), default=0)
    if done < iterations:
        return dict.fromkeys(("train", "val"), MISSING + (f" ({done} of {iterations})" if done else ""))
    with open(run / "metrics.jsonl", encoding="utf-8") as lines:
        steps = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    validation = read(run / "validation.json")
    return {"train": sum(steps[-AVERAGED:]) / len(steps[-AVERAGED:]), "val": validation["loss"] if validation else MISSING}


def table1(work, theirs):
    columns = [column.split() for column in theirs["columns"]]
    variants = [name for name in NAMES if name in theirs]
    ours = {}
    for corpus, model, what in columns:
        for variant in variants:
            ours[variant, corpus, model, what] = losses(work.out / "runs" / f"{model}-{corpus}" / variant, work.iterations[model])[what]
    heads = [""] + [f"{CORPORA[corpus]} {model} {what}" for corpus, model, what in columns]
    rows = [[NAMES[variant]] + [beside(theirs[variant][place], ours[(variant, *column)]) for place, column in enumerate(columns)]
            for variant in variants]
    against = [[NAMES[variant]] for variant in variants[1:]]
    for row, variant in zip(against, variants[1:]):
        for place, column in enumerate(columns):
            pair = ours[(variant, *column)], ours[("rc", *column)]
            both = all(isinstance(loss, float) for loss in pair)
            row.append(beside(theirs[variant][place] - theirs["rc"][place], pair[0] - pair[1] if both else MISSING, sign="+"))
    return [theirs["source"] + ". Each cell: the paper's / ours (difference).\n", table(heads, rows), "The same as difference from RC:\n", table(heads, against)]


def losses_alone(work):
    """Of the paper's second version, whose numbers are not here."""
    runs = {(model, corpus, variant): losses(work.out / "runs" / f"{model}-{corpus}" / variant, work.iterations[model])
            for model in work.paper.models for corpus in work.paper.corpora for variant in work.paper.variants}
    rows = []
    for (model, corpus, variant), ours in runs.items():
        plain = runs[model, corpus, "rc"]
        both = variant != "rc" and all(isinstance(loss, float) for loss in (*ours.values(), *plain.values()))
        against = [f"{ours[what] - plain[what]:+.3f}" if both else "" for what in ours]
        rows.append([NAMES[variant], *(loss if isinstance(loss, str) else f"{loss:.3f}" for loss in ours.values()), *against])
    return [f"Loss at the end of training, of {', '.join(work.paper.models)}; training loss as the mean of the last {AVERAGED} iterations.\n",
            table(["", "training", "validation", "training, to RC", "validation, to RC"], rows)]


# ---- Table 2

def table2(work, theirs):
    columns = [column.split() for column in theirs["columns"]]
    rows = []
    for variant in (name for name in NAMES if name in theirs):
        row = [NAMES[variant]]
        for place, (model, corpus) in enumerate(columns):
            figures = read(work.out / "runs" / f"{model}-fineweb_edu" / variant / f"eval-{corpus}.json")
            row.append(beside(theirs[variant][place], figures and figures["word_perplexity"], 1, relative=True))
        rows.append(row)
    return [theirs["source"] + ". Each cell: the paper's / ours (difference in per cent); `word_perplexity` of hc_eval.\n",
            table(["", *theirs["columns"]], rows)]


# ---- throughput

def tokens_a_second(facts, devices):
    """By the roofline, of so many devices that have as many micro-steps each."""
    step = facts["micro_steps"] * facts["micro_step"]["seconds"] + facts["optimiser_step"]["seconds"]
    return devices * facts["micro_steps"] * facts["batch_size"] * facts["block_size"] / step


def refusal(path):
    """The words of a program that had not enough memory, or None."""
    try:
        words = path.with_suffix(".refused").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return "refused: " + words.partition("not enough memory: ")[2].partition(";")[0]


def throughput(work, theirs):
    variants = [variant for variant in NAMES if variant in work.scale.streams]
    streamed = [variant for variant in variants if variant != "rc"]
    sizes = {tuple(case.split()): f"{number:,.0f} in the paper" for case, number in theirs["auxiliary"].items()}
    rows = []
    for streams in range(1, 9):
        row = [str(streams)]
        for variant in variants:
            measured = work.out / "throughput" / f"{variant}-{streams}.json"
            facts, wanted = read(measured), streams in work.scale.streams[variant]
            row.append(f"{facts['tokens_per_second']:,.0f}" if facts else refusal(measured) or (MISSING if wanted else ""))
            counted = work.out / "costs" / f"a6000-M-{variant}-{streams}.json"
            facts = read(counted)
            if facts:
                sizes[variant, str(streams)] = f"{facts['auxiliary']:,}"
            row.append(f"{tokens_a_second(facts, 8):,.0f}" if facts else refusal(counted) or "")
        rows.append(row)
    heads = ["n"] + [f"{NAMES[variant]} {what}" for variant in variants for what in ("measured", "M by roofline, 8 x RTX A6000")]
    variant, streams = theirs["out_of_memory"]
    lines = [theirs["source"] + f". {NAMES[variant]} ran out of memory at n = {streams} there. Training tokens/s:\n", table(heads, rows)]
    lines.append("Where a run or the roofline refuses, the device's memory is too small for the model. Auxiliary parameters of model M:\n")
    lines.append(table(["n", *(NAMES[variant] for variant in streamed)],
                       [[str(n), *(sizes.get((variant, str(n)), "") for variant in streamed)] for n in range(2, 9)]))
    return lines


# ---- H_res

def over_training(run, name):
    return run["record"]["statistics"].get(name) or []


def of_checkpoint(run):
    checkpoints = [one["h"] for one in run["checkpoints"] if one.get("h")]
    return checkpoints[-1] if checkpoints else None


def widest_band(run, _):
    bands = list(zip(over_training(run, "row_max_p10"), over_training(run, "row_max_p90")))
    return max(bands, key=lambda band: band[1] - band[0], default=None)


def least_median(run, _):
    return min(over_training(run, "row_max_median"), default=None)


def least_diagonal(run, _):
    return min(over_training(run, "diagonal_fraction"), default=None)


def cosine_to_identity(run, runs):
    ends = [over_training(one, "stream_cosine")[-1:] for one in (run, runs.get("identity")) if one]
    means = [sum(end[0]) / len(end[0]) for end in ends if end]
    return means[0] - means[1] if len(means) == 2 else None


def largest_gradient(run, _):
    steps = run["record"]["steps"]
    warm = int(run["record"].get("settings", {}).get("warmup_iters", 0))
    return max((norm for place, norm in zip(steps["iter"], steps["grad_norm"]) if place > warm and norm is not None), default=None)


def largest_column_sum(run, _):
    h = of_checkpoint(run)
    return h and h["column_sum"]["max"]


def largest_product_sum(run, _):
    h = of_checkpoint(run)
    return h and h["product"]["column_sum"]["max"]


def product_norms(run, _):
    h = of_checkpoint(run)
    return h and (h["sublayers"][0]["product_norm_mean"], h["sublayers"][-1]["product_norm_mean"])


def sequence_sums(run, _):
    h = of_checkpoint(run)
    sums = [sum(column) for column in zip(*h["product"]["first_sequence"])] if h else []
    return (min(sums), max(sums)) if sums else None


def negative_entries(run, _):
    h = of_checkpoint(run)
    return h and h["negative_fraction"]


def analysed(work, model, corpus):
    """{variant: its run in analysis.json}"""
    analysis = read(work.out / "analysis" / f"{model}-{corpus}" / "analysis.json") or {"runs": []}
    return {run["config"]["residual"]: run for run in analysis["runs"]}


def observed(theirs, ours):
    """One cell: words or numbers of the paper, beside ours."""
    ours = (ours,) if isinstance(ours, float) else ours
    if isinstance(theirs, list):
        return " to ".join(beside(number, ours and ours[place]) for place, number in enumerate(theirs))
    return f"{theirs or '-'} / {MISSING if ours is None else ' to '.join(f'{number:.3f}' for number in ours)}"


def page_of(work, model, corpus):
    """The beginning of a line with a link to hc_analyze's page."""
    page = work.out / "analysis" / f"{model}-{corpus}" / "report.html"
    link = f": [pictures and all numbers]({os.path.relpath(page, work.out)})" if page.exists() else ""
    return f"Model {model}, {CORPORA[corpus]}{link}"


def h_res_alone(work):
    lines = []
    for model in work.paper.models:
        for corpus in work.paper.corpora:
            rows = []
            for variant, run in analysed(work, model, corpus).items():
                h = of_checkpoint(run)
                if h:
                    median = least_median(run, None)  # None: the run has no statistics
                    rows.append([NAMES[variant], "" if median is None else f"{median:.3f}", f"{h['identity_distance']:.3f}", f"{h['negative_fraction']:.3f}"])
            lines += [page_of(work, model, corpus) + "\n",
                      table(["", "least median of row maxima in training", "distance from the identity", "negative entries"], rows) if rows else MISSING]
    return lines


def h_res(work, theirs):
    lines = []
    for model in ("M", "L"):
        for corpus in CORPORA:
            runs = analysed(work, model, corpus)
            variants = ("rc", "hc", "mhc", "mhc_lite", "shc") if model == "L" else ("mhc", "mhc_lite", "shc")
            rows = []
            for row in (row for row in theirs if row["model"] == model):
                baseline = work.out / "runs" / f"{model}-{corpus}" / "identity"
                if row["measure"] == "cosine_to_identity" and corpus != "openwebtext" and not baseline.exists():
                    continue  # it is of one corpus only
                cells = []
                for variant in variants:
                    run = runs.get(variant)
                    ours = globals()[row["measure"]](run, runs) if run else None
                    cells.append(observed(row["paper"][variant], ours) if variant in row["paper"] else "")
                rows.append([f"{row['what']} ({row['source']})", *cells])
            lines.append(page_of(work, model, corpus) + "\n")
            lines.append(table(["", *(NAMES[variant] for variant in variants)], rows))
    return lines


# ---- costs

def hours(facts, iterations):
    return iterations * (facts["micro_steps"] * facts["micro_step"]["seconds"] + facts["optimiser_step"]["seconds"]) / 3600


def costs(work):
    settings = work.paper_settings()
    rows, totals = [], dict.fromkeys(DEVICES, 0.0)
    for model, variant in costed(work):
        row = [f"{model} {NAMES[variant]}"]
        for device in DEVICES:
            path = work.out / "costs" / f"{device}-{model}-{variant}-{streams_of(variant)}.json"
            facts = read(path)
            took = hours(facts, int(settings[model]["max_iters"])) if facts else math.nan
            totals[device] += took if variant == "identity" else len(work.paper.corpora) * took
            small = f" (micro-batch {facts['batch_size']})" if facts and facts["batch_size"] != 8 else ""
            row.append(f"{took:.1f}{small}" if facts else refusal(path) or MISSING)
        rows.append(row)
    count = len(work.paper.models) * len(work.paper.corpora) * len(work.paper.variants)
    rows.append([f"{count} runs" + (f" and the identity baseline of {work.paper.baseline}" if work.paper.baseline else "")] + [f"{total:.0f}" if math.isfinite(total) else MISSING for total in totals.values()])
    heads = ["hours of a run"] + [f"{count} x {device}" for device, count in DEVICES.items()]
    return ["Training of these models by the roofline of data sheets (hc_bench --roofline), in bf16 and four streams. They are predictions "
            "(docs/notes/gpu.md), and leave out evaluations and what several devices say to each other.\n", table(heads, rows)]


# ---- the page

def open_points(theirs):
    return table(["", "the paper", "here"], [[f"**{name}**", says, taken] for name, says, taken in theirs])


def first_line(work):
    if work.options.scale == "tiny":
        return ("**These losses cannot be compared with the paper's: they are of tiny models that saw tiny Shakespeare for "
                f"{next(iter(work.iterations.values()))} iterations. This run shows that everything works, and nothing else.**")
    if work.options.paper == "s2hc":
        return f"**The runs of s2HC's public code by hctrain, with seed {work.options.seed} and one run for each number.**"
    return f"**The paper's runs by hctrain, with seed {work.options.seed} and one run for each number, as in the paper.**"


def write(work):
    """Writes OUT/report.md, whole or not at all."""
    theirs = paper()
    if work.options.paper == "first":
        sections = ["# The paper's runs, and ours",
                    part(work, "table1", "Losses (Table 1)", table1(work, theirs["table1"])),
                    part(work, "table2", "Perplexities of other corpora (Table 2)", table2(work, theirs["table2"])),
                    part(work, "throughput", "Throughput against the number of streams", throughput(work, theirs["throughput"])),
                    part(work, "h_res", "Residual matrices", h_res(work, theirs["h_res"])),
                    part(work, "costs", "What the paper's runs cost", costs(work)),
                    "## What the paper leaves open\n\n" + open_points(theirs["open"])]
    else:
        sections = ["# The runs of s2HC's public code",
                    part(work, "table1", "Losses", losses_alone(work)),
                    part(work, "h_res", "Residual matrices", h_res_alone(work)),
                    part(work, "costs", "What the runs cost", costs(work))]
    work.out.mkdir(parents=True, exist_ok=True)
    path = work.out / "report.md"
    new = path.with_suffix(f".{os.getpid()}")  # others may write it, too
    new.write_text("\n\n".join(section.rstrip() for section in (first_line(work), *sections)) + "\n", encoding="utf-8")
    new.rename(path)
