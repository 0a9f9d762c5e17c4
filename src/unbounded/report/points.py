"""Points: scatter charts and reliability diagrams."""

import math
from collections.abc import Mapping, Sequence

from unbounded.report import drawing as draw
from unbounded.report.axes import AxisScale, drawable, inner_ticks, number, trimmed, widened
from unbounded.report.lines import Points, Series, path_of

_MOST = 4000  # points drawn of a large set
_WITH_TIPS = 300  # points up to which each has a tooltip


def scatter_chart(
    series: Mapping[str, Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    sizes: Mapping[str, Sequence[float]] | None = None,
    tips: Mapping[str, Sequence[str]] | None = None,
    reference: tuple[float, str] | None = None,
    diagonal: bool = False,
    integer_x: bool = False,
) -> str:
    """Points. Small sets get a tooltip each; of very large ones an even share is drawn.

    Args:
        series: name ↦ (xs, ys); points that are not finite are left out.
        title: of the figure.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        sizes: name ↦ the area of each point, relative to the largest.
        tips: name ↦ the tooltip of each point.
        reference: a horizontal line at a value, with its name.
        diagonal: draw y = x, for observed against predicted.
        integer_x: whole numbers only on the horizontal axis, for depths.
    """
    points = {
        name: [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
        for name, (xs, ys) in series.items()
    }
    every = [p for row in points.values() for p in row if _both(p)]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    if reference is not None:
        ys.append(reference[0])
    if diagonal:
        y_axis, y_range = trimmed(min(xs + ys, default=0.0), max(xs + ys, default=1.0), 5)
        x_axis, (low, high) = y_axis, y_range
    else:
        y_axis, y_range = trimmed(min(ys, default=0.0), max(ys, default=1.0), 4)
        low, high = _padded(xs)
        x_axis = inner_ticks(low, high, 8 if integer_x else 5, integers=integer_x)
    plot = draw.plot_area(draw.tick_labels(y_axis, False))
    to_x = AxisScale(low, high, plot.left, plot.right)
    to_y = AxisScale(*y_range, plot.bottom, plot.top)
    parts = [draw.frame(plot, to_x, to_y, x_axis, y_axis, x_label, y_label)]
    # The line of reference takes the second colour, the series the others.
    colours = [
        draw.colour(index + (reference is not None and index > 0)) for index in range(len(points))
    ]
    keys = [draw.Key(name, colour, "dot") for name, colour in zip(points, colours, strict=True)]
    if diagonal:
        ends = (to_x(low), to_y(low), to_x(high), to_y(high))
        parts.append(draw.line("reference c-muted", *ends))
    if reference is not None:
        y = to_y(reference[0])
        tip = f"{reference[1]}: {number(reference[0], 4)}"
        parts.append(draw.line("reference c2", plot.left, y, plot.right, y, tip))
        keys.append(draw.Key(reference[1], "c2", "dash"))
    for (name, row), colour in zip(points.items(), colours, strict=True):
        if len(every) <= _WITH_TIPS:
            area = None if sizes is None else sizes.get(name)
            said = [f"{x_label} {number(x, 4)}: {y_label} {number(y, 4)}" for x, y in row]
            said = said if tips is None else list(tips.get(name, said))
            parts.append(_circles(row, _radii(row, area), said, to_x, to_y, colour))
        else:
            kept = row[:: -(-len(every) // _MOST)]
            size = 3.4 if len(kept) < 1500 else 2.4
            parts.append(
                f'<path class="dots {colour}" stroke-width="{size}" stroke-opacity="0.55" '
                f'd="{dots(kept, to_x, to_y)}"/>'
            )
    return draw.figure(title, "".join(parts), keys=keys if len(keys) > 1 else ())


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
        counts: rows in each bin; empty bins are left out. The faint bars show them.
        title: of the figure.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
    """
    bins = [
        (float(c), float(a), float(k))
        for c, a, k in zip(confidence, accuracy, counts, strict=True)
        if k > 0 and _both((c, a))
    ]
    axis = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    height = 360.0
    plot = draw.plot_area(draw.tick_labels(axis, False), height=height)
    to_x = AxisScale(0.0, 1.0, plot.left, plot.right)
    to_y = AxisScale(0.0, 1.0, plot.bottom, plot.top)
    parts = [draw.frame(plot, to_x, to_y, axis, axis, x_label, y_label)]
    most = max((k for _, _, k in bins), default=1.0)
    total = sum(k for _, _, k in bins) or 1.0
    width = 0.7 * (plot.right - plot.left) / max(10, len(counts))
    for c, _, k in bins:
        tall = 0.22 * (plot.bottom - plot.top) * k / most
        left = min(max(to_x(c) - width / 2, plot.left), plot.right - width)
        parts.append(
            f'<rect class="bar faint c-muted" x="{draw.at(left)}" '
            f'y="{draw.at(plot.bottom - tall)}" width="{draw.at(width)}" '
            f'height="{draw.at(tall)}">{draw.tooltip(f"{number(k)} rows, {k / total:.1%}")}</rect>'
        )
    parts.append(draw.line("reference c-muted", plot.left, plot.bottom, plot.right, plot.top))
    row = [(c, a) for c, a, _ in bins]
    parts.append(f'<path class="line c1" d="{path_of(row, to_x, to_y)}"/>')
    tips = [f"{x_label} {c:.3f}, {y_label} {a:.3f}, {number(k)} rows" for c, a, k in bins]
    radii = _radii(row, [k for _, _, k in bins], least=3.2)
    parts.append(_circles(row, radii, tips, to_x, to_y, "c1"))
    keys = [
        draw.Key("predictions", "c1", "dot"),
        draw.Key("perfectly calibrated", "c-muted", "dash"),
        draw.Key("share of rows", "c-muted", "dot faint"),
    ]
    return draw.figure(title, "".join(parts), keys=keys, height=height)


def dots(points: Points, to_x: AxisScale, to_y: AxisScale) -> str:
    """A path of strokes of no length with round caps: a tenth of the size of circles."""
    return "".join(f"M{draw.at(to_x(x))} {draw.at(to_y(y))}h0" for x, y in points if _both((x, y)))


def _circles(
    row: Points,
    radii: Sequence[float],
    tips: Sequence[str],
    to_x: AxisScale,
    to_y: AxisScale,
    colour: str,
) -> str:
    return "".join(
        f'<circle class="dot {colour}" cx="{draw.at(to_x(x))}" cy="{draw.at(to_y(y))}" '
        f'r="{draw.at(radius)}">{draw.tooltip(tip)}</circle>'
        for (x, y), radius, tip in zip(row, radii, tips, strict=True)
        if _both((x, y))
    )


def _radii(row: Points, area: Sequence[float] | None, least: float = 2.6) -> list[float]:
    """Radii whose squares go with the areas, none too small to be seen or pointed at."""
    largest = max(area, default=0.0) if area is not None else 0.0
    if area is None or largest <= 0:
        return [3.6] * len(row)
    return [max(least, 7.5 * math.sqrt(max(0.0, a) / largest)) for a in area]


def _both(point: tuple[float, float]) -> bool:
    return drawable(point[0]) and drawable(point[1])


def _padded(xs: Sequence[float]) -> tuple[float, float]:
    if not xs:
        return 0.0, 1.0
    low, high = widened(min(xs), max(xs))
    margin = (high - low) * 0.05
    return low - margin, high + margin
