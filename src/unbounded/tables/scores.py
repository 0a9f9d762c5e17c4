"""Scores of a model on rows with a known target, gathered chunk by chunk, as plain data."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unbounded import metrics
from unbounded.tables.predictions import ByDepth
from unbounded.tables.text import plain_number
from unbounded.tables.values import Floats

if TYPE_CHECKING:
    from unbounded.tables.model import TableModel

LEVELS = (0.5, 0.9, 0.95)
# name in the document → heading
CLASS_SCORES = {"accuracy": "accuracy", "log_score": "log score", "brier": "Brier"}
CLASS_SCORES |= {"ece": "ECE", "aurc": "AURC", "roc_auc": "ROC-AUC"}
CLASS_SCORES |= {"f1": "F1", "precision": "precision", "recall": "recall"}
NUMBER_SCORES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "nll": "NLL", "crps": "CRPS"}
NUMBER_SCORES |= {f"coverage_{100 * p:.0f}": f"in {100 * p:.0f} %" for p in LEVELS}
MAIN_SCORES = {True: "log_score", False: "rmse"}
"""What models are compared by, for classes and for numbers."""
REFERENCES = {"linear": "a linear model", "boosting": "gradient boosting"}
_CURVE = tuple(level / 20 for level in range(1, 20))
_DRAWN = 400  # rows of which the page shows each
_IMPORTANCE_ROWS, _IMPORTANCE_CELLS = 1000, 400_000
IMPORTANCE_COLUMNS = 100
"""Of a table with more columns, only so many are shuffled: those that predictions react to most."""


class ScoreCollector:
    """Takes in predictions with their targets, chunk by chunk; then gives scores of them all."""

    def __init__(self, is_classes: bool):
        self.is_classes = is_classes
        self._parts: list[dict[str, Floats]] = []
        self._by_depth: list[tuple[Floats, int]] = []  # sums over rows, (depth,)
        self._depth_probs = np.zeros(0)

    @property
    def rows(self) -> int:
        """How many rows were taken in."""
        return sum(len(part["y"]) for part in self._parts)

    def add(self, y: Floats, found: ByDepth) -> None:
        """Rows `(rows,)` with their predictions."""
        if not len(y):
            return
        self._depth_probs = found.depth_probs
        part = {
            "y": y,
            "mixture": found.mixture,
            "noise": found.noise(),
            "depth": found.disagreement(),
            "total": found.total(),
        }
        if found.scales is None:
            right = found.values.argmax(2) == y.astype(np.int64)
            self._by_depth.append((right.sum(1), len(y)))
        else:
            mixture = found.components
            part["pit"] = metrics.mixture_cdf(y, *mixture)
            if found.levels is not None:
                part["pit"] = found.levels.actual(part["pit"])
            # Sums over rows, as arrays so that all parts are alike.
            part["nll"] = np.full(1, len(y) * metrics.mixture_nll(y, *mixture))
            part["crps"] = np.full(1, len(y) * metrics.mixture_crps(y, *mixture))
            self._by_depth.append((((found.values - y) ** 2).sum(1), len(y)))
        self._parts.append(part)

    def scores(self) -> dict[str, float]:
        """Every score of `CLASS_SCORES` or `NUMBER_SCORES`."""
        y, mixture = self._all("y"), self._all("mixture")
        names = CLASS_SCORES if self.is_classes else ("rmse", "mae", "r2")
        found = {name: getattr(metrics, name)(y, mixture) for name in names}
        if not self.is_classes:
            found |= {name: float(self._all(name).sum() / len(y)) for name in ("nll", "crps")}
            found |= {f"coverage_{round(100 * p)}": self._coverage(p) for p in LEVELS}
        return found

    def losses(self) -> Floats:
        """Of each row, `(rows,)`: −log p of the class that came, or the squared error."""
        y, mixture = self._all("y"), self._all("mixture")
        if not self.is_classes:
            return np.asarray((mixture - y) ** 2)
        chosen = mixture[np.arange(len(y)), y.astype(np.int64)]
        return np.asarray(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)))

    def lead_over(self, other: "ScoreCollector | None" = None) -> tuple[float, float]:
        """By how much the main score is better than another's on the same rows; standard error.

        Without another, the error is that of the score itself. That of a root mean square follows
        from those of the mean squares, to first order.
        """
        both = [self.losses()] + ([] if other is None else [other.losses()])
        scores = [losses.mean() if self.is_classes else np.sqrt(losses.mean()) for losses in both]
        if not self.is_classes:
            both = [a / max(2 * s, 1e-300) for a, s in zip(both, scores, strict=True)]
        rows = both[0] - both[1] if other is not None else both[0]
        lead = scores[1] - scores[0] if other is not None else 0.0
        error = float(rows.std(ddof=1) / np.sqrt(len(rows))) if len(rows) > 1 else float("nan")
        return float(lead), error

    def summary(self) -> dict[str, Any]:
        """Scores and what the figures of a page are drawn from: plain data of a few kilobytes."""
        y, mixture = self._all("y"), self._all("mixture")
        split = {name: self._all(name) for name in ("noise", "depth", "total")}
        total = split["total"]
        rows = np.random.default_rng(0).permutation(len(y))[:_DRAWN]
        rows = rows[np.argsort(total[rows], kind="stable")]
        sums = np.sum([part for part, _ in self._by_depth], 0) / len(y)
        found: dict[str, Any] = {
            "rows": len(y),
            "scores": self.scores(),
            "score_error": self.lead_over()[1],
            "depth_probs": self._depth_probs.tolist(),
            "by_depth": (sums if self.is_classes else np.sqrt(sums)).tolist(),
            "uncertainty": {
                **{name: values[rows].tolist() for name, values in split.items()},
                "noise_mean": float(split["noise"].mean()),
                "depth_mean": float(split["depth"].mean()),
                "depth_share": _share(split, 1 if self.is_classes else 2),
            },
        }
        if self.is_classes:
            # Bins of 15 rows or more; of equal numbers where that makes them few.
            bins = int(np.clip(len(y) // 15, 2, 15))
            curve = metrics.reliability(y, mixture, bins, adaptive=bins < 15)
            names = ("confidence", "accuracy", "count")
            found["calibration"] = {name: getattr(curve, name).tolist() for name in names}
            found["confusion"] = metrics.confusion_matrix(y, mixture).tolist()
            error = (mixture.argmax(1) != y).astype(np.float64)
        else:
            coverage = [self._coverage(p) for p in _CURVE]
            found["calibration"] = {"probability": list(_CURVE), "coverage": coverage}
            found["predicted"] = {"y": y[rows].tolist(), "mean": mixture[rows].tolist()}
            error = np.abs(mixture - y)
        fifths = _by_fifth(total, error)
        found["uncertainty"] |= {
            "by_fifth": [float(part.mean()) for part in fifths],
            "by_fifth_bounds": [_bounds(part, self.is_classes) for part in fifths],
        }
        return found

    def _coverage(self, p: float) -> float:
        """How many targets lie in the central interval: their CDF is within p/2 of ½."""
        return float((np.abs(self._all("pit") - 0.5) <= p / 2).mean())

    def _all(self, name: str) -> Floats:
        return np.concatenate([part[name] for part in self._parts])


def importance_of_columns(
    model: "TableModel", x: NDArray[Any], y: Floats, seed: int = 0
) -> list[dict[str, Any]]:
    """What the score loses when a column's values are shuffled among the rows, largest first.

    The log score in nats for classes, the RMSE for numbers. All numbers that one column of the
    table became are shuffled together. Of more than `IMPORTANCE_COLUMNS` those are taken that
    the predictions react to most, by their gradient at the rows.

    Args:
        model: the model.
        x: encoded rows, `(rows, features)`; at most 1,000 are used.
        y: their targets, `(rows,)`.
        seed: of the shuffling.
    """
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(y))[:_IMPORTANCE_ROWS]
    x, y = x[chosen], y[chosen]
    slices = model.encoding.slices
    if len(slices) > IMPORTANCE_COLUMNS:
        moved = _reactions(model, x, y)
        most = {name: float(moved[columns].sum()) for name, columns in slices.items()}
        names = sorted(slices, key=lambda name: -most[name])[:IMPORTANCE_COLUMNS]
        slices = {name: slices[name] for name in names}
    repeats = int(np.clip(_IMPORTANCE_CELLS // max(len(y) * len(slices), 1), 2, 5))

    def loss(rows: NDArray[Any]) -> float:
        found = model.by_depth(rows).mixture
        return -metrics.log_score(y, found) if model.target.is_classes else metrics.rmse(y, found)

    base = loss(x)
    result: list[dict[str, Any]] = []
    for name, columns in slices.items():
        losses = []
        for _ in range(repeats):
            shuffled = x.copy()
            shuffled[:, columns] = x[random.permutation(len(y))][:, columns]
            losses.append(loss(shuffled) - base)
        lost = {"loss": float(np.mean(losses)), "sd": float(np.std(losses, ddof=1))}
        result.append({"column": name, **lost})
    return sorted(result, key=lambda row: -row["loss"])


def _reactions(model: "TableModel", x: NDArray[Any], y: Floats) -> Floats:
    """How far the predictions move with each number, in its standard deviations: `(features,)`.

    The mean over rows of |∂f/∂x_j|, where f is the log probability of the true class or the mean.
    """
    estimator = model.estimator
    inputs = torch.from_numpy(estimator.input_scaling_.apply(x)).requires_grad_()
    total = torch.zeros(())
    for member in estimator.members_:
        frozen = member.freeze().double().cpu()
        found: Any = frozen.likelihood.predict(frozen(inputs)[0], frozen.depth_probs.log())
        if model.target.is_classes:
            rows = torch.from_numpy(y.astype(np.int64))[:, None]
            total = total + found.log_probs.gather(1, rows).sum()
        else:
            total = total + found.mean.sum()
    (slopes,) = torch.autograd.grad(total, inputs)
    moved: Floats = slopes.abs().mean(0).numpy() * inputs.detach().std(0, correction=0).numpy()
    return moved


def score_rows(
    own: dict[str, float], references: dict[str, dict[str, float]], is_classes: bool
) -> list[list[str]]:
    """A heading and a row for each model, as text."""
    names = CLASS_SCORES if is_classes else NUMBER_SCORES
    models = {"unbounded depth": own}
    models |= {REFERENCES.get(name, name): values for name, values in references.items()}
    rows = [
        [model, *(_score(name, values.get(name)) for name in names)]
        for model, values in models.items()
    ]
    return [["", *names.values()], *rows]


def _score(name: str, value: float | None) -> str:
    if value is None or value != value:
        return "–"
    digits = 3 if name.startswith("coverage") else 4
    if name in ("rmse", "mae", "crps") or abs(value) >= 1e4:  # in units of the target, of any size
        return plain_number(value)
    return f"{value:.{digits}f}"


def _by_fifth(uncertainty: Floats, error: Floats) -> list[Floats]:
    """The errors in each fifth of the rows, from the surest to the least sure."""
    order = np.argsort(uncertainty, kind="stable")
    return [error[part] for part in np.array_split(order, 5) if len(part)]


def _bounds(errors: Floats, is_share: bool) -> list[float]:
    """Where the mean of a few rows may lie: a 95 % interval, `[lower, upper]`."""
    if is_share:
        low, high = metrics.wilson(errors.sum(), len(errors))
        return [float(low), float(high)]
    mean, rows = float(errors.mean()), len(errors)
    half = 1.96 * float(errors.std(ddof=1)) / np.sqrt(rows) if rows > 1 else float("nan")
    return [max(mean - half, 0.0), mean + half]


def _share(split: dict[str, Floats], power: int) -> float:
    """What the depths' disagreement is of the whole; of numbers the variances add up."""
    noise, depth = (float((split[name] ** power).mean()) for name in ("noise", "depth"))
    return depth / (noise + depth) if noise + depth > 0 else float("nan")
