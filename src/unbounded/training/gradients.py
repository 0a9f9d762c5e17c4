"""The gradient of the loss −𝓛(q)/n on a batch, by the cheapest way there is."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unbounded.elbo import ElboTerms
from unbounded.layers import fused

if TYPE_CHECKING:
    from unbounded.model import UDN


class Gradient:
    """The terms on a batch now, the gradient when `backward` is called.

    Three ways lead to the same gradient (to rounding): autograd for everything; autograd for the
    data and the closed form for the weights' term; and, for plain dense layers, autograd for
    λ and the likelihood alone and `layers.fused` for the network.

    Args:
        model: with its layers born as far as its support.
        x: inputs, `(batch, …)`.
        y: targets, `(batch, …)`.
        num_data: n.
        weights: how often each row counts, `(batch,)`.
        autocast: run the layers in this dtype.
        closed_form: allow the cheaper ways; False leaves all to autograd.
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
    ):
        self.model, self.num_data = model, num_data
        self.first, self.last = model.support()
        self.active = model.network.active(self.last, self.first)
        self.closed_form = closed_form and model.weight_prior.precision is not None
        self.tape: fused.Tape | None = None
        if autocast is not None:
            with torch.autocast(x.device.type, autocast):
                outputs = model.network(x, self.last, self.first)
            outputs = outputs.float()
        elif self.closed_form and x.device.type == "cpu" and self.active.takes(x):
            with torch.no_grad():
                outputs, self.tape = fused.forward(
                    x, self.active.hidden_parameters, self.active.head_parameters, self.first
                )
            outputs.requires_grad_()
        else:
            outputs = model.network(x, self.last, self.first)
        self.outputs = outputs
        self.terms: ElboTerms = model.elbo_of_outputs(
            outputs, y, num_data, weights, weight_gradient=not self.closed_form
        )
        self.loss = self.terms.loss(num_data)

    def backward(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Fill `grad` of the active parameters, which must be None before."""
        (self.loss if scaler is None else scaler.scale(self.loss)).backward()
        if not self.closed_form:
            return
        decays = self.model.weight_decays(self.first, self.last, self.num_data)
        with torch.no_grad():
            if self.tape is None:
                self._add_decays(decays)
            else:
                self._fused(self.tape, decays.tolist())

    def _fused(self, tape: fused.Tape, decays: list[float]) -> None:
        grad = self.outputs.grad
        assert grad is not None
        grads, _ = fused.backward(grad, tape, decays[: self.last])
        hidden, heads = self.active.hidden_parameters, self.active.head_parameters
        count = len(hidden)
        for index, parameter in enumerate((*hidden, *heads)):
            parameter.grad = grads[index]
        for index in range(self.last):  # W_ℓ has its decay already
            grads[2 * index + 1].add_(hidden[2 * index + 1], alpha=decays[index])
        for index, parameter in enumerate(heads):
            grads[count + index].add_(parameter, alpha=decays[self.last + index // 2])

    def _add_decays(self, decays: Tensor) -> None:
        parameters = (*self.active.hidden_parameters, *self.active.head_parameters)
        each = decays.to(parameters[0].dtype).unbind()
        used = [
            (p, each[row])
            for p, row in zip(parameters, self.active.row_list, strict=True)
            if p.grad is not None
        ]
        if used:  # without a host read, hence tensors and not numbers as factors
            torch._foreach_addcmul_(
                [p.grad for p, _ in used], [p for p, _ in used], [factor for _, factor in used]
            )
