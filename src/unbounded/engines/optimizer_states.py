"""The state of an optimiser and its scheduler: as plain data, checked against those of the call."""

import copy
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unbounded import growth
from unbounded.parallel.shards import held_like, local
from unbounded.schema import FileError, list_of, optional, real, whole, wrong

if TYPE_CHECKING:
    from unbounded.engines.member import Member

# What a scheduler of torch moves; all else are its settings.
_MOVING = (
    *("last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial"),
    *("T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter"),
)
_RATES = ("initial_lr", "max_lr", "min_lr")  # of a group: where its scheduler begins and goes
_OF_RATES = frozenset({"lr", "depth_lr_ratio", "optimizer", "scheduler"})
_NOT_NEGATIVE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "exp_inf")
_MOST_STEPS = 2**53


def plain_group(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options, without its parameters."""
    plain = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return {
        key: value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
        for key, value in plain.items()
    }


def check_optimizer(
    member: "Member",
    plain: dict[str, Any],
    tensors: dict[str, Tensor],
    parameters: dict[str, Tensor],
    changed: frozenset[str],
) -> None:
    """A FileError unless the optimiser of the call can take this state; changes nothing.

    Args:
        member: whose optimiser it is.
        plain: the member's plain data.
        tensors: of the optimiser, by the parameter's name and their own.
        parameters: of the model as the file has it, by name.
        changed: what differs from the run that wrote the file, and was accepted.
    """
    optimizer = growth.unwrapped(member.optimizer)
    if plain["optimizer"] != type(optimizer).__name__:
        raise FileError(
            f"the checkpoint was written with {plain['optimizer']}, "
            f"training now uses {type(optimizer).__name__}"
        )
    count = len(optimizer.param_groups)
    if len(plain["groups"]) != count or len(plain["base_rates"]) != count:
        raise FileError(
            f"the checkpoint has {len(plain['groups'])} parameter groups and "
            f"{len(plain['base_rates'])} base_rates, the optimiser {count} groups"
        )
    for index, (group, saved) in enumerate(
        zip(optimizer.param_groups, plain["groups"], strict=True)
    ):
        _check_group(f"groups[{index}]", plain_group(group), saved, changed)
    if not changed & _OF_RATES and plain["base_rates"] != member.base_rates:
        raise wrong("base_rates", repr(member.base_rates), plain["base_rates"])
    states = _by_parameter(plain["optimizer_state"], tensors)
    for name in states:
        if name not in parameters:
            raise FileError(
                f"the optimiser has a state for {name}, the model has no such parameter"
            )
    templates: dict[Any, list[dict[str, Any]]] = {}
    device = member.model.anchor.device
    for name, state in states.items():
        like = parameters[name]
        key = like.shape, like.dtype
        if key not in templates:
            templates[key] = [_fresh(optimizer, g, like, device) for g in optimizer.param_groups]
        _check_state(f"optimizer.{name}", state, templates[key])


def load_optimizer(
    member: "Member", plain: dict[str, Any], tensors: dict[str, Tensor], changed: frozenset[str]
) -> None:
    """Put the optimiser where it was; rates and options that have changed are the call's."""
    optimizer, model = growth.unwrapped(member.optimizer), member.model
    anew = "scheduler" in changed and not _takes(member.scheduler, plain["scheduler"])
    for group, saved, base, before in zip(
        optimizer.param_groups,
        plain["groups"],
        member.base_rates,
        plain["base_rates"],
        strict=True,
    ):
        moved = base != before  # by an accepted change alone
        kept = (*_RATES, "lr") if moved or anew else _RATES if "scheduler" in changed else ()
        for key, value in saved.items():
            if key in group and key not in kept and ("optimizer" not in changed or key == "lr"):
                # JSON has no tuples: keep the kind of container that the optimiser itself uses.
                group[key] = tuple(value) if isinstance(group[key], tuple) else value
        if moved and not anew:
            group["lr"] = saved["lr"] * base / before if before else base
    optimizer.state.clear()
    fused = any(g.get("fused") or g.get("capturable") for g in optimizer.param_groups)
    states = _by_parameter(plain["optimizer_state"], tensors)
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = {}
        for short, value in states.get(name, {}).items():
            if not isinstance(value, Tensor):
                state[short] = value
            elif value.dim() and value.shape == parameter.shape:
                # In the parameter's memory format too: fused optimisers go by memory.
                like = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                state[short] = like.copy_(held_like(value, like, model.network.placement))
            else:
                # `step` stays where the optimiser keeps it (on the CPU unless fused on CUDA).
                device = parameter.device if value.dim() or fused else value.device
                state[short] = value.to(device)
        if state:
            optimizer.state[parameter] = state


def _by_parameter(
    plain: dict[str, dict[str, Any]], tensors: dict[str, Tensor]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: dict(state) for name, state in plain.items()}
    for key, value in tensors.items():
        name, _, short = key.rpartition(".")
        found.setdefault(name, {})[short] = value
    return found


def _check_group(
    where: str, now: dict[str, Any], saved: dict[str, Any], changed: frozenset[str]
) -> None:
    if "lr" not in saved:
        raise FileError(f"the field {where}.lr is missing")
    loose = changed & {"optimizer", "scheduler"}
    for key in now.keys() ^ saved.keys():
        # Versions of torch differ in switches.
        switch = isinstance((now | saved)[key], bool | None)
        if not loose and not switch and key not in _RATES:
            raise FileError(f"the field {where}.{key} is in one of the optimiser and the file only")
    for key, value in saved.items():
        if key not in now:
            continue
        check_like(now[key], value, f"{where}.{key}")
        if key == "betas" and not all(0 <= beta < 1 for beta in value):
            raise wrong(f"{where}.{key}", "numbers from 0 to below 1", value)
        if isinstance(value, float) and isinstance(now[key], float) and value < 0 <= now[key]:
            raise wrong(f"{where}.{key}", "a number of at least 0", value)


def check_like(now: Any, saved: Any, where: str) -> None:
    """A FileError unless plain data are of the form that they have now, in finite numbers."""
    if isinstance(now, bool | str):
        if saved != now or isinstance(saved, bool) != isinstance(now, bool):
            raise wrong(where, repr(now), saved)
    elif isinstance(now, int | float):
        if not (isinstance(saved, float) and math.isinf(saved) and math.isinf(now)):
            real()(saved, where)
    elif isinstance(now, list | tuple):
        list_of(lambda value, place: value, least=len(now), most=len(now))(saved, where)
        for index, (one, other) in enumerate(zip(now, saved, strict=True)):
            check_like(one, other, f"{where}[{index}]")
    elif isinstance(now, dict):
        if not isinstance(saved, dict) or saved.keys() != now.keys():
            raise wrong(where, f"an object with the fields {', '.join(map(str, now))}", saved)
        for key, value in now.items():
            check_like(value, saved[key], f"{where}.{key}")
    elif now is None:
        optional(real())(saved, where)
    else:
        raise wrong(where, "of a kind that this version knows", saved)


def _fresh(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], like: Tensor, device: torch.device
) -> dict[str, Any]:
    """The state of such a parameter after a step of a throwaway optimiser; {} if unknown.

    There is no other way to know for any optimiser which tensors it will look for.
    """
    parameter = nn.Parameter(torch.zeros(like.shape, dtype=like.dtype, device=device))
    parameter.grad = torch.zeros_like(parameter)
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    try:
        probe = type(optimizer)([{**options, "params": [parameter]}], **growth._defaults(optimizer))
        probe.step()
    except Exception:  # an optimiser of somebody's own may ask for more than a gradient
        return {}
    return dict(probe.state[parameter])


