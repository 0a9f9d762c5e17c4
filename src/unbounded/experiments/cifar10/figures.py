"""Drawings of the study: pure functions from its runs to stand-alone SVG files.

Where runs are missing, their part of a figure is left out and a line under it says so.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from unbounded.experiments.cifar10.plan import classes_label
from unbounded.experiments.cifar10.published import EASY, HARD
from unbounded.experiments.cifar10.results import Result, headline, label, over, select
from unbounded.experiments.figures import GRID, INK, MUTED, document, text
from unbounded.report.axes import Scale, inner_ticks, labels, trimmed, widened
from unbounded.report.drawing import at, tooltip

BLUE, ORANGE, GREEN, PURPLE, RED = "#2563a8", "#e07b00", "#2f855a", "#7c4dbd", "#b83258"
_FIXED = (PURPLE, BLUE, GREEN, RED)
_END = 0.2  # share of the epochs that is drawn once more, larger
_STARTS = (BLUE, GREEN, ORANGE, PURPLE, RED)
_GROUPS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (EASY, BLUE, "circle"),
    (HARD, ORANGE, "square"),
    ((), GREEN, "diamond"),
)
_RULES = {"gradient": "the paper's rule (gradient)", "ascent": "our rule (ascent)"}
_LINE = 17  # height of a line of words

Points = Sequence[tuple[float, float]]


class NothingToDraw(ValueError):
    """No run has anything for a figure."""


class Key(NamedTuple):
    """A line of a legend: a stroke, with a marker if there is one."""

    name: str
    colour: str
    marker: str = ""
    dashed: bool = False


def draw(results: Sequence[Result], note: str = "") -> tuple[dict[str, str], list[str]]:
    """All figures that can be drawn by file name, and why the others cannot.

    Args:
        results: the runs, see `results.read`.
        note: to be written on every figure.
    """
    drawn, left_out = {}, []
    for name, make in NAMES.items():
        try:
            drawn[name] = make(results, note)
        except NothingToDraw as error:
            left_out.append(f"{name}: {error}")
    return drawn, left_out


def posterior_figure(results: Sequence[Result], note: str = "") -> str:
    """q(ℓ) on an easy pair, a hard pair and all classes, a line for each seed."""
    found = {group: headline(results, group) for group, _, _ in _GROUPS}
    if not any(found.values()):
        raise NothingToDraw("the UDN was run on none of the groups of classes")
    last = max(len(run["posterior"]) for runs in found.values() for run in runs)
    top = max(q for runs in found.values() for run in runs for q in run["posterior"])
    panel = Panel((58, 62, 500, 300), (0.5, last + 0.5), (0.0, 1.06 * top))
    parts = panel.frame("depth ℓ", "q(ℓ)", whole=True)
    keys, missing = [], []
    for group, colour, marker in _GROUPS:
        for run in found[group]:
            points = list(enumerate(run["posterior"], 1))
            parts.append(panel.path(points, colour, 1.4))
            seed = run["run"]["seed"]
            for depth, q in points:
                tip = f"{classes_label(group)}, seed {seed}: q({depth}) = {q:.3f}"
                parts.append(panel.marker(depth, q, colour, marker, tip))
        if found[group]:
            accuracy = over(found[group], "test_accuracy", 0.01).mean
            mean = over(found[group], "depth_mean").mean
            keys.append(Key(classes_label(group), colour, marker))
            keys.append(Key(f"{accuracy:.1f} %, E[ℓ] {mean:.1f}", "", ""))
        else:
            missing.append(f"no runs of {classes_label(group)}")
    parts += legend(576, 70, keys)
    return page((760, 420), "Posterior of the depth, q(ℓ)", parts, missing, note)


def evolution_figure(results: Sequence[Result], note: str = "") -> str:
    """E[ℓ] against the epoch from each λ₀: the paper's rule on the left, ours on the right."""
    found = {rule: select(results, "udn", (), rule=rule) for rule in _RULES}
    curves = {
        rule: [(run, _curve(run, "epoch", "depth_mean")) for run in runs]
        for rule, runs in found.items()
    }
    every = [points for pairs in curves.values() for _, points in pairs if points]
    if not every:
        raise NothingToDraw("the UDN was not run on all ten classes")
    starts = sorted({run["run"]["lambda0"] for runs in found.values() for run in runs})
    colours = {start: _STARTS[index % len(_STARTS)] for index, start in enumerate(starts)}
    # Runs on their way, or of another schedule, may be shorter: one axis for all of them.
    last = max(points[-1][0] for points in every)
    high = max(y for points in every for _, y in points)
    parts, missing = [], []
    for index, (rule, pairs) in enumerate(curves.items()):
        panel = _half(index, 280, (0.0, last), (0.0, 1.04 * high))
        parts.append(text(panel.left, 48, _RULES[rule], weight=600))
        parts += panel.frame("epoch", "E[ℓ]", whole=True)
        for run, points in pairs:
            start = run["run"]["lambda0"]
            tip = f"λ₀ = {start:g}, seed {run['run']['seed']}: ends at {run['depth_mean']:.2f}"
            parts.append(panel.path(points, colours[start], 1.5, tip=tip))
        if not pairs:
            parts.append(panel.words("no runs yet"))
            missing.append(f"no runs with {_RULES[rule]}")
    parts += legend(772, 88, [Key(f"λ₀ = {start:g}", colours[start]) for start in starts])
    title = "E[ℓ] over training, all ten classes"
    return page((870, 420), title, parts, missing, note)


