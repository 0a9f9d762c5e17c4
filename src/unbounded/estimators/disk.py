"""Training an estimator on rows that stay on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from unbounded import interrupts
from unbounded.estimators.auto import CLASSES, NUMBERS, Steps, choose_batch_size, choose_epochs
from unbounded.estimators.building import check_arguments
from unbounded.estimators.ensemble import check_begun
from unbounded.estimators.pace import Clock, quality
from unbounded.estimators.rows import Array, Scalings, WeightedRows, is_classes
from unbounded.steps.disk import DiskData
from unbounded.steps.disk_files import ArrayGroups, Piece

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator

EPOCH_ROWS = 1 << 18
"""Rows of an epoch: a part of a pass, so that there is something to choose from and to stop at."""
MOST_STEPS = 60_000
"""Where the number of epochs is left open, training takes so many steps at most, but one pass."""


class RowsOnDisk(WeightedRows):
    """Rows to learn from in .npy files; as a tuple, a sample of them that fits into memory.

    By the sample networks are built and targets scaled.
    """

    files: tuple[Path, Path]  # of inputs and targets
    num_rows: int

    @classmethod
    def of(cls, sample: WeightedRows, x: Path, y: Path, count: int) -> "RowsOnDisk":
        """Rows in files.

        Args:
            sample: of them.
            x: inputs, `(rows, feature)`.
            y: classes from 0, `(rows,)`, or numbers, likewise.
            count: how many rows there are.
        """
        rows = cls(*sample)
        rows.files, rows.num_rows = (x, y), count
        return rows

    def bound(self, scalings: Scalings) -> DiskData:
        """What `fit` takes."""
        parts = -(-self.num_rows // EPOCH_ROWS)
        groups = _Scaled(*self.files, scalings, self.y.ndim == 1)
        return DiskData(groups, epoch_rows=-(-self.num_rows // parts))


class _Scaled(ArrayGroups):
    """Rows as the network sees them."""

    def __init__(self, x: Path, y: Path, scalings: Scalings, is_classes: bool):
        super().__init__(x, y)
        self.scalings, self.is_classes = scalings, is_classes

    def read(self, group: int) -> Piece:
        x, y, _ = super().read(group)
        return Piece(self.scalings.inputs.apply(x), self._scaled(y), None)

    def targets(self, group: int) -> tuple[Array, None]:
        return self._scaled(super().targets(group)[0]), None

    def _scaled(self, y: Array) -> Array:
        if self.is_classes:
            return y.astype(np.int64)
        assert self.scalings.targets is not None
        return self.scalings.targets.apply(y.reshape(len(y), -1))


def fit_from_disk(
    estimator: "UDNEstimator", rows: RowsOnDisk, held: WeightedRows, size: int
) -> None:
    """Train an estimator that knows its targets already; the counterpart of its `_train`.

    Args:
        estimator: new, without `refit` or `warm_start`.
        rows: to learn from, finite numbers.
        held: that choose the best epoch; there may be none.
        size: how many classes or targets there are.
    """
    check_arguments(estimator)
    for name in ("refit", "warm_start"):
        if getattr(estimator, name):
            raise ValueError(f"{name} needs all rows in memory: it does not go with rows on disk")
    steps = CLASSES if is_classes(rows.y) else NUMBERS
    clock = Clock(estimator.time_limit, _epochs(estimator, rows.num_rows, steps))
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    state: Any = estimator
    state.encoding_ = state.refit_history_ = None
    state.n_features_in_ = rows.x.shape[1]
    with interrupts.deferred():
        run = estimator._run(rows, held, size, seed, clock, anneal=True)
        check_begun(run.training)
        estimator._finish([run._replace(held=held)], rows.num_rows, own=False)


def _epochs(estimator: "UDNEstimator", count: int, wanted: Steps) -> int:
    """Epochs of `EPOCH_ROWS`, as many as the passes that were asked for, or as "auto" means."""
    parts = -(-count // EPOCH_ROWS)
    times = quality(estimator.quality).steps
    passes = choose_epochs(estimator.epochs, estimator.batch_size, count, wanted, times)
    if not isinstance(estimator.epochs, str):
        return passes * parts
    steps = -(-count // choose_batch_size(estimator.batch_size, count))
    most = max(1.0, times * MOST_STEPS / steps)
    return max(1, round(min(passes, most) * parts))
