"""A report as one page of HTML that needs nothing beside it: tables, pictures, and the numbers behind those."""
from __future__ import annotations

import base64
import math
from html import escape
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

from . import kinds
from .inputs import Json, by_value, member, number
from .picture import NARROW_WIDTH, Picture

MOST_INLINE_CSV = 1 << 20  # bytes: a larger one is a link to the file
MOST_FIXED = 1e6  # above it numbers have an exponent: perplexities of byte models
FEW_PAIRS = 3  # up to so many, intervals are several times as wide as of many
SIGNIFICANT = -1  # instead of a number of decimals: as few digits as a learning rate needs


class Column(NamedTuple):
    head: str  # HTML
    path: str  # in the run, or in its h
    decimals: int | None = None  # None: a text
    scale: float = 1.0


RUNS = [Column("streams", "config.n_streams", 0), Column("parameters, millions", "parameters.total", 2, 1e-6), Column("data", "record.settings.data_dir"),
        Column("learning rate", "record.settings.learning_rate", SIGNIFICANT), Column("iterations", "record.final.iter", 0),
        Column("training loss", "record.final.train_loss", 4), Column("validation loss", "record.final.val_loss", 4), Column("best", "record.final.best_val_loss", 4),
        Column("bits/byte", "record.final.bits_per_byte", 4), Column("tokens/s", "record.final.tokens_per_sec", 0),
        Column("dtype", "record.settings.dtype"), Column("device", "record.device")]
MATRICES = [Column("distance from I", "identity_distance", 4), Column("cosine of streams", "stream_cosine", 4), Column("largest stream %", "largest_share", 1, 100),
            Column("streams in use", "effective_rank", 2), Column("row max, median", "row_max.median", 4), Column("diagonal %", "diagonal_fraction", 2, 100),
            Column("negative %", "negative_fraction", 2, 100), Column("smallest entry", "smallest_entry", 4), Column("column sum, min", "column_sum.min", 6),
            Column("max", "column_sum.max", 6), Column("spectral norm, max", "norm_max", 6), Column("product: column sum, min", "product.column_sum.min", 6),
            Column("max", "product.column_sum.max", 6), Column("norm, mean", "product.norm.mean", 6)]
DOCUMENTS = [Column("", "word_perplexity", 2), Column("bits/byte", "bits_per_byte", 4)]
TASKS = [Column("", "acc", 4), Column("&plusmn;", "acc_stderr", 4), Column("acc_norm", "acc_norm", 4), Column("&plusmn;", "acc_norm_stderr", 4),
         Column("perplexity", "perplexity", 2), Column("&plusmn;", "perplexity_stderr", 2)]


# ---- cells and tables


def _text_of(value: float, decimals: int) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.{decimals}f}" if decimals >= 0 and abs(value) < MOST_FIXED else f"{value:.{6 if decimals < 0 else 3}g}"


def _cell(value: Json, column: Column) -> str:
    found = member(value, column.path)
    if column.decimals is not None:
        return f"<td>{_text_of(column.scale * number(found), column.decimals)}</td>"
    text = found if isinstance(found, str) else ""
    return f'<td class="text">{escape(text.rpartition("/")[2] if column.path.endswith("data_dir") else text)}</td>'


def _table(title: str, text: str, heads: Iterable[str], rows: Sequence[str]) -> str:
    """HTML of a table with these rows of cells; nothing where there are none."""
    cells = "".join(f'<th><button type="button">{head}</button></th>' for head in heads)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f'<h2>{title}</h2>\n<p>{text}</p>\n<div class="table"><table><thead><tr>{cells}</tr></thead><tbody>\n{body}</tbody></table></div>\n' if rows else ""


def _first_cells(run: Json) -> str:
    return f"<td>{escape(run['name'])}</td><td>{escape(kinds.variant(run))}</td>"


def _columns_table(title: str, text: str, columns: list[Column], runs: list[Json], values: Iterable[Json]) -> str:
    """A row for each run that has a value, with its columns."""
    rows = [_first_cells(run) + "".join(_cell(value, column) for column in columns) for run, value in zip(runs, values) if value]
    return _table(title, text, ["run", "variant", *(column.head for column in columns)], rows)


def _evaluation_table(runs: list[Json], kind: str, title: str, text: str, columns: list[Column]) -> str:
    """For each evaluation, the first of these columns under its name, and those of the others that some run has a number for."""
    names = sorted({name for run in runs for name in member(run, f"record.{kind}") or ()}, key=by_value)
    shown = [(name, column) for name in names for at, column in enumerate(columns)
             if at == 0 or any(not math.isnan(number(_evaluation(run, kind, name), column.path)) for run in runs)]
    rows = [_first_cells(run) + "".join(_cell(_evaluation(run, kind, name), column) for name, column in shown) for run in runs] if names else []
    return _table(title, text, ["run", "variant", *(column.head or escape(name) for name, column in shown)], rows)


def _evaluation(run: Json, kind: str, name: str) -> Json:
    return (member(run, f"record.{kind}") or {}).get(name)


# ---- variants over seeds


def _estimate(found: Json, is_difference: bool = False) -> str:
    """A mean with its interval; a difference has its sign."""
    mean, half_width = number(found, "mean"), number(found, "half_width")
    text = "" if math.isnan(mean) else f"{mean:+.4f}" if is_difference else f"{mean:.4f}"
    if not math.isnan(half_width):
        text += f" &plusmn; {half_width:.4f}"
    elif text and is_difference:
        text += " (one pair)"
    return f"<td>{text}</td>"


