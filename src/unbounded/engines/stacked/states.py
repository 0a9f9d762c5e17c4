"""The state of a stack: from a file, checked before anything is allocated; into its models."""

from typing import Any

import torch
from torch import Tensor

from unbounded import growth
from unbounded.engines.optimizer_states import check_tensor
from unbounded.engines.stacked.computation import Computation
from unbounded.engines.stacked.optimizers import RowAdam
from unbounded.engines.states import check_family, check_generator
from unbounded.files import under
from unbounded.layers.stacks import ParameterBlock, unpack_into
from unbounded.model import UDN
from unbounded.schema import FileError, flag, list_of, record, text, whole, wrong

Tensors = dict[str, Tensor]

_OF_RULES = frozenset({"depth_rule", "validation"})
"""What may be changed so that a depth rule begins anew."""


def check_stack(work: Computation, plain: Any, tensors: Tensors) -> dict[str, Any]:
    """The plain data, checked; a FileError if they ask for what the tensors do not hold."""
    count = len(work.models)
    depth = whole(1)

    def failure(value: Any, where: str) -> tuple[int, str]:
        number, why = list_of(lambda item, place: item, least=2, most=2)(value, where)
        return whole(0, count - 1)(number, f"{where}[0]"), text()(why, f"{where}[1]")

    found: dict[str, Any] = record(
        {
            "depth": depth,
            "drawn": flag,
            "alive": list_of(flag, least=count, most=count),
            "born": list_of(depth, least=count, most=count),
            "failures": list_of(failure, most=count),
        }
    )(plain, "state")
    if found["depth"] < work.depth:
        raise FileError(f"it has {found['depth']} layers, the models here {work.depth} already")
    births = tensors.get("state.births")
    if births is None or tuple(births.shape) != (count, found["depth"]):
        raise wrong("state.depth", "the length of the tensor state.births", found["depth"])
    # Layer by layer: what they would take must be there, before memory is asked for.
    held = sum(t.numel() for name, t in tensors.items() if name.endswith(".value"))
    held -= sum(block.value.numel() for block in work.blocks)
    for level in range(work.depth + 1, found["depth"] + 1):
        for role in ("hidden",) if work.shares_head else ("hidden", "heads"):
            module = growth.create(work.models[0], role, level)
            held -= count * sum(p.numel() for p in module.parameters() if p.requires_grad)
        if held < 0:
            raise FileError(f"it claims {found['depth']} layers and holds less than {level}")
    return found


def check_tensors(
    work: Computation, plain: dict[str, Any], tensors: Tensors, changed: frozenset[str]
) -> Tensors:
    """What `load_tensors` is to copy, by name; a FileError if it does not fit the computation."""
    own = work.tensors()
    del own["state.row"]
    tensors = _with_rule(work, tensors, changed)
    extra = {name for name in own if _may_miss(name, changed)}
    for name, tensor in own.items():
        if name in tensors or name not in extra:
            check_tensor(name, tensors.get(name), tensor)
    for name in tensors:
        if name not in own and not name.startswith("orders.") and not _may_miss(name, changed):
            raise FileError(f"the tensor {name} is not one of these models")
    depth = plain["depth"]
    for name, low, high in (
        ("born", 1, depth),
        ("best_born", 0, depth),
        ("births", 0, 2**53),
        ("step", 0, 2**53),
        ("failed", 0, 2**53),
        ("outgrown", 0, 0),
    ):
        value = tensors[f"state.{name}"]
        if bool(((value < low) | (value > high)).any()):
            raise FileError(f"the tensor state.{name} should hold whole numbers {low} to {high}")
    if tensors["state.alive"].tolist() != plain["alive"]:
        raise FileError("the tensor state.alive and the field state.alive differ")
    if any(n > b for n, b in zip(plain["born"], tensors["state.born"].tolist(), strict=True)):
        raise wrong("state.born", "at most what the tensor of that name holds", plain["born"])
    for index, block in enumerate(work.blocks):
        steps = tensors[f"block{index}.steps"]
        if not bool((torch.isfinite(steps) & (steps >= 0)).all()):
            raise FileError(f"the tensor block{index}.steps should hold numbers of at least 0")
        squares = f"block{index}.state1"
        if isinstance(work.optimizer, RowAdam) and bool((tensors[squares] < 0).any()):
            raise FileError(f"the tensor {squares} should hold no negative number")
        if block.role == "depth":
            _check_families(work, index, tensors, depth)
    return {name: tensors[name] for name in own if name in tensors}


