"""What ci/study.sh --budget depth has found: a table, what can be told apart, H_res, and a picture of gains and H_res against depth."""
import json
import math
import pathlib
import re
import statistics
from html import escape
from typing import NamedTuple

from hctrain import paired
from hctrain.sweep.plan import number_text, read_arguments, short
from hctrain.sweep.report import STYLE
from hctrain.sweep.runs import Needs, Sweep, Table

DEPTHS = (6, 24, 48)
MIXED = ("hc", "mhc", "shc")  # whose H_res is shown
H_KEYS = ("identity_distance", "effective_rank")
FREQUENCIES = 3.2075  # nats a byte: what a model loses that knows only how often each byte of the dictionary occurs (hc_prepare says it)


class Found(NamedTuple):
    """Of a connection at one depth."""
    rate: float
    losses: dict  # {seed: loss} at this rate
    diverged_rates: list  # of those that were tried
    folders: list  # of the runs with these seeds, in their order
    h: dict  # {seed: {key: list over sublayers}} of MIXED

    def diverged(self):
        """How many seeds ended worse than FREQUENCIES."""
        return sum(not loss < FREQUENCIES for loss in self.losses.values())


def read(root, layers):
    """{connection: Found} of the runs in bench/depth_<layers>.tsv that have their learning rate."""
    name = f"depth_{layers}"
    plan, _ = read_arguments([f"--sweep={root}/configs/{name}.sweep", "--data-dir=data/corpus/gcide", f"--out={root}/out/{name}"])
    table = Table(root / "bench" / f"{name}.tsv", plan)
    sweep, found = Sweep(plan, table, root / "out" / name, None), {}
    for choices in plan.all_choices():
        best, tried = Needs(plan, table).choose(choices)
        runs = sorted(run for run in table.rows if run.choices == choices and run.best == best and run.seed != plan.best_seed)
        if runs:
            diverged = [run.best[0] for run in tried if run in table.rows and not table.loss(run) < FREQUENCIES and not table.rows[run][1].startswith("refused")]
            label = re.sub(r"hc_until=\d+", "hc_until a third", short(choices[0]))
            found[label] = Found(best[0], {run.seed: table.loss(run) for run in runs}, sorted(diverged), [sweep.folder(run) for run in runs], {})
    h_of_runs(root / "bench" / "depth_h.json", layers, found)
    return found


def gains_over_rc(all_found):
    """{(layers, connection): Difference of rc's loss to its own} where no seed diverged."""
    gains = {}
    for layers, found in all_found.items():
        plain = found.get("rc")
        for name, one in found.items():
            gain = name != "rc" and plain and not plain.diverged() and not one.diverged() and paired.difference(plain.losses, one.losses)
            if gain:
                gains[layers, name] = gain
    return gains


def cell(one, gain, clear):
    """Text of a connection's rate, and its gain or loss."""
    text = number_text(one.rate) + (f" ({', '.join(map(number_text, one.diverged_rates))} diverged)" if one.diverged_rates else "") + ": "
    if one.diverged():
        return text + f"{one.diverged()} of {len(one.losses)} diverged"
    mark = "**" if clear else ""
    return text + (f"{mark}{gain.mean:+.4f} ± {gain.half_width():.4f}{mark}" if gain else f"loss {statistics.fmean(one.losses.values()):.4f}")


def rows(all_found, gains):
    """The table's heads and rows. Seeds are in the heads, and beside the gains of connections that have others."""
    corrected = paired.holm({key: gain.p for key, gain in gains.items()})
    seeds = {layers: max(len(one.losses) for one in found.values()) for layers, found in all_found.items()}
    heads = ["connection"] + [f"{layers} layers, {seeds[layers]} seeds" for layers in all_found]
    lines = []
    for name in dict.fromkeys(name for found in all_found.values() for name in found):
        line = [f"`{name}`"]
        for layers, found in all_found.items():
            key, one = (layers, name), found.get(name)
            line.append(cell(one, gains.get(key), corrected.get(key, 1) < 0.05) if one else "")
            if one and len(one.losses) < seeds[layers]:
                line[-1] += f", {len(one.losses)} seeds"
        lines.append(line)
    return heads, lines


