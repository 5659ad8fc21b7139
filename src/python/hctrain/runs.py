"""What a run of hc_train has written to its folder."""
from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from .files import Error, Folder, as_path, printable, read_file, read_object, reading
from .records import METRICS, STATISTICS, Follower, Lines, Record, Rows, Table, parse_record, parse_statistics
from .settings import LARGEST_FILE, Settings, device_of, parse_settings

SETTINGS = "settings.conf"
STEP = ("loss", "lr", "grad_norm", "tokens", "tokens_per_sec", "mfu", "time")
EVALUATED = ("train_loss", "val_loss", "time")
LARGEST_STATE = 1 << 24  # bytes of a checkpoint's state.json
FINAL_STEPS = 200  # of the mean training loss, as in hc_analyze


@dataclass(frozen=True)
class Summary:
    """The end of a run, as hc_analyze has it; nan where there is nothing yet."""

    iteration: int  # steps done
    train_loss: float  # mean over those of the last 200 steps that have a finite loss
    val_loss: float  # of the last evaluation
    best_val_loss: float
    tokens_per_sec: float  # median of the last 200 steps


@dataclass(frozen=True)
class Damage:
    """Lines of a file that are not records, as a crash of the machine may leave them."""

    path: Path
    lines: int  # how many
    first: int  # the number of the first of them


@dataclass(frozen=True)
class Run:
    """What read_run found. Tables are {name: numpy array}, with the iterations as "iter"; pandas.DataFrame(run.metrics) works."""

    folder: Path
    settings: Settings
    device: str
    metrics: Table  # a row for each step: loss, lr, grad_norm, tokens, tokens_per_sec, mfu, time, ... [steps]
    evaluations: Table  # train_loss, val_loss, time [evaluations]
    statistics: Table  # of H_res, with --statistics-interval: [rows], or [rows, sublayers]; docs/running.md explains the names
    damage: tuple[Damage, ...]  # what skip_damaged left out

    @property
    def checkpoints(self) -> list[Path]:
        """The folders ckpt-<iteration> that are there now, the newest last."""
        return checkpoints_in(self.folder)

    @property
    def best_checkpoint(self) -> Path | None:
        """The weights with the lowest validation loss, if the run has saved them."""
        path = self.folder / "ckpt-best"
        return path if path.is_dir() else None

    @property
    def is_complete(self) -> bool:
        """Whether the run has made all its iterations (max_iters), or trained for its time (max_seconds)."""
        return last_iteration(self.folder, self.settings) is not None

    @property
    def id(self) -> str:
        """Twelve digits and letters that stay the same when the run is resumed; another run has others."""
        with Lines(self.folder / METRICS) as lines:
            for first in lines.read():
                return hashlib.sha256(first).hexdigest()[:12]
        raise Error(f"the run in {printable(self.folder)} has no metrics yet")

    @property
    def summary(self) -> Summary:
        import numpy as np

        def of_finite(function: Callable[[Any], Any], values: Any) -> float:
            finite = values[np.isfinite(values)]
            return float(function(finite)) if len(finite) else math.nan

        iterations, validated = self.metrics["iter"], self.evaluations["val_loss"]
        return Summary(int(iterations[-1]) + 1 if len(iterations) else 0, of_finite(np.mean, self.metrics["loss"][-FINAL_STEPS:]),
                       float(validated[-1]) if len(validated) else math.nan, of_finite(np.min, validated),
                       of_finite(np.median, self.metrics["tokens_per_sec"][-FINAL_STEPS:]))

    def follow(self, first: int = 0, timeout: float = 600.0) -> Iterator[Record]:
        """The records of metrics.jsonl from iteration `first` on: those that are there, then new ones as the run writes them. Ends when the run is
        complete, or when nothing has come for `timeout` seconds (0: at the end of what is there). An interrupted run is followed on when it is resumed."""
        follower = Follower(self.folder, first, first)
        quiet_since = time.monotonic()
        with contextlib.closing(follower):
            while True:
                complete = last_iteration(self.folder, _settings(self.folder)[0]) is not None  # before the lines are read, of which none comes after that
                for record in follower.records():
                    yield record
                    quiet_since = time.monotonic()
                if complete or time.monotonic() - quiet_since >= timeout:
                    return
                time.sleep(0.5)


def checkpoints_in(folder: Path) -> list[Path]:
    found = {int(path.name[5:]): path for path in folder.glob("ckpt-*") if re.fullmatch(r"ckpt-(0|[1-9]\d{0,17})", path.name, re.ASCII) and path.is_dir()}
    return [found[iteration] for iteration in sorted(found)]


def last_iteration(folder: Path, settings: Settings) -> int | None:
    """How many iterations a complete run has made; None: it is not complete."""
    last, seconds = settings.get("max_iters"), settings.get("max_seconds", 0)
    if isinstance(seconds, (int, float)) and seconds > 0:
        last = None
        for newest in checkpoints_in(folder)[-1:]:
            with contextlib.suppress(Error):  # the run may just have removed it after a newer one
                trained = read_object(newest / "state.json", LARGEST_STATE).get("seconds")
                last = int(newest.name[5:]) if isinstance(trained, (int, float)) and trained >= seconds else None
    return last if isinstance(last, int) and (folder / f"ckpt-{last}").is_dir() else None


def _settings(folder: Path) -> tuple[Settings, str]:
    """Settings and device; none if the run has not written them yet."""
    path = folder / SETTINGS
    content = read_file(path, LARGEST_FILE) if path.exists() else b""
    return parse_settings(content, printable(path)), device_of(content)


def _take(add: Callable[[bytes, str], None], path: Path, skip_damaged: bool) -> tuple[Damage, ...]:
    """Hands over all whole lines of a file, with their places; those that `add` refuses. A file that is not there has none."""
    damaged = []
    if path.exists():
        with Lines(path) as lines:
            for line in lines.read():
                try:
                    add(line, lines.place)
                except Error:
                    if not skip_damaged:
                        raise
                    damaged.append(lines.number)
    return (Damage(path, len(damaged), damaged[0]),) if damaged else ()


def read_run(folder: Folder, skip_damaged: bool = False) -> Run:
    """The run in a folder, complete or not. Raises Error for a file that no run writes, with its name and line.

    A last line that is only half written is left out. With skip_damaged so are lines that are not records, as a crash of the machine may leave them."""
    path = as_path(folder)
    steps, evaluations, statistics = Rows(), Rows(), Rows()

    def add_metrics(line: bytes, place: str) -> None:
        record = parse_record(line, place)
        (evaluations if record.is_evaluation else steps).add(record.iteration, record.metrics, place)

    def add_statistics(line: bytes, place: str) -> None:
        statistics.add(*parse_statistics(line, place), place)

    with reading(path):
        if not any((path / name).exists() for name in (SETTINGS, METRICS, STATISTICS)):
            raise Error(f"there is no run in {printable(path)}")
        damage = _take(add_metrics, path / METRICS, skip_damaged) + _take(add_statistics, path / STATISTICS, skip_damaged)
        found = _settings(path)
    name = printable(path / METRICS)
    return Run(path, *found, steps.table(name, STEP), evaluations.table(name, EVALUATED), statistics.table(printable(path / STATISTICS)), damage)
