"""Writing models to files and building them again."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded import growth
from unbounded.depth import QuantileFamily
from unbounded.files import backing
from unbounded.files.contents import FORMAT, Contents, read, rebuilding, write_tensors
from unbounded.files.parts import DTYPES, PARTS, check_header, describe, known_class
from unbounded.model import UDN, deepest_layer
from unbounded.schema import FileError

_SIBLING = "sibling."


def save(
    model: UDN,
    path: str | Path,
    *,
    extra: dict[str, Any] | None = None,
    siblings: Sequence[UDN] = (),
) -> None:
    """Write the model to one safetensors file, atomically.

    Of a model in shards every process calls this, and the first one writes.

    Args:
        model: any model; parts of your own are named in the file and passed to `load` again.
        path: the file; replaced if it is there.
        extra: plain data (JSON) to travel along; `read_header` gives it back.
        siblings: further members of an ensemble, alike but for seed, λ and weights; `load_all`
            gives them back.

    Raises:
        ValueError: if `load` would not read it: a weight is not finite, an argument of a part
            is beyond what a file can say, or siblings differ. Nothing is written then.
    """
    from unbounded import __version__

    header: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "num_layers": model.network.num_layers,
        "dtype": str(model.anchor.dtype).removeprefix("torch."),
        "cumulative_heads": model.cumulative_heads,
        "seed": model.seed,
        "extra": extra or {},
        "siblings": [{"num_layers": s.network.num_layers, "seed": s.seed} for s in siblings],
    }
    for part in PARTS:
        header[part] = describe(part, getattr(model, part))
        for sibling in siblings:
            its = describe(part, getattr(sibling, part))
            if json.dumps(its) != json.dumps(header[part]):
                raise ValueError(
                    f"siblings are members of one ensemble, and one of them has another {part}: "
                    f"{its['kind']}({its['config']}); save it to a file of its own"
                )
    tensors: dict[str, Tensor] = {}
    text = json.dumps(header)
    placement = model.network.placement
    for one, prefix in _members([model, *siblings]):
        for name, tensor in one.state_dict().items():
            whole = one.network.placement.whole(tensor)
            if placement.writes:
                tensors[prefix + name] = whole
    with placement.agreeing():
        if placement.writes:
            _write(path, [model, *siblings], header, text, tensors)


def _write(
    path: str | Path,
    models: Sequence[UDN],
    header: dict[str, Any],
    text: str,
    tensors: dict[str, Tensor],
) -> None:
    try:
        for one, state in zip(models, _states(tensors, len(models) - 1), strict=True):
            backing.check_finite(state, _buffers_of_own(one, header["layers"]))
        check_header(json.loads(text))
    except FileError as error:
        raise ValueError(f"the model cannot be saved to {path}: {error}") from None
    write_tensors(path, tensors, {"unbounded": text})


def load(path: str | Path | Contents, *, device: str | torch.device = "cpu", **parts: Any) -> UDN:
    """Read a model that `save` wrote. Built-in parts rebuild themselves, pass in your own.

    No pickle is read and no code is run that the file could choose. The file is opened once. What
    its header asks for is built only where its tensors are there for it.

    Args:
        path: the file, or its contents as `files.read` gives them.
        device: where the model goes.
        parts: `layers`, `likelihood`, `depth`, `depth_prior` or `weight_prior` of your own.

    Raises:
        FileError: if the file is damaged, foreign, or asks for what it does not hold.
    """
    return load_all(path, device=device, **parts)[0]


def load_all(
    path: str | Path | Contents, *, device: str | torch.device = "cpu", **given: Any
) -> list[UDN]:
    """The model of a file and, behind it, its siblings; arguments as in `load`."""
    unknown = sorted(set(given) - set(PARTS))
    if unknown:
        raise TypeError(f"load takes device and {', '.join(PARTS)}, got {unknown}")
    contents = read(path)
    with rebuilding(contents, "does not describe a model this version can build"):
        header = check_header(contents.header)
        states = _states(contents.tensors, len(header["siblings"]))
        models: list[UDN] = []
        known: backing.Shapes = {}
        for state, member in zip(states, [header, *header["siblings"]], strict=True):
            model = _build({**header, **member}, state, given, known)
            models.append(model.to(device).eval())
            given = copy.deepcopy(given)  # each sibling has parts of its own
    return models


def _build(
    header: dict[str, Any],
    state: dict[str, Tensor],
    given: dict[str, Any],
    known: backing.Shapes,
) -> UDN:
    """One model: checked against its tensors, built, filled."""
    num_layers, dtype = header["num_layers"], DTYPES[header["dtype"]]
    backing.check_layers(num_layers, state)
    named = deepest_layer(state)
    if named > num_layers:  # `load_state_dict` would make them all
        raise FileError(f"it claims {num_layers} layers and names layer {named}")
    own = {name for name in PARTS if given.get(name) is not None}
    for name in PARTS:
        if name not in own:
            known_class(name, header[name])
    if "depth" not in own:
        backing.check_depth(header["depth"], num_layers, state)
    if "likelihood" not in own:
        backing.check_likelihood(header["likelihood"], state)
    parts = {n: given[n] if n in own else _rebuild(n, header[n], num_layers) for n in PARTS}
    first = parts["depth"].first_depth()
    if "layers" not in own:
        backing.check_network(parts["layers"], first, num_layers, dtype, state, known)
    if "depth" not in own:
        backing.check_numbers(parts["depth"], header["depth"], num_layers, state)
    model = UDN(**parts, cumulative_heads=header["cumulative_heads"], seed=header["seed"])
    model.to(dtype)
    growth.resize(model, num_layers)
    backing.check_finite(
        state, _buffers_of_own(model, None if "layers" in own else header["layers"])
    )
    if own:
        model.load_state_dict(state)
    else:
        _copy_into(model, state)
    if isinstance(model.depth, QuantileFamily) and "depth" not in own:
        model.depth.limit = header["depth"]["config"]["limit"]
        model.depth._memo = None  # of the limit that held while it was built
    reach = model.depth.max_depth()
    if reach > backing.reach_allowed(num_layers):
        raise FileError(f"its λ gives mass to {reach} depths, it holds {num_layers} layers")
    if "layers" not in own:
        backing.check_outputs(model)
    return model


@torch.no_grad()
def _copy_into(model: UDN, state: dict[str, Tensor]) -> None:
    """As `load_state_dict`, in a time that grows with the layers and not with their square."""
    expected = model.state_dict()
    for name in expected.keys() ^ state.keys():
        raise FileError(f"the tensor {name[:80]} is missing or not one of such a model")
    for name, tensor in expected.items():
        found = state[name]
        if found.shape != tensor.shape or found.is_floating_point() != tensor.is_floating_point():
            raise FileError(f"its tensor {name} has another shape or type than such a model's")
        tensor.copy_(found)


def _rebuild(part: str, described: dict[str, Any], num_layers: int) -> Any:
    """A built-in part by its description."""
    cls, config = known_class(part, described), described["config"]
    if issubclass(cls, QuantileFamily):
        # The first λ is not that of the file: no layers are born for it but those of the file.
        config = {**config, "limit": min(num_layers, config["limit"] or num_layers)}
    return getattr(cls, "from_config", cls)(**config)


def _buffers_of_own(model: UDN, described: dict[str, Any] | None) -> set[str]:
    """Buffers of layers that are the user's own, or that were described as such."""
    if described is not None and described["config"] is not None:
        return set()
    return {name for name, _ in model.named_buffers() if name.startswith("network.")}


def _members(models: Sequence[UDN]) -> list[tuple[UDN, str]]:
    """Each model with what the names of its tensors begin with."""
    return [(m, f"{_SIBLING}{number}." if number else "") for number, m in enumerate(models)]


def _states(tensors: dict[str, Tensor], siblings: int) -> list[dict[str, Tensor]]:
    """What a file holds of the model and of each of its siblings; all of it belongs to one."""
    states: list[dict[str, Tensor]] = [{} for _ in range(siblings + 1)]
    for name, tensor in tensors.items():
        number, rest = "0", name
        if name.startswith(_SIBLING):
            _, number, rest = (*name.split(".", 2), "", "")[:3]
        if (
            not (number.isdecimal() and number.isascii() and len(number) < 10)
            or int(number) > siblings
        ):
            raise FileError(f"it has {siblings} siblings and a tensor {name[:80]}")
        states[int(number)][rest] = tensor
    return states
