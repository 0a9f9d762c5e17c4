"""A model in training as plain data and tensors, and back."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded import growth
from unbounded.files import FileError, under
from unbounded.model import deepest_layer

if TYPE_CHECKING:
    from unbounded.engines.eager import Member
    from unbounded.model import UDN


def save_member(member: "Member") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Everything that the next step of a model depends on."""
    model, optimizer = member.model, growth.unwrapped(member.optimizer)
    tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in model.state_dict().items()}
    names = {id(p): name for name, p in model.named_parameters()}
    plain_state: dict[str, dict[str, Any]] = {}
    for parameter, state in optimizer.state.items():
        name = names[id(parameter)]
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{name}.{key}"] = value
            else:
                plain_state.setdefault(name, {})[key] = value
    if member.best is not None:
        tensors.update({f"best.{k}": v for k, v in member.best[1].items()})
    if member.average is not None:
        tensors.update({f"average.{k}": v for k, v in member.average.values.items()})
    if member.options.depth_rule is not None:
        rule = member.options.depth_rule.state()
        tensors.update({f"rule.{k}": v for k, v in rule.items()})
    if member.extra is not None:
        tensors.update({f"extra.{k}": v for k, v in member.extra.state().items()})
    if member.data.generator is not None:
        tensors["shuffle"] = member.data.generator.get_state()
    plain = {
        "num_layers": model.network.num_layers,
        "steps": member.steps,
        "alive": member.alive,
        "failure": member.failure,
        "best_layers": None if member.best is None else member.best[0],
        "average_steps": {} if member.average is None else dict(member.average.steps),
        "optimizer": type(optimizer).__name__,
        "groups": [_plain_group(group) for group in optimizer.param_groups],
        "optimizer_state": plain_state,
        "scheduler": None if member.scheduler is None else _pairs(member.scheduler.state_dict()),
        "scaler": None if member.scaler is None else member.scaler.state_dict(),
    }
    return plain, tensors


def load_member(member: "Member", plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Put a member where `save_member` found it: layers, weights, λ, optimiser, random state."""
    model, optimizer = member.model, growth.unwrapped(member.optimizer)
    if plain["optimizer"] != type(optimizer).__name__:
        raise ValueError(
            f"the checkpoint was written with {plain['optimizer']}, "
            f"training now uses {type(optimizer).__name__}"
        )
    _check_count(plain["num_layers"], tensors)
    state = under(tensors, "model.")
    if deepest_layer(state) > plain["num_layers"]:  # `load_state_dict` would make them all
        raise FileError(
            f"the checkpoint claims {plain['num_layers']} layers and names {deepest_layer(state)}"
        )
    growth.resize(model, plain["num_layers"], optimizer)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"the checkpoint was written by another model: {error}") from None
    _load_optimizer(optimizer, model, plain, under(tensors, "optimizer."))
    if member.scheduler is not None and plain["scheduler"] is not None:
        member.scheduler.load_state_dict(_unpaired(plain["scheduler"]))
    if member.scaler is not None and plain["scaler"] is not None:
        member.scaler.load_state_dict(plain["scaler"])
    member.steps, member.alive = plain["steps"], plain["alive"]
    member.failure = plain["failure"]
    if member.options.depth_rule is not None:
        state = under(tensors, "rule.")
        if state.keys() != member.options.depth_rule.state().keys():
            raise FileError("the checkpoint was written without this depth_rule")
        member.options.depth_rule.load_state(model, state)
    if member.extra is not None:
        member.extra.load_state(under(tensors, "extra."))
    if member.average is not None:
        device = model.anchor.device
        member.average.values = {k: v.to(device) for k, v in under(tensors, "average.").items()}
        member.average.steps = dict(plain["average_steps"])
    if plain["best_layers"] is not None:
        _check_count(plain["best_layers"], tensors)
        member.best = plain["best_layers"], under(tensors, "best.")
    if member.data.generator is not None and "shuffle" in tensors:
        member.data.generator.set_state(tensors["shuffle"])


def _load_optimizer(
    optimizer: torch.optim.Optimizer,
    model: "UDN",
    plain: dict[str, Any],
    tensors: dict[str, Tensor],
) -> None:
    if len(plain["groups"]) != len(optimizer.param_groups):
        raise ValueError(
            f"the checkpoint has {len(plain['groups'])} parameter groups, "
            f"the optimiser {len(optimizer.param_groups)}"
        )
    for group, saved in zip(optimizer.param_groups, plain["groups"], strict=True):
        for key, value in saved.items():
            # JSON has no tuples: keep the kind of container that the optimiser itself uses.
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    optimizer.state.clear()
    fused = any(g.get("fused") or g.get("capturable") for g in optimizer.param_groups)
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, short = key.rpartition(".")
        by_parameter.setdefault(name, {})[short] = value
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = dict(plain["optimizer_state"].get(name, {}))
        for short, value in by_parameter.get(name, {}).items():
            if value.dim() and value.shape == parameter.shape:
                # In the parameter's memory format too: fused optimisers go by memory.
                like = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                state[short] = like.copy_(value)
            else:
                # `step` stays where the optimiser keeps it (on the CPU unless fused on CUDA).
                device = parameter.device if value.dim() or fused else value.device
                state[short] = value.to(device)
        if state:
            optimizer.state[parameter] = state


def _pairs(value: Any) -> Any:
    """The same for JSON, whose keys are strings: other dictionaries as lists of pairs."""
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {_PAIRS: kind, "items": [[key, _pairs(item)] for key, item in value.items()]}
    if isinstance(value, dict):
        return {key: _pairs(item) for key, item in value.items()}
    return [_pairs(item) for item in value] if isinstance(value, list) else value


def _unpaired(value: Any) -> Any:
    """The way back from `_pairs`."""
    if isinstance(value, dict) and _PAIRS in value:
        found = {key: _unpaired(item) for key, item in value["items"]}
        return Counter(found) if value[_PAIRS] == "counter" else found
    if isinstance(value, dict):
        return {key: _unpaired(item) for key, item in value.items()}
    return [_unpaired(item) for item in value] if isinstance(value, list) else value


_PAIRS = "pairs of a"


def _plain_group(group: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return {
        key: value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
        for key, value in plain.items()
    }


def _check_count(num_layers: Any, tensors: dict[str, Tensor]) -> None:
    """A file cannot ask for more layers than it has tensors for."""
    if not isinstance(num_layers, int) or not 0 <= num_layers <= len(tensors):
        raise FileError(
            f"the checkpoint claims {num_layers!r} layers and holds {len(tensors)} tensors"
        )
