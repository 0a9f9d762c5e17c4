"""Data of many members: sets that several members share are kept once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded.steps.batches import ArrayBatches, batches

if TYPE_CHECKING:
    from unbounded.model import UDN


class MemberData:
    """One data set for each member, on the device.

    Attributes:
        x: inputs of the distinct sets, `(sets, rows, …)`, padded to the largest.
        y: targets, `(sets, rows, …)`.
        weights: how often each row counts, `(sets, rows)`, or None.
        which: the set of each member, `(members,)`.
        counts: how many rows each member has, `(members,)`.
    """

    def __init__(self, sets: Sequence[ArrayBatches], which: Sequence[int], device: torch.device):
        self.set_sizes = [s.num_data for s in sets]
        self.sizes = [self.set_sizes[index] for index in which]
        self.size = max(self.sizes)
        self.ragged = min(self.sizes) < self.size
        self.x = _stack([s.x for s in sets], self.size, "inputs").to(device)
        self.y = _stack([s.y for s in sets], self.size, "targets").to(device)
        self.weights: Tensor | None = None
        if any(s.weights is not None for s in sets):
            full = [s.x.new_ones(s.num_data) if s.weights is None else s.weights for s in sets]
            self.weights = _stack(full, self.size, "weights").to(device)
        self.which = torch.tensor(which, device=device)
        self.counts = torch.tensor(self.sizes, device=device)
        # Member r's row i is row offsets[r] + i of the sets laid end to end.
        self._offsets = (self.which * self.size)[:, None]

    def take(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows of each member by their numbers `(members, batch)`: x, y and weights."""
        flat = (self._offsets + index).reshape(-1)

        def rows(values: Tensor) -> Tensor:
            found = values.flatten(0, 1).index_select(0, flat)
            return found.view(*index.shape, *values.shape[2:])

        weights = None if self.weights is None else rows(self.weights)
        return rows(self.x), rows(self.y), weights

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The rows start … stop−1 of every member: x, y and weights, `(members, rows, …)` each.

        Rows that are not there have weight 0.
        """
        weights = None if self.weights is None else self.weights[:, start:stop][self.which]
        if self.ragged:
            places = torch.arange(start, stop, device=self.x.device)
            inside = (places < self.counts[:, None]).to(self.x.dtype)
            weights = inside if weights is None else weights * inside
        return (
            self.x[:, start:stop].index_select(0, self.which),
            self.y[:, start:stop].index_select(0, self.which),
            weights,
        )


class MemberOrders:
    """Each member's order of its rows, the same as `fit` draws with its seed.

    Members with equal seeds and sizes share one generator.
    """

    def __init__(self, seeds: Sequence[int], sizes: Sequence[int], device: torch.device):
        keys = list(zip(seeds, sizes, strict=True))
        self._keys = list(dict.fromkeys(keys))
        self.row_sizes = [size for _, size in self._keys]
        self.generators = [torch.Generator().manual_seed(seed) for seed, _ in self._keys]
        self.which = torch.tensor([self._keys.index(key) for key in keys], device=device)
        self._host = torch.zeros(len(self._keys), max(sizes), dtype=torch.long)
        if device.type == "cuda":
            self._host = self._host.pin_memory()
        self.orders = self._host.to(device, copy=True)  # (distinct orders, rows)
        self.drawn = False
        self._sent = torch.cuda.Event() if device.type == "cuda" else None

    def draw(self) -> None:
        """Draw the next epoch's orders on the host, unless that was done already."""
        if self.drawn:
            return
        if self._sent is not None:
            self._sent.synchronize()  # the last orders have left the buffer
        for row, (_, size), generator in zip(self._host, self._keys, self.generators, strict=True):
            row[:size] = torch.randperm(size, generator=generator)
        self.drawn = True

    def send(self) -> None:
        """Copy them to the device."""
        self.draw()
        self.orders.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        self.drawn = False

    def state(self) -> dict[str, Tensor]:
        """What the next orders depend on."""
        states = torch.stack([g.get_state() for g in self.generators])
        return {"generators": states, "next": self._host.clone()}

    def load(self, state: dict[str, Tensor], drawn: bool) -> None:
        """Go on from `state`."""
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.set_state(saved.clone())  # it takes no view of a larger tensor
        self._host.copy_(state["next"])
        self.drawn = drawn


def gather(
    items: Sequence[Any], models: Sequence["UDN"], what: str, device: torch.device
) -> MemberData:
    """Checked data for every member; a set that several members share is kept once."""
    known: dict[tuple[int, ...], int] = {}
    sets: list[ArrayBatches] = []
    which: list[int] = []
    for item, model in zip(items, models, strict=True):
        key = tuple(id(part) for part in item) if isinstance(item, tuple) else (id(item),)
        if key not in known:
            found = batches(item, model, what=what, batch_size=1)
            if not isinstance(found, ArrayBatches):
                raise ValueError(
                    f"Stacked does not take {type(item).__name__} as {what} data: "
                    "give (x, y), or use Eager()"
                )
            if not isinstance(found.x, Tensor):
                raise ValueError(
                    f"Stacked does not take {what} data whose inputs have parts: use Eager()"
                )
            known[key] = len(sets)
            sets.append(found)
        which.append(known[key])
    return MemberData(sets, which, device)


def _stack(tensors: Sequence[Tensor], size: int, what: str) -> Tensor:
    """One tensor of all, each padded with zeros to `size` rows."""
    shapes = {tuple(t.shape[1:]) for t in tensors}
    if len(shapes) > 1:
        raise ValueError(f"all members' {what} must have one shape, got {sorted(shapes)}")
    if all(t.shape[0] == size for t in tensors):
        return torch.stack(list(tensors))
    padded = tensors[0].new_zeros(len(tensors), size, *tensors[0].shape[1:])
    for row, tensor in zip(padded, tensors, strict=True):
        row[: tensor.shape[0]] = tensor
    return padded
