"""Optimisers with one group each for hidden layers, heads and depth."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unbounded.steps.options import DEPTH_LR_RATIO

if TYPE_CHECKING:
    from unbounded.model import UDN


def param_groups(
    model: "UDN", lr: float, depth_lr_ratio: float = DEPTH_LR_RATIO, **options: Any
) -> list[dict[str, Any]]:
    """Up to three named groups for any `torch.optim` optimiser; `unbounded.growth` extends them.

    The parameters of the likelihood (a learnt noise) go with the heads. The depth group has
    no weight decay: decay would pull softplus⁻¹(λ) towards 0 and λ towards 0.69.

    Args:
        model: the model to train.
        lr: rate of the weights.
        depth_lr_ratio: rate of λ, as a multiple of `lr`.
        options: further options of the hidden and head groups, such as `weight_decay`.
    """
    if not depth_lr_ratio >= 0:
        raise ValueError(f"depth_lr_ratio must be at least 0, got {depth_lr_ratio}")
    roles: dict[str, list[tuple[str, nn.Parameter]]]
    roles = {"hidden": [], "heads": [], "likelihood": [], "depth": []}
    # What is whole and what is in shards cannot take a step of one kernel together.
    rest = "likelihood" if model.network.placement.apart else "heads"
    for name, parameter in model.named_parameters():
        if name.startswith("network.hidden."):
            roles["hidden"].append((name, parameter))
        elif name.startswith("depth."):
            roles["depth"].append((name, parameter))
        elif name.startswith("network."):
            roles["heads"].append((name, parameter))
        else:
            roles[rest].append((name, parameter))
    # A group without parameters (heads that are the identity) would have no names, and torch wants
    # all groups to have them or none.
    groups: list[dict[str, Any]] = [
        {"role": role, "params": roles[role], "lr": lr, **options}
        for role in ("hidden", "heads", "likelihood")
        if roles[role]
    ]
    if roles["depth"]:  # a fixed depth has nothing to learn
        groups.append(
            {"role": "depth", "params": roles["depth"], "lr": lr * depth_lr_ratio}
            | {"weight_decay": 0.0}
        )
    return groups


def make_optimizer(
    model: "UDN",
    kind: type[torch.optim.Optimizer] = torch.optim.Adam,
    lr: float = 0.005,
    *,
    depth_lr_ratio: float = DEPTH_LR_RATIO,
    **options: Any,
) -> torch.optim.Optimizer:
    """Any `torch.optim` optimiser over `param_groups`; its `load_state_dict` goes by names.

    Args:
        model: the model to train.
        kind: the optimiser's class.
        lr: rate of the weights.
        depth_lr_ratio: rate of λ, as a multiple of `lr`.
        options: passed to the optimiser, such as `momentum` or `weight_decay`.
    """
    if not lr > 0:
        raise ValueError(f"lr must be positive, got {lr}")
    if "fused" not in options and kind in (torch.optim.Adam, torch.optim.AdamW):
        options["fused"] = True  # one kernel a group instead of a dozen a parameter
    groups = param_groups(model, lr, depth_lr_ratio)
    if "weight_decay" not in kind.__init__.__code__.co_varnames:
        for group in groups:
            group.pop("weight_decay", None)
    optimizer = kind(groups, lr=lr, **options)  # type: ignore[call-arg]
    optimizer.register_load_state_dict_pre_hook(_by_name)
    return optimizer


def _by_name(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
    """A state in the order of this optimiser's parameters: torch itself goes by position.

    Its parameters stand in the order of their births, which may be another one than that of a
    model that was built anew: heads of shallower depths may come after deeper ones.
    """
    pairs = list(zip(optimizer.param_groups, state["param_groups"], strict=False))
    if len(optimizer.param_groups) != len(state["param_groups"]) or not all(
        "param_names" in group for pair in pairs for group in pair
    ):
        return None  # torch says what is wrong, or goes by position
    groups = []
    for own, saved in pairs:
        numbers = dict(zip(saved["param_names"], saved["params"], strict=True))
        if set(numbers) != set(own["param_names"]):
            odd = min(set(numbers) ^ set(own["param_names"]))
            raise ValueError(
                f"{odd} is in one of the optimiser and its saved state only: load the model's "
                "state first, and have the optimiser take its layers in (unbounded.growth.resize)"
            )
        ordered = [numbers[name] for name in own["param_names"]]
        groups.append({**saved, "param_names": list(own["param_names"]), "params": ordered})
    return {**state, "param_groups": groups}


def optimizer_kind(given: Any) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of an optimiser and its arguments from a class or a partial of one."""
    if given is None:
        return torch.optim.Adam, {}
    if isinstance(given, partial) and not given.args:
        return given.func, dict(given.keywords)  # type: ignore[return-value]
    if isinstance(given, type) and issubclass(given, torch.optim.Optimizer):
        return given, {}
    raise TypeError(
        "optimizer must be a torch.optim class, a functools.partial of one with keywords, or an "
        f"optimiser for the one model, got {given!r}"
    )
