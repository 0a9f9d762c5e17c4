"""Mixtures in original units: the noise's calibration on validation rows, and the scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from unbounded import metrics
from unbounded.data.uci import Floats
from unbounded.experiments.uci.recipe import Table
from unbounded.likelihoods.gaussian import GaussianPrediction
from unbounded.model import UDN
from unbounded.predictive import predict

LEVELS = (0.5, 0.9, 0.95)
_FACTORS = np.geomspace(0.5, 100.0, 40)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_ROWS = 8192


@dataclass(frozen=True)
class Mixture:
    """Gaussian mixtures of rows, with common weights, in original units."""

    probs: Floats  # of the components, (component,)
    means: Floats  # (component, rows)
    scales: Floats

    def widened(self, factor: float, least: float = 0.0) -> "Mixture":
        """All scales multiplied, and none less than `least`."""
        return Mixture(self.probs, self.means, np.maximum(self.scales * factor, least))


class HeldOut(NamedTuple):
    """Rows that a network was not trained on."""

    predicted: Mixture
    y: Floats  # their targets, (rows,)
    least: float = 0.0  # no scale is less than this


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


def calibrate(held_out: Sequence[HeldOut]) -> tuple[float, float]:
    """The factor of all scales with the least mean NLL on held-out rows, and that NLL.

    The NLL is infinite if a prediction is no number.
    """
    parts = [
        (torch.from_numpy(p.probs).log()[:, None], torch.from_numpy(y - p.means), p.scales, least)
        for p, y, least in held_out
    ]
    if not all(torch.isfinite(e).all() and np.isfinite(s).all() for _, e, s, _ in parts):
        return 1.0, math.inf
    count = sum(len(one.y) for one in held_out)

    def mean_nll(factor: float) -> float:
        total = 0.0
        for log_q, errors, own, least in parts:
            scales = (torch.from_numpy(own) * factor).clamp_(min=least)
            log_density = log_q - 0.5 * (errors / scales).square() - scales.log()
            total -= float((torch.logsumexp(log_density, 0) - _LOG_SQRT_2PI).sum())
        return total / count

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