def _variant_row(runs: list[Json], variant: Json, baselines: Iterable[str]) -> str:
    cells = [f"<td>{escape(kinds.kind_label(runs, variant['kind']))}</td>", _cell(variant, Column("", "n_streams", 0)), _cell(variant, Column("", "learning_rate", SIGNIFICANT)),
             f"<td>{len(variant['runs'])}</td>", _estimate(variant["final"]), _cell(variant, Column("", "best.mean", 4))]
    return "".join(cells + [_estimate(member(variant["differences"].get(name), "final"), True) for name in baselines])


def _notes(runs: list[Json], comparison: Json) -> str:
    """What a reader of the table has to know."""
    notes, pairs = [], []
    for variant in comparison["variants"]:
        label = kinds.kind_label(runs, variant["kind"])
        notes += [f"{runs[one['run']]['name']} is left out: {one['why']}." for one in variant["left_out"]]
        for name, difference in variant["differences"].items():
            if "why" in difference:
                notes.append(f"{label} has no difference to {name}: {difference['why']}.")
                continue
            pairs.append(difference["pairs"])
            if "settings" in difference:
                notes.append(f"{label} is compared with {name} although {difference['settings']}.")
    if pairs and min(pairs) == 1:
        notes.append("Too few pairs: one alone has no interval. Train more seeds.")
    elif pairs and min(pairs) <= FEW_PAIRS:
        notes.append("Few pairs: of two or three an interval is wide (Student's t is 12.7 and 4.3). More seeds make it narrower.")
    if comparison["batches_by_seed"]:
        notes.append("Evaluation batches of these runs depend on the seed (eval_batches is by_seed, or absent as in runs of older versions), so means and their intervals "
                     "contain the differences between batches; paired differences do not, since both runs of a pair have the same batches.")
    return f'<p class="quiet">{escape(" ".join(notes), quote=False)}</p>\n'


def _variant_table(runs: list[Json], comparison: Json) -> str:
    """A row for each variant; nothing where there are not two runs to compare."""
    variants = comparison["variants"]
    if sum(len(variant["runs"]) for variant in variants) < 2:
        return ""
    baselines = list(dict.fromkeys(name for variant in variants for name in variant["differences"]))
    return _table("Variants", "Means of the last validation losses, and of the lowest ones (best), over runs that differ in the seed alone. Differences to other variants are means "
                  "over pairs of runs of the same seed; &plusmn; are 95 % intervals by Student's t.",
                  ["variant", "streams", "learning rate", "seeds", "validation loss", "best", *(f"to {escape(name)}" for name in baselines)],
                  [_variant_row(runs, variant, baselines) for variant in variants]) + _notes(runs, comparison)


def tables(analysis: Json) -> str:
    """HTML of all tables, as far as the analysis has something for them."""
    runs = analysis["runs"]
    return "".join([
        _variant_table(runs, analysis["comparison"]),
        _columns_table("Runs", "Training loss is the mean of the last 200 iterations, and tokens/s is their median; losses are in nats a token. "
                       "Click a head to sort.", RUNS, runs, runs),
        _evaluation_table(runs, "documents", "Perplexity of documents", "Per word, as hc_eval and lm-evaluation-harness compute it; beside it bits per byte.", DOCUMENTS),
        _evaluation_table(runs, "tasks", "Downstream tasks", "Accuracy (acc) of answers to the questions of a task, as lm-evaluation-harness computes it, with its "
                          "standard error; beside it the accuracy by log-likelihoods per character (acc_norm), or the perplexity of the last word.", TASKS),
        _columns_table("H<sub>res</sub>", "Of each run's last checkpoint, over all tokens of the samples and all sublayers.", MATRICES,
                       runs, (kinds.newest(run, "h") for run in runs))])


# ---- the page


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _picture(picture: Picture, folder: Path) -> str:
    """A picture in two forms, of which a browser takes the one for its width."""
    name, (width, height), numbers = picture.name, picture.size(False), (folder / f"{picture.name}.csv").read_bytes()
    wide, narrow = (_data("image/svg+xml", (folder / f"{name}{form}.svg").read_bytes()) for form in ("", "-narrow"))
    link = f"figures/{name}.csv" if len(numbers) > MOST_INLINE_CSV else _data("text/csv", numbers)
    return (f'<section id="{name}">\n<h2>{picture.title}</h2>\n<p>{picture.text}.</p>\n<figure><picture><source media="(max-width: 40rem)" width="{NARROW_WIDTH}" '
            f'height="{picture.size(True)[1]}" srcset="{narrow}"><img alt="{name}" width="{width}" height="{height}" src="{wide}"></picture></figure>\n'
            f'<p class="quiet"><a download="{name}.csv" href="{link}">the numbers (CSV)</a></p>\n</section>\n')


def page(analysis: Json, pictures: list[Picture], folder: Path, version: str, refresh: int) -> str:
    """HTML of the report; `folder` has the pictures. refresh: seconds after which a browser loads it again; 0: never."""
    runs, here = len(analysis["runs"]), Path(__file__).parent
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    sampled = f", H<sub>res</sub> on {analysis['samples']} sequences" if analysis["samples"] else ""
    links = "".join(f'<a href="#{picture.name}">{picture.title}</a>\n' for picture in pictures)
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n{again}'
            f'<title>Residual streams: a report</title>\n<link rel="icon" href="data:,">\n<style>\n{(here / "style.css").read_text(encoding="utf-8")}</style>\n</head>\n<body>\n'
            f'<h1>Residual streams</h1>\n<p class="quiet">hctrain {escape(version)}. {runs} run{"" if runs == 1 else "s"}{sampled}.</p>\n<nav>\n{links}</nav>\n'
            f'{tables(analysis)}{"".join(_picture(picture, folder) for picture in pictures)}'
            f'<script>\n{(here / "script.js").read_text(encoding="utf-8")}</script>\n</body>\n</html>\n')
