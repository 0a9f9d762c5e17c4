"""A model in training as plain data and tensors, and back: first everything is checked."""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded import growth
from unbounded.depth import QuantileFamily
from unbounded.engines.optimizer_states import (
    check_like,
    check_optimizer,
    check_scheduler,
    check_tensor,
    load_optimizer,
    load_own_scheduler,
    load_scheduler,
    plain_group,
    plain_scheduler,
)
from unbounded.engines.optimizer_states import scheduler_settings as scheduler_settings
from unbounded.files import under
from unbounded.model import deepest_layer
from unbounded.parallel.shards import held_like, local
from unbounded.schema import (
    FileError,
    anything,
    flag,
    list_of,
    mapping,
    optional,
    real,
    record,
    text,
    whole,
    wrong,
)
from unbounded.steps.disk import DiskBatches

if TYPE_CHECKING:
    from unbounded.depth import DepthFamily
    from unbounded.engines.member import Member
    from unbounded.model import UDN

_MEMBER = record(
    {
        "num_layers": whole(1),
        "steps": whole(0, 2**53),
        "alive": flag,
        "failure": optional(text()),
        "best_layers": optional(whole(1)),
        "average_steps": mapping(whole(0, 2**53)),
        "optimizer": text(200),
        "groups": list_of(mapping(anything), most=1000),
        "base_rates": list_of(real(0), most=1000),
        "optimizer_state": mapping(mapping(anything)),
        "scheduler": optional(record({"kind": text(200), "state": mapping(anything)})),
        "scaler": optional(mapping(real(0))),
    }
)
_NEW_PASS = frozenset({"seed", "data", "batch_size"})  # with another of these a pass begins anew
_KINDS = ("model.", "optimizer.", "best.", "average.", "rule.", "extra.", "fresh.")


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
    if member.fresh is not None:
        tensors.update({f"fresh.{k}": v for k, v in member.fresh.state().items()})
    if member.data.generator is not None:
        tensors["shuffle"] = member.data.generator.get_state()
    if isinstance(member.data, DiskBatches):
        tensors["place"] = torch.tensor(member.data.where)
    plain = {
        "num_layers": model.network.num_layers,
        "steps": member.steps,
        "alive": member.alive,
        "failure": member.failure,
        "best_layers": None if member.best is None else member.best[0],
        "average_steps": {} if member.average is None else dict(member.average.steps),
        "optimizer": type(optimizer).__name__,
        "groups": [plain_group(group) for group in optimizer.param_groups],
        "base_rates": member.base_rates,
        "optimizer_state": plain_state,
        "scheduler": plain_scheduler(member.scheduler),
        "scaler": None if member.scaler is None else member.scaler.state_dict(),
    }
    return plain, tensors


def check_member(
    member: "Member",
    plain: Any,
    tensors: dict[str, Tensor],
    changed: frozenset[str],
    *,
    where: str,
    alone: bool,
) -> None:
    """A FileError unless `load_member` can put all of it in its place; changes nothing.

    Args:
        member: of the call.
        plain: what `save_member` gave.
        tensors: likewise.
        changed: what differs from the run that wrote it, and was accepted.
        where: the name of its place in the file.
        alone: whether weights that are no numbers are an error. One of several models may have
            come to its end, while the others go on.
    """
    plain = _MEMBER(plain, where)
    unknown = [n for n in tensors if n not in ("shuffle", "place") and not n.startswith(_KINDS)]
    if unknown:
        raise FileError(f"the tensor {unknown[0]} is not known to this version")
    model = member.model
    parameters = _check_model(model, plain["num_layers"], tensors, "model.")
    if alone and plain["alive"]:
        for name in (*(f"model.{n}" for n in parameters), *tensors):
            moves = name.startswith(("optimizer.", "average.")) or name[6:] in parameters
            if moves and tensors[name].is_floating_point():
                _check_finite(name, tensors[name])
    check_optimizer(member, plain, under(tensors, "optimizer."), parameters, changed)
    check_scheduler(member, plain["scheduler"], plain["steps"], changed)
    if member.scaler is not None:
        check_like(member.scaler.state_dict(), plain["scaler"], f"{where}.scaler")
    if plain["best_layers"] is not None:
        _check_model(model, plain["best_layers"], tensors, "best.")
    if member.average is not None:
        _check_average(model, plain["average_steps"], under(tensors, "average."), parameters)
    _check_rule(member, under(tensors, "rule."), changed)
    if member.extra is not None:
        extra = under(tensors, "extra.")
        member.extra.check_state(extra, plain["num_layers"], plain["steps"])
    if member.fresh is not None:
        member.fresh.check_state(under(tensors, "fresh."), plain["steps"])
    if member.data.generator is not None and "seed" not in changed:
        check_generator("shuffle", tensors.get("shuffle"), member.data.generator)
    if isinstance(member.data, DiskBatches) and not _NEW_PASS & changed:
        _check_place(tensors.get("place"), member.data.steps)


