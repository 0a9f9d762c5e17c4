"""Heads that compare the input with rows that are known."""

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unbounded.layers.few_rows import Floats, Function, values

MOST_NUMBERS = 1 << 17
"""Of all rows of a head together."""
_BY_COLUMN = 64  # columns at the most


class KernelHead(nn.Module):
    """A head that adds Σ_j v_j exp(−Σ_c s_c |x_c − z_jc|), a function of how near the input x is.

    That kernel has sharp edges along the columns, as trees have, and knows columns together. The
    values v are zero at first, and no optimiser moves them. It is computed in double precision:
    values may be large and cancel each other.

    Args:
        rest: a linear head, or one that takes the input besides its state.
        rows: z, each as long as the input.
        scales: s, how fast nearness falls along each column; as long as the input.
    """

    takes_context = True  # the input
    unused = ("added", "added_bias")  # by `forward`

    rows: Tensor
    scales: Tensor
    values: Tensor
    added: Tensor
    added_bias: Tensor

    def __init__(self, rest: nn.Module, rows: Sequence[Sequence[float]], scales: Sequence[float]):
        super().__init__()
        self.rest = rest
        weight = self.linear.weight
        given = {"rows": np.asarray(rows, np.float64), "scales": np.asarray(scales, np.float64)}
        for name, array in given.items():
            self.register_buffer(name, torch.from_numpy(array).to(weight), persistent=False)
        self.name = digest(*(array.tobytes() for array in given.values()))
        # No parameters: found in closed form, steps of an optimiser would only disturb them. What
        # was added by rows that may have to judge again is kept, in files, too.
        values = weight.detach().new_zeros(len(rows), self.linear.out_features)
        for name, tensor in (
            ("values", values),
            ("added", values.clone()),
            ("added_bias", values.new_zeros(values.shape[1])),
        ):
            self.register_buffer(name, tensor)

    @property
    def linear(self) -> nn.Linear:
        """What it makes of the state."""
        rest = self.rest if isinstance(self.rest, nn.Linear) else self.rest.linear
        assert isinstance(rest, nn.Linear)
        return rest

    def forward(self, state: Tensor, context: "Tensor | Once") -> Tensor:
        """`(batch, width)` and the input `(batch, column)` → `(batch, out_features)`."""
        once = Once.of(context)
        given = (once,) if getattr(self.rest, "takes_context", False) else ()
        rest: Tensor = self.rest(state, *given)
        near = once.made(self.name, lambda x: nearness(x, self.rows, self.scales))
        return rest + (near @ self.values.double()).to(rest.dtype)

    @torch.no_grad()
    def forget(self) -> None:
        """Take back what was learnt from rows that are to judge again."""
        self.values.sub_(self.added)
        self.linear.bias.sub_(self.added_bias)
        self.added.zero_()
        self.added_bias.zero_()

    @staticmethod
    def skips_in_numpy(heads: "Sequence[KernelHead]") -> Function | None:
        """What heads add of the input, for few rows; None unless all compare with the same rows.

        `(batch, column)` → `(head, batch, out_features)`.
        """
        first = heads[0]
        if any(head.name != first.name for head in heads):
            return None
        rests = [head.rest for head in heads]
        others: Function | None = None
        if type(first.rest) is not nn.Linear:
            if len({type(rest) for rest in rests}) > 1:
                return None
            others = type(first.rest).skips_in_numpy(rests)  # type: ignore[attr-defined]
            if others is None:
                return None
        scales = values(first.scales)
        rows = np.ascontiguousarray((values(first.rows) * scales).T)
        weights = np.array([values(head.values) for head in heads])
        if (weights == weights[0]).all():  # as after the last step of an estimator
            weights = weights[0]

        def function(x: Floats) -> Floats:
            # One column after the other: the sum over a short last axis takes longer.
            distances = np.zeros((len(x), rows.shape[1]))
            for own, places in zip((x * scales).T, rows, strict=True):
                part = own[:, None] - places
                distances -= np.abs(part, out=part)
            near = np.exp(distances, out=distances)
            found: Floats = np.matmul(near, weights)
            if found.ndim == 2:
                found = np.broadcast_to(found, (len(heads), *found.shape))
            return found if others is None else found + others(x)

        return function


class Once:
    """The input of a pass, and what heads make of it that are alike in that.

    Without gradients that is computed once.
    """

    def __init__(self, input: Tensor):
        self.input = input
        self._found: dict[str, Tensor] = {}

    @classmethod
    def of(cls, context: "Tensor | Once") -> "Once":
        """A head may be called with the input alone."""
        return context if isinstance(context, Once) else cls(context)

    def made(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What `make` gives for the input; the same name stands for the same."""
        if name in self._found:
            return self._found[name]
        found = make(self.input)
        # A layer that is computed again for its gradient must do again what it did. A trace has to
        # be the same with gradients and without.
        if torch.jit.is_tracing() or not torch.is_grad_enabled():
            self._found[name] = found
        return found


def digest(*parts: Any) -> str:
    """A name for what is plain data: equal for equal ones."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def nearness(input: Tensor, rows: Tensor, scales: Tensor) -> Tensor:
    """exp(−Σ_c s_c |x_c − z_jc|) of all rows z, `(batch, column)` → `(batch, row)`, double."""
    own, others = (part.double() * scales.double() for part in (input, rows))
    if torch.compiler.is_exporting():  # other programs do not know such distances
        return torch.exp(-_distances(own, others))
    return torch.exp(-torch.cdist(own, others, p=1.0))


def _distances(input: Tensor, rows: Tensor) -> Tensor:
    """‖x − z_j‖₁ by plain operations, `(batch, column)` → `(batch, row)`."""
    if rows.shape[1] > _BY_COLUMN:
        return (input[..., None, :] - rows).abs().sum(-1)
    # One column after the other takes the least memory.
    columns = range(rows.shape[1])
    found = [(input[..., column, None] - rows[:, column]).abs() for column in columns]
    return reduce(torch.add, found)


def check_rows(rows: Sequence[Sequence[float]], scales: Sequence[float], columns: int) -> None:
    """Refuse rows or scales of another length, of no numbers, or too many rows."""
    if any(len(row) != columns for row in rows):
        raise ValueError(f"head_rows must have {columns} numbers each")
    if len(rows) * columns > MOST_NUMBERS:
        raise ValueError(f"head_rows have more than {MOST_NUMBERS} numbers")
    if not all(math.isfinite(number) for row in rows for number in row):
        raise ValueError("head_rows must be finite")
    if rows and len(scales) != columns:
        raise ValueError(f"head_rows need head_scales, {columns} numbers, got {len(scales)}")
    if not all(0 <= number < math.inf for number in scales):
        raise ValueError("head_scales must be finite and at least 0")
