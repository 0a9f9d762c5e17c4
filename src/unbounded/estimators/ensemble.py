"""Several models as one: their seeds, their training and their depths."""

import gc
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.estimators.rows import Scalings, WeightedRows
from unbounded.growth import TooDeepError
from unbounded.model import UDN
from unbounded.training import FitResult, History, NonFiniteError, TrainingWarning, fit

Floats = NDArray[np.float64]

_LARGE = 10_000_000  # numbers in a table, of which no copy is to stay longer than needed


def average_probs(probs: Sequence[Floats]) -> Floats:
    """The members' q(1) … q(m_r) as one, `(largest m,)`: the depth of a random member."""
    longest = max(len(p) for p in probs)
    padded = [np.pad(p, (0, longest - len(p))) for p in probs]
    average: Floats = np.mean(padded, 0)
    return average


def average_by_depth(
    values: Sequence[Floats], firsts: Sequence[int], probs: Sequence[Floats]
) -> Floats:
    """What the members say at each depth, each member counting by its q_r(ℓ).

    Of each member: `(its depths, rows, …)`, the first of its depths, and its q(1) … q(m_r). With
    `average_probs` as weights, the slices add up to the ensemble's own mean.
    """
    if len(values) == 1:
        return values[0]
    low = min(firsts)
    high = max(first + len(value) for first, value in zip(firsts, values, strict=True))
    total = np.zeros((high - low, *values[0].shape[1:]))
    weight = np.zeros((high - low, *[1] * (values[0].ndim - 1)))
    for value, first, p in zip(values, firsts, probs, strict=True):
        rows = slice(first - low, first - low + len(value))
        q = p[first - 1 : first - 1 + len(value)].reshape(-1, *[1] * (value.ndim - 1))
        total[rows] += q * value
        weight[rows] += q
    result: Floats = total / weight
    return result


def member_seeds(seed: int, count: int) -> list[int]:
    """Seeds of an ensemble's members; the first is that of a lone model."""
    others = (np.random.SeedSequence([seed, k]).generate_state(1)[0] for k in range(1, count))
    return [seed, *(int(other >> 1) for other in others)]


class Training(NamedTuple):
    """How the training of one or several members went."""

    history: History  # the first member's
    best_epoch: int  # the members' median
    stopped: str

    @property
    def best_log_score(self) -> float:
        """The highest of the held-out rows, over all epochs of the first member."""
        return float(np.nanmax([row["val_log_score"] for row in self.history.rows]))

    @classmethod
    def by_fit(cls, models: Sequence[UDN], data: Any, **options: Any) -> "Training":
        """Train the models; those that diverge keep their best epoch, with a warning.

        Raises:
            NonFiniteError: if one diverges that has no best epoch.
        """
        try:
            found = fit(models[0] if len(models) == 1 else models, data, **options)
        except NonFiniteError as error:
            if error.result is None or error.result.best_score is None:
                raise
            found = error.result
        if isinstance(data, tuple) and data[0].numel() > _LARGE:
            gc.collect()  # a trainer and its engine know each other, and would keep their rows
        results = found if isinstance(found, list) else [found]
        training = cls.of(results)
        if any(result.stopped == "diverged" for result in results):
            kept = ", ".join(str(result.best_epoch) for result in results)
            warn(f"training diverged, epoch {kept} is kept: a lower lr usually helps")
        return training

    @classmethod
    def of(cls, results: Sequence[FitResult]) -> "Training":
        """Put together what `fit` returns of each."""
        stopped = [result.stopped for result in results]
        if any(r.stopped == "diverged" and r.best_score is None for r in results):
            raise NonFiniteError(
                "the loss of a member is not finite: a lower lr or another initialisation helps"
            )
        best = int(np.median([result.best_epoch for result in results]))
        unusual = (end for end in ("interrupted", "diverged", "memory") if end in stopped)
        ended = next(unusual, stopped[0])
        return cls(results[0].history, best, ended)


def check_begun(training: Training) -> None:
    """An error if no epoch came to its end: there is nothing to keep."""
    if training.history.rows:
        return
    if training.stopped == "memory":
        raise TooDeepError(
            "the layers of the first epoch do not fit into memory: give the depth family a limit=, "
            "or a lower rate"
        )
    raise KeyboardInterrupt


def warn(text: str) -> None:
    """A `TrainingWarning` to whoever called `fit` of an estimator."""
    warnings.warn(text, TrainingWarning, stacklevel=5)


def depth_probs(model: UDN) -> Floats:
    """q(1) … q(m) of one model, adding up to one."""
    first, _ = model.support()
    probs = model.depth_log_probs().detach().double().exp().cpu().numpy()
    return np.concatenate([np.zeros(first - 1), probs / probs.sum()])


class TrainedModels(NamedTuple):
    """Models with the scaling of their rows, and how their training went."""

    models: list[UDN]
    scalings: Scalings
    training: Training
    columns: dict[str, Any] | None = None  # what their first layer was told of the columns
    learnt: WeightedRows | None = None  # what they have learnt from, if it is at hand
    held: WeightedRows | None = None  # what they have not learnt from, if there is any
    heavy: WeightedRows | None = None  # some of what was learnt, too heavy to be held out