def load_member(
    member: "Member", plain: dict[str, Any], tensors: dict[str, Tensor], changed: frozenset[str]
) -> None:
    """Put a member where `save_member` found it: layers, weights, λ, optimiser, random state.

    All of it has passed `check_member`. What only the code of a scheduler of somebody's own can
    check comes first, before anything else is touched.
    """
    model, optimizer = member.model, growth.unwrapped(member.optimizer)
    load_own_scheduler(member, plain["scheduler"])
    growth.resize(model, plain["num_layers"], optimizer)
    load_model(model, under(tensors, "model."))
    load_optimizer(member, plain, under(tensors, "optimizer."), changed)
    load_scheduler(member, plain["scheduler"])
    if member.scaler is not None and plain["scaler"] is not None:
        member.scaler.load_state_dict(plain["scaler"])
    member.steps, member.alive = plain["steps"], plain["alive"]
    member.failure = plain["failure"]
    state = under(tensors, "rule.")
    rule = member.options.depth_rule
    if rule is not None and state.keys() == rule.state().keys():
        rule.load_state(model, state)
    if member.extra is not None:
        member.extra.load_state(under(tensors, "extra."))
    if member.fresh is not None:
        member.fresh.load_state(under(tensors, "fresh."))
    if member.average is not None:
        member.average.values = _held(model, under(tensors, "average."))
        member.average.steps = dict(plain["average_steps"])
    if plain["best_layers"] is not None:
        member.best = plain["best_layers"], under(tensors, "best.")
    if member.data.generator is not None and "shuffle" in tensors and "seed" not in changed:
        member.data.generator.set_state(tensors["shuffle"])
    if isinstance(member.data, DiskBatches) and not _NEW_PASS & changed:
        member.data.go_to(tensors["place"].tolist())


def _check_place(place: Tensor | None, steps: int) -> None:
    """A FileError unless a pass over data on disk can be at this step."""
    check_tensor("place", place, torch.tensor([0, 0]))
    assert place is not None
    if not (0 <= int(place[0]) < steps and int(place[1]) >= 1):
        raise FileError(f"the tensor place should be a step of a pass, from 0 to {steps - 1}")


def load_model(model: "UDN", state: dict[str, Tensor]) -> None:
    """A state of the layers that there are, whole or in shards, as the model itself is."""
    model.load_state_dict(_held(model, state))


