"""The report's charts as inline SVG: drawn for a narrow screen, told apart by shape and pattern, values written out.

A chart is 360 units wide, the width of a phone, and grows with the page to half as much again. Colours, hatching and
fonts are classes of the page's style sheet, so that dark screens and paper each have their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
from markupsafe import Markup

from hub.plot_style import NAME_LIMIT
from hub.untrusted import visible_line

WIDTH = 360
MARGIN = 40  # for the numbers of a vertical axis
BINS = 20
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Mark:
    """A value with its interval (None: not known); ``kind`` 0, 1 or 2 decides its shape."""

    name: str
    kind: int
    value: float
    interval: tuple[float, float] | None = None


def shortened(name: str) -> str:
    """A name that fits into a chart, on one line, without hidden characters."""
    text = visible_line(name)
    return text if len(text) <= NAME_LIMIT else f"{text[: NAME_LIMIT - 1]}…"


def kept_chart(rows: Sequence[tuple[str, int, int]]) -> Markup:
    """(label, kept, rejected) as bars, the rejected part hatched; counts and shares written above each bar."""
    most, parts = max((kept + rejected for _, kept, rejected in rows), default=0) or 1, list[Markup]()
    for number, (label, kept, rejected) in enumerate(rows):
        top, total = 44 * number, kept + rejected
        told = f"{kept:,} kept ({100 * kept / total:.0f} %), {rejected:,} rejected" if total else "nothing written"
        end, whole = kept / most * WIDTH, total / most * WIDTH
        parts += [
            _text(0, top + 13, shortened(label), "b"),
            _text(WIDTH, top + 13, told, "end"),
            _rect(0, top + 19, end, 16, "fill"),
            _rect(end, top + 19, whole - end, 16, "hatch"),
        ]
    return _svg(
        44 * len(rows), "Texts of each label: the full part of a bar was kept, the hatched part rejected", parts
    )


def histograms(cosines: Mapping[str, Mapping[str, Sequence[float]]]) -> Markup:
    """Label → encoder → numbers, a panel each: the last encoder as full bars, the one before it as an outline.

    All panels have one horizontal scale, from at most 0 to 1; heights are shares of the panel's largest bin.
    """
    values = [value for of in cosines.values() for some in of.values() for value in some]
    low = min(0.0, floor(min(values, default=0.0) * 10) / 10)
    parts, panel = list[Markup](), 78
    for number, (label, of) in enumerate(cosines.items()):
        top = panel * number
        shapes = {
            name: np.histogram(some, bins=BINS, range=(low, 1))[0] / (len(some) or 1) for name, some in of.items()
        }
        tallest = max((float(shares.max()) for shares in shapes.values()), default=0) or 1
        medians = ", ".join(f"{name} {np.median(some):.2f}" for name, some in of.items() if len(some))
        parts += [_text(0, top + 13, shortened(label), "b"), _text(WIDTH, top + 13, f"median {medians}", "end")]
        for place, shares in enumerate(shapes.values()):
            heights = [float(share) / tallest * 46 for share in shares]
            parts.append(_bars(top + 66, heights) if place == len(shapes) - 1 else _outline(top + 66, heights))
        parts.append(_line(0, top + 66, WIDTH, top + 66, "axis"))
    bottom = panel * len(cosines)
    ticks = [tick / 5 for tick in range(ceil(low * 5), 6)]
    for tick in ticks:
        at = (tick - low) / (1 - low) * WIDTH
        parts.append(_text(at, bottom + 6, f"{tick:.1f}", "end" if tick == 1 else "" if at < 9 else "mid"))
    return _svg(bottom + 12, "Cosine similarities of each label's pairs, a histogram a label", parts)


def _bars(base: float, heights: Sequence[float]) -> Markup:
    wide = WIDTH / BINS
    shapes = [_rect(at * wide + 1, base - tall, wide - 2, tall, "fill") for at, tall in enumerate(heights) if tall]
    return Markup("").join(shapes)


def _outline(base: float, heights: Sequence[float]) -> Markup:
    wide = WIDTH / BINS
    corners = [(0.0, base)]
    for at, tall in enumerate(heights):
        corners += [(at * wide, base - tall), ((at + 1) * wide, base - tall)]
    return _path([*corners, (WIDTH, base)], "outline")


def curve_chart(title: str, curve: Curve, kept_step: int | None = None) -> Markup:
    """A value by training step; first and last value are written out, a dashed line marks the step that was kept."""
    if len(curve) < 2:
        return Markup("")
    steps, values = [step for step, _ in curve], [value for _, value in curve]
    ticks, high = _ticks(min(values), max(values)), 150
    across, up = _scale(0, max(steps), MARGIN, WIDTH - 8), _scale(ticks[0], ticks[-1], high - 8, 26)
    parts = [_text(0, 12, title, "b")]
    for tick in ticks:
        parts += [_line(MARGIN, up(tick), WIDTH, up(tick), "grid"), _text(MARGIN - 5, up(tick) + 4, f"{tick:g}", "end")]
    if kept_step is not None and kept_step < max(steps):
        parts.append(_line(across(kept_step), 22, across(kept_step), high - 8, "dashed"))
    parts += [
        _path([(across(step), up(value)) for step, value in curve], "curve"),
        _text(across(max(steps)), up(values[-1]) - 6, f"{values[-1]:.4g}", "end"),
        _text(MARGIN, high + 8, "step 0"),
        _text(WIDTH, high + 8, f"{max(steps):,}", "end"),
    ]
    return _svg(high + 14, title, parts)


def score_chart(rows: Sequence[tuple[str, Sequence[Mark]]]) -> Markup:
    """Scores with their intervals, a block a task and a line a mark; every line says its encoder and its value."""
    ends = [end for _, marks in rows for one in marks for end in (one.value, *(one.interval or ()))]
    if not ends:
        return Markup("")
    ticks = _ticks(min(ends), max(ends))
    left, across, top = 160, _scale(ticks[0], ticks[-1], 164, WIDTH - 8), 0
    parts = list[Markup]()
    for task, marks in rows:
        parts.append(_text(0, top + 13, task, "b"))
        for number, one in enumerate(marks):
            middle = top + 30 + 20 * number
            parts += [_text(0, middle + 4, f"{one.name} {one.value:.1f}"), _line(left, middle, WIDTH, middle, "grid")]
            if one.interval:
                parts.append(_line(across(one.interval[0]), middle, across(one.interval[1]), middle, "whisker"))
            parts.append(_shape(one.kind, across(one.value), middle))
        top += 28 + 20 * len(marks)
    parts += [_text(across(tick), top + 10, f"{tick:g}", "end" if tick == ticks[-1] else "mid") for tick in ticks]
    return _svg(top + 16, "Scores with their 95 % intervals", parts)


def _shape(kind: int, x: float, y: float) -> Markup:
    """A hollow circle, a hollow diamond, a full circle."""
    if kind == 1:
        return _path([(x - 6, y), (x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], "hollow")
    name = "hollow" if kind == 0 else "fill"
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="5" class="{}"/>').format(x, y, name)


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers around a range."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** floor(log10(span / 3))
    step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= 4), 10)
    return [round(step * number, 10) for number in range(floor(low / step), ceil(high / step) + 1)]


def _scale(low: float, high: float, start: float, end: float) -> "_Scale":
    return _Scale(low, (high - low) or 1.0, start, end - start)


@dataclass(frozen=True)
class _Scale:
    low: float
    span: float
    start: float
    length: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / self.span * self.length


def _svg(height: float, title: str, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, round(height), title)
    return head + Markup("").join(parts) + Markup("</svg>")


def _text(x: float, y: float, text: str, kind: str = "") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, kind, visible_line(text))


def _rect(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    if width <= 0:
        return Markup("")
    numbers = Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>')
    return numbers.format(x, y, width, height, kind)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, kind)


def _path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline points="{}" class="{}"/>').format(corners, kind)
