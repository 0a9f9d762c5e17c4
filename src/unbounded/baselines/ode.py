"""Neural ODEs (Chen et al., 2018) and augmented ones (Dupont et al., 2019), by torchdiffeq.

Two forms of each. The bare one is that of Dupont et al.: the image itself is the state, an ODE
moves it for a unit of time, and a linear map of all its pixels is the head. In the other form, in
which people use them, convolutions halve the image twice and the ODE moves their features.
"""

import itertools
import math

import torch
from torch import Tensor, nn

from unbounded.baselines.whole import Whole, extra
from unbounded.layers import init as inits
from unbounded.layers.convolutional import BasicBlock, LayerShape, Stem, he_

MOST_STEPS = 1000
"""Of a solver that adapts: one that takes more has lost its way."""
STEPS = 8
"""Of a solver that does not."""


class BareODE(Whole):
    """NODE, or with `augment` ANODE, as Dupont et al. have it on images.

    The defaults are theirs for NODE on CIFAR-10; for ANODE they take 64 filters and 10 channels
    more.

    Args:
        in_channels: of the images.
        out_features: size of the head's output.
        size: height and width of the images, of which the head has weights for each pixel.
        filters: channels inside the right-hand side.
        augment: channels of zeros that are added to the image.
        solver: of torchdiffeq.
        tolerance: absolute and relative, of solvers that adapt.
        adjoint: gradients by the adjoint ODE, solved backwards, in place of those of the solver's
            own steps: less memory, and only as exact as the tolerance.
    """

    has_fixed_steps = False

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        *,
        size: tuple[int, int] = (32, 32),
        filters: int = 125,
        augment: int = 0,
        solver: str = "dopri5",
        tolerance: float = 1e-3,
        adjoint: bool = False,
    ):
        super().__init__(in_channels, out_features)
        self.size, self.filters, self.augment = size, filters, augment
        self.solver, self.tolerance, self.adjoint = solver, tolerance, adjoint
        extra("torchdiffeq")  # before any training

    @property
    def num_features(self) -> int:
        """Numbers of the state: channels times pixels."""
        return (self.in_channels + self.augment) * math.prod(self.size)

    def features(self) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, num_features)`."""
        channels = self.in_channels + self.augment
        slope = nn.Sequential(
            nn.Conv2d(channels, self.filters, 1),
            nn.ReLU(),
            nn.Conv2d(self.filters, self.filters, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(self.filters, channels, 1),
        )
        block = ODE(Autonomous(slope), self.solver, self.tolerance, self.adjoint)
        return nn.Sequential(Augmented(self.augment), block, nn.Flatten())

    def head(self, depth: int) -> nn.Module:
        """A linear map of all numbers of the state."""
        head = nn.Linear(self.num_features, self.out_features)
        inits.zero(head)
        return head


class StemODE(Whole):
    """NODE, or with `augment` ANODE, on features of a convolutional stem with downsampling.

    A stem, two residual blocks with stride 2, an ODE whose right-hand side has two convolutions
    with group normalisation and sees the time, then a normalisation and a mean over the image.

    Args:
        in_channels: of the images.
        out_features: size of the head's output.
        width: channels of the stem; the ODE has four times as many.
        augment: channels of zeros that are added to its state.
        solver: of torchdiffeq.
        tolerance: absolute and relative, of solvers that adapt.
        adjoint: as of `BareODE`.
    """

    has_fixed_steps = False

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        *,
        width: int = 64,
        augment: int = 0,
        solver: str = "dopri5",
        tolerance: float = 1e-3,
        adjoint: bool = False,
    ):
        super().__init__(in_channels, out_features)
        self.width, self.augment = width, augment
        self.solver, self.tolerance, self.adjoint = solver, tolerance, adjoint
        extra("torchdiffeq")

    @property
    def num_features(self) -> int:
        """Channels of the state."""
        return 4 * self.width + self.augment

    def features(self) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, num_features, height/4, width/4)`."""
        width, channels = self.width, self.num_features
        stem = nn.Sequential(
            Stem(self.in_channels, width),
            BasicBlock(LayerShape(width, 2 * width, 2 * width, 2)),
            BasicBlock(LayerShape(2 * width, 4 * width, 4 * width, 2)),
        )
        slope = TimedSlope(channels)
        for part in (stem, slope):
            he_(part)
        return nn.Sequential(
            stem,
            Augmented(self.augment),
            ODE(slope, self.solver, self.tolerance, self.adjoint),
            group_norm(channels),
            nn.ReLU(),
        )


class DenseODE(Whole):
    """NODE, or with `augment` ANODE, on plain numbers, as Dupont et al. have it on toy problems.

    The input itself is the state; an ODE moves it for a unit of time, with a right-hand side of two
    hidden layers, and the head is a linear map of where it ends. Without `augment` the way from
    input to end is a homeomorphism: what lies around something else stays around it.

    Args:
        in_features: of the input.
        out_features: size of the head's output.
        width: of the hidden layers of the right-hand side.
        augment: zeros that are added to the input.
        init: of all linear maps but the head.
        solver: "rk4", eight steps, which need no further package and can be part of a population
            or a CUDA graph; or one of torchdiffeq.
        tolerance: absolute and relative, of solvers that adapt.
        adjoint: as of `BareODE`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int = 32,
        augment: int = 0,
        init: str | inits.Init = "default",
        solver: str = "rk4",
        tolerance: float = 1e-3,
        adjoint: bool = False,
    ):
        super().__init__(in_features, out_features)
        self.width, self.augment, self.init = width, augment, init
        self.solver, self.tolerance, self.adjoint = solver, tolerance, adjoint
        self.has_fixed_steps = solver == "rk4" and not adjoint
        if not self.has_fixed_steps:
            extra("torchdiffeq")

    @property
    def num_features(self) -> int:
        """Numbers of the state."""
        return self.in_channels + self.augment

    def features(self) -> nn.Module:
        """`(batch, in_features)` → `(batch, num_features)`."""
        sizes = (self.num_features, self.width, self.width, self.num_features)
        maps = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        for linear in maps:
            inits.resolve(self.init)(linear)
        slope = nn.Sequential(maps[0], nn.ReLU(), maps[1], nn.ReLU(), maps[2])
        block = ODE(Autonomous(slope), self.solver, self.tolerance, self.adjoint)
        return nn.Sequential(Augmented(self.augment), block)

    def head(self, depth: int) -> nn.Module:
        """A linear map."""
        return nn.Linear(self.num_features, self.out_features)


