"""What tells one run from another: its data, options and models, as plain data for a checkpoint."""

import hashlib
import inspect
import json
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from unbounded import trees
from unbounded.engines.states import scheduler_settings
from unbounded.files import PARTS, built_in
from unbounded.growth import unwrapped
from unbounded.schema import FileError
from unbounded.steps.batches import as_tensor
from unbounded.steps.depth_rules import RateAscent
from unbounded.steps.disk import DiskData
from unbounded.steps.held_out import HeldOutAscent
from unbounded.steps.images import ImageData
from unbounded.steps.options import FitOptions
from unbounded.steps.streams import Stream

if TYPE_CHECKING:
    from unbounded.training.trainer import Trainer

_PIECE = 1 << 24  # bytes hashed at a time: of data on a GPU no second whole copy is made
# Where and how often files are written, or what is a list for the models and stands by itself.
_NOT_COMPARED = ("checkpoint_every", "chunk", "shard", "depth_lr_ratio", "optimizer", "scheduler")
_NONE = inspect.Parameter.empty
_FIXED = ("engine", "models", "dtype")
WORDS = tuple(
    dict.fromkeys(
        ["data", "weights", "validation", "monitor", "batch_size", "lr", "depth_lr_ratio", "seed"]
        + ["patience", "optimizer", "scheduler"]
        + [field.name for field in fields(FitOptions) if field.name not in _NOT_COMPARED]
        + [*PARTS, "cumulative_heads", "model_seed"]
    )
)
"""What `resume_despite` can name."""


def fingerprint(trainer: "Trainer") -> dict[str, Any]:
    """The run as plain data, by field: what a checkpoint of it has to be resumed with."""
    task, models = trainer.task, trainer.models
    known: dict[tuple[int, ...], Any] = {}
    several = trainer.processes.size > 1
    data = [_data(item, known, several) for item in task.data]
    sets = {
        name: _same([_data(item, known, several) for item in items])
        for name, items in task.sets.items()
    }
    found: dict[str, Any] = {
        "models": len(models),
        "engine": {"kind": type(trainer.engine).__name__, "lag": getattr(trainer.engine, "lag", 0)},
        "dtype": _same([str(model.anchor.dtype).removeprefix("torch.") for model in models]),
        "data": _same([{k: v for k, v in one.items() if k != "weights"} for one in data]),
        "weights": _same([one.get("weights") for one in data]),
        "validation": sets.pop("val", None),
        "monitor": sets,
        "batch_size": task.batch_size,
        "lr": _same(list(task.lr)),
        "depth_lr_ratio": _same(list(task.depth_lr_ratios)),
        "seed": _same(list(task.seeds)),
        "patience": trainer.patience,
        "optimizer": _optimizer(trainer),
        "scheduler": _scheduler(trainer),
        "cumulative_heads": _same([model.cumulative_heads for model in models]),
        "model_seed": _same([model.seed for model in models]),
    }
    for name in PARTS:
        found[name] = _same([_part(getattr(model, name)) for model in models])
    for field in fields(FitOptions):
        if field.name not in _NOT_COMPARED:
            found[field.name] = describe(getattr(trainer.options, field.name))
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def check_words(words: Sequence[str] | str) -> frozenset[str]:
    """The words of `resume_despite`, or a ValueError that lists all of them."""
    given = [words] if isinstance(words, str) else list(words)
    for word in given:
        if word not in WORDS:
            raise ValueError(
                f"resume_despite: {word!r} is nothing that can be accepted; "
                f"what can: {', '.join(WORDS)}"
            )
    return frozenset(given)