def depths_figure(results: Sequence[Result], note: str = "") -> str:
    """Accuracy of each depth alone, and the weight that it has, of one run."""
    runs = headline(results)
    if not runs:
        raise NothingToDraw("the UDN was not run on all ten classes")
    run = runs[0]
    posterior, alone = run["posterior"], [100 * a for a in run["accuracy_by_depth"]]
    mixture = 100 * run["test_accuracy"]
    last = max(len(posterior), len(alone))
    _, reach = trimmed(min([*alone, mixture]), max([*alone, mixture]), 5)
    upper = Panel((58, 62, 520, 220), (0.5, last + 0.5), reach)
    lower = Panel((58, 326, 520, 130), (0.5, last + 0.5), (0.0, 1.06 * max(posterior)))
    parts = upper.frame("", "test accuracy of each depth alone, %", whole=True)
    points = list(enumerate(alone, 1))
    parts.append(upper.path([(0.5, mixture), (last + 0.5, mixture)], INK, 1.2, dashed=True))
    parts.append(upper.path(points, ORANGE, 1.6))
    for depth, accuracy in points:
        parts.append(upper.marker(depth, accuracy, ORANGE, "circle", f"{depth}: {accuracy:.2f} %"))
    parts += lower.frame("depth ℓ", "q(ℓ)", whole=True)
    for depth, q in enumerate(posterior, 1):
        parts.append(lower.bar(depth, q, ORANGE, f"q({depth}) = {q:.4f}"))
    keys = [
        Key("each depth alone", ORANGE, "circle"),
        Key("the mixture", INK, dashed=True),
        Key(f"{mixture:.2f} %", ""),
    ]
    parts += legend(596, 70, keys)
    title = f"Accuracy and weight of each depth, all ten classes, seed {run['run']['seed']}"
    return page((760, 512), title, parts, [], note)


