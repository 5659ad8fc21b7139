"""What a report is about: the runs and checkpoints that were named, as docs/analysis.md describes analysis.json."""
from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Iterator

from .. import programs
from ..checkpoints import LARGEST_JSON, Tensors
from ..files import Error, printable, read_object, reading, shown
from ..records import METRICS, STATISTICS, Table
from ..runs import SETTINGS, checkpoints_in, read_run

Json = Any  # an object, array, text or number of analysis.json

EVALUATION = re.compile(r"eval-([A-Za-z0-9._-]+)\.json", re.ASCII)
CHECKPOINT = re.compile(r"ckpt-\d+", re.ASCII)
OF_CONNECTION = re.compile(r"\b(hc_(attn|mlp|head)|mudd|dense|value_embed|ve_gate)\.|\b(stream_scale|lambda_(resid|x0))\b")  # names of parameters that a plain model has not
WHEN_AND_WHERE = ("seed", "log_interval", "statistics_interval", "eval_interval", "checkpoint_interval", "keep_checkpoints")  # settings that repeats differ in
SHOWN = ("checkpoints", "record.settings", "record.documents", "record.tasks", "record.steps.iter", "record.evaluations.iter", "record.statistics.iter")


def member(value: Json, path: str) -> Json:
    """What is at a path such as "record.final.val_loss"; None: nothing."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def number(value: Json, path: str = "") -> float:
    """The number that the value is, or has at a path; nan: it is none."""
    found = member(value, path) if path else value
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) < 1e300 else math.nan


def clean(value: Json) -> Json:
    """The value of a file that anyone may have written, with printable texts, and None in place of numbers that are infinite (1e999)."""
    if isinstance(value, dict):
        return {printable(name): clean(one) for name, one in value.items()}
    if isinstance(value, list):
        return [clean(one) for one in value]
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_clean(path: Path | str) -> Json:
    try:
        return clean(read_object(path, LARGEST_JSON, lenient=True))
    except RecursionError:
        raise Error(f"{printable(path)}: too many brackets within one another") from None


def _version_of(checkpoint: Path) -> tuple[tuple[int, int], ...]:
    """What changes when another checkpoint gets the name."""
    files = (checkpoint / name for name in ("config.json", "model.safetensors"))
    return tuple((one.st_ino, one.st_mtime_ns) for one in (path.stat() for path in files if path.exists()))


@dataclass
class Measuring:
    """How checkpoints are measured, by hc_probe."""

    data_dir: str | None  # folder of token files; None: only what runs have logged is read
    split: str = "val"
    samples: int = 1024
    batch_size: int = 8
    device: str = "auto"
    all_checkpoints: bool = False  # of a run; else its newest
    known: dict[Any, Json] = field(default_factory=dict)  # what was measured before, by path and version

    def measure(self, checkpoint: Path) -> Json:
        """What hc_probe --measure writes of it."""
        key = checkpoint, _version_of(checkpoint)
        if key not in self.known:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder, "measured.json")
                command = [programs.path("hc_probe"), "--measure", "--checkpoint", checkpoint, "--data-dir", self.data_dir or "", "--split", self.split,
                           "--samples", str(self.samples), "--batch-size", str(self.batch_size), "--device", self.device, "--out", out]
                if subprocess.run([str(word) for word in command], env=programs.environment(), check=False).returncode:
                    raise Error(f"hc_probe could not measure {printable(checkpoint)}")
                self.known[key] = read_object(out, LARGEST_JSON)
        return self.known[key]


# ---- one run or checkpoint


def _column(values: Any) -> list[Json]:
    """Numbers, or rows of numbers, with None where there is none."""
    return [_column(value) if value.ndim else float(value) if math.isfinite(value) else None for value in values]


def _columns(table: Table, names: Iterable[str]) -> Json:
    return {"iter": table["iter"].tolist(), **{name: _column(table[name]) for name in names if name in table}}


def _record(folder: Path) -> Json:
    """What the run has logged; of a folder without logs and settings only evaluations."""
    record: Json = {"steps": {"iter": []}, "evaluations": {"iter": []}, "statistics": {"iter": []}, "final": {}, "settings": {}, "documents": {}, "tasks": {}}
    if any((folder / name).exists() for name in (SETTINGS, METRICS, STATISTICS)):
        run = read_run(folder, skip_damaged=True)
        record["steps"] = _columns(run.metrics, ("loss", "grad_norm", "tokens_per_sec"))
        record["evaluations"] = _columns(run.evaluations, ("train_loss", "val_loss", "time", "val_bits_per_byte"))
        record["statistics"] = _columns(run.statistics, [name for name in run.statistics if name != "iter"])
        end = run.summary
        found = {"train_loss": end.train_loss, "tokens_per_sec": end.tokens_per_sec, "val_loss": end.val_loss, "best_val_loss": end.best_val_loss}
        record["final"] = {name: value for name, value in found.items() if math.isfinite(value)}
        if end.iteration:
            record["final"]["iter"] = end.iteration
        if "val_loss" in record["final"]:
            last = {name: values[-1] for name, values in record["evaluations"].items()}
            record["final"].update({"val_iter": last["iter"], "val_time": last["time"], "bits_per_byte": last.get("val_bits_per_byte")})
        record["settings"] = clean(run.settings)
        record["device"] = run.device
        for damage in run.damage:
            print(f"warning  {printable(damage.path)}: lines that cannot be read are left out: {damage.lines}; the first is line {damage.first}", file=sys.stderr)
    for path in sorted(folder.iterdir()):
        if name := EVALUATION.fullmatch(path.name):
            found = _read_clean(path)
            if isinstance(found.get("results"), dict):  # of lm-evaluation-harness: {task: {"acc,none": ...}}
                record["tasks"].update({task: {metric.partition(",")[0]: value for metric, value in values.items()}
                                        for task, values in found["results"].items() if isinstance(values, dict)})
            else:  # of hc_eval; those with a task are of earlier versions
                record["tasks" if isinstance(found.get("task"), str) else "documents"][name[1]] = found
    return record


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").exists()


def _parameters(checkpoint: Path) -> Json:
    weights = checkpoint / "model.safetensors"
    sizes = {name: math.prod(entry.shape) for name, entry in Tensors(weights).entries.items()} if weights.exists() else {}
    return {"total": sum(sizes.values()), "auxiliary": sum(size for name, size in sizes.items() if OF_CONNECTION.search(name))} if sizes else None


def _read(path: Path, measuring: Measuring) -> Json:
    """A run, or a checkpoint alone."""
    run: Json = {"name": printable(os.path.basename(os.path.abspath(path))), "path": printable(path), "config": None, "parameters": None, "record": None, "checkpoints": []}
    checkpoints: list[tuple[Path, int | None]] = [(path, None)]
    if not _is_checkpoint(path):
        run["record"] = _record(path)
        found = checkpoints_in(path)
        checkpoints = [(one, int(one.name[5:])) for one in (found if measuring.all_checkpoints else found[-1:])]
    for checkpoint, iteration in checkpoints:
        run["config"] = _read_clean(checkpoint / "config.json")
        run["parameters"] = _parameters(checkpoint)
        if measuring.data_dir and (measured := measuring.measure(checkpoint)):
            run["checkpoints"].append({"path": printable(checkpoint), "iter": iteration, **measured})
    return run


# ---- all of them


def by_value(name: str) -> list[Any]:
    """Sorts names with the numbers in them by value: shc-2 before shc-10."""
    return [int(part) if part.isdecimal() and part.isascii() else part for part in re.split(r"([0-9]{1,18})", name)]


def _is_run(folder: Path, evaluated: bool) -> bool:
    """Whether it is the folder of a run; `evaluated`: also where nothing but evaluations is."""
    return any(path.name in (METRICS, STATISTICS, SETTINGS) or CHECKPOINT.fullmatch(path.name) or (evaluated and EVALUATION.fullmatch(path.name))
               for path in folder.iterdir())


def _runs_at(path: Path, waits: bool) -> Iterator[Path]:
    """The run or checkpoint at the path, or the runs in that folder."""
    if waits and not path.exists():
        print(f"waiting  {printable(path)}: it is not there yet", file=sys.stderr)
        return
    if not path.is_dir():
        raise Error(f"there is no folder {printable(path)}")
    if _is_checkpoint(path) or _is_run(path, False):
        yield path
        return
    inside = sorted((one for one in path.iterdir() if one.is_dir() and not _is_checkpoint(one) and _is_run(one, True)), key=lambda one: by_value(one.name))
    if inside:
        yield from inside
    elif _is_run(path, True):
        yield path
    elif waits:
        print(f"waiting  {printable(path)}: no run is here yet", file=sys.stderr)
    else:
        raise Error(f"{printable(path)}: no run is here: neither this folder nor one in it has {METRICS}, {STATISTICS}, {SETTINGS}, eval-NAME.json or ckpt-N of a run, "
                    "and it has no config.json of a checkpoint")


def _unify_data(runs: list[Json]) -> None:
    """A folder of data that runs name by several paths gets the first one's path in all of them, so that it counts as the same. Where it is not on this
    machine, paths are compared as texts."""
    first: list[str] = []
    for run in runs:
        path = member(run, "record.settings.data_dir")
        if isinstance(path, str) and path not in first:
            known = next((one for one in first if os.path.exists(one) and os.path.exists(path) and os.path.samefile(one, path)), None)
            if known is None:
                first.append(path)
            else:
                run["record"]["settings"]["data_dir"] = known


def _number_kinds(runs: list[Json]) -> None:
    """Gives each run the number of the first one that it repeats, with another seed, or its own."""
    kept: list[Json] = []
    for index, run in enumerate(runs):
        settings = {name: value for name, value in (member(run, "record.settings") or {}).items() if name not in WHEN_AND_WHERE}
        kept.append(settings)
        run["kind"] = next((k for k in range(index) if settings and kept[k] == settings), index)


def read_inputs(paths: list[str], measuring: Measuring, waits: bool) -> list[Json]:
    """The "runs" of analysis.json. waits: what is not there yet is left out, with a line on stderr."""
    runs = []
    for path in paths:
        with reading(path):
            runs += [_read(folder, measuring) for folder in _runs_at(Path(path), waits)]
    _unify_data(runs)
    _number_kinds(runs)
    return runs


def check_content(runs: list[Json], has_data: bool) -> None:
    """Raises Error unless a report shows more of some run than its name."""
    if not any(member(run, path) for run in runs for path in SHOWN):
        raise Error(f"there is nothing to show: looked for lines of {METRICS} and {STATISTICS}, {SETTINGS} and eval-NAME.json of runs, and for checkpoints with several "
                    f"streams, whose H_res is measured with --data-dir{'' if has_data else ' (it is not given)'}")


def read_bench(path: str) -> Json:
    """What bench/compare.py --json wrote."""
    found = _read_clean(path)
    if not isinstance(found.get("cases"), list):
        raise Error(f"{printable(path)} has no cases: {shown(list(found))}; bench/compare.py --json writes them")
    return found
