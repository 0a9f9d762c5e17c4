"""Multiscale deep equilibrium networks, MDEQ (Bai et al., 2020).

The features are a fixed point z = f(z, x) of one block over several resolutions at once. It is
found by iteration without gradients; a few damped steps from there with gradients are the "phantom
gradient" (Geng et al., 2021), or the implicit function theorem gives that of the point itself.

In one thing this is not the network of Bai et al.: the image goes into every resolution, not into
the finest alone, and the block begins as a contraction. Where a resolution has no other input, its
normalisation brings what is noise at first to full size, and the untrained network has no fixed
point that 50 iterations of any of the solvers come near to.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.baselines.ode import group_norm
from unbounded.baselines.whole import Whole, extra
from unbounded.layers.convolutional import Norm, Pointwise, he_, pooled

GRADIENTS = ("phantom", "implicit")
REPEAT = "repeat"
"""The solver that is here, and not of torchdeq."""


class MDEQ(Whole):
    """A fixed point over several resolutions, each half of the one before, and a head on all.

    Args:
        in_channels: of the images.
        out_features: size of the head's output.
        channels: of each resolution, the first that of the image.
        expansion: channels inside a block are so many times those outside.
        readout: channels that the head sees of each resolution.
        gradient: "phantom" or "implicit".
        solver: of torchdeq: "fixed_point_iter", "anderson" or "broyden"; or "repeat", f so many
            times whatever the residual, which needs no further package and can be a CUDA graph.
        tolerance: of ‖f(z) − z‖ / ‖f(z)‖, for each image.
        iterations: no more than so many of the solver; of "repeat" exactly so many.
        phantom_steps: with gradients, from the fixed point.
        damping: of these steps.
    """

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        *,
        channels: tuple[int, ...] = (32, 64, 128, 256),
        expansion: int = 5,
        readout: int = 256,
        gradient: str = "phantom",
        solver: str = "fixed_point_iter",
        tolerance: float = 1e-3,
        iterations: int = 18,
        phantom_steps: int = 5,
        damping: float = 0.5,
    ):
        super().__init__(in_channels, out_features)
        if gradient not in GRADIENTS:
            raise ValueError(f"gradient must be one of {GRADIENTS}, got {gradient!r}")
        self.channels, self.expansion, self.readout = channels, expansion, readout
        self.solving: dict[str, Any] = {
            "gradient": gradient,
            "solver": solver,
            "tolerance": tolerance,
            "iterations": iterations,
            "phantom_steps": phantom_steps,
            "damping": damping,
        }
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        if solver == REPEAT and gradient != "phantom":
            raise ValueError(f"the solver {REPEAT!r} has a phantom gradient, got {gradient!r}")
        if solver != REPEAT:
            extra("torchdeq")

    @property
    def has_fixed_steps(self) -> bool:  # type: ignore[override]
        """Whether a CUDA graph can hold it: a solver that looks at residuals asks the host."""
        return bool(self.solving["solver"] == REPEAT)

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        found = super().config()
        solving = found.pop("solving")
        return {**found, **solving}

    @property
    def num_features(self) -> int:
        """Channels of all resolutions together."""
        return self.readout * len(self.channels)

    def features(self) -> nn.Module:
        """`(batch, channel, height, width)` → `(batch, num_features)`."""
        block = Multiscale(self.channels, self.expansion)
        point = FixedPoint(block, **self.solving)
        network = Equilibrium(self.in_channels, self.channels, point, self.readout)
        he_(network)
        block.contract()
        return network


class Equilibrium(nn.Module):
    """Stems, the fixed point that they feed, and what the head sees of each resolution."""

    def __init__(
        self, in_channels: int, channels: Sequence[int], point: "FixedPoint", readout: int
    ):
        super().__init__()
        self.stems = nn.ModuleList(
            Stem(in_channels if scale == 0 else channels[scale - 1], each, 1 if scale == 0 else 2)
            for scale, each in enumerate(channels)
        )
        self.point = point
        self.readouts = nn.ModuleList(
            nn.Sequential(nn.Conv2d(each, readout, 1, bias=False), Norm(readout), nn.ReLU())
            for each in channels
        )

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, channel, height, width)` → `(batch, readout · resolutions)`."""
        injected = []
        for stem in self.stems:
            input = stem(input)
            injected.append(input)
        states = self.point(injected)
        pairs = zip(self.readouts, states, strict=True)
        return torch.cat([pooled(readout(state)) for readout, state in pairs], 1)


class Stem(nn.Module):
    """Convolution 3×3, batch normalisation, ReLU; with stride 2 into the next resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm = Norm(outputs)

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, inputs, height, width)` → `(batch, outputs, height/stride, width/stride)`."""
        return torch.relu(self.norm(self.conv(input)))


