"""Heads that compare the input with rows that are known."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from unbounded.layers.few_rows import Floats, Function, values

MOST_NUMBERS = 1 << 16
"""Of all rows of a head together."""


class KernelHead(nn.Module):
    """A head that adds Σ_j v_j exp(−‖x − z_j‖₁ / r), a function of how near the input x is.

    That kernel has sharp edges along the columns, as trees have, and knows columns together. The
    values v start at zero.

    Args:
        rest: a linear head, or one that takes the input besides its state.
        rows: z, each as long as the input.
        reach: r, how far a row is felt.
    """

    takes_context = True  # the input

    rows: Tensor

    def __init__(self, rest: nn.Module, rows: Sequence[Sequence[float]], reach: float):
        super().__init__()
        self.rest = rest
        weight, self.reach = self.linear.weight, float(reach)
        self.register_buffer("rows", torch.as_tensor(np.asarray(rows)).to(weight), persistent=False)
        self.values = nn.Parameter(weight.new_zeros(len(rows), self.linear.out_features))

    @property
    def linear(self) -> nn.Linear:
        """What it makes of the state."""
        rest = self.rest if isinstance(self.rest, nn.Linear) else self.rest.linear
        assert isinstance(rest, nn.Linear)
        return rest

    def forward(self, state: Tensor, input: Tensor) -> Tensor:
        """`(batch, width)` and the input `(batch, column)` → `(batch, out_features)`."""
        given = (input,) if getattr(self.rest, "takes_context", False) else ()
        rest: Tensor = self.rest(state, *given)
        return rest + nearness(input, self.rows, self.reach) @ self.values

    @staticmethod
    def skips_in_numpy(heads: "Sequence[KernelHead]") -> Function | None:
        """What heads add of the input, for few rows; None unless all compare with the same rows.

        `(batch, column)` → `(head, batch, out_features)`.
        """
        first = heads[0]
        if not all(torch.equal(first.rows, h.rows) and first.reach == h.reach for h in heads):
            return None
        rests = [head.rest for head in heads]
        others: Function | None = None
        if type(first.rest) is not nn.Linear:
            if len({type(rest) for rest in rests}) > 1:
                return None
            others = type(first.rest).skips_in_numpy(rests)  # type: ignore[attr-defined]
            if others is None:
                return None
        rows, reach = values(first.rows), first.reach
        weights = np.array([values(head.values) for head in heads])

        def function(x: Floats) -> Floats:
            near = np.exp(np.abs(x[:, None] - rows).sum(2) / -reach)
            found: Floats = np.matmul(near, weights)
            return found if others is None else found + others(x)

        return function


def nearness(input: Tensor, rows: Tensor, reach: float) -> Tensor:
    """exp(−‖x − z_j‖₁ / r) of all rows z, `(batch, column)` → `(batch, row)`."""
    if torch.compiler.is_exporting():  # other programs do not know such distances
        distances = (input[..., None, :] - rows).abs().sum(-1)
    else:
        distances = torch.cdist(input, rows, p=1.0)
    return torch.exp(distances / -reach)


def check_rows(rows: Sequence[Sequence[float]], reach: float, columns: int) -> None:
    """Refuse rows of another length, of no numbers, or too many of them."""
    if any(len(row) != columns for row in rows):
        raise ValueError(f"head_rows must have {columns} numbers each")
    if len(rows) * columns > MOST_NUMBERS:
        raise ValueError(f"head_rows have more than {MOST_NUMBERS} numbers")
    if not all(math.isfinite(number) for row in rows for number in row):
        raise ValueError("head_rows must be finite")
    if not 0 < reach < math.inf:
        raise ValueError(f"head_reach must be positive, got {reach}")
