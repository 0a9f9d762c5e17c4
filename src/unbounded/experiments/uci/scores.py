"""Mixtures in original units: the noise's calibration on validation rows, and the scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbounded import metrics
from unbounded.data.uci import Floats
from unbounded.experiments.uci.recipe import Table
from unbounded.likelihoods.gaussian import GaussianPrediction
from unbounded.model import UDN
from unbounded.predictive import predict

LEVELS = (0.5, 0.9, 0.95)
_FACTORS = np.geomspace(0.5, 20.0, 60)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_ROWS = 8192


@dataclass(frozen=True)
class Mixture:
    """Gaussian mixtures of rows, with common weights, in original units.

    Attributes:
        probs: of the components, `(component,)`.
        means: `(component, rows)`.
        scales: likewise.
    """

    probs: Floats
    means: Floats
    scales: Floats

    def widened(self, factor: float) -> "Mixture":
        """All scales multiplied."""
        return Mixture(self.probs, self.means, self.scales * factor)


def mixture(model: UDN, rows: Table) -> Mixture:
    """What a network predicts for the rows of a table: one component a depth."""
    prediction = predict(model, rows.x, _ROWS)
    assert isinstance(prediction, GaussianPrediction)
    means, scales = (
        part[..., 0].detach().double().cpu().numpy() for part in prediction.components()
    )
    probs = prediction.depth_log_probs.detach().double().exp().cpu().numpy()
    # In float64 from here on: naval's targets spread over 0.015 around 1.
    return Mixture(probs / probs.sum(), means * rows.scale + rows.center, scales * rows.scale)


def average(mixtures: Sequence[Mixture]) -> Mixture:
    """The mixture of mixtures with equal weights: an ensemble."""
    return Mixture(
        np.concatenate([m.probs for m in mixtures]) / len(mixtures),
        np.concatenate([m.means for m in mixtures]),
        np.concatenate([m.scales for m in mixtures]),
    )


def calibrate(held_out: Sequence[tuple[Mixture, Floats]]) -> tuple[float, float]:
    """The factor of all scales with the least mean NLL on held-out rows, and that NLL.

    Args:
        held_out: mixtures and the targets of their rows, of any number of parts.

    Returns:
        Factor and NLL; the NLL is infinite if a prediction is no number.
    """
    parts = [_Standardised.of(predicted, y) for predicted, y in held_out]
    if not all(bool(torch.isfinite(part.z).all()) for part in parts):
        return 1.0, math.inf
    count = sum(len(y) for _, y in held_out)

    def mean_nll(factor: float) -> float:
        return sum(part.nll(factor) for part in parts) / count

    values = [mean_nll(factor) for factor in _FACTORS.tolist()]
    lowest = min(range(len(values)), key=values.__getitem__)
    factor = float(_FACTORS[lowest])
    if 0 < lowest < len(values) - 1:
        # The lowest point of the parabola through its neighbours, in the logarithm.
        low, middle, high = values[lowest - 1 : lowest + 2]
        bend = low - 2 * middle + high
        shift = 0.5 * (low - high) / bend if bend > 0 else 0.0
        factor *= math.exp(shift * math.log(_FACTORS[1] / _FACTORS[0]))
    return factor, mean_nll(factor)


class _Standardised(NamedTuple):
    """Targets seen from each component, ready for any factor of the scales."""

    z: Tensor  # (y − mean)/scale, (component, rows)
    log_weight: Tensor  # log of probability over scale, (component, rows)

    @classmethod
    def of(cls, predicted: Mixture, y: Floats) -> "_Standardised":
        log_q = torch.from_numpy(predicted.probs).log()[:, None]
        z = torch.from_numpy((y - predicted.means) / predicted.scales)
        return cls(z, log_q - torch.from_numpy(predicted.scales).log())

    def nll(self, factor: float) -> float:
        """−Σ_i log p(y_i)."""
        log_density = self.log_weight - 0.5 * (self.z / factor).square()
        each = torch.logsumexp(log_density, 0) - math.log(factor) - _LOG_SQRT_2PI
        return -float(each.sum())


def score(predicted: Mixture, y: Floats) -> dict[str, Any]:
    """RMSE, NLL, CRPS, and coverage and width of central intervals, in original units."""
    parts = predicted.probs, predicted.means, predicted.scales
    intervals = metrics.mixture_intervals(y, *parts, levels=LEVELS)
    return {
        "rmse": metrics.rmse(y, predicted.probs @ predicted.means),
        "nll": metrics.mixture_nll(y, *parts),
        "crps": metrics.mixture_crps(y, *parts),
        "coverage": {f"{one.level:g}": one.coverage for one in intervals},
        "width": {f"{one.level:g}": one.width for one in intervals},
    }