def _check_state(where: str, state: dict[str, Any], templates: list[dict[str, Any]]) -> None:
    if all(templates):
        fitting = [template for template in templates if template.keys() == state.keys()]
        if not fitting:
            raise FileError(
                f"{where} has {', '.join(sorted(state))}, "
                f"the optimiser needs {', '.join(sorted(templates[0]))}"
            )
        for short, value in state.items():
            _check_value(f"{where}.{short}", value, fitting[0][short])
    for short, value in state.items():
        number = local(value) if isinstance(value, Tensor) else torch.tensor(float(value or 0.0))
        if short == "step" and (
            number.numel() != 1 or not 0 <= float(number) <= _MOST_STEPS or float(number) % 1
        ):
            raise wrong(f"{where}.{short}", f"a whole number from 0 to {_MOST_STEPS}", value)
        if short in _NOT_NEGATIVE and number.is_floating_point() and bool((number < 0).any()):
            raise FileError(f"{where}.{short} should hold no negative number")


def _check_value(where: str, value: Any, like: Any) -> None:
    if isinstance(like, Tensor):
        check_tensor(where, value if isinstance(value, Tensor) else None, like)
    elif isinstance(value, Tensor):
        raise FileError(f"the tensor {where} should be plain data")
    else:
        check_like(like, value, where)


def check_tensor(where: str, value: Tensor | None, like: Tensor) -> None:
    """A FileError unless a tensor is there, of this shape and dtype."""
    if value is None:
        raise FileError(f"the tensor {where} is missing")
    if value.shape != like.shape:
        raise FileError(
            f"the tensor {where} should have the shape {tuple(like.shape)}, "
            f"it has {tuple(value.shape)}"
        )
    if value.dtype != like.dtype:
        raise FileError(f"the tensor {where} should be {like.dtype}, it is {value.dtype}")


# Schedulers --------------------------------------------------------------------------------------


def scheduler_settings(scheduler: Any) -> dict[str, Any]:
    """What a scheduler was made with; of one that is not torch's, its class alone."""
    found: dict[str, Any] = {"kind": type(scheduler).__qualname__}
    if _is_known(scheduler):
        found |= _settings(scheduler.state_dict())
        inner = [scheduler, *getattr(scheduler, "_schedulers", ())]
        found["lr_lambdas"] = [f for s in inner for f in getattr(s, "lr_lambdas", ())]
    return found


