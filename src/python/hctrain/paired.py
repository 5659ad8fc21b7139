"""Paired comparisons of settings that were trained with the same seeds: Student's t intervals and p values, corrected for the number of
comparisons.

A setting's losses are {seed: loss}. The difference of two settings is the mean over the seeds that both have; its interval and p value are
those of the paired t test, which asks no more than that differences of different seeds are independent and normally distributed.
Losses of the same seed share initial weights and batches, so their differences deviate less than the losses do.
"""
from __future__ import annotations

import itertools
import math
import statistics
from typing import Any, Mapping, NamedTuple


def t_p(t: float, freedom: int) -> float:
    """P(|T| > |t|) for Student's T with a whole number of degrees of freedom: 1 minus a finite sum over powers of the cosine of
    atan(t / sqrt(freedom)) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom == 1:
        return 1 - 2 * angle / math.pi
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine ** 2
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1 - inside)


def t_quantile(p: float, freedom: int) -> float:
    """The t that |T| exceeds with probability p, 1e-9 <= p <= 1: by bisection of t_p."""
    if not 1e-9 <= p <= 1:
        raise ValueError(f"no quantile of p = {p}")
    low, high = 0.0, 1.0
    while t_p(high, freedom) > p:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p(middle, freedom) > p else (low, middle)
    return high


class Difference(NamedTuple):
    pairs: int
    mean: float
    error: float  # standard error of the mean
    p: float  # of the hypothesis that it is zero, not corrected

    def half_width(self, comparisons: int = 1, level: float = 0.95) -> float:
        """Of the interval; those of so many comparisons hold all at once with the level's probability or more (Bonferroni)."""
        return self.error * t_quantile((1 - level) / comparisons, self.pairs - 1)


def difference(losses: Mapping[Any, float], base: Mapping[Any, float]) -> Difference | None:
    """Of losses to those of base; None of fewer than two pairs."""
    found = [losses[seed] - base[seed] for seed in losses if seed in base]
    if len(found) < 2:
        return None
    mean, error = statistics.fmean(found), statistics.stdev(found) / math.sqrt(len(found))
    if error == 0:
        return Difference(len(found), mean, 0.0, 0.0 if mean else 1.0)
    return Difference(len(found), mean, error, t_p(mean / error, len(found) - 1))


def holm(p_values: Mapping[Any, float]) -> dict[Any, float]:
    """{name: p} corrected by Holm's step-down procedure: with those below 0.05 rejected, the probability of any false rejection is at
    most 0.05."""
    corrected: dict[Any, float] = {}
    most = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda one: p_values[one])):
        most = max(most, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = most
    return corrected


class Pair(NamedTuple):
    better: Any  # a key of all_losses
    worse: Any
    difference: Difference
    p: float  # corrected by Holm


def all_pairs(all_losses: Mapping[Any, Mapping[Any, float]]) -> list[Pair]:
    """All pairs of settings with their corrected p values, the smallest first."""
    found = {}
    for a, b in itertools.combinations(all_losses, 2):
        one = difference(all_losses[a], all_losses[b])
        if one and one.mean > 0:
            a, b, one = b, a, one._replace(mean=-one.mean)
        if one:
            found[a, b] = one
    corrected = holm({names: one.p for names, one in found.items()})
    return [Pair(names[0], names[1], found[names], p) for names, p in sorted(corrected.items(), key=lambda item: (item[1], found[item[0]].p))]
