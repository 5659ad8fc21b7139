"""Pictures of a report: panels that draw themselves, a legend above them, the numbers behind them, and a sentence. Matplotlib draws each as SVG, for
phones in fewer columns, and as PNG."""
from __future__ import annotations

import csv
import io
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

from .kinds import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINES = "#777777", "#888888"  # grey enough for a light and a dark page
MOST_PIXELS = 60000  # of a PNG's side
NARROW_WIDTH = 350  # pixels that a phone's 390 leave
LEGEND_LINE, LEGEND_MARK, LETTER = 16, 40, 6.5  # pixels of a legend's row, of a mark in it, of a letter
SETTINGS = {"font.size": 11, "font.family": "sans-serif", "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"], "text.parse_math": False, "svg.fonttype": "none",
            "svg.hashsalt": "hctrain", "axes.edgecolor": LINES, "axes.labelcolor": INK, "axes.titlesize": 11, "axes.titlecolor": INK, "xtick.color": INK,
            "ytick.color": INK, "text.color": INK, "axes.grid": True, "grid.color": LINES, "grid.alpha": 0.25, "axes.spines.top": False,
            "axes.spines.right": False, "legend.frameon": False, "axes.axisbelow": True, "figure.dpi": 72, "axes.titlepad": 4}


class Layout(NamedTuple):
    """Sizes of a panel in pixels, and panels in a row, on a wide page and on a narrow one."""

    width: int
    height: int
    columns: int
    narrow_height: int
    narrow_columns: int


CURVE, TWO_CURVES = Layout(820, 370, 1, 250, 1), Layout(500, 370, 2, 250, 1)
PANELS, ROWS = Layout(330, 270, 3, 240, 1), Layout(260, 250, 4, 190, 2)  # a panel for each run, and four


class Entry(NamedTuple):
    """Of a legend: a line, or a mark alone."""

    label: str
    style: Style
    marker: str = ""


@dataclass
class Picture:
    name: str  # of its files
    title: str  # HTML
    text: str  # what it shows: HTML without the last full stop
    header: str  # of the numbers
    layout: Layout
    panels: list[Callable[[Axes], None]] = field(default_factory=list)
    legend: list[Entry] = field(default_factory=list)
    rows: list[Sequence[object]] = field(default_factory=list)  # numbers

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([[f"{one:.9g}" if isinstance(one, float) else one for one in row] for row in self.rows])
        return f"{self.header}\n{out.getvalue()}"

    def _legend_columns(self, width: int) -> int:
        longest = max((len(entry.label) for entry in self.legend), default=0)
        return max(1, int((width - 60) / (LEGEND_MARK + LETTER * longest)))

    def _columns(self, narrow: bool) -> int:
        """Panels in a row."""
        return min(len(self.panels), self.layout.narrow_columns if narrow else self.layout.columns)

    def size(self, narrow: bool) -> tuple[int, int]:
        """Width and height in pixels."""
        columns = self._columns(narrow)
        width = NARROW_WIDTH if narrow else columns * self.layout.width
        rows = math.ceil(len(self.panels) / columns)
        legend = math.ceil(len(self.legend) / self._legend_columns(width)) * LEGEND_LINE
        return width, rows * (self.layout.narrow_height if narrow else self.layout.height) + legend

    def _draw(self, narrow: bool) -> Figure:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        width, height = self.size(narrow)
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        columns = self._columns(narrow)
        below = 1.0
        if self.legend:
            handles = [Line2D([], [], color=entry.style.colour, linestyle="none" if entry.marker else entry.style.dashes, marker=entry.marker, markersize=5, linewidth=2,
                              markerfacecolor=entry.style.colour if entry.marker != "^" else "none") for entry in self.legend]
            labels = [(" " if entry.label.startswith("_") else "") + entry.label for entry in self.legend]  # Matplotlib leaves out labels that begin with _
            in_row = self._legend_columns(width)
            below = 1 - (LEGEND_LINE * math.ceil(len(labels) / in_row) + 4) / height
            figure.legend(handles, labels, loc="upper center", ncol=in_row, handlelength=2, columnspacing=1, labelspacing=0.2, borderpad=0.1, borderaxespad=0.1)
        figure.get_layout_engine().set(rect=(0, 0, 1, below))
        for place, draw in enumerate(self.panels):
            axes = figure.add_subplot(math.ceil(len(self.panels) / columns), columns, place + 1)
            if narrow:
                axes.tick_params(labelsize=8)
            draw(axes)
            if narrow:
                axes.title.set_fontsize(min(9, axes.title.get_fontsize()))
        return figure

    def save(self, folder: Path) -> None:
        """Writes NAME.svg, NAME-narrow.svg, NAME.png and NAME.csv."""
        import matplotlib

        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of letters that a font lacks
            matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
            matplotlib.rcParams.update(SETTINGS)
            wide = self._draw(False)
            wide.savefig(folder / f"{self.name}.svg", transparent=True, metadata={"Date": None})
            wide.savefig(folder / f"{self.name}.png", facecolor="white", dpi=min(144, MOST_PIXELS * 72 // max(self.size(False))))
            self._draw(True).savefig(folder / f"{self.name}-narrow.svg", transparent=True, metadata={"Date": None})
        (folder / f"{self.name}.csv").write_text(self.csv(), encoding="utf-8")


# ---- what several pictures draw


def mark_branches(axes: Axes, xs: Sequence[int], ys: Sequence[float], style: Style, first: int) -> None:
    """A line over depth, with circles at attention and triangles at MLP; depths are counted from `first`."""
    axes.plot(xs, ys, color=style.colour, linestyle=style.dashes, linewidth=1.5)
    for marker, face, branch in (("o", style.colour, 0), ("^", "none", 1)):
        at = [index for index, x in enumerate(xs) if (x - first) % 2 == branch]
        axes.plot([xs[index] for index in at], [ys[index] for index in at], marker, color=style.colour, markerfacecolor=face, markersize=4)


BRANCHES = [Entry("attention", Style(LINES, "-"), "o"), Entry("MLP", Style(LINES, "-"), "^")]


def show_matrix(axes: Axes, cells: Any, most: float) -> None:
    """A heat map of an array, red below zero and blue above, white at zero; what is not a number stays empty."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("signs", ["#d6604d", "#f7f7f7", "#4393c3"])
    axes.grid(False)
    axes.imshow(cells, cmap=colours, vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    for side in axes.spines.values():
        side.set_visible(False)
