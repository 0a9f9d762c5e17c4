"""Columns that tell the target all by themselves, and may not be known when it is asked for.

Such a column is often written after the target was known: a code for the outcome, a total that
holds the price. A model learns it and nothing else. Each column alone predicts every training row
from the others: by the rows of the same value, or by the two next to it in the column's order.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.scaling import standardized
from unbounded.tables.columns import Column
from unbounded.tables.encoders import Coded, Encoder, WordsEncoder
from unbounded.tables.encoding import Encoding, Store
from unbounded.tables.target import Target
from unbounded.tables.values import Floats

Indices = NDArray[np.int64]

MIN_ROWS = 50
"""Of fewer training rows nothing is said: chance does as much."""
_MAX_ROWS = 10_000
_MIN_OTHERS = 10  # rows that are not of the largest class
_LEFT_CLASSES = 0.01  # errors, as a share of those of a guess by frequency
_LEFT_NUMBERS = 0.001  # of the variance
_ODD_ROWS = 0.05


def giveaways(store: Store, encoding: Encoding, rows: Indices, target: Target) -> tuple[str, ...]:
    """The names of such columns.

    Args:
        store: the values.
        encoding: learnt from them.
        rows: the training rows, as indices into the store; of many a sample is looked at.
        target: the column to predict.
    """
    if len(rows) > _MAX_ROWS:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:_MAX_ROWS])
    if len(rows) < MIN_ROWS:
        return ()
    y = store.y[rows]
    tells = _tells_classes if target.is_classes else _tells_number
    return tuple(
        column.name
        for column in encoding.used
        if tells(_alike(column, encoding.encoders[column.name], store.values(column, rows)), y)
    )


class _Alike(NamedTuple):
    """How rows are alike in a column."""

    group: Indices | None  # the number of each row's value, where rows of one value are alike
    values: Floats  # (rows,), where neighbours are alike


def _alike(column: Column, encoder: Encoder, values: Any) -> _Alike:
    if isinstance(encoder, WordsEncoder):  # by what the model sees of a text
        seen = encoder.transform(values)
        groups = np.unique(seen, axis=0, return_inverse=True)[1].reshape(-1)
        return _Alike(groups.astype(np.int64), np.zeros(0))
    if isinstance(values, Coded):
        return _Alike(values.codes.astype(np.int64) + 1, np.zeros(0))
    if column.kind in ("boolean", "text"):
        return _Alike(np.where(np.isnan(values), 2, values).astype(np.int64), np.zeros(0))
    return _Alike(None, values)


def _tells_classes(alike: _Alike, y: Floats) -> bool:
    codes = y.astype(np.int64)
    sizes = np.bincount(codes)
    if len(codes) - sizes.max() < _MIN_OTHERS:
        return False
    if alike.group is not None:
        counts = np.zeros((alike.group.max() + 1, len(sizes)))
        np.add.at(counts, (alike.group, codes), 1)
        others = counts[alike.group]
        others[np.arange(len(codes)), codes] -= 1
        # Right if most of the other rows of this value are of its class.
        right = (others.argmax(1) == codes) & (others.sum(1) > 0)
        return bool((~right).sum() <= _LEFT_CLASSES * (len(codes) - sizes.max()))
    order = np.argsort(alike.values, kind="stable")  # what is missing comes last
    changes = int((np.diff(codes[order]) != 0).sum())
    share = sizes / len(codes)
    chance = (len(codes) - 1) * (1 - float((share**2).sum()))
    # With one stretch for each class there is nothing left to say, however few the rows are.
    return changes <= max(int((sizes > 0).sum()) - 1, _LEFT_CLASSES * chance)


def _tells_number(alike: _Alike, y: Floats) -> bool:
    spread = y.std()
    if not spread > 0:
        return False
    z = (y - y.mean()) / spread
    if alike.group is not None:
        size = np.bincount(alike.group)[alike.group]
        total = np.bincount(alike.group, z)[alike.group]
        left = z - np.where(size > 1, (total - z) / np.maximum(size - 1, 1), 0.0)
    else:
        order = np.argsort(alike.values, kind="stable")
        along, x = z[order], standardized(alike.values[order], *_range(alike.values))
        # On the line between its neighbours, or in the middle of those of the same value.
        gap = x[2:] - x[:-2]
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.where(gap > 0, (x[1:-1] - x[:-2]) / gap, 0.5)
        left = along[1:-1] - along[:-2] - place * (along[2:] - along[:-2])
    # Without the furthest: a few rows (gaps, the ends of the range) may be odd.
    furthest = np.quantile(left**2, 1 - _ODD_ROWS)
    return bool((left[left**2 <= furthest] ** 2).mean() <= _LEFT_NUMBERS)


def _range(values: Floats) -> tuple[float, float]:
    """Centre and size of the numbers, so that differences do not overflow."""
    size = float(np.nanmax(np.abs(values), initial=0.0))
    return 0.0, size if size > 0 else 1.0
