"""The last step of a regressor: what heads and columns can still explain, by least squares.

Steps of an optimiser end near a minimum, not in it, and thresholds of single columns are learnt
late. Given the hidden states h_ℓ(x) of a trained network, the best heads are known in closed form.
So for each depth ℓ what its mean leaves of the targets, r_i = y_i − μ_ℓ(x_i), is fitted by

    min over w, v, b of  Σ_i ω_i [r_i − w·h_ℓ(x_i) − v·ρ(x_i) − b]² + λ(‖w‖² + ‖v‖²),

over the rows that were learnt from, with weights ω and with ramps ρ between many quantiles of each
column; or with w = 0. Held-out rows choose between both, and λ, the same for all depths and
members; and whether to take any: the squared error of the mixture must fall by more than its noise.
The result is added to the heads.

Then columns together, by nearness to rows (`unbounded.estimators.nearness`). Noise is calibrated
afterwards.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unbounded.estimators import nearness
from unbounded.estimators.metric import MOST_LEARNT, Table
from unbounded.estimators.rows import Scalings, WeightedRows, equal_rows, knots
from unbounded.layers import TableDense
from unbounded.layers.tables import RampedHead
from unbounded.likelihoods import BalancedGaussian, Gaussian, LearntNoise, ScaledInputNoise
from unbounded.model import UDN

Floats = NDArray[np.float64]

_STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""λ to choose from."""
_LEAST_LEARNT, _LEAST_HELD = 100, 30  # rows, that they can tell
_MOST_LEARNT, _MOST_HELD = 10_000, 20_000  # more say no more
_RAMPS, _MOST_RAMPS = 256, 1024  # of a column, and of all of them
_SURE = 1.5  # standard errors by which the squared error must fall
_CONSTANT = 1e3  # a feature
_SPEED = 1e10  # products a second, on one slow core
_FAILURES = (*nearness.FAILURES, np.linalg.LinAlgError)
_LEAST_MASS = 0.01  # of a depth, of the most probable one's: what hardly counts is left as it is


