"""Means over the held-out rows of one model or many, with their errors."""

import math

import torch
from torch import Tensor

from unbounded.depth import TruncatedNormal
from unbounded.schema import FileError

LITTLE = 1e-3
"""Depths with less mass are hardly trained, so what they score says little."""
_SURE = 3.0  # standard errors above guessing from which on something generalises,
_ENOUGH = 0.05  # if it is so many nats a row,
_FITTED = 0.3  # or if so many are learnt of training rows, and no more than that generalises
_MUCH = 1e12  # nats a row: what is learnt where there is no guess to compare with


def zeros(*shape: int) -> Tensor:
    """In double precision."""
    return torch.zeros(*shape, dtype=torch.float64)


def total(rows: Tensor, weights: Tensor | None, most: float) -> Tensor:
    """n, the number of held-out rows, or `most`, of `(members, depth, rows)`: `(members,)`."""
    if weights is None:
        return rows.new_full((len(rows),), min(rows.shape[2], most))
    return weights.double().sum(1).clamp(max=most)


def scores(log_lik: Tensor, guess: Tensor | None, inside: Tensor) -> tuple[Tensor, Tensor | None]:
    """r of all rows and depths, and log p₀, in double precision; every number is finite.

    A depth whose likelihood is no number is as bad as can be, so half the guess is left. A row says
    nothing where there is no guess to fall back on: 0 at all depths, with a guess of 0.

    Args:
        log_lik: log p(y_i; Ω_ℓ(x_i)), `(members, depth, rows)`.
        guess: log p₀(y_i), `(members, rows)`; without it r is the log-likelihood.
        inside: whether a depth has mass, `(members, depth)`; others score 0.
    """
    found, here = log_lik.double(), inside[..., None]
    if guess is None:
        says = (found.isfinite() | ~here).all(1, keepdim=True)
    else:
        says = guess.isfinite()[:, None]
        guess = torch.where(says[:, 0], guess.double(), 0.0)
        found = torch.where(found.isfinite(), found, -torch.inf)
        found = torch.logaddexp(found, guess[:, None]) - math.log(2)
    return torch.where(here & says, found, 0.0), guess


def evened(values: Tensor, weights: Tensor) -> Tensor:
    """Values whose plain mean and its standard error are those of the weighted values.

    Rows of different looks that share a place have different weights; these can be averaged.

    Args:
        values: `(members, depth, rows)`.
        weights: how often each row counts, `(members, rows)`.

    Returns:
        m + (v − m)·w / w̄, where m is the weighted mean and w̄ the mean weight.
    """
    middle = mean(values, weights)[..., None]
    return middle + (values - middle) * (weights / weights.mean(1, keepdim=True))[:, None].double()


def even(weights: Tensor) -> Tensor:
    """Equal weights of the same sum, `(members, rows)`: those of `evened` values."""
    return weights.double().mean(1, keepdim=True).expand_as(weights)


