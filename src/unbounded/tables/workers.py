"""A fitted table model as a function of a batch, as Dask, Ray Data and Spark take one."""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.tables.reading import TableError, pandas

if TYPE_CHECKING:
    from unbounded.tables.model import TableModel

_lock = threading.Lock()
_models: dict[tuple[str, str], tuple[tuple[int, ...], "TableModel"]] = {}


class BatchPredictor:
    """Predicts batches of a table with a model that `unbounded fit` has written.

    It holds the path and the options alone, so that it is small and can be pickled; each worker
    process reads the file once, and again if it has changed. So the file has to be where all
    workers see it. A batch is a pandas frame, a dict of NumPy arrays or a pyarrow table, and what
    comes back is of the same kind: the columns of `unbounded predict`, row by row.

    Args:
        path: of the model file.
        interval: probability of the interval from "lower" to "upper", of numbers.
        parts: also give how much of the uncertainty is noise and how much is disagreement between
            depths.
        conformal: take the interval from held-out rows (`UDNRegressor.predict_interval`).
        keep: columns of the batch to put before the predictions, as they are.
        device: "cpu", "cuda" or "auto", the GPU if there is one.

    Example:
        >>> predictor = BatchPredictor("house.udn", keep=["id"])  # doctest: +SKIP
        >>> dask_frame.map_partitions(predictor, meta=predictor.meta(dask_frame))  # doctest: +SKIP
        >>> ray_dataset.map_batches(predictor, batch_size=4096)  # doctest: +SKIP
        >>> spark_frame.mapInPandas(
        ...     predictor.for_spark, predictor.spark_schema(spark_frame)
        ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        *,
        interval: float = 0.9,
        parts: bool = False,
        conformal: bool = False,
        keep: Sequence[str] = (),
        device: str = "cpu",
    ):
        if not 0 < interval < 1:
            raise ValueError(f"interval must be between 0 and 1, got {interval}")
        self.path = os.path.abspath(path)  # a worker may have another working directory
        self.interval, self.parts, self.conformal = interval, parts, conformal
        self.keep = (keep,) if isinstance(keep, str) else tuple(keep)
        self.device = device

    def __repr__(self) -> str:
        return f"BatchPredictor({self.path!r})"

    @property
    def model(self) -> "TableModel":
        """The model, read when this process first asks for it, and anew once the file is another.

        Raises:
            FileError: if there is no such file, or it is damaged.
        """
        from unbounded.tables.model import TableModel

        with _lock:  # a worker may have several threads
            try:
                status = os.stat(self.path)
            except OSError:
                _models.pop((self.path, self.device), None)
                return TableModel.load(self.path, self.device)  # which says what is wrong
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = _models.get((self.path, self.device))
            if known is None or known[0] != seen:
                known = seen, TableModel.load(self.path, self.device)
                _models[self.path, self.device] = known
            return known[1]

    def __call__(self, batch: Any) -> Any:
        """The predictions of a batch, in the kind that the batch has."""
        pd = pandas()
        import pyarrow

        if isinstance(batch, pd.DataFrame):
            kept = {name: self._kept(batch, name, batch.columns) for name in self.keep}
            if not len(batch):  # typed as pandas types columns that hold something
                found = pd.DataFrame(self._row()).iloc[:0].set_index(batch.index)
                return pd.concat([pd.DataFrame(kept, index=batch.index), found], axis=1)
            return pd.DataFrame({**kept, **self._columns(batch)}, index=batch.index)
        if isinstance(batch, pyarrow.Table):
            names = [c.name for c in self.model.encoding.used if c.name in batch.column_names]
            found = self._columns(batch.select(names).to_pandas())
            kept = {name: self._kept(batch, name, batch.column_names) for name in self.keep}
            return pyarrow.table({**kept, **found})
        if isinstance(batch, Mapping):
            names = [c.name for c in self.model.encoding.used if c.name in batch]
            found = self._columns(pd.DataFrame({name: batch[name] for name in names}))
            kept = {name: self._kept(batch, name, list(batch)) for name in self.keep}
            return {**kept, **found}
        raise TableError(
            "a batch is a pandas frame, a dict of NumPy arrays or a pyarrow table, got a value of "
            f"type {type(batch).__name__}"
        )

    def meta(self, frame: Any = None) -> Any:
        """An empty pandas frame with the columns of the predictions, for Dask's `meta`.

        Args:
            frame: of Dask or pandas, which says what the columns of `keep` hold.
        """
        pd = pandas()
        kept = {}
        for name in self.keep:
            if frame is None:
                raise TableError(f"keep: give the frame, which says what {name!r} holds")
            kept[name] = pd.Series([], dtype=frame.dtypes[name])
        found = pd.DataFrame(self._row()).iloc[:0]
        return pd.concat([pd.DataFrame(kept, index=found.index), found], axis=1)

    def for_spark(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Pandas frames in, pandas frames out: what `mapInPandas` of Spark takes."""
        for frame in frames:
            yield self(frame)

    def spark_schema(self, frame: Any = None) -> str:
        """The columns of the predictions in the words of Spark's schemas.

        Args:
            frame: of Spark, which says what the columns of `keep` hold.
        """
        kinds = {}
        for name in self.keep:
            if frame is None:
                raise TableError(f"keep: give the frame, which says what {name!r} holds")
            kinds[name] = frame.schema[name].dataType.simpleString()
        for name, values in self._row().items():
            kinds[name] = "double" if values.dtype.kind == "f" else "string"
        return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in kinds.items())

    def _kept(self, batch: Any, name: str, names: Sequence[str]) -> Any:
        if name not in names:
            raise TableError(f"keep: the batch has no column {name!r}")
        if name in self._row():
            raise TableError(f"keep {name!r}: the predictions have a column of this name")
        return batch[name]

    def _columns(self, frame: Any) -> dict[str, Any]:
        """Columns of predictions of all rows of a pandas frame."""
        if not len(frame):
            return {name: values[:0] for name, values in self._row().items()}
        model = self.model
        names = [c.name for c in model.encoding.used if c.name in frame.columns]
        table = model.open(frame[names].reset_index(drop=True) if names else frame)
        options: dict[str, Any] = {
            "interval": self.interval,
            "parts": self.parts,
            "conformal": self.conformal,
        }
        pieces = [columns for _, columns in model.predict_chunks(table, **options)]
        if len(pieces) == 1:
            return pieces[0]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _row(self) -> dict[str, Any]:
        """The columns of some row, which say what there is and of what type."""
        model = self.model
        x = np.zeros((1, len(model.encoding.feature_names)), np.float32)
        return model.by_depth(x).columns(model.target.classes, self.interval, self.parts)
