"""Lines over time, thinned to what can be seen."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Unpack

from unbounded.report import drawing as draw
from unbounded.report.axes import (
    Axis,
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
    marks: Sequence[Mark] = (),
    log_y: bool = False,
    steps: Collection[str] = (),
    mark_name: str = "",
    height: float = draw.HEIGHT,
    shares: Sequence[float] = (),
    times: bool = False,
    covers: Sequence[float] = (),
    **words: Unpack[draw.Words],
) -> str:
    """Lines over a common axis, thinned without losing an extreme.

    Args:
        series: name ↦ (xs, ys). Values that are not finite (or not positive, on a logarithmic
            axis) leave a gap.
        marks: where vertical lines stand, as x or (x, label): births of layers.
        log_y: a logarithmic vertical axis.
        steps: names of series that jump from value to value, such as m(q).
        mark_name: what the marks are, for the legend.
        height: of the drawing, whose width is 440.
        shares: how many rows, as a share, are near each x of the first series: faint bars.
        covers: values that the vertical axis shows besides, to be alike in several charts.
        times: the horizontal axis is of seconds since 1970, written as dates.
        words: title, x_label and y_label.
    """
    lines = {name: _points(xs, ys, log_y) for name, (xs, ys) in series.items()}
    placed = [(float(m), "") if isinstance(m, int | float) else (float(m[0]), m[1]) for m in marks]
    xs = [x for points in lines.values() for x, _ in points] + [x for x, _ in placed]
    ys = [y for points in lines.values() for _, y in points]
    y_axis = _y_axis(finite([*ys, *covers]), log_y)
    labelled = any(name for _, name in placed)
    plot = draw.plot_area(y_axis, 38.0 if labelled else 28.0, height)
    x_axis = _time_axis(xs) if times and xs else _x_axis(xs)
    chart = draw.Chart(plot, words, x_axis, y_axis, marks=labelled)
    _add_shares(chart, [x for x, _ in next(iter(lines.values()), [])], shares)
    _add_marks(chart, placed, mark_name)
    for index, (name, points) in enumerate(lines.items()):
        colour = draw.colour(index)
        chart.parts.append(draw.path(f"line {colour}", path_of(chart, thin(points), name in steps)))
        chart.parts += [chart.circle(x, y, 3, colour) for x, y in _lone_points(points)]
    _add_bands(chart, lines, date if times else lambda x: number(x, 6))
    keys = [draw.Key(name, draw.colour(index)) for index, name in enumerate(lines)]
    if placed and mark_name:
        keys.append(draw.Key(mark_name, "c-muted", "dash"))
    chart.keys = keys if len(keys) > 1 else []
    return chart.figure()


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


def path_of(chart: draw.Chart, points: Points, steps: bool = False) -> str:
    """The commands of a path; a NaN lifts the pen."""
    parts: list[str] = []
    pen = False
    for x, y in points:
        if not math.isnan(y):
            where = chart.point(x, y)
            jump = f"H{where.replace(' ', 'V')}" if steps else f"L{where}"
            parts.append(jump if pen else f"M{where}")
        pen = not math.isnan(y)
    return "".join(parts)


def _points(xs: Sequence[float], ys: Sequence[float], log: bool) -> Points:
    """Pairs with a finite x; a y that cannot be drawn becomes NaN, a gap."""
    pairs = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
    return [
        (x, y if drawable(y) and (y > 1e-200 or not log) else math.nan)
        for x, y in pairs
        if drawable(x)
    ]


def _x_axis(xs: Sequence[float]) -> Axis:
    """Ticks inside the data's range, and that range; whole numbers where the data are whole."""
    if not xs:
        return Axis([0.0, 1.0], 0.0, 1.0)
    low, high = min(xs), max(xs)
    if 0 < low < 0.05 * high:
        low = 0.0
    low, high = widened(low, high)
    return Axis(inner_ticks(low, high, integers=all(x == round(x) for x in xs)), low, high)