def check_same(then: dict[str, Any], now: dict[str, Any], accepted: frozenset[str]) -> frozenset:
    """What differs, if all of it was accepted.

    Args:
        then: the fingerprint in a file.
        now: that of the run which is to go on from it.
        accepted: words of `resume_despite`.

    Raises:
        FileError: one line that names every difference with both values.
    """
    for name in then.keys() ^ now.keys():
        what = "missing" if name in now else "not known to this version"
        raise FileError(f"the field fingerprint.{name} is {what}")
    then = {name: _completed(name, found, now[name]) for name, found in then.items()}
    differing = {name: _told(name, then[name], now[name]) for name in now}
    differing = {name: found for name, found in differing.items() if found}
    refused = {name: found for name, found in differing.items() if name not in accepted}
    if not refused:
        return frozenset(differing)
    lines = [
        "; ".join([*found[:3], f"and {len(found) - 3} more"] if len(found) > 3 else found)
        for found in refused.values()
    ]
    fixed = [name for name in refused if name in _FIXED]
    words = ", ".join(repr(name) for name in [*refused, *sorted(accepted - refused.keys())])
    instead = (
        f"resuming needs the same {fixed[0]}"
        if fixed
        else f"give what it was, or accept the change by resume_despite=[{words}]"
    )
    raise FileError(f"it is of another run: {'; '.join(lines)}. To go on, {instead}")


def _completed(name: str, then: Any, now: Any) -> Any:
    """A part of a model or a rule, with the defaults of arguments that its version did not have."""
    if isinstance(then, list):
        others = now if isinstance(now, list) and len(now) == len(then) else [now] * len(then)
        return [_completed(name, one, other) for one, other in zip(then, others, strict=True)]
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return then
    rules = {"HeldOutAscent": HeldOutAscent, "RateAscent": RateAscent}
    known = built_in(name) if name in PARTS else rules if name == "depth_rule" else {}
    kind = known.get(str(then.get("kind")))
    if kind is None or now.get("kind") != then["kind"]:
        return then
    defaults = {key: one.default for key, one in inspect.signature(kind).parameters.items()}
    missing = [key for key in now if key not in then]
    told = {k: describe(defaults[k]) for k in missing if defaults.get(k, _NONE) is not _NONE}
    return {**then, **told}


