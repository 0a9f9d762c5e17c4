"""What the estimators do to the rows of a table before the network sees them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from unbounded.model import UDN
from unbounded.scaling import moments, standardized
from unbounded.schema import list_of, real, record

Array = NDArray[Any]

# A held-out set of fewer rows says too little of the epochs to choose among them.
MIN_VALIDATION_ROWS = 8
PREDICTION_ROWS = 8192
"""That go through the network at a time."""
# Beyond these bounds of the largest weight the priors, or the data, are all that counts: what lies
# further out changes nothing but would overflow.
_WEIGHTS = (1e-20, 1e12)
_OUTWEIGHS = 0.25  # of the share that is held out: a row heavier than that is not
_AT_ONCE = 2**16  # rows, where copies of all of them would be large
_FEW = 0.01  # rows that a row counts for on average: below, the user is told


class WeightedRows(NamedTuple):
    """Rows of a table and how often each counts."""

    x: Any  # numbers `(rows, feature)`, or a table that has yet to be encoded
    y: Array  # (rows,) classes 0 … C−1, (rows, label) 0 or 1, or (rows, target) numbers
    weights: Array  # (rows,): how often each counts, positive
    given: Array | None = None  # x as predictions see it, where learning sees something else

    def take(self, index: Array | slice) -> "WeightedRows":
        """Some of the rows."""
        given = None if self.given is None else self.given[index]
        return WeightedRows(self.x[index], self.y[index], self.weights[index], given)


def rows_at_once(model: UDN) -> int:
    """How many rows go through a network at a time: fewer where each is compared with many."""
    known = len(getattr(model.layers, "head_rows", ()))
    return max(1, PREDICTION_ROWS // (model.likelihood.count * (1 + known // 1000)))


def is_classes(y: Array) -> bool:
    """Whether targets are classes or labels, rather than numbers."""
    return bool(y.dtype.kind != "f")


def check_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """Weights of that many rows, `(rows,)`, checked; 1 for each if none are given."""
    if hasattr(sample_weight, "to_numpy"):
        sample_weight = sample_weight.to_numpy()
    if (
        np.ma.is_masked(sample_weight)
        or getattr(sample_weight, "dtype", np.dtype(int)).kind in "Mm"
    ):
        raise ValueError("sample_weight must be a number for each row: some are masked, or times")
    try:
        weights = np.asarray(1.0 if sample_weight is None else sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be a number for each row: {error}") from None
    if weights.ndim == 0:
        weights = np.full(rows, float(weights))
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight must have shape ({rows},), got {weights.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("sample_weight must be finite and at least 0")
    if not (weights > 0).any():
        raise ValueError("sample_weight is zero in every row: there is nothing to learn from")
    weights = _within_bounds(weights)
    counted = weights[weights > 0]
    if counted.mean() < _FEW:
        warnings.warn(
            f"sample_weight says how often each row counts: {counted.sum():.3g} rows in all, of "
            f"{counted.size}, so that the priors outweigh the data; weights near 1 are expected",
            stacklevel=4,
        )
    return weights


def _within_bounds(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights that single precision holds: the largest is brought into bounds, with the others."""
    largest = weights.max()
    bounded = float(np.clip(largest, *_WEIGHTS))
    return weights if bounded == largest else weights / largest * bounded


def equal_rows(weights: Array) -> float:
    """How many rows of equal weight would say as much as these, (Σw)²/Σw²."""
    return float(weights.sum()) ** 2 / float(weights @ weights)


def merge(x: Array, y: Array, weights: Array, given: Array | None = None) -> WeightedRows:
    """Equal rows become one that counts as often as they did together; rows of weight 0 go.

    The result is in an order of its own. So a weight of 2 is the same as a row that is there
    twice, to the last bit; the order of a table does not matter; and no row can be in the
    training and in the validation share at once.
    """
    keep = weights > 0
    if not keep.all():  # of a large table every copy counts
        x, y, weights, given = WeightedRows(x, y, weights, given).take(keep)
    first, _, counts = grouped([x, y.reshape(len(y), -1)], weights)
    if first.size == 1:  # training wants two rows: the same twice, each for half
        first, counts = np.repeat(first, 2), np.repeat(counts / 2, 2)
    # In C order whatever the order of the table was: sums over it are then the same.
    given = None if given is None else given[first]
    return WeightedRows(
        np.ascontiguousarray(x[first]), np.ascontiguousarray(y[first]), counts, given
    )


def grouped(parts: Sequence[Array], weights: Array) -> tuple[Array, Array, Array]:
    """Equal rows of the numbers `(rows, column)` side by side: the first of each, in their order.

    Also the place of each row among these, `(rows,)`, and how often each counts.
    """
    table = np.empty((len(weights), sum(part.shape[1] for part in parts)))
    np.concatenate(parts, 1, out=table)
    table += 0.0  # no −0
    keys = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    # As np.unique does, which holds a second table for it: equal ones are neighbours, in the order
    # of the table.
    order = keys.argsort(kind="stable")
    is_new = np.ones(len(keys), bool)
    for start in range(1, len(keys), _AT_ONCE):
        here = order[start : start + _AT_ONCE]
        before = order[start - 1 : start - 1 + len(here)]
        is_new[start : start + len(here)] = keys[here] != keys[before]
    group = np.empty(len(keys), np.intp)
    group[order] = is_new.cumsum() - 1
    first = order[is_new]
    # bincount adds in the order of the table: sorted weights make the sums independent of it.
    by_weight = np.argsort(weights, kind="stable")
    return first, group, np.bincount(group[by_weight], weights[by_weight], first.size)


