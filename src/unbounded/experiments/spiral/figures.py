"""Figures of the spiral study: the data, accuracy and depth against the rotation speed ω."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unbounded.data import spiral
from unbounded.experiments import figures
from unbounded.experiments.figures import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
SHOWN = (0.0, 2.0, 6.0, 10.0, 14.0, 20.0, 26.0, 30.0)
_COLOURS = {"udn": ORANGE, "udn-concentrated": PINK, "dun10": BLUE, "dun10-original": GREEN}
_COLOURS |= {"node": RED, "anode": SKY}
_MARKERS = "ov^s*DPX<>"  # of fixed depths, whose greys alone are hard to tell apart
_OMEGA = "rotation speed ω"


def data(figure: "Figure", omegas: Sequence[float]) -> None:
    """Draw the training parts of some of the spirals."""
    chosen = list(omegas)
    if len(chosen) > len(SHOWN):
        chosen = [omega for omega in omegas if omega in SHOWN] or chosen[: len(SHOWN)]
    figures.title(figure, "Spirals D(ω): two branches, 1024 points")
    columns = min(4, len(chosen))
    grid = figure.subplots(-(-len(chosen) // columns), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, omega in zip(grid.flat, chosen, strict=False):
        x, y = spiral(omega)
        for branch, colour in ((0, BLUE), (1, ORANGE)):
            own = x[y == branch]
            # As pixels: eight thousand dots would make a file of a megabyte.
            axes.scatter(own[:, 0], own[:, 1], s=3, color=colour, linewidths=0, rasterized=True)
        axes.set_title(f"ω = {omega:g}", weight="normal")
        axes.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))


def accuracy(
    figure: "Figure",
    runs: Sequence[Row],
    references: Sequence[Row],
    names: dict[str, str],
    setting: str,
) -> None:
    """Draw test accuracy against ω, with bands of one standard deviation over seeds.

    The runs are of one `setting`, initialisation and rate; `names` are the models to draw, in
    order, as the legend calls them. Of the references the limit alone is drawn.
    """
    figures.title(figure, f"Test accuracy on D(ω), {setting}")
    axes = figure.subplots()
    omegas = sorted({row["omega"] for row in runs})
    fixed = [model for model in names if model.startswith(("omega", "resnet"))]
    lowest, handles = 100.0, []
    for model, name in names.items():
        values = [
            [100 * r["test_accuracy"] for r in runs if (r["model"], r["omega"]) == (model, omega)]
            for omega in omegas
        ]
        mean = [statistics.fmean(v) if v else float("nan") for v in values]
        spread = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in values]
        style: dict[str, Any] = {"linewidth": 2.6 if model.startswith("udn") else 1.6}
        if model in fixed:
            place = fixed.index(model)
            style["color"] = str(0.75 - 0.55 * place / max(1, len(fixed) - 1))
            style |= {"linewidth": 1.1, "marker": _MARKERS[place % len(_MARKERS)]}
            style |= {"linestyle": ":"} if model.startswith("resnet") else {}
        else:
            style["color"] = _COLOURS[model]
        handles += axes.plot(omegas, mean, label=name, **style)
        lowest = min(lowest, *mean)
        if model not in fixed or len(fixed) <= 4:
            low = [m - s for m, s in zip(mean, spread, strict=True)]
            high = [m + s for m, s in zip(mean, spread, strict=True)]
            axes.fill_between(omegas, low, high, color=style["color"], alpha=0.15, linewidth=0)
            lowest = min(lowest, *low)
    limits = {r["omega"]: 100 * r["test_accuracy"] for r in references if r["model"] == "bayes"}
    if limits:
        bounds = [limits.get(omega, float("nan")) for omega in omegas]
        handles += axes.plot(omegas, bounds, "--", color=INK, label="limit")
    axes.set_ylim(5 * (lowest // 5), 101)
    figures.label(axes, _OMEGA, "test accuracy, %")
    figures.legend(figure, handles)


def depth(figure: "Figure", runs: Sequence[Row], model: str, setting: str) -> None:
    """Draw box plots of a UDN's posterior mean depth against ω: whiskers to the extremes."""
    figures.title(figure, f"Posterior mean depth ({model}), {setting}")
    axes = figure.subplots()
    omegas = sorted({row["omega"] for row in runs})
    values = [[row["depth_mean"] for row in runs if row["omega"] == omega] for omega in omegas]
    places = range(len(omegas))
    edge = {"color": ORANGE, "linewidth": 1.4}
    axes.boxplot(
        values,
        positions=places,
        whis=(0, 100),
        showcaps=False,
        boxprops=edge,
        whiskerprops=edge,
        medianprops={**edge, "linewidth": 2.6},
    )
    dots = [(place, value) for place, row in zip(places, values, strict=True) for value in row]
    figures.line(axes, dots, marker="o", linestyle="", color=INK, alpha=0.5, markersize=3)
    axes.set_xticks(places, [f"{omega:g}" for omega in omegas])
    axes.set_ylim(bottom=0)
    figures.label(axes, _OMEGA, "E[ℓ]")
