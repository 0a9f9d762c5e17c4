"""Heat maps over the plane of two inputs, as a small picture under the points."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unbounded.report import drawing as draw
from unbounded.report import png
from unbounded.report.axes import Axis, inner_ticks, number
from unbounded.report.lines import Points
from unbounded.report.points import dots

Extent = tuple[float, float, float, float]

# Halfway between the colours of the light and of the dark theme, in the order of --series-….
_RGB = (
    (59, 125, 196),
    (224, 123, 57),
    (62, 158, 116),
    (150, 110, 196),
    (190, 152, 50),
    (208, 96, 130),
)
_LEVELS = 48  # of opacity: finer ones are not seen and make the file several times larger
_OPACITY = 120  # of 255, where the network is sure: points must stand out


def heatmap(
    values: ArrayLike,
    extent: Extent,
    points: tuple[Sequence[float], Sequence[float], Sequence[int]] | None = None,
    *,
    names: Sequence[str] = (),
    wrong: Sequence[bool] | None = None,
    colour: int = 3,
    **words: Unpack[draw.Words],
) -> str:
    """A decision boundary, or any quantity over the plane, with points over it.

    The colour of a pixel is that of its most probable class, its opacity how sure that is, so
    that one picture does for light and dark pages: where nothing is known the page shows through.

    Args:
        values: class probabilities on a grid, `(rows, columns, class)`, or a quantity from 0
            to its maximum, `(rows, columns)`; the first row lies at the lowest y.
        extent: x from and to, y from and to, of the grid.
        points: x, y and class of each point to draw.
        names: of the classes, or of the quantity, for the legend.
        wrong: which points are to be crossed out.
        colour: index of the colour of a quantity.
        words: title, x_label and y_label.
    """
    grid = np.asarray(values, dtype=np.float64)
    if grid.ndim not in (2, 3) or (grid.ndim == 3 and grid.shape[2] < 2):
        raise ValueError(f"values must be (rows, columns) or (…, class), got {grid.shape}")
    x_low, x_high, y_low, y_high = (float(e) for e in extent)
    if not (x_low < x_high and y_low < y_high):
        raise ValueError(f"extent must be x from and to, y from and to, got {extent}")
    x_axis = Axis(inner_ticks(x_low, x_high), x_low, x_high)
    y_axis = Axis(inner_ticks(y_low, y_high), y_low, y_high)
    left, right, top, _ = draw.plot_area(y_axis)
    # Equal units on both axes, as long as that gives a picture of a sane shape.
    ratio = min(1.25, max(0.6, (y_high - y_low) / (x_high - x_low)))
    plot = draw.Plot(left, right, top, top + ratio * (right - left))
    chart = draw.Chart(plot, words, x_axis, y_axis)
    pixels = class_pixels(grid) if grid.ndim == 3 else quantity_pixels(grid, colour)
    chart.parts.append(
        f'<image x="{draw.at(left)}" y="{draw.at(top)}" '
        f'width="{draw.at(right - left)}" height="{draw.at(plot.bottom - top)}" '
        f'preserveAspectRatio="none" href="{png.data_uri(pixels[::-1])}"/>'
    )
    chart.keys = _keys(grid, names, colour)
    if points is not None:
        marked = [False] * len(points[0]) if wrong is None else wrong
        inside = [
            (float(x), float(y), int(label), bad)
            for x, y, label, bad in zip(*points, marked, strict=True)
            if x_low <= x <= x_high and y_low <= y <= y_high
        ]
        by_class: dict[int, Points] = {}
        for x, y, label, _ in inside:
            by_class.setdefault(0 if grid.ndim == 2 else label, []).append((x, y))
        chart.parts += _class_points(chart, by_class, grid.ndim == 2)
        crosses = [
            f"M{draw.at(chart.x(x) - 4)} {draw.at(chart.y(y) - 4)}l8 8m0-8l-8 8"
            for x, y, _, bad in inside
            if bad
        ]
        if crosses:
            chart.parts.append(draw.path("crosses", "".join(crosses)))
        if wrong is not None:
            key = draw.Key(f"predicted wrongly ({sum(map(bool, wrong))})", "c-ink", "cross")
            chart.keys.append(key)
    return chart.figure(plot.bottom + 42)


def class_pixels(probs: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The colours of class probabilities: `(rows, columns, class)` → RGBA."""
    classes = probs.shape[2]
    sure = (probs.max(2) - 1 / classes) / (1 - 1 / classes)
    palette = np.array([_RGB[index % draw.COLOURS] for index in range(classes)], dtype=np.uint8)
    return _rgba(palette[probs.argmax(2)], sure, _OPACITY)


def quantity_pixels(values: NDArray[np.float64], colour: int) -> NDArray[np.uint8]:
    """The colours of a quantity, from nothing at 0 to all at its maximum."""
    largest = float(values.max())
    share = values / largest if largest > 0 else np.zeros_like(values)
    rgb = np.broadcast_to(np.array(_RGB[colour % draw.COLOURS], dtype=np.uint8), (*share.shape, 3))
    return _rgba(rgb, share, 255)


def _rgba(rgb: NDArray[np.uint8], share: NDArray[np.float64], full: int) -> NDArray[np.uint8]:
    pixels = np.empty((*share.shape, 4), dtype=np.uint8)
    pixels[..., :3] = rgb
    levels = np.round(np.clip(share, 0.0, 1.0) * _LEVELS)
    pixels[..., 3] = np.round(levels / _LEVELS * full).astype(np.uint8)
    return pixels


def _keys(grid: NDArray[np.float64], names: Sequence[str], colour: int) -> list[draw.Key]:
    if grid.ndim == 2:
        name = names[0] if names else "value"
        return [draw.Key(f"{name}, 0 to {number(float(grid.max()))}", draw.colour(colour), "ramp")]
    shown = [*map(str, names), *(f"class {i}" for i in range(len(names), grid.shape[2]))]
    return [draw.Key(shown[index], draw.colour(index), "dot") for index in range(grid.shape[2])]


def _class_points(chart: draw.Chart, by_class: Mapping[int, Points], plain: bool) -> Iterator[str]:
    """Points by class with a halo that lifts them off the picture; grey specks if plain."""
    count = sum(len(row) for row in by_class.values())
    size = 4.4 if count <= 400 else 3.3 if count <= 2000 else 2.0
    for label, row in sorted(by_class.items()):
        path = dots(chart, row)
        if plain:
            yield draw.path("dots c-ink faint", path, f' stroke-width="{size / 2}"')
        else:
            yield draw.path("halo", path, f' stroke-width="{size + 1.1:.1f}"')
            yield draw.path(f"dots {draw.colour(label)}", path, f' stroke-width="{size}"')
