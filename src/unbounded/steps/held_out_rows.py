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


def behind(gaps: Tensor, q: Tensor) -> Tensor:
    """How far scores drift apart under q, in ways other than deeper depths pulling ahead.

    What all depths have in common decides nothing. Where the deeper ones gain on the others there
    is no reason to wait either; so of the deviation of the gaps that part is left out which is
    a line that rises with depth.

    Args:
        gaps: by how much each depth's score has changed of late, `(members, depth)`.
        q: q(ℓ), likewise.

    Returns:
        (Var_q(gap) − [Cov_q(gap, ℓ)/sd_q(ℓ)]₊²)^½, `(members,)`.
    """
    depths = torch.arange(1, q.shape[1] + 1, dtype=q.dtype, device=q.device)
    gaps, offsets = (t - (q * t).sum(1, keepdim=True) for t in (gaps, depths.expand_as(q)))
    along = (q * gaps * offsets).sum(1) / (q * offsets**2).sum(1).clamp(min=1e-12).sqrt()
    return ((q * gaps**2).sum(1) - along.clamp(min=0) ** 2).clamp(min=0).sqrt()
