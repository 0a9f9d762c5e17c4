"""Real-valued responses: a Gaussian whose mean, and perhaps scale, a head gives."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.likelihoods.base import Likelihood, Prediction

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

_FEW = 1024  # numbers of an output up to which fewer steps are faster than less work in each

Bend = tuple[Sequence[float], Sequence[float]]
"""Knots of a piecewise linear function and its values there."""


class Noise(nn.Module, ABC):
    """Where the scale σ of the noise comes from."""

    outputs_per_target: int = 1
    """How many numbers a head gives for each target."""

    @abstractmethod
    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and scales, broadcastable to `(depth, batch, target)`, from a head's outputs."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this noise."""


class FixedNoise(Noise):
    """σ is known (the authors' code: 1)."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = float(scale)
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be a positive finite number, got {scale}")

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs are the means."""
        return outputs, outputs.new_full((1, 1, 1), self.scale)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this noise."""
        return {"scale": self.scale}


class LearntNoise(Noise):
    """σ is one number per target for all inputs and depths, learnt with the weights.

    After training it may be bent along the mean (`bend`): log σ = log s + f(μ), f piecewise linear
    and constant beyond its knots. Large values may be noisier than small ones; the mean was learnt
    without regard to that, and loses nothing by it.

    Args:
        scale: s before training.
        num_targets: targets, each with its own s.
        bends: for each target the knots of f, ascending, and its values there; None for f = 0.
    """

    _knots: Tensor | None  # (target, knot)
    _values: Tensor | None  # (target, knot): f there

    def __init__(
        self, scale: float = 1.0, num_targets: int = 1, bends: "Sequence[Bend | None]" = ()
    ):
        super().__init__()
        if not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"scale must be a positive finite number, got {scale}")
        self.num_targets = int(num_targets)
        self.log_scale = nn.Parameter(torch.full((self.num_targets,), math.log(scale)))
        self.bend(bends)

    def bend(self, bends: "Sequence[Bend | None]") -> None:
        """Set f for each target, or with nothing take it away.

        Raises:
            ValueError: if the knots of a target are not two or more finite numbers that ascend,
                or its values not as many finite numbers.
        """
        if bends and len(bends) != self.num_targets:
            raise ValueError(f"there are {len(bends)} bends for {self.num_targets} targets")
        self.bends = [None if b is None else (list(b[0]), list(b[1])) for b in bends]
        pairs = [([0.0, 1.0], [0.0, 0.0]) if bend is None else bend for bend in self.bends]
        most = max((len(knots) for knots, _ in pairs), default=0)
        rows: list[list[list[float]]] = [[], []]
        for knots, values in pairs:
            finite = all(map(math.isfinite, (*knots, *values)))
            ascending = all(a < b for a, b in pairwise(knots))
            if len(knots) < 2 or len(values) != len(knots) or not (finite and ascending):
                raise ValueError(
                    "a bend is two or more knots, each larger than the one before, and as many "
                    f"values, all finite: got {knots} and {values}"
                )
            # As long as the longest: a step of no height adds nothing.
            rows[0].append(knots + [knots[-1] + 1.0 + k for k in range(most - len(knots))])
            rows[1].append(values + [values[-1]] * (most - len(values)))
        for name, numbers in zip(("_knots", "_values"), rows, strict=True):
            tensor = torch.tensor(numbers, dtype=torch.float64).to(self.log_scale)
            self.register_buffer(name, tensor if self.bends else None, persistent=False)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs are the means."""
        log_scale = self.log_scale[None, None]
        if self._knots is not None and self._values is not None:
            left, steps = self._knots[:, :-1], self._knots.diff(dim=1)
            # Knots that are one in single precision are a step, not a quotient of zeros.
            steps = steps.clamp(min=torch.finfo(steps.dtype).tiny)
            # f is no reason for a mean to move, should training go on.
            along = ((outputs.detach()[..., None] - left) / steps).clamp(0, 1)
            heights = self._values.diff(dim=1)
            log_scale = log_scale + self._values[:, 0] + (along * heights).sum(-1)
        return outputs, log_scale.exp()

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this noise; s itself travels as a parameter."""
        bends = {"bends": self.bends} if self.bends else {}
        return {"num_targets": self.num_targets, **bends}


class InputNoise(Noise):
    """σ depends on the input: heads give the mean and a number ρ, σ = floor + softplus(ρ)."""

    outputs_per_target = 2

    def __init__(self, floor: float = 1e-3):
        super().__init__()
        self.floor = float(floor)
        if not (self.floor >= 0 and math.isfinite(self.floor)):
            raise ValueError(f"floor must be a finite number of at least 0, got {floor}")

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The first half of the outputs are the means, the second half gives the scales."""
        means, raw = outputs.chunk(2, -1)
        return means, self.floor + F.softplus(raw)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this noise."""
        return {"floor": self.floor}


class ScaledInputNoise(InputNoise):
    """σ(x) = floor + s·softplus(ρ(x)): heads give mean and ρ; s is one learnt number per target.

    s makes the level of the noise a single number, that training finds soon and that can be
    calibrated afterwards.

    Args:
        floor: the smallest σ.
        num_targets: targets, each with its own s.
    """

    def __init__(self, floor: float = 1e-3, num_targets: int = 1):
        super().__init__(floor)
        self.num_targets = int(num_targets)
        self.log_scale = nn.Parameter(torch.zeros(self.num_targets))

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The first half of the outputs are the means, the second half gives the scales."""
        means, raw = outputs.chunk(2, -1)
        return means, self.floor + self.log_scale.exp() * F.softplus(raw)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this noise; s itself travels as a parameter."""
        return {**super().config(), "num_targets": self.num_targets}


NOISES: dict[str, type[Noise]] = {
    cls.__name__: cls for cls in (FixedNoise, LearntNoise, InputNoise, ScaledInputNoise)
}


@dataclass(frozen=True)
class GaussianPrediction(Prediction):
    """A mixture of Gaussians over depths, target by target."""

    def components(self) -> tuple[Tensor, Tensor]:
        """Means and scales of each depth: both `(depth, batch, target)`."""
        assert isinstance(self.likelihood, Gaussian)
        means, scales = self.likelihood.noise.split(self.outputs)
        return means, scales.expand_as(means)

    @property
    def mean(self) -> Tensor:
        """Σ_ℓ q(ℓ) μ_ℓ(x): `(batch, target)`."""
        assert isinstance(self.likelihood, Gaussian)
        return self._average(self.likelihood.noise.split(self.outputs)[0])

    @property
    def noise_variance(self) -> Tensor:
        """Σ_ℓ q(ℓ) σ_ℓ(x)², the part that no depth explains: `(batch, target)`."""
        return self._average(self.components()[1].square())

    @property
    def depth_variance(self) -> Tensor:
        """Σ_ℓ q(ℓ) (μ_ℓ(x) − mean)², how far the depths disagree: `(batch, target)`."""
        means = self.components()[0]
        return self._average((means - self._average(means)).square())

    @property
    def variance(self) -> Tensor:
        """The variance of the mixture, noise plus depth: `(batch, target)`."""
        means, scales = self.components()
        return self._average(scales.square() + (means - self._average(means)).square())

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y): `(…, batch, target)` for y of that shape or one that broadcasts to it."""
        return self._cdf(y, *self.components())

    def _cdf(self, y: Tensor, means: Tensor, scales: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (y.dim() - 2 if y.dim() > 2 else 0) + means.shape[1:]
        z = (y - means.view(shape)) / scales.reshape(shape)
        return self._average(torch.special.ndtr(z))

    def quantile(self, levels: float | Sequence[float] | Tensor) -> Tensor:
        """y with P(Y ≤ y) = level: `(level, batch, target)`, by bisection to full precision."""
        means = self.outputs
        level = torch.as_tensor(levels, dtype=means.dtype, device=means.device)
        if not bool(((level > 0) & (level < 1)).all()):
            raise ValueError(f"quantile levels must be strictly between 0 and 1, got {levels}")
        return self.quantile_at(level, 16 if self.outputs.numel() <= _FEW else 2)

    def quantile_at(self, levels: Tensor, parts: int = 2) -> Tensor:
        """The same for levels `(level,)` that are known to be right; nothing is read from them.

        Args:
            levels: strictly between 0 and 1.
            parts: into how many a bracket is divided at each step; with more there are fewer steps,
                and more work in each.
        """
        means, scales = self.components()
        level = levels.reshape(-1, 1, 1)
        # The quantile of a mixture lies between the smallest and largest of its components'.
        each = means[:, None] + scales[:, None] * torch.special.ndtri(level)
        low = each.amin(0)
        width = each.amax(0) - low
        inner = torch.arange(1, parts, device=means.device, dtype=means.dtype).view(-1, 1, 1, 1)
        bits = 60 if means.dtype == torch.float64 else 30
        for _ in range(math.ceil(bits / math.log2(parts))):
            width = width / parts
            below = self._cdf(low + width * inner, means, scales) < level
            low = low + width * below.to(means.dtype).sum(0)
        return low + width / 2

    def _average(self, values: Tensor) -> Tensor:
        q = self.depth_log_probs.exp().to(values.dtype)
        # As torch.tensordot has it, which takes longer to begin than one row takes.
        return torch.mm(q[None], values.flatten(1)).view(values.shape[1:])


class Gaussian(Likelihood):
    """p(y; Ω) = N(y; μ, σ²), the heads giving μ; targets are independent given x.

    Args:
        noise: `LearntNoise()` (the default), `FixedNoise(scale)`, `InputNoise()` or
            `ScaledInputNoise()`.
    """

    score_name = "rmse"
    higher_is_better = False

    def __init__(self, noise: Noise | None = None):
        super().__init__()
        if noise is not None and not isinstance(noise, Noise):
            raise TypeError(
                "noise must be LearntNoise(), FixedNoise(scale) or InputNoise(), "
                f"got {type(noise).__name__} {noise!r}"
            )
        self.noise = LearntNoise() if noise is None else noise

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, outputs)` and `(batch, target)`, or `(batch,)`, → `(depth, batch)`."""
        if y.dim() == 1:  # one target; else rows would be compared with all other rows
            y = y[:, None]
        return self._log_density(*self.noise.split(outputs), y).sum(-1)

    @staticmethod
    def _log_density(means: Tensor, scales: Tensor, y: Tensor) -> Tensor:
        """Of each target: `(depth, batch, target)`."""
        z = (y - means) / scales
        return -0.5 * z.square() - scales.log() - _LOG_SQRT_2PI

    def guess(self, y: Tensor) -> Tensor:
        """A normal distribution with the targets' mean and variance: `(batch,)`."""
        y = y.double()
        scale = y.std(0, correction=0).clamp(min=1e-12)
        z = (y - y.mean(0)) / scale
        return (-0.5 * z.square() - scale.log() - _LOG_SQRT_2PI).sum(-1)

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> GaussianPrediction:
        """The mixture of Gaussians."""
        return GaussianPrediction(self, outputs, depth_log_probs)

    def num_outputs(self, size: int) -> int:
        """One number for each target, two where the noise depends on the input."""
        return size * self.noise.outputs_per_target

    def score(self, prediction: Prediction, y: Tensor) -> Tensor:
        """The squared error of the mixture's mean: `(batch,)`."""
        assert isinstance(prediction, GaussianPrediction)
        return (prediction.mean - y).square().mean(1)

    def finish_score(self, mean: float) -> float:
        """The root of the mean squared error."""
        return math.sqrt(mean)

    def check_targets(self, y: Tensor) -> Tensor:
        """Finite numbers of shape `(batch, target)`; `(batch,)` stands for one target."""
        y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        if y.dim() == 1:
            y = y[:, None]
        if y.dim() != 2:
            raise ValueError(
                f"targets must have shape (rows,) or (rows, targets), got {tuple(y.shape)}"
            )
        return super().check_targets(y)

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """Heads must give `outputs_per_target` numbers for each target."""
        each = self.noise.outputs_per_target
        targets = y.shape[1] if y is not None else outputs.shape[-1] // each
        if outputs.dim() != 3 or outputs.shape[2] != targets * each:
            raise ValueError(
                f"heads must give {targets * each} numbers a row for {targets} targets with "
                f"{type(self.noise).__name__}, got {tuple(outputs.shape[2:])}"
            )
        scales = self.noise.split(outputs)[1]
        if scales.shape[-1] not in (1, targets):
            raise ValueError(
                f"the noise has {scales.shape[-1]} scales for {targets} targets: "
                f"build it as LearntNoise(num_targets={targets})"
            )

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        name = type(self.noise).__name__
        if NOISES.get(name) is not type(self.noise):
            raise NotImplementedError(
                f"{name} is not built in: pass the likelihood to unbounded.load yourself"
            )
        return {"noise": {"kind": name, **self.noise.config()}}

    @classmethod
    def from_config(cls, noise: dict[str, Any]) -> "Gaussian":
        """The likelihood that `config` describes."""
        arguments = dict(noise)
        return cls(NOISES[arguments.pop("kind")](**arguments))


class BalancedGaussian(Gaussian):
    """A Gaussian with noise that depends on the input, whose slopes are weighed by σ(x)^2β.

    The density is the Gaussian's, with `ScaledInputNoise`. Its slope in the mean is (y − μ)/σ²:
    rows that are badly fitted early are given a large σ, and then hardly pull any more. Multiplying
    each row's slope by σ^2β, divided by its mean over the batch, takes that back in part (β-NLL;
    Seitzer et al., 2022). β = 0 is maximum likelihood; with β = 1 the mean is learnt as by least
    squares. Values are not touched, so that the depth posterior sees the ELBO itself. (With
    micro-batches or several processes the mean over the batch is that of the rows which are
    computed together.)

    Args:
        beta: β, from 0 to 1.
        floor: the smallest σ.
        num_targets: targets, each with a scale of its own.
    """

    def __init__(self, beta: float = 0.5, floor: float = 1e-3, num_targets: int = 1):
        super().__init__(ScaledInputNoise(floor, num_targets))
        if not 0 <= beta <= 1:
            raise ValueError(f"beta must be between 0 and 1, got {beta}")
        self.beta = float(beta)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, 2·target)` and `(batch, target)` → `(depth, batch)`."""
        if y.dim() == 1:
            y = y[:, None]
        means, scales = self.noise.split(outputs)
        log_density = self._log_density(means, scales, y)
        weights = scales.detach().pow(2 * self.beta)
        weights = weights / weights.mean(-2, keepdim=True)
        # The value is log_density, the slope that of weights · log_density.
        weighed = weights * log_density
        return (weighed + (log_density - weighed).detach()).sum(-1)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        return {"beta": self.beta, **self.noise.config()}

    @classmethod
    def from_config(cls, **arguments: Any) -> "BalancedGaussian":  # type: ignore[override]
        """The likelihood that `config` describes."""
        return cls(**arguments)
