"""Runs in tables and pictures: their names and styles, and means over those of one kind, which differ in the seed alone."""
from __future__ import annotations

import math
import statistics
from typing import Any, Callable, NamedTuple

from .inputs import Json, member, number

# Of connections that are known here; runs of others are grey.
COLOURS = {"rc": "#888888", "identity": "#9467bd", "hc": "#ff7f0e", "mhc": "#1f77b4", "mhc_lite": "#2ca02c", "shc": "#d62728", "krom": "#8c564b",
           "circulant": "#e377c2", "go_mhc": "#bcbd22", "ohc": "#17becf", "gated": "#006d77", "attnres": "#3d348b", "mudd": "#e7298a", "wide": "#7f7f00",
           "dense": "#66a61e", "laurel": "#a6761d", "dar": "#7570b3", "frac": "#00a0a0"}
OTHER_COLOUR = "#555555"
SINGLE_STREAM = ("rc", "attnres", "mudd", "dense", "laurel", "dar")
DASHES = ("-", (0, (5, 1)), (0, (2, 1)), (0, (5, 1, 1, 1)))  # of the kinds of a variant


class Style(NamedTuple):
    colour: str
    dashes: str | tuple[int, tuple[int, ...]]

    def line(self, width: float) -> dict[str, Any]:
        """Arguments of Matplotlib's plot."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": width}


def _configured(run: Json, name: str) -> Json:
    """A value of its newest checkpoint's config, or else, of a run that has none yet, of its settings."""
    value = member(run, f"config.{name}")
    return member(run, f"record.settings.{name}") if value is None else value


def variant(run: Json) -> str:
    """The residual connection; "" where the run does not say."""
    name = _configured(run, "residual")
    return name if isinstance(name, str) else ""


def streams(run: Json) -> float:
    return 1.0 if variant(run) in SINGLE_STREAM else number(_configured(run, "n_streams"))


def newest(run: Json, name: str) -> Json:
    """"h" or "value_means" of its newest checkpoint, or None."""
    return run["checkpoints"][-1].get(name) if run["checkpoints"] else None


# ---- kinds


def is_first(runs: list[Json], index: int) -> bool:
    return bool(runs[index]["kind"] == index)


def repeats(runs: list[Json], index: int) -> list[Json]:
    """All runs of the kind of this one."""
    return [run for run in runs if run["kind"] == runs[index]["kind"]]


def kind_label(runs: list[Json], kind: int) -> str:
    """The variant if all its runs are of this kind, else the name of the first run."""
    name = variant(runs[kind])
    alone = name and all(run["kind"] == kind for run in runs if variant(run) == name)
    return name if alone else str(runs[kind]["name"])


def kind_name(runs: list[Json], kind: int, count: int) -> str:
    return f"{kind_label(runs, kind)} ({count} runs)" if count > 1 else f"{kind_label(runs, kind)} (seed {member(runs[kind], 'record.settings.seed')})"


def legend(runs: list[Json], index: int) -> str:
    """The entry of a run; "" of one that repeats another."""
    count = len(repeats(runs, index))
    return str(runs[index]["name"]) if count < 2 else kind_name(runs, index, count) if is_first(runs, index) else ""


def style(runs: list[Json], run: Json) -> Style:
    """Its variant's colour, in shades from dark to light and with other dashes where runs of the variant are of several kinds."""
    colour = COLOURS.get(variant(run), OTHER_COLOUR)
    kinds = sorted({one["kind"] for one in runs if variant(one) == variant(run)})
    place = kinds.index(run["kind"])
    shade = 0.9 * place / (len(kinds) - 1) - 0.3 if len(kinds) > 1 else 0.0  # -1 is black, 1 is white
    parts = (int(colour[at:at + 2], 16) for at in (1, 3, 5))
    return Style("#" + "".join(f"{int(part + shade * (part if shade < 0 else 255 - part)):02x}" for part in parts), DASHES[place % len(DASHES)])


# ---- means over seeds


def _merge_of(name: str) -> Callable[[list[float]], float]:
    if name in ("min", "smallest_entry"):
        return min
    return max if name in ("max", "largest_entry") or "norm_max" in name else statistics.fmean


def _merged(values: list[Json], merge: Callable[[list[float]], float] = statistics.fmean) -> Json:
    """What stands at one place in the runs becomes one value of the same form."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _merged([value.get(name) if isinstance(value, dict) else None for value in values], _merge_of(name)) for name in first}
    if isinstance(first, list):
        return [_merged([value[at] if isinstance(value, list) and at < len(value) else None for value in values], merge) for at in range(len(first))]
    numbers = [one for one in map(number, values) if not math.isnan(one)]
    return first if isinstance(first, str) else merge(numbers) if numbers else None


def _iterations(run: Json) -> Json:
    """Of its statistics and checkpoints."""
    return member(run, "record.statistics.iter"), [checkpoint["iter"] for checkpoint in run["checkpoints"]]


def seed_means(runs: list[Json]) -> list[Json]:
    """One run of each kind, whose statistics and checkpoints are means over those runs of the kind that have them of the same iterations."""
    means = []
    for kind, run in enumerate(runs):
        if is_first(runs, kind):
            same = [one for one in repeats(runs, kind) if _iterations(one) == _iterations(run)]
            if len(repeats(runs, kind)) > 1:
                run = {**run, "name": kind_name(runs, kind, len(same)), "checkpoints": _merged([one["checkpoints"] for one in same]),
                       "record": {**run["record"], "statistics": _merged([one["record"]["statistics"] for one in same])}}
            means.append(run)
    return means
