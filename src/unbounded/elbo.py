"""The objective 𝓛(q), as pure functions of tensors.

Everything is in nats and for the whole data set of `num_data` points. With q(θ|ℓ) = N(ν, s²I)
and the paper's first-order approximation E[g(θ)] ≈ g(ν), the final equation of section 3.1 reads

    𝓛(q) = Σ_ℓ q(ℓ) Σ_i log p(y_i; Ω_ℓ(x_i; ν))      expected_log_lik
         − Σ_ℓ q(ℓ) log q(ℓ)/p(ℓ)                     depth_kl
         − Σ_ℓ q(ℓ) [Σ_{k≤ℓ} KL_k + KL of head ℓ]     weight_kl

With that approximation 𝓛 is a surrogate and not a lower bound on log p(Y | X): the log-likelihood
is taken at the mean ν of q(θ), not averaged over it.

All tensors may have leading axes, one for many models at once: `(*lead, depth)` and
`(*lead, depth, batch)`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class ElboTerms(NamedTuple):
    """The three terms of 𝓛(q) in nats for the whole data set, `(*lead,)` each."""

    expected_log_lik: Tensor
    depth_kl: Tensor
    weight_kl: Tensor

    @property
    def elbo(self) -> Tensor:
        """𝓛(q)."""
        return self.expected_log_lik - self.depth_kl - self.weight_kl

    def loss(self, num_data: float | Tensor) -> Tensor:
        """−𝓛(q)/n, what the optimiser descends; the only place where the sign turns."""
        return -self.elbo / num_data


class Slopes(NamedTuple):
    """Derivatives of a sum of the terms in what they are made of."""

    log_q: Tensor  # (*lead, depth)
    log_lik: Tensor  # (*lead, depth, batch)
    hidden_kl: Tensor  # (*lead, last)
    head_kl: Tensor  # (*lead, depth), or (*lead, 1) of a shared head

    def backward(self, *values: Tensor) -> None:
        """Let autograd go on from log_q, log_lik, hidden_kl and head_kl, those that it knows."""
        pairs = [(v, slope) for v, slope in zip(values, self, strict=True) if v.requires_grad]
        if pairs:
            torch.autograd.backward([v for v, _ in pairs], [slope for _, slope in pairs])


class Evaluation(NamedTuple):
    """What the terms are made of: each is Σ_ℓ q(ℓ) c_ℓ for a c of its own, `(*lead, depth)`."""

    q: Tensor
    log_lik: Tensor
    log_ratio: Tensor
    cost: Tensor
    scale: float | Tensor  # n/b, how often each row of the batch counts
    weights: Tensor | None
    sizes: tuple[int, int, int]  # layers, heads, rows
    cumulative_heads: bool

    @property
    def terms(self) -> ElboTerms:
        """The three terms."""
        parts = torch.stack([self.log_lik, self.log_ratio, self.cost])
        return ElboTerms(*(self.q * parts).sum(-1).unbind())

    def slopes(self, lik: Tensor | float, depth: Tensor | float, weight: Tensor | float) -> Slopes:
        """Of lik·expected_log_lik + depth·depth_kl + weight·weight_kl, factors `(*lead, 1)`."""
        log_q = self.q * (lik * self.log_lik + depth * (self.log_ratio + 1) + weight * self.cost)
        scale = self.scale[..., None] if isinstance(self.scale, Tensor) else self.scale
        column = (lik * scale * self.q)[..., None]
        hidden, heads, rows = self.sizes
        if self.weights is None:
            log_lik = column.expand(*column.shape[:-1], rows)
        else:
            log_lik = column * self.weights[..., None, :]
        of_hidden, of_heads = use_probs(self.q, hidden, heads, self.cumulative_heads)
        return Slopes(log_q, log_lik, weight * of_hidden, weight * of_heads)


def evaluate(
    log_q: Tensor,
    log_lik: Tensor,
    log_prior: Tensor,
    hidden_kl: Tensor,
    head_kl: Tensor,
    num_data: float | Tensor,
    weights: Tensor | None = None,
    cumulative_heads: bool = False,
    num_rows: Tensor | None = None,
) -> Evaluation:
    """Everything summed up by depth; arguments as in the functions below."""
    scale = _scale(log_lik, num_data, num_rows)
    return Evaluation(
        log_q.exp(),
        _by_depth(log_lik, scale, weights),
        log_q - log_prior,
        weight_cost(hidden_kl, head_kl, log_q.shape[-1], cumulative_heads),
        scale,
        weights,
        (hidden_kl.shape[-1], head_kl.shape[-1], log_lik.shape[-1]),
        cumulative_heads,
    )


def elbo_terms(*arguments: Any, **keywords: Any) -> ElboTerms:
    """All terms at once; arguments as in `evaluate`."""
    return evaluate(*arguments, **keywords).terms


def use_probs(
    q: Tensor, hidden: int, heads: int, cumulative_heads: bool = False
) -> tuple[Tensor, Tensor]:
    """With which probability each layer, `(*lead, hidden)`, and head, `(*lead, heads)`, is used.

    Layer k is used with q(ℓ≥k), head ℓ with q(ℓ), a shared head always: the derivatives of
    `weight_kl` in `hidden_kl` and `head_kl`.
    """
    survival = q.flip(-1).cumsum(-1).flip(-1)  # q(ℓ ≥ k)
    before = hidden - q.shape[-1]  # layers below the first depth are used by all
    of_hidden = survival
    if before:
        of_hidden = torch.cat([survival[..., :1].expand(*q.shape[:-1], before), survival], -1)
    if heads != q.shape[-1]:
        return of_hidden, q.new_ones(*q.shape[:-1], heads)
    return of_hidden, survival if cumulative_heads else q


def weight_cost(
    hidden_kl: Tensor, head_kl: Tensor, depth: int, cumulative_heads: bool = False
) -> Tensor:
    """KL(q(θ|ℓ) ‖ p(θ)) of each depth with mass, `(*lead, depth)`; arguments as in `weight_kl`."""
    hidden = hidden_kl.cumsum(-1)[..., hidden_kl.shape[-1] - depth :]
    if head_kl.shape[-1] != depth:
        return hidden + head_kl.sum(-1, keepdim=True)
    return hidden + (head_kl.cumsum(-1) if cumulative_heads else head_kl)


def expected_log_lik(
    log_q: Tensor,
    log_lik: Tensor,
    num_data: float | Tensor,
    weights: Tensor | None = None,
    num_rows: Tensor | None = None,
) -> Tensor:
    """E_q(ℓ)[Σ_i log p(y_i; Ω_ℓ(x_i))], estimated without bias from a batch.

    Args:
        log_q: log q(ℓ), `(*lead, depth)`.
        log_lik: log p(y_i; Ω_ℓ(x_i)), `(*lead, depth, batch)`.
        num_data: n; the batch of size b counts n/b times. A tensor `(*lead,)` if it differs.
        weights: how often each point of the batch counts, `(*lead, batch)`; once by default.
        num_rows: b, `(*lead,)`, where the batch is padded with rows of weight 0, or where rows
            hold several observations each and b counts those, as n does.
    """
    scale = _scale(log_lik, num_data, num_rows)
    return (log_q.exp() * _by_depth(log_lik, scale, weights)).sum(-1)


def depth_kl(log_q: Tensor, log_prior: Tensor) -> Tensor:
    """KL(q(ℓ) ‖ p(ℓ)) = Σ_ℓ q(ℓ) log q(ℓ)/p(ℓ), both `(*lead, depth)`."""
    return (log_q.exp() * (log_q - log_prior)).sum(-1)


def weight_kl(
    log_q: Tensor, hidden_kl: Tensor, head_kl: Tensor, cumulative_heads: bool = False
) -> Tensor:
    """E_q(ℓ)[KL(q(θ|ℓ) ‖ p(θ))] of the nested family (the paper's equation for q(θ|ℓ; ν)).

    Layers behind ℓ are at their prior and cost nothing, so Σ_ℓ q(ℓ) Σ_{k≤ℓ} KL_k is
    Σ_k q(ℓ≥k) KL_k.

    Args:
        log_q: log q(ℓ) of the depths first … last, `(*lead, depth)`.
        hidden_kl: KL of the hidden layers 1 … last, `(*lead, last)`.
        head_kl: KL of the heads first … last, `(*lead, depth)`, or of the one shared head,
            `(*lead, 1)`.
        cumulative_heads: count every head up to ℓ, as the paper's text has it, rather than
            head ℓ alone (the default: a head that is not used stays at its prior).
    """
    cost = weight_cost(hidden_kl, head_kl, log_q.shape[-1], cumulative_heads)
    return (log_q.exp() * cost).sum(-1)


def evidence(log_prior: Tensor, log_lik: Tensor) -> Tensor:
    """log p(Y | X) with the weights held fixed: logsumexp_ℓ of log p(ℓ) + log p(Y | ℓ).

    Args:
        log_prior: log p(ℓ), `(*lead, depth)`.
        log_lik: log p(Y | X, ℓ) summed over the data, `(*lead, depth)`.
    """
    return torch.logsumexp(log_prior + log_lik, -1)


def _scale(log_lik: Tensor, num_data: float | Tensor, num_rows: Tensor | None) -> float | Tensor:
    """n/b: how often each row of the batch counts."""
    if num_rows is not None:  # of none that count the sum is 0, which stays 0
        return num_data / num_rows.clamp(min=1)
    scale = num_data / log_lik.shape[-1]
    return scale if isinstance(scale, Tensor) else float(scale)


def _by_depth(log_lik: Tensor, scale: float | Tensor, weights: Tensor | None) -> Tensor:
    """The log-likelihood of the whole data set at each depth, `(*lead, depth)`."""
    if weights is None:
        total = log_lik.sum(-1)
    else:
        total = (log_lik @ weights[..., None])[..., 0]
    return total * (scale[..., None] if isinstance(scale, Tensor) else scale)