def load_tensors(work: Computation, found: Tensors, changed: frozenset[str]) -> None:
    """Copy what `check_tensors` gave."""
    for name, tensor in work.tensors().items():
        if name in found:
            tensor.copy_(found[name])
    if "average" in changed:
        for index, block in enumerate(work.blocks):
            if block.average is not None and f"block{index}.average" not in found:
                block.average.copy_(block.value)  # from here on


def check_orders(work: Computation, drawn: bool, tensors: Tensors, changed: frozenset[str]) -> bool:
    """Whether the orders of rows can go on; a FileError if they should and cannot."""
    own, saved = work.orders.state(), under(tensors, "orders.")
    if "seed" in changed:
        return False
    if "data" in changed and any(saved[k].shape != own[k].shape for k in own if k in saved):
        return False
    for name, tensor in own.items():
        check_tensor(f"orders.{name}", saved.get(name), tensor)
    if len(saved) != len(own):
        raise FileError("there are tensors under orders that are not known to this version")
    for generator, state in zip(work.orders.generators, saved["generators"], strict=True):
        check_generator("orders.generators", state, generator)
    for row, size in zip(saved["next"], work.orders.row_sizes, strict=True):
        if drawn and not torch.equal(row[:size].sort().values, torch.arange(size)):
            raise FileError("the tensor orders.next should hold every row's number once")
    return True


def _with_rule(work: Computation, tensors: Tensors, changed: frozenset[str]) -> Tensors:
    """The tensors, without those of the depth rule if that may begin anew and has to."""
    own = {} if work.rule is None else work.rule.rule.state()
    found = under(tensors, "rule.")
    alike = {k: t.shape for k, t in own.items()} == {k: t.shape for k, t in found.items()}
    if not alike and changed & _OF_RULES:
        return {name: t for name, t in tensors.items() if not name.startswith("rule.")}
    if work.rule is not None and alike:
        work.rule.rule.check_state(found)
    return tensors


def _may_miss(name: str, changed: frozenset[str]) -> bool:
    """Whether a tensor is one that a run without (or with) this has not (or has)."""
    if name.startswith("rule."):
        return bool(changed & _OF_RULES)
    of_best = name.endswith(".best") or name.startswith("best_buffer.")
    of_average = name.endswith(".average")
    return (of_best and "validation" in changed) or (of_average and "average" in changed)


def _check_families(work: Computation, index: int, tensors: Tensors, depth: int) -> None:
    block = work.blocks[index]
    run = next(run for run in work.depths.runs if run.block is block)
    for kind in ("value", "best", "average"):
        name = f"block{index}.{kind}"
        if name in tensors:
            numbers = block.shape.unpack(tensors[name][0])
            for member in range(block.members.stop - block.members.start):
                own = {key: values[member] for key, values in numbers.items()}
                check_family(run.family, own, depth, f"{name}.")


@torch.no_grad()
def write_block(model: UDN, block: ParameterBlock, rows: Tensor) -> None:
    """Give a model its rows `(rows, size)` of a block."""
    if block.role in ("depth", "likelihood"):
        unpack_into(getattr(model, block.role), block.shape, rows[0])
    else:
        container = model.network.hidden if block.role == "hidden" else model.network.heads
        for depth, row in zip(block.depths, rows, strict=True):
            if str(depth) in container:
                unpack_into(container[str(depth)], block.shape, row)


@torch.no_grad()
def write_buffers(model: UDN, place: int, buffers: dict[str, Tensor]) -> None:
    """Give a model its rows of all buffers."""
    for name, tensor in buffers.items():
        role, depth, rest = name.split(".", 2)
        container = model.network.hidden if role == "hidden" else model.network.heads
        own = dict(container[depth].named_buffers()) if depth in container else {}
        if rest in own:
            own[rest].copy_(tensor[place])
