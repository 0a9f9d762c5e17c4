"""What a header asks for must be backed by the tensors of its file before any of it is built."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from unbounded.depth import QuantileFamily
from unbounded.files.contents import under
from unbounded.files.parts import CONCENTRATION
from unbounded.likelihoods import Gaussian
from unbounded.likelihoods.gaussian import LearntNoise, ScaledInputNoise
from unbounded.schema import FileError

_FAR = 1000  # λ this far beyond the layers is looked at no further
_FAR_WITH_LIMIT = 1e6


def reach_allowed(num_layers: int) -> int:
    """How deep q may reach in a file of so many layers.

    A step moves λ after the layers for it were born, so q may reach a little beyond them;
    predictions do without, and create nothing.
    """
    return 2 * num_layers + 8


def check_layers(num_layers: int, state: dict[str, Tensor]) -> None:
    """A file cannot ask for more layers than it has tensors for."""
    if num_layers > len(state):
        raise FileError(f"it claims {num_layers} layers and holds {len(state)} tensors")


def check_depth(described: dict[str, Any], num_layers: int, state: dict[str, Tensor]) -> None:
    """Depths in the arguments of a family must be among the layers of the file."""
    config = described["config"]
    for name in ("depth", "max_depth"):
        if config.get(name, 1) > num_layers:
            raise FileError(
                f"it claims depth.{name} = {config[name]} and holds {num_layers} layers"
            )
    if "max_depth" in config:
        _check_shape("depth.logits", state, (config["max_depth"],))


def check_likelihood(described: dict[str, Any], state: dict[str, Tensor]) -> None:
    """A noise for so many targets must have a tensor of that size."""
    config, prefix = described["config"], "likelihood."
    if "each" in config:  # of several members
        config, prefix = config["each"], "likelihood.each."
    noise = config if "beta" in config else config.get("noise", {})
    if "num_targets" in noise:
        _check_shape(f"{prefix}noise.log_scale", state, (noise["num_targets"],))
    if len(noise.get("bends", ())) not in (0, noise.get("num_targets")):
        raise FileError(f"its noise has {len(noise['bends'])} bends for {noise['num_targets']}")


Shapes = dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]]
"""Of modules by role and depth, and of their tensors by name; and the tensors' types."""


def check_network(
    layers: Any,
    first_depth: int,
    num_layers: int,
    dtype: torch.dtype,
    state: dict[str, Tensor],
    known: Shapes,
) -> None:
    """The layers and heads of a built-in generator must be those of the file, tensor by tensor.

    Sizes come from modules on torch's meta device, which hold no memory; `known` keeps them for
    the next sibling.
    """
    heads = [1] if layers.shares_head else range(first_depth, num_layers + 1)
    expected: set[str] = set()
    # A tensor is looked at as soon as its module is there: what is refused has cost no more.
    for role, depths in (("hidden", range(1, num_layers + 1)), ("heads", heads)):
        for depth in depths:
            prefix = f"network.{role}.{depth}."
            if prefix not in known:
                with torch.device("meta"):
                    made: nn.Module = (
                        layers.hidden(depth) if role == "hidden" else layers.head(depth)
                    )
                known[prefix] = {
                    name: (tuple(t.shape), dtype if t.is_floating_point() else t.dtype)
                    for name, t in made.state_dict().items()
                }
            for name, (shape, kind) in known[prefix].items():
                _check_shape(prefix + name, state, shape, kind)
                expected.add(prefix + name)
    for name in under(state, "network."):
        if f"network.{name}" not in expected:
            raise FileError(
                f"it claims {num_layers} layers and names another tensor, network.{name[:80]}"
            )


def check_numbers(
    family: Any, described: dict[str, Any], num_layers: int, state: dict[str, Tensor]
) -> None:
    """λ of a built-in, unbounded family must be one that the layers of the file are made for."""
    if not isinstance(family, QuantileFamily):
        return
    config = described["config"]
    far = reach_allowed(num_layers) + _FAR if config["limit"] is None else _FAR_WITH_LIMIT
    for name, _ in family.named_parameters():
        raw = state.get(f"depth.{name}")
        if raw is None or raw.shape != () or not raw.is_floating_point():
            raise FileError(f"its tensor depth.{name} is missing or not a single number")
        if not float(raw) <= far:
            raise FileError(
                f"its tensor depth.{name} is {float(raw):g}, far beyond its {num_layers} layers"
            )
    if "concentration" in config:
        nu = state.get("depth.nu")
        if nu is None or nu.shape != () or not nu.is_floating_point():
            raise FileError("its tensor depth.nu is missing or not a single number")
        CONCENTRATION(float(nu), "depth.nu")


def check_finite(state: dict[str, Tensor], may_be_infinite: set[str]) -> None:
    """A FileError that names the first tensor with a NaN or an infinite number.

    Args:
        state: all tensors of a model.
        may_be_infinite: names of buffers of the user's own layers: masks have infinite numbers.
    """
    for name, tensor in state.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        bad = tensor.isnan() if name in may_be_infinite else ~tensor.isfinite()
        if bool(bad.any()):
            count = int(bad.sum())
            raise FileError(f"its tensor {name} holds {count} numbers that are not finite")


def check_outputs(model: Any) -> None:
    """The heads of a model with built-in parts must give what its likelihood takes."""
    size = getattr(model.layers, "out_features", None)
    if not isinstance(size, int):
        return
    likelihood = model.likelihood.single
    members = getattr(model.layers, "members", None)
    places = [1] * (likelihood.output_axes - 1) if members is None else [members]
    model.likelihood.check_outputs(model.anchor.new_zeros(1, 1, *places, size))
    if isinstance(likelihood, Gaussian) and isinstance(
        likelihood.noise, LearntNoise | ScaledInputNoise
    ):
        scales = likelihood.noise.log_scale.detach().float().exp()
        if not bool(((scales > 0) & (scales < math.inf)).all()):
            raise FileError("its noise has a scale of zero or beyond all numbers")


def _check_shape(
    name: str,
    state: dict[str, Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype | None = None,
) -> None:
    if name not in state:
        raise FileError(f"it lacks the tensor {name}")
    found = state[name]
    if tuple(found.shape) != shape:
        raise FileError(f"its tensor {name} has the shape {tuple(found.shape)}, not {shape}")
    if dtype is not None and found.dtype != dtype:
        raise FileError(f"its tensor {name} is of {found.dtype}, the model of {dtype}")
