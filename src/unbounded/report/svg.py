"""Charts as inline SVG: pure functions of numbers that return strings, no dependency.

Each chart is a `<figure>` with a caption, a legend where there is more than one series, and an
`<svg>` that takes the width it is given. Colours are CSS variables and sizes of text depend on
the width of the figure; `STYLE` defines both, and a page includes it once. All text is escaped.
"""

import html
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unbounded.report import png
from unbounded.report.axes import Scale, finite, labels, log_ticks, number, ticks

Series = tuple[Sequence[float], Sequence[float]]
Mark = float | tuple[float, str]

WIDTH, HEIGHT = 440.0, 264.0
COLOURS = 6  # series and classes before the colours repeat
_CHAR = 7.0  # units a character takes at the largest size of text, the one of narrow figures
_BINS = 190  # of a thinned line: about two units of the drawing each
_MOST_POINTS = 4000  # of a scatter chart

STYLE = """
.chart { margin: 0; container-type: inline-size; min-width: 0; }
.chart svg { display: block; width: 100%; height: auto; overflow: visible; }
.chart figcaption { font-size: .86rem; font-weight: 600; margin: 0 0 .45rem; line-height: 1.35;
  overflow-wrap: anywhere; }
.chart .legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: 0 0 .4rem; padding: 0;
  list-style: none; font-size: .8rem; color: var(--muted); }
.chart .legend li { display: inline-flex; align-items: center; gap: .4rem; overflow-wrap: anywhere;
  min-width: 0; }
.chart .key { flex: none; width: .95rem; height: 3px; border-radius: 2px;
  background: currentColor; }
.chart .key.dot { width: .6rem; height: .6rem; border-radius: 50%; }
.chart .key.cross { background: none; width: auto; height: auto; line-height: 1; font-weight: 700; }
.chart .key.dash { background: none; height: 0; border-radius: 0; border-top: 2px dashed; }
.chart text { font-size: 12px; fill: var(--muted); font-variant-numeric: tabular-nums; }
.chart text.strong { fill: var(--ink); }
.chart .grid { stroke: var(--grid); stroke-width: 1; vector-effect: non-scaling-stroke; }
.chart .axis { stroke: var(--axis); stroke-width: 1; vector-effect: non-scaling-stroke; }
.chart .line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round; vector-effect: non-scaling-stroke; }
.chart .mark { stroke: var(--axis); stroke-width: 1; stroke-dasharray: 2 3;
  vector-effect: non-scaling-stroke; }
.chart .reference { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 5 4;
  vector-effect: non-scaling-stroke; }
.chart .whisker { stroke: var(--ink); stroke-width: 1.2; vector-effect: non-scaling-stroke; }
.chart .bar { fill: currentColor; }
.chart .bar:hover, .chart .dot:hover { filter: brightness(1.15) saturate(1.15); }
.chart .dot { fill: currentColor; stroke: var(--card); stroke-width: 1.2;
  vector-effect: non-scaling-stroke; }
.chart .dots { fill: none; stroke: currentColor; stroke-linecap: round; }
.chart .halo { fill: none; stroke: var(--card); stroke-linecap: round; opacity: .85; }
.chart .crosses { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.chart .hit { fill: var(--ink); fill-opacity: 0; }
.chart .hit:hover { fill-opacity: .07; }
.chart .faint { opacity: .28; }
.c1 { color: var(--series-1); } .c2 { color: var(--series-2); } .c3 { color: var(--series-3); }
.c4 { color: var(--series-4); } .c5 { color: var(--series-5); } .c6 { color: var(--series-6); }
.c-ink { color: var(--ink); } .c-axis { color: var(--muted); }
@container (max-width: 380px) { .chart text { font-size: 13.5px; } }
@container (min-width: 500px) { .chart text { font-size: 11px; } }
@container (min-width: 580px) { .chart text { font-size: 9.6px; } }
@container (min-width: 680px) { .chart text { font-size: 8.4px; } }
"""