def curves_figure(results: Sequence[Result], note: str = "") -> str:
    """Test accuracy against the epoch for each model, a line for each seed; at right, the end."""
    full = select(results, classes=())
    fixed = list(dict.fromkeys(r["run"]["model"] for r in full if r["run"]["model"] != "udn"))
    models: dict[str, list[Result]] = {model: select(full, model) for model in fixed}
    models["udn"] = headline(results)
    curves = {
        model: [
            [(epoch, 100 * y) for epoch, y in _curve(run, "epoch", "test_accuracy")] for run in runs
        ]
        for model, runs in models.items()
    }
    every = [points for rows in curves.values() for points in rows if points]
    if not every:
        raise NothingToDraw("no run on all ten classes was scored while it was trained")
    heights = [y for points in every for _, y in points]
    # The first epochs say little.
    low = max(math.floor(min(heights)), math.floor(max(heights)) - 24)
    last = max(points[-1][0] for points in every)
    end = (1 - _END) * last
    late = [y for points in every for epoch, y in points if epoch >= end]
    panels = (
        _half(0, 300, (0.0, last), (low, math.ceil(max(heights)) + 1)),
        _half(1, 300, (end, last), trimmed(min(late), max(late), 5)[1]),
    )
    parts, keys, missing = list[str](), [], []
    for panel, name in zip(panels, ("all of it", "the end"), strict=True):
        parts.append(text(panel.left, 48, name, weight=600))
        parts += panel.frame("epoch", "test accuracy, %", whole=True)
    for index, (model, rows) in enumerate(curves.items()):
        colour = ORANGE if model == "udn" else _FIXED[index % len(_FIXED)]
        drawn = [points for points in rows if points]
        for points in drawn:
            tip = f"{label(model)}: {points[-1][1]:.2f} % after {points[-1][0]:.0f} epochs"
            width = 2.2 if model == "udn" else 1.5
            parts += [panel.path(points, colour, width, tip=tip) for panel in panels]
        if drawn:
            keys.append(Key(label(model), colour))
        else:
            missing.append(f"no curve of {label(model)}")
    parts += legend(772, 88, keys)
    title = "Test accuracy over training, all ten classes"
    return page((870, 440), title, parts, missing, note)


NAMES: dict[str, Callable[[Sequence[Result], str], str]] = {
    "posterior.svg": posterior_figure,
    "evolution.svg": evolution_figure,
    "accuracy_by_depth.svg": depths_figure,
    "curves.svg": curves_figure,
}
"""The figures, by file name."""


class Panel:
    """A rectangle with axes; what leaves it is cut off.

    Args:
        place: left, top, width, height.
        x_range: what the horizontal axis covers.
        y_range: what the vertical axis covers.
    """

    def __init__(
        self,
        place: tuple[float, float, float, float],
        x_range: tuple[float, float],
        y_range: tuple[float, float],
    ):
        self.left, self.top, width, height = place
        self.right, self.bottom = self.left + width, self.top + height
        self.x = Scale(*widened(*x_range), self.left, self.right)
        self.y = Scale(*widened(*y_range), self.bottom, self.top)
        self._clip = f"panel-{at(self.left)}-{at(self.top)}"

    def frame(self, x_label: str, y_label: str, whole: bool = False) -> list[str]:
        """Grid, ticks, and the names of both axes; `whole` numbers along the horizontal one."""
        parts = [
            f'<clipPath id="{self._clip}"><rect x="{at(self.left)}" y="{at(self.top - 1)}" '
            f'width="{at(self.right - self.left)}" height="{at(self.bottom - self.top + 2)}"/>'
            "</clipPath>",
            text(self.left - 44, self.top - 12, y_label, colour=MUTED),
        ]
        y_ticks = inner_ticks(self.y.low, self.y.high, 6)
        for tick, name in zip(y_ticks, labels(y_ticks), strict=True):
            y = at(self.y(tick))
            parts.append(
                f'<line x1="{at(self.left)}" x2="{at(self.right)}" y1="{y}" y2="{y}" '
                f'stroke="{GRID}"/>'
            )
            parts.append(text(self.left - 8, self.y(tick) + 4, name, anchor="end", colour=MUTED))
        x_ticks = inner_ticks(self.x.low, self.x.high, 10, integers=whole)
        for tick, name in zip(x_ticks, labels(x_ticks), strict=True):
            x = at(self.x(tick))
            parts.append(
                f'<line x1="{x}" x2="{x}" y1="{at(self.bottom)}" y2="{at(self.bottom + 4)}" '
                f'stroke="{MUTED}"/>'
            )
            parts.append(text(self.x(tick), self.bottom + 18, name, anchor="middle", colour=MUTED))
        parts.append(
            f'<line x1="{at(self.left)}" x2="{at(self.right)}" y1="{at(self.bottom)}" '
            f'y2="{at(self.bottom)}" stroke="{MUTED}"/>'
        )
        middle = (self.left + self.right) / 2
        if x_label:
            parts.append(text(middle, self.bottom + 36, x_label, anchor="middle", colour=MUTED))
        return parts

    def path(
        self, points: Points, colour: str, width: float, *, dashed: bool = False, tip: str = ""
    ) -> str:
        """A line through points."""
        steps = "L".join(f"{at(self.x(x))} {at(self.y(y))}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        return (
            f'<path d="M{steps}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-linejoin="round" clip-path="url(#{self._clip})"{dash}>{tooltip(tip)}</path>'
        )

    def marker(self, x: float, y: float, colour: str, kind: str, tip: str = "") -> str:
        """A circle, square or diamond at a point."""
        return _marker(self.x(x), self.y(y), colour, kind, tip)

    def bar(self, x: float, y: float, colour: str, tip: str = "") -> str:
        """A bar from zero."""
        half = 0.36 * (self.x(1.0) - self.x(0.0))
        return (
            f'<rect x="{at(self.x(x) - half)}" y="{at(self.y(y))}" width="{at(2 * half)}" '
            f'height="{at(self.bottom - self.y(y))}" fill="{colour}">{tooltip(tip)}</rect>'
        )

    def words(self, what: str) -> str:
        """Words in the middle."""
        x, y = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        return text(x, y, what, anchor="middle", colour=MUTED)


