"""Residual connections over seeds: mean losses with 95 % intervals, and differences to others at the same seed."""
from __future__ import annotations

import math
import statistics
from typing import Iterable

from ..files import Error, shown
from ..paired import t_quantile
from . import kinds
from .inputs import Json, member, number

LOSSES = {"final": "record.final.val_loss", "best": "record.final.best_val_loss"}
MOST_NAMES = 4  # of settings in a sentence

# Settings of the residual connection, which is what is compared.
OF_CONNECTION = ("residual", "n_streams", "stream_expand", "stream_reduce", "read_delay", "sinkhorn_iters", "freeze_gamma", "circulant_beta", "gated_rank",
                 "attnres_block", "attnres_heads", "mudd_round", "mudd_norm", "wide_retention", "hc_dynamic", "hc_until", "laurel_form", "laurel_rank", "dar_gate")
WITHOUT_EFFECT = ("seed", "log_interval", "statistics_interval", "rank_timeout", "checkpoint_interval", "recompute", "shard_optimizer", "keep_checkpoints",
                  "allreduce_bucket")  # training does the same with any value, or the seed is the same
TO_BE_NAMED = ("learning_rate", "min_lr", "dtype", "device", "gemm", "allreduce_dtype", "eval_interval",  # connections need rates of their own; others round
               "hc_norm_gain", "hc_eps", "hc_norm_eps", "h_res_transposed", "hc_start", "hc_init", "decay_hc_gain",  # rc has no use for them
               "x0_lambdas", "value_embeds", "resid_lambda_learning_rate", "x0_lambda_learning_rate", "value_embed_learning_rate")  # parts of any connection's model


def _settings(run: Json) -> Json:
    return member(run, "record.settings") or {}


def _batches(run: Json) -> Json:
    """What a run's evaluation batches depend on; of versions without the setting they depend on the seed."""
    return _settings(run).get("eval_batches", "by_seed")


def _differs(run: Json, other: Json, name: str) -> bool:
    if name == "eval_batches":
        return bool(_batches(run) != _batches(other))
    if name == "eval_iters" and _batches(run) == _batches(other) == "whole":
        return False
    return bool(_settings(run).get(name) != _settings(other).get(name))


def _contrast(run: Json, other: Json) -> tuple[list[str], list[str], list[str]]:
    """The settings in which two runs differ: those that forbid a comparison, those that a reader has to know of, and the others."""
    differing = [name for name in {**_settings(run), **_settings(other)} if _differs(run, other, name)]
    unimportant = [name for name in differing if name in OF_CONNECTION or name in WITHOUT_EFFECT]
    named = [name for name in differing if name in TO_BE_NAMED]
    return [name for name in differing if name not in unimportant + named], named, unimportant


def _distance(run: Json, other: Json) -> tuple[int, int]:
    barring, named, unimportant = _contrast(run, other)
    return len(barring), len(named) + len(unimportant)


def _value_text(run: Json, name: str) -> str:
    value = _settings(run).get(name)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else f"{value:.9g}"


def _describe(run: Json, base: Json, names: list[str]) -> str:
    """rc-1 has another n_layer (12 instead of 24), another n_embd (...)"""
    parts = ", ".join(f"another {name} ({_value_text(base, name)} instead of {_value_text(run, name)})" for name in names[:MOST_NAMES])
    return f"{base['name']} has {parts}" + (f", and {len(names) - MOST_NAMES} more settings" if len(names) > MOST_NAMES else "")


def _estimate(values: list[float]) -> Json:
    found: Json = {}
    if values:
        found["mean"] = statistics.fmean(values)
    if len(values) > 1:
        found["deviation"] = statistics.stdev(values)
        found["half_width"] = t_quantile(0.05, len(values) - 1) * found["deviation"] / math.sqrt(len(values))
    return found


def _seed(run: Json) -> Json:
    return member(run, "record.settings.seed")


def _end(run: Json) -> float:
    """The iteration of a run's last evaluation; with max_seconds the second, at most that one."""
    seconds = number(run, "record.settings.max_seconds")
    return min(number(run, "record.final.val_time"), seconds) if seconds > 0 else number(run, "record.final.val_iter")


def _fault(run: Json, kept: Iterable[Json], end: float) -> str | None:
    """Why a run is left out of its variant, whose last evaluation is at `end`."""
    if math.isnan(number(run, LOSSES["final"])):
        return "it has no validation loss at its end"
    if _end(run) < end:
        return "its last evaluation is earlier"
    if _seed(run) is not None and any(_seed(one) == _seed(run) for one in kept):
        return "another run has its seed"
    return None


def _variant(runs: list[Json], kind: int) -> Json | None:
    """The runs of a kind, if one of them has a validation loss."""
    found = [_end(run) for run in kinds.repeats(runs, kind)]
    end = max((one for one in found if not math.isnan(one)), default=None)
    if end is None:
        return None
    variant: Json = {"residual": kinds.variant(runs[kind]), "kind": kind, "end": int(end), "runs": [], "left_out": [], "differences": {},
                     "learning_rate": member(runs[kind], "record.settings.learning_rate")}
    if kinds.streams(runs[kind]) >= 1:
        variant["n_streams"] = int(kinds.streams(runs[kind]))
    for index, run in enumerate(runs):
        if run["kind"] == kind:
            why = _fault(run, (runs[one] for one in variant["runs"]), end)
            if why:
                variant["left_out"].append({"run": index, "why": why})
            else:
                variant["runs"].append(index)
    for name, path in LOSSES.items():
        variant[name] = _estimate([number(runs[index], path) for index in variant["runs"]])
    return variant


def _difference(runs: list[Json], variant: Json, base: Json) -> Json:
    """The mean differences over pairs of runs with the same seed, or why there are none."""
    run, other = runs[variant["kind"]], runs[base["kind"]]
    found: Json = {"kind": base["kind"]}
    barring, named, _ = _contrast(run, other)
    if barring:
        found["why"] = _describe(run, other, barring)
        return found
    if named:
        found["settings"] = _describe(run, other, named)
    if variant["end"] != base["end"]:
        found["why"] = "its last evaluation is at another time"
        return found
    pairs = [(runs[a], runs[b]) for a in variant["runs"] for b in base["runs"] if _seed(runs[a]) is not None and _seed(runs[a]) == _seed(runs[b])]
    found["pairs"] = len(pairs)
    for name, path in LOSSES.items():
        found[name] = _estimate([number(a, path) - number(b, path) for a, b in pairs])
    if not pairs:
        found["why"] = "no runs of the same seed"
    return found


def compare(runs: list[Json], baselines: list[str]) -> Json:
    """The "comparison" of analysis.json. A difference is to the variant of the baseline's name that differs in the fewest settings."""
    variants = [one for kind in range(len(runs)) if kinds.is_first(runs, kind) and (one := _variant(runs, kind))]
    known = {*kinds.COLOURS, *map(kinds.variant, runs)}
    for name in baselines:
        if name not in known:
            raise Error(f"--baselines: '{shown(name)}' is not a residual connection; hc_train --list-residuals has them")
        for variant in variants:
            bases = [one for one in variants if one["residual"] == name and one is not variant]
            if bases and variant["residual"] != name:
                base = min(bases, key=lambda one: _distance(runs[variant["kind"]], runs[one["kind"]]))
                variant["differences"][name] = _difference(runs, variant, base)
    by_seed = any(not math.isnan(number(run, LOSSES["final"])) and _batches(run) == "by_seed" for run in runs)
    return {"batches_by_seed": by_seed, "variants": variants}
