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
from unbounded.likelihoods.gaussian import NOISES, BalancedGaussian, Gaussian

Floats = NDArray[np.float64]
Expectation = Callable[[Floats], NDArray[Any]]


def expectations(likelihood: Likelihood, log_q: Tensor) -> dict[str, Expectation]:
    """Properties of a prediction, by name, as functions of outputs `(depth, batch, *event)`.

    Args:
        likelihood: of the prediction; of one that is not known here there are none.
        log_q: log q(ℓ) of the depths, `(depth,)`, in double precision, on the CPU.
    """
    q = log_q.exp().numpy()
    if type(likelihood) in (Gaussian, BalancedGaussian):
        assert isinstance(likelihood, Gaussian)
        noise = likelihood.noise
        # The means come first, whatever else a head gives.
        if NOISES.get(type(noise).__name__) is type(noise):
            each = noise.outputs_per_target
            return {"mean": lambda outputs: _average(q, outputs[..., : outputs.shape[2] // each])}
    if type(likelihood) is Categorical:
        return {
            "probs": lambda outputs: _probs(q, outputs),
            "classes": lambda outputs: _probs(q, outputs).argmax(1),
        }
    return {}


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
