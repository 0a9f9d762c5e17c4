"""Data without an end: every batch is fresh, so what depths make of it is held-out evidence."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unbounded import trees
from unbounded.steps.batches import Batch, checked_item

if TYPE_CHECKING:
    from unbounded.model import UDN

_END = object()

Draw = Callable[[torch.Generator], Any]


@dataclass(frozen=True)
class Stream:
    """Batches that never repeat, for `fit(model, Stream(…))`.

    No row is seen twice, so a depth rule may judge layers by each batch before it is trained on
    and needs no validation set (`HeldOutAscent`). Batches have their own size; `batch_size` of
    `fit` says nothing here.

    Args:
        source: generator ↦ (x, y), drawn from a generator whose state checkpoints keep; or an
            iterable of (x, y), of as many batches as training takes. A resumed run leaves out as
            many of them as the earlier one took: of an iterator, give one from the beginning.
        steps: batches an epoch: between two looks of a depth rule, and rows of the history.
        num_data: n, how many rows (of tokens: tokens) there are in all; those of the whole
            training, where nobody knows better.
    """

    source: Draw | Iterable[Any]
    steps: int
    num_data: int

    def __post_init__(self) -> None:
        for name in ("steps", "num_data"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 1 <= value < math.inf or int(value) != value:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if not callable(self.source) and not isinstance(self.source, Iterable):
            raise TypeError(
                "the source of a stream is a function of a generator or an iterable, "
                f"got {type(self.source).__name__}"
            )

    @property
    def reads_once(self) -> bool:
        """Whether the source is an iterator, which has no way back to its beginning."""
        return isinstance(self.source, Iterator)

    @classmethod
    def for_budget(
        cls, source: Draw | Iterable[Any], budget: int, batch: int, looks: int
    ) -> tuple["Stream", int]:
        """A stream and its epochs, (stream, epochs), for a budget of rows or tokens.

        Args:
            source: as above.
            budget: observations in all, which are n too: those of the last batch may exceed it.
            batch: observations that a batch holds.
            looks: how many epochs to make of it, at most.
        """
        for name, value in (("budget", budget), ("batch", batch)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        batches = -(-int(budget) // int(batch))
        steps = -(-batches // max(1, min(int(looks), batches)))
        return cls(source, steps, int(budget)), -(-batches // steps)

    def bind(self, model: "UDN", generator: torch.Generator | None) -> "StreamBatches":
        """Batches on the model's device."""
        return StreamBatches(self, model, generator)


class StreamBatches:
    """The batches of a stream, `steps` an epoch, checked."""

    def __init__(self, stream: Stream, model: "UDN", generator: torch.Generator | None):
        if generator is None:
            raise ValueError("a Stream has no end: it is for training, scored sets are arrays")
        self.stream, self.model = stream, model
        self.num_data, self.steps = int(stream.num_data), int(stream.steps)
        self.draws = callable(stream.source)
        self.generator = generator if self.draws else None
        self.taken = 0
        self._random = generator
        self._given: Iterator[Any] | None = None

    def __len__(self) -> int:
        return self.steps

    def skip(self, count: int) -> None:
        """Leave out the batches that an earlier run took; a generator's state knows better."""
        self.taken = count
        if not self.draws:
            self._given = None
            for _ in range(count):
                next(self._iterator, None)

    @property
    def _iterator(self) -> Iterator[Any]:
        if self._given is None:
            assert isinstance(self.stream.source, Iterable)
            self._given = iter(self.stream.source)
        return self._given

    @property
    def _due(self) -> int:
        """How many batches there are up to the end of this epoch."""
        return (self.taken // self.steps + 1) * self.steps

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.steps):
            if callable(self.stream.source):
                item = self.stream.source(self._random)
            else:
                item = next(self._iterator, _END)
                if item is _END:
                    raise ValueError(
                        f"the stream ended after {self.taken} of the {self._due} batches that are "
                        f"due after epoch {self._due // self.steps}: give it more, or train for "
                        "fewer epochs"
                    )
            # Values are checked on the host for as long as that costs no wait.
            on_host = not self.taken or all(
                not getattr(part, "is_cuda", False) for part in trees.leaves(item[0])
            )
            self.taken += 1
            try:
                batch = checked_item(item, self.model, "the stream", values=on_host)
            except ValueError as error:
                raise ValueError(f"batch {self.taken} of the stream: {error}") from None
            yield batch
