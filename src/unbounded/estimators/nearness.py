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
import itertools
import math
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from unbounded.layers import TableDense
from unbounded.layers.kernels import MOST_NUMBERS, KernelHead, nearness
from unbounded.layers.tables import RampedHead
from unbounded.model import UDN

Floats = NDArray[np.float64]

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""κ"""
MOST_LEARNT = 20_000
"""Rows among which some are the nearest."""
_CONSTANT = 4.0  # β, in units of the targets' variance: as good as free
_LEAST, _SOME, _MOST = 50, 2000, 9000  # rows to be near to: at the least, to try, at the most
_MOST_JUDGES, _MOST_COPIES, _MOST_ALONE = 4000, 100, 1000
_BEYOND = 1e300  # a score of what cannot be computed
_DOUBT, _ALIKE = 0.5, 0.5  # standard errors
_GAIN = 0.01  # of the squared error, that more rows than a few must bring
_BOUNDS = (-20.0, 8.0), (math.log(1e-3), math.log(1e2))  # of log s and log λ
_SAME = 100.0  # s with which rows that are the same are near, and hardly any others
_SPEED = 1e10  # products a second, on one slow core

# Leave-one-out errors
_ASKED, _NEAREST = 800, 40  # rows that are foretold, by so many others
_FEWER = 16  # nearest rows, of many columns
_NUMBERS = 8_000_000  # of all differences together
_FEW = 150  # rows that say too little of each column
_REACHES = (0.25, 1.0, 4.0, 16.0)  # of the median distance: one scale for all columns
_STRENGTHS = (1e-3, 1e-2, 0.1, 1.0)
_ROUNDS, _STEPS = 2, 10
_APART = 1.0  # standard deviation of log s before any row is seen


class Metric(NamedTuple):
    """How near rows are, and how much of them is noise."""

    scales: Tensor  # s, (column,)
    strength: float  # λ

    @classmethod
    def of(cls, logs: Floats) -> "Metric":
        """From log s and, last, log λ."""
        return cls(torch.from_numpy(np.exp(logs[:-1])), float(np.exp(logs[-1])))


class Table(NamedTuple):
    """Rows as networks see them, in double precision."""

    x: Tensor  # (rows, column)
    y: Tensor  # (rows, target)
    weights: Tensor  # how often they count, (rows,)
    means: Tensor  # μ, (rows, target)

    def take(self, index: Tensor | slice) -> "Table":
        """Some of the rows."""
        return Table(*(part[index] for part in self))

    @property
    def copies(self) -> Tensor:
        """How many further copies of each row there are, `(rows,)`.

        None where weights are no counts.
        """
        whole = bool((self.weights == self.weights.round()).all())
        return (self.weights - 1).clamp(min=0) if whole else torch.zeros_like(self.weights)

    @classmethod
    def together(cls, *tables: "Table") -> "Table":
        """All rows."""
        return cls(*(torch.cat(parts) for parts in zip(*tables, strict=True)))


class Neighbours:
    """Some rows, the nearest others of each, and how far apart they are.

    Args:
        table: all rows.
        asked: indices of some.
        count: how many others.
        scales: by which these are near, and all distances, along each column apart; None for the
            sum over unscaled columns.
    """

    def __init__(self, table: Table, asked: Tensor, count: int, scales: Tensor | None):
        x = table.x if scales is None else table.x * scales
        distances = torch.cdist(x[asked], x, p=1.0)
        distances[torch.arange(len(asked)), asked] = math.inf
        chosen = distances.topk(count, largest=False).indices
        self.counts = table.weights[chosen]
        # Of each pair one is enough: who is (1 or column, row · near), pairs (…, row · pair).
        self.shape, self.upper = (len(asked), count), torch.triu_indices(count, count, 1)
        left, right = self.upper
        kinds = 1 if scales is None else table.x.shape[1]
        self.own = table.x.new_zeros(kinds, chosen.numel())
        self.pairs = table.x.new_zeros(kinds, len(asked) * len(left))
        for column, values in enumerate(table.x.T):  # one after the other takes the least memory
            near, place = values[chosen], column % kinds
            self.own[place] += (near - values[asked][:, None]).abs_().flatten()
            self.pairs[place] += (near[:, left] - near[:, right]).abs_().flatten()
        self.y, self.near_y, self.weights = table.y[asked], table.y[chosen], table.weights[asked]

    def at(self, logs: Floats) -> tuple[float, Floats]:
        """n/2 log of the mean squared leave-one-out error, at log s and log λ, and its slopes."""
        (rows, count), scales = self.shape, torch.from_numpy(np.exp(logs[:-1]))
        k = torch.exp(-(scales @ self.own)).view(rows, count)
        apart = torch.exp(-(scales @ self.pairs)).view(rows, -1)
        noise = math.exp(logs[-1]) / self.counts
        left, right = self.upper
        grams = k.new_full((rows, count, count), _CONSTANT)
        grams[:, right, left] += apart  # the lower half is all that is looked at
        grams.diagonal(dim1=1, dim2=2).add_(1 + noise)
        factors, info = torch.linalg.cholesky_ex(grams)
        asked = (k + _CONSTANT)[..., None]
        solved = torch.cholesky_solve(torch.cat([self.near_y, asked], 2), factors)
        values, shares = solved[..., :-1], solved[..., -1]
        errors = self.y - (asked * values).sum(1)
        total = float(self.weights.sum())
        squared = float((self.weights[:, None] * errors**2).sum())
        if int(info.max()) or not 0 < squared < math.inf:
            return _BEYOND, np.zeros_like(logs)
        pull = self.weights[:, None] * (errors[:, None] * values).sum(2) * (total / squared)
        by_pair = shares[:, left] * pull[:, right]
        by_pair = by_pair.addcmul_(shares[:, right], pull[:, left]).mul_(apart)
        slopes = self.own @ (k * pull).flatten() - self.pairs @ by_pair.flatten()
        by_noise = float((noise * shares * pull).sum())
        score = total / 2 * math.log(squared / total)
        return score, np.append((slopes * scales).numpy(), by_noise)


def find_metric(table: Table) -> Metric | None:
    """Scales and λ with the least leave-one-out error; None where there is none.

    One scale for all columns, or one for each if that is better by more than a nat a column.
    """
    generator = torch.Generator().manual_seed(0)
    table = table.take(torch.randperm(len(table.x), generator=generator))
    columns = table.x.shape[1]
    count = min(_NEAREST, len(table.x) - 1)
    asked = torch.arange(min(len(table.x), _ASKED))
    typical = float(torch.cdist(table.x[asked], table.x[asked], p=1.0).median())
    if not 0 < typical < math.inf:
        return None
    alike = Neighbours(table, asked, count, None)
    starts = itertools.product(_REACHES, _STRENGTHS)
    tried = [np.log([1 / (reach * typical), strength]) for reach, strength in starts]
    logs, score = min(((one, alike.at(one)[0]) for one in tried), key=itemgetter(1))
    if score >= _BEYOND:
        return None
    one = np.append(np.full(columns, logs[0]), logs[1])
    if _FEW * _FEWER**2 * columns > _NUMBERS or columns == 1:
        return Metric.of(one)
    if _FEW * count**2 * columns > _NUMBERS:
        count = min(count, _FEWER)
    asked = asked[: 2 * _NUMBERS // (count**2 * columns)]
    own, best = _descend(table, asked, count, one)
    return Metric.of(own if best < -columns else one)


def _descend(table: Table, asked: Tensor, count: int, start: Floats) -> tuple[Floats, float]:
    """The best log s and log λ on the way down from a start, and by how much.

    Scales that differ have a price: log s ~ N(their mean, `_APART`²). Who is near follows them.
    """

    def priced(logs: Floats, neighbours: Neighbours) -> tuple[float, Floats]:
        score, slopes = neighbours.at(logs)
        apart = logs[:-1] - logs[:-1].mean()
        price = apart / _APART**2
        return score + float(price @ apart) / 2, slopes + np.append(price, 0.0)

    bounds = [_BOUNDS[0]] * (len(start) - 1) + [_BOUNDS[1]]
    options = {"maxiter": _STEPS, "maxfun": _STEPS + 4}
    logs, first, best = start, math.inf, (start, math.inf)
    for left in reversed(range(_ROUNDS + 1)):
        neighbours = Neighbours(table, asked, count, torch.from_numpy(np.exp(logs[:-1])))
        score = priced(logs, neighbours)[0]
        if left == _ROUNDS:
            first = score
        best = min(best, (logs, score), key=itemgetter(1))
        if left:
            found = minimize(
                priced, logs, (neighbours,), "L-BFGS-B", True, bounds=bounds, options=options
            )
            logs = found.x
    return best[0], best[1] - first


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


def factor_of(table: Table, metric: Metric) -> Tensor:
    """L with LLᵀ = K + β + λ/ω, `(row, row)`."""
    gram = nearness(table.x, table.x, metric.scales).add_(_CONSTANT)
    gram.diagonal().add_(metric.strength / table.weights)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info):
        raise torch.linalg.LinAlgError("rows are too near to each other")
    return factor


def _inverse(factor: Tensor, count: int) -> Tensor:
    """The last so many numbers of the diagonal of (LLᵀ)⁻¹: only that corner of L has a part."""
    corner = factor[-count:, -count:]
    roots = torch.linalg.solve_triangular(corner, torch.eye(count).to(corner), upper=False)
    return roots.square().sum(0)


def foretell(x: Tensor, rows: Tensor, metric: Metric, values: Tensor) -> Tensor:
    """Σ_j v_j (k(x, z_j) + β), `(rows, target)`."""
    parts = [nearness(part, rows, metric.scales) @ values for part in x.split(_SOME)]
    return torch.cat(parts) + _CONSTANT * values.sum(0)


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
    again = again[_spread(len(again), _MOST_COPIES)]
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
    errors = of_y[-_MOST_ALONE:] / _inverse(factor, len(last.x))[:, None]
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
            lost, error = _mean_of(weights, one.left - best.left)
            if lost <= _ALIKE * error:
                return one
    return best


def _spread(rows: int, most: int) -> slice:
    """So many of the rows, at equal distances: their order may be that of a column."""
    return slice(None, None, max(1, -(-rows // most)))


def _fall(table: Table, errors: Tensor, others: Tensor) -> tuple[float, float]:
    """By how much squared errors `(row, target)` fall, and its standard error; 0 of no rows."""
    return _mean_of(table.weights, errors.square().sum(1) - others.square().sum(1))


def _square(table: Table, errors: Tensor) -> float:
    """The mean of squared errors, `(row, target)`."""
    return _mean_of(table.weights, errors.square().sum(1))[0]


def _mean_of(weights: Tensor, each: Tensor) -> tuple[float, float]:
    """The mean of what rows have, `(rows,)`, and its standard error; 0 of no rows."""
    if not len(each):
        return 0.0, 0.0
    share = weights / weights.sum()
    mean = float(share @ each)
    return mean, float((share**2) @ (each - mean) ** 2) ** 0.5


def seconds(rows: int) -> float:
    """How long it takes with so many rows, about."""
    return 2.0 + 2 * min(rows, _SOME) ** 3 / _SPEED


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
    most = min(_MOST, MOST_NUMBERS // learnt.x.shape[1])
    order = torch.randperm(len(learnt.x), generator=generator)[:most]
    judges = held.take(_spread(len(held.x), _MOST_JUDGES))
    if len(order) < _LEAST:
        return None
    refit = refit and len(judges.x) == len(held.x)
    few = learnt.take(order[:_SOME])
    doubt = _DOUBT if refit and len(few.x) == len(learnt.x) else 0.0
    metrics = [find_metric(learnt)]
    if few.copies.any():
        metrics.append(Metric(torch.full_like(few.x[0], _SAME), math.exp(_BOUNDS[1][0])))
    tried = [one for metric in metrics if metric for one in weigh(few, judges, metric)]
    found = choose(tried, judges.weights, doubt)
    if found is None:
        return None
    if len(order) > _SOME and 2 * len(order) ** 3 / _SPEED < left:
        more = choose(weigh(learnt.take(order), judges, found.metric), judges.weights)
        if more is not None and more.gain > found.gain + _GAIN:
            found = more
    rows, metric, share, values = found[:4]
    moved, added = torch.zeros_like(held.y), torch.zeros_like(values)
    if refit and len(rows.x) + len(held.x) <= most:
        rows, values, moved = _with(held, rows, metric, share)
        added = values.clone()
        added[: -len(held.x)] -= found.values
    if before is not None:
        before()
    for model in models:
        _install(model, rows.x, metric.scales, share, values, added)
    return moved


def _with(held: Table, rows: Table, metric: Metric, share: float) -> tuple[Table, Tensor, Tensor]:
    """Learn from held-out rows, too: all rows, their values, and by how much the former move.

    That is from what is foretold of each of them by all other rows, v_i/(K + β + λ/ω)⁻¹_ii off the
    target, to what is foretold now.
    """
    both = Table.together(rows, held)
    factor = factor_of(both, metric)
    values = torch.cholesky_solve(both.y - share * both.means, factor)
    count = len(held.x)
    own = values[-count:]
    alone = own / _inverse(factor, count)[:, None]
    return both, values, alone - own * (metric.strength / held.weights)[:, None]


def _install(
    model: UDN, rows: Tensor, scales: Tensor, share: float, values: Tensor, added: Tensor
) -> None:
    """Let all heads keep a share of their means and add what nearness to the rows is worth."""
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
        head.linear.bias[:size] += (_CONSTANT * values.sum(0)).to(head.linear.bias)
        head.values[:, :size] = values.to(head.values)
        head.added[:, :size] = added.to(head.added)
        head.added_bias[:size] = (_CONSTANT * added.sum(0)).to(head.added)
        heads[name] = head


def forget_judges(models: Sequence[UDN]) -> None:
    """Take back what heads have learnt from rows that are to judge again."""
    for model in models:
        for head in model.network.heads.values():
            if isinstance(head, KernelHead):
                head.forget()