def _held(model: "UDN", state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name on the model's device, each held as the model's own is."""
    own, placement = model.state_dict(), model.network.placement
    device = model.anchor.device
    return {name: held_like(v.to(device), own[name], placement) for name, v in state.items()}


def check_generator(where: str, state: Tensor | None, generator: torch.Generator) -> None:
    """A FileError unless this is a state that a generator of the same kind can have."""
    check_tensor(where, state, generator.get_state())
    assert state is not None
    if generator.device.type == "cpu":
        # The twister keeps 624 words: it would read behind them, were there more left than that.
        left = int(state[8:12].clone().view(torch.int32))
        following = int(state[16:24].clone().view(torch.int64))
        if left < 1 or following < 0 or left + following > 625:
            raise FileError(f"the tensor {where} is no state of a generator")
    try:
        torch.Generator(generator.device).set_state(state.clone())
    except RuntimeError:
        raise FileError(f"the tensor {where} is no state of a generator") from None


def check_family(
    family: "DepthFamily", numbers: dict[str, Tensor], num_layers: int, where: str
) -> None:
    """A FileError if λ is no number, or asks for far more layers than there are."""
    for name, value in numbers.items():
        if value.is_floating_point():
            _check_finite(where + name, value)
    if not isinstance(family, QuantileFamily):
        return
    # A step moves λ a little; one out of all proportion would have layers born without end.
    most = 1000.0 + 10 * num_layers if family.limit is None else 1e8
    for name, _ in family.named_parameters():
        number = float(numbers[name]) if name in numbers else 0.0
        if number > most:
            raise wrong(where + name, f"at most {most:g}, with {num_layers} layers", number)
    if "nu" in numbers:
        least = min(0.01, float(dict(family.named_buffers())["nu"]))
        real(least, 1e6)(float(numbers["nu"]), where + "nu")


def _check_finite(where: str, tensor: Tensor) -> None:
    if not bool(torch.isfinite(local(tensor)).all()):
        raise FileError(f"the tensor {where} holds numbers that are not finite")


def _check_model(
    model: "UDN", num_layers: int, tensors: dict[str, Tensor], kind: str
) -> dict[str, Tensor]:
    """A FileError unless these tensors are those of the model with so many layers.

    Layers that the model does not have now are made one at a time and let go again: a file that
    claims more than it holds is found out before much memory is asked for.

    Returns:
        The tensors that are parameters, by name.
    """
    state = under(tensors, kind)
    named = deepest_layer(state)
    if num_layers > len(state) or named > num_layers:  # `load_state_dict` would make them all
        raise FileError(
            f"the checkpoint claims {num_layers} layers and names {named} under {kind[:-1]}"
        )
    seen: dict[str, Tensor] = {}

    def compare(prefix: str, module: torch.nn.Module) -> None:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, like in module.state_dict().items():
            if _depth_of(prefix + name, model) <= num_layers:
                check_tensor(kind + prefix + name, state.get(prefix + name), like)
                known.add(prefix + name)
                if name in parameters:
                    seen[prefix + name] = state[prefix + name]

    known: set[str] = set()
    compare("", model)
    network = model.network
    first = 1 if network.shares_head else model.depth.first_depth()
    for depth in range(1, num_layers + 1):
        if str(depth) not in network.hidden:
            compare(f"network.hidden.{depth}.", growth.create(model, "hidden", depth))
        has_head = depth == 1 if network.shares_head else depth >= first
        if has_head and str(depth) not in network.heads:
            compare(f"network.heads.{depth}.", growth.create(model, "heads", depth))
    unknown = sorted(state.keys() - known)
    if unknown:
        raise FileError(f"the tensor {kind}{unknown[0]} is not one of this model")
    check_family(model.depth, under(state, "depth."), num_layers, f"{kind}depth.")
    return seen


def _depth_of(name: str, model: "UDN") -> int:
    """The depth that a tensor goes away with, 0 for those that stay."""
    roles = ("hidden",) if model.network.shares_head else ("hidden", "heads")
    parts = name.split(".")
    return int(parts[2]) if parts[0] == "network" and parts[1] in roles else 0


def _check_average(
    model: "UDN",
    steps: dict[str, int],
    values: dict[str, Tensor],
    parameters: dict[str, Tensor],
) -> None:
    if steps.keys() != values.keys():
        raise FileError("the fields of average_steps are not those of the tensors under average")
    for name, value in values.items():
        if name not in parameters:
            raise FileError(f"the tensor average.{name} is of no parameter of the model")
        check_tensor(f"average.{name}", value, parameters[name])
    layers = max(1, model.network.num_layers, deepest_layer(parameters))
    check_family(model.depth, under(values, "depth."), layers, "average.depth.")


def _check_rule(member: "Member", state: dict[str, Tensor], changed: frozenset[str]) -> None:
    rule = member.options.depth_rule
    if rule is None:
        return
    if state.keys() != rule.state().keys():
        if "depth_rule" not in changed:
            raise FileError("the checkpoint was written without this depth_rule: tensors differ")
        return  # another rule begins anew
    rule.check_state(copy.copy(state))
