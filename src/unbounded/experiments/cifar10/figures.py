"""Figures of the study, drawn from its runs.

Where runs are missing, their part of a figure is left out and a line under it says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unbounded.experiments import figures
from unbounded.experiments.cifar10.models import fixed_depth, label, order
from unbounded.experiments.cifar10.plan import classes_label
from unbounded.experiments.cifar10.published import EASY, HARD
from unbounded.experiments.cifar10.results import Result, headline, select, spread_of
from unbounded.experiments.figures import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PINK,
    RED,
    SKY,
    NothingToDraw,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIXED = (PINK, BLUE, GREEN, SKY)
_STARTS = (BLUE, GREEN, ORANGE, PINK, RED, SKY)
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_NEAR = 8.0  # points below the best; what is further below has a panel of its own
_END = 0.2  # share of the epochs that is drawn once more, larger
_GROUPS: dict[tuple[str, ...], dict[str, str]] = {
    EASY: {"color": BLUE, "marker": "o"},
    HARD: {"color": ORANGE, "marker": "s"},
    (): {"color": GREEN, "marker": "D"},
}
_RULES = {
    "gradient": "the paper's rule (gradient)",
    "ascent": "our rule (ascent)",
    "settled": "settled on held-out images",
}


def posterior(figure: "Figure", results: Sequence[Result], note: str = "") -> None:
    """Draw q(ℓ) on an easy pair, a hard pair and all classes, a line for each seed."""
    found = {group: headline(results, group) for group in _GROUPS}
    if not any(found.values()):
        raise NothingToDraw("the UDN was run on none of the groups of classes")
    axes = figure.subplots()
    handles, missing = [], []
    for group, runs in found.items():
        points = [list(enumerate(run["posterior"], 1)) for run in runs]
        lines = [figures.line(axes, each, **_GROUPS[group]) for each in points]
        if not lines:
            missing.append(f"no runs of {classes_label(group)}")
            continue
        accuracy = spread_of(runs, "test_accuracy", 0.01).mean
        mean = spread_of(runs, "depth_mean").mean
        lines[0].set_label(f"{classes_label(group)}\n{accuracy:.1f} %, E[ℓ] {mean:.1f}")
        handles.append(lines[0])
    axes.set_ylim(bottom=0)
    figures.label(axes, "depth ℓ", "q(ℓ)", whole=True)
    figures.legend(figure, handles)
    figures.title(figure, "Posterior of the depth, q(ℓ)", ["; ".join(missing), note])


def evolution(figure: "Figure", results: Sequence[Result], note: str = "") -> None:
    """Draw E[ℓ] against the epoch from each λ₀: the paper's rule at left, beside it ours."""
    curves = {rule: list[tuple[float, list[tuple[float, float]]]]() for rule in _RULES}
    for run in select(results, "udn", ()):
        curves[run["run"]["rule"]].append((run["run"]["lambda0"], _curve(run, "depth_mean")))
    if not any(points for pairs in curves.values() for _, points in pairs):
        raise NothingToDraw("the UDN was not run on all ten classes")
    ours = [rule for rule in ("ascent", "settled") if curves[rule]] or ["ascent"]
    curves = {rule: curves[rule] for rule in ("gradient", *ours)}
    starts = sorted({start for pairs in curves.values() for start, _ in pairs})
    # Runs on their way, or of another schedule, may be shorter: one axis for all of them.
    panels = figure.subplots(1, len(curves), sharex=True, sharey=True)
    handles, missing = {}, []
    for axes, (rule, pairs) in zip(panels, curves.items(), strict=True):
        axes.set_title(_RULES[rule])
        for start, points in pairs:
            colour = _STARTS[starts.index(start) % len(_STARTS)]
            handles[start] = figures.line(axes, points, color=colour, label=f"λ₀ = {start:g}")
        if not pairs:
            axes.text(0.5, 0.5, "no runs yet", ha="center", transform=axes.transAxes)
            missing.append(f"no runs with {_RULES[rule]}")
        figures.label(axes, "epoch", "E[ℓ]", whole=True)
    panels[0].set_ylim(bottom=0)  # of both; before the last line it would cut off what follows
    figures.legend(figure, [handles[start] for start in starts])
    figures.title(figure, "E[ℓ] over training, all ten classes", ["; ".join(missing), note])


