"""Heat maps over the plane of two inputs, as a small picture under the points."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unbounded.report import drawing as draw
from unbounded.report import png
from unbounded.report.axes import AxisScale, inner_ticks, number
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
    title: str,
    x_label: str,
    y_label: str,
    names: Sequence[str] = (),
    wrong: Sequence[bool] | None = None,
    colour: int = 3,
) -> str:
    """A decision boundary, or any quantity over the plane, with points over it.

    The colour of a pixel is that of its most probable class, its opacity how sure that is, so
    that one picture does for light and dark pages: where nothing is known the page shows through.

    Args:
        values: class probabilities on a grid, `(rows, columns, class)`, or a quantity from 0
            to its maximum, `(rows, columns)`; the first row lies at the lowest y.
        extent: x from and to, y from and to, of the grid.
        points: x, y and class of each point to draw.
        title: of the figure.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        names: of the classes, or of the quantity, for the legend.
        wrong: which points are to be crossed out.
        colour: index of the colour of a quantity.
    """
    grid = np.asarray(values, dtype=np.float64)
    if grid.ndim not in (2, 3) or (grid.ndim == 3 and grid.shape[2] < 2):
        raise ValueError(f"values must be (rows, columns) or (…, class), got {grid.shape}")
    x_low, x_high, y_low, y_high = (float(e) for e in extent)
    if not (x_low < x_high and y_low < y_high):
        raise ValueError(f"extent must be x from and to, y from and to, got {extent}")
    x_axis, y_axis = inner_ticks(x_low, x_high), inner_ticks(y_low, y_high)
    left = draw.plot_area(draw.tick_labels(y_axis, False)).left
    # Equal units on both axes, as long as that gives a picture of a sane shape.
    ratio = min(1.25, max(0.6, (y_high - y_low) / (x_high - x_low)))
    plot = draw.Plot(left, draw.WIDTH - 8, 28.0, 28.0 + ratio * (draw.WIDTH - 8 - left))
    to_x = AxisScale(x_low, x_high, plot.left, plot.right)
    to_y = AxisScale(y_low, y_high, plot.bottom, plot.top)
    pixels = class_pixels(grid) if grid.ndim == 3 else quantity_pixels(grid, colour)
    parts = [
        draw.frame(plot, to_x, to_y, x_axis, y_axis, x_label, y_label),
        f'<image x="{draw.at(plot.left)}" y="{draw.at(plot.top)}" '
        f'width="{draw.at(plot.right - plot.left)}" height="{draw.at(plot.bottom - plot.top)}" '
        f'preserveAspectRatio="none" href="{png.data_uri(pixels[::-1])}"/>',
    ]
    keys = _keys(grid, names, colour)
    if points is not None:
        parts.append(_class_points(points, to_x, to_y, grid.ndim == 2))
        if wrong is not None:
            parts.append(_crosses(points, wrong, to_x, to_y))
            keys.append(draw.Key(f"predicted wrongly ({sum(map(bool, wrong))})", "c-ink", "cross"))
    return draw.figure(title, "".join(parts), keys=keys, height=plot.bottom + 42)


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


def _class_points(
    points: tuple[Sequence[float], Sequence[float], Sequence[int]],
    to_x: AxisScale,
    to_y: AxisScale,
    plain: bool,
) -> str:
    """Points by class with a halo that lifts them off the picture; grey specks if plain."""
    by_class: dict[int, list[tuple[float, float]]] = {}
    for x, y, label in zip(*points, strict=True):
        if to_x.low <= x <= to_x.high and to_y.low <= y <= to_y.high:
            by_class.setdefault(0 if plain else int(label), []).append((float(x), float(y)))
    count = sum(len(row) for row in by_class.values())
    size = 4.4 if count <= 400 else 3.3 if count <= 2000 else 2.0
    parts = []
    for label, row in sorted(by_class.items()):
        path = dots(row, to_x, to_y)
        if plain:
            parts.append(f'<path class="dots c-ink faint" stroke-width="{size / 2}" d="{path}"/>')
        else:
            parts.append(f'<path class="halo" stroke-width="{size + 1.1:.1f}" d="{path}"/>')
            parts.append(
                f'<path class="dots {draw.colour(label)}" stroke-width="{size}" d="{path}"/>'
            )
    return "".join(parts)


def _crosses(
    points: tuple[Sequence[float], Sequence[float], Sequence[int]],
    wrong: Sequence[bool],
    to_x: AxisScale,
    to_y: AxisScale,
) -> str:
    parts = [
        f"M{draw.at(to_x(float(x)) - 4)} {draw.at(to_y(float(y)) - 4)}l8 8m0-8l-8 8"
        for x, y, bad in zip(points[0], points[1], wrong, strict=True)
        if bad and to_x.low <= x <= to_x.high and to_y.low <= y <= to_y.high
    ]
    return f'<path class="crosses" d="{"".join(parts)}"/>' if parts else ""
