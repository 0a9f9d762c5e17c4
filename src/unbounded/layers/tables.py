"""Dense layers for the columns of a table."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.layers.dense import Activation, PreNormDense, _size


class TableDense(PreNormDense):
    """`PreNormDense` whose first layer sees each number of a table through waves.

    Networks find it hard to learn what goes up and down along one column. So f_1 first maps a
    column x, times a learnt factor, to x itself and a linear map of cos(2π(a_k x + b_k)), with
    learnt a_k and b_k, k = 1 … `frequencies` (periodic embeddings, Gorishniy et al., 2022, in the
    small form of RealMLP, Holzmüller et al., 2024). Heads start at zero: the first prediction is
    the mean of the targets, or all classes alike.

    Args:
        in_features: columns, about in units of their spread.
        width: size of every hidden state.
        out_features: size of a head's output.
        embedded: columns that get waves, by their number; None for all. Those with two values
            gain nothing by them.
        frequencies: waves of a column.
        embedding: numbers that a column becomes, the column among them.
        spread: standard deviation of the first a_k.
        rest: the other arguments of `Dense`; `activation` is "mish" by default.
    """

    reference = (3.0, 2.0)  # tables need few layers, and each costs time

    def __init__(
        self,
        in_features: int,
        width: int,
        out_features: int,
        *,
        embedded: Sequence[int] | None = None,
        frequencies: int = 16,
        embedding: int = 4,
        spread: float = 0.1,
        activation: str | Activation = "mish",
        **rest: Any,
    ):
        super().__init__(in_features, width, out_features, activation=activation, **rest)
        columns = range(self.in_features) if embedded is None else embedded
        self.embedded = sorted({int(column) for column in columns})
        if self.embedded and not 0 <= self.embedded[0] <= self.embedded[-1] < self.in_features:
            raise ValueError(
                f"embedded must be columns from 0 to {self.in_features - 1}, got {list(columns)}"
            )
        self.frequencies = _size("frequencies", frequencies)
        self.embedding = _size("embedding", embedding)
        if self.embedding < 2:
            raise ValueError("embedding must be at least 2: the column and something besides")
        if not 0 < spread < math.inf:
            raise ValueError(f"spread must be positive, got {spread}")
        self.spread = float(spread)

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, in_features or width)` → `(batch, width)`."""
        if depth > 1:
            return super().hidden(depth)
        waves = Waves(
            self.in_features, self.embedded, self.frequencies, self.embedding, self.spread
        )
        layer = TableLayer(waves, self.width, self._activation)
        self._init(layer.linear)
        return layer

    def head(self, depth: int) -> nn.Module:
        """`(batch, width)` → `(batch, out_features)`; zero at first."""
        head = nn.Linear(self.width, self.out_features)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        return {
            **super().config(),
            "embedded": self.embedded,
            "frequencies": self.frequencies,
            "embedding": self.embedding,
            "spread": self.spread,
        }


class Waves(nn.Module):
    """Columns with their periodic embeddings: `(batch, column)` → `(batch, out_features)`.

    Args:
        columns: how many there are.
        embedded: those that get waves.
        frequencies: waves of a column.
        size: numbers that an embedded column becomes.
        spread: standard deviation of the first frequencies.
    """

    columns: Tensor

    def __init__(
        self, columns: int, embedded: Sequence[int], frequencies: int, size: int, spread: float
    ):
        super().__init__()
        count = len(embedded)
        self.out_features = columns + count * (size - 1)
        self.takes_all, self.takes_none = count == columns, not count
        self.register_buffer("columns", torch.tensor(embedded, dtype=torch.long), persistent=False)
        self.factor = nn.Parameter(torch.ones(columns))
        self.frequency = nn.Parameter(torch.randn(count, frequencies) * spread)
        self.phase = nn.Parameter(torch.rand(count, frequencies) - 0.5)
        bound = 1 / math.sqrt(frequencies)
        self.weight = nn.Parameter((torch.rand(count, frequencies, size - 1) * 2 - 1) * bound)
        self.bias = nn.Parameter(torch.zeros(count, size - 1))

    def forward(self, input: Tensor) -> Tensor:
        """The columns, then what their waves give."""
        columns = input * self.factor
        if self.takes_none:
            return columns
        chosen = columns if self.takes_all else columns[..., self.columns]
        waves = torch.cos(2 * math.pi * (chosen[..., None] * self.frequency + self.phase))
        # A product a column: (column, batch, frequencies) · (column, frequencies, size − 1).
        mixed = torch.baddbmm(self.bias[:, None], waves.transpose(0, 1), self.weight)
        return torch.cat([columns, mixed.transpose(0, 1).flatten(1)], 1)


class TableLayer(nn.Module):
    """The first layer: waves, a linear map and an activation."""

    def __init__(self, waves: Waves, width: int, activation: Activation):
        super().__init__()
        self.waves = waves
        self.linear = nn.Linear(waves.out_features, width)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, column)` → `(batch, width)`."""
        return self.activation(F.linear(self.waves(input), self.linear.weight, self.linear.bias))