def resized(rows: Tensor, count: int) -> Tensor:
    """Other rows, so many, with the same means and standard errors: `(members, depth, count)`.

    For a look at fresh rows that are more or fewer than before: what is known is known as well.
    """
    before = rows.shape[2]
    if not before:
        return rows.new_zeros(*rows.shape[:2], count)
    chosen = rows[:, :, torch.arange(count, device=rows.device) * before // count]
    spread = (chosen - chosen.mean(2, keepdim=True)) * math.sqrt(count / before)
    return rows.mean(2, keepdim=True) + spread


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
        count = values.new_full((), values.shape[-1])
        return _error(squares.sum(-1), count, count)
    weights = weights.double()
    squares = (squares @ weights[..., None] ** 2)[..., 0]
    return _error(squares, weights.sum(1, keepdim=True), (weights**2).sum(1, keepdim=True))


def _error(squares: Tensor, total: Tensor, total_squares: Tensor) -> Tensor:
    """Of a weighted mean m of s, from Σ w²(s − m)², Σ w and Σ w²."""
    count = total**2 / total_squares  # rows of equal weight that would say as much
    return (squares / total**2 * count / (count - 1).clamp(min=1)).sqrt()


def sums(scores: Tensor, weights: Tensor | None) -> Tensor:
    """Σ w, Σ ws, Σ w², Σ w²s and Σ w²s² over rows; sums of parts can be added.

    Args:
        scores: s, `(…, rows)`.
        weights: w, which broadcast with them; 1 each where it is None. A row of weight 0 may have
            any score.

    Returns:
        In double precision, so that counts are exact: `(…, 5)`.
    """
    s = scores.double()
    if weights is None:
        w = torch.ones_like(s)
    else:
        w = weights.double().expand_as(s)
        s = torch.where(w > 0, s, 0.0)
    return torch.stack([w, w * s, w**2, w**2 * s, (w * s) ** 2], -2).sum(-1)


def mean_and_error(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the scores and its standard error, from the sums: `(…,)` each."""
    total, first, total_squares, cross, squares = sums.unbind(-1)
    mean = first / total
    squares = squares - 2 * mean * cross + mean**2 * total_squares
    return mean, _error(squares.clamp(min=0), total, total_squares)


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


def log_reference(rho: tuple[float, float], like: Tensor) -> Tensor:
    """log ρ(ℓ) for ℓ = 1 … as many as the last axis has."""
    place, spread = rho
    depths = torch.arange(1, like.shape[-1] + 1, dtype=like.dtype, device=like.device)
    return (-((depths - place) ** 2) / (2 * spread**2)).log_softmax(0)


def enlarged(tensor: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A tensor of that shape, on the device, which begins with what is there."""
    result = torch.zeros(shape, dtype=tensor.dtype, device=device)
    result[tuple(slice(0, size) for size in tensor.shape)] = tensor.to(device)
    return result


def checked_reference(reference: tuple[float, float]) -> tuple[float, float]:
    """Place and spread of a ρ; a ValueError if they are none."""
    expected = "reference must be a place and a spread"
    try:
        place, spread = map(float, reference)
    except (TypeError, ValueError):
        raise ValueError(f"{expected}, got {reference!r}") from None
    try:
        return TruncatedNormal.checked(place, spread)
    except ValueError as error:
        raise ValueError(f"{expected}: {error}") from None


def generalises(
    gains: Tensor,
    slow: Tensor,
    train: Tensor,
    q: Tensor,
    trained: Tensor,
    guess: Tensor | None,
    weights: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """1 if held-out rows can tell what layers are worth, else 0; and what is learnt of each row.

    The best depth that is trained must beat guessing for sure. That alone is too little: a line
    through a spiral is better than guessing for sure, and says nothing of what depth could do.

    Args:
        gains: running means of what each depth adds to r, `(members, depth, rows)`.
        slow: the means of r over rows that these add up to, `(members, depth)`.
        train: gains on training rows, `(members, depth)`.
        q: `(members, depth)`.
        trained: whether a depth has been trained of late, `(members, depth)`.
        guess: log p₀(y_i), `(members, rows)`.
        weights: how often each row counts, `(members, rows)`.
    """
    if guess is None:
        return gains.new_ones(len(gains)), gains.new_full((len(gains),), _MUCH)
    best = torch.where(q > LITTLE, slow, -torch.inf).argmax(1)[:, None, None]
    scores = gains.cumsum(1)
    ahead = scores.gather(1, best.expand(-1, 1, scores.shape[2])) - guess[:, None]
    lead = mean(ahead, weights)
    sure = lead > _SURE * standard_error(ahead, lead, weights)
    fitted = torch.where((q > LITTLE) & trained, train.cumsum(1), -torch.inf)
    fitted = fitted.amax(1, keepdim=True) - mean(guess[:, None], weights)
    sure = sure & ((lead > _ENOUGH) | (fitted > _FITTED))
    return sure[:, 0].double(), lead[:, 0].clamp(min=0)


def check_state(state: dict[str, Tensor], shape: tuple[int, ...], counts: list[int]) -> None:
    """A FileError unless a checkpoint's tensors of the rule fit together.

    Args:
        state: means by name, and single numbers of each model as "state".
        shape: of these numbers.
        counts: which of them are at least 0.
    """
    lengths = {state[name].shape[:2] for name in ("sums", "train", "gains", "fast", "seen")}
    differ = len(lengths) != 1 or next(iter(lengths))[0] != shape[0]
    if state["state"].shape[1:] != shape[1:]:
        raise FileError(
            f"the rule's tensor `state` has {state['state'].shape[1]} numbers, this version's has "
            f"{shape[1]}: it was written by another version"
        )
    if differ or state["state"].shape != shape:
        raise FileError("the tensors of the rule should be of one length")
    for name, value in state.items():
        if not bool(torch.isfinite(value).all()):
            raise FileError(f"the tensor rule.{name} holds numbers that are not finite")
    if bool((state["seen"] < 0).any()) or bool((state["state"][:, counts] < 0).any()):
        raise FileError("the counts of the rule should be at least 0")
