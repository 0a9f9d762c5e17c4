"""Data in the forms that people have: tensors, arrays, frames, loaders."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from unbounded import trees
from unbounded.parallel import ALONE, ProcessError, Processes

if TYPE_CHECKING:
    from unbounded.model import UDN
    from unbounded.steps.disk import DiskBatches
    from unbounded.steps.images import ImageBatches
    from unbounded.steps.streams import StreamBatches


class Batch(NamedTuple):
    """Rows on the model's device."""

    x: trees.Tree  # (batch, …), or parts of that kind
    y: Tensor  # (batch, …), in the form that the likelihood takes
    weights: Tensor | None  # (batch,)


class OwnRows(Batch):
    """Rows of a batch that are one process's already: the others have read theirs."""

    share: float = 1.0
    """Of the rows of the whole batch."""


class ArrayBatches:
    """Data that are there as a whole: moved to the device once, shuffled there.

    Args:
        x: inputs, `(rows, …)`, or parts of that kind.
        y: targets, `(rows, …)`.
        weights: how often each row counts, `(rows,)`.
        batch_size: rows a batch.
        generator: shuffles; no generator, no shuffling.
        num_data: n, where rows hold several observations each and n counts those.
    """

    def __init__(
        self,
        x: trees.Tree,
        y: Tensor,
        weights: Tensor | None,
        batch_size: int,
        generator: torch.Generator | None,
        num_data: int | None = None,
    ):
        self.x, self.y, self.weights = x, y, weights
        self.batch_size = batch_size
        self.generator = generator
        self.num_rows = y.shape[0]
        self.num_data = self.num_rows if num_data is None else num_data

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def head(self, rows: int) -> Batch:
        """The first rows, unshuffled: to try the layers on."""
        return Batch(trees.rows(self.x, slice(rows)), self.y[:rows], None)

    def __iter__(self) -> Iterator[Batch]:
        x, y, weights = self.x, self.y, self.weights
        if self.generator is not None:
            order = torch.randperm(self.num_rows, generator=self.generator).to(y.device)
            x, y = trees.rows(x, order), y[order]
            weights = None if weights is None else weights[order]
        if self.num_rows <= self.batch_size:
            yield Batch(x, y, weights)
            return
        for start in range(0, self.num_rows, self.batch_size):
            rows = slice(start, start + self.batch_size)
            own = None if weights is None else weights[rows]
            yield Batch(trees.rows(x, rows), y[rows], own)


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
            rows = torch.zeros(2, processes.size, dtype=torch.float64)
            if batch is not None:
                held = self.model.likelihood.total(batch.y)
                rows[0, processes.rank] = batch.y.shape[0]
                rows[1, processes.rank] = batch.y.shape[0] if held is None else held.item()
            rows = rows.to(self.model.anchor.device)
            processes.sum(rows)
            counts, observed = rows.tolist()
            if not any(counts):
                return
            if last is None and not all(counts):
                without = counts.index(0)
                raise ProcessError(f"the loader of process {without} gave no batches")
            if batch is None:
                assert last is not None
                batch = trees.rows(last, slice(1))
            self.share = observed[processes.rank] / max(sum(observed), 1.0)
            last = batch
            yield batch

    def _own(self) -> Iterator[Batch]:
        for item in self.loader:
            yield checked_item(item, self.model, "a loader")


Batches = Union[ArrayBatches, LoaderBatches, "ImageBatches", "DiskBatches", "StreamBatches"]


