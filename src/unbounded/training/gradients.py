"""The gradient of the loss −𝓛(q)/n on a batch, by the cheapest way there is.

Three ways lead to the same gradient, to rounding:

- autograd for everything;
- autograd for the data's term and λ, the closed form for the weights' term (Gaussian priors);
- for plain dense layers with a likelihood that knows its slope, autograd for λ alone and
  `layers.fused` for the network. Small networks train twice as fast this way.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded import elbo
from unbounded.elbo import ElboTerms
from unbounded.layers import fused

if TYPE_CHECKING:
    from unbounded.model import UDN, DepthPosterior

SMALLEST_SHARE = 1e-20
"""Heads and layers with less mass than this learn more slowly even where paces are equal."""


class Gradient:
    """The terms on a batch now, the gradient when `backward` is called.

    Args:
        model: with its layers born as far as its support.
        x: inputs, `(batch, …)`.
        y: targets, `(batch, …)`.
        num_data: n.
        weights: how often each row counts, `(batch,)`.
        autocast: run the layers in this dtype.
        closed_form: allow the cheaper ways; False leaves all to autograd.
        posterior: `model.posterior()`, if the caller has it or wants another support.
        equal_heads: divide the gradient of head ℓ by q(ℓ). In 𝓛 a head appears in a bracket with
            the factor q(ℓ) and nowhere else: where the gradient vanishes stays where it was, but
            heads of rare depths learn as fast as those of probable ones.
        equal_layers: divide the gradient of layer k by q(ℓ≥k): what is left is its mean over the
            depths that use the layer, so that the last layers, which few of them do, learn as fast
            as the first. Where the gradient vanishes stays where it was here, too.
    """

    def __init__(
        self,
        model: "UDN",
        x: Tensor,
        y: Tensor,
        num_data: float,
        weights: Tensor | None = None,
        autocast: torch.dtype | None = None,
        closed_form: bool = True,
        posterior: "DepthPosterior | None" = None,
        equal_heads: bool = False,
        equal_layers: bool = False,
    ):
        self.model, self.num_data, self.weights = model, num_data, weights
        self.posterior = model.posterior() if posterior is None else posterior
        self.equal_heads, self.equal_layers = equal_heads, equal_layers
        first, last, _ = self.posterior
        self.active = model.network.active(last, first)
        self.closed_form = closed_form and model.weight_prior.precision is not None
        self.hidden_kl: Tensor  # KL of the layers 1 … last, (last,)
        self.head_kl: Tensor  # KL of the heads, (depth,)
        self._by_hand: _ByHand | None = None
        if self.closed_form and autocast is None and x.device.type == "cpu":
            self._by_hand = _ByHand.of(self, x, y)
        if self._by_hand is not None:
            self.terms: ElboTerms = self._by_hand.sums.terms()
        else:
            if autocast is None:
                outputs = model.network(x, last, first)
            else:
                with torch.autocast(x.device.type, autocast):
                    outputs = model.network(x, last, first)
                outputs = outputs.float()
            log_lik = model.likelihood.log_prob(outputs, y)
            self._by_row = log_lik.detach()
            with torch.set_grad_enabled(not self.closed_form):
                self.hidden_kl, self.head_kl = model.weight_kl(first, last)
            self.terms = elbo.elbo_terms(
                self.posterior.log_q,
                log_lik,
                model.depth_log_prior(self.posterior),
                self.hidden_kl,
                self.head_kl,
                num_data,
                weights,
                model.cumulative_heads,
            )
        self.loss = self.terms.loss(num_data)

    @property
    def log_lik(self) -> Tensor:
        """Mean log p(y_i; Ω_ℓ(x_i)) of the batch at each depth, `(depth,)`, detached."""
        if self._by_hand is not None:
            return self._by_hand.sums.log_lik / self.num_data
        if self.weights is None:
            return self._by_row.mean(1)
        return self._by_row @ self.weights / self._by_row.shape[1]

    def backward(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Fill `grad` of the active parameters, which must be None before."""
        if self._by_hand is not None:
            self._by_hand.backward(self)
        else:
            (self.loss if scaler is None else scaler.scale(self.loss)).backward()
            if self.closed_form:
                with torch.no_grad():
                    self._add_decays(self.decays())
        if self.equal_heads or self.equal_layers:
            self._equal_paces()

    @torch.no_grad()
    def _equal_paces(self) -> None:
        """Divide the gradient of head ℓ by q(ℓ), that of layer k by q(ℓ≥k), or one of them."""
        if self.posterior.log_q.shape[0] == 1:
            return  # one depth has all the mass
        hidden = len(self.active.hidden_parameters)
        part = slice(0 if self.equal_layers else hidden, None if self.equal_heads else hidden)
        grads, _, factors = self._paired(1 / self._shares.clamp(min=SMALLEST_SHARE), part)
        if grads:
            torch._foreach_mul_(grads, factors)

    @cached_property
    def _shares(self) -> Tensor:
        """The mass of the depths that use each layer 1 … last, then each head."""
        active, q = self.active, self.posterior.log_q.detach().exp()
        parts = elbo.shares(q, len(active.hidden), len(active.heads), self.model.cumulative_heads)
        return torch.cat(parts)

    def decays(self) -> Tensor:
        """The factors f of the weights' gradient f·ν, of the layers 1 … last, then the heads.

        The gradient of weight_kl/n on layer k is q(ℓ≥k) ν_k/(s² n), on head ℓ q(ℓ) ν_ℓ/(s² n).
        """
        precision = self.model.weight_prior.precision
        assert precision is not None
        return self._shares * (precision / self.num_data)

    def _add_decays(self, decays: Tensor) -> None:
        grads, values, factors = self._paired(decays)
        if grads:
            torch._foreach_addcmul_(grads, values, factors)

    def _paired(
        self, factors: Tensor, part: slice = slice(None)
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Gradients, parameters, and the factor of the layer or head to which each belongs.

        Factors stay tensors, so that nothing is read by the host.

        Args:
            factors: of the layers 1 … last, then the heads.
            part: which of the active parameters; those without a gradient are left out.
        """
        parameters = [*self.active.hidden_parameters, *self.active.head_parameters][part]
        grads, values, found = list[Tensor](), list[Tensor](), list[Tensor]()
        each = factors.to(parameters[0].dtype).unbind() if parameters else ()
        for parameter, row in zip(parameters, self.active.row_list[part], strict=True):
            if parameter.grad is not None:
                grads.append(parameter.grad)
                values.append(parameter)
                found.append(each[row])
        return grads, values, found


class _ByHand:
    """The way without autograd but for λ."""

    def __init__(self, sums: elbo.Sums, slope: Tensor, tape: fused.Tape):
        self.sums, self.slope, self.tape = sums, slope, tape

    @classmethod
    @torch.no_grad()
    def of(cls, gradient: Gradient, x: Tensor, y: Tensor) -> "_ByHand | None":
        """The forward pass, or None where this way is not open."""
        model, active, posterior = gradient.model, gradient.active, gradient.posterior
        if not active.takes(x):
            return None
        hidden, heads = active.hidden_parameters, active.head_parameters
        outputs, tape = fused.forward(x, hidden, heads, posterior.first)
        found = model.likelihood.log_prob_and_slope(outputs, y)
        if found is None:
            return None
        log_lik, slope = found
        gradient.hidden_kl, gradient.head_kl = model.weight_kl(posterior.first, posterior.last)
        sums = elbo.sums(
            posterior.log_q.detach(),
            log_lik,
            model.depth_log_prior(posterior),
            gradient.hidden_kl,
            gradient.head_kl,
            gradient.num_data,
            gradient.weights,
            model.cumulative_heads,
        )
        return cls(sums, slope, tape)

    def backward(self, gradient: Gradient) -> None:
        """Set `grad` of the layers and heads; autograd carries on from log q to λ."""
        num_data, weights = gradient.num_data, gradient.weights
        posterior, active = gradient.posterior, gradient.active
        with torch.no_grad():
            batch = self.slope.shape[1]
            # loss = −expected_log_lik/n + …, and expected_log_lik counts the batch n/b times
            rows = self.sums.q.view(-1, 1, 1) * (-1 / batch)
            grad = self.slope.mul_(rows if weights is None else rows * weights[:, None])
            decays = gradient.decays().tolist()
            last = posterior.last
            grads, _ = fused.backward(grad, self.tape, decays[:last])
            hidden, heads = active.hidden_parameters, active.head_parameters
            for parameter, value in zip((*hidden, *heads), grads, strict=True):
                parameter.grad = value
            for index in range(last):  # the weights have their decay already
                grads[2 * index + 1].add_(hidden[2 * index + 1], alpha=decays[index])
            count = len(hidden)
            for index, parameter in enumerate(heads):
                grads[count + index].add_(parameter, alpha=decays[last + index // 2])
        slope = self.sums.log_q_gradient(-1 / num_data, 1 / num_data, 1 / num_data)
        gradient.model.depth.backward(posterior.log_q, slope)
