"""Which rows are held out and which are learnt from, also where `fit` goes on from an earlier one.

A row that was held out stays held out, and one that was learnt from is never held out later: what
chooses an epoch, calibrates noise and makes intervals must not have been learnt. Rows are known
again by a mark of 32 bits, made of their numbers and targets. Should a new row have the mark of an
old one, it goes where that went, which does no harm.
"""

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unbounded.estimators.frames import RawTable, encode
from unbounded.estimators.rows import (
    MIN_VALIDATION_ROWS,
    Array,
    WeightedRows,
    is_classes,
    outweighing,
    split,
)
from unbounded.layers.scrambling import GOLDEN, mixed
from unbounded.schema import FileError, record, text

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

Marks = NDArray[np.uint32]

_OF_FEW = 3  # one of so many rows is held out where 15 % would be too few
_FEWEST = 2  # rows that say something
_ENOUGH = 0.8  # of the rows that were held out before


class Shares(NamedTuple):
    """The marks of rows that `fit` has met so far, sorted."""

    held: Marks
    learnt: Marks

    @classmethod
    def none(cls) -> "Shares":
        """Of no rows."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint32))

    def add(self, held: Marks, learnt: Marks) -> "Shares":
        """With further rows; what has once been learnt from is no longer held out."""
        learnt = np.union1d(self.learnt, learnt)
        return Shares(np.setdiff1d(np.union1d(self.held, held), learnt), learnt)

    def to_dict(self) -> dict[str, str]:
        """Plain data."""
        return {
            name: base64.b64encode(np.asarray(one, "<u4").tobytes()).decode()
            for name, one in self._asdict().items()
        }

    @classmethod
    def from_dict(cls, described: Any, where: str) -> "Shares | None":
        """What `to_dict` described; None of files without it."""
        if described is None:
            return None
        found = record(dict.fromkeys(cls._fields, text(1 << 30)))(described, where)
        try:
            parts = {name: base64.b64decode(one, validate=True) for name, one in found.items()}
            return cls(**{k: np.frombuffer(v, "<u4").astype(np.uint32) for k, v in parts.items()})
        except ValueError:
            raise FileError(f"the field {where} should be marks of rows") from None


def saved(estimator: "UDNEstimator") -> dict[str, Any]:
    """What files of an estimator hold of it, only where a further `fit` is to go on from it."""
    shares = getattr(estimator, "_shares", None)
    return {"shares": shares.to_dict()} if shares is not None and estimator.warm_start else {}


def learnt_further(estimator: "UDNEstimator", x: Any, y: Array) -> None:
    """Take note of rows that `partial_fit` has learnt from, for a `fit` that goes on from there."""
    if not estimator.warm_start:
        return  # streams of rows without end would be remembered
    if isinstance(x, RawTable):
        x = encode(estimator, x.frame)
    shares = getattr(estimator, "_shares", None) or Shares.none()
    estimator._shares = shares.add(Shares.none().held, marks(WeightedRows(x, y, np.ones(len(y)))))


def met(estimator: "UDNEstimator", x: Array, y: Array) -> NDArray[np.bool_]:
    """Which rows an earlier fit may have seen, `(rows,)`: all, where nothing is known of it."""
    shares = getattr(estimator, "_shares", None)
    if shares is None:
        return np.ones(len(y), bool)
    return np.isin(marks(WeightedRows(x, y, np.ones(len(y)))), np.concatenate(shares))


class Division(NamedTuple):
    """The rows of a fit, divided."""

    learnt: Array  # indices
    held: Array  # indices
    heavy: NDArray[np.bool_]  # of all rows: those that are too heavy to be held out
    shares: Shares  # of these rows and of those before


def divide(
    rows: WeightedRows, fraction: float, before: Shares | None, rng: np.random.RandomState
) -> Division:
    """Hold out a share of the rows.

    Args:
        rows: merged.
        fraction: that is held out.
        before: where rows went in earlier fits that this one goes on from; None for a first one.
        rng: that chooses among rows that are new.
    """
    before, given = before or Shares.none(), marks(rows)
    heavy = outweighing(rows.weights, 0.0 if is_classes(rows.y) else fraction)
    learnt = np.isin(given, before.learnt)
    stays = np.isin(given, before.held) & ~learnt
    if not fraction > 0 or stays.sum() > len(stays) - 2:  # some must be left to learn from
        stays[:] = False
    heavy &= ~stays
    new = np.flatnonzero(~(heavy | stays | learnt))
    classes = rows.y[new] if rows.y.ndim == 1 else None
    # Of few rows a greater share: what nothing was held out from would be learnt by heart.
    least = min(MIN_VALIDATION_ROWS - int(stays.sum()), len(new) // _OF_FEW)
    if 0 < fraction < least / max(len(new), 1):
        fraction = least / len(new)
    held = np.union1d(new[split(len(new), fraction, classes, rng, least)[1]], stays.nonzero()[0])
    if len(held) < _FEWEST:
        held = held[:0]
    rest = np.setdiff1d(np.arange(len(given)), held)
    return Division(rest, held, heavy, before.add(given[held], given[rest]))


def divide_apart(
    rows: WeightedRows, count: int, been: Array, rng: np.random.RandomState
) -> Division | None:
    """Hold out about so many rows, none of those that have been held out before.

    Args:
        rows: merged.
        count: how many.
        been: indices of those that are learnt from this time.
        rng: that chooses among the others.

    Returns:
        None if too few are left.
    """
    left = len(rows.x) - len(been)
    if left <= count:
        return None
    known = Shares(Shares.none().held, marks(rows.take(been)))
    found = divide(rows, count / left, known, rng)
    return found if len(found.held) >= _ENOUGH * count else None


def marks(rows: WeightedRows) -> Marks:
    """A number for each row, the same for the same values in every process: `(rows,)`."""
    x = rows.x if rows.given is None else rows.given
    columns = rows.y.reshape(len(rows.y), -1)
    found = torch.zeros(len(x), dtype=torch.int64)
    for column in (*x.T, *columns.T):
        values = torch.from_numpy((column.astype(np.float64) + 0.0).view(np.int64))  # no −0
        found = mixed((found ^ values) + GOLDEN)
    return (found.numpy().view(np.uint64) >> np.uint64(32)).astype(np.uint32)
