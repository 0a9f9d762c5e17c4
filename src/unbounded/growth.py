"""Birth and death of layers: decide (`plan`, pure), then act (`apply`, the only code that mutates).

Before each evaluation of the ELBO the support of q(ℓ; λ) is computed and missing layers are
created (the paper's Algorithm 1). The optimiser's groups are extended in place: a new group in
mid-run would break schedulers that keep one entry a group.

Nothing bounds λ, so memory must: `check_room` stands between the two. It estimates what the new
layers take and refuses a birth that would take more than `MEMORY_SHARE` of what is free.
"""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from unbounded import devices
from unbounded.layers.draws import drawing_from

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.network import Network

ROLES = ("hidden", "heads", "depth")
"""The optimiser's groups: hidden layers, heads (with the likelihood's parameters), depth."""

MEMORY_SHARE = 0.8
"""A birth may take this share of the memory that is free."""

LARGEST_BIRTH = 10_000
"""More layers at once are refused however much memory there is: λ has jumped."""

MODULE_BYTES = 24 * 1024
"""What a layer and its head take besides numbers, as objects of Python and torch."""

ACTIVATION_COPIES = 4
"""How many tensors of the size of its output a layer keeps in a step: before and after the
activation or normalisation, and their gradients."""

USUAL_SLOTS = 2
"""Numbers that an optimiser keeps of each weight, as Adam does, where it has not begun yet."""


class TooDeepError(MemoryError):
    """The layers that q(ℓ; λ) asks for would not fit into memory; nothing has been taken."""


class GrowthPlan(NamedTuple):
    """What has to change so that the network covers the support of q(ℓ; λ)."""

    hidden: range  # depths whose hidden layer is to be born
    heads: range  # depths whose head is to be born
    drop_from: int | None = None  # layers from this depth on are to be dropped

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.hidden) or bool(self.heads) or self.drop_from is not None


def plan(
    model: "UDN", *, drop_inactive: bool = False, support: tuple[int, int] | None = None
) -> GrowthPlan:
    """What is missing for (and, if asked, what lies beyond) the support; changes nothing.

    Args:
        model: the model.
        drop_inactive: layers beyond the support are to go.
        support: first and last depth, where the caller knows them; else the family is asked.
    """
    network = model.network
    first, last = support or (model.depth.first_depth(), model.depth.max_depth())
    born = network.num_layers
    hidden = range(born + 1, last + 1)
    if network.shares_head:
        heads = range(1, 2) if not network.heads else range(0)
    elif str(last) in network.heads and str(first) in network.heads:
        heads = range(0)
    else:
        start = next(d for d in range(first, last + 1) if str(d) not in network.heads)
        heads = range(start, last + 1)
    drop = last + 1 if drop_inactive and born > last else None
    return GrowthPlan(hidden, heads, drop)


class Room(NamedTuple):
    """What a new layer takes besides its weights."""

    copies: int = 0  # further tensors as large as the weights: gradients, optimiser, best epoch
    inputs: Sequence[int] = (0,)  # shape of a batch
    members: int = 1  # networks that all get the layer

    @classmethod
    def in_training(
        cls,
        optimizer: torch.optim.Optimizer,
        inputs: Sequence[int],
        kept: int = 0,
    ) -> "Room":
        """Of a step by an optimiser: gradients, its state, and `kept` copies."""
        parameters = (p for p in unwrapped(optimizer).state if isinstance(p, Tensor))
        known = next(parameters, None)
        slots = USUAL_SLOTS
        if known is not None:
            state = unwrapped(optimizer).state[known].values()
            slots = sum(isinstance(v, Tensor) and v.shape == known.shape for v in state)
        return cls(1 + slots + kept, inputs)


def check_room(model: "UDN", last: int, born: int, room: Room = Room()) -> None:  # noqa: B008
    """A `TooDeepError` unless the layers born+1 … last fit into memory, by this rule.

    A new layer and its head are taken to be as large as the deepest that are there. They take
    their weights once and `room.copies` times more, and `MODULE_BYTES`. In a step every layer, new
    or not, takes `ACTIVATION_COPIES` tensors of the size of its outputs: rows times outputs (times
    positions, in an image or sequence). All of this must be less than `MEMORY_SHARE` of
    `devices.free_memory`. Where nobody knows what is free, only `LARGEST_BIRTH` counts.
    """
    count = last - born
    if count <= 0:
        return
    advice = (
        "give the depth family a limit=, the depth prior less mass on deep networks, or λ a lower "
        "learning rate (depth_lr_ratio=)"
    )
    asked = f"q(ℓ; λ) asks for {last:,} layers, {born:,} are there"
    if count > LARGEST_BIRTH:
        raise TooDeepError(f"{asked}, and no more than {LARGEST_BIRTH:,} come at once: {advice}")
    each, in_step = _layer_bytes(model, room)
    needed = room.members * (count * each + last * in_step)
    free = devices.free_memory(model.anchor.device)
    if free is not None and needed > MEMORY_SHARE * free:
        raise TooDeepError(
            f"{asked}: the new ones take about {needed / 2**30:,.2g} GiB, more than "
            f"{MEMORY_SHARE:.0%} of the {free / 2**30:,.2g} GiB that are free: {advice}"
        )