def told_apart(all_found):
    """A line for each depth: what differs from the identity, by Holm's procedure over all pairs of that depth."""
    text = ""
    for layers, found in all_found.items():
        pairs = paired.all_pairs({name: one.losses for name, one in found.items() if not one.diverged()})
        clear = [pair for pair in pairs if pair.p < 0.05]
        sides = (("better than", [f"`{pair.better}`" for pair in clear if pair.worse == "identity"]),
                 ("worse than", [f"`{pair.worse}`" for pair in clear if pair.better == "identity"]))
        found_apart = "".join(f"; {what} `identity`: {', '.join(names)}" for what, names in sides if names)
        text += f"- {layers} layers: {len(clear)} of {len(pairs)} pairs told apart{found_apart}\n"
    return text


# ---- H_res


def h_by_sublayer(found, key):
    """Means over seeds of a list of h_statistics.jsonl at the end of training; empty where there are none."""
    return [statistics.fmean(values) for values in zip(*(h[key] for h in found.h.values()))]


def h_of_runs(file, layers, found):
    """Puts into `found` what FILE has of these runs, {"<layers> <connection>": {seed: {key: [sublayers]}}}, and into FILE what folders have."""
    kept = json.loads(file.read_text()) if file.is_file() else {}
    for name in MIXED:
        if name in found:
            h = kept.setdefault(f"{layers} {name}", {})
            for seed, folder in zip(sorted(found[name].losses), found[name].folders):
                source = folder / "h_statistics.jsonl"
                if source.is_file():
                    last = json.loads(source.read_text().splitlines()[-1])
                    h[str(seed)] = {key: [round(value, 5) for value in last[key]] for key in H_KEYS}
            found[name].h.update({seed: h[str(seed)] for seed in found[name].losses if str(seed) in h})
    if kept:
        file.write_text(json.dumps(kept, sort_keys=True).replace("}, ", "},\n") + "\n")


def h_rows(all_found):
    """Heads and rows: means over sublayers, of the distance of H_res from the identity and of the streams used."""
    heads = ["distance; streams used"] + [f"{layers} layers" for layers in all_found]
    lines = []
    for name in MIXED:
        values = [[h_by_sublayer(found[name], key) for key in H_KEYS] if name in found else [[]] for found in all_found.values()]
        if any(all(one) for one in values):
            lines.append([f"`{name}`"] + ["; ".join(f"{statistics.fmean(one):.3f}" for one in both) if all(both) else "" for both in values])
    return heads, lines


# ---- the picture

WIDTH, HEIGHT, COLUMNS = 210, 130, 4  # of a panel in pixels, and panels in a row
LEFT, TOP = 44, 28  # its margins
PLOT = (WIDTH - LEFT - 8, HEIGHT - TOP - 24)
DASHES = dict(zip(DEPTHS, ("", "5 2", "2 2")))


def panel(place, title, ticks, bottom, draw):
    """A panel with lines at its ticks, of which the first is the darkest, and texts below; draw(x, y) returns lines in it, with x from 0 to 1 and y a
    value between the ticks."""
    low, high = min(ticks), max(ticks)
    left, top = LEFT + place % COLUMNS * WIDTH, TOP + place // COLUMNS * HEIGHT

    def y(value):
        return f"{top + PLOT[1] * (high - min(max(value, low), high)) / (high - low):.1f}"

    def x(share):
        return f"{left + PLOT[0] * share:.1f}"

    lines = [f'<text x="{x(0.5)}" y="{top - 8}" text-anchor="middle">{escape(title)}</text>']
    lines += [f'<path class="{"line" if number else "zero"}" d="M{x(0)} {y(value)}H{x(1)}"/><text class="small" x="{left - 6}" y="{float(y(value)) + 4:.1f}" '
              f'text-anchor="end">{value:.2g}</text>' for number, value in enumerate(ticks)]
    lines += [f'<text class="small" x="{x(share)}" y="{top + PLOT[1] + 16}" text-anchor="middle">{text}</text>' for share, text in bottom]
    return lines + draw(x, y)


