"""What a sweep has found: a table with paired differences, a sentence for each base, and a picture."""
import itertools
import math
import os
import statistics
from html import escape
from typing import NamedTuple

from .. import paired
from ..files import printable, write_file
from .plan import number_text, short

STYLE = """<style>
text{fill:#1f2328;font:13px sans-serif}.small{font-size:11px;fill:#59636e}.line{stroke:#d1d9e0}.zero{stroke:#59636e}
.bar{stroke:#59636e;stroke-width:2}.dot{stroke:#59636e;stroke-width:2;fill:#ffffff}
.clear .bar{stroke:#0969da}.clear .dot{stroke:#0969da;fill:#0969da}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.line{stroke:#3d444d}.zero{stroke:#9198a1}
.bar{stroke:#9198a1}.dot{stroke:#9198a1;fill:#0d1117}.clear .bar{stroke:#4493f8}.clear .dot{stroke:#4493f8;fill:#4493f8}}
</style>
"""
LEFT, PANEL, GAP, TOP, ROW, BOTTOM = 150, 300, 24, 34, 24, 44  # pixels

FILES = {"table.md": "| seeds | mean | deviation |", "table.tsv": "\tseeds\tmean\tdeviation", "pairs.tsv": "better\tworse\tpairs\t",
         "differences.svg": STYLE[:40]}  # what they contain, and other files of these names do not


def foreign_file(folder):
    """The first file in the way of a report that is not one of an earlier report; or None."""
    for name, mark in FILES.items():
        path = folder / name
        if os.path.lexists(path):
            if not path.is_file():
                return path
            with open(path, encoding="utf-8", errors="replace") as file:
                if mark not in file.read(1 << 16):
                    return path
    return None


def cell(text):
    """Text in a cell of a Markdown table."""
    return printable(text).replace("|", "\\|")


class Interval(NamedTuple):
    mean: float
    half_width: float


