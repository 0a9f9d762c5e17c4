"""How near rows of a table are, and what rows foretell of each other.

Nearness is k(x, z) = exp(−Σ_c s_c |x_c − z_c|). The scales s, and the noise λ, are those with the
least leave-one-out error of the targets, where some rows are foretold by the nearest others
(`find_metric`); so they are right for rows that lie as close as these do, which those of a part of
the table are not.
"""

import itertools
import math
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from unbounded.layers.kernels import nearness

Floats = NDArray[np.float64]

MOST_LEARNT = 20_000
"""Rows among which some are the nearest."""
CONSTANT = 4.0
"""β, in units of the targets' variance: as good as free."""
BOUNDS = (-20.0, 8.0), (math.log(1e-3), math.log(1e2))
"""Of log s and log λ."""
_BEYOND = 1e300  # a score of what cannot be computed
_ASKED, _NEAREST = 800, 40  # rows that are foretold, by so many others
_FEWER = 16  # nearest rows, of many columns
_NUMBERS = 8_000_000  # of all differences together
_FEW = 150  # rows that say too little of each column
_REACHES = (0.25, 1.0, 4.0, 16.0)  # of the median distance: one scale for all columns
_STRENGTHS = (1e-3, 1e-2, 0.1, 1.0)
_ROUNDS, _STEPS = 2, 10
_APART = 1.0  # standard deviation of log s before any row is seen
_AT_ONCE = 2000  # rows


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
        grams = k.new_full((rows, count, count), CONSTANT)
        grams[:, right, left] += apart  # the lower half is all that is looked at
        grams.diagonal(dim1=1, dim2=2).add_(1 + noise)
        factors, info = torch.linalg.cholesky_ex(grams)
        asked = (k + CONSTANT)[..., None]
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

    bounds = [BOUNDS[0]] * (len(start) - 1) + [BOUNDS[1]]
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


def factor_of(table: Table, metric: Metric) -> Tensor:
    """L with LLᵀ = K + β + λ/ω, `(row, row)`."""
    gram = nearness(table.x, table.x, metric.scales).add_(CONSTANT)
    gram.diagonal().add_(metric.strength / table.weights)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info):
        raise torch.linalg.LinAlgError("rows are too near to each other")
    return factor


def inverse_of(factor: Tensor, count: int) -> Tensor:
    """The last so many numbers of the diagonal of (LLᵀ)⁻¹: only that corner of L has a part."""
    corner = factor[-count:, -count:]
    roots = torch.linalg.solve_triangular(corner, torch.eye(count).to(corner), upper=False)
    return roots.square().sum(0)


def foretell(x: Tensor, rows: Tensor, metric: Metric, values: Tensor) -> Tensor:
    """Σ_j v_j (k(x, z_j) + β), `(rows, target)`."""
    parts = [nearness(part, rows, metric.scales) @ values for part in x.split(_AT_ONCE)]
    return torch.cat(parts) + CONSTANT * values.sum(0)