@dataclass(frozen=True)
class _Plot:
    """The rectangle between the axes, in units of the drawing."""

    left: float
    right: float
    top: float
    bottom: float


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
    """Bars from zero, heights proportional to the values.

    Args:
        values: one for each bar; they may be negative.
        labels: their names. Where all of them would not fit, every so many are written.
        title: of the figure.
        x_label: of the axis along the bars' names.
        y_label: of the axis of values.
        highlight: index or indices of bars in the second colour.
        errors: half the length of a whisker for each bar.
        horizontal: bars to the right, for names that are long.
        value_format: writes a value at its bar and in its tooltip.
    """
    values, names = [float(v) for v in values], [str(name) for name in labels]
    if len(values) != len(names):
        raise ValueError(f"there are {len(values)} values and {len(names)} labels")
    if not values:
        raise ValueError("there are no values to draw, at least one is needed")
    marked = {highlight} if isinstance(highlight, int) else set(highlight or ())
    spread = [0.0] * len(values) if errors is None else [abs(float(e)) for e in errors]
    ends = finite([v + s * e for v, e in zip(values, spread, strict=True) for s in (-1, 1)])
    axis = ticks(min(0.0, *ends), max(0.0, *ends), 4) if ends else ticks(0.0, 1.0, 4)
    draw = _horizontal_bars if horizontal else _vertical_bars
    body, height = draw(values, names, spread, axis, marked, x_label, y_label, value_format)
    return _figure(title, body, height=height)


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
) -> str:
    """Lines over a common axis, thinned to what can be seen without losing an extreme.

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
    """
    lines = {name: _points(xs, ys, log_y) for name, (xs, ys) in series.items()}
    xs = finite([x for points in lines.values() for x, y in points])
    ys = finite([y for points in lines.values() for _, y in points])
    placed = [(float(m), "") if isinstance(m, int | float) else (float(m[0]), m[1]) for m in marks]
    # Marks widen the axis: a birth before the first epoch is still on the chart.
    x_axis, (low, high) = _x_axis([*xs, *(x for x, _ in placed)])
    y_axis = _y_axis(ys, log_y)
    plot = _plot(_tick_labels(y_axis, log_y), top=36.0 if any(t for _, t in placed) else 26.0)
    to_x = Scale(low, high, plot.left, plot.right)
    to_y = Scale(y_axis[0], y_axis[-1], plot.bottom, plot.top, log_y)
    parts = [_frame(plot, to_x, to_y, x_axis, y_axis, x_label, y_label, log_y)]
    parts.append(_marks(placed, plot, to_x, x_label))
    for index, (name, points) in enumerate(lines.items()):
        path = _path(_thin(points), to_x, to_y, name in steps)
        parts.append(f'<path class="line {_colour(index)}" d="{path}"><title>{_esc(name)}</title>')
        parts.append("</path>")
        parts.append(_lone_points(points, to_x, to_y, index))
    parts.append(_hits(lines, plot, to_x, x_label))
    keys = [(name, _colour(index), "") for index, name in enumerate(lines)]
    if placed and mark_name:
        keys.append((mark_name, "c-axis", "dash"))
    return _figure(title, "".join(parts), keys=keys if len(keys) > 1 else ())


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
    every = [p for row in points.values() for p in row if math.isfinite(p[0] + p[1])]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    if reference is not None:
        ys.append(reference[0])
    if diagonal and every:
        xs = ys = [*xs, *ys]
    x_axis, (low, high) = _x_axis(xs, integer_x, pad=not diagonal)
    y_axis = _y_axis(ys, False)
    if diagonal:
        x_axis = y_axis = ticks(min(ys, default=0.0), max(ys, default=1.0), 5)
        low, high = x_axis[0], x_axis[-1]
    plot = _plot(_tick_labels(y_axis, False))
    to_x = Scale(low, high, plot.left, plot.right)
    to_y = Scale(y_axis[0], y_axis[-1], plot.bottom, plot.top)
    parts = [_frame(plot, to_x, to_y, x_axis, y_axis, x_label, y_label, False)]
    keys = [(name, _colour(index), "dot") for index, name in enumerate(points)]
    if diagonal:
        parts.append(
            f'<line class="reference c-axis" x1="{_n(to_x(low))}" y1="{_n(to_y(low))}" '
            f'x2="{_n(to_x(high))}" y2="{_n(to_y(high))}"/>'
        )
    if reference is not None:
        y = _n(to_y(reference[0]))
        parts.append(
            f'<line class="reference c2" x1="{_n(plot.left)}" x2="{_n(plot.right)}" '
            f'y1="{y}" y2="{y}"><title>{_esc(reference[1])}: {number(reference[0], 4)}'
            "</title></line>"
        )
        keys.append((reference[1], "c2", "dash"))
    total = sum(len(row) for row in points.values())
    for index, (name, row) in enumerate(points.items()):
        area = None if sizes is None else sizes.get(name)
        said = None if tips is None else tips.get(name)
        # The reference line has the second colour.
        colour = _colour(index if reference is None or index == 0 else index + 1)
        if total <= 300:
            parts.append(_dots(row, to_x, to_y, colour, area, said, x_label, y_label))
        else:
            stride = -(-total // _MOST_POINTS)
            radius = 1.7 if total < 1500 else 1.2
            parts.append(f'<path class="dots {colour}" stroke-width="{2 * radius}" opacity="0.6" ')
            parts.append(f'd="{_dot_path(row[::stride], to_x, to_y)}"/>')
    return _figure(title, "".join(parts), keys=keys if len(keys) > 1 else ())


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
        counts: rows in each bin; empty bins are left out. They are the faint bars below.
        title: of the figure.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
    """
    bins = [
        (float(c), float(a), float(k))
        for c, a, k in zip(confidence, accuracy, counts, strict=True)
        if k > 0 and math.isfinite(c + a)
    ]
    axis = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    height = 400.0
    plot = _plot(labels(axis), height=height)
    to_x = Scale(0.0, 1.0, plot.left, plot.right)
    to_y = Scale(0.0, 1.0, plot.bottom, plot.top)
    parts = [_frame(plot, to_x, to_y, axis, axis, x_label, y_label, False)]
    most = max((k for _, _, k in bins), default=1.0)
    total = sum(k for _, _, k in bins) or 1.0
    half = 0.35 * (plot.right - plot.left) / max(10, len(counts))
    for c, _, k in bins:
        tall = 0.22 * (plot.bottom - plot.top) * k / most
        parts.append(
            f'<rect class="bar faint c-axis" x="{_n(to_x(c) - half)}" '
            f'y="{_n(plot.bottom - tall)}" width="{_n(2 * half)}" height="{_n(tall)}">'
            f"<title>{number(k)} rows, {k / total:.1%}</title></rect>"
        )
    parts.append(
        f'<line class="reference c-axis" x1="{_n(plot.left)}" y1="{_n(plot.bottom)}" '
        f'x2="{_n(plot.right)}" y2="{_n(plot.top)}"/>'
    )
    path = _path([(c, a) for c, a, _ in bins], to_x, to_y, False)
    parts.append(f'<path class="line c1" d="{path}"/>')
    for c, a, k in bins:
        tip = f"{x_label} {c:.3f}, {y_label} {a:.3f}, {number(k)} rows"
        parts.append(
            f'<circle class="dot c1" cx="{_n(to_x(c))}" cy="{_n(to_y(a))}" '
            f'r="{_n(3.2 + 3.6 * math.sqrt(k / most))}"><title>{_esc(tip)}</title></circle>'
        )
    keys = [("predictions", "c1", "dot"), ("perfectly calibrated", "c-axis", "dash")]
    return _figure(title, "".join(parts), keys=keys, height=height)


def heatmap(
    probs: ArrayLike,
    extent: tuple[float, float, float, float],
    points: tuple[Sequence[float], Sequence[float], Sequence[int]] | None = None,
    *,
    title: str,
    x_label: str,
    y_label: str,
    names: Sequence[str] = (),
    wrong: Sequence[bool] | None = None,
) -> str:
    """A decision boundary: class probabilities as colour, points over it.

    The colour of a pixel is that of its most probable class, its opacity how sure that is, so
    that one picture does for light and dark pages: where nothing is known the page shows through.

    Args:
        probs: class probabilities on a grid, `(rows, columns, class)`; the first row lies at
            the lowest y.
        extent: x from and to, y from and to, of the grid.
        points: x, y and class of each point to draw.
        title: of the figure.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        names: of the classes, for the legend.
        wrong: which points are to be crossed out.
    """
    grid = np.asarray(probs, dtype=np.float64)
    if grid.ndim != 3 or grid.shape[2] < 2:
        raise ValueError(f"probs must be (rows, columns, class), got {grid.shape}")
    x_low, x_high, y_low, y_high = (float(e) for e in extent)
    if not (x_low < x_high and y_low < y_high):
        raise ValueError(f"extent must be x from and to, y from and to, got {extent}")
    x_axis, y_axis = _inner(ticks(x_low, x_high, 5)), _inner(ticks(y_low, y_high, 5))
    x_axis = [t for t in x_axis if x_low <= t <= x_high]
    y_axis = [t for t in y_axis if y_low <= t <= y_high]
    left = _plot(_tick_labels(y_axis, False)).left
    # Equal units on both axes, as long as that gives a picture of a sane shape.
    ratio = min(1.3, max(0.6, (y_high - y_low) / (x_high - x_low)))
    plot = _Plot(left, WIDTH - 8.0, 26.0, 26.0 + ratio * (WIDTH - 8.0 - left))
    height = plot.bottom + 40.0
    to_x = Scale(x_low, x_high, plot.left, plot.right)
    to_y = Scale(y_low, y_high, plot.bottom, plot.top)
    parts = [_frame(plot, to_x, to_y, x_axis, y_axis, x_label, y_label, False)]
    parts.append(
        f'<image x="{_n(plot.left)}" y="{_n(plot.top)}" width="{_n(plot.right - plot.left)}" '
        f'height="{_n(plot.bottom - plot.top)}" preserveAspectRatio="none" '
        f'href="{png.data_uri(class_pixels(grid)[::-1])}"/>'
    )
    classes = grid.shape[2]
    shown = [str(n) for n in names] or [f"class {index}" for index in range(classes)]
    keys = [(name, _colour(index), "dot") for index, name in enumerate(shown[:classes])]
    if points is not None:
        drawn, missed = _class_points(points, wrong, (x_low, x_high, y_low, y_high), to_x, to_y)
        parts.append(drawn)
        if wrong is not None:
            keys.append((f"predicted wrongly ({missed})", "c-ink", "cross"))
    return _figure(title, "".join(parts), keys=keys, height=height)


def class_pixels(probs: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The colours of a heat map: `(rows, columns, class)` → RGBA `(rows, columns, 4)`."""
    classes = probs.shape[2]
    best = probs.argmax(2)
    sure = np.clip((probs.max(2) - 1 / classes) / (1 - 1 / classes), 0.0, 1.0)
    palette = np.array([_CLASS_RGB[index % COLOURS] for index in range(classes)], dtype=np.uint8)
    pixels = np.empty((*best.shape, 4), dtype=np.uint8)
    pixels[..., :3] = palette[best]
    # Few levels: invisible to the eye, and the file is several times smaller.
    pixels[..., 3] = np.round(np.round(sure * 48) / 48 * 120).astype(np.uint8)
    return pixels


# Halfway between the colours of the light and of the dark theme, in the order of --series-….
_CLASS_RGB = (
    (59, 125, 196),
    (224, 123, 57),
    (62, 158, 116),
    (150, 110, 196),
    (190, 152, 50),
    (208, 96, 130),
)


def _vertical_bars(
    values: list[float],
    names: list[str],
    spread: list[float],
    axis: list[float],
    marked: set[int],
    x_label: str,
    y_label: str,
    value_format: Callable[[float], str],
) -> tuple[str, float]:
    plot = _plot(_tick_labels(axis, False), top=30.0)
    to_y = Scale(axis[0], axis[-1], plot.bottom, plot.top)
    step = (plot.right - plot.left) / len(values)
    width = step * (0.72 if len(values) <= 60 else 1.0)
    texts = [value_format(v) for v in values]
    write_values = step >= _CHAR * 0.82 * max(len(t) for t in texts) + 3
    every = max(1, math.ceil((_CHAR * max(len(n) for n in names) + 7) / step))
    parts = [_y_grid(plot, to_y, axis, False), _axis_names(plot, x_label, y_label)]
    for index, value in enumerate(values):
        centre = plot.left + step * (index + 0.5)
        if math.isfinite(value):
            top, bottom = sorted((to_y(value), to_y(0.0)))
            tip = f"{x_label} {names[index]}: {texts[index]}".strip()
            parts.append(
                f'<rect class="bar {"c2" if index in marked else "c1"}" '
                f'x="{_n(centre - width / 2)}" y="{_n(top)}" width="{_n(width)}" '
                f'height="{_n(bottom - top)}" rx="{1.5 if width > 8 else 0}">'
                f"<title>{_esc(tip)}</title></rect>"
            )
            if spread[index]:
                a, b = to_y(value - spread[index]), to_y(value + spread[index])
                parts.append(_line("whisker", centre, a, centre, b))
            if write_values:
                above = min(top, to_y(value + spread[index])) - 5
                parts.append(_text(centre, above, texts[index], "middle"))
        if index % every == 0:
            parts.append(_text(centre, plot.bottom + 16, _short(names[index], 14), "middle"))
    parts.append(_line("axis", plot.left, to_y(0.0), plot.right, to_y(0.0)))
    return "".join(parts), HEIGHT


def _horizontal_bars(
    values: list[float],
    names: list[str],
    spread: list[float],
    axis: list[float],
    marked: set[int],
    x_label: str,
    y_label: str,
    value_format: Callable[[float], str],
) -> tuple[str, float]:
    shown = [_short(name, 20) for name in names]
    texts = [value_format(v) for v in values]
    left = 8 + _CHAR * max(len(name) for name in shown)
    right = WIDTH - 10 - _CHAR * max(len(text) for text in texts)
    row = 23.0
    plot = _Plot(left, right, 24.0, 24.0 + row * len(values))
    if len(axis) > 4:
        axis = ticks(axis[0], axis[-1], 3)
    to_x = Scale(axis[0], axis[-1], plot.left, plot.right)
    parts = []
    for tick, text in zip(axis, labels(axis), strict=True):
        parts.append(_line("grid", to_x(tick), plot.top, to_x(tick), plot.bottom))
        parts.append(_text(to_x(tick), plot.bottom + 16, text, "middle"))
    parts.append(_text((plot.left + plot.right) / 2, plot.bottom + 33, y_label, "middle"))
    parts.append(_text(0, 14, x_label))
    for index, value in enumerate(values):
        middle = plot.top + row * (index + 0.5)
        parts.append(_text(plot.left - 7, middle + 4, shown[index], "end", strong=True))
        if not math.isfinite(value):
            continue
        a, b = sorted((to_x(value), to_x(0.0)))
        parts.append(
            f'<rect class="bar {"c2" if index in marked else "c1"}" x="{_n(a)}" '
            f'y="{_n(middle - row * 0.34)}" width="{_n(b - a)}" height="{_n(row * 0.68)}" '
            f'rx="1.5"><title>{_esc(f"{names[index]}: {texts[index]}")}</title></rect>'
        )
        end = max(to_x(value), to_x(0.0))
        if spread[index]:
            low, end = to_x(value - spread[index]), to_x(value + spread[index])
            parts.append(_line("whisker", low, middle, end, middle))
        parts.append(_text(max(end, to_x(0.0)) + 5, middle + 4, texts[index]))
    parts.append(_line("axis", to_x(0.0), plot.top, to_x(0.0), plot.bottom))
    return "".join(parts), plot.bottom + 40


def _class_points(
    points: tuple[Sequence[float], Sequence[float], Sequence[int]],
    wrong: Sequence[bool] | None,
    extent: tuple[float, float, float, float],
    to_x: Scale,
    to_y: Scale,
) -> tuple[str, int]:
    """Points by class with a halo, crosses over the wrong ones, and how many those are."""
    x_low, x_high, y_low, y_high = extent
    by_class: dict[int, list[tuple[float, float]]] = {}
    crosses: list[str] = []
    for index, (x, y, label) in enumerate(zip(*points, strict=True)):
        if not (x_low <= x <= x_high and y_low <= y <= y_high):
            continue
        by_class.setdefault(int(label), []).append((float(x), float(y)))
        if wrong is not None and bool(wrong[index]):
            px, py = to_x(float(x)), to_y(float(y))
            crosses.append(f"M{_n(px - 4)} {_n(py - 4)}l8 8m0-8l-8 8")
    count = sum(len(rows) for rows in by_class.values())
    size = 4.2 if count <= 400 else 3.2 if count <= 2000 else 2.0
    parts = []
    for label, rows in sorted(by_class.items()):
        path = _dot_path(rows, to_x, to_y)
        parts.append(f'<path class="halo" stroke-width="{_n(size + 1.1)}" d="{path}"/>')
        parts.append(f'<path class="dots {_colour(label)}" stroke-width="{size}" d="{path}"/>')
    if crosses:
        parts.append(f'<path class="crosses" d="{"".join(crosses)}"/>')
    missed = 0 if wrong is None else sum(bool(w) for w in wrong)
    return "".join(parts), missed


def _points(xs: Sequence[float], ys: Sequence[float], log: bool) -> list[tuple[float, float]]:
    """Pairs with a finite x; a y that cannot be drawn becomes NaN, a gap."""
    points = []
    for x, y in zip(xs, ys, strict=True):
        x, y = float(x), float(y)
        drawable = math.isfinite(y) and (y > 0 or not log)
        if math.isfinite(x):
            points.append((x, y if drawable else math.nan))
    return points


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """First, lowest, highest and last point of each of a few hundred stretches; gaps stay."""
    if len(points) <= 4 * _BINS:
        return points
    kept: list[tuple[float, float]] = []
    for index in range(_BINS):
        part = points[index * len(points) // _BINS : (index + 1) * len(points) // _BINS]
        there = [i for i, (_, y) in enumerate(part) if not math.isnan(y)]
        picks = {0, len(part) - 1}
        if there:
            picks |= {min(there, key=lambda i: part[i][1]), max(there, key=lambda i: part[i][1])}
        gaps = [i for i, (_, y) in enumerate(part) if math.isnan(y)]
        kept.extend(part[i] for i in sorted(picks | set(gaps[:1])))
    return kept


def _path(points: Sequence[tuple[float, float]], to_x: Scale, to_y: Scale, steps: bool) -> str:
    parts: list[str] = []
    pen = False
    for x, y in points:
        if math.isnan(y):
            pen = False
            continue
        px, py = _n(to_x(x)), _n(to_y(y))
        if not pen:
            parts.append(f"M{px} {py}")
        elif steps:
            parts.append(f"H{px}V{py}")
        else:
            parts.append(f"L{px} {py}")
        pen = True
    return "".join(parts)


def _lone_points(
    points: Sequence[tuple[float, float]], to_x: Scale, to_y: Scale, index: int
) -> str:
    """Dots where a line has nothing to join: one epoch, or one value between two gaps."""
    there = [not math.isnan(y) for _, y in points]
    parts = []
    for i, (x, y) in enumerate(points):
        before, after = i > 0 and there[i - 1], i + 1 < len(points) and there[i + 1]
        if there[i] and not before and not after:
            parts.append(
                f'<circle class="dot {_colour(index)}" cx="{_n(to_x(x))}" cy="{_n(to_y(y))}" '
                'r="3"/>'
            )
    return "".join(parts)


def _marks(marks: Sequence[tuple[float, str]], plot: _Plot, to_x: Scale, x_label: str) -> str:
    """Vertical lines with labels that do not run into one another."""
    parts: list[str] = []
    free = -math.inf
    many = len(marks) > 60
    for x, text in sorted(marks):
        px = to_x(x)
        parts.append(
            f'<line class="mark" x1="{_n(px)}" x2="{_n(px)}" y1="{_n(plot.top - 4)}" '
            f'y2="{_n(plot.top + 6 if many else plot.bottom)}">'
            f"<title>{_esc(f'{text} at {x_label} {number(x, 5)}'.strip())}</title></line>"
        )
        half = _CHAR * len(text) / 2
        if text and px - half >= free and half + px <= WIDTH:
            parts.append(_text(px, plot.top - 8, text, "middle", strong=True))
            free = px + half + 3
    return "".join(parts)


def _hits(
    lines: Mapping[str, list[tuple[float, float]]], plot: _Plot, to_x: Scale, x_label: str
) -> str:
    """Invisible bands whose tooltips read the values off."""
    longest = max(lines.values(), key=len, default=[])
    if len(longest) < 2:
        return ""
    bands = min(48, len(longest))
    by_x = {name: dict(points) for name, points in lines.items()}
    width = (plot.right - plot.left) / bands
    parts = []
    for band in range(bands):
        x = longest[round((band + 0.5) / bands * (len(longest) - 1))][0]
        said = [f"{name} {number(row[x], 4)}" for name, row in by_x.items() if x in row]
        tip = f"{x_label} {number(x, 6)}: " + ", ".join(said)
        centre = min(max(to_x(x), plot.left + width / 2), plot.right - width / 2)
        parts.append(
            f'<rect class="hit" x="{_n(centre - width / 2)}" y="{_n(plot.top)}" '
            f'width="{_n(width)}" height="{_n(plot.bottom - plot.top)}">'
            f"<title>{_esc(tip)}</title></rect>"
        )
    return "".join(parts)


def _dots(
    row: Sequence[tuple[float, float]],
    to_x: Scale,
    to_y: Scale,
    colour: str,
    area: Sequence[float] | None,
    tips: Sequence[str] | None,
    x_label: str,
    y_label: str,
) -> str:
    largest = max(area, default=0.0) if area is not None else 0.0
    parts = []
    for index, (x, y) in enumerate(row):
        if not math.isfinite(x + y):
            continue
        radius = 3.6
        if area is not None and largest > 0:
            radius = 2.2 + 6.0 * math.sqrt(max(0.0, area[index]) / largest)
        tip = f"{x_label} {number(x, 4)}: {y_label} {number(y, 4)}"
        parts.append(
            f'<circle class="dot {colour}" cx="{_n(to_x(x))}" cy="{_n(to_y(y))}" '
            f'r="{_n(radius)}"><title>{_esc(tip if tips is None else tips[index])}'
            "</title></circle>"
        )
    return "".join(parts)


def _dot_path(points: Sequence[tuple[float, float]], to_x: Scale, to_y: Scale) -> str:
    """Dots as strokes of no length with round caps: a tenth of the size of circles."""
    return "".join(f"M{_n(to_x(x))} {_n(to_y(y))}h0" for x, y in points if math.isfinite(x + y))


def _x_axis(
    xs: Sequence[float], integers: bool = True, pad: bool = False
) -> tuple[list[float], tuple[float, float]]:
    """Ticks inside the data's range, and that range; whole numbers where the data are whole."""
    if not xs:
        return [0.0, 1.0], (0.0, 1.0)
    low, high = min(xs), max(xs)
    whole = integers and all(x == round(x) for x in xs)
    if low == high:
        low, high = low - 0.5, high + 0.5
    elif pad:
        margin = (high - low) * 0.05
        low, high = low - margin, high + margin
    inside = [t for t in ticks(low, high, 5, integers=whole) if low <= t <= high]
    return inside or [min(xs)], (low, high)


def _y_axis(ys: Sequence[float], log: bool) -> list[float]:
    if not ys:
        return [1.0, 10.0] if log else [0.0, 1.0]
    low, high = min(ys), max(ys)
    if log:
        return log_ticks(low, high)
    # From zero where that costs little room.
    if 0 < low < 0.35 * high:
        low = 0.0
    return ticks(low, high, 4)


def _inner(values: list[float]) -> list[float]:
    return values if len(values) <= 6 else values[::2]


def _plot(tick_labels: Sequence[str], top: float = 26.0, height: float = HEIGHT) -> _Plot:
    """The rectangle that is left once the axes have their room."""
    left = 10.0 + _CHAR * max((len(text) for text in tick_labels), default=1)
    return _Plot(left, WIDTH - 8.0, top, height - 40.0)


def _frame(
    plot: _Plot,
    to_x: Scale,
    to_y: Scale,
    x_axis: Sequence[float],
    y_axis: Sequence[float],
    x_label: str,
    y_label: str,
    log_y: bool,
) -> str:
    """Grid lines, ticks and the names of both axes."""
    parts = [_y_grid(plot, to_y, y_axis, log_y), _axis_names(plot, x_label, y_label)]
    for tick, text in zip(x_axis, labels(x_axis), strict=True):
        px = to_x(tick)
        half = _CHAR * len(text) / 2
        px_text = min(px, WIDTH - half)
        parts.append(_line("axis", px, plot.bottom, px, plot.bottom + 4))
        parts.append(_text(px_text, plot.bottom + 17, text, "middle"))
    parts.append(_line("axis", plot.left, plot.bottom, plot.right, plot.bottom))
    return "".join(parts)


def _y_grid(plot: _Plot, to_y: Scale, y_axis: Sequence[float], log_y: bool) -> str:
    parts = []
    for tick, text in zip(y_axis, _tick_labels(y_axis, log_y), strict=True):
        py = to_y(tick)
        parts.append(_line("grid", plot.left, py, plot.right, py))
        parts.append(_text(plot.left - 6, py + 4, text, "end"))
    return "".join(parts)


def _axis_names(plot: _Plot, x_label: str, y_label: str) -> str:
    middle = (plot.left + plot.right) / 2
    return _text(0, 13, y_label) + _text(middle, plot.bottom + 35, x_label, "middle")


def _tick_labels(values: Sequence[float], log: bool) -> list[str]:
    return [number(v) for v in values] if log else labels(values)


def _figure(
    title: str,
    body: str,
    *,
    keys: Sequence[tuple[str, str, str]] = (),
    height: float = HEIGHT,
) -> str:
    """Caption, legend and drawing."""
    caption = f"<figcaption>{_esc(title)}</figcaption>" if title else ""
    legend = "".join(
        f'<li><span class="key {colour} {kind}" aria-hidden="true">'
        f"{'×' if kind == 'cross' else ''}</span>{_esc(name)}</li>"
        for name, colour, kind in keys
    )
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    return (
        f'<figure class="chart">{caption}{legend}'
        f'<svg viewBox="0 0 {_n(WIDTH)} {_n(height)}" role="img" aria-label="{_esc(title)}">'
        f"<title>{_esc(title)}</title>{body}</svg></figure>"
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", *, strong: bool = False) -> str:
    if not text:
        return ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    weight = ' class="strong"' if strong else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{side}{weight}>{_esc(text)}</text>'


def _colour(index: int) -> str:
    return f"c{index % COLOURS + 1}"


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _n(value: float) -> str:
    """A coordinate to a hundredth of a unit, without idle digits."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _esc(text: object) -> str:
    """Safe as text and in attributes, of HTML and of XML (which has no control characters)."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(text)), quote=True)


_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

escape = _esc
