"""Priors p(ℓ) on the depth and p(θ) on the weights, each normalised."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class DepthPrior(ABC):
    """p(ℓ), the prior μ of the paper's section 2, on ℓ = 1, 2, …"""

    max_depth: int | None = None
    """The largest depth with mass, or None where there is none."""

    @abstractmethod
    def log_prob(self, depth: Tensor) -> Tensor:
        """log p(ℓ), elementwise: the shape of `depth`, in double precision."""

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this prior."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the prior to unbounded.load yourself"
        )

    def __repr__(self) -> str:
        try:
            arguments = ", ".join(f"{key}={value}" for key, value in self.config().items())
        except NotImplementedError:
            arguments = "…"
        return f"{type(self).__name__}({arguments})"


class PoissonDepth(DepthPrior):
    """ℓ−1 ~ Poisson(`rate`), the paper's prior (α = 0.5 on the spirals, 1 on CIFAR-10)."""

    def __init__(self, rate: float = 0.5):
        self.rate = _positive("rate", rate)

    def log_prob(self, depth: Tensor) -> Tensor:
        """(ℓ−1) log α − α − log (ℓ−1)!"""
        count = depth.double() - 1
        log_prob = count * math.log(self.rate) - self.rate - torch.lgamma(count + 1)
        return log_prob.where(count >= 0, -torch.inf)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this prior."""
        return {"rate": self.rate}


class GeometricDepth(DepthPrior):
    """p(ℓ) = p (1−p)^(ℓ−1): a constant price in nats for every further layer."""

    def __init__(self, prob: float = 0.5):
        self.prob = float(prob)
        if not 0 < self.prob < 1:
            raise ValueError(f"prob must be strictly between 0 and 1, got {prob}")

    @classmethod
    def priced(cls, nats: float) -> "GeometricDepth":
        """The one in which a further layer costs so many nats: p = 1 − exp(−nats).

        A layer is then worth having if it raises the log-likelihood of all n data points
        together by more than that.
        """
        if not 0 < nats <= 30:
            raise ValueError(f"nats must be positive and at most 30, got {nats}")
        return cls(-math.expm1(-nats))

    def log_prob(self, depth: Tensor) -> Tensor:
        """log p + (ℓ−1) log (1−p)"""
        count = depth.double() - 1
        log_prob = math.log(self.prob) + count * math.log1p(-self.prob)
        return log_prob.where(count >= 0, -torch.inf)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this prior."""
        return {"prob": self.prob}


class UniformDepth(DepthPrior):
    """p(ℓ) = 1/D on 1 … D. Proper, hence bounded: it goes with a bounded family."""

    def __init__(self, max_depth: int):
        if int(max_depth) != max_depth or max_depth < 1:
            raise ValueError(f"max_depth must be an integer of at least 1, got {max_depth!r}")
        self.max_depth: int = int(max_depth)

    def log_prob(self, depth: Tensor) -> Tensor:
        """−log D inside, −∞ outside."""
        inside = (depth >= 1) & (depth <= self.max_depth)
        constant = torch.full_like(depth, -math.log(self.max_depth), dtype=torch.float64)
        return constant.where(inside, -torch.inf)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this prior."""
        return {"max_depth": self.max_depth}


class WeightPrior(ABC):
    """p(θ) and the fixed shape of q(θ; ν): what the weights cost, in nats.

    A prior of your own implements `kl`.
    """

    precision: float | None = None
    """1/s² where the gradient of the KL in ν is ν/s², so that no autograd is needed for it."""

    @abstractmethod
    def kl(self, parameters: Sequence[Tensor]) -> Tensor:
        """KL(q(θ_p; ν_p) ‖ p(θ_p)) of each tensor ν_p: shape `(len(parameters),)`.

        Models of a stack run it by `torch.func.vmap`.
        """

    def constant(self, size: int) -> float:
        """The KL of `size` numbers at 0, where `precision` gives the rest."""
        return float(self.kl([torch.zeros(size)]).sum())

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this prior."""
        raise NotImplementedError(
            f"{type(self).__name__} has no config(): pass the prior to unbounded.load yourself"
        )


class GaussianWeights(WeightPrior):
    """θ ~ N(0, s²I), with q(θ; ν) = N(ν, t²I).

    With t = s (the default, and the paper's choice at s = 1) the divergence is
    ‖ν‖²/(2s²) exactly. With another t the constant d·(t²/s² − 1 − log t²/s²)/2 of each tensor
    counts too: it differs from depth to depth and so moves λ.

    Args:
        scale: s.
        posterior_scale: t; s itself where it is not given.
    """

    def __init__(self, scale: float = 1.0, posterior_scale: float | None = None):
        self.scale = _positive("scale", scale, *_SCALES)
        self.precision = 1 / self.scale**2
        self.posterior_scale = (
            None
            if posterior_scale is None
            else _positive("posterior_scale", posterior_scale, *_SCALES)
        )

    def kl(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖ν_p‖²/(2s²) plus the constant above: shape `(len(parameters),)`."""
        quadratic = squared_norms(parameters) / (2 * self.scale**2)
        if self.posterior_scale is None:
            return quadratic
        ratio = (self.posterior_scale / self.scale) ** 2
        sizes = torch.tensor(
            [p.numel() for p in parameters], dtype=quadratic.dtype, device=quadratic.device
        )
        return quadratic + sizes * ((ratio - 1 - math.log(ratio)) / 2)

    def log_prob(self, parameter: Tensor) -> Tensor:
        """log N(θ; 0, s²I), normalised: a scalar."""
        quadratic = -parameter.square().sum() / (2 * self.scale**2)
        return quadratic - parameter.numel() * math.log(self.scale * math.sqrt(2 * math.pi))

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this prior."""
        return {"scale": self.scale, "posterior_scale": self.posterior_scale}


def squared_norms(parameters: Sequence[Tensor]) -> Tensor:
    """‖ν_p‖² of each tensor: shape `(len(parameters),)`, in a few calls however many there are."""
    if not parameters:
        return torch.zeros(0)
    if not torch.is_grad_enabled():
        return _squared_norms(parameters)
    result: Tensor = _SquaredNorms.apply(*parameters)
    return result


class _SquaredNorms(torch.autograd.Function):
    """All squared norms at once. Left to autograd this takes three nodes for every tensor."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return _squared_norms(parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (grad,) = grads
        saved = ctx.saved_tensors
        factors = (2 * grad).to(saved[0].dtype).unbind()
        return tuple(torch._foreach_mul(saved, factors))


def _squared_norms(parameters: Sequence[Tensor]) -> Tensor:
    low = any(p.element_size() < 4 for p in parameters)  # sums in half precision overflow
    dtype = torch.float32 if low else None
    return torch.stack(torch._foreach_norm(list(parameters), dtype=dtype)).square_()


# Squares of these, and ratios of the squares, are numbers that have a logarithm.
_SCALES = 1e-75, 1e75


def _positive(name: str, value: float, least: float = 1e-300, most: float = 1e300) -> float:
    value = float(value)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive finite number, got {value}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g}, got {value}")
    return value
