"""Data in the forms that people have: tensors, arrays, frames, loaders."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from unbounded.parallel import ALONE, Processes

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.steps.disk import DiskBatches
    from unbounded.steps.images import ImageBatches


class Batch(NamedTuple):
    """Rows on the model's device."""

    x: Tensor  # (batch, …)
    y: Tensor  # (batch, …), in the form that the likelihood takes
    weights: Tensor | None  # (batch,)


class OwnRows(Batch):
    """Rows of a batch that are one process's already: the others have read theirs."""

    share: float = 1.0
    """Of the rows of the whole batch."""


class ArrayBatches:
    """Data that are there as a whole: moved to the device once, shuffled there.

    Args:
        x: inputs, `(rows, …)`.
        y: targets, `(rows, …)`.
        weights: how often each row counts, `(rows,)`.
        batch_size: rows a batch.
        generator: shuffles; no generator, no shuffling.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        batch_size: int,
        generator: torch.Generator | None,
    ):
        self.x, self.y, self.weights = x, y, weights
        self.batch_size = batch_size
        self.generator = generator
        self.num_data = x.shape[0]

    def __len__(self) -> int:
        return -(-self.num_data // self.batch_size)

    def head(self, rows: int) -> Batch:
        """The first rows, unshuffled: to try the layers on."""
        return Batch(self.x[:rows], self.y[:rows], None)

    def __iter__(self) -> Iterator[Batch]:
        x, y, weights = self.x, self.y, self.weights
        if self.generator is not None:
            order = torch.randperm(self.num_data, generator=self.generator).to(x.device)
            x, y = x[order], y[order]
            weights = None if weights is None else weights[order]
        if self.num_data <= self.batch_size:
            yield Batch(x, y, weights)
            return
        for start in range(0, self.num_data, self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield Batch(x[rows], y[rows], None if weights is None else weights[rows])


class LoaderBatches:
    """A user's `DataLoader`, whose items are (x, y) or (x, y, weights)."""

    def __init__(self, loader: "DataLoader[Any]", model: "UDN", num_data: int | None):
        self.loader = loader
        self.model = model
        if num_data is None:
            try:
                num_data = len(loader.dataset)  # type: ignore[arg-type]
            except TypeError as error:
                raise ValueError(
                    "the loader's data set has no length: say num_data, the size of the data set"
                ) from error
        if num_data < 1:
            raise ValueError("the data are empty: at least two rows are needed")
        self.num_data = num_data

    @property
    def generator(self) -> torch.Generator | None:
        """The loader's own, so that a checkpoint can keep its state."""
        return getattr(self.loader, "generator", None)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for item in self.loader:
            if not isinstance(item, list | tuple) or len(item) not in (2, 3):
                raise ValueError(
                    "a loader must give (x, y) or (x, y, weights), "
                    f"got {type(item).__name__} of {len(item) if hasattr(item, '__len__') else '?'}"
                )
            x = as_inputs(item[0], self.model)
            y = self.model.likelihood.check_targets(as_tensor(item[1], "targets"))
            weights = as_tensor(item[2], "weights") if len(item) == 3 else None
            yield to_device(x, y, weights, self.model)


Batches = Union[ArrayBatches, LoaderBatches, "ImageBatches", "DiskBatches"]


def batches(
    data: Any,
    model: "UDN",
    *,
    what: str,
    batch_size: int,
    generator: torch.Generator | None = None,
    num_data: int | None = None,
    processes: Processes = ALONE,
) -> "Batches":
    """Batches from (x, y), (x, y, weights), `ImageData`, `DiskData` or a DataLoader, checked.

    Raises:
        ValueError: on NaN or infinite features, wrong shapes, labels out of range, no data.
    """
    from unbounded.steps.disk import DiskData
    from unbounded.steps.images import ImageData

    if isinstance(data, DataLoader):
        return LoaderBatches(data, model, num_data)
    if isinstance(data, ImageData):
        return data.bind(model, batch_size, generator)
    if isinstance(data, DiskData):
        return data.bind(model, batch_size, generator, processes)
    if not isinstance(data, list | tuple) or len(data) not in (2, 3):
        raise ValueError(
            f"the {what} data must be (x, y), (x, y, weights), ImageData, DiskData or a "
            f"DataLoader, got {type(data).__name__}"
        )
    try:
        x = as_inputs(data[0], model)
        y = as_tensor(data[1], "targets")
        if x.shape[0] != y.shape[0]:
            raise ValueError(f"inputs have {x.shape[0]} rows, targets {y.shape[0]}")
        if x.shape[0] == 0:
            raise ValueError("there are no rows, at least one is needed")
        y = model.likelihood.check_targets(y)
        weights = as_tensor(data[2], "weights") if len(data) == 3 and data[2] is not None else None
        if weights is not None:
            _check_weights(weights, x.shape[0])
    except ValueError as error:
        raise ValueError(f"{what} data: {error}") from None
    batch = to_device(x, y, weights, model)
    return ArrayBatches(batch.x, batch.y, batch.weights, batch_size, generator)


