"""Bars, upright or lying."""

import math
from collections.abc import Callable, Collection, Sequence

from unbounded.report import drawing as draw
from unbounded.report.axes import Scale, drawable, finite, labels, number, round_step, trimmed

_ROW = 23.0  # height of a lying bar with its gap
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
    colours = ["c2" if index in marked else "c1" for index in range(len(heights))]
    ends = finite([v + s * e for v, e in zip(heights, spread, strict=True) for s in (-1, 1)])
    low, high = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    axis, (start, stop) = trimmed(low, high, 3 if horizontal else 5) if low < high else _NOTHING
    if not horizontal:  # room for the number on the highest bar
        stop = max(stop, high + 0.07 * (high - low))
    texts = [value_format(v) for v in heights]
    if horizontal:
        body, height = _lying(
            heights, names, texts, spread, colours, axis, (start, stop), x_label, y_label
        )
    else:
        body = _upright(
            heights, names, texts, spread, colours, axis, (start, stop), x_label, y_label
        )
        height = draw.HEIGHT
    return draw.figure(title, body, height=height)


def _upright(
    values: list[float],
    names: list[str],
    texts: list[str],
    spread: list[float],
    colours: list[str],
    axis: list[float],
    reach: tuple[float, float],
    x_label: str,
    y_label: str,
) -> str:
    plot = draw.plot_area(draw.tick_labels(axis, False))
    to_y = Scale(*reach, plot.bottom, plot.top)
    step = (plot.right - plot.left) / len(values)
    dense = len(values) > 60  # then no gaps, and no seams between the bars either
    width, shape = (step + 0.3, ' shape-rendering="crispEdges"') if dense else (0.72 * step, "")
    write_values = step >= draw.CHAR * 0.9 * max(len(t) for t in texts)
    written = _written(names, step)
    parts = [draw.y_grid(plot, to_y, axis), draw.axis_names(plot, x_label, y_label)]
    for index, value in enumerate(values):
        centre = plot.left + step * (index + 0.5)
        if index in written:
            parts.append(draw.below(centre, plot.bottom, draw.short(names[index], 14)))
        if not drawable(value):
            continue
        top, bottom = sorted((to_y(value), to_y(0.0)))
        parts.append(
            f'<rect class="bar {colours[index]}" x="{draw.at(centre - width / 2)}" '
            f'y="{draw.at(top)}" width="{draw.at(width)}" height="{draw.at(bottom - top)}" '
            f'rx="{1.5 if width > 8 else 0}"{shape}>'
            f"{draw.tooltip(f'{x_label} {names[index]}: {number(value, 4)}'.strip())}</rect>"
        )
        low, high = to_y(value - spread[index]), to_y(value + spread[index])
        if spread[index]:
            parts.append(draw.line("whisker", centre, low, centre, high))
        if write_values:
            if value < 0:
                parts.append(
                    draw.text(centre, max(bottom, low) + 3, texts[index], "middle", drop=0.8)
                )
            else:
                parts.append(draw.text(centre, min(top, high) - 5, texts[index], "middle"))
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


def _lying(
    values: list[float],
    names: list[str],
    texts: list[str],
    spread: list[float],
    colours: list[str],
    axis: list[float],
    reach: tuple[float, float],
    x_label: str,
    y_label: str,
) -> tuple[str, float]:
    shown = [draw.short(name, 18) for name in names]
    left = 9 + draw.CHAR * 0.95 * max(len(name) for name in shown)
    right = draw.WIDTH - 8 - draw.CHAR * max(len(t) for t in texts)
    plot = draw.Plot(left, right, 24.0, 24.0 + _ROW * len(values))
    to_x = Scale(*reach, plot.left, plot.right)
    parts = [draw.axis_names(plot, y_label, x_label)]
    for tick, name in zip(axis, labels(axis), strict=True):
        parts.append(draw.line("grid", to_x(tick), plot.top, to_x(tick), plot.bottom))
        parts.append(draw.below(to_x(tick), plot.bottom, name))
    for index, value in enumerate(values):
        middle = plot.top + _ROW * (index + 0.5)
        parts.append(
            draw.text(plot.left - 7, middle, shown[index], "end", strong=True, drop=draw.MIDDLE)
        )
        if not drawable(value):
            continue
        start, stop = sorted((to_x(value), to_x(0.0)))
        parts.append(
            f'<rect class="bar {colours[index]}" x="{draw.at(start)}" '
            f'y="{draw.at(middle - _ROW * 0.34)}" width="{draw.at(stop - start)}" '
            f'height="{draw.at(_ROW * 0.68)}" rx="1.5">'
            f"{draw.tooltip(f'{names[index]}: {number(value, 4)}')}</rect>"
        )
        low, high = to_x(value - spread[index]), to_x(value + spread[index])
        if spread[index]:
            parts.append(draw.line("whisker", low, middle, high, middle))
        parts.append(draw.text(max(stop, high) + 5, middle, texts[index], drop=draw.MIDDLE))
    parts.append(draw.line("axis", to_x(0.0), plot.top, to_x(0.0), plot.bottom))
    return "".join(parts), plot.bottom + 42
