"""Neural ODEs (Chen et al., 2018) and augmented ones (Dupont et al., 2019).

Two forms of each. The bare one is that of Dupont et al.: the image itself is the state, an ODE
moves it for a unit of time, and a linear map of all its pixels is the head. In the other form, in
which people use them, convolutions halve the image twice and the ODE moves their features.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.baselines.whole import Whole, extra
from unbounded.layers import init as inits
from unbounded.layers.convolutional import BasicBlock, LayerShape, Stem, he_

MOST_STEPS = 1000
"""Of a solver that adapts: one that takes more has lost its way."""
STEPS = 8
"""Of a solver that does not."""
_VECTOR = 8
"""Channels that a GPU reads at once, in 16 bits; other counts are several times as slow."""


class Solved(Whole):
    """A network with an ODE in it, and how that is solved; the arguments are those of `BareODE`."""

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        solver: str,
        tolerance: float,
        adjoint: bool,
        steps: int,
    ):
        super().__init__(in_channels, out_features)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.solver, self.tolerance = solver, tolerance
        self.adjoint, self.steps = adjoint, steps
        if not self.has_fixed_steps:
            extra("torchdiffeq")  # before any training

    @property
    def has_fixed_steps(self) -> bool:  # type: ignore[override]
        """Whether a CUDA graph can hold it: what adapts, or goes by torchdiffeq, asks the host."""
        return is_ours(self.solver, self.adjoint)

    def solved(self, slope: nn.Module) -> "ODE":
        """The ODE of a right-hand side."""
        return ODE(slope, self.solver, self.tolerance, self.adjoint, self.steps)


class BareODE(Solved):
    """NODE, or with `augment` ANODE, as Dupont et al. have it on images.

    The defaults are theirs for NODE on CIFAR-10; for ANODE they take 64 filters and 10 channels
    more.

    Args:
        in_channels: of the images.
        out_features: size of the head's output.
        size: height and width of the images, of which the head has weights for each pixel.
        filters: channels inside the right-hand side.
        augment: channels of zeros that are added to the image.
        solver: "rk4", whose steps are fixed: it needs no further package and can be a CUDA graph;
            or one of torchdiffeq.
        tolerance: absolute and relative, of solvers that adapt.
        adjoint: gradients by the adjoint ODE, solved backwards, in place of those of the solver's
            own steps: less memory, and only as exact as the tolerance.
        steps: of solvers that do not adapt.
    """

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
        steps: int = STEPS,
    ):
        super().__init__(in_channels, out_features, solver, tolerance, adjoint, steps)
        self.size, self.filters, self.augment = size, filters, augment

    @property
    def num_features(self) -> int:
        """Numbers of the state: channels times pixels."""
        return (self.in_channels + self.augment) * math.prod(self.size)

    def features(self) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, num_features)`."""
        channels = self.in_channels + self.augment
        slope = PixelSlope(channels, self.filters)
        return nn.Sequential(Augmented(self.augment), self.solved(slope), nn.Flatten())

    def head(self, depth: int) -> nn.Module:
        """A linear map of all numbers of the state."""
        head = nn.Linear(self.num_features, self.out_features)
        inits.zero(head)
        return head


class StemODE(Solved):
    """NODE, or with `augment` ANODE, on features of a convolutional stem with downsampling.

    A stem, two residual blocks with stride 2, an ODE whose right-hand side has two convolutions
    with group normalisation and sees the time, then a normalisation and a mean over the image.

    Args:
        in_channels: of the images.
        out_features: size of the head's output.
        width: channels of the stem; the ODE has four times as many.
        augment: channels of zeros that are added to its state.
        solver: as of `BareODE`.
        tolerance: absolute and relative, of solvers that adapt.
        adjoint: as of `BareODE`.
        steps: of solvers that do not adapt.
    """

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
        steps: int = STEPS,
    ):
        super().__init__(in_channels, out_features, solver, tolerance, adjoint, steps)
        self.width, self.augment = width, augment

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
            self.solved(slope),
            group_norm(channels),
            nn.ReLU(),
        )


class DenseODE(Solved):
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
        solver: as of `BareODE`; with "rk4" it can be part of a population, too.
        tolerance: absolute and relative, of solvers that adapt.
        adjoint: as of `BareODE`.
        steps: of solvers that do not adapt.
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
        steps: int = STEPS,
    ):
        super().__init__(in_features, out_features, solver, tolerance, adjoint, steps)
        self.width, self.augment, self.init = width, augment, init

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
        return nn.Sequential(Augmented(self.augment), self.solved(Autonomous(slope)))

    def head(self, depth: int) -> nn.Module:
        """A linear map."""
        return nn.Linear(self.num_features, self.out_features)


