"""A picture of means with intervals, as SVG that follows the reader's choice of light or dark."""
import math
from html import escape
from typing import NamedTuple

STYLE = """<style>
text{fill:#1f2328;font:13px sans-serif}.small{font-size:11px;fill:#59636e}.line{stroke:#d1d9e0}.zero{stroke:#59636e}
.bar{stroke:#59636e;stroke-width:2}.dot{stroke:#59636e;stroke-width:2;fill:#ffffff}
.clear .bar{stroke:#0969da}.clear .dot{stroke:#0969da;fill:#0969da}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.line{stroke:#3d444d}.zero{stroke:#9198a1}
.bar{stroke:#9198a1}.dot{stroke:#9198a1;fill:#0d1117}.clear .bar{stroke:#4493f8}.clear .dot{stroke:#4493f8;fill:#4493f8}}
</style>
"""
LEFT, PANEL, GAP, TOP, ROW, BOTTOM = 150, 300, 24, 34, 24, 44  # pixels


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
