"""One step of dynamic variational inference (the body of the paper's Algorithm 1)."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unbounded import growth
from unbounded.elbo import ElboTerms
from unbounded.training.gradients import Gradient

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.training.depth_rules import DepthRule


class NonFiniteError(FloatingPointError):
    """The loss is no longer a number; says at which step and in which term."""


class StepInfo(NamedTuple):
    """What a step saw, before it moved the parameters."""

    terms: ElboTerms  # detached, in nats for the whole data set
    loss: float  # −elbo / n
    growth: growth.Plan  # which layers were born or dropped before it


def step(
    model: "UDN",
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    num_data: float,
    *,
    weights: Tensor | None = None,
    grow: bool = True,
    drop_inactive: bool = False,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    depth_rule: "DepthRule | None" = None,
    equal_heads: bool = False,
    equal_layers: bool = False,
    at: str = "",
) -> StepInfo:
    """Grow to the support of q(ℓ; λ), evaluate the ELBO on a batch, move the active parameters.

    Parameters of depths outside the support get no gradient (`grad is None`), so no optimiser
    moves them or their state.

    Args:
        model: in training mode, on its device.
        optimizer: any of `torch.optim`, over `param_groups(model)` or groups of your own.
        x: inputs, `(batch, …)`, on the model's device.
        y: targets in the form that the likelihood takes, `(batch, …)`.
        num_data: n, the size of the data set.

    Other args:
        weights: how often each row counts, `(batch,)`.
        grow: compute the support first; False leaves it as the last step did.
        drop_inactive: free layers beyond the support instead of keeping them.
        clip: largest norm of the gradient of the loss.
        autocast: run the layers in this dtype; the ELBO itself stays in full precision.
        scaler: a gradient scaler, for `torch.float16`.
        depth_rule: moves λ instead of the optimiser; see `RateAscent`.
        equal_heads: divide the gradient of head ℓ by q(ℓ); see `Gradient`.
        equal_layers: divide the gradient of layer k by q(ℓ≥k); see `Gradient`.
        at: where in training this is, for error messages.

    Raises:
        NonFiniteError: if the loss is NaN or infinite; nothing has been moved then.
    """
    change = _NOTHING
    if grow:
        change = growth.plan(model, drop_inactive=drop_inactive)
        if change.changes:
            growth.apply(change, model, optimizer)
    for group in optimizer.param_groups:  # as zero_grad does, at a quarter of its price
        for parameter in group["params"]:
            parameter.grad = None
    gradient = Gradient(
        model,
        x,
        y,
        num_data,
        weights,
        autocast=autocast,
        closed_form=scaler is None,
        equal_heads=equal_heads,
        equal_layers=equal_layers,
    )
    value = gradient.loss.item()
    if not math.isfinite(value):
        raise NonFiniteError(_explain(gradient.terms, at))
    gradient.backward(scaler)
    if depth_rule is not None:
        depth_rule.reserve(model, gradient.posterior.last)
        depth_rule.move(gradient)
    if scaler is not None and clip is not None:
        scaler.unscale_(optimizer)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return StepInfo(ElboTerms(*(term.detach() for term in gradient.terms)), value, change)


_NOTHING = growth.Plan(range(0), range(0))


def _explain(terms: ElboTerms, at: str) -> str:
    values = {name: term.item() for name, term in terms._asdict().items()}
    bad = [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]
    what = ", ".join(bad) or f"the sum of the terms overflows: {values}"
    return (
        f"the loss is not finite{at}: {what}. A lower learning rate, gradient clipping "
        "or another initialisation usually helps; the data were checked before training."
    )