class ODE(nn.Module):
    """h(0) ↦ h(1) of dh/dt = slope(t, h).

    The state is in single precision at least. So is the slope where a solver adapts: what a lower
    one rounds off looks like an error of the step, and it would take ever smaller ones. Where steps
    are fixed, the slope may be computed in 16 bits.

    Args:
        slope: a module that is called with the time, a scalar, and the state.
        solver: "rk4" or another one of torchdiffeq.
        tolerance: absolute and relative.
        adjoint: as of `BareODE`.
        steps: of solvers that do not adapt.
    """

    def __init__(
        self,
        slope: nn.Module,
        solver: str = "dopri5",
        tolerance: float = 1e-3,
        adjoint: bool = False,
        steps: int = STEPS,
    ):
        super().__init__()
        self.slope = slope
        self.solver, self.tolerance = solver, tolerance
        self.adjoint, self.steps = adjoint, steps

    # Compiled are the slopes, all by the same code, and not their sequence.
    @torch.compiler.disable(recursive=False)
    def forward(self, input: Tensor) -> Tensor:
        """The state after a unit of time, of the input's shape.

        Raises:
            FloatingPointError: if the solver finds no way.
        """
        state = input if input.dtype == torch.float64 else input.float()
        if is_ours(self.solver, self.adjoint):
            return runge_kutta(self.slope, state, self.steps)
        return self._by_package(state)

    @torch.compiler.disable
    def _by_package(self, state: Tensor) -> Tensor:
        solvers = extra("torchdiffeq")
        adapts = self.solver in _ADAPTIVE
        options = {"max_num_steps": MOST_STEPS} if adapts else {"step_size": 1 / self.steps}
        solve = solvers.odeint_adjoint if self.adjoint else solvers.odeint
        times = torch.tensor([0.0, 1.0], dtype=state.dtype, device=state.device)
        with torch.autocast(state.device.type, enabled=False):
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


def is_ours(solver: str, adjoint: bool) -> bool:
    """Whether an ODE is solved by `runge_kutta`, and not by torchdiffeq."""
    return solver == "rk4" and not adjoint


@torch.compiler.disable(recursive=False)
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
        first = slope(start, state).to(state.dtype)
        second = slope(middle, torch.add(state, first, alpha=0.5 * size)).to(state.dtype)
        third = slope(middle, torch.add(state, second, alpha=0.5 * size)).to(state.dtype)
        last = slope(end, torch.add(state, third, alpha=size)).to(state.dtype)
        total = torch.add(first + last, second + third, alpha=2)
        state = torch.add(state, total, alpha=size / 6)
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


class PixelSlope(nn.Module):
    """Three convolutions, 1×1, 3×3 and 1×1, with ReLUs between them; it does not see the time."""

    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 1)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1)
        self.conv3 = nn.Conv2d(filters, channels, 1)

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        """dh/dt."""
        channels = state.shape[1]
        hidden = F.pad(state, (0, 0, 0, 0, 0, -channels % _VECTOR))
        hidden = torch.relu(_filled(self.conv1, hidden))
        hidden = torch.relu(_filled(self.conv2, hidden))
        return _filled(self.conv3, hidden)[:, :channels]


def _filled(conv: nn.Conv2d, state: Tensor) -> Tensor:
    """A convolution with channels of zeros that fill vectors: the same numbers, and faster."""
    outputs, inputs = (-count % _VECTOR for count in conv.weight.shape[:2])
    weight = F.pad(conv.weight, (0, 0, 0, 0, 0, inputs, 0, outputs))
    bias = None if conv.bias is None else F.pad(conv.bias, (0, outputs))
    return F.conv2d(state, weight, bias, padding=conv.padding)


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
        hidden = _timed(self.conv1, time, torch.relu(self.norm1(state)))
        hidden = _timed(self.conv2, time, torch.relu(self.norm2(hidden)))
        found: Tensor = self.norm3(hidden)
        return found


def _timed(conv: nn.Conv2d, time: Tensor, state: Tensor) -> Tensor:
    """The convolution of the state with one more channel, the time everywhere.

    That channel is the same for all images: it is convolved once, and its weights apart.
    """
    found = F.conv2d(state, conv.weight[:, :-1], conv.bias, padding=1)
    ones = state.new_ones(1, 1, *state.shape[2:])
    return found + time.to(found.dtype) * F.conv2d(ones, conv.weight[:, -1:], padding=1)


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
