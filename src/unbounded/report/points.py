"""Points: scatter charts and reliability diagrams."""

import math
from collections.abc import Mapping, Sequence
from typing import Unpack

from unbounded.metrics import wilson
from unbounded.report import drawing as draw
from unbounded.report.axes import Axis, drawable, finite, inner_ticks, number, trimmed, widened
from unbounded.report.lines import Points, Series, path_of

_MOST = 4000  # points drawn of a large set
_WITH_TIPS = 300  # points up to which each has a tooltip


def scatter_chart(
    series: Mapping[str, Series],
    *,
    sizes: Mapping[str, Sequence[float]] | None = None,
    tips: Mapping[str, Sequence[str]] | None = None,
    bounds: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    reference: tuple[float, str] | None = None,
    diagonal: bool = False,
    integer_x: bool = False,
    **words: Unpack[draw.Words],
) -> str:
    """Points. Small sets get a tooltip each; of very large ones an even share is drawn.

    Args:
        series: name ↦ (xs, ys); points that are not finite are left out.
        sizes: name ↦ the area of each point, relative to the largest.
        tips: name ↦ the tooltip of each point.
        bounds: name ↦ from where to where the whisker of each point goes, in a small set.
        reference: a horizontal line at a value, with its name.
        diagonal: draw y = x, for observed against predicted.
        integer_x: whole numbers only on the horizontal axis, for depths.
        words: title, x_label and y_label.
    """
    points = {
        name: [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
        for name, (xs, ys) in series.items()
    }
    every = [p for row in points.values() for p in row if _both(p)]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    ys += finite(end for row in (bounds or {}).values() for pair in row for end in pair)
    if reference is not None:
        ys.append(reference[0])
    if diagonal:
        xs = ys = xs + ys
    y_axis = trimmed(min(ys, default=0.0), max(ys, default=1.0), 5 if diagonal else 4)
    x_axis = y_axis if diagonal else _x_axis(xs, integer_x)
    plot = draw.plot_area(y_axis)
    chart = draw.Chart(plot, words, x_axis, y_axis)
    # The line of reference takes the second colour, the series the others.
    colours = [draw.colour(i + (reference is not None and i > 0)) for i in range(len(points))]
    keys = [draw.Key(name, colour, "dot") for name, colour in zip(points, colours, strict=True)]
    if diagonal:
        chart.parts.append(draw.line("reference c-muted", *_diagonal(plot)))
    if reference is not None:
        y = chart.y(reference[0])
        tip = f"{reference[1]}: {number(reference[0], 4)}"
        chart.parts.append(draw.line("reference c2", plot.left, y, plot.right, y, tip))
        keys.append(draw.Key(reference[1], "c2", "dash"))
    chart.keys = keys if len(keys) > 1 else []
    x_label, y_label = words["x_label"], words["y_label"]
    for (name, row), colour in zip(points.items(), colours, strict=True):
        if len(every) <= _WITH_TIPS:
            area = None if sizes is None else sizes.get(name)
            said = [f"{x_label} {number(x, 4)}: {y_label} {number(y, 4)}" for x, y in row]
            said = said if tips is None else list(tips.get(name, said))
            ends = [] if bounds is None else bounds.get(name, [])
            chart.parts += _whiskers(chart, row, ends)
            chart.parts += _circles(chart, row, _radii(row, area), said, colour)
        else:
            kept = row[:: -(-len(every) // _MOST)]
            style = f' stroke-width="{3.4 if len(kept) < 1500 else 2.4}" stroke-opacity="0.55"'
            chart.parts.append(draw.path(f"dots {colour}", dots(chart, kept), style))
    return chart.figure()


def reliability_chart(
    confidence: Sequence[float],
    accuracy: Sequence[float],
    counts: Sequence[float],
    *,
    title: str,
    x_label: str = "confidence",
    y_label: str = "accuracy",
) -> str:
    """How often predictions of a given confidence are right; the diagonal is perfect.

    Args:
        confidence: mean confidence of each bin, in 0 … 1.
        accuracy: share of right predictions of each bin.
        counts: rows in each bin; empty bins are left out. The faint bars show them, and the
            whiskers what so few rows leave open (Wilson's 95 % interval).
    """
    bins = [
        (float(c), float(a), float(k))
        for c, a, k in zip(confidence, accuracy, counts, strict=True)
        if k > 0 and _both((c, a))
    ]
    axis = Axis([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], 0.0, 1.0)
    left, right, top, bottom = plot = draw.plot_area(axis, height=300.0)
    words = draw.Words(title=title, x_label=x_label, y_label=y_label)
    chart = draw.Chart(plot, words, axis, axis)
    most = max((k for _, _, k in bins), default=1.0)
    total = sum(k for _, _, k in bins) or 1.0
    width = 0.7 * (right - left) / max(10, len(counts))
    for c, _, k in bins:
        tall = 0.22 * (bottom - top) * k / most
        start = min(max(chart.x(c) - width / 2, left), right - width)
        tip = f"{number(k)} rows, {k / total:.1%}"
        chart.parts.append(draw.rect("bar faint c-muted", start, bottom - tall, width, tall, tip))
    chart.parts.append(draw.line("reference c-muted", *_diagonal(plot)))
    row = [(c, a) for c, a, _ in bins]
    chart.parts.append(draw.path("line c1", path_of(chart, row)))
    ends = list(zip(*wilson([a * k for _, a, k in bins], [k for *_, k in bins]), strict=True))
    chart.parts += _whiskers(chart, row, ends)
    tips = [
        f"{x_label} {c:.3f}, {y_label} {a:.3f} ({low:.3f} to {high:.3f}), {number(k)} rows"
        for (c, a, k), (low, high) in zip(bins, ends, strict=True)
    ]
    radii = _radii(row, [k for _, _, k in bins], least=3.2)
    chart.parts += _circles(chart, row, radii, tips, "c1")
    chart.keys = [
        draw.Key("predictions", "c1", "dot"),
        draw.Key("perfectly calibrated", "c-muted", "dash"),
        draw.Key("share of rows", "c-muted", "dot faint"),
    ]
    return chart.figure()


def dots(chart: draw.Chart, points: Points) -> str:
    """A path of strokes of no length with round caps: a tenth of the size of circles."""
    return "".join(f"M{chart.point(x, y)}h0" for x, y in points if _both((x, y)))


def _circles(
    chart: draw.Chart, row: Points, radii: Sequence[float], tips: Sequence[str], colour: str
) -> list[str]:
    return [
        chart.circle(*point, radius, colour, tip)
        for point, radius, tip in zip(row, radii, tips, strict=True)
        if _both(point)
    ]


def _whiskers(chart: draw.Chart, row: Points, bounds: Sequence[tuple[float, float]]) -> list[str]:
    return [
        part
        for (x, y), (low, high) in zip(row, bounds, strict=False)
        if _both((x, y)) and drawable(low) and drawable(high)
        for part in draw.whisker(chart.x(x), chart.y(low), chart.x(x), chart.y(high), 2.0)
    ]


def _diagonal(plot: draw.Plot) -> tuple[float, float, float, float]:
    return plot.left, plot.bottom, plot.right, plot.top


def _radii(row: Points, area: Sequence[float] | None, least: float = 2.6) -> list[float]:
    """Radii whose squares go with the areas, none too small to be seen or pointed at."""
    largest = max(area, default=0.0) if area is not None else 0.0
    if area is None or largest <= 0:
        return [3.6] * len(row)
    return [max(least, 7.5 * math.sqrt(max(0.0, a) / largest)) for a in area]


def _both(point: tuple[float, float]) -> bool:
    return drawable(point[0]) and drawable(point[1])


def _x_axis(xs: Sequence[float], integers: bool) -> Axis:
    low, high = 0.0, 1.0
    if xs:
        low, high = widened(min(xs), max(xs))
        margin = (high - low) * 0.05
        low, high = low - margin, high + margin
    return Axis(inner_ticks(low, high, 8 if integers else 5, integers=integers), low, high)
