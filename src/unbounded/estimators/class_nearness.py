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

The scales s and λ have the least leave-one-out error of the indicators (`find_metric`). Then
held-out rows are learnt from, too; each of them judges the temperature as all others foretell it.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from operator import attrgetter
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
)
from unbounded.estimators.nearness import (
    FAILURES,
    LEAST,
    MOST,
    SOME,
    SPEED,
    install,
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
_MOST_JUDGES = 4000


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


def price_of(share: float, amount: float) -> float:
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

    def choose(self, near: Tensor) -> Chosen:
        """The best share and amount, where nearness says u, `(rows, output)`."""

        def tried(share: float, amount: float) -> Chosen:
            added = amount * near.to(self._members[0].outputs)
            members = [replace(one, outputs=share * one.outputs + added) for one in self._members]
            each = combine(members).log_prob(self.y).double().exp().cpu()
            logs = (each + 1 / len(each)).log()
            score = float(self.weights @ logs) - price_of(share, amount)
            return Chosen(share, amount, score if math.isfinite(score) else -math.inf)

        alone = max((tried(share, 0.0) for share in ALONE), key=attrgetter("score"))
        found = (tried(*pair) for pair in product(SHARES, AMOUNTS))
        best = max(found, key=attrgetter("score"))
        return best if best.score > alone.score + _LEAST_GAIN else alone


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
    values = _values(rows, metric)
    best = judges.choose(foretell(judges.x, rows.x, metric, values))
    if not best.amount:
        return None
    if len(order) > SOME and 2 * len(order) ** 3 / SPEED < left:
        more = learnt.take(order)
        others = _values(more, metric)
        with_more = judges.choose(foretell(judges.x, more.x, metric, others))
        if with_more.score > best.score:
            rows, values, best = more, others, with_more
    moved, added = torch.zeros_like(held.y), torch.zeros_like(values)
    if refit and len(rows.x) + len(held.x) <= most:
        rows, values, added, moved = with_held(held, rows, metric, 0.0, values)
    values, added, moved = (best.amount * part for part in (values, added, moved))
    for model in models:
        install(model, rows.x, metric.scales, best.share, values, added)
    return moved


def _values(rows: Table, metric: Metric) -> Tensor:
    """v, `(row, output)`."""
    return torch.cholesky_solve(rows.y, factor_of(rows, metric))
