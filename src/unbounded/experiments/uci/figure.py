"""The two panels of the paper's appendix: errors of all models, and the depth that was inferred."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unbounded.experiments import figures
from unbounded.experiments.uci.models import FINITE, LABELS
from unbounded.experiments.uci.published import SHALLOW, Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, Mapping[str, Estimate]]
"""Set → model → mean and standard error."""

SIZE = (10.0, 5.8)
_STYLES = {  # colour and marker: finite networks are blue, from light to dark
    "udn": (figures.RED, "o"),
    "udn-paced": (figures.ORANGE, "o"),
    "f2": ("#a6cbe3", "s"),
    "f3": ("#7db3d5", "v"),
    "f4": ("#5299c6", "^"),
    "f5": ("#2a7cb0", "D"),
    "f6": ("#0b5a8c", "p"),
    "dun": (figures.GREEN, "X"),
    "deep-ensemble": (figures.INK, "*"),
    "udn-ensemble": (figures.PINK, "*"),
    "tables": (figures.RED, "P"),
    "catboost": (figures.MUTED, "h"),
    "realmlp": (figures.MUTED, "<"),
}
_REACH = (0.3, 1.7)  # relative errors beyond are drawn at the edge, as triangles


def draw(figure: "Figure", errors: Values, depths: Values) -> None:
    """Draw both panels: RMSE relative to the finite networks of its set, and the UDN's E[ℓ]."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    relative = {name: _relative(row) for name, row in errors.items()}
    models = [m for m in LABELS if any(m in row for row in relative.values())]
    handles = []
    for index, model in enumerate(models):
        colour, marker = _STYLES[model]
        for place, row in enumerate(relative.values()):
            if model not in row:
                continue
            x = place - 0.5 + (index + 1) / (len(models) + 1)
            mean, error = row[model]
            inside = min(max(mean, _REACH[0]), _REACH[1])
            if mean == inside:
                upper.errorbar(x, mean, error, fmt=marker, color=colour, linewidth=1.2)
            else:
                upper.plot(x, inside, marker="^" if mean > inside else "v", color=colour)
        handles += upper.plot([], [], marker, color=colour, label=LABELS[model])
    low, high = upper.get_ylim()
    upper.set_ylim(max(low, _REACH[0] - 0.05), min(high, _REACH[1] + 0.05))
    upper.axhline(1, color=figures.MUTED, linewidth=0.8)
    upper.set_title("RMSE relative to the mean of f2 … f6 (± standard error over splits)")
    lower.set_title("E[ℓ] of the UDN; filled: sets on which the paper reports below 2")
    for place, name in enumerate(errors):
        if value := depths.get(name, {}).get("udn"):
            fill = figures.RED if name in SHALLOW else "white"
            style = {"color": figures.RED, "markerfacecolor": fill, "markersize": 6}
            lower.errorbar(place, value.mean, value.error, fmt="o", **style)
    lower.set_ylim(0, max(3.0, lower.get_ylim()[1]))
    lower.set_xticks(range(len(errors)), list(errors))
    upper.tick_params(labelbottom=True)
    for axes in (upper, lower):
        axes.set_xlim(-0.5, len(errors) - 0.5)
        axes.tick_params(axis="x", length=0)
        axes.set_xticks([place - 0.5 for place in range(1, len(errors))], minor=True)
        axes.grid(True, axis="x", which="minor")
    upper.set_ylabel("relative RMSE")
    lower.set_ylabel("E[ℓ]")
    figures.legend(figure, handles)
    figures.title(figure, "Nine UCI sets: test error, and the depth that the UDN inferred")


def _relative(row: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Relative to the mean of the finite networks, or of all models where there are none."""
    base = [row[m].mean for m in FINITE if m in row] or [f.mean for f in row.values()]
    unit = sum(base) / len(base)
    return {
        model: Estimate(f.mean / unit, 0.0 if math.isnan(f.error) else f.error / unit)
        for model, f in row.items()
    }