def _time_axis(xs: Sequence[float]) -> Axis:
    """Four dates at equal distances, written as finely as their distance asks for."""
    low, high = widened(min(xs), max(xs))
    places = [low + (high - low) * part for part in (0.08, 0.36, 0.64, 0.92)]
    return Axis(places, low, high, texts=tuple(date(place, high - low) for place in places))


def date(seconds: float, span: float = 0.0) -> str:
    """Seconds since 1970 as a date, by year and month where `span` (in seconds) is long."""
    moment = datetime(1970, 1, 1) + timedelta(seconds=min(max(seconds, -6e10), 2.5e11))
    if span > 2 * 365 * 86400:
        return moment.strftime("%Y-%m")
    return moment.strftime("%Y-%m-%d" if span > 4 * 86400 or not span else "%d %H:%M")


def _add_shares(chart: draw.Chart, xs: Sequence[float], shares: Sequence[float]) -> None:
    """Faint bars along the bottom: where the rows are."""
    left, right, top, bottom = chart.plot
    most = max(shares, default=0.0)
    if not most > 0:
        return
    width = 0.8 * (right - left) / max(10, len(shares))
    for x, share in zip(xs, shares, strict=True):
        start = min(max(chart.x(x) - width / 2, left), right - width)
        tall = 0.16 * (bottom - top) * share / most
        tip = f"{share:.0%} of the rows"
        chart.parts.append(draw.rect("bar faint c-muted", start, bottom - tall, width, tall, tip))


def _y_axis(ys: Sequence[float], log: bool) -> Axis:
    low, high = min(ys, default=float(log)), max(ys, default=10.0 if log else 1.0)
    if log:
        powers = log_ticks(low, high)
        return Axis(powers, powers[0], powers[-1], log=True)
    if not ys:
        return Axis([0.0, 1.0], 0.0, 1.0)
    # From zero where that costs little room.
    return trimmed(0.0 if 0 < low < 0.35 * high else low, high, 4)


def _add_marks(chart: draw.Chart, marks: Sequence[tuple[float, str]], name: str) -> None:
    """Vertical lines, with those labels that do not run into one another."""
    top, free = chart.plot.top, -math.inf
    many = len(marks) > 60  # then ticks at the top, or there would be no chart left
    kind, end = ("mark short", top + 7) if many else ("mark", chart.plot.bottom)
    for x, label in sorted(marks):
        px = chart.x(x)
        tip = " ".join(f"{name} {label} at {chart.words['x_label']} {number(x, 6)}".split())
        chart.parts.append(draw.line(kind, px, top - 3, px, end, tip))
        half = draw.CHAR * len(label) / 2
        if label and px - half >= free and px + half <= draw.WIDTH:
            chart.parts.append(draw.text(px, top - 7, label, "middle", strong=True))
            free = px + half + 2


def _lone_points(points: Points) -> Points:
    """Where a line has nothing to join: one epoch, or one value between two gaps."""
    there = [False, *(not math.isnan(y) for _, y in points), False]
    around = zip(points, there, there[1:], there[2:], strict=False)
    return [point for point, before, here, after in around if here and not before and not after]


def _add_bands(
    chart: draw.Chart, lines: Mapping[str, Points], words_of: Callable[[float], str]
) -> None:
    """Invisible bands whose tooltips read the values off."""
    longest = max(lines.values(), key=len, default=[])
    if len(longest) < 2:
        return
    count = min(_BANDS, len(longest))
    by_x = [(name, dict(points)) for name, points in lines.items()]
    left, right, top, bottom = chart.plot
    width = (right - left) / count
    for band in range(count):
        x = longest[round((band + 0.5) / count * (len(longest) - 1))][0]
        values = [f"{name} {number(row[x], 4)}" for name, row in by_x if x in row]
        start = min(max(chart.x(x) - width / 2, left), right - width)
        tip = f"{chart.words['x_label']} {words_of(x)}: {', '.join(values)}"
        chart.parts.append(draw.rect("hit", start, top, width, bottom - top, tip))
