"""Random numbers of a birth: from a generator of its own, whoever draws elsewhere meanwhile."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# The few operations that take no generator borrow torch's default one, one thread at a time.
_BORROWING = threading.Lock()


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """What this thread draws on the CPU comes from `generator`, not from torch's default one.

    The numbers are those that the default generator would have given with the same seed. It stays
    as it is, and draws of other threads change nothing here.

    Operations with a generator of their own keep it. Those that cannot take one (dropout, or
    `torch.randn` where it is called from C++) borrow the default generator for the time of one
    operation: what another thread draws from it in just this time comes from the wrong stream.
    NumPy and Python's `random` are not looked after.
    """
    with _Draws(generator):
        yield


class _Draws(TorchDispatchMode):
    """Sees every operation of its thread, as modes do, and gives random ones the generator."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or not _on_cpu(args, given):
            return func(*args, **given)
        if given.get("generator") is not None or any(
            isinstance(value, torch.Generator) for value in args
        ):
            return func(*args, **given)
        places = [a.name for a in func._schema.arguments]
        # Given by its place it would be None here: only by name can it be ours.
        if "generator" in places and places.index("generator") >= len(args):
            return func(*args, **{**given, "generator": self.generator})
        return self._borrowed(lambda: func(*args, **given))

    def _borrowed(self, draw: Callable[[], Any]) -> Any:
        """One operation with the default generator in the state of ours."""
        default = torch.default_generator
        with _BORROWING:
            before = default.get_state()
            try:
                default.set_state(self.generator.get_state())
                found = draw()
                self.generator.set_state(default.get_state())
            finally:
                default.set_state(before)
        return found


def _on_cpu(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation draws on the CPU: by its device, or by that of its tensors."""
    device = kwargs.get("device")
    if device is None:
        device = next((a.device for a in args if isinstance(a, Tensor)), None)
    return device is None or torch.device(device).type == "cpu"
