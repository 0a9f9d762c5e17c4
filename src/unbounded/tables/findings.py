"""What a model's training and scores come to, in a sentence each: for the terminal and the page."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.metrics import wilson
from unbounded.report.axes import number, rough
from unbounded.tables.scores import MAIN_SCORES, REFERENCES
from unbounded.tables.text import count_of

if TYPE_CHECKING:
    from unbounded.tables.model import TableModel

OWN = "unbounded depth"
_SURE = 2.0  # standard errors from which a difference is more than chance
_EARLY = 0.1  # of the epochs: a best one before that, or among the first two, is early
_LATE, _GAINS = 0.9, 0.01  # still better in the last tenth, by so much (relative, or nats)
_LOST = 0.05  # of the RMSE, by the end: rows were learnt by heart
_MOVED = 0.25  # layers


def verdict(
    own: dict[str, float],
    references: dict[str, dict[str, float]],
    is_classes: bool,
    rows: int,
    where: str = "held-out row",
) -> str:
    """Which model is best, and by how much, be it ours or not; empty without references."""
    name = MAIN_SCORES[is_classes]
    all_scores = {"": own, **references}
    values = {key: scores.get(name, math.nan) for key, scores in all_scores.items()}
    values = {key: value for key, value in values.items() if math.isfinite(value)}
    if len(values) < 2 or "" not in values:
        return ""
    order = sorted(values, key=lambda key: -values[key] if is_classes else values[key])
    best = order[0]
    other = order[1] if best == "" else ""  # what ours is measured against
    heading, digits = ("log score", 3) if is_classes else ("RMSE", 4)
    title = {"": OWN, **REFERENCES}
    text = f"best on {count_of(rows, where)}: {title.get(best, best)}, {heading} "
    text += f"{number(values[best], digits)} against {number(values[other], digits)} of "
    text += title.get(other, other)
    apart = abs(values[best] - values[other])
    if is_classes:
        accuracy = (all_scores[key].get("accuracy", math.nan) for key in (best, other))
        text += " (accuracy {:.1%} against {:.1%})".format(*accuracy).replace("%", " %")
    elif values[other] > 0:
        text += f" ({apart / values[other]:.1%} lower)".replace("%", " %")
    error = references[other or best].get("lead_error", math.nan)
    if not math.isfinite(error):
        return text
    within = apart < _SURE * error
    chance = "no more than chance makes" if within else "more than chance makes"
    difference = f"{rough(apart)} ± {rough(error)}"
    return f"{text}; {chance} on so many rows (the difference is {difference})"


def depth_moved(model: "TableModel") -> str:
    """Whether the depth that is kept is another than the one that training began with."""
    from unbounded.training import preset

    estimator = model.estimator
    family: Any = estimator.depth
    if family is None:
        own = estimator.layers is not None or _validation(model) is None
        family = preset(estimator.preset).start(model.target.is_classes and not own)
    start, end = float(family.mean()), float(estimator.depth_mean_)
    best, epochs = estimator.best_epoch_, estimator.n_iter_
    if abs(end - start) >= _MOVED:
        return f"depth moved: from {start:.2f} expected layers at the start to {end:.2f}"
    text = f"depth stayed about where it began: {start:.2f} expected layers, now {end:.2f}"
    last = estimator.history_[-1]["depth_mean"] if len(estimator.history_) else end
    if best < epochs and abs(last - start) >= _MOVED:
        return f"{text} (epoch {best} is kept; later epochs went to {last:.2f})"
    return f"{text}: held-out rows gave no reason to move it, or training was short"


def rows_kept(model: "TableModel") -> str:
    """Whether predictions look at rows of the table, which the file then holds."""
    rows = max(len(getattr(one.layers, "head_rows", ())) for one in model.estimator.members_)
    if not rows:
        return ""
    return (
        f"held-out rows gain by nearness to {count_of(rows, 'row')} of the table: the file holds "
        "them, scaled; to keep them out, --no-least-squares"
    )


def training_went(model: "TableModel") -> str:
    """Where the best epoch lies, and what to do if it is among the first or the last."""
    estimator = model.estimator
    history, best, epochs = estimator.history_, estimator.best_epoch_, estimator.n_iter_
    text = f"epoch {best:,} of {epochs:,} is the best on the validation rows"
    curve = _validation(model)
    if curve is None:
        return f"{count_of(epochs, 'epoch')}, without validation rows to choose among them"
    if estimator.stopped_ == "time" and best >= _LATE * epochs:
        return f"{text}: it still improved when the time was over; raise --time-limit"
    if estimator.stopped_ == "interrupted":
        return f"{text}, of those before the interruption; to train to the end, fit again"
    by_heart = _ended_by_heart(model, curve)
    if by_heart or (epochs >= 10 and best <= max(2, _EARLY * epochs)):
        rate = history[0].get("lr", math.nan)
        rate = max([row.get("lr", math.nan) for row in history.rows], default=rate)
        lower = f"--lr {rate / 10:.1g}" if math.isfinite(rate) and rate > 0 else "a lower --lr"
        if not by_heart and _gain(model, curve[2 * epochs // 3], curve[-1]) > _GAINS:
            return (
                f"{text}: later ones were worse, but became better again until the end; next, try "
                f"--epochs {3 * epochs} or {lower}"
            )
        more = " or --members 5" if len(estimator.members_) == 1 else ""
        return (
            f"{text}: from then on it learnt its rows by heart{_several(model)}; "
            f"next, try {lower}, --width 32{more}, or find more rows"
        )
    if best >= _LATE * epochs and epochs >= 5:
        before = curve[max(0, math.floor(_LATE * epochs) - 1)]
        if _gain(model, before, curve[best - 1]) > _GAINS:
            better = "" if estimator.quality == "best" else " or --quality best"
            return f"{text}: it still improved at the end; next, try --epochs {2 * epochs}{better}"
        return f"{text}: by then it hardly improved, so longer training would gain little"
    others = _several(model)
    return f"{text}: later ones were no better, so longer training would not help{others}"


def _several(model: "TableModel") -> str:
    """What was made of it that the best epoch came early; nothing if there is one network."""
    count = len(model.estimator.members_)
    if not model.estimator._apart:
        return ""
    if model.target.is_classes:
        return f", so {count} networks with different validation rows are averaged"
    return f"; {count} networks are averaged, all but the first trained for less long"


def _ended_by_heart(model: "TableModel", curve: Any) -> bool:
    """Whether training ended early since rows had been learnt by heart for long.

    Numbers end without that, too; there the validation score tells.
    """
    from unbounded.estimators.pace import heeds_overfitting

    estimator = model.estimator
    if estimator.stopped_ != "patience" or not heeds_overfitting(estimator):
        return False
    lost = _gain(model, curve[-1], curve[estimator.best_epoch_ - 1])
    return model.target.is_classes or lost > _LOST


def _gain(model: "TableModel", before: float, after: float) -> float:
    """By how much a validation score became better: in nats, or as a share of the RMSE."""
    if model.target.is_classes:
        return after - before
    return 1 - after / before if before > 0 else 0.0


def _validation(model: "TableModel") -> Any:
    """The score that chooses the epoch, `(epochs,)`; None if there were no validation rows."""
    name = "val_log_score" if model.target.is_classes else "val_rmse"
    history = model.estimator.history_
    if name not in history.columns:
        return None
    values = np.array(history[name], dtype=np.float64)
    return values if np.isfinite(values[model.estimator.best_epoch_ - 1]) else None


def uncertainty_split(found: dict[str, Any]) -> str:
    """How much of the uncertainty is noise and how much disagreement between depths."""
    split = found["uncertainty"]
    share = split.get("depth_share", math.nan)
    if not math.isfinite(share):
        return ""
    noise, depth = (number(split[f"{name}_mean"], 3) for name in ("noise", "depth"))
    text = f"of the uncertainty {1 - share:.0%} is noise and {share:.0%} is disagreement between "
    text = text.replace("%", " %")
    if found["task"] == "classification":
        return (
            f"{text}depths (expected entropy {noise} nats, mutual information of class and "
            f"depth {depth} nats)"
        )
    return f"{text}depths (variance within depths and between; mean sd {noise} and {depth})"


def intervals_hold(found: dict[str, Any]) -> str:
    """Whether intervals hold what they promise, as far as the rows can tell; only for numbers."""
    if found["task"] == "classification":
        return ""
    share, rows = found["scores"]["coverage_90"], found["rows"]
    low, high = (float(end) for end in wilson(round(share * rows), rows))
    text = f"the 90 % intervals held {100 * share:.1f} % of the targets"
    if high < 0.9:
        return f"{text}: they are too narrow; predict with a larger --interval"
    if low > 0.9:
        return f"{text}: they are wider than they need to be"
    return f"{text}: what they promise, as far as these rows can tell"


def findings(model: "TableModel", found: dict[str, Any] | None = None) -> dict[str, str]:
    """All sentences about a model, by what they are about; those that do not apply are left out.

    Args:
        model: the model.
        found: what `TableModel.summarize` says of some rows; by default of those held out.
    """
    references = {} if found else model.info.get("references", {})
    found = found or model.info.get("held_out")
    told = {"training": training_went(model), "depth": depth_moved(model), "rows": rows_kept(model)}
    if found:
        scores = found["scores"]
        told["verdict"] = verdict(scores, references, model.target.is_classes, found["rows"])
        told |= {"intervals": intervals_hold(found), "uncertainty": uncertainty_split(found)}
    order = ("verdict", "training", "depth", "rows", "intervals", "uncertainty")
    return {name: told[name] for name in order if told.get(name)}