def describe(value: Any, deep: int = 4) -> Any:
    """A value as plain data, alike for values that do the same, as far as that can be known.

    Of a function its name, its own numbers and the plain values that it closes over; of other
    objects their class and plain attributes.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Tensor | np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return value.item()
    if deep == 0:
        return type(value).__qualname__
    inside: Callable[[Any], Any] = partial(describe, deep=deep - 1)
    if isinstance(value, partial):
        return {
            "partial of": inside(value.func),
            "arguments": [inside(one) for one in value.args],
            **{key: inside(one) for key, one in value.keywords.items()},
        }
    if isinstance(value, list | tuple | range | set | frozenset):
        return [inside(one) for one in value]
    if isinstance(value, dict):
        return {str(key): inside(one) for key, one in value.items()}
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        named = {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}
        named = {k: v for k, v in named.items() if _is_plain(v)}
    name = getattr(value, "__qualname__", type(value).__qualname__)  # a built-in function's own
    return {"kind": name, **{key: inside(one) for key, one in named.items()}} if named else name


def _function(value: types.FunctionType, inside: Callable[[Any], Any]) -> Any:
    closed = [cell.cell_contents for cell in value.__closure__ or () if _has_contents(cell)]
    named = {
        "closes over": [inside(one) for one in closed if _is_plain(one) or callable(one)],
        "defaults": [inside(one) for one in value.__defaults__ or () if _is_plain(one)],
        # Whole numbers are elsewhere in some versions of Python.
        "numbers": [one for one in value.__code__.co_consts if isinstance(one, float)],
    }
    named = {key: found for key, found in named.items() if found}
    return {"function": value.__qualname__, **named} if named else value.__qualname__


def _has_contents(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # not filled yet
        return False
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 1000 and all(_is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str)


def _part(part: Any) -> Any:
    """A part of a model, without what is learnt: that is in the file, and comes from there."""
    try:
        config = dict(part.config())
    except NotImplementedError:
        return describe(part)
    config.pop("concentration", None)  # `sharpen` moves it
    return {"kind": type(part).__name__, **{key: describe(v) for key, v in config.items()}}


def _optimizer(trainer: "Trainer") -> Any:
    """Its class and arguments; of one that is built already, those of its groups."""
    given = trainer.options.optimizer
    if given is None:
        return "Adam"
    if not hasattr(given, "param_groups"):
        return describe(given)
    groups = [
        {k: describe(v) for k, v in group.items() if k not in ("params", "param_names")}
        for group in given.param_groups
    ]
    for group in groups:  # what a scheduler moves
        group["lr"] = group.pop("initial_lr", group["lr"])
        for moved in ("max_lr", "min_lr"):
            group.pop(moved, None)
    return {"kind": type(unwrapped(given)).__name__, "groups": groups}


def _scheduler(trainer: "Trainer") -> Any:
    """Its class and settings, however it was made."""
    if trainer.options.scheduler is None:
        return None
    made = [scheduler_settings(m.scheduler) for m in getattr(trainer.engine, "members", ())]
    return _same([describe(settings) for settings in made])


def _data(item: Any, known: dict[tuple[int, ...], Any], several: bool) -> dict[str, Any]:
    """Data of a model by part; what several models share is looked at once."""
    parts = tuple(item) if isinstance(item, list | tuple) else (item,)
    key = tuple(id(part) for part in parts)
    if key not in known:
        known[key] = _describe_data(item, several)
    found: dict[str, Any] = known[key]
    return found


def _describe_data(item: Any, several: bool) -> dict[str, Any]:
    if isinstance(item, ImageData):
        found = {"x": _array(item.x), "y": _array(item.y)}
        return found | {name: describe(getattr(item, name)) for name in ("mean", "std", "augment")}
    if isinstance(item, DiskData):
        return item.describe()
    if isinstance(item, DataLoader):
        held = getattr(item.dataset, "tensors", None)  # of a TensorDataset
        kinds = {
            "loader": type(item).__qualname__,
            "order": type(item.sampler).__qualname__,
            "set": type(item.dataset).__qualname__,
        }
        if several:  # each process reads rows of its own
            return kinds
        return kinds | {
            "batches": _length(item),
            "batch_size": describe(item.batch_size),
            "rows": _length(item.dataset),
            "tensors": [_array(t) for t in held] if isinstance(held, tuple | list) else None,
        }
    if isinstance(item, Stream):
        source = describe(item.source) if callable(item.source) else type(item.source).__qualname__
        return {"stream": source, "steps": item.steps, "num_data": item.num_data}
    named = zip(("x", "y", "weights"), item, strict=False)
    return {name: None if value is None else _parts(value) for name, value in named}


def _parts(value: Any) -> Any:
    """An array, or the parts of an input by their names or places."""
    if not trees.is_tree(value):
        return _array(value)
    named = value.items() if isinstance(value, dict) else enumerate(value)
    return {str(name): None if part is None else _parts(part) for name, part in named}


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:
        return None


def _array(values: Any) -> dict[str, Any]:
    """Shape, dtype and a digest of the exact bytes."""
    tensor = as_tensor(values, "data").detach()
    digest = hashlib.sha256()
    for piece in _pieces(tensor):
        digest.update(piece)
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "digest": digest.hexdigest()[:32],
    }


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    if not tensor.is_contiguous():
        rows = max(1, _PIECE * len(tensor) // max(1, tensor.numel() * tensor.element_size()))
        for part in tensor.split(rows):
            yield from _pieces(part.contiguous())
        return
    flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_zeros(0)
    for piece in flat.split(_PIECE) if tensor.numel() else ():
        yield memoryview(piece.cpu().numpy())


def _same(values: list[Any]) -> Any:
    """One value that stands for all, or the list of them."""
    return values[0] if all(value == values[0] for value in values) else values


def _told(name: str, then: Any, now: Any) -> list[str]:
    found = differences(name, then, now)
    return [f"{where} was {short(one)}, is {short(other)}" for where, one, other in found]


def differences(name: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two values of plain data differ, with both."""
    if then == now and isinstance(then, bool) == isinstance(now, bool):
        return
    if isinstance(then, dict) and isinstance(now, dict) and then.keys() & now.keys():
        for key in dict.fromkeys([*now, *then]):
            yield from differences(f"{name}.{key}", then.get(key), now.get(key))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from differences(f"{name}[{index}]", one, other)
    else:
        yield name, then, now


def short(value: Any) -> str:
    """A value in a few words."""
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= 70 else shown[:69] + "…"
