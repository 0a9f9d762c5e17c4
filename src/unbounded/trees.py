"""Inputs with parts: tensors alone, or in tuples and dicts, all with the rows as their first axis.

What is done to the rows of a tensor (indexing, moving, padding) is done to each part alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A tensor, or tuples and dicts of tensors, as deep as one likes; None stands for no part."""


def is_tree(values: Any) -> bool:
    """Whether values are parts rather than one array: a dict, or a tuple of arrays or of parts.

    Lists, and tuples of plain numbers, are arrays.
    """
    if isinstance(values, dict):
        return bool(values)
    return (
        isinstance(values, tuple)
        and len(values) > 0
        and all(part is None or is_tree(part) or hasattr(part, "shape") for part in values)
    )


def mapped(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The tree with each part replaced by what the function gives; None stays."""
    if isinstance(tree, Tensor):  # the usual case, at no cost
        return function(tree)
    return pytree.tree_map(lambda part: None if part is None else function(part), tree)


def leaves(tree: Tree) -> list[Any]:
    """The parts, in order, without those that are None."""
    if isinstance(tree, Tensor):
        return [tree]
    return [part for part in pytree.tree_leaves(tree) if part is not None]


def num_rows(tree: Tree) -> int:
    """How many rows all parts have; a ValueError if they differ."""
    counts = {int(part.shape[0]) for part in leaves(tree) if part.dim()}
    if len(counts) != 1:
        raise ValueError(f"the parts of an input must have the same rows, got {sorted(counts)}")
    return counts.pop()


def rows(tree: Tree, index: Any) -> Tree:
    """Some rows of each part, by a slice or a tensor of numbers."""
    return mapped(lambda part: part[index], tree)


def split(tree: Tree, size: int) -> list[Tree]:
    """Pieces of so many rows; the last may have fewer."""
    return [rows(tree, slice(at, at + size)) for at in range(0, num_rows(tree), size)]


def moved(tree: Tree, device: torch.device, dtype: torch.dtype | None = None) -> Tree:
    """Each part on the device, floating ones in the dtype if one is given."""
    return mapped(
        lambda part: part.to(
            device,
            part.dtype if dtype is None or not part.is_floating_point() else dtype,
            non_blocking=True,
        ),
        tree,
    )


def kind(tree: Tree) -> tuple[Any, ...]:
    """What two trees must share so that their rows can be put together."""
    parts, structure = pytree.tree_flatten(tree)
    return str(structure), *((p.shape[1:], p.dtype) if p is not None else None for p in parts)


def joined(trees: Sequence[Tree]) -> Tree:
    """The rows of several trees of one kind, one after another."""
    return pytree.tree_map(lambda *parts: None if parts[0] is None else torch.cat(parts), *trees)


def padded(trees: Sequence[Tree], value: float = 0) -> Tree:
    """Trees of single rows, `(time, …)` each, as one of `(rows, longest time, …)`.

    Shorter ones are filled up at their end: numbers with `value`, a mask (of bools) with False.
    """

    def stacked(*parts: Tensor) -> Tensor | None:
        missing = sum(part is None for part in parts)
        if missing == len(parts):
            return None
        if missing:
            raise ValueError(f"{missing} of {len(parts)} rows lack a part that the others have")
        longest = max(part.shape[0] for part in parts)
        fill = False if parts[0].dtype == torch.bool else value
        before = (0, 0) * (parts[0].dim() - 1)
        ends = [(*before, 0, longest - part.shape[0]) for part in parts]
        return torch.stack([F.pad(p, e, value=fill) for p, e in zip(parts, ends, strict=True)])

    if not trees:
        raise ValueError("there are no rows to pad, at least one is needed")
    return pytree.tree_map(stacked, *trees)


def first(tree: Tree) -> Tensor:
    """The first part: it stands for the device and the shape."""
    found: Tensor = leaves(tree)[0]
    return found


def extent(tree: Tree) -> tuple[int, ...]:
    """The shape `(rows, …, features)` of the first part; integers, as tokens, have one feature."""
    part = first(tree)
    shape = tuple(part.shape)
    return shape if part.is_floating_point() or len(shape) < 2 else (*shape, 1)


def are_integers(numbers: Tensor) -> bool:
    """Whether a tensor is of integers, of any length."""
    return not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
