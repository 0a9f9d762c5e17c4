"""The end of the last step of a regressor: columns together, by nearness to rows.

With the mean μ of the mixture, and nearness k(x, z) = exp(−Σ_c s_c |x_c − z_c|) to rows z_j,

    f(x) = κ μ(x) + Σ_j v_j (k(x, z_j) + β),    (K + β + λ/ω) v = y − κ μ,

is a Gaussian process of what the network leaves (κ = 1), one that has never seen it (κ = 0), or the
mean of both: where a network has learnt its rows by heart, nothing is left there.

The scales s and λ are those with the least leave-one-out error of y, where some rows are foretold
by the nearest others (`find_metric`); so they are right for rows that lie as close as these do,
which those of a part of the table are not. Then held-out rows choose κ, and whether to take any:
the error must fall. Where the table has rows several times, further rows may be copies of known
ones: these count as often as among the rows that were learnt from. At last held-out rows are learnt
from, too.
"""

import copy
import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from unbounded.estimators.metric import (
    BOUNDS,
    CONSTANT,
    Metric,
    Table,
    factor_of,
    find_metric,
    foretell,
    inverse_of,
)
from unbounded.layers import TableDense
from unbounded.layers.kernels import MOST_NUMBERS, KernelHead
from unbounded.layers.tables import RampedHead
from unbounded.model import UDN

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""κ"""
LEAST, SOME, MOST = 50, 2000, 9000
"""Rows to be near to: at the least, to try, at the most."""
_MOST_JUDGES, _MOST_COPIES, _MOST_ALONE = 4000, 100, 1000
_DOUBT, _ALIKE = 0.5, 0.5  # standard errors
_GAIN = 0.01  # of the squared error, that more rows than a few must bring
_SAME = 100.0  # s with which rows that are the same are near, and hardly any others
SPEED = 1e10
"""Products a second, on one slow core."""
FAILURES = (ArithmeticError, MemoryError, RuntimeError)
"""Of numbers beyond all bounds there are no roots, or none that are numbers."""


class Found(NamedTuple):
    """What nearness to rows may add, and what it is worth."""

    rows: Table  # to be near to
    metric: Metric
    share: float  # κ
    values: Tensor  # v, (row, target)
    left: Tensor  # squared errors of held-out rows, (rows,)
    fresh: float  # what their mean falls by, a share of that before
    error: float  # standard error of that
    gain: float  # the same, with copies as often as the table has them


def weigh(learnt: Table, held: Table, metric: Metric) -> list[Found]:
    """What each share of the network is worth, to held-out rows and to copies.

    None of the former is a copy of another row. Of rows that are there ω times one copy is left
    out: each is foretold as if it alone had not been there.
    """
    before = _square(held, held.y - held.means)
    if not 0 < before < math.inf:
        return []
    again = learnt.copies.nonzero()[:, 0]
    returning = float(learnt.weights[again].sum() / learnt.weights.sum())
    again = again[spread(len(again), _MOST_COPIES)]
    units = torch.zeros(len(learnt.x), len(again), dtype=torch.float64)
    units[again, torch.arange(len(again))] = 1.0
    right = torch.cat([learnt.y, learnt.means, units], 1)
    factor = factor_of(learnt, metric)
    solved = torch.cholesky_solve(right, factor)
    of_y, of_mean, inverse = solved.tensor_split([learnt.y.shape[1], 2 * learnt.y.shape[1]], 1)
    near_y, near_mean = (foretell(held.x, learnt.x, metric, part) for part in (of_y, of_mean))
    copies = learnt.take(again)
    # With one copy less, ω − 1 in place of ω.
    noise = metric.strength / copies.copies
    fewer = noise - metric.strength / copies.weights
    alone = (noise / (1 + fewer * inverse[again, torch.arange(len(again))]))[:, None]
    # Held-out rows are few, and may be kind to a kernel, which knows nothing beyond its rows. Those
    # that were learnt from are more, and each is foretold by all others.
    last = learnt.take(slice(-_MOST_ALONE, None))
    errors = of_y[-_MOST_ALONE:] / inverse_of(factor, len(last.x))[:, None]
    kindness = _square(last, errors) - _square(held, held.y - near_y)
    found = []
    for share in SHARES:
        values = of_y - share * of_mean
        after = held.y - near_y - share * (held.means - near_mean)
        fresh, error = _fall(held, held.y - held.means, after)
        fresh -= (1 - share) ** 2 * max(0.0, kindness)
        known, _ = _fall(copies, copies.y - copies.means, alone * values[again])
        gain = (1 - returning) * fresh + returning * known
        worth = (number / before for number in (fresh, error, gain))
        found.append(Found(learnt, metric, share, values, after.square().sum(1), *worth))
    return found


def choose(tried: Sequence[Found], weights: Tensor, doubt: float = 0.0) -> Found | None:
    """What is worth most; None unless the error falls.

    Held-out rows must not lose more than a standard error against the best for them: copies alone
    do not decide. The error may rise by `doubt` standard errors, where held-out rows will be learnt
    from, too: what they are worth does not show in it. Where more of the network is as good, but
    for noise, it stays: beyond the rows of the table only the network goes on.
    """
    most = max((0.0, *(one.fresh for one in tried)))
    near = [one for one in tried if one.fresh >= most - one.error]
    best = max(near, key=attrgetter("gain"), default=None)
    if best is None or best.gain <= -doubt * best.error:
        return None
    for one in near:  # larger shares come first
        if one.metric is best.metric and one.share > best.share and one.gain > 0:
            lost, error = mean_of(weights, one.left - best.left)
            if lost <= _ALIKE * error:
                return one
    return best


def spread(rows: int, most: int) -> slice:
    """So many of the rows, at equal distances: their order may be that of a column."""
    return slice(None, None, max(1, -(-rows // most)))


def _fall(table: Table, errors: Tensor, others: Tensor) -> tuple[float, float]:
    """By how much squared errors `(row, target)` fall, and its standard error; 0 of no rows."""
    return mean_of(table.weights, errors.square().sum(1) - others.square().sum(1))


def _square(table: Table, errors: Tensor) -> float:
    """The mean of squared errors, `(row, target)`."""
    return mean_of(table.weights, errors.square().sum(1))[0]


def mean_of(weights: Tensor, each: Tensor) -> tuple[float, float]:
    """The mean of what rows have, `(rows,)`, and its standard error; 0 of no rows."""
    if not len(each):
        return 0.0, 0.0
    share = weights / weights.sum()
    mean = float(share @ each)
    return mean, float((share**2) @ (each - mean) ** 2) ** 0.5


def seconds(rows: int) -> float:
    """How long it takes with so many rows, about."""
    return 2.0 + 2 * min(rows, SOME) ** 3 / SPEED


@torch.no_grad()
def add_nearness(
    models: Sequence[UDN],
    learnt: Table,
    held: Table,
    refit: bool,
    left: float = math.inf,
    before: Callable[[], object] | None = None,
) -> Tensor | None:
    """Add to the heads what nearness to rows is worth, if held-out rows show a gain.

    Args:
        models: the members, of which `Table.means` is the mean.
        learnt: rows that were learnt from.
        held: rows that were not.
        refit: whether they may be learnt from in the end.
        left: seconds that it may take.
        before: called just before heads are changed.

    Returns:
        by how much the predictions of held-out rows move as each of them is learnt from,
        `(rows, target)`; zeros if they are not. None if nothing was added.
    """
    generator = torch.Generator().manual_seed(0)
    most = min(MOST, MOST_NUMBERS // learnt.x.shape[1])
    order = torch.randperm(len(learnt.x), generator=generator)[:most]
    judges = held.take(spread(len(held.x), _MOST_JUDGES))
    if len(order) < LEAST:
        return None
    refit = refit and len(judges.x) == len(held.x)
    few = learnt.take(order[:SOME])
    doubt = _DOUBT if refit and len(few.x) == len(learnt.x) else 0.0
    metrics = [find_metric(learnt)]
    if few.copies.any():
        metrics.append(Metric(torch.full_like(few.x[0], _SAME), math.exp(BOUNDS[1][0])))
    tried = [one for metric in metrics if metric for one in weigh(few, judges, metric)]
    found = choose(tried, judges.weights, doubt)
    if found is None:
        return None
    if len(order) > SOME and 2 * len(order) ** 3 / SPEED < left:
        more = choose(weigh(learnt.take(order), judges, found.metric), judges.weights)
        if more is not None and more.gain > found.gain + _GAIN:
            found = more
    rows, metric, share, values = found[:4]
    moved, added = torch.zeros_like(held.y), torch.zeros_like(values)
    if refit and len(rows.x) + len(held.x) <= most:
        rows, values, added, moved = with_held(held, rows, metric, share, values)
    if before is not None:
        before()
    for model in models:
        install(model, rows.x, metric.scales, share, values, added)
    return moved


def with_held(
    held: Table, rows: Table, metric: Metric, share: float, before: Tensor
) -> tuple[Table, Tensor, Tensor, Tensor]:
    """Learn from held-out rows, too, where values of the others were found before.

    Returns:
        all rows, their values, what of these is new, and by how much the held-out rows move: from
        what is foretold of each of them by all other rows, v_i/(K + β + λ/ω)⁻¹_ii off the target,
        to what is foretold now.
    """
    both = Table.together(rows, held)
    factor = factor_of(both, metric)
    values = torch.cholesky_solve(both.y - share * both.means, factor)
    count = len(held.x)
    own = values[-count:]
    alone = own / inverse_of(factor, count)[:, None]
    added = values.clone()
    added[:-count] -= before
    return both, values, added, alone - own * (metric.strength / held.weights)[:, None]


def install(
    model: UDN, rows: Tensor, scales: Tensor, share: float, values: Tensor, added: Tensor
) -> None:
    """Let all heads keep a share of what they say and add what nearness to the rows is worth."""
    # A copy: layers may be the user's own, and of several models.
    layers, heads = copy.copy(model.layers), model.network.heads
    assert isinstance(layers, TableDense)
    layers.head_rows, layers.head_scales = rows.tolist(), scales.tolist()
    model.layers = model.network.layers = layers
    size = values.shape[1]
    for name, rest in list(heads.items()):
        head = KernelHead(rest, layers.head_rows, layers.head_scales).train(rest.training)
        parts = [head.linear.weight[:size], head.linear.bias[:size]]
        if isinstance(rest, RampedHead):
            parts.append(rest.ramps[:, :size])
        for part in parts:
            part *= share
        head.linear.bias[:size] += (CONSTANT * values.sum(0)).to(head.linear.bias)
        head.values[:, :size] = values.to(head.values)
        head.added[:, :size] = added.to(head.added)
        head.added_bias[:size] = (CONSTANT * added.sum(0)).to(head.added)
        heads[name] = head


def forget_judges(models: Sequence[UDN]) -> None:
    """Take back what heads have learnt from rows that are to judge again."""
    for model in models:
        for head in model.network.heads.values():
            if isinstance(head, KernelHead):
                head.forget()
