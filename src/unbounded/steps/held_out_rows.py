"""Means over the held-out rows of one model or many, with their errors."""

import torch
from torch import Tensor


def total(rows: Tensor, weights: Tensor | None) -> Tensor:
    """n, the number of held-out rows, of `(members, depth, rows)`: `(members,)`."""
    if weights is None:
        return rows.new_full((len(rows),), rows.shape[2])
    return weights.double().sum(1)


def added(scores: Tensor) -> Tensor:
    """What each depth adds to the one before, the first to nothing: `(members, depth, …)`."""
    return torch.cat([scores[:, :1], scores.diff(dim=1)], 1)


def mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Over the rows: `(members, depth, rows)` → `(members, depth)`."""
    if weights is None:
        return values.mean(-1)
    weights = weights.double()
    return (values @ weights[..., None])[..., 0] / weights.sum(1, keepdim=True)


def standard_error(values: Tensor, means: Tensor, weights: Tensor | None) -> Tensor:
    """Of such a mean: `(members, depth)`."""
    squares = (values - means[..., None]) ** 2
    if weights is None:
        return (squares.mean(-1) / max(values.shape[-1] - 1, 1)).sqrt()
    weights = weights.double()
    count = weights.sum(1, keepdim=True) ** 2 / (weights**2).sum(1, keepdim=True)  # as if equal
    variance = (squares @ weights[..., None] ** 2)[..., 0] / weights.sum(1, keepdim=True) ** 2
    return (variance * count / (count - 1).clamp(min=1)).sqrt()