def numbers(x: Array) -> list[int]:
    """Which columns have more than two values: `(rows, column)` → their numbers."""
    first = x[:1]
    # The first value, the first other one, and then any third.
    other = np.take_along_axis(x, (x != first).argmax(0)[None], 0)
    return np.flatnonzero(((x != first) & (x != other)).any(0)).tolist()


def knots(x: Array, columns: Sequence[int], count: int) -> list[list[float]]:
    """Quantiles of columns, between which `count` ramps rise; fewer where values are few.

    Two at least: a column of one value, or of values that are one in single precision, has a ramp
    where no value is.

    Args:
        x: rows as the network sees them, `(rows, column)`.
        columns: some of them.
        count: of ramps.
    """
    places = np.linspace(0, 1, count + 1)
    # Distinct in single precision, in which networks are trained.
    found = np.quantile(x[:, columns], places, axis=0).T.astype(np.float32)
    distinct = [np.unique(column).tolist() for column in found]
    return [two if len(two) > 1 else [two[0], two[0] + max(1.0, abs(two[0]))] for two in distinct]


def outweighing(weights: Array, fraction: float) -> NDArray[np.bool_]:
    """Which rows are too heavy to be held out: with or without one, the share would be another.

    Such a row is more than a quarter of what is to be held out, and as heavy as eight others. There
    are none where that would leave too few rows to hold out some.

    Args:
        weights: how often each row counts, `(rows,)`.
        fraction: that is held out.
    """
    most = max(_OUTWEIGHS * fraction * weights.sum(), MIN_VALIDATION_ROWS * np.median(weights))
    found: NDArray[np.bool_] = weights > most
    few = round(fraction * (~found).sum()) < MIN_VALIDATION_ROWS
    return np.zeros_like(found) if few else found


def split(
    rows: int,
    fraction: float,
    classes: Array | None,
    rng: np.random.RandomState,
    least: int = MIN_VALIDATION_ROWS,
) -> tuple[Array, Array]:
    """Indices of training and validation rows, each class in proportion if `classes` are given.

    Every class keeps a row for training. Nothing is held out if that is less than `least`.
    """
    order = rng.permutation(rows)
    wanted = round(fraction * rows)
    if wanted < max(least, 1):
        return np.sort(order), order[:0]
    if classes is None:
        return np.sort(order[wanted:]), np.sort(order[:wanted])
    _, codes, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    share = sizes * (wanted / rows)
    held = np.floor(share).astype(int)
    # The largest remainders make up what rounding down left over.
    missing = wanted - held.sum()
    held[np.argsort(held - share, kind="stable")[:missing]] += 1
    held = np.minimum(held, sizes - 1)
    # The place of each row among those of its class, in the shuffled order.
    by_class = order[np.argsort(codes[order], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    place = np.arange(rows) - np.repeat(starts, sizes)
    chosen = place < np.repeat(held, sizes)
    return np.sort(by_class[~chosen]), np.sort(by_class[chosen])


@dataclass
class Scaling:
    """x ↦ (x − center) / scale, column by column."""

    center: NDArray[np.float64]  # (column,)
    scale: NDArray[np.float64]  # (column,), positive

    @classmethod
    def of(cls, values: Array, weights: Array, standardize: bool = True) -> "Scaling":
        """Columns to mean 0 and standard deviation 1; those that do not vary are only centred."""
        if not standardize:
            return cls(np.zeros(values.shape[1]), np.ones(values.shape[1]))
        return cls(*moments(values, weights))

    def to_dict(self) -> dict[str, list[float]]:
        """Plain data; floats survive JSON to the last bit."""
        return {"center": self.center.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_dict(cls, described: Any, columns: int, where: str) -> "Scaling":
        """What `to_dict` described, if it is of this many columns; else a FileError."""
        exactly = {"least": columns, "most": columns}
        least = float(np.finfo(np.float64).tiny)
        fields = {"center": list_of(real(), **exactly), "scale": list_of(real(least), **exactly)}
        found = record(fields)(described, where)
        return cls(*(np.array(found[name], np.float64) for name in fields))

    def apply(self, values: Array) -> NDArray[np.float64]:
        """Standardised values, `(…, column)`."""
        return standardized(values, self.center, self.scale)

    def undo(self, values: Array) -> NDArray[np.float64]:
        """Values in original units, `(…, column)`."""
        return values * self.scale + self.center


@dataclass
class Scalings:
    """The scaling of inputs and targets; turns rows into tensors."""

    inputs: Scaling
    targets: Scaling | None  # none for classes

    def x(self, x: Array, model: UDN, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Inputs, `(rows, feature)`, in this precision or as integers."""
        found = torch.empty(x.shape, dtype=torch.long if model.layers.integer_inputs else dtype)
        for start in range(0, len(x), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            found[part] = torch.from_numpy(self.inputs.apply(x[part]))
        return found

    def tensors(
        self, rows: WeightedRows, model: UDN, dtype: torch.dtype = torch.float64
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Inputs, targets and weights, as `unbounded.fit` takes them; rows on disk stay there."""
        on_disk: Any = getattr(rows, "bound", None)
        if on_disk is not None:
            return on_disk(self)
        y = rows.y if self.targets is None else self.targets.apply(rows.y)
        # No weights where every row counts once: the common case is spared a product.
        weights = None if (rows.weights == 1).all() else torch.from_numpy(rows.weights)
        return self.x(rows.x, model, dtype), torch.from_numpy(np.ascontiguousarray(y)), weights