@torch.no_grad()
def close(
    models: Sequence[UDN],
    scalings: Scalings,
    learnt: WeightedRows | None,
    held: WeightedRows,
    seconds: float | None = None,
    refit: bool = True,
    before: Callable[[], object] | None = None,
) -> Tensor | None:
    """Add to the heads of trained models what least squares find.

    Args:
        models: the members, whose mean is judged.
        scalings: of the rows.
        learnt: rows that were learnt from, if they are at hand.
        held: rows that were not.
        seconds: that it may take, about; None for any.
        refit: whether held-out rows may be learnt from in the end.
        before: called just before predictions remember rows.

    Returns:
        by how much the means of held-out rows have moved as each of them was learnt from, as
        networks have them, `(rows, target)`: each has to be judged as it was foretold by all
        others. None if predictions remember no rows.
    """
    if learnt is None or not all(map(_can, models)):
        return None
    few = (learnt, _LEAST_LEARNT), (held, _LEAST_HELD)
    if any(equal_rows(rows.weights) < least for rows, least in few):
        return None
    some = learnt.take(slice(None, None, -(-len(learnt.x) // _MOST_LEARNT)))
    judges = held.take(slice(None, None, -(-len(held.x) // _MOST_HELD)))
    left = np.inf if seconds is None else seconds
    left -= _seconds(models, len(some.x))
    if left < 0:
        return None
    # Of numbers beyond all bounds there are no eigenvalues, or none that are numbers; memory may be
    # short, too. Whatever is wrong here, the models are as good as they were.
    with suppress(*_FAILURES), np.errstate(all="ignore"):
        _close(models, _Rows.of(models[0], scalings, some, judges))
    left -= nearness.seconds(len(some.x))
    if left < 0:
        return None
    with suppress(*_FAILURES), np.errstate(all="ignore"):
        near = learnt.take(slice(None, None, -(-len(learnt.x) // MOST_LEARNT)))
        tables = [_table(models, scalings, part) for part in (near, judges)]
        refit = refit and len(judges.x) == len(held.x)
        moved = nearness.add_nearness(models, tables[0], tables[1], refit, left, before)
        return None if moved is None else moved if refit else torch.zeros(len(held.x), 1)
    return None


def _table(models: Sequence[UDN], scalings: Scalings, rows: WeightedRows) -> Table:
    x, y, _ = scalings.tensors(rows, models[0])
    mean = np.mean([_mean(model, x, y.shape[1]) for model in models], 0)
    # Rows are compared as networks see them, in single precision.
    inputs = x.float().double()
    return Table(inputs, y.double(), torch.from_numpy(rows.weights), torch.from_numpy(mean))


def _can(model: UDN) -> bool:
    """Whether its heads are linear and give means, and its noise can be calibrated afterwards."""
    layers, likelihood = model.layers, model.likelihood
    return (
        type(layers) is TableDense
        and type(likelihood) in (Gaussian, BalancedGaussian)
        and isinstance(likelihood.noise, LearntNoise | ScaledInputNoise)
        and not layers.head_knots
        and not layers.head_rows
        and bool(layers.embedded)
        and all(type(head) is nn.Linear for head in model.network.heads.values())
    )


def _seconds(models: Sequence[UDN], rows: int) -> float:
    """How long that takes, about."""
    layers = models[0].layers
    assert isinstance(layers, TableDense)
    ramps = _ramps_of(len(layers.embedded)) * len(layers.embedded)
    smaller = min(ramps, rows)
    once = 2 * rows * ramps * smaller + 10 * smaller**3
    by_depth = 2 * layers.width * (rows * ramps + len(_STRENGTHS) * smaller * layers.width)
    return (once + by_depth * sum(len(model.network.heads) for model in models)) / _SPEED


def _ramps_of(columns: int) -> int:
    """Ramps of each of so many columns."""
    return min(_RAMPS, max(1, _MOST_RAMPS // columns))


class _Rows(NamedTuple):
    """Those that were learnt from and those held out, as networks see them."""

    inputs: Sequence[Tensor]  # (rows, column)
    targets: Sequence[Floats]  # (rows, target)
    roots: Floats  # of how often the former count, (rows, 1)
    weights: Floats  # how often the latter count, (rows,)

    @classmethod
    def of(
        cls, model: UDN, scalings: Scalings, learnt: WeightedRows, held: WeightedRows
    ) -> "_Rows":
        seen = [scalings.tensors(part, model) for part in (learnt, held)]
        roots = np.sqrt(learnt.weights)[:, None]
        return cls([x for x, _, _ in seen], [y.numpy() for _, y, _ in seen], roots, held.weights)


def _close(models: Sequence[UDN], rows: _Rows) -> bool:
    layers = models[0].layers
    assert isinstance(layers, TableDense)
    inputs, targets = rows.inputs, rows.targets
    columns = layers.embedded
    places = knots(inputs[0].numpy(), columns, _ramps_of(len(columns)))
    ramped = RampedHead(nn.Linear(1, 1).double(), columns, places)
    rises = [_with_constant(ramped.risen(x).numpy()) for x in inputs]
    ridge = _Ridge(rises[0] * rows.roots)
    ways = [_ways(model, inputs, rises[1], targets[0], rows.roots, ridge) for model in models]
    before = targets[1] - np.mean([one.mean for one in ways], 0)
    chosen = _best(before, np.mean([one.changes for one in ways], 0), rows.weights)
    if chosen is None:
        return False
    for model, one in zip(models, ways, strict=True):
        _install(model, places, {depth: found[chosen] for depth, found in one.found.items()})
    return True


class _Ways(NamedTuple):
    """What least squares find for a model, by ramps alone or with states too, with every λ."""

    mean: Floats  # of the mixture over depths before, (held-out row, target)
    changes: Floats  # of that mean, (way, held-out row, target)
    found: dict[int, list[NDArray[Any]]]  # by depth: coefficients of each way


def _ways(
    model: UDN,
    inputs: Sequence[Tensor],
    rises: Floats,
    targets: Floats,
    weights: Floats,
    ridge: "_Ridge",
) -> _Ways:
    """The ways of one model.

    Args:
        model: trained.
        inputs: of rows that were learnt from and of those held out, `(rows, column)`.
        rises: how far the ramps of the latter have risen, and a constant, `(rows, ramp)`.
        targets: of the former, `(rows, target)`.
        weights: the roots of how often these count, `(rows, 1)`.
        ridge: least squares by the ramps of these.
    """
    first, _ = model.support()
    frozen = model.freeze().double().cpu()
    probs = frozen.depth_probs.numpy() / float(frozen.depth_probs.sum())
    stack = frozen.stack()
    states = [[state.numpy() for state in stack.states(x)[first - 1 :]] for x in inputs]
    size = targets.shape[1]
    mean, changes = 0.0, 0.0
    found: dict[int, list[NDArray[Any]]] = {}
    for place, q in enumerate(probs):
        head: Any = frozen.heads[place]
        own, others = (part[place] for part in states)
        mean = mean + q * head(torch.from_numpy(others))[:, :size].numpy()
        if q < _LEAST_MASS * probs.max():
            continue
        left = (targets - head(torch.from_numpy(own))[:, :size].numpy()) * weights
        no_states = np.zeros((head.in_features, size))
        all_ways = [np.vstack([no_states, one]) for one in ridge(left)]
        all_ways += ridge(left, own * weights)
        # As the network has them: very large ones lose by it.
        found[first + place] = [one.astype(np.float32) for one in all_ways]
        seen = np.hstack([others, rises])
        changes = changes + q * np.array([seen @ one for one in found[first + place]])
    return _Ways(np.asarray(mean), np.asarray(changes), found)


def _with_constant(features: Floats) -> Floats:
    """A last one that is as good as free, since it is large: one formula for all."""
    return np.hstack([features, np.full((len(features), 1), _CONSTANT)])


class _Ridge:
    """Least squares by features A `(rows, feature)`, with every λ, and by others besides.

    The eigenvectors of the smaller of AᵀA and AAᵀ are found once. With further features S of the
    same rows only as many unknowns are left as S has columns:

        [λ Sᵀ(AAᵀ + λ)⁻¹S + λ] w = λ Sᵀ(AAᵀ + λ)⁻¹ y.
    """

    def __init__(self, features: Floats):
        # By torch, whose threads are as many as the work is worth; NumPy's take all cores.
        a = self.features = torch.from_numpy(features)
        self.is_wide = a.shape[1] > a.shape[0]
        values, self.vectors = torch.linalg.eigh(a @ a.T if self.is_wide else a.T @ a)
        self.values = values.clamp(min=0.0)[:, None]

    def __call__(self, left: Floats, others: Floats | None = None) -> list[Floats]:
        """Coefficients of each λ for what is left, `(rows, target)`: `(feature, target)`.

        Those of other features `(rows, other)` come first.
        """
        y = torch.from_numpy(left)
        seen = self._seen(y)
        if others is None:
            return [self._coefficients(seen, strength) for strength in _STRENGTHS]
        s = torch.from_numpy(others)
        own, gram, right = self._seen(s), s.T @ s, s.T @ y
        found = []
        for strength in _STRENGTHS:
            scaled = own / (self.values + strength)
            unseen, rest = scaled.T @ own, scaled.T @ seen
            if self.is_wide:
                unseen, rest = strength * unseen, strength * rest
            else:
                unseen, rest = gram - unseen, right - rest
            unseen.diagonal().add_(strength)
            w = torch.linalg.solve(unseen, rest)
            found.append(np.vstack([w.numpy(), self._coefficients(seen - own @ w, strength)]))
        return found

    def _seen(self, x: Tensor) -> Tensor:
        """What the eigenvectors have of columns `(rows, any)`: `(eigenvector, any)`."""
        return self.vectors.T @ (x if self.is_wide else self.features.T @ x)

    def _coefficients(self, seen: Tensor, strength: float) -> Floats:
        solved = self.vectors @ (seen / (self.values + strength))
        found: Floats = (self.features.T @ solved if self.is_wide else solved).numpy()
        return found


def _best(before: Floats, changes: Floats, weights: Floats) -> int | None:
    """What makes held-out errors least, or None unless that is surely a gain.

    Args:
        before: what the mixture leaves of the targets, `(rows, target)`.
        changes: of its mean by each way and λ, `(way, rows, target)`.
        weights: how often rows count, `(rows,)`.
    """
    gains = (before**2 - (before - changes) ** 2).sum(2)  # (way, rows)
    share = weights / weights.sum()
    mean = np.nan_to_num(gains @ share, nan=-np.inf, posinf=-np.inf)
    best = int(np.argmax(mean))
    error = float(np.sqrt((share**2 * (gains[best] - mean[best]) ** 2).sum()))
    return best if np.isfinite(mean[best]) and mean[best] > _SURE * error else None


def _install(model: UDN, places: list[list[float]], found: dict[int, NDArray[Any]]) -> None:
    """Give all heads ramps, and to those of some depths what was found for them."""
    # A copy: layers may be the user's own, and of several models.
    layers, heads = copy.copy(model.layers), model.network.heads
    assert isinstance(layers, TableDense)
    layers.head_knots = places
    model.layers = model.network.layers = layers
    for name, head in list(heads.items()):
        assert isinstance(head, nn.Linear)
        ramped = RampedHead(head, layers.embedded, places).train(head.training)
        if int(name) in found:
            _add(ramped, torch.from_numpy(found[int(name)]))
        heads[name] = ramped


def _add(head: RampedHead, change: Tensor) -> None:
    """Coefficients `(feature, target)` of states, ramps and the constant, to those of the means."""
    width, size = head.linear.in_features, change.shape[1]
    head.linear.weight[:size] += change[:width].T.to(head.linear.weight)
    head.ramps[:, :size] = change[width:-1].to(head.ramps)
    head.linear.bias[:size] += _CONSTANT * change[-1].to(head.linear.bias)


def _mean(model: UDN, x: Tensor, size: int) -> Floats:
    """Of the mixture over depths, `(rows, column)` → `(rows, target)`."""
    first, _ = model.support()
    frozen = model.freeze().double().cpu()
    probs = (frozen.depth_probs / frozen.depth_probs.sum()).tolist()
    x = x.double()
    stack = frozen.stack()._replace(context=model.layers.context(x))
    states = stack.states(x)[first - 1 :]
    means = [
        q * head(state, *stack.given(head))[:, :size]
        for q, head, state in zip(probs, frozen.heads, states, strict=True)
    ]
    found: Floats = torch.stack(means).sum(0).numpy()
    return found
