"""The pictures of a report: a function for each, from an analysis to a Picture, or to None where there is nothing to show."""
from __future__ import annotations

import functools
import math
import statistics
from html import escape
from typing import TYPE_CHECKING, Callable, Iterator, Sequence

from . import kinds
from .inputs import Json, member, number
from .picture import BRANCHES, CURVE, PANELS, ROWS, TWO_CURVES, Entry, Picture, mark_branches, show_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 1e30  # a loss beyond it is of a run that has diverged
MOST_POINTS = 600  # of a curve: beyond it, means of neighbours
GRADIENT_NORM_CLAMP = 5.0  # as in the paper's figure
POINTS = {"marker": "o", "markersize": 3}
BINS, NEIGHBOURS = 120, 4  # of the last two thirds of losses; bins to either side that a mean is over
MOST_SIDE = 512  # rows and columns of a heat map

# Where a run's answers change: docs/analysis.md has them, too.
STILL_IDENTITY, NEAR_IDENTITY = 0.01, 0.1  # mean distance of a sublayer from the identity
ONE_DIRECTION, ONE_STREAM = 0.95, 0.9  # cosine of the streams, share of the largest
FLAT = 0.1  # second singular value of the product, of the first


def _title(axes: Axes, text: str) -> None:
    """Of a small panel: long names are in small letters."""
    axes.set_title(text, fontsize=11 if max(map(len, text.split("\n"))) <= 30 else 8)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _of_runs(picture: Picture, shown: list[Json], say: Callable[[Json], str], separator: str = "; ") -> Picture | None:
    """The picture with a sentence about each run that it shows; None if there are none."""
    picture.text += separator.join(f"{escape(run['name'])}{say(run)}" for run in shown)
    return picture if shown else None


# ---- losses and gradient norms: lines of all runs


def _curve(run: Json, table: str, name: str) -> list[tuple[int, float]]:
    """The points of a column of a run's record that are numbers."""
    columns = member(run, f"record.{table}") or {}
    return [(x, float(y)) for x, y in zip(columns.get("iter", ()), columns.get(name, ())) if y is not None and abs(y) < LARGEST]


