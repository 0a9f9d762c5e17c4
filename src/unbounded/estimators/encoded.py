"""Rows of a table that has to be encoded, as training sees them.

Equal rows are one here before anything is learnt of them: medians, shares of levels and means of
the target then count a row as often as it is there or as its weight says, the order of rows does
not matter, and copies are in one fold. What a column is follows from the rows as they are given.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.estimators.frames import REMEDY, RawTable, known_table
from unbounded.estimators.rows import Array, Scaling, WeightedRows, grouped
from unbounded.tables.columns import profile
from unbounded.tables.encoders import CategoryEncoder, Coded
from unbounded.tables.encoding import Encoding, Store, standardized_response
from unbounded.tables.reading import Table, TableError
from unbounded.tables.weighted import out_of_fold

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator


@dataclass(frozen=True)
class KnownTable:
    """Rows for a model that has an encoding already, and their numbers by it."""

    table: Any  # as the user gave it
    x: Array


def fit_encoding(rows: WeightedRows, size: int, seed: int) -> tuple[Encoding, WeightedRows]:
    """The encoding of a `RawTable`'s columns, as of a table in a file, and its rows, encoded.

    Args:
        rows: to learn from; those of weight 0 go.
        size: of the targets: how many classes or numbers.
        seed: of the folds for the means of the target.

    Raises:
        TableError: that names the column, if nothing can be learnt from it.
    """
    kept = rows.weights > 0
    raw: RawTable = rows.x.take(kept)
    table = Table(raw.frame, literal=raw.categorical)
    columns = []
    for name, found in profile(table).items():
        if found.present == 0:
            raise TableError(f"column {name!r} has no values, all are missing: leave it out")
        found.remedy = REMEDY
        is_category = name in raw.categorical
        column = found.column(category=is_category)
        columns.append(replace(column, literal=is_category and column.kind == "category"))
    store = Store.of(table, columns)
    store.sort_levels()
    first, _, counts = _merged(store, rows.y[kept], rows.weights[kept])
    y = rows.y[kept][first]
    weights = _counting(counts)
    response = _response(y, size, weights)
    encoding, x = Encoding.fit(store, columns, first, (), seed, response, weights)
    given = None
    if _has_means(encoding):
        given = encoding.transform(lambda column: store.values(column, first))
    return encoding, WeightedRows(x, y, counts, given)


def encode_again(
    estimator: "UDNEstimator", rows: WeightedRows, met: Array, size: int, seed: int
) -> WeightedRows:
    """Rows of a `KnownTable` by the encoding that there is, out of fold where it may know them.

    The means of the target at each level were made from the rows of an earlier fit. Were these to
    see them in a further one, each would see its own target.

    Args:
        estimator: fitted.
        rows: to learn from.
        met: which of them earlier fits may have seen, `(rows,)`.
        size: of the targets: how many classes or numbers.
        seed: of the folds.
    """
    encoding = estimator.encoding_
    assert encoding is not None
    given: Array = rows.x.x
    x = given.copy()
    places = np.flatnonzero(met & (rows.weights > 0))
    if len(places) > 1:
        store = Store.of(known_table(estimator, rows.x.table), encoding.columns)
        store.sort_levels()
        first, group, counts = _merged(store, rows.y[places], rows.weights[places], places)
        weights = _counting(counts)
        response = _response(rows.y[places][first], size, weights)
        for column in store.columns:
            encoder = encoding.encoders[column.name]
            if not isinstance(encoder, CategoryEncoder) or not encoder.means:
                continue
            values = store.values(column, places[first])
            assert isinstance(values, Coded)
            end = encoding.slices[column.name].stop
            means = out_of_fold(*values, response, seed, weights)
            x[places, end - response.shape[1] : end] = means[group]
    return WeightedRows(x, rows.y, rows.weights, given)


def known(estimator: "UDNEstimator", X: Any, x: Any) -> Any:
    """Rows X that a fitted estimator has encoded as x, for it to learn from.

    As they are, where they hold no means of the target.
    """
    encoding = estimator.encoding_
    return x if encoding is None or not _has_means(encoding) else KnownTable(X, x)


def _has_means(encoding: Encoding) -> bool:
    encoders = encoding.encoders.values()
    return any(isinstance(one, CategoryEncoder) and one.means for one in encoders)


def _merged(
    store: Store, y: Array, weights: Array, rows: Any = slice(None)
) -> tuple[Array, Array, Array]:
    """`grouped` of rows by what is read of them, gaps being equal."""
    keys = [y.reshape(len(y), -1).astype(np.float64)]
    for column in store.columns:
        values = store.values(column, rows)
        numbers = values.codes if isinstance(values, Coded) else values
        keys.append(np.where(np.isnan(numbers), np.nan, numbers).astype(np.float64)[:, None])
    return grouped(keys, weights)


def _counting(counts: Array) -> Array | None:
    """How often rows count for an encoding: at least once on average, which weights may forget."""
    return None if (counts == 1).all() else counts / min(1.0, counts.mean())


def _response(y: Array, size: int, weights: Array | None) -> Array:
    if y.ndim == 1:
        return standardized_response(y, size, weights)
    return Scaling.of(y, np.ones(len(y)) if weights is None else weights).apply(y)