def _layer_bytes(model: "UDN", room: Room) -> tuple[int, int]:
    """The rule of `check_room` for one layer and its head: for good, and in a step."""
    network = model.network
    layer, head = (
        next((box[depth] for depth in reversed(box._modules)), nn.Identity())
        for box in (network.hidden, network.heads)
    )
    weights, outputs = 0, 0
    for module, positions in ((layer, _positions(network, layer, room.inputs)), (head, 1)):
        for parameter in module.parameters():
            weights += parameter.numel()
            if parameter.dim() > 1:
                outputs += parameter.shape[0] * positions
    size = model.anchor.element_size()
    held = math.ceil(weights * network.placement.share)
    for_good = size * held * (1 + room.copies) + MODULE_BYTES
    return for_good, size * ACTIVATION_COPIES * room.inputs[0] * outputs


def _positions(network: "Network", layer: nn.Module, inputs: Sequence[int]) -> int:
    """At how many places of an image or sequence a layer is computed."""
    if not any(p.dim() > 2 for p in layer.parameters()):
        return math.prod(inputs[1:-1])
    strides = 1
    for earlier in network.hidden.values():
        found = (getattr(module, "stride", 1) for module in earlier.modules())
        strides *= max(math.prod(s) if isinstance(s, tuple) else 1 for s in found)
    return max(1, math.prod(inputs[2:]) // strides)


def apply(change: GrowthPlan, model: "UDN", optimizer: torch.optim.Optimizer | None = None) -> None:
    """Carry the plan out on the network and, if given, on the optimiser."""
    if not change.changes:
        return
    network = model.network
    if change.drop_from is not None:
        _drop(model, range(change.drop_from, network.num_layers + 1), optimizer)
    born: dict[str, list[tuple[str, nn.Parameter]]] = {"hidden": [], "heads": []}
    for role, depths in (("hidden", change.hidden), ("heads", change.heads)):
        container = network.hidden if role == "hidden" else network.heads
        for depth in depths:
            if str(depth) in container:
                continue
            module = create(model, role, depth)
            network.placement.place(module)
            container[str(depth)] = module
            prefix = f"network.{role}.{depth}"
            born[role] += [(f"{prefix}.{name}", p) for name, p in module.named_parameters()]
    if optimizer is not None:
        for role, named in born.items():
            extend(optimizer, role, named, model)


def grow(
    model: "UDN",
    optimizer: torch.optim.Optimizer | None = None,
    *,
    drop_inactive: bool = False,
) -> GrowthPlan:
    """`plan`, `check_room` and `apply` in one call; returns what was done."""
    change = plan(model, drop_inactive=drop_inactive)
    last = change.hidden.stop - 1
    check_room(model, last, model.network.num_layers)
    if not model.network.num_layers and last > 2:
        # The first layers tell how large the others will be.
        apply(GrowthPlan(range(1, 3), range(change.heads.start, min(3, change.heads.stop))), model)
        check_room(model, last, 2)
    apply(change, model, optimizer)
    return change


def cut(model: "UDN", num_layers: int, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Drop the layers behind `num_layers`, with their heads and optimiser state."""
    _drop(model, range(num_layers + 1, model.network.num_layers + 1), optimizer)


def resize(model: "UDN", num_layers: int, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Have exactly `num_layers` layers, born or dropped as needed, as a saved state had them."""
    cut(model, num_layers, optimizer)
    network = model.network
    first = 1 if network.shares_head else model.depth.first_depth()
    heads = range(1, 2) if network.shares_head else range(first, num_layers + 1)
    apply(GrowthPlan(range(network.num_layers + 1, num_layers + 1), heads), model, optimizer)


def create(model: "UDN", role: str, depth: int) -> nn.Module:
    """A new hidden layer or head. Its first weights depend on the model's seed and ℓ alone."""
    layers = model.layers
    generator = torch.Generator().manual_seed(birth_seed(model.seed, role, depth))
    with torch.device("cpu"), drawing_from(generator):
        module = layers.hidden(depth) if role == "hidden" else layers.head(depth)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the layers must give an nn.Module as {role} of depth {depth}, "
            f"got {type(module).__name__}"
        )
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise ValueError(
            f"the {role} of depth {depth} is a lazy module: give its sizes, "
            "so that its first weights depend on the seed and the depth alone"
        )
    module.train(model.training)
    like = _reference(model)
    module.to(device=like.device, dtype=like.dtype)
    images = any(t.dim() == 4 for t in (*module.parameters(), *module.buffers()))
    if images and _is_channels_last(model.network):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if role == "heads":
        layers.join(model.network.hidden["1"], module)
    return module


def whole_copy(model: "UDN", role: str, depth: int) -> nn.Module:
    """A hidden layer or head with all of its weights, of one that may be spread over processes."""
    network = model.network
    found = (network.hidden if role == "hidden" else network.heads)[str(depth)]
    module = create(model, role, depth)
    module.load_state_dict({k: network.placement.whole(v) for k, v in found.state_dict().items()})
    module.train(found.training)
    for own, other in zip(module.parameters(), found.parameters(), strict=True):
        own.requires_grad_(other.requires_grad)
    return module


def birth_seed(seed: int, role: str, depth: int) -> int:
    """A seed for the birth of one module, independent between seeds, roles and depths."""
    sequence = np.random.SeedSequence([seed, ROLES.index(role), depth])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def extend(
    optimizer: torch.optim.Optimizer,
    role: str,
    named: list[tuple[str, nn.Parameter]],
    model: "UDN",
) -> None:
    """Append parameters to the group of their role, in place, without touching other state.

    Those of a layer that stands at an earlier depth too are there already.
    """
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    # By identity: one module may be born at several depths at once.
    named = list({id(p): (name, p) for name, p in reversed(named) if id(p) not in known}.values())
    named.reverse()
    if not named:
        return
    optimizer = unwrapped(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS keeps one flat history of all parameters: its model cannot grow")
    group = _group(optimizer, role, model)
    begun = any("momentum_buffer" in optimizer.state.get(p, {}) for p in group["params"])
    parameters = [p for _, p in named]
    group["params"].extend(parameters)
    if "param_names" in group:
        group["param_names"].extend(name for name, _ in named)
    # Some optimisers (Adagrad before torch 2.12) fill their state when they are built. A throwaway
    # one of the same kind tells what the state of a fresh parameter is.
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    fresh = type(optimizer)([{**options, "params": parameters}], **_defaults(optimizer))
    for parameter in parameters:
        if fresh.state.get(parameter):
            optimizer.state[parameter] = fresh.state[parameter]
        elif begun and isinstance(optimizer, torch.optim.SGD) and group["fused"]:
            # The fused kernel wants momentum for all parameters or, before a first step, for none.
            optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """The optimiser inside of those that wrap it, as Lightning and Accelerate do."""
    while True:
        inner = getattr(optimizer, "optimizer", None) or getattr(optimizer, "_optimizer", None)
        if inner is None or inner is optimizer or not hasattr(inner, "param_groups"):
            return optimizer
        optimizer = inner


def _group(optimizer: torch.optim.Optimizer, role: str, model: "UDN") -> dict[str, Any]:
    """The group of a role: the one named so, else that of the deepest older module with one."""
    for group in optimizer.param_groups:
        if group.get("role") == role:
            return group
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    container = model.network.hidden if role == "hidden" else model.network.heads
    for depth in sorted(container._modules, key=int, reverse=True):
        for parameter in container[depth].parameters():
            if id(parameter) in groups:
                return groups[id(parameter)]
    if len(optimizer.param_groups) == 1:
        return optimizer.param_groups[0]
    named = next((g for g in optimizer.param_groups if g.get("role") in ROLES[:2]), None)
    if named is not None:  # the first modules of this role had no parameters
        return named
    raise ValueError(
        f"no group of the optimiser holds the {role}: build its groups with "
        f"unbounded.training.param_groups, or give one of them the key role={role!r}"
    )


def _defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The options that the constructor takes; `defaults` of some optimisers hold more."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        return dict(optimizer.defaults)
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}


def _drop(model: "UDN", depths: Iterable[int], optimizer: torch.optim.Optimizer | None) -> None:
    gone: set[int] = set()
    network = model.network
    containers = [network.hidden] if network.shares_head else [network.hidden, network.heads]
    for depth in depths:
        for container in containers:
            if str(depth) in container:
                gone.update(id(p) for p in container[str(depth)].parameters())
                del container[str(depth)]
    gone -= {id(p) for p in network.parameters()}  # of layers that stand at several depths
    if optimizer is None or not gone:
        return
    optimizer = unwrapped(optimizer)
    for parameter in [p for p in optimizer.state if id(p) in gone]:
        del optimizer.state[parameter]
    for group in optimizer.param_groups:
        keep = [index for index, p in enumerate(group["params"]) if id(p) not in gone]
        # In place: whoever holds the group or its list goes on seeing the truth.
        if "param_names" in group:
            group["param_names"][:] = [group["param_names"][index] for index in keep]
        group["params"][:] = [group["params"][index] for index in keep]


def _reference(model: "UDN") -> Tensor:
    """A floating-point tensor that stands for the model's device and dtype."""
    network = model.network
    modules = (m for box in (network.hidden, network.heads) for m in box._modules.values())
    # Not by `network.parameters()`, which sorts all layers: births would take ever longer.
    parameters = (p for module in modules if module is not None for p in module.parameters())
    return next((p for p in parameters if p.is_floating_point()), model.anchor)


def _is_channels_last(network: nn.Module) -> bool:
    """Whether some convolution's weight is laid out channels-last and not also contiguous."""
    return any(
        p.dim() == 4
        and p.is_contiguous(memory_format=torch.channels_last)
        and not p.is_contiguous()
        for p in network.parameters()
    )
