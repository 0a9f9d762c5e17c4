"""Dense layers for the columns of a table."""

import math
from collections.abc import Iterable, Sequence
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
    small form of RealMLP, Holzmüller et al., 2024). Where something changes at a threshold t of a
    column, which smooth functions learn slowly, a step goes along: ±`height`/2, by whether x > t.
    Heads start at zero: the first prediction is the mean of the targets, or all classes alike.

    Args:
        in_features: columns, about in units of their spread.
        width: size of every hidden state.
        out_features: size of a head's output.
        embedded: columns that get waves, by their number; None for all. Those with two values
            gain nothing by them.
        frequencies: waves of a column.
        embedding: numbers that a column becomes, the column among them.
        spread: standard deviation of the first a_k.
        steps: pairs (column, t) of thresholds.
        height: of a step. Low ones are learnt after what is smooth.
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
        steps: Iterable[Sequence[float]] = (),
        height: float = 0.3,
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
        self.steps = [(int(column), float(threshold)) for column, threshold in steps]
        for column, threshold in self.steps:
            if not 0 <= column < self.in_features or not math.isfinite(threshold):
                raise ValueError(
                    f"steps must be pairs of a column from 0 to {self.in_features - 1} and a "
                    f"finite threshold, got {(column, threshold)}"
                )
        if not 0 < height < math.inf:
            raise ValueError(f"height must be positive, got {height}")
        self.height = float(height)

    def hidden(self, depth: int) -> nn.Module:
        """`(batch, in_features or width)` → `(batch, width)`."""
        if depth > 1:
            return super().hidden(depth)
        layer = TableLayer(self._waves(), self.width, self._activation)
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
        found = {
            **super().config(),
            "embedded": self.embedded,
            "frequencies": self.frequencies,
            "embedding": self.embedding,
            "spread": self.spread,
        }
        if self.steps:  # those without can be read by earlier versions
            found |= {"steps": [list(step) for step in self.steps], "height": self.height}
        return found

    def _waves(self) -> "Waves":
        """What the first layer does to the columns."""
        sizes = self.frequencies, self.embedding, self.spread
        return Waves(self.in_features, self.embedded, *sizes, self.steps, self.height)


class Waves(nn.Module):
    """Columns with embeddings and steps: `(batch, column)` → `(batch, out_features)`.

    Args:
        columns: how many there are.
        embedded: those that get waves.
        frequencies: waves of a column.
        size: numbers that an embedded column becomes.
        spread: standard deviation of the first frequencies.
        steps: pairs of a column and a threshold.
        height: of a step.
    """

    columns: Tensor
    stepped: Tensor
    thresholds: Tensor

    def __init__(
        self,
        columns: int,
        embedded: Sequence[int],
        frequencies: int,
        size: int,
        spread: float,
        steps: Sequence[tuple[int, float]] = (),
        height: float = 1.0,
    ):
        super().__init__()
        count = len(embedded)
        self.out_features = columns + count * (size - 1) + len(steps)
        self.takes_all = count == columns
        self.register_buffer("columns", torch.tensor(embedded, dtype=torch.long), persistent=False)
        self.height = height
        stepped, thresholds = [column for column, _ in steps], [place for _, place in steps]
        self.register_buffer("stepped", torch.tensor(stepped, dtype=torch.long), persistent=False)
        places = torch.tensor(thresholds, dtype=torch.get_default_dtype())
        self.register_buffer("thresholds", places, persistent=False)
        self.factor = nn.Parameter(torch.ones(columns))
        self.frequency = nn.Parameter(torch.randn(count, frequencies) * spread)
        self.phase = nn.Parameter(torch.rand(count, frequencies) - 0.5)
        bound = 1 / math.sqrt(frequencies)
        self.weight = nn.Parameter((torch.rand(count, frequencies, size - 1) * 2 - 1) * bound)
        self.bias = nn.Parameter(torch.zeros(count, size - 1))

    def forward(self, input: Tensor) -> Tensor:
        """The columns, then what their waves give, then the steps."""
        parts = [input * self.factor]
        if len(self.columns):
            parts.append(self._waves(parts[0]))
        if len(self.thresholds):
            above = input[..., self.stepped] > self.thresholds
            parts.append((above.to(input.dtype) - 0.5) * self.height)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _waves(self, columns: Tensor) -> Tensor:
        chosen = columns if self.takes_all else columns[..., self.columns]
        waves = torch.cos(2 * math.pi * (chosen[..., None] * self.frequency + self.phase))
        # A product a column: (column, batch, frequencies) · (column, frequencies, size − 1).
        mixed = torch.baddbmm(self.bias[:, None], waves.transpose(0, 1), self.weight)
        return mixed.transpose(0, 1).flatten(1)


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