def training_batches(
    model: "UDN",
    data: Any,
    batch_size: int,
    generator: torch.Generator,
    num_data: int | None,
    processes: Processes = ALONE,
) -> "Batches":
    """Shuffled batches to learn from, with checks that only training asks for."""
    from unbounded.steps.disk import DiskBatches
    from unbounded.steps.images import ImageBatches

    if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    found = batches(
        data,
        model,
        what="training",
        batch_size=int(batch_size),
        generator=generator,
        num_data=num_data,
        processes=processes,
    )
    if isinstance(found, ArrayBatches | ImageBatches | DiskBatches):
        if num_data not in (None, found.num_data):
            raise ValueError(f"num_data is {num_data}, the data have {found.num_data} rows")
        y = found.first_targets() if isinstance(found, DiskBatches) else found.y
        check_training_rows(model, y, found.num_data, batch_size)
    elif found.num_data < 2:
        raise ValueError("training data: there is one row, at least two are needed")
    return found


def check_training_rows(model: "UDN", y: Tensor, rows: int, batch_size: int) -> None:
    """A ValueError if there are too few rows, or nothing can be learnt from their targets."""
    if rows < 2:
        raise ValueError("training data: there is one row, at least two are needed")
    if batch_size > rows:
        raise ValueError(
            f"batch_size is {batch_size}, there are only {rows} rows: "
            "it must not be larger than the data"
        )
    model.likelihood.check_training_targets(y)


def check_shapes(model: "UDN", sets: Iterable["Batches"]) -> None:
    """Run a few rows of each set through the layers: shapes fail here, not in mid-training."""
    from unbounded.predictive import evaluating

    with evaluating(model), torch.no_grad():
        for data in sets:
            if not isinstance(data, LoaderBatches):
                x, y, _ = data.head(2)
                model.likelihood.check_outputs(model(x), y)


def check_processes(processes: Processes, batch_size: int, sets: dict[str, "Batches"]) -> None:
    """A ValueError unless there are rows for each process, and each can have all of them."""
    if processes.size == 1:
        return
    for name, data in sets.items():
        if isinstance(data, LoaderBatches):
            raise ValueError(
                f"{name} data: a DataLoader does not go with several processes, each of which "
                "takes its part of every batch: give arrays, ImageData or DiskData"
            )
    rows = sets["training"].num_data
    if rows < processes.size:
        raise ValueError(f"training data: there are {rows} rows for {processes.size} processes")
    if batch_size < processes.size:
        raise ValueError(
            f"batch_size is {batch_size} for {processes.size} processes: "
            "each needs a row of every batch"
        )


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor of a tensor, an array, a frame or nested lists."""
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "to_numpy"):  # pandas and polars
        values = values.to_numpy()
    array = np.asarray(values)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise ValueError(f"{what} must be numbers, got an array of dtype {array.dtype}")
    if array.dtype.byteorder not in "=|" or any(stride < 0 for stride in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))  # torch takes neither
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def as_inputs(values: Any, model: "UDN") -> Tensor:
    """Inputs `(rows, …)`, floating unless the layers take integers, all finite."""
    x = as_tensor(values, "inputs")
    if x.dim() < 2 and not model.layers.integer_inputs:
        raise ValueError(f"inputs must have shape (rows, features), got {tuple(x.shape)}")
    if not model.layers.integer_inputs:
        x = x.to(model.anchor.dtype)
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = ~torch.isfinite(x)
        raise ValueError(
            f"inputs must be finite, got {int(bad.sum())} NaN or infinite values, "
            f"the first at index {tuple(bad.nonzero()[0].tolist())}"
        )
    return x


def to_device(x: Tensor, y: Tensor, weights: Tensor | None, model: "UDN") -> Batch:
    """The rows on the model's device, floating targets in its dtype or in single precision."""
    device = model.anchor.device
    dtype = torch.promote_types(model.anchor.dtype, torch.float32)
    return Batch(
        x.to(device, non_blocking=True),
        y.to(device, dtype if y.is_floating_point() else y.dtype, non_blocking=True),
        None if weights is None else weights.to(device, dtype, non_blocking=True),
    )


def _check_weights(weights: Tensor, rows: int) -> None:
    if weights.shape != (rows,):
        raise ValueError(f"weights must have shape ({rows},), got {tuple(weights.shape)}")
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise ValueError("weights must be finite and at least 0")
    if not bool((weights > 0).any()):
        raise ValueError("weights must not all be 0")
