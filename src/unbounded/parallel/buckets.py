"""Gradients in flat buffers of our own, summed over processes while the backward pass goes on.

Torch's own wrapper (`DistributedDataParallel`) knows the parameters that there were when it was
made. Here the buffers are laid out anew whenever the active parameters are others.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 8 << 20
"""A buffer goes off once it is full; smaller ones wait for each other's latency."""
_ON_A_RING = 32
"""Processes for which such a buffer is right. The latency of a ring grows with their number, and so
do the buffers beyond this one: else a thousand processes would do little but wait for it."""


class Bucket:
    """A flat buffer for the gradients of some parameters of one dtype, on one device."""

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self.parameters = parameters
        like = parameters[0]
        self.flat = torch.zeros(
            sum(p.numel() for p in parameters), dtype=like.dtype, device=like.device
        )
        self.views = []
        start = 0
        for parameter in parameters:
            self.views.append(_view(self.flat, start, parameter))
            start += parameter.numel()
        self.missing = 0  # gradients that are not there yet
        self.work: Any = None

    def send(self) -> None:
        """Copy what there is and begin to sum; a parameter without a gradient counts as 0."""
        filled = [
            (v, p.grad)
            for v, p in zip(self.views, self.parameters, strict=True)
            if p.grad is not None
        ]
        with torch.no_grad():
            if len(filled) < len(self.views):
                self.flat.zero_()
            torch._foreach_copy_([v for v, _ in filled], [g for _, g in filled])
        self.work = dist.all_reduce(self.flat, async_op=True)

    def receive(self) -> None:
        """Wait for the sums and put them in place of the gradients."""
        self.work.wait()
        self.work = None
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is not None:  # all processes run the same layers
                parameter.grad = view


class Exchange:
    """Sums the gradients of one model over all processes, step by step.

    `begin` comes before the last backward pass of a step, `finish` after it. Buckets go off in the
    order in which they are laid out, the deepest layers first, so that all processes send alike.
    """

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.sent_bytes = 0
        """Of gradients and terms, in the last step."""
        self._hooks: list[Any] = []
        self._of: dict[nn.Parameter, Bucket] = {}
        self._parameters: list[nn.Parameter] = []
        self._sent = 0  # buckets of this step that are on their way
        self._waiting = False

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """The next backward pass gives these parameters their whole gradients."""
        same = len(parameters) == len(self._parameters) and all(
            a is b for a, b in zip(parameters, self._parameters, strict=True)
        )
        if not same:
            self._lay_out(list(parameters))
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)
        self._sent, self._waiting = 0, True

    def finish(self, values: Tensor) -> Tensor:
        """Sums of the gradients, in place, and of some further numbers `(numbers,)`."""
        self._waiting = False
        for bucket in self.buckets[self._sent :]:
            bucket.send()
        values = values.clone()
        work = dist.all_reduce(values, async_op=True)
        for bucket in self.buckets:
            bucket.receive()
        assert work is not None
        work.wait()
        tensors = [values, *(bucket.flat for bucket in self.buckets)]
        self.sent_bytes = sum(t.numel() * t.element_size() for t in tensors)
        return values

    def close(self) -> None:
        """Leave no hook behind."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._parameters, self.buckets, self._of = [], [], [], {}

    def _lay_out(self, parameters: list[nn.Parameter]) -> None:
        self.close()
        self._parameters = parameters
        full = BUCKET_BYTES * max(1, dist.get_world_size() // _ON_A_RING)
        groups: dict[Any, list[nn.Parameter]] = {}
        found: list[list[nn.Parameter]] = []
        for parameter in reversed(parameters):
            kind = (parameter.dtype, parameter.device)
            group = groups.get(kind)
            if group is None or _bytes(group) >= full:
                group = groups[kind] = []
                found.append(group)
            group.append(parameter)
        self.buckets = [Bucket(group) for group in found]
        # One bucket alone cannot go before the backward pass ends.
        self._of = {p: b for b in self.buckets for p in b.parameters}
        several = len(self.buckets) > 1
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._arrived)
            for p in (self._of if several else ())
        ]

    def _arrived(self, parameter: Tensor) -> None:
        if not self._waiting:
            return
        self._of[parameter].missing -= 1  # type: ignore[index]
        while self._sent < len(self.buckets) and not self.buckets[self._sent].missing:
            self.buckets[self._sent].send()
            self._sent += 1


def _bytes(parameters: Sequence[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _view(flat: Tensor, start: int, like: Tensor) -> Tensor:
    """A part of a buffer in a parameter's shape and order of memory (fused optimisers want it)."""
    reach = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
    if like.numel() and reach == like.numel():
        return flat.as_strided(like.shape, like.stride(), start)
    return flat[start : start + like.numel()].view(like.shape)