def plain_scheduler(scheduler: Any) -> dict[str, Any] | None:
    """Its state for JSON."""
    if scheduler is None:
        return None
    return {"kind": type(scheduler).__qualname__, "state": _pairs(scheduler.state_dict())}


def check_scheduler(member: "Member", saved: Any, steps: int, changed: frozenset[str]) -> None:
    """A FileError unless the scheduler of the call can take this state; changes nothing."""
    scheduler = member.scheduler
    kind = None if scheduler is None else type(scheduler).__qualname__
    if (saved is None) != (scheduler is None) or (saved and saved["kind"] != kind):
        if "scheduler" not in changed:
            raise wrong("scheduler", f"one of the kind {kind}", saved and saved["kind"])
        return  # another one begins anew
    if scheduler is None or not _is_known(scheduler):
        return  # what one of somebody's own takes shows when it is loaded
    now = json.loads(json.dumps(_pairs(scheduler.state_dict())))
    most = max(int(now.get("last_epoch") or 0), 0) + steps
    _check_scheduler("scheduler", now, saved["state"], most, changed)


def load_scheduler(member: "Member", saved: Any) -> None:
    """Put torch's scheduler where it was, after its optimiser."""
    scheduler = member.scheduler
    if _takes(scheduler, saved) and _is_known(scheduler):
        rates = [float(group["lr"]) for group in member.optimizer.param_groups]
        state = scheduler.state_dict()  # type: ignore[union-attr]
        scheduler.load_state_dict(_moved(state, saved["state"], rates))  # type: ignore[union-attr]


def load_own_scheduler(member: "Member", saved: Any) -> None:
    """Put a scheduler of somebody's own where it was; a FileError, and as before, if it refuses."""
    scheduler: Any = member.scheduler
    if not _takes(scheduler, saved) or _is_known(scheduler):
        return
    before = copy.deepcopy(scheduler.state_dict())
    try:
        scheduler.load_state_dict(_unpaired(saved["state"]))
    except Exception as error:  # whatever its own code raises
        scheduler.load_state_dict(before)
        raise FileError(f"the field scheduler.state was refused: {error}") from None


def _takes(scheduler: Any, saved: Any) -> bool:
    return scheduler is not None and bool(saved) and saved["kind"] == type(scheduler).__qualname__


def _is_known(scheduler: Any) -> bool:
    return type(scheduler).__module__ == "torch.optim.lr_scheduler"


def _settings(state: dict[str, Any]) -> dict[str, Any]:
    """Those of a state and of the schedulers in it, but for the rates: `lr` says these."""
    found = {k: v for k, v in state.items() if k not in (*_MOVING, "base_lrs", "_schedulers")}
    inner = [_settings(one) for one in state.get("_schedulers", ())]
    return {**found, "schedulers": inner} if inner else found


def _moved(now: dict[str, Any], saved: dict[str, Any], rates: list[float]) -> dict[str, Any]:
    """The settings of the call with what the file says of the course."""
    found = {**now, **{key: value for key, value in saved.items() if key in _MOVING}}
    if "_last_lr" in found:
        found["_last_lr"] = rates
    if "_schedulers" in now:
        pairs = zip(now["_schedulers"], saved["_schedulers"], strict=True)
        found["_schedulers"] = [_moved(one, other, rates) for one, other in pairs]
    return found


def _check_scheduler(where: str, now: Any, saved: Any, most: int, changed: frozenset[str]) -> None:
    if not isinstance(saved, dict):
        raise wrong(where, "an object", saved)
    for key in now.keys() ^ saved.keys():
        if key not in _MOVING and not isinstance((now | saved)[key], bool | None):
            raise FileError(f"the field {where}.{key} is in one of the scheduler and the file only")
    for key, value in saved.items():
        place = f"{where}.{key}"
        if key == "_schedulers":
            list_of(lambda one, _: one, least=len(now[key]), most=len(now[key]))(value, place)
            for index, (one, other) in enumerate(zip(now[key], value, strict=True)):
                _check_scheduler(f"{place}[{index}]", one, other, most, changed)
        elif key == "last_epoch":
            whole(-1, most)(value, place)
        elif key in ("T_i", "_step_count", "num_bad_epochs", "cooldown_counter"):
            real(1 if key == "T_i" else 0, _MOST_STEPS)(value, place)
        elif key == "_last_lr":
            list_of(real(0), most=1000)(value, place)
        elif key == "best":
            check_number(value, place)
        elif key in _MOVING:
            if isinstance(now.get(key), bool) != isinstance(value, bool):
                raise wrong(place, f"as {now.get(key)!r}", value)
            if not isinstance(value, bool):
                optional(real())(value, place)
        elif (
            key in now
            and value != now[key]
            and not changed & {"scheduler", "lr", "depth_lr_ratio", "optimizer"}
        ):
            raise wrong(place, repr(now[key])[:60], value)


def check_number(value: Any, where: str) -> float:
    """A number, finite or not: scores may be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(where, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise wrong(where, "a number", value) from None


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
