"""Lines over time, thinned to what can be seen."""

import math
from collections.abc import Collection, Mapping, Sequence

from unbounded.report import drawing as draw
from unbounded.report.axes import (
    AxisScale,
    drawable,
    finite,
    inner_ticks,
    log_ticks,
    number,
    trimmed,
    widened,
)

Series = tuple[Sequence[float], Sequence[float]]
Mark = float | tuple[float, str]
Points = list[tuple[float, float]]

_BINS = 190  # stretches of a thinned line: about two units of the drawing each
_BANDS = 48  # along the axis, each with a tooltip


def line_chart(
    series: Mapping[str, Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    marks: Sequence[Mark] = (),
    log_y: bool = False,
    steps: Collection[str] = (),
    mark_name: str = "",
    height: float = draw.HEIGHT,
) -> str:
    """Lines over a common axis, thinned without losing an extreme.

    Args:
        series: name ↦ (xs, ys). Values that are not finite (or not positive, on a logarithmic
            axis) leave a gap.
        title: of the figure.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        marks: where vertical lines stand, as x or (x, label): births of layers.
        log_y: a logarithmic vertical axis.
        steps: names of series that jump from value to value, such as m(q).
        mark_name: what the marks are, for the legend.
        height: of the drawing, whose width is 440.
    """
    lines = {name: _points(xs, ys, log_y) for name, (xs, ys) in series.items()}
    placed = [(float(m), "") if isinstance(m, int | float) else (float(m[0]), m[1]) for m in marks]
    xs = [x for points in lines.values() for x, _ in points] + [x for x, _ in placed]
    ys = finite(y for points in lines.values() for _, y in points)
    x_axis, (low, high) = _x_axis(xs)
    y_axis, y_range = _y_axis(ys, log_y)
    labelled = any(words for _, words in placed)
    top = 38.0 if labelled else 28.0
    plot = draw.plot_area(draw.tick_labels(y_axis, log_y), top, height)
    to_x = AxisScale(low, high, plot.left, plot.right)
    to_y = AxisScale(*y_range, plot.bottom, plot.top, log_y)
    parts = [draw.frame(plot, to_x, to_y, x_axis, y_axis, x_label, y_label, labelled)]
    parts.append(_marks(placed, plot, to_x, mark_name, x_label))
    for index, (name, points) in enumerate(lines.items()):
        path = path_of(thin(points), to_x, to_y, name in steps)
        parts.append(f'<path class="line {draw.colour(index)}" d="{path}"/>')
        parts.append(_lone_points(points, to_x, to_y, draw.colour(index)))
    parts.append(_bands(lines, plot, to_x, x_label))
    keys = [draw.Key(name, draw.colour(index)) for index, name in enumerate(lines)]
    if placed and mark_name:
        keys.append(draw.Key(mark_name, "c-muted", "dash"))
    return draw.figure(title, "".join(parts), keys=keys if len(keys) > 1 else (), height=height)


def thin(points: Points) -> Points:
    """First, lowest, highest and last point of each of a few hundred stretches; gaps stay."""
    if len(points) <= 4 * _BINS:
        return points
    kept: Points = []
    for index in range(_BINS):
        part = points[index * len(points) // _BINS : (index + 1) * len(points) // _BINS]
        there = [i for i, (_, y) in enumerate(part) if not math.isnan(y)]
        picks = {0, len(part) - 1}
        if there:
            picks |= {min(there, key=lambda i: part[i][1]), max(there, key=lambda i: part[i][1])}
        gap = next((i for i, (_, y) in enumerate(part) if math.isnan(y)), None)
        kept.extend(part[i] for i in sorted(picks if gap is None else picks | {gap}))
    return kept


def path_of(points: Points, to_x: AxisScale, to_y: AxisScale, steps: bool = False) -> str:
    """The commands of a path; a NaN lifts the pen."""
    parts: list[str] = []
    pen = False
    for x, y in points:
        if math.isnan(y):
            pen = False
            continue
        px, py = draw.at(to_x(x)), draw.at(to_y(y))
        if not pen:
            parts.append(f"M{px} {py}")
        elif steps:
            parts.append(f"H{px}V{py}")
        else:
            parts.append(f"L{px} {py}")
        pen = True
    return "".join(parts)


def _points(xs: Sequence[float], ys: Sequence[float], log: bool) -> Points:
    """Pairs with a finite x; a y that cannot be drawn becomes NaN, a gap."""
    pairs = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
    return [
        (x, y if drawable(y) and (y > 1e-200 or not log) else math.nan)
        for x, y in pairs
        if drawable(x)
    ]


def _x_axis(xs: Sequence[float]) -> tuple[list[float], tuple[float, float]]:
    """Ticks inside the data's range, and that range; whole numbers where the data are whole."""
    if not xs:
        return [0.0, 1.0], (0.0, 1.0)
    low, high = min(xs), max(xs)
    whole = all(x == round(x) for x in xs)
    if 0 < low < 0.05 * high:
        low = 0.0
    low, high = widened(low, high)
    return inner_ticks(low, high, integers=whole), (low, high)


def _y_axis(ys: Sequence[float], log: bool) -> tuple[list[float], tuple[float, float]]:
    if not ys:
        return ([1.0, 10.0], (1.0, 10.0)) if log else ([0.0, 1.0], (0.0, 1.0))
    low, high = min(ys), max(ys)
    if log:
        powers = log_ticks(low, high)
        return powers, (powers[0], powers[-1])
    if 0 < low < 0.35 * high:  # from zero where that costs little room
        low = 0.0
    return trimmed(low, high, 4)


def _marks(
    marks: Sequence[tuple[float, str]], plot: draw.Plot, to_x: AxisScale, name: str, x_label: str
) -> str:
    """Vertical lines, with those labels that do not run into one another."""
    parts: list[str] = []
    free = -math.inf
    many = len(marks) > 60  # then ticks at the top, or there would be no chart left
    for x, words in sorted(marks):
        px = to_x(x)
        kind, end = ("mark short", plot.top + 7) if many else ("mark", plot.bottom)
        tip = " ".join(f"{name} {words} at {x_label} {number(x, 6)}".split())
        parts.append(draw.line(kind, px, plot.top - 3, px, end, tip))
        half = draw.CHAR * len(words) / 2
        if words and px - half >= free and px + half <= draw.WIDTH:
            parts.append(draw.text(px, plot.top - 7, words, "middle", strong=True))
            free = px + half + 2
    return "".join(parts)


def _lone_points(points: Points, to_x: AxisScale, to_y: AxisScale, colour: str) -> str:
    """Dots where a line has nothing to join: one epoch, or one value between two gaps."""
    there = [not math.isnan(y) for _, y in points]
    parts = []
    for index, (x, y) in enumerate(points):
        before = index > 0 and there[index - 1]
        after = index + 1 < len(points) and there[index + 1]
        if there[index] and not before and not after:
            where = f'cx="{draw.at(to_x(x))}" cy="{draw.at(to_y(y))}"'
            parts.append(f'<circle class="dot {colour}" {where} r="3"/>')
    return "".join(parts)


def _bands(lines: Mapping[str, Points], plot: draw.Plot, to_x: AxisScale, x_label: str) -> str:
    """Invisible bands whose tooltips read the values off."""
    longest = max(lines.values(), key=len, default=[])
    if len(longest) < 2:
        return ""
    count = min(_BANDS, len(longest))
    by_x = [(name, dict(points)) for name, points in lines.items()]
    width = (plot.right - plot.left) / count
    parts = []
    for band in range(count):
        x = longest[round((band + 0.5) / count * (len(longest) - 1))][0]
        values = [f"{name} {number(row[x], 4)}" for name, row in by_x if x in row]
        left = min(max(to_x(x) - width / 2, plot.left), plot.right - width)
        parts.append(
            f'<rect class="hit" x="{draw.at(left)}" y="{draw.at(plot.top)}" '
            f'width="{draw.at(width)}" height="{draw.at(plot.bottom - plot.top)}">'
            f"{draw.tooltip(f'{x_label} {number(x, 6)}: ' + ', '.join(values))}</rect>"
        )
    return "".join(parts)
