"""The last step of a classifier: what nearness to rows of the table says of the classes.

Let u_c(x) be what kernel ridge regression of the indicators of the classes foretells, with nearness
k(x, z) = exp(−Σ_c s_c |x_c − z_c|) to rows z_j that were learnt from:

    u(x) = Σ_j v_j (k(x, z_j) + β),    (K + β + λ/ω) v = Y − 1/C.

Rows of which all that are near are of one class have u_c near 1 − 1/C for it, others less. It is
added to the logits of all depths, as much of it as held-out rows ask for:

    logits = κ o_ℓ(x) + a u(x).

κ and a have the highest held-out log-likelihood, less what it costs to believe in them (a is
N(0, 8²) beforehand), and only if that is half a nat above the network alone with the best κ: what a
temperature does is no merit of nearness. Nor is it one to be surer still of what is sure already: n
rows can't tell probabilities apart that differ by 1/n from 1, so each is raised by 1/n first.

Held-out rows are few, and may be kind to nearness or not. What nearness alone, softmax(a u), says
of rows that were learnt from, each foretold by all others, is known as well, and of many more. So
the gains g_i of held-out rows are corrected by the control variate ℓ_i = log softmax(a u(x_i))_y:

    Σ_i g_i + n β (mean of ℓ over rows that were learnt from − its mean over held-out rows),

with β = cov(g, ℓ)/var(ℓ) of held-out rows, but from 1 − κ to 1.

The scales s and λ have the least leave-one-out error of the indicators (`find_metric`). Then
held-out rows are learnt from, too; each of them judges the temperature as all others foretell it.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unbounded.estimators.metric import (
    MOST_LEARNT,
    Metric,
    Table,
    factor_of,
    find_metric,
    foretell,
    inverse_of,
)
from unbounded.estimators.nearness import (
    FAILURES,
    LEAST,
    MOST,
    SOME,
    SPEED,
    install,
    mean_of,
    seconds,
    spread,
    with_held,
)
from unbounded.estimators.rows import Scalings, WeightedRows, equal_rows, rows_at_once
from unbounded.layers import TableDense
from unbounded.layers.kernels import MOST_NUMBERS
from unbounded.likelihoods import Bernoulli, Categorical, Likelihood, MultiLabel
from unbounded.model import UDN
from unbounded.predictive import combine, predict

SHARES = (0.75, 0.5, 0.25)
"""κ. A network that stays whole would only be made more sure of itself."""
ALONE = (1.0, 0.5, 0.71, 1.4, 2.0, 2.8, 4.0)
"""κ without nearness: what a temperature does."""
AMOUNTS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0)
"""a"""
_SHARE_APART, _AMOUNT_APART = 0.5, 8.0  # standard deviations beforehand
_LEAST_GAIN = 0.5  # nats, of all held-out rows together
_LEAST_HELD = 8  # rows
_MOST_JUDGES, _MOST_ALONE = 4000, 1000


class Chosen(NamedTuple):
    """How much of the network and of nearness is best, and what it is worth."""

    share: float  # κ
    amount: float  # a
    score: float  # held-out log-likelihood, less the price of both


@torch.no_grad()
def close_classes(
    models: Sequence[UDN],
    scalings: Scalings,
    learnt: WeightedRows | None,
    held: WeightedRows,
    left: float = math.inf,
    refit: bool = True,
) -> Tensor | None:
    """Let heads of trained models say what nearness to rows adds, if held-out rows show a gain.

    Args:
        models: the members, whose mean is judged.
        scalings: of the rows.
        learnt: rows that were learnt from, if they are at hand.
        held: rows that were not.
        left: seconds that it may take, about.
        refit: whether held-out rows may be learnt from in the end.

    Returns:
        by how much the outputs of held-out rows have moved as each of them was learnt from,
        `(rows, output)`: each has to be judged as it was foretold by all others; zeros if they were
        not. None if nothing was added.
    """
    if learnt is None or not all(map(_can, models)) or seconds(len(learnt.x)) > left:
        return None
    few = (learnt, LEAST), (held, _LEAST_HELD)
    if any(equal_rows(rows.weights) < least for rows, least in few):
        return None
    # Whatever is wrong with the numbers, the models are as good as they were.
    with suppress(*FAILURES):
        judges = _Judges(models, scalings, held.take(spread(len(held.x), _MOST_JUDGES)))
        some = learnt.take(spread(len(learnt.x), MOST_LEARNT))
        known, rest = (_table(models[0], scalings, part) for part in (some, held))
        return _add(models, known, rest, judges, refit, left)
    return None


def _can(model: UDN) -> bool:
    """Whether its heads are linear and nothing is known of their input yet."""
    layers = model.layers
    return (
        type(layers) is TableDense
        and type(model.likelihood.single) in (Bernoulli, Categorical, MultiLabel)
        and not layers.head_knots
        and not layers.head_rows
        and all(type(head) is nn.Linear for head in model.network.heads.values())
    )


def indicators(likelihood: Likelihood, y: Tensor) -> Tensor:
    """What nearness foretells: `(rows,)` classes or `(rows, label)` → `(rows, output)`."""
    if isinstance(likelihood, Categorical):
        count = likelihood.num_classes
        return nn.functional.one_hot(y.long(), count).double() - 1 / count
    return y.double().reshape(len(y), -1) - 0.5


def _table(model: UDN, scalings: Scalings, rows: WeightedRows) -> Table:
    x, y, _ = scalings.tensors(rows, model)
    # Rows are compared as networks see them, in single precision.
    inputs, found = x.float().double(), indicators(model.likelihood.single, y)
    return Table(inputs, found, torch.from_numpy(rows.weights), torch.zeros_like(found))


def targets_of(likelihood: Likelihood, found: Tensor) -> Tensor:
    """Classes or labels, from their `indicators`."""
    if isinstance(likelihood, Categorical):
        return found.argmax(1)
    labels = (found > 0).long()
    return labels if isinstance(likelihood, MultiLabel) else labels[:, 0]


def slope(weights: Tensor, x: Tensor, y: Tensor) -> float:
    """Of the line through values of rows, but between 0 and 1."""
    x = x - mean_of(weights, x)[0]
    squares = float(weights @ x**2)
    return min(max(float(weights @ (x * y)) / squares, 0.0), 1.0) if squares > 0 else 0.0


def price_of(share: float, amount: float = 0.0) -> float:
    """Of κ and a, in nats."""
    apart = 0.0 if amount else math.log(share)
    return ((apart / _SHARE_APART) ** 2 + (amount / _AMOUNT_APART) ** 2) / 2


class _Judges:
    """Held-out rows, and what the networks alone say of them."""

    def __init__(self, models: Sequence[UDN], scalings: Scalings, rows: WeightedRows):
        x, self.y, _ = scalings.tensors(rows, models[0])
        self.x, self.weights = x.float().double(), torch.from_numpy(rows.weights)
        at_once = rows_at_once(models[0])
        self._members = [predict(model, x, at_once) for model in models]
        self.y = self.y.to(self._members[0].outputs.device)
        self._likelihood = models[0].likelihood.single

    def choose(self, near: Tensor, known: Tensor, rows: Table) -> Chosen:
        """The best share and amount.

        Args:
            near: what nearness says of these rows, u, `(rows, output)`.
            known: what it says of rows that were learnt from, of each without it.
            rows: those.
        """

        def logs(share: float, amount: float) -> Tensor:
            added = amount * near.to(self._members[0].outputs)
            members = [replace(one, outputs=share * one.outputs + added) for one in self._members]
            return self._raised(combine(members).log_prob(self.y))

        def nearness_alone(u: Tensor, y: Tensor) -> Tensor:
            return self._raised(self._likelihood.log_prob(u[None], y)[0])

        tried = {share: logs(share, 0.0) for share in ALONE}
        scores = {share: float(self.weights @ tried[share]) - price_of(share) for share in ALONE}
        share = max(ALONE, key=scores.__getitem__)
        alone, best = tried[share], Chosen(share, 0.0, scores[share])
        least = best.score + _LEAST_GAIN
        targets, size = targets_of(self._likelihood, rows.y), float(self.weights.sum())
        for amount in AMOUNTS:
            own = nearness_alone(amount * near, self.y.cpu())
            elsewhere = mean_of(rows.weights, nearness_alone(amount * known, targets))[0]
            for share in SHARES:
                gain = logs(share, amount) - alone
                part = max(slope(self.weights, own, gain), 1 - share)
                kindness = size * part * (mean_of(self.weights, own)[0] - elsewhere)
                total = float(self.weights @ (alone + gain)) - kindness - price_of(share, amount)
                if total > max(least, best.score):
                    best = Chosen(share, amount, total)
        return best

    def _raised(self, log_probs: Tensor) -> Tensor:
        """log(p + 1/n), where p is 1 at the most."""
        return (log_probs.double().exp().cpu() + 1 / len(self.y)).log()


def _add(
    models: Sequence[UDN], learnt: Table, held: Table, judges: _Judges, refit: bool, left: float
) -> Tensor | None:
    generator = torch.Generator().manual_seed(0)
    numbers = max(learnt.x.shape[1], learnt.y.shape[1])
    most = min(MOST, MOST_NUMBERS // numbers)
    order = torch.randperm(len(learnt.x), generator=generator)[:most]
    metric = find_metric(learnt) if len(order) >= LEAST else None
    if metric is None:
        return None
    rows = learnt.take(order[:SOME])
    values, told = _told(rows, metric, judges)
    best = judges.choose(*told)
    if not best.amount:
        return None
    if len(order) > SOME and 2 * len(order) ** 3 / SPEED < left:
        more = learnt.take(order)
        others, told = _told(more, metric, judges)
        with_more = judges.choose(*told)
        if with_more.score > best.score:
            rows, values, best = more, others, with_more
    moved, added = torch.zeros_like(held.y), torch.zeros_like(values)
    if refit and len(rows.x) + len(held.x) <= most:
        rows, values, added, moved = with_held(held, rows, metric, 0.0, values)
    values, added, moved = (best.amount * part for part in (values, added, moved))
    for model in models:
        install(model, rows.x, metric.scales, best.share, values, added)
    return moved


def _told(
    rows: Table, metric: Metric, judges: _Judges
) -> tuple[Tensor, tuple[Tensor, Tensor, Table]]:
    """v, `(row, output)`, and what they say of held-out rows and, without them, of some rows."""
    factor = factor_of(rows, metric)
    values = torch.cholesky_solve(rows.y, factor)
    some = rows.take(slice(-_MOST_ALONE, None))
    alone = some.y - values[-_MOST_ALONE:] / inverse_of(factor, len(some.x))[:, None]
    return values, (foretell(judges.x, rows.x, metric, values), alone, some)
