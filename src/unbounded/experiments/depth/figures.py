"""Figures of the depth suite: a problem's scores against fixed depth with q(ℓ) below, and all."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unbounded.experiments import figures
from unbounded.experiments.depth.verdicts import Row, Verdict, by, standard_error
from unbounded.experiments.figures import BLUE, GREEN, INK, MUTED, ORANGE, PINK, RED, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (8.6, 4.6)
COLUMNS = 5  # of the overview
_STARTS = (SKY, ORANGE, PINK, RED, GREEN)
_MOST_MASS = 0.005  # depths with less are not drawn


def problem(figure: "Figure", rows: Sequence[Row], verdict: Verdict) -> None:
    """One problem: scores of fixed depths, q(ℓ) from each start below, E[ℓ] over training."""
    about = verdict.problem
    figures.title(figure, f"{about['name']}: {about['about']}")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.7, 1), height_ratios=(1.5, 1))
    above = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=above)
    beside = figure.add_subplot(grid[:, 1])
    handles = scores(above, rows, verdict)
    above.tick_params(labelbottom=False)
    figures.label(above, "", _score_name(about))
    handles += posteriors(below, rows)
    figures.label(below, "depth ℓ", "q(ℓ)", whole=True)
    above.set_xlim(left=0.4)
    _traces(beside, rows)
    beside.set_title("E[ℓ] over training", weight="normal")
    beside.set_ylim(bottom=0)
    figures.label(beside, "epoch", "E[ℓ]")
    figures.legend(figure, handles)


def scores(axes: "Axes", rows: Sequence[Row], verdict: Verdict, small: bool = False) -> list[Any]:
    """Mean test score of each fixed depth ± its standard error; lines for the others."""
    factor = _factor(verdict.problem)
    fixed = by(rows, "depth", lambda row: row["model"] == "fixed")
    depths = sorted(d for d in fixed if all(r["test_score"] is not None for r in fixed[d]))
    means = [factor * statistics.fmean(r["test_score"] for r in fixed[d]) for d in depths]
    errors = [factor * (standard_error([r["test_score"] for r in fixed[d]]) or 0) for d in depths]
    drawn = axes.errorbar(
        depths,
        means,
        errors,
        color=INK,
        marker="o",
        markersize=2 if small else 4,
        linewidth=1,
        label="fixed depth",
    )
    handles: list[Any] = [drawn]
    if verdict.error is not None:
        best, error = factor * verdict.best_score, factor * verdict.error
        handles.append(
            axes.axhspan(
                best - error,
                best + error,
                color=MUTED,
                alpha=0.15,
                linewidth=0,
                label="best ± 1 s.e.",
            )
        )
    lines = [("UDN", verdict.udn.score, ORANGE, "-"), ("DUN", verdict.dun_score, BLUE, "--")]
    lines.append(("chosen by validation", verdict.chosen_score, GREEN, ":"))
    for name, value, colour, style in lines:
        if value is not None and math.isfinite(value):
            handles.append(axes.axhline(factor * value, color=colour, linestyle=style, label=name))
    return handles


def posteriors(axes: "Axes", rows: Sequence[Row]) -> list[Any]:
    """q(ℓ), its mean over seeds, as bars: one for each start."""
    starts = _by_start(rows)
    handles = []
    thickness = 0.8 / max(1, len(starts))
    for place, (start, mine) in enumerate(starts.items()):
        q = mean_posterior(mine)
        shown = [(depth, mass) for depth, mass in enumerate(q, 1) if mass > _MOST_MASS]
        shift = (place - (len(starts) - 1) / 2) * thickness
        handles.append(
            axes.bar(
                [depth + shift for depth, _ in shown],
                [mass for _, mass in shown],
                thickness,
                color=_colour(place),
                label=f"q(ℓ) from μ = {start:g}",
            )
        )
    return handles


def mean_posterior(rows: Sequence[Row]) -> list[float]:
    """q(1), q(2), … averaged over runs."""
    size = max(len(row["depth_probs"]) for row in rows)
    padded = [row["depth_probs"] + [0.0] * (size - len(row["depth_probs"])) for row in rows]
    return [statistics.fmean(column) for column in zip(*padded, strict=True)]


def overview(figure: "Figure", found: Sequence[tuple[Verdict, Sequence[Row]]]) -> None:
    """All problems as small multiples: scores as lines, the UDN's q(ℓ) as bars behind them."""
    if not found:
        raise figures.NothingToDraw("no problem has both fixed depths and a UDN")
    figures.title(
        figure, "Accuracy in % or RMSE against depth; ✓: the UDN is within 1 s.e. of the best"
    )
    columns = min(COLUMNS, len(found))
    grid = figure.subplots(-(-len(found) // columns), columns, squeeze=False)
    for axes in grid.flat[len(found) :]:
        axes.set_axis_off()
    handles: list[Any] = []
    for axes, (verdict, rows) in zip(grid.flat, found, strict=False):
        mass = axes.twinx()
        mine = [row for row in _usual(rows) if row["start"] == verdict.udn.start]
        q = mean_posterior(mine)
        bars = mass.bar(range(1, len(q) + 1), q, 0.8, color=ORANGE, alpha=0.35, label="q(ℓ)")
        mass.set_ylim(0, 2.2 * max(q))
        mass.set_axis_off()
        axes.set_zorder(mass.get_zorder() + 1)
        axes.patch.set_visible(False)
        handles = [*scores(axes, rows, verdict, small=True), bars]
        axes.locator_params(axis="x", integer=True)
        axes.tick_params(labelsize="small")
        mark = "" if verdict.regret is None else " ✓" if verdict.regret else " ✗"
        axes.set_title(f"{verdict.problem['name']}{mark}", size="small")
        axes.set_xlim(left=0.4)
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))


def overview_size(count: int) -> tuple[float, float]:
    """Width and height in inches for this many problems."""
    return 11.0, 1.1 + 1.7 * max(1, -(-count // COLUMNS))


def _traces(axes: "Axes", rows: Sequence[Row]) -> None:
    for place, mine in enumerate(_by_start(rows).values()):
        for row in mine:
            points = [(epoch, mean) for epoch, mean in row["depth_trace"]]
            figures.line(axes, points, color=_colour(place), linewidth=1, alpha=0.8)


def _by_start(rows: Sequence[Row]) -> dict[float, list[Row]]:
    return dict(sorted(by(_usual(rows), "start", lambda _: True).items()))


def _usual(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["model"] == "udn" and row["length"] == 1]


def _colour(place: int) -> str:
    return _STARTS[place % len(_STARTS)]


def _factor(problem: Row) -> float:
    return 100.0 if problem["task"] == "classes" else 1.0


def _score_name(problem: Row) -> str:
    return "test accuracy, %" if problem["task"] == "classes" else "test RMSE (lower is better)"
