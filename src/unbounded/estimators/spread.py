"""How the noise of numbers changes with their predicted mean, by rows that were not learnt from."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROWS_A_KNOT = 50
_KNOTS = 4, 8  # fewer rows than for four do not tell a trend from a few large errors
_FOLDS, _DIVISIONS = 5, 3  # parts, and how often they are drawn
_SURE = 2.0  # standard errors
_STEP = 0.5  # standard deviation of f from one knot to the next, before anything is known
_LARGEST = 2.0  # of f about a constant, at most: e² times as much noise, or as little


class Bend(NamedTuple):
    """f by its values at knots: log σ = log s + f(μ)."""

    knots: list[float]
    values: list[float]


def find_bend(means: Floats, z: Floats, weights: Floats, seed: int = 0) -> Bend | None:
    """f from errors in units of their expected size; None if a constant does as well.

    The values v at the knots maximise Σ_i w_i log N(z_i; 0, e^{2f(μ_i)}) less
    Σ_k (v_{k+1} − v_k)²/2c², which is concave. f is taken only if it foretells the errors of rows
    that it was not fitted to, in five parts in turn, better than a constant does, by more than two
    standard errors. Its mean over the rows is 0: s has the level.

    Args:
        means: μ of held-out rows, `(rows,)`.
        z: their errors (y − μ)/σ, `(rows,)`.
        weights: how often each counts, `(rows,)`.
        seed: of the five parts.
    """
    total = weights.sum()
    # A few rows that outweigh all others say no more than a few rows do.
    rows = min(total**2 / (weights @ weights), total, len(means))
    count = int(np.clip(rows // _ROWS_A_KNOT, 0, _KNOTS[1]))
    if count < _KNOTS[0]:
        return None
    knots = np.unique(np.quantile(means, (np.arange(count) + 0.5) / count))
    if len(knots) < 2 or not (np.diff(knots) > 1e-9 * np.abs(knots).max()).all():
        return None
    basis = _basis(means, knots)
    gain = np.mean([_gains(basis, z, weights, seed + k) for k in range(_DIVISIONS)], 0)
    mean = weights @ gain / total
    error = np.sqrt(weights @ (gain - mean) ** 2 / total / (rows - 1))
    if not mean > _SURE * error:
        return None
    values = _fitted(basis, z, weights)
    values -= weights @ (basis @ values) / total
    return Bend(knots.tolist(), np.clip(values, -_LARGEST, _LARGEST).tolist())


def _gains(basis: Floats, z: Floats, weights: Floats, seed: int) -> Floats:
    """What f foretells of each row by the other parts, more than a constant does: `(rows,)`."""
    parts = np.random.default_rng(seed).permutation(len(z)) % _FOLDS
    gain = np.empty(len(z))
    for part in range(_FOLDS):
        there, out = parts != part, parts == part
        f = basis[out] @ _fitted(basis[there], z[there], weights[there])
        constant = _fitted(np.ones((there.sum(), 1)), z[there], weights[there])[0]
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
