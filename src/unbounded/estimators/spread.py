"""How the noise of numbers changes with their predicted mean, by rows that were not learnt from."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.estimators.rows import equal_rows

Floats = NDArray[np.float64]

_ROWS_A_KNOT = 20
_KNOTS = 2, 8  # fewer rows than for two do not tell a trend from a few large errors
_JUDGES = 20  # held-out rows that can tell whether a trend of other rows is theirs
_FOLDS, _DIVISIONS = 5, 3  # parts, and how often they are drawn
_SURE = 2.0  # standard errors
_STEP = 0.5  # standard deviation of f from one knot to the next, before anything is known
_LARGEST = 2.0  # of f about a constant, at most: e² times as much noise, or as little


class Bend(NamedTuple):
    """f by its values at knots: log σ = log s + f(μ)."""

    knots: list[float]
    values: list[float]


class Errors(NamedTuple):
    """Errors of rows in units of their expected size, `(rows,)` each."""

    means: Floats  # μ
    z: Floats  # (y − μ)/σ
    weights: Floats  # how often each row counts

    @property
    def effective(self) -> float:
        """Of rows: a few that outweigh all others say no more than a few do."""
        total = self.weights.sum()
        return float(min(equal_rows(self.weights), total, len(self.z)))


def find_bend(held: Errors, learnt: Errors | None = None, seed: int = 0) -> Bend | None:
    """f from errors in units of their expected size; None if a constant does as well.

    The values v at the knots maximise Σ_i w_i log N(z_i; 0, e^{2f(μ_i)}) less
    Σ_k (v_{k+1} − v_k)²/2c², which is concave. f is taken only if it foretells the errors of rows
    that it was not fitted to, better than a constant does, by more than two standard errors: one
    of the held-out rows those of five parts in turn, one of the rows that were learnt from those of
    the held-out ones. They are many more, and their errors, too small as they are, tell the same
    trend. Of two the better is taken. Its mean over the held-out rows is 0: s has the level.

    Args:
        held: of held-out rows.
        learnt: of rows that were learnt from.
        seed: of the five parts.
    """
    found = [_trend(held, seed)]
    if learnt is not None and held.effective >= _JUDGES:
        found.append(_carried(_trend(learnt, seed), held))
    trends = [trend for trend in found if trend is not None]
    if not trends:
        return None
    bend = max(trends, key=lambda trend: trend.gain).bend
    values = np.array(bend.values)
    values -= np.average(np.interp(held.means, *bend), weights=held.weights)
    return Bend(bend.knots, np.clip(values, -_LARGEST, _LARGEST).tolist())


class _Trend(NamedTuple):
    bend: Bend
    gain: float  # nats a row, on rows that it was not fitted to


def _trend(errors: Errors, seed: int) -> _Trend | None:
    """What rows say of themselves, if other rows among them confirm it."""
    means, z, weights = errors
    count = int(np.clip(errors.effective // _ROWS_A_KNOT, 0, _KNOTS[1]))
    if count < _KNOTS[0]:
        return None
    knots = np.unique(np.quantile(means, (np.arange(count) + 0.5) / count))
    if len(knots) < 2 or not (np.diff(knots) > 1e-9 * np.abs(knots).max()).all():
        return None
    basis = _basis(means, knots)
    gain = np.mean([_gains(basis, z, weights, seed + k) for k in range(_DIVISIONS)], 0)
    sure = _sure(gain, errors)
    if sure is None:
        return None
    return _Trend(Bend(knots.tolist(), _fitted(basis, z, weights).tolist()), sure)


def _carried(trend: _Trend | None, held: Errors) -> _Trend | None:
    """A trend of other rows, if held-out ones confirm it."""
    if trend is None:
        return None
    f = np.interp(held.means, *trend.bend)
    levels = [_level(held.z * np.exp(-shape), held.weights) for shape in (f, 0.0)]
    gain = _log_density(held.z, f + levels[0]) - _log_density(held.z, levels[1])
    sure = _sure(gain, held)
    return None if sure is None else _Trend(trend.bend, sure)


def _sure(gain: Floats, errors: Errors) -> float | None:
    """The mean gain of a row, if it is more than two standard errors; else None."""
    total = errors.weights.sum()
    mean = errors.weights @ gain / total
    error = np.sqrt(errors.weights @ (gain - mean) ** 2 / total / (errors.effective - 1))
    return float(mean) if mean > _SURE * error else None


def _level(z: Floats, weights: Floats) -> float:
    """The constant f that maximises the density."""
    return float(_fitted(np.ones((len(z), 1)), z, weights)[0])


def _gains(basis: Floats, z: Floats, weights: Floats, seed: int) -> Floats:
    """What f foretells of each row by the other parts, more than a constant does: `(rows,)`."""
    parts = np.random.default_rng(seed).permutation(len(z)) % _FOLDS
    gain = np.empty(len(z))
    for part in range(_FOLDS):
        there, out = parts != part, parts == part
        f = basis[out] @ _fitted(basis[there], z[there], weights[there])
        constant = _level(z[there], weights[there])
        gain[out] = _log_density(z[out], f) - _log_density(z[out], constant)
    return gain


def _log_density(z: Floats, f: Floats | float) -> Floats:
    density: Floats = -0.5 * np.minimum(z * z, 1e6) * np.exp(-2.0 * f) - f
    return density


def _basis(means: Floats, knots: Floats) -> Floats:
    """Hat functions `(rows, knot)`: rows of numbers that add up to 1."""
    hats = [np.interp(means, knots, unit) for unit in np.eye(len(knots))]
    return np.stack(hats, 1)


def _fitted(basis: Floats, z: Floats, weights: Floats) -> Floats:
    """The values that maximise the penalised density, by Newton's method."""
    size = basis.shape[1]
    steps = np.diff(np.eye(size), axis=0)
    penalty = steps.T @ steps / _STEP**2
    squares = np.minimum(z * z, 1e6)
    v = np.full(size, 0.5 * np.log(max(np.average(squares, weights=weights), 1e-12)))
    for _ in range(50):
        ratio = weights * squares * np.exp(-2.0 * (basis @ v))
        slope = basis.T @ (ratio - weights) - penalty @ v
        curve = basis.T @ (basis * (2.0 * ratio)[:, None]) + penalty
        move = np.linalg.solve(curve + 1e-9 * np.eye(size), slope)
        # A long way off the second-order picture is wrong: half a unit at a time.
        v = v + move * min(1.0, 0.5 / max(np.abs(move).max(), 1e-12))
        if np.abs(move).max() < 1e-8:
            break
    return v