class FixedPoint(nn.Module):
    """z with z = f(z, x), by repetition or torchdeq; what the arguments mean `MDEQ` says.

    `residuals` holds ‖f(z) − z‖ / ‖f(z)‖ of the images of the last pass, `(batch,)`.
    """

    def __init__(
        self,
        block: nn.Module,
        *,
        gradient: str = "phantom",
        solver: str = "fixed_point_iter",
        tolerance: float = 1e-3,
        iterations: int = 18,
        phantom_steps: int = 5,
        damping: float = 0.5,
    ):
        super().__init__()
        self.block = block
        self.residuals = torch.zeros(0)
        self.iterations, self.phantom_steps = iterations, phantom_steps
        self.damping = damping
        self.solve: Any = None
        if solver != REPEAT:
            self.solve = extra("torchdeq").get_deq(
                f_solver=solver,
                f_tol=tolerance,
                f_max_iter=iterations,
                f_stop_mode="rel",
                b_solver=solver,
                b_tol=tolerance,
                b_max_iter=iterations,
                b_stop_mode="rel",
                ift=gradient == "implicit",
                grad=phantom_steps,
                tau=damping,
            )

    # Compiled is the block, not the sequence of its calls.
    @torch.compiler.disable(recursive=False)
    def forward(self, injected: Sequence[Tensor]) -> list[Tensor]:
        """The states at the fixed point, of the shapes of x; in training with gradients."""
        # In single precision at least: residuals are smaller than what 16 bits can tell apart.
        start = [
            each.new_zeros(each.shape, dtype=torch.promote_types(each.dtype, torch.float32))
            for each in injected
        ]
        kind = start[0].device.type
        # Weights that were rounded to 16 bits where no gradients are must not be kept for the steps
        # that have some.
        with torch.autocast(
            kind,
            torch.get_autocast_dtype(kind),
            enabled=torch.is_autocast_enabled(kind),
            cache_enabled=False,
        ):
            solve = self._repeated if self.solve is None else self._by_package
            return solve(injected, start)

    @torch.compiler.disable
    def _by_package(self, injected: Sequence[Tensor], start: list[Tensor]) -> list[Tensor]:
        found, info = self.solve(lambda *states: self._block(injected, states), start)
        self.residuals = info["rel_lowest"].detach()
        states: list[Tensor] = found[-1]
        return states

    @torch.compiler.disable(recursive=False)
    def _repeated(self, injected: Sequence[Tensor], states: list[Tensor]) -> list[Tensor]:
        """As by "fixed_point_iter" with a tolerance of 0: the host need not look."""
        before = states
        with torch.no_grad():
            for _ in range(self.iterations):
                before, states = states, self._block(injected, states)
            old, new = (torch.cat([z.flatten(1) for z in each], 1) for each in (before, states))
            self.residuals = (new - old).norm(dim=1) / new.norm(dim=1)
        if not self.training:
            return states
        # The first step as the others, for code that is compiled for gradients of its input.
        states = [state.requires_grad_(torch.is_grad_enabled()) for state in states]
        for _ in range(self.phantom_steps):
            found = self._block(injected, states)
            states = [
                torch.lerp(old, new, self.damping) for old, new in zip(states, found, strict=True)
            ]
        return states

    @torch.compiler.disable(recursive=False)
    def _block(self, injected: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
        found = self.block(injected, states)
        return [new.to(old.dtype) for new, old in zip(found, states, strict=True)]


class Multiscale(nn.Module):
    """f(z, x): a residual block at each resolution, then each gets something of all others."""

    def __init__(self, channels: Sequence[int], expansion: int):
        super().__init__()
        self.blocks = nn.ModuleList(ScaleBlock(each, expansion) for each in channels)
        self.paths = nn.ModuleList(
            nn.ModuleList(
                _path(own, channels[source], source - target)
                for source in range(len(channels))
                if source != target
            )
            for target, own in enumerate(channels)
        )
        self.mixes = nn.ModuleList(
            nn.Sequential(nn.Conv2d(each, each, 1, bias=False), group_norm(each))
            for each in channels
        )

    def contract(self) -> None:
        """First weights with which f shrinks distances: what z does is small beside the image."""
        for block in self.blocks:
            block.conv2.weight.data.mul_(0.03)  # type: ignore[operator, union-attr]
        for mix in self.mixes:
            nn.init.constant_(mix[1].weight, 0.25)  # type: ignore[index]

    def forward(self, injected: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
        """States of all resolutions, and the image in all of them → states."""
        inner = [
            block(state, image)
            for block, state, image in zip(self.blocks, states, injected, strict=True)
        ]
        found = []
        for target, (paths, mix) in enumerate(zip(self.paths, self.mixes, strict=True)):
            others = [state for source, state in enumerate(inner) if source != target]
            total = inner[target]
            for path, other in zip(paths, others, strict=True):  # type: ignore[call-overload]
                passed = path(other)
                if passed.shape[2:] != total.shape[2:]:  # from a coarser one
                    passed = F.interpolate(passed, size=total.shape[2:], mode="nearest")
                total = total + passed
            found.append(mix(torch.relu(total)))
        return found


class ScaleBlock(nn.Module):
    """Two convolutions 3×3 with group normalisation and a shortcut; injects between them."""

    def __init__(self, channels: int, expansion: int):
        super().__init__()
        inner = expansion * channels
        self.conv1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.norm1 = group_norm(inner)
        self.conv2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False)
        self.norm2, self.norm3 = group_norm(channels), group_norm(channels)

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        """`(batch, channels, height, width)`, twice → the same."""
        hidden = self.conv2(torch.relu(self.norm1(self.conv1(state)))) + injected
        found: Tensor = self.norm3(torch.relu(self.norm2(hidden) + state))
        return found


def _path(target: int, source: int, steps: int) -> nn.Sequential:
    """From one resolution to another, of which it is `steps` halvings coarser, or finer if < 0."""
    if steps > 0:
        return nn.Sequential(Pointwise(source, target, 1, bias=False), group_norm(target))
    parts: list[nn.Module] = []
    for step in range(-steps):
        channels = target if step == -steps - 1 else source
        parts += [
            nn.Conv2d(source, channels, 3, stride=2, padding=1, bias=False),
            group_norm(channels),
        ]
        parts += [nn.ReLU()] if channels == source else []
    return nn.Sequential(*parts)
