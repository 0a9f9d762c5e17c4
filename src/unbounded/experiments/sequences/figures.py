"""Figures of the sequence study: scores against fixed depth with q(ℓ) below, and E[ℓ] by data."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unbounded.experiments import figures
from unbounded.experiments.figures import BLUE, GREEN, INK, MUTED, ORANGE, NothingToDraw
from unbounded.experiments.sequences.verdicts import by_depth, judged, problems, score, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
SIZE = (7.2, 3.6)
COLUMNS = 3
_TITLES = {
    "hops": "k-hop induction: error of fixed depths and of the UDN; below, q(ℓ)",
    "words": "Word problems: error of fixed depths and of the UDN; below, q(ℓ)",
}


def size(rows: Sequence[Row], task: str) -> tuple[float, float]:
    """Of `depths`, by how many problems there are."""
    count = max(1, len({row["name"] for row in rows if row["task"] == task}))
    return 2.5 * min(COLUMNS, count) + 1.9, 3.0 * math.ceil(count / COLUMNS) + 0.5


def depths(figure: "Figure", rows: Sequence[Row], task: str) -> None:
    """For each problem the error of each fixed depth above, and q(ℓ) of the UDN below."""
    mine = [row for row in rows if row["task"] == task]
    names = problems(mine)
    if not names:
        raise NothingToDraw(f"there are no networks of the task {task}")
    figures.title(figure, _TITLES[task])
    columns, lines = min(COLUMNS, len(names)), math.ceil(len(names) / COLUMNS)
    grid = figure.add_gridspec(2 * lines, columns, height_ratios=[2, 1] * lines)
    last = max([row["depth"] or len(row["depth_probs"]) for row in mine])
    handles: dict[str, Any] = {}
    for place, name in enumerate(names):
        line, column = divmod(place, columns)
        upper = figure.add_subplot(grid[2 * line, column])
        lower = figure.add_subplot(grid[2 * line + 1, column], sharex=upper)
        of = [row for row in mine if row["name"] == name]
        handles |= _errors(upper, of)
        _posterior(lower, [row for row in of if row["model"] == "udn"])
        first = of[0]
        title = f"k = {first['number']:g}" if task == "hops" else f"{first['group']}, "
        upper.set_title(title if task == "hops" else title + f"length {first['number']:g}")
        upper.set_xlim(0.4, last + 0.6)
        upper.tick_params(labelbottom=False)
        figures.label(lower, "depth ℓ", "" if column else "q(ℓ)", whole=True)
        upper.set_ylabel("" if column else "error")
    figures.legend(figure, list(handles.values()))


def _errors(axes: "Axes", rows: Sequence[Row]) -> dict[str, Any]:
    """Fixed depths as a line, UDNs as points at their E[ℓ]; returns what a legend names."""
    one = judged(rows, rows[0]["name"])
    found: dict[str, Any] = {}
    if one.fixed:
        points = list(one.fixed.items())
        found["fixed"] = figures.line(axes, points, color=INK, marker="o", label="fixed depths")
    for row in one.udn:
        found["udn"] = figures.line(
            axes,
            [(row["depth_mean"], row["error"])],
            color=ORANGE,
            marker="D",
            markersize=6,
            linestyle="none",
            label="UDN, at E[ℓ]",
        )
    known = rows[0].get("published")
    if known is not None:
        found["published"] = axes.axvline(
            known, color=GREEN, linestyle=":", label="least depth\npublished"
        )
    axes.set_ylim(-0.03, max(0.3, 1.1 * max(map(score, rows))))
    return found


def _posterior(axes: "Axes", rows: Sequence[Row]) -> None:
    """q(ℓ), the mean over seeds, as bars."""
    if rows:
        chosen = [row["depth_probs"] for row in rows]
        last = max(map(len, chosen))
        mean = [statistics.fmean(q[k] if k < len(q) else 0.0 for q in chosen) for k in range(last)]
        axes.bar(range(1, last + 1), mean, color=BLUE, width=0.8)
    axes.set_ylim(0, 1)


def text(figure: "Figure", rows: Sequence[Row]) -> None:
    """Bits a character of the whole text, against depth and against seconds of training."""
    names = [name for name in problems(rows) if name.startswith("text-")]
    mine = [row for row in rows if names and row["name"] == names[-1]]
    one = judged(mine, names[-1]) if names else None
    if one is None or not one.fixed:
        raise NothingToDraw("no fixed depth was trained on the text")
    figures.title(figure, "Characters: bits by depth, and by seconds of training")
    left, right = figure.subplots(1, 2, sharey=True)
    handles = [figures.line(left, list(one.fixed.items()), color=INK, marker="o")]
    handles[0].set_label("fixed depths")
    equal = by_depth(mine, "equal")
    if equal:
        points = [(d, statistics.fmean(map(score, of))) for d, of in equal.items()]
        handles.append(figures.line(left, points, color=MUTED, marker="s", linestyle="--"))
        handles[-1].set_label("at equal\nparameters")
    spent = 0.0
    best: list[tuple[float, float]] = []
    for depth, of in by_depth(mine).items():  # a search takes one after the other, keeps the best
        spent += statistics.fmean(map(seconds, of))
        lowest = min(best[-1][1] if best else math.inf, one.fixed[depth])
        best.append((spent, lowest))
    figures.line(right, best, color=INK, marker="o")
    for row in one.udn:
        style = {"color": ORANGE, "marker": "D", "markersize": 6, "linestyle": "none"}
        found = figures.line(left, [(row["depth_mean"], row["bits"])], **style)
        figures.line(right, [(seconds(row), row["bits"])], **style)
    if one.udn:
        found.set_label("UDN")
        handles.append(found)
    figures.label(left, "depth ℓ (of the UDN: E[ℓ])", "bits a character", whole=True)
    figures.label(right, "seconds (of a search: all so far)", "")
    right.set_xlim(left=0)
    figures.legend(figure, handles)


def data(figure: "Figure", rows: Sequence[Row]) -> None:
    """E[ℓ] and bits a character against the characters of the training text."""
    mine = [row for row in rows if row["task"] == "text" and row["model"] == "udn"]
    if not mine:
        raise NothingToDraw("no UDN was trained on text")
    figures.title(figure, "A text, by how much of it is trained on")
    left, right = figure.subplots(1, 2)
    for axes, key, words in (
        (left, "depth_mean", "E[ℓ]"),
        (right, "bits", "bits a character"),
    ):
        sizes = sorted({row["num_data"] for row in mine})
        points = [
            (n, statistics.fmean(row[key] for row in mine if row["num_data"] == n)) for n in sizes
        ]
        figures.line(axes, points, color=BLUE, marker="o")
        axes.plot([row["num_data"] for row in mine], [row[key] for row in mine], "o", color=MUTED)
        axes.set_xscale("log")
        figures.label(axes, "characters of training text", words)
