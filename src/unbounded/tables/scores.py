"""Scores of a model on rows with a known target, gathered chunk by chunk, as plain data."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbounded import metrics
from unbounded.tables.predictions import ByDepth, Floats

if TYPE_CHECKING:
    from unbounded.tables.model import TableModel

LEVELS = (0.5, 0.9, 0.95)
# name in the document → heading
CLASS_SCORES = {"accuracy": "accuracy", "log_score": "log score", "brier": "Brier"}
CLASS_SCORES |= {"ece": "ECE", "aurc": "AURC"}
NUMBER_SCORES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "nll": "NLL", "crps": "CRPS"}
NUMBER_SCORES |= {f"coverage_{100 * p:.0f}": f"in {100 * p:.0f} %" for p in LEVELS}
_CURVE = tuple(level / 20 for level in range(1, 20))
_DRAWN = 400  # rows of which the page shows each
_IMPORTANCE_ROWS, _IMPORTANCE_CELLS = 1000, 400_000


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
            mixture = (found.depth_probs, found.values, found.scales)
            part["pit"] = metrics.mixture_cdf(y, *mixture)
            # Sums over rows, as arrays so that all parts are alike.
            part["nll"] = np.full(1, len(y) * metrics.mixture_nll(y, *mixture))
            part["crps"] = np.full(1, len(y) * metrics.mixture_crps(y, *mixture))
            self._by_depth.append((((found.values - y) ** 2).sum(1), len(y)))
        self._parts.append(part)

    def scores(self) -> dict[str, float]:
        """Every score of `CLASS_SCORES` or `NUMBER_SCORES`."""
        y, mixture = self._all("y"), self._all("mixture")
        if self.is_classes:
            return {
                "accuracy": metrics.accuracy(y, mixture),
                "log_score": metrics.log_score(y, mixture),
                "brier": metrics.brier(y, mixture),
                "ece": metrics.ece(y, mixture),
                "aurc": metrics.aurc(y, mixture),
            }
        pit = self._all("pit")
        inside = np.abs(pit - 0.5)
        return {
            "rmse": metrics.rmse(y, mixture),
            "mae": metrics.mae(y, mixture),
            "r2": metrics.r2(y, mixture),
            "nll": float(self._all("nll").sum() / len(y)),
            "crps": float(self._all("crps").sum() / len(y)),
            # y lies in the central interval of level p where its CDF value is within p/2 of ½.
            **{f"coverage_{round(100 * p)}": float((inside <= p / 2).mean()) for p in LEVELS},
        }

    def summary(self) -> dict[str, Any]:
        """Scores and what the figures of a page are drawn from: plain data of a few kilobytes."""
        y, mixture = self._all("y"), self._all("mixture")
        total, noise, depth = (self._all(name) for name in ("total", "noise", "depth"))
        rows = np.random.default_rng(0).permutation(len(y))[:_DRAWN]
        rows = rows[np.argsort(total[rows], kind="stable")]
        sums = np.sum([part for part, _ in self._by_depth], 0) / len(y)
        found: dict[str, Any] = {
            "rows": len(y),
            "scores": self.scores(),
            "depth_probs": self._depth_probs.tolist(),
            "by_depth": (sums if self.is_classes else np.sqrt(sums)).tolist(),
            "uncertainty": {
                "noise": noise[rows].tolist(),
                "depth": depth[rows].tolist(),
                "total": total[rows].tolist(),
                "noise_mean": float(noise.mean()),
                "depth_mean": float(depth.mean()),
            },
        }
        if self.is_classes:
            # Bins of 15 rows or more; of equal numbers where that makes them few.
            bins = int(np.clip(len(y) // 15, 2, 15))
            curve = metrics.reliability(y, mixture, bins, adaptive=bins < 15)
            found["calibration"] = {
                "confidence": curve.confidence.tolist(),
                "accuracy": curve.accuracy.tolist(),
                "count": curve.count.tolist(),
            }
            found["confusion"] = metrics.confusion_matrix(y, mixture).tolist()
            wrong = mixture.argmax(1) != y
            found["uncertainty"]["by_fifth"] = _by_fifth(total, wrong.astype(np.float64))
        else:
            inside = np.abs(self._all("pit") - 0.5)
            found["calibration"] = {
                "probability": list(_CURVE),
                "coverage": [float((inside <= p / 2).mean()) for p in _CURVE],
            }
            found["predicted"] = {"y": y[rows].tolist(), "mean": mixture[rows].tolist()}
            found["uncertainty"]["by_fifth"] = _by_fifth(total, np.abs(mixture - y))
        return found

    def _all(self, name: str) -> Floats:
        return np.concatenate([part[name] for part in self._parts])


def importance_of_columns(
    model: "TableModel", x: NDArray[Any], y: Floats, seed: int = 0
) -> list[dict[str, Any]]:
    """What the score loses when a column's values are shuffled among the rows, largest first.

    The log score in nats for classes, the RMSE for numbers. All numbers that one column of the
    table became are shuffled together.

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
    repeats = int(np.clip(_IMPORTANCE_CELLS // max(len(y) * len(slices), 1), 2, 5))

    def loss(rows: NDArray[Any]) -> float:
        found = model.by_depth(rows).mixture
        if model.target.is_classes:
            return -metrics.log_score(y, found)
        return metrics.rmse(y, found)

    base = loss(x)
    result: list[dict[str, Any]] = []
    for name, columns in slices.items():
        losses = []
        for _ in range(repeats):
            shuffled = x.copy()
            shuffled[:, columns] = x[random.permutation(len(y))][:, columns]
            losses.append(loss(shuffled) - base)
        loss_mean, loss_sd = float(np.mean(losses)), float(np.std(losses))
        result.append({"column": name, "loss": loss_mean, "sd": loss_sd})
    return sorted(result, key=lambda row: -row["loss"])


def score_rows(scores: dict[str, dict[str, float]], is_classes: bool) -> list[list[str]]:
    """A heading and a row for each model, as text."""
    names = CLASS_SCORES if is_classes else NUMBER_SCORES
    rows = [["", *names.values()]]
    for model, values in scores.items():
        rows.append([model, *(_score(name, values.get(name)) for name in names)])
    return rows


def _score(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name in ("rmse", "mae", "crps"):  # in the units of the target, of any size
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    digits = 3 if name.startswith("coverage") else 4
    return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.4g}"


def _by_fifth(uncertainty: Floats, error: Floats) -> list[float]:
    """The mean error in each fifth of the rows, from the surest to the least sure."""
    order = np.argsort(uncertainty, kind="stable")
    return [float(error[part].mean()) for part in np.array_split(order, 5) if len(part)]
