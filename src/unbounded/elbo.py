"""The evidence lower bound, as pure functions of tensors.

Everything is in nats and for the whole data set of `num_data` points. With q(θ|ℓ) = N(ν, s²I)
and the paper's first-order approximation E[g(θ)] ≈ g(ν), the final equation of section 3.1 reads

    𝓛(q) = Σ_ℓ q(ℓ) Σ_i log p(y_i; Ω_ℓ(x_i; ν))      expected_log_lik
         − Σ_ℓ q(ℓ) log q(ℓ)/p(ℓ)                     depth_kl
         − Σ_ℓ q(ℓ) [Σ_{k≤ℓ} KL_k + KL of head ℓ]     weight_kl
"""

from typing import NamedTuple

import torch
from torch import Tensor


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
    survival = q.flip(0).cumsum(0).flip(0)  # q(ℓ ≥ k) for k = first … last
    before = hidden_kl.shape[0] - q.shape[0]  # layers below the first depth are used by all
    hidden = survival @ hidden_kl[before:]
    if before:
        hidden = hidden + hidden_kl[:before].sum() * survival[0]
    if head_kl.shape[0] != q.shape[0]:
        return hidden + head_kl.sum()
    return hidden + (survival if cumulative_heads else q) @ head_kl


def evidence(log_prior: Tensor, log_lik: Tensor) -> Tensor:
    """log p(Y | X) with the weights held fixed: logsumexp_ℓ of log p(ℓ) + log p(Y | ℓ).

    Args:
        log_prior: log p(ℓ), `(depth,)`.
        log_lik: log p(Y | X, ℓ) summed over the data, `(depth,)`.
    """
    return torch.logsumexp(log_prior + log_lik, 0)
