"""The evidence lower bound, as pure functions of tensors.

Everything is in nats and for the whole data set of `num_data` points. With q(θ|ℓ) = N(ν, s²I)
and the paper's first-order approximation E[g(θ)] ≈ g(ν), the final equation of section 3.1 reads

    𝓛(q) = Σ_ℓ q(ℓ) Σ_i log p(y_i; Ω_ℓ(x_i; ν))      expected_log_lik
         − Σ_ℓ q(ℓ) log q(ℓ)/p(ℓ)                     depth_kl
         − Σ_ℓ q(ℓ) [Σ_{k≤ℓ} KL_k + KL of head ℓ]     weight_kl
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class ElboTerms(NamedTuple):
    """The three terms of 𝓛(q), scalars in nats for the whole data set."""

    expected_log_lik: Tensor
    depth_kl: Tensor
    weight_kl: Tensor

    @property
    def elbo(self) -> Tensor:
        """𝓛(q), the lower bound on log p(Y | X)."""
        return self.expected_log_lik - self.depth_kl - self.weight_kl

    def loss(self, num_data: float) -> Tensor:
        """−𝓛(q)/n, what the optimiser descends; the only place where the sign turns."""
        return -self.elbo / num_data


class Sums(NamedTuple):
    """What the terms are made of, all `(depth,)`: each term is Σ_ℓ q(ℓ) c_ℓ for one of the c."""

    q: Tensor
    log_lik: Tensor  # c of the expected log-likelihood, for the whole data set
    log_ratio: Tensor  # log q(ℓ)/p(ℓ)
    cost: Tensor  # KL(q(θ|ℓ) ‖ p(θ))

    def terms(self) -> ElboTerms:
        """The three terms."""
        return ElboTerms(self.q @ self.log_lik, self.q @ self.log_ratio, self.q @ self.cost)

    def log_q_gradient(
        self, lik: Tensor | float, depth: Tensor | float, weight: Tensor | float
    ) -> Tensor:
        """Gradient in log q of lik·expected_log_lik + depth·depth_kl + weight·weight_kl."""
        return self.q * (lik * self.log_lik + depth * (self.log_ratio + 1) + weight * self.cost)


def sums(
    log_q: Tensor,
    log_lik: Tensor,
    log_prior: Tensor,
    hidden_kl: Tensor,
    head_kl: Tensor,
    num_data: float,
    weights: Tensor | None = None,
    cumulative_heads: bool = False,
) -> Sums:
    """Everything summed up per depth; arguments as in the functions below."""
    per_depth = log_lik.sum(1) if weights is None else log_lik @ weights
    return Sums(
        log_q.exp(),
        per_depth * (num_data / log_lik.shape[1]),
        log_q - log_prior,
        weight_cost(hidden_kl, head_kl, log_q.shape[0], cumulative_heads),
    )


def elbo_terms(
    log_q: Tensor,
    log_lik: Tensor,
    log_prior: Tensor,
    hidden_kl: Tensor,
    head_kl: Tensor,
    num_data: float,
    weights: Tensor | None = None,
    cumulative_heads: bool = False,
) -> ElboTerms:
    """All terms at once, with their gradient in closed form; arguments as in the functions below.

    The same as `expected_log_lik`, `depth_kl` and `weight_kl` called one by one, in a third of
    the operations: on small networks these scalars would cost as much as the layers.
    """
    terms: tuple[Tensor, ...] = _Terms.apply(
        log_q, log_lik, log_prior, hidden_kl, head_kl, num_data, weights, cumulative_heads
    )
    return ElboTerms(*terms)


class _Terms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_q: Tensor,
        log_lik: Tensor,
        log_prior: Tensor,
        hidden_kl: Tensor,
        head_kl: Tensor,
        num_data: float,
        weights: Tensor | None,
        cumulative_heads: bool,
    ) -> tuple[Tensor, ...]:
        found = sums(
            log_q, log_lik, log_prior, hidden_kl, head_kl, num_data, weights, cumulative_heads
        )
        ctx.sizes = (hidden_kl.shape[0], head_kl.shape[0], log_lik.shape[1])
        ctx.num_data, ctx.cumulative_heads = num_data, cumulative_heads
        ctx.save_for_backward(*found, weights)
        return tuple(found.terms())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lik, depth, weight = grads
        *saved, weights = ctx.saved_tensors
        found = Sums(*saved)
        hidden, heads, batch = ctx.sizes
        column = (lik * (ctx.num_data / batch) * found.q).unsqueeze(1)
        lik_grad = column.expand(-1, batch) if weights is None else column * weights
        hidden_grad = head_grad = None
        if ctx.needs_input_grad[3] or ctx.needs_input_grad[4]:
            hidden_grad, head_grad = shares(found.q, hidden, heads, ctx.cumulative_heads)
            hidden_grad, head_grad = weight * hidden_grad, weight * head_grad
        log_q_grad = found.log_q_gradient(lik, depth, weight)
        return log_q_grad, lik_grad, None, hidden_grad, head_grad, None, None, None


def shares(
    q: Tensor, hidden: int, heads: int, cumulative_heads: bool = False
) -> tuple[Tensor, Tensor]:
    """How much of the KL of each layer, `(hidden,)`, and head, `(heads,)`, counts in weight_kl.

    Layer k counts with q(ℓ≥k), head ℓ with q(ℓ), a shared head once: the derivatives of
    `weight_kl` in `hidden_kl` and `head_kl`.
    """
    survival = survival_of(q)
    before = hidden - q.shape[0]  # layers below the first depth are used by all
    of_hidden = torch.cat([survival[:1].expand(before), survival]) if before else survival
    if heads != q.shape[0]:
        return of_hidden, q.new_ones(heads)
    return of_hidden, survival if cumulative_heads else q


def survival_of(q: Tensor) -> Tensor:
    """q(ℓ ≥ k) for each depth k of q, `(depth,)`."""
    return q.flip(0).cumsum(0).flip(0)


def weight_cost(
    hidden_kl: Tensor, head_kl: Tensor, depth: int, cumulative_heads: bool = False
) -> Tensor:
    """KL(q(θ|ℓ) ‖ p(θ)) of each depth with mass, `(depth,)`; arguments as in `weight_kl`."""
    hidden = hidden_kl.cumsum(0)[hidden_kl.shape[0] - depth :]
    if head_kl.shape[0] != depth:
        return hidden + head_kl.sum()
    return hidden + (head_kl.cumsum(0) if cumulative_heads else head_kl)


def expected_log_lik(
    log_q: Tensor, log_lik: Tensor, num_data: float, weights: Tensor | None = None
) -> Tensor:
    """E_q(ℓ)[Σ_i log p(y_i; Ω_ℓ(x_i))], estimated without bias from a batch.

    Args:
        log_q: log q(ℓ), `(depth,)`.
        log_lik: log p(y_i; Ω_ℓ(x_i)), `(depth, batch)`.
        num_data: n; the batch of size b counts n/b times.
        weights: how often each point of the batch counts, `(batch,)`; once each by default.
    """
    per_depth = log_lik.sum(1) if weights is None else log_lik @ weights
    return log_q.exp() @ per_depth * (num_data / log_lik.shape[1])


def depth_kl(log_q: Tensor, log_prior: Tensor) -> Tensor:
    """KL(q(ℓ) ‖ p(ℓ)) = Σ_ℓ q(ℓ) log q(ℓ)/p(ℓ), both `(depth,)`."""
    return log_q.exp() @ (log_q - log_prior)


def weight_kl(
    log_q: Tensor, hidden_kl: Tensor, head_kl: Tensor, cumulative_heads: bool = False
) -> Tensor:
    """E_q(ℓ)[KL(q(θ|ℓ) ‖ p(θ))] of the nested family (the paper's equation for q(θ|ℓ; ν)).

    Layers behind ℓ are at their prior and cost nothing, so Σ_ℓ q(ℓ) Σ_{k≤ℓ} KL_k is
    Σ_k q(ℓ≥k) KL_k.

    Args:
        log_q: log q(ℓ) of the depths first … last, `(depth,)`.
        hidden_kl: KL of the hidden layers 1 … last, `(last,)`.
        head_kl: KL of the heads first … last, `(depth,)`, or of the one shared head, `(1,)`.
        cumulative_heads: count every head up to ℓ, as the paper's text has it, rather than
            head ℓ alone (the default: a head that is not used stays at its prior).
    """
    q = log_q.exp()
    of_hidden, of_heads = shares(q, hidden_kl.shape[0], head_kl.shape[0], cumulative_heads)
    return of_hidden @ hidden_kl + of_heads @ head_kl


def evidence(log_prior: Tensor, log_lik: Tensor) -> Tensor:
    """log p(Y | X) with the weights held fixed: logsumexp_ℓ of log p(ℓ) + log p(Y | ℓ).

    Args:
        log_prior: log p(ℓ), `(depth,)`.
        log_lik: log p(Y | X, ℓ) summed over the data, `(depth,)`.
    """
    return torch.logsumexp(log_prior + log_lik, 0)
