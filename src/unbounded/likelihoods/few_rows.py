"""What a mixture expects of few rows, in NumPy: there torch takes longer to begin than to compute.

For likelihoods of ours alone: a class that is derived from one may predict something else.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unbounded.likelihoods.base import Likelihood
from unbounded.likelihoods.categorical import Categorical
from unbounded.likelihoods.gaussian import (
    NOISES,
    BalancedGaussian,
    FixedNoise,
    Gaussian,
    InputNoise,
    LearntNoise,
    Noise,
    ScaledInputNoise,
)

Floats = NDArray[np.float64]
Expectation = Callable[[Floats], Any]


def expectations(likelihood: Likelihood, log_q: Tensor) -> dict[str, Expectation]:
    """Properties of a prediction, by name, as functions of outputs `(depth, batch, *event)`.

    Of numbers there is "mean" and, for most kinds of noise, "mean and std", a pair; of classes
    there are "probs" and "classes".

    Args:
        likelihood: of the prediction; of one that is not known here there are none.
        log_q: log q(ℓ) of the depths, `(depth,)`, in double precision, on the CPU.
    """
    q = log_q.exp().numpy()
    if type(likelihood) in (Gaussian, BalancedGaussian):
        assert isinstance(likelihood, Gaussian)
        noise = likelihood.noise
        if NOISES.get(type(noise).__name__) is type(noise):
            return _of_numbers(q, noise)
    if type(likelihood) is Categorical:
        return {
            "probs": lambda outputs: _probs(q, outputs),
            "classes": lambda outputs: _probs(q, outputs).argmax(1),
        }
    return {}


def _of_numbers(q: Floats, noise: Noise) -> dict[str, Expectation]:
    each, scales_of = noise.outputs_per_target, _scales(noise)

    def means(outputs: Floats) -> Floats:  # they come first, whatever else a head gives
        return outputs[..., : outputs.shape[2] // each]

    def moments(outputs: Floats) -> tuple[Floats, Floats]:
        assert scales_of is not None
        own = means(outputs)
        mean = _average(q, own)
        spread = own - mean
        spread *= spread
        scales = scales_of(outputs[..., own.shape[2] :])
        spread += scales * scales
        return mean, np.sqrt(_average(q, spread))

    found: dict[str, Expectation] = {"mean": lambda outputs: _average(q, means(outputs))}
    return found if scales_of is None else found | {"mean and std": moments}


def _scales(noise: Noise) -> Callable[[Floats], Floats] | None:
    """σ from what heads give beside the means; None where it follows the mean."""
    if isinstance(noise, FixedNoise):
        fixed = np.full(1, noise.scale)
        return lambda raw: fixed
    if isinstance(noise, LearntNoise):
        learnt = noise.log_scale.detach().exp().numpy()
        return None if noise.bends else lambda raw: learnt
    if isinstance(noise, InputNoise):
        floor, scale = noise.floor, np.ones(1)
        if isinstance(noise, ScaledInputNoise):
            scale = noise.log_scale.detach().exp().numpy()
        return lambda raw: floor + scale * _softplus(raw)
    return None


def _softplus(x: Floats) -> Floats:
    """log(1 + exp(x)); from 20 on x itself, as torch has it."""
    return np.where(x > 20.0, x, np.log1p(np.exp(np.minimum(x, 20.0))))


def _average(q: Floats, values: Floats) -> Floats:
    """Σ_ℓ q(ℓ) v_ℓ: `(depth, batch, …)` → `(batch, …)`."""
    found: Floats = np.dot(q, values.reshape(len(q), -1)).reshape(values.shape[1:])
    return found


def _probs(q: Floats, outputs: Floats) -> Floats:
    """Σ_ℓ q(ℓ) softmax(Ω_ℓ): `(batch, class)`, none above 1, whatever rounding did."""
    each = outputs - outputs.max(2, keepdims=True)
    np.exp(each, out=each)
    each /= each.sum(2, keepdims=True)
    mixed = _average(q, each)
    mixed /= mixed.sum(1, keepdims=True)
    return mixed