def gain_panel(place, name, all_found, gains, most):
    """Gains with their intervals against depth; below the panel's end: the number."""
    at = {layers: 0.08 + 0.84 * math.log(layers / DEPTHS[0]) / math.log(DEPTHS[-1] / DEPTHS[0]) for layers in DEPTHS}

    def draw(x, y):
        lines = []
        for layers, found in all_found.items():
            gain, one = gains.get((layers, name)), found.get(name)
            if gain:
                low, high = gain.mean - gain.half_width(), gain.mean + gain.half_width()
                kind = ' class="clear"' if low > 0 or high < 0 else ""
                number = "" if gain.mean >= -most else f'<text class="small" x="{x(at[layers])}" y="{float(y(-most)) - 8:.1f}" text-anchor="middle">{gain.mean:.2g}</text>'
                lines.append(f'<g{kind}><path class="bar" d="M{x(at[layers])} {y(low)}V{y(high)}"/><circle class="dot" cx="{x(at[layers])}" cy="{y(gain.mean)}" r="4"/></g>' + number)
            elif one and one.diverged():
                lines.append(f'<text class="small" x="{x(at[layers])}" y="{float(y(-most)) - 8:.1f}" text-anchor="middle">{one.diverged()} of {len(one.losses)} x</text>')
        return lines

    return panel(place, re.sub("(attnres|hc|mudd)_", "", name), (0.0, -most, most), [(at[layers], layers) for layers in all_found], draw)


def h_panel(place, title, ticks, name, key, all_found):
    """A list of h_statistics.jsonl over the sublayers, a line for each depth."""
    def draw(x, y):
        curves = {layers: h_by_sublayer(found[name], key) for layers, found in all_found.items() if name in found}
        return [f'<path class="curve" stroke-dasharray="{DASHES[layers]}" d="M' + "L".join(f"{x(i / (len(values) - 1))} {y(value)}" for i, value in enumerate(values)) + '"/>'
                for layers, values in curves.items() if values]

    return panel(place, f"{name}: {title}", ticks, [(0, "first"), (1, "last")], draw)


def picture(all_found, gains):
    """SVG: a panel of gains for each connection, and two of H_res for each of MIXED."""
    names = list(dict.fromkeys(name for found in all_found.values() for name in found if name != "rc"))
    most = 1.5 * max([gain.mean for gain in gains.values()] + [0.001])  # wider intervals end at the panel's edge
    lines = [line for place, name in enumerate(names) for line in gain_panel(place, name, all_found, gains, most)]
    place = math.ceil(len(names) / COLUMNS) * COLUMNS
    for title, key, least in (("H_res from I", "identity_distance", 0.0), ("streams used", "effective_rank", 1.0)):
        values = [value for found in all_found.values() for name in MIXED if name in found for value in h_by_sublayer(found[name], key)]
        for column, name in enumerate(MIXED if values else ()):
            lines += h_panel(place + column, title, (least, max(values)), name, key, all_found)
        place += COLUMNS if values else 0
    height = TOP + place // COLUMNS * HEIGHT
    for text in ("Gain over rc in nats a byte by layers, intervals of 95 % each; x: seeds that diverged", "H_res by sublayer: a line with 6 layers, dashed with 24, dotted with 48"):
        lines.append(f'<text class="small" x="{LEFT}" y="{height - 8}">{text}</text>')
        height += 16
    style = STYLE.replace("</style>", ".curve{fill:none;stroke:#0969da;stroke-width:1.5}\n@media (prefers-color-scheme:dark){.curve{stroke:#4493f8}}\n</style>")
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH + 24} {height}">\n' + style + "\n".join(lines) + "\n</svg>\n"


def study(root):
    """(heads and rows of the table, lines of what can be told apart, heads and rows of H_res, the SVG)"""
    all_found = {layers: found for layers in DEPTHS if (found := read(pathlib.Path(root), layers))}
    gains = gains_over_rc(all_found)
    return rows(all_found, gains), told_apart(all_found), h_rows(all_found), picture(all_found, gains)
