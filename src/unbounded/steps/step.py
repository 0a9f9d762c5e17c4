"""One step of dynamic variational inference (the body of the paper's Algorithm 1)."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from unbounded import growth, parallel, trees
from unbounded.elbo import ElboTerms
from unbounded.likelihoods import Likelihood
from unbounded.network import parameters_of
from unbounded.parallel import ALONE, Processes
from unbounded.parallel.shards import Shards, local
from unbounded.steps.objective import Gradient
from unbounded.steps.options import StepOptions

if TYPE_CHECKING:
    from unbounded.model import UDN


class NonFiniteError(FloatingPointError):
    """The loss is no longer a number; says at which step and in which term.

    Of a lone model in `fit`, `result` is its `FitResult` up to there, and the model has its best
    weights; None where no epoch was finished.
    """

    result: Any = None


class StepInfo(NamedTuple):
    """What a step saw, before it moved the parameters."""

    terms: ElboTerms  # detached, in nats for the whole data set
    loss: float  # −elbo / n
    growth: growth.GrowthPlan  # which layers were born or dropped before it
    log_lik: Tensor | None = None  # log p(y_i; Ω_ℓ(x_i)), (depth, rows), where a depth rule asks


def step(
    model: "UDN",
    optimizer: torch.optim.Optimizer,
    x: trees.Tree,
    y: Tensor,
    num_data: float,
    *,
    weights: Tensor | None = None,
    grow: bool = True,
    scaler: torch.amp.GradScaler | None = None,
    at: str = "",
    **options: Any,
) -> StepInfo:
    """Grow to the support of q(ℓ; λ), evaluate the objective on a batch, move active parameters.

    Parameters of depths outside the support get no gradient (`grad is None`), so no optimiser
    moves them or their state. Of several processes (torchrun) each calls this with rows of its own,
    and all take the step of all these rows.

    Args:
        model: in training mode, on its device; or `torch.compile(model)`.
        optimizer: any of `torch.optim`, over `param_groups(model)` or groups of your own.
        x: inputs, `(batch, …)`, or parts of that kind, on the model's device.
        y: targets in the form that the likelihood takes, `(batch, …)`.
        num_data: n, the size of the data set: rows, or the likelihood's unit (`Tokens`: tokens).
        weights: how often each row counts, `(batch,)`.
        grow: compute the support first; False leaves it as the last step did.
        scaler: a gradient scaler, for `torch.float16`.
        at: where in training this is, for error messages.
        options: the fields of `StepOptions`: clip, autocast, micro_batches, …

    Raises:
        NonFiniteError: if the loss is NaN or infinite; nothing has been moved then.
        TooDeepError: if the layers that λ asks for would not fit into memory; likewise.
    """
    processes = parallel.current()
    share = 1.0
    if processes.size > 1:
        total = uncompiled(model).likelihood.total(y)
        own = y.new_full((), y.shape[0]).double() if total is None else total.double()
        rows = own.clone()
        processes.sum(rows)
        # Where nothing counts in any of them, the prior's part is still due.
        share = (own / rows).item() if rows > 0 else 1 / processes.size
    return step_with(
        StepOptions(**options),
        model,
        optimizer,
        (x, y, weights),
        num_data,
        grow,
        scaler,
        at,
        processes,
        share,
    )


def step_with(
    options: StepOptions,
    model: "UDN",
    optimizer: torch.optim.Optimizer,
    batch: tuple[trees.Tree, Tensor, Tensor | None],
    num_data: float,
    grow: bool,
    scaler: torch.amp.GradScaler | None,
    at: str,
    processes: Processes = ALONE,
    share: float = 1.0,
) -> StepInfo:
    """`step` with its options as a record, for who has checked them already.

    Where other processes have the rest of the batch, `share` is the part of its rows that is here.
    All of them come to the same gradient, and so to the same decisions.
    """
    inner = uncompiled(model)
    change = _NOTHING
    if grow:
        change = growth.plan(inner, drop_inactive=options.drop_inactive)
        if change.changes:
            room = growth.Room.in_training(optimizer, trees.extent(batch[0]))
            with processes.agreeing(growth.TooDeepError):
                growth.check_room(inner, change.hidden.stop - 1, inner.network.num_layers, room)
            growth.apply(change, inner, optimizer)
    for group in optimizer.param_groups:  # as zero_grad does, at a quarter of its price
        for parameter in group["params"]:
            parameter.grad = None
    gradient = Gradient(inner, num_data, options, call=model, scaler=scaler, processes=processes)
    parts = pieces(batch, options.micro_batches, inner.likelihood, padded=processes.size > 1)
    for number, (x, y, weights, part) in enumerate(parts, 1):
        gradient.add(x, y, weights, part * share, number == len(parts))
    gradient.share()
    value = gradient.loss.item()
    if not math.isfinite(value):
        inner.zero_grad(set_to_none=True)
        raise NonFiniteError(_explain(gradient.terms, at))
    gradient.finish()
    if options.depth_rule is not None:
        options.depth_rule.reserve(inner, gradient.posterior.last)
        options.depth_rule.move(gradient)
    if scaler is not None and options.clip is not None:
        scaler.unscale_(optimizer)
    if options.clip is not None:
        _clip(inner, options.clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    rows = None if options.depth_rule is None else gradient.rows_log_lik
    return StepInfo(gradient.terms, value, change, rows)


def _clip(model: "UDN", largest: float) -> None:
    """Let the norm of all gradients be no larger than this."""
    placement = model.network.placement
    if not isinstance(placement, Shards):
        # Each once, though several depths may have it.
        parameters = {id(p): p for p in parameters_of(model)}.values()
        torch.nn.utils.clip_grad_norm_(parameters, largest)
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    factor = (largest / (placement.norm(grads) + 1e-6)).clamp(max=1.0)  # as torch does
    torch._foreach_mul_([local(grad) for grad in grads], factor)


def uncompiled(model: Any) -> "UDN":
    """The model inside of `torch.compile(model)`; a model as it is passes through."""
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "DistributedDataParallel knows no layer that is born later: give the model itself, "
            "whose gradients are summed over processes all the same"
        )
    return getattr(model, "_orig_mod", model)


def pieces(
    batch: tuple[trees.Tree, Tensor, Tensor | None],
    count: int,
    likelihood: Likelihood,
    padded: bool = False,
) -> list[tuple[trees.Tree, Tensor, Tensor | None, float | Tensor]]:
    """A batch in `count` parts as equal as can be, each with its share of the observations.

    With fewer rows than that there are fewer parts, unless they are padded: then the rest are the
    first row with a share of 0, so that all processes run the layers equally often.
    """
    x, y, weights = batch
    rows = y.shape[0]
    if count == 1:
        return [(x, y, weights, 1.0)]
    held = likelihood.observations(y)
    parts = [p for p in torch.arange(rows).tensor_split(count) if len(p)]
    found: list[tuple[trees.Tree, Tensor, Tensor | None, float | Tensor]] = []
    for part in parts:
        at = slice(int(part[0]), int(part[-1]) + 1)
        own = None if weights is None else weights[at]
        share: float | Tensor = len(part) / rows
        if held is not None:  # by rows where nothing counts: the prior's part is still due
            total = held.sum()
            share = torch.where(total > 0, held[at].sum() / total, share)
        found.append((trees.rows(x, at), y[at], own, share))
    if padded:
        own = None if weights is None else weights[:1]
        found += [(trees.rows(x, slice(1)), y[:1], own, 0.0)] * (count - len(found))
    return found


_NOTHING = growth.GrowthPlan(range(0), range(0))


def _explain(terms: ElboTerms, at: str) -> str:
    values = {name: term.item() for name, term in terms._asdict().items()}
    bad = [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]
    what = ", ".join(bad) or f"the sum of the terms overflows: {values}"
    return (
        f"the loss is not finite{at}: {what}. A lower learning rate, gradient clipping "
        "or another initialisation usually helps; the data were checked before training."
    )
