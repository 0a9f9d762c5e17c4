"""The gradient of the loss −𝓛(q)/n on a batch of one model.

The data's term and λ go through autograd. The gradient of the weights' term has a closed form
under Gaussian priors, f·ν with a factor f for each layer and head, which is added at the end.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unbounded import elbo, trees
from unbounded.elbo import ElboTerms
from unbounded.layers.dropout import rows_of
from unbounded.parallel import ALONE, Processes
from unbounded.parallel.processes import sum_step
from unbounded.parallel.shards import Shards, is_sharded, local
from unbounded.steps.options import StepOptions

if TYPE_CHECKING:
    from unbounded.model import UDN, DepthPosterior
    from unbounded.network import Active

SMALLEST_USE = 1e-20
"""Heads and layers that are used more rarely learn more slowly even where paces are equal."""


class Gradient:
    """Terms and gradient of a batch, which `add` takes whole or in pieces; `finish` ends it.

    Args:
        model: with its layers born as far as its support.
        num_data: n, in the likelihood's unit.
        options: of the step.
        call: what to call for Ω_ℓ(x); the model itself, or a compiled form of it.
        support: first and last depth, where the caller knows them; else λ is asked.
        scaler: a gradient scaler, for `torch.float16`.
        processes: who have the other rows of the batch; `share` waits for them.
        apart: whether all messages come in `share`, after the backward pass, which is then free of
            them and can be a CUDA graph; else they go off on the way.
    """

    def __init__(
        self,
        model: "UDN",
        num_data: float,
        options: StepOptions,
        *,
        call: Callable[..., Tensor] | None = None,
        support: tuple[int, int] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        processes: Processes = ALONE,
        apart: bool = False,
    ):
        self.model, self.num_data, self.options = model, num_data, options
        self.apart = apart
        self.processes, self._exchange = processes, processes.exchange(model)
        self.call = model if call is None else call
        self.support, self.scaler = support, scaler
        self.placement = model.network.placement
        self.closed_form = scaler is None and (
            model.weight_prior.precision is not None or not self.placement.is_whole
        )
        self.posterior: DepthPosterior
        self.active: Active
        self.terms: ElboTerms
        self.hidden_kl: Tensor
        self.head_kl: Tensor
        self._added: tuple[Tensor, ...] = ()  # sums over the rows that are here
        self._sums: tuple[Tensor, ...] = ()  # over all rows, once they are shared
        self._found: elbo.Evaluation
        self._earlier: list[tuple[nn.Parameter, Tensor]] = []
        self._by_row: list[Tensor] = []

    @property
    def log_lik(self) -> Tensor:
        """Mean log p(y_i; Ω_ℓ(x_i)) of the batch at each depth, `(depth,)`, for a depth rule.

        Over rows or, where rows hold several observations, over those.
        """
        return self._sums[3]

    @property
    def rows_log_lik(self) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)) of each row that was added, `(depth, rows)`; with a rule alone."""
        return torch.cat(self._by_row, 1)

    @property
    def loss(self) -> Tensor:
        """−𝓛(q)/n of what was added so far, detached."""
        return self.terms.loss(self.num_data)

    def add(
        self,
        x: trees.Tree,
        y: Tensor,
        weights: Tensor | None,
        share: float | Tensor = 1.0,
        is_last: bool = True,
    ) -> None:
        """Add the gradient of a part of the batch to `grad` of the active parameters.

        Args:
            x: inputs, `(rows, …)`.
            y: targets, `(rows, …)`.
            weights: how often each row counts, `(rows,)`.
            share: which part of the batch's rows, or of the observations in them, these are;
                the parts' shares sum to 1, over all processes.
            is_last: whether this process has no further part.
        """
        model = self.model
        if self._exchange is not None and not self.apart:
            self.processes.has_rows = bool(share > 0)
        with torch.set_grad_enabled(self._moves_depth):
            if self.support is None:
                posterior = model.posterior()
            else:
                posterior = model.posterior_over(*self.support)
        support = (posterior.first, posterior.last)
        kind = self.options.autocast
        computing = nullcontext() if kind is None else torch.autocast(y.device.type, kind)
        with rows_of(self.processes.rank), computing:
            outputs = self.call(x, support)
        log_lik, total = model.likelihood.log_lik(outputs, y), model.likelihood.total(y)
        self.active = model.network.active(
            posterior.last, posterior.first, cumulative_heads=model.cumulative_heads
        )
        if self._changes_paces and not self._added:
            self._set_aside()
        with torch.set_grad_enabled(not self.closed_form):
            kl = model.weight_kl(*support, self.active)
        with torch.no_grad():
            found = elbo.evaluate(
                posterior.log_q,
                log_lik,
                model.depth_log_prior(posterior),
                *kl,
                self.num_data,
                weights,
                model.cumulative_heads,
                total,
            )
            # Of the loss −𝓛/n: by hand from its terms to what autograd goes on from.
            each = share / self.num_data * (1.0 if self.scaler is None else self._loss_scale)
            slopes = found.slopes(-each, each, each)
        if self._exchange is not None and is_last and not self.apart:
            self._exchange.begin(self._shared)
        with rows_of(self.processes.rank):
            slopes.backward(posterior.log_q, log_lik, *kl)
        self._found = found
        self._note(posterior, found.terms, log_lik.detach(), weights, total, share)
        self.hidden_kl, self.head_kl = kl[0].detach(), kl[1].detach()

    @property
    def _moves_depth(self) -> bool:
        """Whether anybody asks for the gradient in λ; other processes wait for one."""
        rule = self.options.depth_rule
        return rule is None or rule.takes_slopes or self._exchange is not None

    def share(self) -> None:
        """Gradients and terms of the whole batch, whose other rows are with other processes.

        Where a graph has computed `add` anew, this comes again: the tensors are the same ones.
        """
        if self._exchange is not None:
            if self.apart:
                self._exchange.begin(self._shared)
            self._sums = sum_step(self.processes, self._exchange, self._added)
            self.terms = ElboTerms(*self._sums[:3])

    def prepare(self) -> None:
        """Have computed what `finish` needs, within the graph that ends here."""
        if self.closed_form or self._changes_paces:
            _ = self._use_probs

    @property
    def _shared(self) -> list[nn.Parameter]:
        """What the data have a gradient for: active parameters, and those outside the network."""
        if not self.placement.is_whole:  # of shards the backward pass itself makes sums
            return [p for p in self.model.parameters() if p.requires_grad and not is_sharded(p)]
        known = {id(parameter) for parameter in self.active.parameters}
        others = [
            parameter
            for name, part in self.model.named_children()
            if name != "network"
            for parameter in part.parameters()
            if parameter.requires_grad and id(parameter) not in known
        ]
        return [*others, *self.active.parameters]

    @property
    def _loss_scale(self) -> Tensor:
        """What the gradient scaler multiplies the loss by."""
        assert self.scaler is not None
        return self.scaler.scale(torch.ones((), device=self.model.anchor.device))

    def finish(self) -> None:
        """The weights' term in closed form, and equal paces where they are wanted."""
        with torch.no_grad():
            if self.closed_form:
                # The gradient of weight_kl/n on layer k is q(ℓ≥k) ν_k/(s² n), on head ℓ
                # q(ℓ) ν_ℓ/(s² n).
                for parameter in self.active.parameters:
                    if parameter.grad is None:  # the data do not need it, the prior still pulls
                        parameter.grad = torch.zeros_like(parameter)
                self._add_prior()
            if self._changes_paces:
                self._equal_paces()
                for parameter, grad in self._earlier:
                    parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def _add_prior(self) -> None:
        """The gradient of the weights' term, known before any row was seen."""
        prior = self.model.weight_prior
        if prior.precision is None:  # of shards: one parameter after another
            assert isinstance(self.placement, Shards)
            each = (self._use_probs / self.num_data).unbind()
            for parameter, factor in zip(self.active.parameters, each, strict=True):
                found = self.placement.prior_gradient(prior, parameter, factor)
                assert parameter.grad is not None
                local(parameter.grad).add_(found)
            return
        factors = self._use_probs * (prior.precision / self.num_data)
        grads, values, kept = self._paired(factors, slice(None))
        if grads:
            torch._foreach_addcmul_(grads, values, kept)

    @property
    def _changes_paces(self) -> bool:
        return self.options.equal_heads or self.options.equal_layers

    def _set_aside(self) -> None:
        """Gradients that were there before: paces are changed of one's own alone."""
        for parameter in self.active.parameters:
            if parameter.grad is not None:
                self._earlier.append((parameter, parameter.grad))
                parameter.grad = None

    def _note(
        self,
        posterior: "DepthPosterior",
        terms: ElboTerms,
        log_lik: Tensor,
        weights: Tensor | None,
        total: Tensor | None,
        share: float | Tensor,
    ) -> None:
        self.posterior = posterior
        values = tuple(term.detach() for term in terms)
        if self.options.depth_rule is not None:
            mean = log_lik.mean(1) if weights is None else log_lik @ weights / log_lik.shape[1]
            if total is not None:  # over observations instead of rows
                mean = mean * (log_lik.shape[1] / total.clamp(min=1))
            values = (*values, mean)
            self._by_row.append(log_lik)
        if isinstance(share, Tensor) or share != 1.0:
            values = tuple(value * share for value in values)
        if self._added:
            values = tuple(a + b for a, b in zip(self._added, values, strict=True))
        self._added = self._sums = values
        self.terms = ElboTerms(*values[:3])

    def _equal_paces(self) -> None:
        """Divide the gradient of head ℓ by q(ℓ), that of layer k by q(ℓ≥k), or one of them."""
        if self.posterior.log_q.shape[0] == 1:
            return  # one depth has all the mass
        hidden = self.active.num_hidden
        start = 0 if self.options.equal_layers else hidden
        stop = None if self.options.equal_heads else hidden
        inverse = 1 / self._use_probs.clamp(min=SMALLEST_USE)
        grads, _, factors = self._paired(inverse, slice(start, stop))
        if grads:
            torch._foreach_mul_(grads, factors)

    @cached_property
    def _use_probs(self) -> Tensor:
        """With which probability each active parameter is used, `(parameters,)`."""
        # Not from the slopes: a process's share of the rows must leave no trace, not of rounding.
        layers, heads, _ = self._found.sizes
        uses = elbo.use_probs(self._found.q, layers, heads, self.model.cumulative_heads)
        return self.active.by_parameter(torch.cat(uses))

    def _paired(
        self, factors: Tensor, part: slice
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Gradients, parameters and factors of those active parameters that have a gradient.

        Factors stay tensors, so that nothing is read by the host.
        """
        grads, values, kept = list[Tensor](), list[Tensor](), list[Tensor]()
        parameters = self.active.parameters[part]
        each = factors.to(parameters[0].dtype).unbind()[part] if parameters else ()
        for parameter, factor in zip(parameters, each, strict=True):
            if parameter.grad is not None:
                grads.append(parameter.grad)
                values.append(parameter)
                kept.append(factor)
        if not self.placement.is_whole:  # number by number, so each process by itself
            grads, values = [local(g) for g in grads], [local(v) for v in values]
        return grads, values, kept
