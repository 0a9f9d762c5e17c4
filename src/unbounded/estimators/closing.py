"""The last step of a regressor: what heads and columns can still explain, by least squares.

Steps of an optimiser end near a minimum, not in it, and thresholds of single columns are learnt
late. Given the hidden states h_ℓ(x) of a trained network, the best heads are known in closed form.
So for each depth ℓ what its mean leaves of the targets, r_i = y_i − μ_ℓ(x_i), is fitted by

    min over w, v, b of  Σ_i ω_i [r_i − w·h_ℓ(x_i) − v·ρ(x_i) − b]² + λ(‖w‖² + ‖v‖²),

over the rows that were learnt from, with weights ω and with ramps ρ between many quantiles of each
column; or with w = 0. Held-out rows choose between both, and λ, the same for all depths; and
whether to take any: the squared error of the mixture must fall by more than its noise. The result
is added to the heads.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unbounded.estimators.rows import Scalings, WeightedRows, knots
from unbounded.layers import TableDense
from unbounded.layers.tables import RampedHead
from unbounded.likelihoods import Gaussian
from unbounded.model import UDN

Floats = NDArray[np.float64]

_STRENGTHS = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""λ to choose from."""
_LEAST_LEARNT, _LEAST_HELD = 100, 30  # rows, that they can tell
_MOST_LEARNT, _MOST_HELD = 10_000, 20_000  # more say no more
_RAMPS, _MOST_RAMPS = 256, 1024  # of a column, and of all of them
_SURE = 1.5  # standard errors by which the squared error must fall
_CONSTANT = 1e3  # a feature
_SPEED = 1e10  # products a second, on one slow core
_LEAST_MASS = 0.01  # of a depth: what hardly counts is left as it is


@torch.no_grad()
def close(
    models: Sequence[UDN],
    scalings: Scalings,
    learnt: WeightedRows | None,
    held: WeightedRows,
    seconds: float | None = None,
) -> bool:
    """Add to the heads of trained models what least squares find; whether any has gained by it.

    Args:
        models: the members, each of which goes by itself.
        scalings: of the rows.
        learnt: rows that were learnt from, if they are at hand.
        held: rows that were not.
        seconds: that it may take, about; None for any.
    """
    if learnt is None or len(learnt.x) < _LEAST_LEARNT or len(held.x) < _LEAST_HELD:
        return False
    some = learnt.take(slice(None, None, -(-len(learnt.x) // _MOST_LEARNT)))
    judges = held.take(slice(None, None, -(-len(held.x) // _MOST_HELD)))
    able = [model for model in models if _can(model)]
    if seconds is not None and sum(_seconds(model, len(some.x)) for model in able) > seconds:
        return False
    done = []
    for model in able:
        # Of numbers beyond all bounds there are no eigenvalues, or none that are numbers.
        with suppress(np.linalg.LinAlgError), np.errstate(all="ignore"):
            done.append(_close(model, scalings, some, judges))
    return any(done)


def _seconds(model: UDN, rows: int) -> float:
    """How long that takes for a model, about."""
    depths = 1 + int((model.depth_log_probs().exp() >= _LEAST_MASS).sum())
    layers = model.layers
    assert isinstance(layers, TableDense)
    features = layers.width + _count(len(layers.embedded)) * len(layers.embedded)
    smaller = min(features, rows)
    return depths * (2 * rows * features * smaller + 10 * smaller**3) / _SPEED


def _count(columns: int) -> int:
    """Ramps of each of so many columns."""
    return min(_RAMPS, max(1, _MOST_RAMPS // columns))


def _can(model: UDN) -> bool:
    """Whether its heads are linear and give means: they can be changed in this way."""
    layers, heads = model.layers, model.network.heads.values()
    return (
        type(layers) is TableDense
        and isinstance(model.likelihood, Gaussian)
        and not layers.head_knots
        and bool(layers.embedded)
        and all(type(head) is nn.Linear for head in heads)
    )


def _close(model: UDN, scalings: Scalings, learnt: WeightedRows, held: WeightedRows) -> bool:
    assert isinstance(model.layers, TableDense)
    assert scalings.targets is not None
    first, _ = model.support()
    probs = model.depth_log_probs().double().exp().cpu().numpy()
    rows = [scalings.inputs.apply(part.x) for part in (learnt, held)]
    targets = [scalings.targets.apply(part.y) for part in (learnt, held)]
    columns = model.layers.embedded
    places = knots(rows[0], columns, _count(len(columns)))
    frozen = model.freeze().double().cpu()
    ramped = RampedHead(nn.Linear(1, 1).double(), columns, places)
    inputs = [torch.from_numpy(np.ascontiguousarray(x)).double() for x in rows]
    states = [frozen.stack().states(x)[first - 1 :] for x in inputs]
    rises = [_with_constant(ramped.risen(x).numpy()) for x in inputs]
    size = targets[0].shape[1]
    means = [
        [head(state)[:, :size].numpy() for head, state in zip(frozen.heads, of_rows, strict=True)]
        for of_rows in states
    ]
    weights = np.sqrt(learnt.weights / learnt.weights.mean())[:, None]
    alone = _Ridge(rises[0] * weights)
    found: dict[int, list[NDArray[Any]]] = {}  # by depth: coefficients, of each way and λ
    changes = []
    for place, q in enumerate(probs):
        if q < _LEAST_MASS:
            continue
        left = (targets[0] - means[0][place]) * weights
        own, others = (
            np.hstack([state[place].numpy(), ramp])
            for state, ramp in zip(states, rises, strict=True)
        )
        of_states = np.zeros((own.shape[1] - rises[0].shape[1], size))
        found[first + place] = [np.vstack([of_states, one]) for one in alone(left)]
        found[first + place] += _Ridge(own * weights)(left)
        # As the network has them: very large ones lose by it.
        found[first + place] = [one.astype(np.float32) for one in found[first + place]]
        changes.append(q * np.array([others @ one for one in found[first + place]]))
    before = targets[1] - np.tensordot(probs, np.array(means[1]), 1)
    chosen = _best(before, np.sum(changes, 0), held.weights)
    if chosen is None:
        return False
    _install(model, places, {depth: ways[chosen] for depth, ways in found.items()})
    return True


def _with_constant(features: Floats) -> Floats:
    """A last one that is as good as free, since it is large: one formula for all."""
    return np.hstack([features, np.full((len(features), 1), _CONSTANT)])


class _Ridge:
    """Least squares by features `(rows, feature)`, with every λ.

    By the eigenvectors of the smaller of both Gram matrices.
    """

    def __init__(self, features: Floats):
        self.features, self.is_wide = features, features.shape[1] > features.shape[0]
        gram = features @ features.T if self.is_wide else features.T @ features
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)[:, None]

    def __call__(self, left: Floats) -> list[Floats]:
        """Coefficients `(feature, target)` of each λ, for what is left, `(rows, target)`."""
        a = self.features
        inner = self.vectors.T @ (left if self.is_wide else a.T @ left)
        solved = [self.vectors @ (inner / (self.values + strength)) for strength in _STRENGTHS]
        return [a.T @ one for one in solved] if self.is_wide else solved


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
    layers, heads = model.layers, model.network.heads
    assert isinstance(layers, TableDense)
    layers.head_knots = places
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