def _thinned(points: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    each = max(1, math.ceil(len(points) / MOST_POINTS))
    groups = [points[first:first + each] for first in range(0, len(points), each)]
    return [sum(x for x, _ in group) / len(group) for group in groups], [sum(y for _, y in group) / len(group) for group in groups]


def _later_means(runs: list[Json], table: str, name: str, last: float, neighbours: int) -> tuple[list[float], list[float]]:
    """The last two thirds of iterations in bins, means over runs and over so many bins to either side."""
    import numpy as np

    points = np.array([(x, y) for run in runs for x, y in _curve(run, table, name) if last / 3 <= x <= last]).reshape(-1, 2)
    places = np.minimum(((points[:, 0] - last / 3) / (last * 2 / 3) * BINS).astype(int), BINS - 1)
    iterations, losses, counts = (np.bincount(places, weights, BINS) for weights in (points[:, 0], points[:, 1], None))
    kept = neighbours + np.flatnonzero(counts[neighbours:BINS - neighbours])
    near = np.ones(2 * neighbours + 1)
    return (iterations[kept] / counts[kept]).tolist(), (np.convolve(losses, near, "same")[kept] / np.convolve(counts, near, "same")[kept]).tolist()


def _highest_later_loss(run: Json) -> float:
    """The largest training loss after a run's first twentieth, which would flatten all that follows."""
    losses = [y for _, y in _curve(run, "steps", "loss")]
    return max(losses[len(losses) // 20:], default=0.0)


def losses(runs: list[Json]) -> Picture | None:
    picture = Picture("loss", "Loss", "Thin lines are training losses, points are validation losses; the first steps are above the first picture. The second one has the "
                      "last two thirds of all iterations, training losses smoothed, and means over runs that differ in the seed alone", "run,split,iteration,loss",
                      TWO_CURVES)
    for index, run in enumerate(runs):
        for split, table, name in (("train", "steps", "loss"), ("val", "evaluations", "val_loss")):
            picture.rows += [(run["name"], split, *point) for point in _curve(run, table, name)]
        if kinds.legend(runs, index):
            picture.legend.append(Entry(kinds.legend(runs, index), kinds.style(runs, run)))
    if not picture.rows:
        return None
    highest = max(map(_highest_later_loss, runs))
    last = max((one for one in (number(run, "record.final.iter") for run in runs) if not math.isnan(one)), default=0.0)

    def draw_all(axes: Axes) -> None:
        for run in runs:
            line = kinds.style(runs, run).line
            axes.plot(*_thinned(_curve(run, "steps", "loss")), **line(0.5))
            axes.plot(*_thinned(_curve(run, "evaluations", "val_loss")), **line(2), **POINTS)
        _label(axes, "iteration", "loss (nats a token)")
        if highest > axes.get_ylim()[0]:
            axes.set_ylim(top=highest)

    def draw_later(axes: Axes) -> None:
        for kind, run in enumerate(runs):
            if kinds.is_first(runs, kind):
                line, same = kinds.style(runs, run).line, kinds.repeats(runs, kind)
                axes.plot(*_later_means(same, "steps", "loss", last, NEIGHBOURS), **line(1))
                axes.plot(*_later_means(same, "evaluations", "val_loss", last, 0), **line(2), **POINTS)
        _label(axes, "iteration", "loss, last two thirds")
        axes.set_xlim(left=last / 3)

    picture.panels = [draw_all, draw_later] if last > 0 else [draw_all]
    ends = [(loss, run["name"]) for run in runs if not math.isnan(loss := number(run, "record.final.val_loss"))]
    if ends:
        picture.text += f". The lowest at the end is that of {escape(min(ends)[1])}, {min(ends)[0]:.4f} nats a token"
    return picture


def gradient_norms(runs: list[Json]) -> Picture | None:
    picture = Picture("gradient_norm", "Gradient norm", "Norms before clipping, cut at 5. ", "run,,iteration,gradient_norm", CURVE)
    items = []
    for index, run in enumerate(runs):
        picture.rows += [(run["name"], "", *point) for point in _curve(run, "steps", "grad_norm")]
        if (entry := kinds.legend(runs, index)) and _curve(run, "steps", "grad_norm"):
            picture.legend.append(Entry(entry, kinds.style(runs, run)))
            norms = [y for one in kinds.repeats(runs, index) for _, y in _curve(one, "steps", "grad_norm")]
            items.append(f"{escape(entry)}: largest {max(norms):.3g}, above {GRADIENT_NORM_CLAMP:g} in {sum(norm > GRADIENT_NORM_CLAMP for norm in norms)} steps")

    def draw(axes: Axes) -> None:
        for run in runs:
            axes.plot(*_thinned([(x, min(y, GRADIENT_NORM_CLAMP)) for x, y in _curve(run, "steps", "grad_norm")]), **kinds.style(runs, run).line(1))
        _label(axes, "iteration", "gradient norm")

    picture.panels = [draw]
    picture.text += "; ".join(items)
    return picture if picture.rows else None


# ---- over depth: did H_res leave the identity, do the streams collapse, what does the product of H_res keep?


def _h(run: Json) -> Json:
    return kinds.newest(run, "h")


def _depths(run: Json, name: str) -> list[float]:
    """A number of each sublayer."""
    return [number(sublayer, name) for sublayer in member(_h(run), "sublayers") or ()]


def _over_depth(picture: Picture, runs: list[Json], first: int, axes_of: Sequence[tuple[str, str, float | None, float | None]], x: str,
                say: Callable[[Json], str]) -> Picture | None:
    """Adds a curve of each run that has numbers of its sublayers, in a panel for each of axes_of: the number's name, the axis' label, and its ends."""
    shown = [run for run in runs if _h(run) and all(_depths(run, name) and not math.isnan(_depths(run, name)[0]) for name, *_ in axes_of)]
    for run in shown:
        picture.rows += [(run["name"], first + depth, *numbers) for depth, numbers in enumerate(zip(*(_depths(run, name) for name, *_ in axes_of)))]

    def draw(axes: Axes, name: str, label: str, low: float | None, high: float | None) -> None:
        for run in shown:
            ys = _depths(run, name)
            mark_branches(axes, range(first, first + len(ys)), ys, kinds.style(runs, run), first)
        _label(axes, x, label)
        axes.set_ylim(low, high)

    picture.panels = [functools.partial(draw, name=name, label=label, low=low, high=high) for name, label, low, high in axes_of]
    picture.legend = [Entry(run["name"], kinds.style(runs, run)) for run in shown] + BRANCHES
    return _of_runs(picture, shown, say)


def identity_distance(means: list[Json]) -> Picture | None:
    def say(run: Json) -> str:
        mean = number(_h(run), "identity_distance")
        answer = "is the identity still" if mean < STILL_IDENTITY else "is near the identity" if mean < NEAR_IDENTITY else "has left the identity"
        return f" {answer} ({mean:.3g} on average, the product of all sublayers {number(_h(run), 'product.identity_distance'):.3g})"

    picture = Picture("identity_distance", "Did H<sub>res</sub> leave the identity?", "Root mean square length of the rows of H<sub>res</sub> &minus; I, mean over tokens; 0 is "
                      "the identity. H<sub>res</sub> of ", "run,sublayer,identity_distance", CURVE)
    return _over_depth(picture, means, 0, [("identity_distance", "distance from the identity", 0, None)], "sublayer", say)


def collapse(means: list[Json]) -> Picture | None:
    def say(run: Json) -> str:
        cosine, share = _depths(run, "stream_cosine")[-1], _depths(run, "largest_share")[-1]
        answer = "keep nearly all in one stream" if share > ONE_STREAM else "point in nearly one direction" if cosine > ONE_DIRECTION else "differ"
        return f" {answer} (cosine {cosine:.3f}, largest stream {100 * share:.0f} %)"

    picture = Picture("collapse", "Do the streams collapse?", "After mixing by H<sub>res</sub>, mean over tokens: a cosine of 1 is one direction, a share of 1 is one stream. In "
                      "the last sublayer the streams of ", "run,sublayer,stream_cosine,largest_share", TWO_CURVES)
    return _over_depth(picture, means, 0, [("stream_cosine", "mean cosine of pairs of streams", None, 1.05),
                                           ("largest_share", "largest stream's share of the energy", 0, 1.05)], "sublayer", say)


def effective_rank(means: list[Json]) -> Picture | None:
    def say(run: Json) -> str:
        ranks = _depths(run, "effective_rank")
        return f" uses {number(_h(run), 'effective_rank'):.2f} of {number(_h(run), 'n_streams'):g} (at most {max(ranks):.2f}, in sublayer {ranks.index(max(ranks))})"

    picture = Picture("effective_rank", "How many streams are used?", "Effective rank of the streams that enter each sublayer, mean over tokens: 1 if all are multiples of one "
                      "vector, the number of streams if they are orthogonal and equally long. On average over sublayers ", "run,sublayer,effective_rank", CURVE)
    return _over_depth(picture, means, 0, [("effective_rank", "effective rank of the streams", 0.95, None)], "sublayer", say)


def singular_values(means: list[Json]) -> Picture | None:
    def say(run: Json) -> str:
        first, second, smallest = (_depths(run, f"product_{name}_mean")[-1] for name in ("norm", "second", "smallest"))
        answer = "keeps one combination of the streams and little else" if second < FLAT * first else "keeps differences between streams"
        return f" {answer} (first {first:.3g}, second {second:.3g}, smallest {smallest:.3g})"

    picture = Picture("singular_values", "Singular values of the product up to each depth", "Means over tokens: what the product of H<sub>res</sub> leaves of differences between "
                      "streams (the first is in the next picture). Through all sublayers, the product of ", "run,depth,second,smallest", TWO_CURVES)
    return _over_depth(picture, means, 1, [("product_second_mean", "second singular value", 0, None), ("product_smallest_mean", "smallest singular value", None, None)],
                       "sublayers multiplied", say)


def product_norm(means: list[Json]) -> Picture | None:
    import numpy as np

    picture = Picture("product_norm", "Spectral norm of the product up to each depth", "Lines are means over tokens, bands one deviation. Through all sublayers: ",
                      "run,depth,mean,deviation", CURVE)
    shown = [run for run in means if _h(run)]
    for run in shown:
        picture.rows += [(run["name"], depth, *row) for depth, row in enumerate(zip(_depths(run, "product_norm_mean"), _depths(run, "product_norm_deviation")), 1)]
    picture.legend = [Entry(run["name"], kinds.style(means, run)) for run in shown] + BRANCHES

    def draw(axes: Axes) -> None:
        for run in shown:
            norms, deviations = np.array(_depths(run, "product_norm_mean")), np.array(_depths(run, "product_norm_deviation"))
            depths, style = range(1, len(norms) + 1), kinds.style(means, run)
            axes.fill_between(depths, norms - deviations, norms + deviations, color=style.colour, alpha=0.25, linewidth=0)
            mark_branches(axes, depths, norms.tolist(), style, 1)
        _label(axes, "sublayers multiplied", "spectral norm")

    picture.panels = [draw]
    return _of_runs(picture, shown, lambda run: f" {number(_h(run), 'product.norm.mean'):.6f} "
                                                f"(largest {number(_h(run), 'product.norm.max'):.6f})", ", ")


# ---- over training: row maxima, the diagonal, similarity of the streams


def _points(run: Json) -> list[list[float]]:
    """Iteration, row maxima (10th percentile, median, 90th), share on the diagonal: from the run's log, or else measured of its checkpoints."""
    logged = member(run, "record.statistics") or {"iter": []}
    if logged["iter"]:
        names = ("iter", "row_max_p10", "row_max_median", "row_max_p90", "diagonal_fraction")
        return [[number(logged[name][at]) if name in logged else math.nan for name in names] for at in range(len(logged["iter"]))]
    return [[number(one, name) for name in ("iter", "h.row_max.p10", "h.row_max.median", "h.row_max.p90", "h.diagonal_fraction")] for one in run["checkpoints"] if one.get("h")]


def dynamics(means: list[Json]) -> Picture | None:
    picture = Picture("dynamics", "H<sub>res</sub> over training", "Largest entry of each row at the end, and how many matrices have all of them on the diagonal. ",
                      "run,iteration,row_max_p10,row_max_median,row_max_p90,diagonal_fraction", TWO_CURVES)
    shown = [run for run in means if len(_points(run)) > 1]
    picture.rows = [(run["name"], int(point[0]), *point[1:]) for run in shown for point in _points(run)]
    picture.legend = [Entry(run["name"], kinds.style(means, run)) for run in shown]

    def draw_maxima(axes: Axes) -> None:
        for run in shown:
            iterations, p10, median, p90, _ = zip(*_points(run))
            style = kinds.style(means, run)
            axes.fill_between(iterations, p10, p90, color=style.colour, alpha=0.25, linewidth=0)
            axes.plot(iterations, median, **style.line(2))
        _label(axes, "iteration", "row maximum")

    def draw_diagonal(axes: Axes) -> None:
        for run in shown:
            iterations, *_, shares = zip(*_points(run))
            axes.plot(iterations, shares, **kinds.style(means, run).line(2))
        _label(axes, "iteration", "share with row maxima on the diagonal")
        axes.set_ylim(0, 1.05)

    def say(run: Json) -> str:
        _, p10, median, p90, diagonal = _points(run)[-1]
        return f": median {median:.3f} ({p10:.3f} to {p90:.3f}), {100 * diagonal:.1f} % on the diagonal"

    picture.panels = [draw_maxima, draw_diagonal]
    return _of_runs(picture, shown, say)


def _shared_range(values: list[float]) -> tuple[float, float]:
    """The ends of the axis of panels that are compared. No deviation looks like one in a range as small as its rounding."""
    low, high = min(values), max(values)
    margin = 0.05 * max(high - low, 0.01)
    return low - margin, high + margin


def similarity(means: list[Json]) -> Picture | None:
    picture = Picture("similarity", "Similarity of the streams after mixing", "Mean cosine of pairs of streams, a line for each sublayer from dark (first) to light (last), of "
                      "attention solid, of MLP dashed. Over all sublayers at the end: ", "run,iteration,sublayer,cosine", PANELS)
    shown = [run for run in means if len(rows := member(run, "record.statistics.stream_cosine") or ()) > 1 and all(isinstance(row, list) for row in rows)]
    cosines = [[list(map(number, row)) for row in run["record"]["statistics"]["stream_cosine"]] for run in shown]  # [runs][rows][sublayers]
    iterations = [run["record"]["statistics"]["iter"] for run in shown]
    low, high = _shared_range([one for rows in cosines for row in rows for one in row if not math.isnan(one)] or [0.0])

    def draw(axes: Axes, at: int) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        shades = LinearSegmentedColormap.from_list("depth", ["#440154", "#21918c", "#d9c61f"])
        for layer, ys in enumerate(columns := list(zip(*cosines[at]))):
            axes.plot(iterations[at], ys, color=shades(layer / max(len(columns) - 1, 1)), linewidth=1.5, linestyle="--" if layer % 2 else "-")
        _title(axes, shown[at]["name"])
        axes.set_xlabel("iteration")
        axes.set_ylim(low, high)

    picture.rows = [(run["name"], iteration, layer, cosine) for run, found, rows in zip(shown, iterations, cosines)
                    for iteration, row in zip(found, rows) for layer, cosine in enumerate(row)]
    picture.panels = [functools.partial(draw, at=at) for at in range(len(shown))]
    return _of_runs(picture, shown, lambda run: f" {statistics.fmean(cosines[shown.index(run)][-1]):.3f}", ", ")


# ---- H_res of checkpoints: column sums, entries, heat maps


def column_sums(means: list[Json]) -> Picture | None:
    picture = Picture("column_sums", "Column sums of H<sub>res</sub>", "Boxes hold 80 % of the sums, lines all of them: filled boxes are attention, empty ones MLP, and 'all' is the "
                      "product of all sublayers. ", "run,sublayer,min,p10,median,p90,max", PANELS)
    shown = [run for run in means if _h(run)]
    names = ("min", "p10", "median", "p90", "max")
    sums = [[[number(one, f"column_sum.{name}") for name in names] for one in (*_h(run)["sublayers"], _h(run)["product"])] for run in shown]
    picture.rows = [(run["name"], depth, *row) for run, rows in zip(shown, sums) for depth, row in enumerate(rows)]
    low, high = _shared_range([1.0, *(end for rows in sums for row in rows for end in (row[0], row[4]))])

    def draw(axes: Axes, run: Json, rows: list[list[float]]) -> None:
        colour = kinds.style(means, run).colour
        last = len(rows) - 1
        for depth, (least, p10, median, p90, most) in enumerate(rows):
            x = depth + (depth == last)
            look = {"hatch": "////", "facecolor": "none"} if depth == last else {"facecolor": "none" if depth % 2 else colour}
            axes.vlines(x, least, most, color=colour, linewidth=1.2)
            axes.bar(x, p90 - p10, 0.6, p10, edgecolor=colour, linewidth=1.2, **look)
            axes.plot([x], [median], "o", color=colour, markersize=2.5)
        ticks = range(0, last, last // 8 + 1)
        axes.set_xticks([*ticks, last + 1], [*map(str, ticks), "all"])
        _title(axes, run["name"])
        _label(axes, "sublayer", "column sum")
        axes.set_ylim(low, high)

    picture.panels = [functools.partial(draw, run=run, rows=rows) for run, rows in zip(shown, sums)]
    return _of_runs(picture, shown, lambda run: f": {number(_h(run), 'column_sum.min'):.4f} to {number(_h(run), 'column_sum.max'):.4f}, of the product "
                                                f"{number(_h(run), 'product.column_sum.min'):.4f} to {number(_h(run), 'product.column_sum.max'):.4f}")


def entries(means: list[Json]) -> Picture | None:
    picture = Picture("entries", "Entries of H<sub>res</sub>", "Entries of all sublayers; negative are, of ", "run,from,to,count", PANELS)
    shown = [run for run in means if _h(run)]

    def draw(axes: Axes, run: Json, bins: list[tuple[float, float, float]]) -> None:
        total = sum(number(_h(run)["entries"][name]) for name in ("below", "above")) + sum(count for _, _, count in bins)
        axes.bar([low for low, _, _ in bins], [count / total for _, _, count in bins], _h(run)["entries"]["width"], align="edge",
                 color=kinds.style(means, run).colour, linewidth=0)
        _title(axes, run["name"])
        _label(axes, "entry", "share")
        axes.set_yscale("log")
        axes.set_ylim(1e-6, 1)
        axes.set_xlim(-1, 1.5)

    for run in shown:
        found = _h(run)["entries"]
        bins = [(float(found["low"] + found["width"] * at), float(found["low"] + found["width"] * (at + 1)), count)
                for at, count in enumerate(map(number, found["counts"])) if count]
        picture.panels.append(functools.partial(draw, run=run, bins=bins))
        picture.rows += [(run["name"], low, high, f"{count:.15g}") for low, high, count in bins]
    return _of_runs(picture, shown, lambda run: f" {100 * number(_h(run), 'negative_fraction'):.2f} % "
                                                f"(smallest {number(_h(run), 'smallest_entry'):.3f})", ", ")


def heat_maps(means: list[Json]) -> Picture | None:
    picture = Picture("heat_maps", "H<sub>res</sub>, averaged over a sequence", "Means over the first sequence at three depths and of the product of all sublayers; row sums stand at "
                      "the left, column sums below", "run,sublayer,row,column,entry", ROWS)

    def draw(axes: Axes, matrix: list[list[float]], title: str) -> None:
        size = len(matrix)
        show_matrix(axes, matrix, 1.0)
        for i in range(size):
            for j in range(size):
                axes.text(j, i, f"{matrix[i][j]:.2f}", ha="center", va="center", fontsize=6 if size > 5 else 9, color="#222222")
        axes.set_xticks(range(size), [f"{sum(row[j] for row in matrix):.2f}" for j in range(size)])
        axes.set_yticks(range(size), [f"{sum(row):.2f}" for row in matrix])
        _title(axes, title)

    for run in means:
        if _h(run):
            sublayers = _h(run)["sublayers"]
            count = len(sublayers)
            chosen = [(f"sublayer {depth} ({'MLP' if depth % 2 else 'attention'})", sublayers[depth]) for depth in (int(count > 1), count // 2, count - 1)]
            for where, found in (*chosen, ("product of all sublayers", _h(run)["product"])):
                matrix = [[number(entry) for entry in row] for row in found["first_sequence"]]
                picture.rows += [(run["name"], where, i, j, entry) for i, row in enumerate(matrix) for j, entry in enumerate(row)]
                picture.panels.append(functools.partial(draw, matrix=matrix, title=f"{run['name']}\n{where}"))
    return picture if picture.panels else None


# ---- with which weights sublayers read and write: what hc_probe calls "h_pre.0", "depth.top", ...

READS_AND_WRITES = {"h_pre": "reads", "h_gate": "reads (gates)", "h_post": "writes", "depth": "reads", "ve_gate": "gates of value embeddings"}
WAYS = ("q reads (last: top)", "k reads", "v reads", "residual reads")  # of mudd, whose weights have a row for each
MOST_PANELS = 12  # of a run


def _row_title(variant: str, group: str, row: int) -> str:
    """Of a row of weights: one of mudd's ways, a fraction of frac, or a head of attention over depth."""
    if variant == "mudd" and row < len(WAYS):
        return WAYS[row]
    return f"{'fraction' if variant == 'frac' else 'head'} {row} {READS_AND_WRITES.get(group, '')}"


def _value_panels(values: Json, variant: str) -> Iterator[tuple[str, int, list[tuple[str, list[Json]]]]]:
    """Title, row, and the named columns of each of the first panels. H_res has heat maps of its own."""
    groups: dict[str, list[tuple[str, Json]]] = {}
    for name, value in values.items():
        if "." in name and not name.startswith("h_res."):
            groups.setdefault(name.partition(".")[0], []).append((name, value))
    panels = []
    for group, found in groups.items():
        if isinstance(found[0][1][0], list):
            panels += [(_row_title(variant, group, row), row, [(name, value[row]) for name, value in found if row < len(value)]) for row in range(len(found[0][1]))]
        else:
            panels.append((READS_AND_WRITES.get(group, ""), 0, found))
    yield from panels[:MOST_PANELS]


def value_maps(means: list[Json]) -> Picture | None:
    picture = Picture("value_maps", "What sublayers read and write", "Weights with which each sublayer reads and writes, means over tokens; the darkest blue is the number in the "
                      "title, and red is below zero. Rows are streams, fractions, heads, or earlier states from the embedding on. Columns are sublayers, of mudd and dense blocks; "
                      "one behind them is what the output layer reads", "run,value,way,place,mean", ROWS)

    def draw(axes: Axes, columns: list[list[float]], title: str) -> None:
        rows = max(map(len, columns))
        most = max((abs(one) for column in columns for one in column if not math.isnan(one)), default=0.0)
        show_matrix(axes, [[column[row] if row < len(column) else math.nan for column in columns] for row in range(rows)], most or 1.0)
        _title(axes, f"{title}, up to {most:.3g}")
        axes.set_xticks(range(0, len(columns), len(columns) // 8 + 1))
        axes.set_yticks(range(0, rows, rows // 8 + 1))
        _label(axes, "sublayer", "stream or state")

    def leave_empty(axes: Axes) -> None:
        axes.set_axis_off()

    for run in means:
        panels = list(_value_panels(kinds.newest(run, "value_means") or {}, kinds.variant(run)))
        for title, row, named in panels:
            columns = [[number(one) for one in value[:MOST_SIDE]] for _, value in named[:MOST_SIDE]]
            picture.rows += [(run["name"], name, row, place, one) for (name, _), column in zip(named, columns) for place, one in enumerate(column) if not math.isnan(one)]
            picture.panels.append(functools.partial(draw, columns=columns, title=f"{run['name']}\n{title}"))
        picture.panels += [leave_empty] * (-len(picture.panels) % 4)
    return picture if picture.panels else None


# ---- what bench/compare.py measured, against the number of streams


def _over_streams(picture: Picture, bench: Json, field: str, label: str, logarithmic: bool) -> Picture | None:
    """A curve of each residual connection."""
    points: dict[str, list[tuple[float, float]]] = {}
    for case in member(bench, "cases") or ():
        if isinstance(member(case, "residual"), str) and number(case, field) > 0 and not math.isnan(number(case, "n_streams")):
            points.setdefault(case["residual"], []).append((number(case, "n_streams"), number(case, field)))
    order = [variant for variant in kinds.COLOURS if variant in points] + [variant for variant in points if variant not in kinds.COLOURS]
    styles = {variant: kinds.Style(kinds.COLOURS.get(variant, kinds.OTHER_COLOUR), "-") for variant in order}
    picture.rows = [(variant, f"{x:g}", y) for variant in order for x, y in sorted(points[variant])]
    picture.legend = [Entry(variant, styles[variant]) for variant in order]

    def draw(axes: Axes) -> None:
        for variant in order:
            axes.plot(*zip(*sorted(points[variant])), **styles[variant].line(2), marker="o", markersize=4)
        axes.set_xlim(0.5, 8.5)
        axes.set_xticks(range(1, 9))
        _label(axes, "streams", label)
        if logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)

    picture.panels = [draw]
    return picture if points else None


def throughput(bench: Json) -> Picture | None:
    picture = Picture("throughput", "Throughput against streams", "Training steps of the same model, variants measured in turn by bench/compare.py",
                      "residual,n_streams,tokens_per_second", CURVE)
    return _over_streams(picture, bench, "tokens_per_second", "tokens/s", False)


def auxiliary(bench: Json) -> Picture | None:
    picture = Picture("auxiliary", "Auxiliary parameters against streams", "Parameters of the hyper-connections, without those of the model itself; "
                      "the scale is logarithmic", "residual,n_streams,auxiliary_parameters", CURVE)
    return _over_streams(picture, bench, "auxiliary", "auxiliary parameters", True)


def pictures(analysis: Json) -> list[Picture]:
    """Those that the analysis has something for, in the order of the report."""
    runs = analysis["runs"]
    means = kinds.seed_means(runs)
    over_means = (identity_distance, collapse, effective_rank, dynamics, similarity, singular_values, product_norm, column_sums, entries, heat_maps, value_maps)
    found = [losses(runs), gradient_norms(runs), *(draw(means) for draw in over_means), throughput(analysis.get("bench")), auxiliary(analysis.get("bench"))]
    return [picture for picture in found if picture]
