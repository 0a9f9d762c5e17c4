"""Bars, upright or lying."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Unpack

from unbounded.report import drawing as draw
from unbounded.report.axes import Axis, drawable, finite, number, round_step, trimmed

_ROW = 23.0  # height of a lying bar with its gap
_DENSE = 60  # more bars than this touch each other
_CRISP = ' shape-rendering="crispEdges"'


class _Bar(NamedTuple):
    name: str
    value: float
    text: str
    bounds: tuple[float, float] | None
    colour: str
    crisp: bool  # no seams between bars that touch

    def rect(
        self, x: float, y: float, width: float, height: float, words: str, thick: float
    ) -> str:
        """A rectangle with the value in a tooltip."""
        tip = f"{words}: {number(self.value, 4)}".strip()
        if self.bounds is not None:
            low, high = self.bounds
            tip += f" ({number(low, 3)} to {number(high, 3)})"
        style = f' rx="{1.5 if thick > 8 else 0}"{_CRISP if self.crisp else ""}'
        return draw.rect(f"bar {self.colour}", x, y, width, height, tip, style)


def bar_chart(
    values: Sequence[float],
    labels: Sequence[str],
    *,
    highlight: int | Collection[int] | None = None,
    bounds: Sequence[tuple[float, float]] | None = None,
    horizontal: bool = False,
    value_format: Callable[[float], str] = number,
    **words: Unpack[draw.Words],
) -> str:
    """Bars from zero, their lengths proportional to the values.

    Args:
        values: one for each bar; they may be negative. What is not finite is left out.
        labels: their names. Where all of them would not fit, every so many are written.
        highlight: index or indices of bars in the second colour.
        bounds: from where to where a whisker goes, for each bar.
        horizontal: bars that lie, for names that are long.
        value_format: writes a value at its bar, if there is room; tooltips have four digits.
        words: title, x_label along the bars' names, y_label along their values.
    """
    heights = [float(v) for v in values]
    if len(heights) != len(labels):
        raise ValueError(f"there are {len(heights)} values and {len(labels)} labels")
    if not heights:
        raise ValueError("there are no values to draw, at least one is needed")
    whiskers = [None] * len(heights) if bounds is None else [_bounds(*pair) for pair in bounds]
    if len(whiskers) != len(heights):
        raise ValueError(f"there are {len(heights)} values and {len(whiskers)} whiskers")
    marked = {highlight} if isinstance(highlight, int) else set(highlight or ())
    ends = finite([*heights, *(end for pair in whiskers if pair for end in pair)])
    low, high = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    axis = Axis([0.0, 1.0], 0.0, 1.0)
    if low < high:
        axis = trimmed(low, high, 3 if horizontal else 5)
    bars = [
        _Bar(str(name), v, value_format(v), b, "c2" if i in marked else "c1", len(heights) > _DENSE)
        for i, (name, v, b) in enumerate(zip(labels, heights, whiskers, strict=True))
    ]
    if horizontal:
        return _lying(bars, axis, words)
    # Room for the numbers at the highest bar and below those that hang.
    room = 0.09 * (high - low)
    bottom = min(axis.low, low - room) if low < 0 else axis.low
    return _upright(bars, axis._replace(low=bottom, high=max(axis.high, high + room)), words)


def _bounds(low: float, high: float) -> tuple[float, float] | None:
    """Ends of a whisker, lower first; None where it cannot be drawn or has no length."""
    ends = sorted((float(low), float(high)))
    return (ends[0], ends[1]) if all(map(drawable, ends)) and ends[0] < ends[1] else None


def _upright(bars: Sequence[_Bar], axis: Axis, words: draw.Words) -> str:
    plot = draw.plot_area(axis)
    chart = draw.Chart(plot, words, None, axis)
    parts, zero = chart.parts, chart.y(0.0)
    step = (plot.right - plot.left) / len(bars)
    width = step + 0.3 if bars[0].crisp else 0.72 * step
    write_values = step >= draw.CHAR * 0.9 * max(len(bar.text) for bar in bars)
    written = _written([bar.name for bar in bars], step)
    for index, bar in enumerate(bars):
        centre = plot.left + step * (index + 0.5)
        if index in written:
            parts.append(draw.below(centre, plot.bottom, draw.short(bar.name, 14)))
        if not drawable(bar.value):
            continue
        top, bottom = sorted((chart.y(bar.value), zero))
        tip = f"{words['x_label']} {bar.name}"
        parts.append(bar.rect(centre - width / 2, top, width, bottom - top, tip, width))
        low, high = map(chart.y, bar.bounds or (bar.value, bar.value))
        if bar.bounds:
            parts += draw.whisker(centre, low, centre, high)
        if write_values:
            above = bar.value >= 0
            y = min(top, high) - 5 if above else max(bottom, low) + 3
            parts.append(draw.text(centre, y, bar.text, "middle", drop=0.0 if above else 0.8))
    parts.append(draw.line("axis", plot.left, zero, plot.right, zero))
    return chart.figure()


def _written(names: list[str], step: float) -> set[int]:
    """Which bars have their names written; consecutive whole numbers are written round."""
    every = math.ceil((draw.CHAR * max(len(draw.short(name, 14)) for name in names) + 5) / step)
    if every <= 1:
        return set(range(len(names)))
    if all(name.isdecimal() for name in names):
        first = int(names[0])
        if [int(name) for name in names] == list(range(first, first + len(names))):
            rounded = int(round_step(every, integers=True))
            return {index for index in range(len(names)) if (first + index) % rounded == 0}
    return set(range(0, len(names), every))


def _lying(bars: Sequence[_Bar], axis: Axis, words: draw.Words) -> str:
    shown = [draw.short(bar.name, 18) for bar in bars]
    left = 9 + draw.CHAR * 0.95 * max(len(name) for name in shown)
    right = draw.WIDTH - 8 - draw.CHAR * max(len(bar.text) for bar in bars)
    plot = draw.Plot(left, right, 24.0, 24.0 + _ROW * len(bars))
    turned = draw.Words(title=words["title"], x_label=words["y_label"], y_label=words["x_label"])
    chart = draw.Chart(plot, turned, axis, None)
    parts, zero = chart.parts, chart.x(0.0)
    for index, (bar, name) in enumerate(zip(bars, shown, strict=True)):
        middle = plot.top + _ROW * (index + 0.5)
        parts.append(draw.text(plot.left - 7, middle, name, "end", strong=True, drop=draw.MIDDLE))
        if not drawable(bar.value):
            continue
        start, stop = sorted((chart.x(bar.value), zero))
        height = _ROW * 0.68
        parts.append(bar.rect(start, middle - height / 2, stop - start, height, bar.name, height))
        low, high = map(chart.x, bar.bounds or (bar.value, bar.value))
        if bar.bounds:
            parts += draw.whisker(low, middle, high, middle)
        parts.append(draw.text(max(stop, high) + 5, middle, bar.text, drop=draw.MIDDLE))
    parts.append(draw.line("axis", zero, plot.top, zero, plot.bottom))
    return chart.figure(plot.bottom + 42)