def tic_distance(width):
    """Of some five tics: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width / 5))
    return next(step * power for step in (1, 2, 5, 10) if 5 * step * power >= width)


def draw_panel(left, rows, title, label):
    """A panel with its right edge at left + PANEL; rows are Intervals, or None where there is nothing to draw."""
    found = [one for one in rows if one]
    low = min([0.0] + [one.mean - one.half_width for one in found])
    high = max([0.0] + [one.mean + one.half_width for one in found])
    high = high if high > low else low + 1.0
    margin, bottom = 0.05 * (high - low), TOP + ROW * len(rows)
    low, high = low - margin, high + margin

    def place(value):
        return f"{left + PANEL * (value - low) / (high - low):.1f}"

    step = tic_distance(high - low)
    lines = [f'<text x="{left + PANEL / 2:g}" y="18" text-anchor="middle">{escape(title)}</text>',
             f'<text class="small" x="{left + PANEL / 2:g}" y="{bottom + 36}" text-anchor="middle">{escape(label)}</text>']
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        x = place(k * step)
        lines.append(f'<path class="{"line" if k else "zero"}" d="M{x} {TOP}V{bottom}"/>'
                     f'<text class="small" x="{x}" y="{bottom + 16}" text-anchor="middle">{k * step:.6g}</text>')
    for place_in_column, one in enumerate(rows):
        if one:
            y = TOP + ROW * place_in_column + ROW / 2
            kind = ' class="clear"' if abs(one.mean) > one.half_width else ""
            lines.append(f'<g{kind}><path class="bar" d="M{place(one.mean - one.half_width)} {y:g}H{place(one.mean + one.half_width)}"/>'
                         f'<circle class="dot" cx="{place(one.mean)}" cy="{y:g}" r="4"/></g>')
    return lines


def draw(names, panels, label):
    """The SVG's text: a row for each name, and beside them panels (title, [Interval or None]), of whose values `label` says what they are.
    Intervals that exclude zero are blue with filled dots."""
    width, height = LEFT + len(panels) * (PANEL + GAP), TOP + ROW * len(names) + BOTTOM
    lines = [f'<text x="{LEFT - 12}" y="{TOP + ROW * place + 17}" text-anchor="end">{escape(name)}</text>' for place, name in enumerate(names)]
    for place, (title, rows) in enumerate(panels):
        lines += draw_panel(LEFT + place * (PANEL + GAP), rows, title, label)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n' + STYLE + "\n".join(lines) + "\n</svg>\n"


class Report:
    def __init__(self, plan, needs, correct):
        """correct: intervals hold all together (Bonferroni), and pairs are named by Holm's procedure."""
        self.plan, self.correct = plan, correct
        self.losses, self.best = {}, {}  # by choices
        for choices in plan.all_choices():
            self.best[choices], runs = needs.compared(choices)
            self.losses[choices] = {run.seed: needs.table.loss(run) for run in runs if needs.table.loss(run) is not None}
        self.compared = {choices: losses for choices, losses in self.losses.items() if losses and all(map(math.isfinite, losses.values()))}
        self.differences = self.to_bases()
        self.comparisons = len(self.differences) if correct else 1
        self.pairs = paired.all_pairs(self.compared)

    def to_bases(self):
        """{(choices, those of a base): Difference}, where two settings are compared at most once: of two bases the earlier is the base."""
        found = {}
        for base in self.plan.bases:
            for choices, losses in self.compared.items():
                other = self.plan.base_of(choices, base)
                one = paired.difference(losses, self.compared[other]) if other in self.compared and other != choices and (other, choices) not in found else None
                if one:
                    found[choices, other] = one
        return found

    def interval(self, choices, base):
        """Of the difference to a base, or None."""
        found = self.differences.get((choices, self.plan.base_of(choices, base)))
        return found and Interval(found.mean, found.half_width(self.comparisons))

    def name(self, choices):
        return self.plan.label(dict(zip(self.plan.vary, choices)))

    def rows(self):
        """Of each setting that has losses: choices; texts of best values, seeds, mean and deviation; intervals of the differences to the bases."""
        for choices, losses in self.losses.items():
            spread = ["diverged", ""]
            if choices in self.compared:
                spread = [f"{statistics.fmean(losses.values()):.4f}", f"{statistics.stdev(losses.values()):.4f}" if len(losses) > 1 else ""]
            if losses:
                intervals = [self.interval(choices, base) for base in self.plan.bases]
                yield choices, [*map(number_text, self.best[choices]), str(len(losses)), *spread], intervals

    def table(self):
        """In Markdown."""
        heads = [*self.plan.vary, *self.plan.best, "seeds", "mean", "deviation", *(f"to {self.plan.label(base)}" for base in self.plan.bases)]
        heads += ["better than"] * self.correct
        lines = [heads, ["---"] * len(self.plan.vary) + ["---:"] * (len(heads) - len(self.plan.vary))]
        for choices, numbers, found in self.rows():
            better_than = [", ".join(f"`{self.name(pair.worse)}`" for pair in self.pairs if pair.better == choices and pair.p < 0.05)] * self.correct
            lines.append([*(f"`{short(choice)}`" for choice in choices), *numbers,
                          *(f"{one.mean:+.4f} ± {one.half_width:.4f}" if one else "" for one in found), *better_than])
        return "".join("| " + " | ".join(cell(one) for one in line) + " |\n" for line in lines)

    def tsv(self):
        """The table's numbers in columns, for programs."""
        differences = [text for base in self.plan.bases for text in (f"to {self.plan.label(base)}", "half width")]
        lines = [[*self.plan.vary, *self.plan.best, "seeds", "mean", "deviation", *differences]]
        for choices, numbers, found in self.rows():
            texts = [(f"{one.mean:.6f}", f"{one.half_width:.6f}") if one else ("", "") for one in found]
            lines.append([*choices, *numbers, *itertools.chain(*texts)])
        return "".join("\t".join(line) + "\n" for line in lines)

    def pairs_text(self):
        """All pairs, the clearest first."""
        return "better\tworse\tpairs\tdifference\tp\tp by Holm\n" + "".join(
            f"{self.name(pair.better)}\t{self.name(pair.worse)}\t{pair.difference.pairs}\t{pair.difference.mean:+.4f}\t{pair.difference.p:.2g}\t{pair.p:.2g}\n"
            for pair in self.pairs)

    def sentences(self):
        """What can be told apart from each base."""
        if not self.differences:
            return "Nothing can be compared yet: two settings need two seeds in common.\n"
        text = ""
        for base in self.plan.bases:
            lower, higher, neither = [], [], []
            for choices in self.compared:
                one = self.interval(choices, base)
                if one:
                    (neither if abs(one.mean) <= one.half_width else lower if one.mean < 0 else higher).append(self.name(choices))
            for what, names in (("Lower loss than", lower), ("Higher loss than", higher), ("Cannot be told apart from", neither)):
                text += printable(f"{what} {self.plan.label(base)}: {', '.join(names)}.") + "\n" if names else ""
        count = len(self.differences)
        return text + (f"(95 % intervals by Student's t over seeds, which hold for all {count} differences together)\n" if self.correct and count > 1 else
                       "(95 % intervals by Student's t over seeds, each by itself)\n")

    def ends_of_lists(self):
        """A line for each best value that is the smallest or largest of its list, where a better one may lie beyond."""
        text = ""
        for choices, best in self.best.items():
            for (name, listed), value in zip(self.plan.best.items(), best or ()):
                if len(listed) > 1 and value in (min(listed), max(listed)):
                    text += printable(f"The best {name} of {self.name(choices)}, {number_text(value)}, is at the end of the list: a better one may lie beyond.") + "\n"
        return text

    def missing(self):
        """Names of settings that lack seeds."""
        return [self.name(choices) for choices, losses in self.losses.items() if len(losses) < len(self.plan.seeds)]

    def picture(self):
        """SVG."""
        order = sorted(self.compared, key=lambda choices: statistics.fmean(self.compared[choices].values()))
        panels = [(f"difference to {self.plan.label(base)}", [self.interval(choices, base) for choices in order]) for base in self.plan.bases]
        return draw([self.name(choices) for choices in order], panels, "nats a token, 95 % " + ("for all together" if self.correct else "each"))

    def write(self, folder):
        for name, text in (("table.md", self.table()), ("table.tsv", self.tsv()), ("pairs.tsv", self.pairs_text()), ("differences.svg", self.picture())):
            write_file(folder / name, text)
