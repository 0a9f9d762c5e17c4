"""Figures of the studies as stand-alone SVG files: pure functions of numbers, no dependency.

Unlike the charts of `unbounded.report`, which take colours and sizes from the page around them,
these carry everything themselves, so that they can be looked at anywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

INK, GRID, MUTED = "#1f2430", "#e3e5ea", "#6b7280"
_SIZE = 12


@dataclass(frozen=True)
class Line:
    """A line with a band around it.

    Attributes:
        ys: one value for each x; NaN leaves a gap.
        low: the band's lower edge, or None for no band.
        high: its upper edge.
        colour: of line and band.
        width: of the line.
        dashed: whether the line is.
    """

    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: str = INK
    width: float = 1.6
    dashed: bool = False


def line_figure(
    xs: Sequence[float],
    lines: Mapping[str, Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    size: tuple[int, int] = (720, 420),
) -> str:
    """Lines with bands over a common axis, the legend beside them in the order given."""
    values = [
        v for line in lines.values() for row in (line.ys, line.low, line.high) for v in row or ()
    ]
    low, high = _range(values) if y_range is None else y_range
    axes = _Axes(size, (min(xs), max(xs)), (low, high), legend=150)
    parts = [axes.frame(title, x_label, y_label, _ticks(min(xs), max(xs)), _ticks(low, high))]
    for line in lines.values():
        if line.low is not None and line.high is not None:
            parts.append(_band(axes, xs, line.low, line.high, line.colour))
    for line in lines.values():
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(
            f'<path d="{_path(axes, xs, line.ys)}" fill="none" stroke="{line.colour}" '
            f'stroke-width="{line.width}" stroke-linejoin="round"{dash}/>'
        )
    for row, (name, line) in enumerate(lines.items()):
        y = axes.top + 8 + 17 * row
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(
            f'<line x1="{axes.right + 12}" x2="{axes.right + 36}" y1="{y}" y2="{y}" '
            f'stroke="{line.colour}" stroke-width="{line.width}"{dash}/>'
        )
        parts.append(text(axes.right + 42, y + 4, name))
    return document(size, title, parts)


def box_figure(
    boxes: Mapping[float, Sequence[float]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    colour: str,
    size: tuple[int, int] = (720, 380),
) -> str:
    """A box plot of the values at each x: quartiles, whiskers to the extremes, every value."""
    xs = sorted(boxes)
    gap = min((b - a for a, b in pairwise(xs)), default=1.0)
    values = [v for row in boxes.values() for v in row]
    low, high = _range([*values, 0.0])
    axes = _Axes(size, (min(xs) - gap, max(xs) + gap), (low, high))
    parts = [axes.frame(title, x_label, y_label, xs, _ticks(low, high))]
    half = 0.32 * (axes.x(gap) - axes.x(0.0))
    for x in xs:
        row = sorted(boxes[x])
        if not row:
            continue
        first, middle, third = (_quantile(row, q) for q in (0.25, 0.5, 0.75))
        px = axes.x(x)
        parts.append(
            f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{axes.y(row[0]):.1f}" '
            f'y2="{axes.y(row[-1]):.1f}" stroke="{colour}" stroke-width="1.4"/>'
        )
        parts.append(
            f'<rect x="{px - half:.1f}" y="{axes.y(third):.1f}" width="{2 * half:.1f}" '
            f'height="{max(axes.y(first) - axes.y(third), 0.5):.1f}" fill="#fff" '
            f'stroke="{colour}" stroke-width="1.4"/>'
        )
        parts.append(
            f'<line x1="{px - half:.1f}" x2="{px + half:.1f}" y1="{axes.y(middle):.1f}" '
            f'y2="{axes.y(middle):.1f}" stroke="{colour}" stroke-width="2.4"/>'
        )
        parts += [
            f'<circle cx="{px:.1f}" cy="{axes.y(v):.1f}" r="2" fill="{colour}" fill-opacity=".55"/>'
            for v in row
        ]
    return document(size, title, parts)


def stem_figure(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str,
    colour: str,
    size: tuple[int, int] = (720, 320),
) -> str:
    """A dot on a stem from zero for each value."""
    low, high = _range([*ys, 0.0])
    axes = _Axes(size, (min(xs) - 1, max(xs) + 1), (low, high))
    parts = [axes.frame(title, x_label, y_label, _ticks(min(xs), max(xs)), _ticks(low, high))]
    for x, y in zip(xs, ys, strict=True):
        px, py = axes.x(x), axes.y(y)
        parts.append(
            f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{axes.y(0.0):.1f}" y2="{py:.1f}" '
            f'stroke="{colour}" stroke-opacity=".45"/>'
        )
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}"/>')
    return document(size, title, parts)


def scatter_panels(
    panels: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float], str]]],
    *,
    title: str,
    columns: int = 4,
    panel: int = 190,
) -> str:
    """Small squares of points side by side, each with its name; groups are (xs, ys, colour)."""
    rows = -(-len(panels) // columns)
    columns = min(columns, len(panels))
    size = (max(460, 20 + columns * (panel + 14)), 44 + rows * (panel + 32))
    parts = [text(14, 24, title, size=15, weight=600)]
    for index, (name, groups) in enumerate(panels.items()):
        left = 14 + (index % columns) * (panel + 14)
        top = 58 + (index // columns) * (panel + 32)
        parts.append(text(left, top - 6, name))
        parts.append(
            f'<rect x="{left}" y="{top}" width="{panel}" height="{panel}" fill="none" '
            f'stroke="{GRID}"/>'
        )
        every = [abs(v) for xs, ys, _ in groups for v in (*xs, *ys)]
        reach = 1.05 * max(every, default=1.0)
        for xs, ys, colour in groups:
            dots = "".join(
                f"M{left + panel * (x / reach + 1) / 2:.1f} "
                f"{top + panel * (1 - y / reach) / 2:.1f}h0"
                for x, y in zip(xs, ys, strict=True)
            )
            parts.append(
                f'<path d="{dots}" stroke="{colour}" stroke-width="2.6" stroke-linecap="round" '
                'stroke-opacity=".7"/>'
            )
    return document(size, title, parts)


class _Axes:
    """From numbers to places in the drawing."""

    def __init__(
        self,
        size: tuple[int, int],
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        legend: int = 0,
    ):
        self.left, self.right = 58, size[0] - 16 - legend
        self.top, self.bottom = 62, size[1] - 46
        self._x, self._y = _widened(x_range), _widened(y_range)

    def x(self, value: float) -> float:
        low, high = self._x
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self._y
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def frame(
        self,
        title: str,
        x_label: str,
        y_label: str,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
    ) -> str:
        parts = [text(14, 24, title, size=15, weight=600), text(14, 46, y_label, colour=MUTED)]
        for tick in y_ticks:
            y = self.y(tick)
            parts.append(
                f'<line x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{GRID}"/>'
            )
            parts.append(text(self.left - 8, y + 4, _number(tick), anchor="end", colour=MUTED))
        for tick in x_ticks:
            x = self.x(tick)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" y2="{self.bottom + 4}" '
                f'stroke="{MUTED}"/>'
            )
            parts.append(text(x, self.bottom + 18, _number(tick), anchor="middle", colour=MUTED))
        parts.append(
            f'<line x1="{self.left}" x2="{self.right}" y1="{self.bottom}" y2="{self.bottom}" '
            f'stroke="{MUTED}"/>'
        )
        middle = (self.left + self.right) / 2
        parts.append(text(middle, self.bottom + 36, x_label, anchor="middle", colour=MUTED))
        return "".join(parts)


def _band(
    axes: _Axes, xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str
) -> str:
    kept = [
        (x, a, b)
        for x, a, b in zip(xs, low, high, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    corners = [(x, b) for x, _, b in kept] + [(x, a) for x, a, _ in reversed(kept)]
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in corners)
    return f'<polygon points="{points}" fill="{colour}" fill-opacity=".14"/>'


def _path(axes: _Axes, xs: Sequence[float], ys: Sequence[float]) -> str:
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if not math.isfinite(y):
            pen = "M"
            continue
        parts.append(f"{pen}{axes.x(x):.1f} {axes.y(y):.1f}")
        pen = "L"
    return "".join(parts)


def document(size: tuple[int, int], title: str, parts: Sequence[str]) -> str:
    """A whole SVG file on white, of parts drawn on it."""
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        f'font-size="{_SIZE}"><title>{escape(title)}</title>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = INK,
    size: int = _SIZE,
    weight: int = 400,
) -> str:
    """Words at a place, escaped."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}" font-weight="{weight}">{escape(words)}</text>'
    )


def _ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    kept = [v for v in values if math.isfinite(v)]
    if not kept:
        return 0.0, 1.0
    low, high = min(kept), max(kept)
    margin = 0.04 * (high - low)
    return low - margin if low else 0.0, high + margin


def _widened(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _quantile(ordered: Sequence[float], level: float) -> float:
    """By linear interpolation, as NumPy does."""
    place = level * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) >= 1e-9 else "0"
