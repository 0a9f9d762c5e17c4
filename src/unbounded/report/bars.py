"""Bars, upright or lying."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from unbounded.report import drawing as draw
from unbounded.report.axes import AxisScale, drawable, finite, labels, number, round_step, trimmed

_ROW = 23.0  # height of a lying bar with its gap
_DENSE = 60  # more bars than this touch each other
_CRISP = ' shape-rendering="crispEdges"'
_NOTHING = ([0.0, 1.0], (0.0, 1.0))  # the axis of bars that are all zero


def bar_chart(
    values: Sequence[float],
    labels: Sequence[str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    highlight: int | Collection[int] | None = None,
    errors: Sequence[float] | None = None,
    horizontal: bool = False,
    value_format: Callable[[float], str] = number,
) -> str:
    """Bars from zero, their lengths proportional to the values.

    Args:
        values: one for each bar; they may be negative. What is not finite is left out.
        labels: their names. Where all of them would not fit, every so many are written.
        title: of the figure.
        x_label: of the axis along the bars' names.
        y_label: of the axis of values.
        highlight: index or indices of bars in the second colour.
        errors: half the length of a whisker for each bar.
        horizontal: bars that lie, for names that are long.
        value_format: writes a value at its bar, if there is room; tooltips have four digits.
    """
    heights, names = [float(v) for v in values], [str(name) for name in labels]
    if len(heights) != len(names):
        raise ValueError(f"there are {len(heights)} values and {len(names)} labels")
    if not heights:
        raise ValueError("there are no values to draw, at least one is needed")
    spread = [0.0] * len(heights) if errors is None else [abs(float(e)) for e in errors]
    if len(spread) != len(heights):
        raise ValueError(f"there are {len(heights)} values and {len(spread)} errors")
    marked = {highlight} if isinstance(highlight, int) else set(highlight or ())
    ends = finite([v + s * e for v, e in zip(heights, spread, strict=True) for s in (-1, 1)])
    low, high = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    axis, (start, stop) = trimmed(low, high, 3 if horizontal else 5) if low < high else _NOTHING
    if not horizontal:  # room for the number on the highest bar
        stop = max(stop, high + 0.07 * (high - low))
    bars = _Bars(
        heights,
        names,
        [value_format(v) for v in heights],
        spread,
        ["c2" if index in marked else "c1" for index in range(len(heights))],
        axis,
        (start, stop),
    )
    if horizontal:
        body, height = _lying(bars, x_label, y_label)
    else:
        body, height = _upright(bars, x_label, y_label), draw.HEIGHT
    return draw.figure(title, body, height=height)


class _Bars(NamedTuple):
    """What both kinds of bars draw: one entry for each bar, ticks, and the range of values."""

    values: list[float]
    names: list[str]
    texts: list[str]
    spread: list[float]
    colours: list[str]
    axis: list[float]
    reach: tuple[float, float]

    def rect(
        self, index: int, x: float, y: float, width: float, height: float, words: str, thick: float
    ) -> str:
        """One bar as a rectangle, with its value in a tooltip."""
        many = len(self.values) > _DENSE  # no seams between bars that touch
        return (
            f'<rect class="bar {self.colours[index]}" x="{draw.at(x)}" y="{draw.at(y)}" '
            f'width="{draw.at(width)}" height="{draw.at(height)}" '
            f'rx="{1.5 if thick > 8 else 0}"{_CRISP if many else ""}>'
            f"{draw.tooltip(f'{words}: {number(self.values[index], 4)}'.strip())}</rect>"
        )


def _upright(bars: _Bars, x_label: str, y_label: str) -> str:
    plot = draw.plot_area(draw.tick_labels(bars.axis, False))
    to_y = AxisScale(*bars.reach, plot.bottom, plot.top)
    step = (plot.right - plot.left) / len(bars.values)
    width = step + 0.3 if len(bars.values) > _DENSE else 0.72 * step
    write_values = step >= draw.CHAR * 0.9 * max(len(t) for t in bars.texts)
    written = _written(bars.names, step)
    parts = [draw.y_grid(plot, to_y, bars.axis), draw.axis_names(plot, x_label, y_label)]
    for index, (value, spread) in enumerate(zip(bars.values, bars.spread, strict=True)):
        centre = plot.left + step * (index + 0.5)
        if index in written:
            parts.append(draw.below(centre, plot.bottom, draw.short(bars.names[index], 14)))
        if not drawable(value):
            continue
        top, bottom = sorted((to_y(value), to_y(0.0)))
        words = f"{x_label} {bars.names[index]}"
        parts.append(bars.rect(index, centre - width / 2, top, width, bottom - top, words, width))
        low, high = to_y(value - spread), to_y(value + spread)
        if spread:
            parts.append(draw.line("whisker", centre, low, centre, high))
        if write_values:
            above = value >= 0
            y = min(top, high) - 5 if above else max(bottom, low) + 3
            drop = 0.0 if above else 0.8
            parts.append(draw.text(centre, y, bars.texts[index], "middle", drop=drop))
    parts.append(draw.line("axis", plot.left, to_y(0.0), plot.right, to_y(0.0)))
    return "".join(parts)


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


def _lying(bars: _Bars, x_label: str, y_label: str) -> tuple[str, float]:
    shown = [draw.short(name, 18) for name in bars.names]
    left = 9 + draw.CHAR * 0.95 * max(len(name) for name in shown)
    right = draw.WIDTH - 8 - draw.CHAR * max(len(t) for t in bars.texts)
    plot = draw.Plot(left, right, 24.0, 24.0 + _ROW * len(bars.values))
    to_x = AxisScale(*bars.reach, plot.left, plot.right)
    parts = [draw.axis_names(plot, y_label, x_label)]
    for tick, name in zip(bars.axis, labels(bars.axis), strict=True):
        parts.append(draw.line("grid", to_x(tick), plot.top, to_x(tick), plot.bottom))
        parts.append(draw.below(to_x(tick), plot.bottom, name))
    for index, (value, spread) in enumerate(zip(bars.values, bars.spread, strict=True)):
        middle = plot.top + _ROW * (index + 0.5)
        name = shown[index]
        parts.append(draw.text(plot.left - 7, middle, name, "end", strong=True, drop=draw.MIDDLE))
        if not drawable(value):
            continue
        start, stop = sorted((to_x(value), to_x(0.0)))
        y, height = middle - _ROW * 0.34, _ROW * 0.68
        parts.append(bars.rect(index, start, y, stop - start, height, bars.names[index], height))
        low, high = to_x(value - spread), to_x(value + spread)
        if spread:
            parts.append(draw.line("whisker", low, middle, high, middle))
        parts.append(draw.text(max(stop, high) + 5, middle, bars.texts[index], drop=draw.MIDDLE))
    parts.append(draw.line("axis", to_x(0.0), plot.top, to_x(0.0), plot.bottom))
    return "".join(parts), plot.bottom + 42
