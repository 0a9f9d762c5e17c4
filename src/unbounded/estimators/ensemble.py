"""Deep ensembles of UDNs: one prediction of many members, a mixture of mixtures."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unbounded.likelihoods import Gaussian, GaussianPrediction, Prediction
from unbounded.likelihoods.gaussian import Noise

Floats = NDArray[np.float64]


class GivenNoise(Noise):
    """The outputs are means and scales themselves: components of several members' mixtures."""

    outputs_per_target = 2

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The first half are the means, the second half the scales."""
        means, scales = outputs.chunk(2, -1)
        return means, scales

    def config(self) -> dict[str, Any]:
        """Nothing to know."""
        return {}


def combine(predictions: Sequence[Prediction]) -> Prediction:
    """Σ_r (1/R) Σ_ℓ q_r(ℓ) p_r(y; Ω_ℓ(x)): one mixture whose components are member and depth."""
    if len(predictions) == 1:
        return predictions[0]
    log_q = torch.cat([p.depth_log_probs for p in predictions]) - math.log(len(predictions))
    first = predictions[0]
    if isinstance(first, GaussianPrediction):
        parts = [torch.cat(p.components(), -1) for p in predictions if isinstance(p, type(first))]
        return Gaussian(GivenNoise()).predict(torch.cat(parts), log_q)
    if any(True for _ in first.likelihood.parameters()):
        raise ValueError(
            f"{type(first.likelihood).__name__} has parameters of its own, which differ between "
            "members: an ensemble needs Gaussian or a likelihood without parameters"
        )
    return first.likelihood.predict(torch.cat([p.outputs for p in predictions]), log_q)


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

    With `average_probs` as weights, the slices add up to the ensemble's own mean.

    Args:
        values: of each member, `(its depths, rows, …)`.
        firsts: the first of its depths.
        probs: its q(1) … q(m_r).
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