class ODE(nn.Module):
    """h(0) ↦ h(1) of dh/dt = slope(t, h).

    In single precision at least: what a lower one rounds off looks like an error of the step, and a
    solver that adapts would take ever smaller ones.

    Args:
        slope: a module that is called with the time, a scalar, and the state.
        solver: "rk4" or another one of torchdiffeq; one with fixed steps takes eight.
        tolerance: absolute and relative.
        adjoint: as of `BareODE`.
    """

    def __init__(
        self,
        slope: nn.Module,
        solver: str = "dopri5",
        tolerance: float = 1e-3,
        adjoint: bool = False,
    ):
        super().__init__()
        self.slope = slope
        self.solver, self.tolerance, self.adjoint = solver, tolerance, adjoint

    @torch.compiler.disable
    def forward(self, input: Tensor) -> Tensor:
        """The state after a unit of time, of the input's shape.

        Raises:
            FloatingPointError: if the solver finds no way.
        """
        with torch.autocast(input.device.type, enabled=False):
            state = input if input.dtype == torch.float64 else input.float()
            if self.solver == "rk4" and not self.adjoint:
                return runge_kutta(self.slope, state, STEPS)
            solvers = extra("torchdiffeq")
            adapts = self.solver in _ADAPTIVE
            options = {"max_num_steps": MOST_STEPS} if adapts else {"step_size": 1 / STEPS}
            solve = solvers.odeint_adjoint if self.adjoint else solvers.odeint
            times = torch.tensor([0.0, 1.0], dtype=state.dtype, device=state.device)
            try:
                found: Tensor = solve(
                    self.slope,
                    state,
                    times,
                    rtol=self.tolerance,
                    atol=self.tolerance,
                    method=self.solver,
                    options=options,
                )
            except AssertionError as error:  # so it tells of too many steps, or too small ones
                raise FloatingPointError(f"the ODE could not be solved: {error}") from None
        return found[1]


_ADAPTIVE = frozenset({"dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun"})


def runge_kutta(slope: nn.Module, state: Tensor, steps: int) -> Tensor:
    """h(1) by so many steps of the classical method of fourth order.

    Unlike torchdiffeq's, it writes into no tensor and asks the device nothing: many networks can be
    solved at once by `torch.func.vmap`, and a CUDA graph can hold it.
    """
    size = 1 / steps
    for number in range(steps):
        start, middle, end = (
            state.new_full((), (number + share) * size) for share in (0.0, 0.5, 1.0)
        )
        first = slope(start, state)
        second = slope(middle, state + 0.5 * size * first)
        third = slope(middle, state + 0.5 * size * second)
        last = slope(end, state + size * third)
        state = state + (size / 6) * (first + 2 * (second + third) + last)
    return state


class Autonomous(nn.Module):
    """A right-hand side that does not look at the time."""

    def __init__(self, slope: nn.Module):
        super().__init__()
        self.slope = slope

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        """dh/dt."""
        found: Tensor = self.slope(state)
        return found


class TimedSlope(nn.Module):
    """Twice: group normalisation, ReLU, a convolution 3×3 with the time as a further channel."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm1, self.norm2 = group_norm(channels), group_norm(channels)
        self.conv1 = nn.Conv2d(channels + 1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels + 1, channels, 3, padding=1)
        self.norm3 = group_norm(channels)

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        """dh/dt."""
        hidden = self.conv1(_timed(time, torch.relu(self.norm1(state))))
        hidden = self.conv2(_timed(time, torch.relu(self.norm2(hidden))))
        found: Tensor = self.norm3(hidden)
        return found


def _timed(time: Tensor, state: Tensor) -> Tensor:
    return torch.cat([state, time.to(state.dtype).expand_as(state[:, :1])], 1)


class Augmented(nn.Module):
    """Channels of zeros behind those of the image."""

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, channel, height, width)` → the same with more channels."""
        if not self.channels:
            return input
        rows, _, *size = input.shape
        return torch.cat([input, input.new_zeros(rows, self.channels, *size)], 1)


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with up to 32 groups of equal size, of four channels at least."""
    fitting = (g for g in (32, 16, 8, 4, 2) if channels % g == 0 and channels // g >= 4)
    groups = next(fitting, 1)
    return nn.GroupNorm(groups, channels)
