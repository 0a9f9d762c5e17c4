"""Several models as one: their seeds, their training and their depths."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.training import FitResult, History

Floats = NDArray[np.float64]


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

    @classmethod
    def of(cls, results: Sequence[FitResult]) -> "Training":
        """Put together what `fit` returns of each."""
        stopped = [result.stopped for result in results]
        if "diverged" in stopped:
            raise FloatingPointError(
                "the loss of a member is not finite: a lower lr or another initialisation helps"
            )
        best = int(np.median([result.best_epoch for result in results]))
        ended = "interrupted" if "interrupted" in stopped else stopped[0]
        return cls(results[0].history, best, ended)