def depths(figure: "Figure", results: Sequence[Result], note: str = "") -> None:
    """Draw the accuracy of each depth alone, and the weight that it has, of one run."""
    runs = headline(results)
    if not runs:
        raise NothingToDraw("the UDN was not run on all ten classes")
    run = runs[0]
    mixture = 100 * run["test_accuracy"]
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(5, 3))
    alone = list(enumerate([100 * a for a in run["accuracy_by_depth"]], 1))
    style = {"color": ORANGE, "marker": "o", "label": "each depth alone"}
    handles = [
        figures.line(upper, alone, **style),
        upper.axhline(
            mixture, color=INK, linestyle="--", linewidth=1.2, label=f"the mixture\n{mixture:.2f} %"
        ),
    ]
    lower.bar(range(1, len(run["posterior"]) + 1), run["posterior"], width=0.72, color=ORANGE)
    figures.label(upper, "", "test accuracy of\neach depth alone, %")
    figures.label(lower, "depth ℓ", "q(ℓ)", whole=True)
    figures.legend(figure, handles)
    words = f"Accuracy and weight of each depth, all ten classes, seed {run['run']['seed']}"
    figures.title(figure, words, [note])


def curves(figure: "Figure", results: Sequence[Result], note: str = "") -> None:
    """Draw test accuracy against the epoch, a line for each model and seed; at right, the end."""
    full = select(results, classes=())
    fixed = list(dict.fromkeys(r["run"]["model"] for r in full if r["run"]["model"] != "udn"))
    runs = {model: select(full, model) for model in fixed} | {"udn": headline(results)}
    found = {
        model: [_curve(run, "test_accuracy", 100) for run in own] for model, own in runs.items()
    }
    every = [points for rows in found.values() for points in rows if points]
    if not every:
        raise NothingToDraw("no run on all ten classes was scored while it was trained")
    panels = figure.subplots(1, 2)
    handles, missing = [], []
    for index, (model, rows) in enumerate(found.items()):
        style = {"color": _FIXED[index % len(_FIXED)], "linewidth": 1.5}
        style |= {"color": ORANGE, "linewidth": 2.2} if model == "udn" else {}
        style |= {"marker": ".", "label": label(model)}
        pairs = [(axes, points) for points in rows if points for axes in panels]
        lines = [figures.line(axes, points, **style) for axes, points in pairs]
        handles += lines[:1]
        if not lines:
            missing.append(f"no curve of {label(model)}")
    heights = [y for points in every for _, y in points]
    last = max(points[-1][0] for points in every)
    late = [y for points in every for epoch, y in points if epoch >= (1 - _END) * last]
    # The first epochs say little.
    low = max(math.floor(min(heights)), math.floor(max(heights)) - 24)
    panels[0].set(title="all of it", xlim=(0, 1.02 * last), ylim=(low, math.ceil(max(heights)) + 1))
    margin = max(0.25, 0.05 * (max(late) - min(late)))
    ends = (min(late) - margin, max(late) + margin)
    panels[1].set(title="the end", xlim=((1 - _END) * last, 1.004 * last), ylim=ends)
    for axes in panels:
        figures.label(axes, "epoch", "test accuracy, %", whole=True)
    figures.legend(figure, handles)
    words = "Test accuracy over training, all ten classes"
    figures.title(figure, words, ["; ".join(missing), note])