def checked_item(item: Any, model: "UDN", giver: str, *, values: bool = True) -> Batch:
    """(x, y) or (x, y, weights) of a loader or stream as a batch on the model's device.

    Args:
        item: what it gave.
        model: whose likelihood checks the targets.
        giver: who gave it, for errors.
        values: whether to look at values, which may wait for the device.
    """
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        raise ValueError(
            f"{giver} must give (x, y) or (x, y, weights), "
            f"got {type(item).__name__} of {len(item) if hasattr(item, '__len__') else '?'}"
        )
    x, y = item[0], as_tensor(item[1], "targets")
    if y.shape[:1] == (0,):
        raise ValueError(f"{giver} gave a batch without rows")
    if values:
        x, y = as_inputs(x, model), model.likelihood.check_targets(y)
    rows = trees.num_rows(x)
    if y.shape[:1] != (rows,):
        raise ValueError(f"{giver} gave inputs of {rows} rows and targets {tuple(y.shape)}")
    weights = as_tensor(item[2], "weights") if len(item) == 3 and item[2] is not None else None
    if weights is not None:
        _check_weights(weights, rows, values=values)
    return to_device(x, y, weights, model)


def batches(
    data: Any,
    model: "UDN",
    *,
    what: str,
    batch_size: int,
    generator: torch.Generator | None = None,
    num_data: int | None = None,
    many: bool = False,
    processes: Processes = ALONE,
) -> "Batches":
    """Batches from (x, y), (x, y, weights), `ImageData`, `DiskData`, `Stream` or a DataLoader.

    All are checked. Where rows hold several observations and `many` is true, batch_size counts
    those.

    Raises:
        ValueError: on NaN or infinite features, wrong shapes, labels out of range, no data.
    """
    from unbounded.steps.disk import DiskData
    from unbounded.steps.images import ImageData
    from unbounded.steps.streams import Stream

    if isinstance(data, DataLoader):
        return LoaderBatches(data, model, num_data)
    if isinstance(data, Stream):
        return data.bind(model, generator)
    if isinstance(data, ImageData):
        return data.bind(model, batch_size, generator)
    if isinstance(data, DiskData):
        return data.bind(model, batch_size, generator, processes, many=many)
    if not isinstance(data, list | tuple) or len(data) not in (2, 3):
        raise ValueError(
            f"the {what} data must be (x, y), (x, y, weights), ImageData, DiskData, a Stream or a "
            f"DataLoader, got {type(data).__name__}"
        )
    try:
        x = as_inputs(data[0], model)
        y = as_tensor(data[1], "targets")
        rows = trees.num_rows(x)
        if rows != y.shape[0]:
            raise ValueError(f"inputs have {rows} rows, targets {y.shape[0]}")
        if rows == 0:
            raise ValueError("there are no rows, at least one is needed")
        y = model.likelihood.check_targets(y)
        weights = as_tensor(data[2], "weights") if len(data) == 3 and data[2] is not None else None
        if weights is not None:
            _check_weights(weights, rows)
            if not bool((weights > 0).any()):
                raise ValueError("weights must not all be 0")
    except ValueError as error:
        raise ValueError(f"{what} data: {error}") from None
    batch = to_device(x, y, weights, model)
    total = model.likelihood.total(batch.y)
    if total is not None and many:
        batch_size = rows_of(batch_size, rows, float(total))
    count = None if total is None else int(total)
    return ArrayBatches(batch.x, batch.y, batch.weights, batch_size, generator, count)


def rows_of(observations: int, rows: int, total: float) -> int:
    """How many rows hold about so many observations, where all of them hold `total`."""
    return max(1, int(observations * rows / max(1.0, total)))


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
    from unbounded.steps.streams import Stream

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
            unit = model.likelihood.unit
            raise ValueError(f"num_data is {num_data}, the data have {found.num_data} {unit}")
        y = found.first_targets() if isinstance(found, DiskBatches) else found.y
        check_training_rows(model, y, found.num_rows, batch_size)
    elif isinstance(data, Stream) and num_data not in (None, found.num_data):
        raise ValueError(f"num_data is {num_data}, the stream has {found.num_data}: say it there")
    elif isinstance(found, LoaderBatches) and num_data is None and model.likelihood.unit != "rows":
        unit = model.likelihood.unit
        raise ValueError(f"training data: say num_data, how many {unit} the loader's data set has")
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
    from unbounded.steps.streams import StreamBatches

    with evaluating(model), torch.no_grad():
        for data in sets:
            if not isinstance(data, LoaderBatches | StreamBatches):
                x, y, _ = data.head(2)
                model.likelihood.check_outputs(model(x), y)


