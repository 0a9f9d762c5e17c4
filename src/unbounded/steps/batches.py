"""Data in the forms that people have: tensors, arrays, frames, loaders."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from unbounded.parallel import ALONE, ProcessError, Processes

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.steps.images import ImageBatches


class Batch(NamedTuple):
    """Rows on the model's device."""

    x: Tensor  # (batch, …)
    y: Tensor  # (batch, …), in the form that the likelihood takes
    weights: Tensor | None  # (batch,)


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
        self.processes: Processes = ALONE
        self.share = 1.0
        """Which part of the rows of all processes the last batch was."""
        self._counted = num_data is not None
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
        """The loader's own, so that a checkpoint can keep its state; not those of several."""
        return getattr(self.loader, "generator", None) if self.processes.size == 1 else None

    def __len__(self) -> int:
        return len(self.loader)

    def join(self, processes: Processes, what: str) -> None:
        """From now on each process reads its own part; a ValueError if it would read all rows."""
        self.processes = processes
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            if (sampler.num_replicas, sampler.rank) != (processes.size, processes.rank):
                raise ValueError(
                    f"{what} data: the sampler is that of process {sampler.rank} of "
                    f"{sampler.num_replicas}, this is process {processes.rank} of {processes.size}"
                )
        elif not isinstance(self.loader.dataset, IterableDataset) and not self._counted:
            counted = ", or say num_data, the number of rows of all processes together"
            raise ValueError(
                f"{what} data: each process would read all rows of the loader. Give it a "
                f"DistributedSampler{counted if what == 'training' else ', or give arrays'}"
            )

    def begin_epoch(self, epoch: int) -> None:
        """Another order of the rows, if the sampler goes by epochs."""
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if self.processes.size > 1 and set_epoch is not None:
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        return self._own() if self.processes.size == 1 else self._together()

    def _together(self) -> Iterator[Batch]:
        """As long as any process has rows: the others go on with a row of a share of 0."""
        processes, own = self.processes, self._own()
        last: Batch | None = None
        while True:
            with processes.agreeing():
                batch = next(own, None)
            rows = torch.zeros(processes.size, dtype=torch.float64)
            rows[processes.rank] = 0 if batch is None else batch.x.shape[0]
            rows = rows.to(self.model.anchor.device)
            processes.sum(rows)
            counts = rows.tolist()
            if not any(counts):
                return
            if last is None and not all(counts):
                without = counts.index(0)
                raise ProcessError(f"the loader of process {without} gave no batches")
            if batch is None:
                assert last is not None
                batch = Batch(*(None if part is None else part[:1] for part in last))  # type: ignore[arg-type]
            self.share = counts[processes.rank] / sum(counts)
            last = batch
            yield batch

    def _own(self) -> Iterator[Batch]:
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


Batches = Union[ArrayBatches, LoaderBatches, "ImageBatches"]


def batches(
    data: Any,
    model: "UDN",
    *,
    what: str,
    batch_size: int,
    generator: torch.Generator | None = None,
    num_data: int | None = None,
) -> "Batches":
    """Batches from (x, y), (x, y, weights), `ImageData` or a DataLoader, checked.

    Raises:
        ValueError: on NaN or infinite features, wrong shapes, labels out of range, no data.
    """
    from unbounded.steps.images import ImageData

    if isinstance(data, DataLoader):
        return LoaderBatches(data, model, num_data)
    if isinstance(data, ImageData):
        return data.bind(model, batch_size, generator)
    if not isinstance(data, list | tuple) or len(data) not in (2, 3):
        raise ValueError(
            f"the {what} data must be (x, y), (x, y, weights), ImageData or a DataLoader, "
            f"got {type(data).__name__}"
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
    model: "UDN", data: Any, batch_size: int, generator: torch.Generator, num_data: int | None
) -> "Batches":
    """Shuffled batches to learn from, with checks that only training asks for."""
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
    )
    if isinstance(found, ArrayBatches | ImageBatches):
        if num_data not in (None, found.num_data):
            raise ValueError(f"num_data is {num_data}, the data have {found.num_data} rows")
        check_training_rows(model, found.y, found.num_data, batch_size)
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
    from unbounded.steps.images import ImageBatches

    with evaluating(model), torch.no_grad():
        for data in sets:
            if isinstance(data, ArrayBatches | ImageBatches):
                x, y, _ = data.head(2)
                model.likelihood.check_outputs(model(x), y)


def check_processes(processes: Processes, batch_size: int, sets: dict[str, "Batches"]) -> None:
    """A ValueError unless there are rows for each process; loaders learn who reads with them."""
    if processes.size == 1:
        return
    for name, data in sets.items():
        if isinstance(data, LoaderBatches):
            data.join(processes, name)
    if isinstance(sets["training"], LoaderBatches):
        return
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