def _half(
    index: int, height: float, x_range: tuple[float, float], y_range: tuple[float, float]
) -> Panel:
    """The left or the right one of two panels, with room for a name above and a legend beside."""
    return Panel((58 + 378 * index, 80, 316, height), x_range, y_range)


def legend(left: float, top: float, keys: Iterable[Key]) -> list[str]:
    """Names beside strokes; a name without a colour goes on with the one above it."""
    parts = []
    for row, key in enumerate(keys):
        y = top + _LINE * row
        if key.colour:
            dash = ' stroke-dasharray="6 4"' if key.dashed else ""
            parts.append(
                f'<line x1="{at(left)}" x2="{at(left + 22)}" y1="{at(y)}" y2="{at(y)}" '
                f'stroke="{key.colour}" stroke-width="1.8"{dash}/>'
            )
        if key.marker:
            parts.append(_marker(left + 11, y, key.colour, key.marker))
        parts.append(text(left + 28, y + 4, key.name, colour=INK if key.colour else MUTED))
    return parts


def page(
    size: tuple[int, int], title: str, parts: Sequence[str], missing: Sequence[str], note: str
) -> str:
    """A file with its title above, and below what is missing and what is to be said."""
    lines = [*(["; ".join(missing)] if missing else []), *_wrapped(note, size[0])]
    below = [text(14, size[1] + _LINE * row, line, colour=RED) for row, line in enumerate(lines)]
    height = size[1] + _LINE * len(lines)
    heading = text(14, 24, title, size=15, weight=600)
    return document((size[0], height), title, [heading, *parts, *below])


def _wrapped(words: str, width: float) -> list[str]:
    """Lines that fit into a drawing."""
    return textwrap.wrap(words, int((width - 28) / 7.2))


def _curve(run: Result, x: str, y: str) -> list[tuple[float, float]]:
    """The points of a run's curve that have both."""
    rows = [row for row in run.get("curve", []) if row.get(x) is not None]
    return [(float(row[x]), float(row[y])) for row in rows if row.get(y) is not None]


def _marker(x: float, y: float, colour: str, kind: str, tip: str = "") -> str:
    shapes = {
        "circle": f'<circle cx="{at(x)}" cy="{at(y)}" r="3"',
        "square": f'<rect x="{at(x - 2.8)}" y="{at(y - 2.8)}" width="5.6" height="5.6"',
        "diamond": f'<path d="M{at(x)} {at(y - 4)}l4 4l-4 4l-4 -4z"',
    }
    return f'{shapes[kind]} fill="{colour}">{tooltip(tip)}</{shapes[kind][1:].split(" ")[0]}>'
