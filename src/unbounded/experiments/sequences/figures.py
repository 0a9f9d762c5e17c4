"""Figures of the sequence study: scores against fixed depth with q(ℓ), and E[ℓ] against data."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unbounded.experiments import figures
from unbounded.experiments.figures import BLUE, INK, MUTED, ORANGE, NothingToDraw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
SIZE = (7.2, 3.4)
COLUMNS = 3


def problems(rows: Sequence[Row]) -> list[str]:
    """Their names: hops, then words by group and length, then text by size."""
    order = {"hops": 0, "words": 1, "text": 2}
    found = {row["name"]: (order[row["task"]], row["group"], row["number"]) for row in rows}
    return sorted(found, key=found.__getitem__)


def by_depth(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Networks of fixed depths by depth, in order."""
    fixed = [row for row in rows if row["model"] == "fixed"]
    depths = sorted({row["depth"] for row in fixed})
    return {depth: [row for row in fixed if row["depth"] == depth] for depth in depths}


def size(rows: Sequence[Row]) -> tuple[float, float]:
    """Of `depths`, by how many problems there are."""
    count = max(1, len(problems(rows)))
    return 2.9 * min(COLUMNS, count) + 0.4, 2.6 * math.ceil(count / COLUMNS) + 0.6


def depths(figure: "Figure", rows: Sequence[Row]) -> None:
    """A panel for each problem: the score of each fixed depth, and where q(ℓ) is."""
    names = problems(rows)
    if not names:
        raise NothingToDraw("there are no networks")
    figures.title(figure, "Scores of fixed depths (line), and q(ℓ) of the UDN (bars)")
    lines = math.ceil(len(names) / COLUMNS)
    panels = list(figure.subplots(lines, min(COLUMNS, len(names)), squeeze=False).flat)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, names, strict=False):
        mine = [row for row in rows if row["name"] == name]
        is_text = mine[0]["task"] == "text"
        fixed = by_depth(mine)
        key = "bits" if is_text else "error"
        points = [(d, statistics.fmean(row[key] for row in of)) for d, of in fixed.items()]
        figures.line(axes, points, color=INK, marker="o", markersize=3)
        for row in mine:
            if row["model"] == "udn":
                axes.plot(row["depth_mean"], row[key], "D", color=ORANGE, markersize=5)
        if mine[0]["needed"] is not None:
            axes.axvline(mine[0]["needed"], color=MUTED, linestyle=":", linewidth=1)
        chosen = [row["depth_probs"] for row in mine if row["model"] == "udn"]
        if chosen:
            twin = axes.twinx()
            last = max(map(len, chosen))
            mean = [
                statistics.fmean(q[k] if k < len(q) else 0.0 for q in chosen) for k in range(last)
            ]
            twin.bar(range(1, last + 1), mean, color=BLUE, alpha=0.25, width=0.8)
            twin.set_ylim(0, 1)
            twin.set_yticks([])
        axes.set_title(name, weight="normal")
        if not is_text:
            axes.set_ylim(bottom=-0.02)
        figures.label(axes, "depth ℓ", "bits" if is_text else "error", whole=True)


def text(figure: "Figure", rows: Sequence[Row]) -> None:
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
        axes.set_xscale("log")
        figures.label(axes, "characters", words)