def check_processes(processes: Processes, batch_size: int, sets: dict[str, "Batches"]) -> None:
    """A ValueError unless there are rows for each process; loaders learn who reads with them."""
    from unbounded.steps.streams import StreamBatches

    if processes.size == 1:
        return
    for name, data in sets.items():
        if isinstance(data, LoaderBatches):
            data.join(processes, name)
        elif isinstance(data, StreamBatches):
            raise ValueError(
                f"{name} data: a Stream does not go with several processes, each of which takes "
                "its part of every batch: give arrays, ImageData, DiskData or a DataLoader"
            )
    training = sets["training"]
    if isinstance(training, LoaderBatches | StreamBatches):  # each process reads its own
        return
    rows = training.num_rows
    if rows < processes.size:
        raise ValueError(f"training data: there are {rows} rows for {processes.size} processes")
    if batch_size < processes.size:
        raise ValueError(
            f"batch_size is {batch_size} for {processes.size} processes: "
            "each needs a row of every batch"
        )


_SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
"""Kinds of numbers that torch can do little with, and what holds the same."""


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
    found = torch.from_numpy(array)
    return found.to(_SIGNED.get(found.dtype, found.dtype))


def as_inputs(values: Any, model: "UDN") -> trees.Tree:
    """Inputs `(rows, …)`, floating unless the layers take integers, all finite; or such parts.

    Of parts, each keeps its kind: floating ones get the model's dtype.
    """
    if trees.is_tree(values):
        x = trees.mapped(lambda part: as_tensor(part, "inputs"), values)
        for part in trees.leaves(x):
            _check_finite(part)
        dtype = model.anchor.dtype
        x = trees.mapped(lambda part: part.to(dtype) if part.is_floating_point() else part, x)
    else:
        x = _as_one(values, model)
    model.layers.check_inputs(x)
    return x


def _as_one(values: Any, model: "UDN") -> Tensor:
    x = as_tensor(values, "inputs")
    if x.dim() < 2 and not model.layers.integer_inputs:
        raise ValueError(f"inputs must have shape (rows, features), got {tuple(x.shape)}")
    if not model.layers.integer_inputs:
        x = x.to(model.anchor.dtype)
    _check_finite(x)
    return x


def _check_finite(x: Tensor) -> None:
    if not x.is_floating_point() or not x.numel():
        return
    # NaN is the least and the largest of all; unlike `isfinite(x)` that needs no memory.
    if not bool(torch.isfinite(torch.stack(torch.aminmax(x))).all()):
        bad = ~torch.isfinite(x)
        raise ValueError(
            f"inputs must be finite, got {int(bad.sum())} NaN or infinite values, "
            f"the first at index {tuple(bad.nonzero()[0].tolist())}"
        )


def to_device(x: trees.Tree, y: Tensor, weights: Tensor | None, model: "UDN") -> Batch:
    """The rows on the model's device, floating targets in its dtype or in single precision."""
    device = model.anchor.device
    dtype = torch.promote_types(model.anchor.dtype, torch.float32)
    return Batch(
        trees.moved(x, device),
        y.to(device, dtype if y.is_floating_point() else y.dtype, non_blocking=True),
        None if weights is None else weights.to(device, dtype, non_blocking=True),
    )


def _check_weights(weights: Tensor, rows: int, *, values: bool = True) -> None:
    if weights.shape != (rows,):
        raise ValueError(f"weights must have shape ({rows},), got {tuple(weights.shape)}")
    if values and not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise ValueError("weights must be finite and at least 0")
