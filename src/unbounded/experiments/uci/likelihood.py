"""Input-dependent noise that does not let the network give up on difficult rows."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.likelihoods import Gaussian
from unbounded.likelihoods.gaussian import Noise


class ScaledInputNoise(Noise):
    """σ(x) = floor + s·softplus(ρ(x)): heads give the mean and ρ; s is one learnt number."""

    outputs_per_target = 2

    def __init__(self, floor: float = 1e-3):
        super().__init__()
        self.floor = float(floor)
        self.log_scale = nn.Parameter(torch.zeros(1))

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The first half of the outputs are the means, the second half gives the scales."""
        means, raw = outputs.chunk(2, -1)
        return means, self.floor + self.log_scale.exp() * F.softplus(raw)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this noise."""
        return {"floor": self.floor}


class BalancedGaussian(Gaussian):
    """A Gaussian with input-dependent noise whose slopes are weighed by σ(x)^2β.

    The density is the Gaussian's. Its slope in the mean is (y − μ)/σ², so that rows which are
    badly fitted early are given a large σ and then hardly pull any more. Multiplying each row's
    slope by σ^2β, divided by its mean over the batch, takes that back in part (β-NLL; Seitzer et
    al., 2022): β = 0 is maximum likelihood, β = 1 pulls like least squares. Values are not
    touched, so that the depth posterior sees the ELBO itself.

    Args:
        beta: β.
        floor: the smallest σ.
    """

    def __init__(self, beta: float = 0.5, floor: float = 1e-3):
        super().__init__(ScaledInputNoise(floor))
        if not 0 <= beta <= 1:
            raise ValueError(f"beta must be between 0 and 1, got {beta}")
        self.beta = float(beta)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, 2)` and `(batch, 1)` → `(depth, batch)`."""
        log_prob = super().log_prob(outputs, y)
        scales = self.noise.split(outputs)[1].detach().squeeze(-1)
        weights = scales.pow(2 * self.beta)
        weights = weights / weights.mean(-1, keepdim=True)
        # The value is log_prob, the slope that of weights · log_prob.
        weighed = weights * log_prob
        return weighed + (log_prob - weighed).detach()

    def config(self) -> dict[str, Any]:
        """What tells two of them apart."""
        return {"beta": self.beta, **self.noise.config()}