def seconds(
    figure: "Figure",
    results: Sequence[Result] | Mapping[str, Sequence[Result]],
    note: str = "",
    shared: Sequence[str] = (),
) -> None:
    """Draw test accuracy at the end against the seconds of training, a point for each run.

    Args:
        figure: empty.
        results: of one recipe, or of several by their names, each with a mark of its own.
        note: is written below.
        shared: recipes whose runs shared a GPU: hollow.
    """
    sets = results if isinstance(results, Mapping) else {"": results}
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, runs in sets.items():
        full = select(runs, classes=())
        others = [r for r in full if r["run"]["model"] != "udn"]
        for r in others + headline(runs):
            place = points.setdefault((name, r["run"]["model"]), [])
            place.append((r["seconds"], 100 * r["test_accuracy"]))
    if not points:
        raise NothingToDraw("nothing was run on all ten classes")
    heights = [y for own in points.values() for _, y in own]
    low = [y for y in heights if y < max(heights) - _NEAR]
    panels = _panels(figure, bool(low))
    models = sorted({model for _, model in points}, key=order)
    colours = _colours(models)
    for (name, model), own in points.items():
        style: dict[str, Any] = {"color": colours[model], "linestyle": "none", "markersize": 5}
        style["marker"] = _MARKS[list(sets).index(name) % len(_MARKS)]
        style |= {"markersize": 9, "markeredgecolor": INK} if model == "udn" else {}
        if name in shared:
            style |= {"markerfacecolor": "none", "markeredgecolor": colours[model]}
        for axes in panels:
            figures.line(axes, own, **style)
    if low:
        above = min(y for y in heights if y >= max(heights) - _NEAR)
        panels[0].set_ylim(above - 0.4, max(heights) + 0.4)
        panels[1].set_ylim(min(low) - 3, max(low) + 3)
    for axes in panels:
        axes.set_xscale("log", subs=())
        axes.xaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
        axes.xaxis.set_major_formatter("{x:g}")  # 200, not 2 × 10²
    figures.label(panels[0], "" if low else "seconds of training", "test accuracy, %")
    if low:
        figures.label(panels[1], "seconds of training", "")
    figures.legend(figure, _entries(models, colours, list(sets) if len(sets) > 1 else []))
    figures.title(figure, "Accuracy against training time, all ten classes", [note])


def _panels(figure: "Figure", two: bool) -> list[Any]:
    """One, or one above another where some points are far below the others."""
    if not two:
        return [figure.subplots()]
    return list(figure.subplots(2, 1, sharex=True, height_ratios=(4, 1)))


def _entries(models: Sequence[str], colours: Mapping[str, Any], sets: Sequence[str]) -> list[Any]:
    """The legend: a colour for each model, a mark for each recipe."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "none"}
    found = [Line2D([], [], color=colours[m], marker="o", label=label(m), **style) for m in models]
    found += [
        Line2D([], [], color=MUTED, marker=_MARKS[i % len(_MARKS)], label=name, **style)
        for i, name in enumerate(sets)
    ]
    return found


def _colours(models: Sequence[str]) -> dict[str, Any]:
    """Orange for the UDN, shades of blue for fixed depths, others for the rest."""
    depths = [model for model in models if fixed_depth(model) is not None]
    others = [model for model in models if model not in (*depths, "udn")]
    rest = (GREEN, PINK, RED, SKY, INK, MUTED, "#7b3294", "#a6761d")
    found: dict[str, Any] = {"udn": ORANGE}
    for place, model in enumerate(depths):
        share = 0.25 + 0.75 * place / max(1, len(depths) - 1)
        pairs = zip((222, 235, 247), (8, 48, 107), strict=True)
        found[model] = tuple((1 - share) * a / 255 + share * b / 255 for a, b in pairs)
    return found | {model: rest[i % len(rest)] for i, model in enumerate(others)}


NAMES: dict[str, tuple[Callable[..., None], tuple[float, float]]] = {
    "posterior.svg": (posterior, (7.6, 4.0)),
    "evolution.svg": (evolution, (8.7, 4.0)),
    "accuracy_by_depth.svg": (depths, (7.6, 4.8)),
    "curves.svg": (curves, (8.7, 4.2)),
    "seconds.svg": (seconds, (7.6, 4.2)),
}
"""The figures by file name, and their sizes in inches."""


def _curve(run: Result, key: str, factor: float = 1.0) -> list[tuple[float, float]]:
    """(epoch, value) of the rows of a run's curve that have both."""
    rows = [row for row in run.get("curve", []) if row.get("epoch") is not None]
    return [(float(r["epoch"]), factor * float(r[key])) for r in rows if r.get(key) is not None]
