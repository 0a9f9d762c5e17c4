"""Dense layers for the columns of a table."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded.layers.dense import Activation, PreNormDense, _size
from unbounded.layers.few_rows import Floats, Function, activation_of, chain, in_numpy, values
from unbounded.layers.kernels import KernelHead, Once, check_rows, digest

_SLOWLY = 0.5  # factor of the ramps: steps of an optimiser such as Adam count that much less
_FAR = 1e9


class TableDense(PreNormDense):
    """`PreNormDense` whose first layer sees each number of a table through waves and ramps.

    Networks find it hard to learn what goes up and down along one column. So f_1 first maps a
    column x, times a learnt factor, to x itself and a linear map of cos(2π(a_k x + b_k)), with
    learnt a_k and b_k, k = 1 … `frequencies` (periodic embeddings, Gorishniy et al., 2022, in the
    small form of RealMLP, Holzmüller et al., 2024). To these, where there are knots, a piecewise
    linear function of the column is added: a sum of ramps, each of which rises from one knot to the
    next, for targets that change at thresholds. The ramps' weights start at zero and learn slowly,
    so that smooth targets are left to the waves. Where classes change at a known threshold t of a
    column, a step goes along as a number of its own: ±`height`/2, by whether x > t. Heads start at
    zero: the first prediction is the mean of the targets, or all classes alike.

    Args:
        in_features: columns, about in units of their spread.
        width: size of every hidden state.
        out_features: size of a head's output.
        embedded: columns that get waves, by their number; None for all. Those with two values
            gain nothing by them.
        frequencies: waves of a column.
        embedding: numbers that a column becomes, the column among them.
        spread: standard deviation of the first a_k.
        knots: for each embedded column two or more numbers that ascend, between which ramps rise;
            none: no ramps.
        steps: pairs (column, t) of thresholds.
        height: of a step. Low ones are learnt after what is smooth.
        head_knots: for each embedded column two or more numbers that ascend; heads then add ramps
            between them to their outputs, of weight zero at first (`RampedHead`).
        head_rows: rows of numbers, as long as the input; heads then add how near the input is to
            each, of weight zero at first (`KernelHead`).
        head_scales: how fast nearness falls along each column; needed with them.
        rest: the other arguments of `Dense`; `activation` is "silu" by default.
    """

    reference = (3.0, 2.0)  # tables need few layers, and each costs time
    head_knots: Sequence[Sequence[float]] = ()  # of pickles that have none
    head_rows: Sequence[Sequence[float]] = ()
    head_scales: Sequence[float] = ()

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
        knots: Sequence[Sequence[float]] = (),
        steps: Iterable[Sequence[float]] = (),
        height: float = 0.3,
        head_knots: Sequence[Sequence[float]] = (),
        head_rows: Sequence[Sequence[float]] = (),
        head_scales: Sequence[float] = (),
        activation: str | Activation = "silu",
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
        self.knots = [[float(knot) for knot in column] for column in knots]
        _check_knots(self.knots, len(self.embedded))
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
        self.head_knots = [[float(knot) for knot in column] for column in head_knots]
        _check_knots(self.head_knots, len(self.embedded))
        self.head_rows = [[float(number) for number in row] for row in head_rows]
        self.head_scales = [float(number) for number in head_scales]
        check_rows(self.head_rows, self.head_scales, self.in_features)

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
        found: nn.Module = head
        if self.head_knots:
            found = RampedHead(head, self.embedded, self.head_knots)
        return KernelHead(found, self.head_rows, self.head_scales) if self.head_rows else found

    def context(self, x: Any) -> Any:
        """The input; where heads look at it, too, what they make of it is made once for all."""
        return Once(x) if self.head_knots or self.head_rows else x

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        found = {
            **super().config(),
            "embedded": self.embedded,
            "frequencies": self.frequencies,
            "embedding": self.embedding,
            "spread": self.spread,
        }
        if self.knots:  # those without can be read by earlier versions
            found["knots"] = self.knots
        if self.steps:
            found |= {"steps": [list(step) for step in self.steps], "height": self.height}
        if self.head_knots:
            found["head_knots"] = self.head_knots
        if self.head_rows:
            found |= {"head_rows": self.head_rows, "head_scales": self.head_scales}
        return found

    def _waves(self) -> "Waves":
        """What the first layer makes of the columns."""
        return Waves(
            self.in_features,
            self.embedded,
            self.frequencies,
            self.embedding,
            self.spread,
            self.knots,
            self.steps,
            self.height,
        )


def _check_knots(knots: Sequence[Sequence[float]], columns: int) -> None:
    """A ValueError if they are not of so many columns, or do not ascend."""
    if knots and len(knots) != columns:
        raise ValueError(f"knots must be of the {columns} embedded columns, got {len(knots)}")
    for column in knots:
        ascend = all(a < b for a, b in pairwise(column))
        if len(column) < 2 or not ascend or not all(map(math.isfinite, column)):
            raise ValueError(
                "the knots of a column must be two or more numbers, each larger than the one "
                f"before, got {column}"
            )


class Waves(nn.Module):
    """Columns with embeddings and steps: `(batch, column)` → `(batch, out_features)`.

    Args:
        columns: how many there are.
        embedded: those that get waves.
        frequencies: waves of a column.
        size: numbers that an embedded column becomes.
        spread: standard deviation of the first frequencies.
        knots: of the ramps, for each embedded column; none: no ramps.
        steps: pairs of a column and a threshold.
        height: of a step.
    """

    columns: Tensor
    left: Tensor | None  # (column, ramp): where ramps begin to rise
    lengths: Tensor | None  # (column, ramp): how far it is from there to their end
    stepped: Tensor
    thresholds: Tensor

    def __init__(
        self,
        columns: int,
        embedded: Sequence[int],
        frequencies: int,
        size: int,
        spread: float,
        knots: Sequence[Sequence[float]] = (),
        steps: Sequence[tuple[int, float]] = (),
        height: float = 0.3,
    ):
        super().__init__()
        count = len(embedded)
        self.out_features = columns + count * (size - 1) + len(steps)
        self.takes_all, self.takes_none, self.has_steps = count == columns, not count, bool(steps)
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
        left = lengths = None
        if knots:
            left, lengths = (part.to(self.bias) for part in _places(knots))
        most = 0 if left is None else left.shape[1]
        self.ramps = nn.Parameter(torch.zeros(count, most, size - 1)) if most else None
        self.register_buffer("left", left, persistent=False)
        self.register_buffer("lengths", lengths, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """The columns, then what their waves and ramps give, then the steps."""
        parts = [input * self.factor]
        if not self.takes_none:
            parts.append(self._mixed(input, parts[0]))
        if self.has_steps:
            above = input[..., self.stepped] > self.thresholds
            parts.append((above.to(input.dtype) - 0.5) * self.height)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _mixed(self, input: Tensor, columns: Tensor) -> Tensor:
        """What waves and ramps make of the embedded columns."""
        chosen = columns if self.takes_all else columns[..., self.columns]
        waves = torch.cos(2 * math.pi * (chosen[..., None] * self.frequency + self.phase))
        # A product a column: (column, batch, frequencies) · (column, frequencies, size − 1).
        mixed = torch.baddbmm(self.bias[:, None], waves.transpose(0, 1), self.weight)
        if self.ramps is not None and self.left is not None and self.lengths is not None:
            own = input if self.takes_all else input[..., self.columns]
            ramps = _risen(own, self.left, self.lengths)
            mixed = torch.baddbmm(mixed, ramps.transpose(0, 1), self.ramps * _SLOWLY)
        return mixed.transpose(0, 1).flatten(1)

    def in_numpy(self) -> Function:
        """The same of arrays, for few rows."""
        factor, frequency, phase = map(values, (self.factor, self.frequency, self.phase))
        weight, bias = values(self.weight), values(self.bias)
        chosen = None if self.takes_all else self.columns.numpy()
        stepped, thresholds = self.stepped.numpy(), values(self.thresholds)
        height, numbers = self.height, self.out_features
        count, end = len(factor), numbers - len(stepped)
        ramps = None
        if self.ramps is not None and self.left is not None and self.lengths is not None:
            # Half of a number is exact.
            ramps = values(self.left), values(self.lengths), values(self.ramps) * _SLOWLY

        def function(x: Floats) -> Floats:
            found = np.empty((len(x), numbers))
            columns = np.multiply(x, factor, out=found[:, :count])
            if len(weight):
                # Operation by operation as above: angles may be large, and roundings would show.
                angles = (columns if chosen is None else columns[:, chosen])[..., None] * frequency
                angles += phase
                angles *= 2 * math.pi
                mixed = np.matmul(np.cos(angles, out=angles).swapaxes(0, 1), weight)
                if ramps is not None:
                    left, lengths, weights = ramps
                    rises = _risen_in_numpy(x if chosen is None else x[:, chosen], left, lengths)
                    mixed += np.matmul(rises.swapaxes(0, 1), weights)
                found[:, count:end] = (mixed.swapaxes(0, 1) + bias).reshape(len(x), -1)
            if len(stepped):
                found[:, end:] = ((x[:, stepped] > thresholds) - 0.5) * height
            return found

        return function


def _places(knots: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """Where the ramps between the knots of each column begin and how long they are.

    Both `(column, ramp)`, in double precision. Columns with fewer ramps than others have some that
    begin where no value is.
    """
    most = max(map(len, knots)) - 1
    left = [[*column[:-1], *[_FAR] * (most - len(column) + 1)] for column in knots]
    lengths = [
        [b - a for a, b in pairwise(column)] + [1.0] * (most - len(column) + 1) for column in knots
    ]
    return torch.tensor(left, dtype=torch.float64), torch.tensor(lengths, dtype=torch.float64)


def _risen(columns: Tensor, left: Tensor, lengths: Tensor) -> Tensor:
    """How far each ramp has risen, from −½ to ½: `(batch, column)` → `(batch, column, ramp)`."""
    return ((columns[..., None] - left) / lengths).clamp(0, 1) - 0.5


def _risen_in_numpy(columns: Floats, left: Floats, lengths: Floats) -> Floats:
    """The same of arrays."""
    rises = (columns[..., None] - left) / lengths
    found: Floats = np.clip(rises, 0, 1, out=rises) - 0.5
    return found


class RampedHead(nn.Module):
    """A linear head that adds a piecewise linear function of each column of the input.

    Args:
        linear: of the hidden state.
        columns: of the input, that are looked at.
        knots: for each of them two or more numbers that ascend. Its ramps start at zero.
    """

    takes_context = True  # the input

    columns: Tensor
    left: Tensor
    lengths: Tensor

    def __init__(self, linear: nn.Linear, columns: Sequence[int], knots: Sequence[Sequence[float]]):
        super().__init__()
        self.linear = linear
        left, lengths = (part.to(linear.weight) for part in _places(knots))
        self.ramps = nn.Parameter(linear.weight.new_zeros(left.numel(), linear.out_features))
        self.name = digest(list(columns), knots)
        chosen = torch.tensor(list(columns), dtype=torch.long, device=left.device)
        for name, tensor in (("columns", chosen), ("left", left), ("lengths", lengths)):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, state: Tensor, context: Tensor | Once) -> Tensor:
        """`(batch, width)` and the input `(batch, column)` → `(batch, out_features)`."""
        risen = Once.of(context).made(self.name, self.risen)
        return self.linear(state) + risen @ self.ramps

    def risen(self, input: Tensor) -> Tensor:
        """How far all ramps have risen, `(batch, column)` → `(batch, ramp)`."""
        return _risen(input[..., self.columns], self.left, self.lengths).flatten(1)

    @staticmethod
    def skips_in_numpy(heads: "Sequence[RampedHead]") -> Function | None:
        """The ramps' part of heads for few rows; None unless all have the same knots.

        `(batch, column)` → `(head, batch, out_features)`.
        """
        first = heads[0]
        for name in ("columns", "left", "lengths"):
            if not all(torch.equal(getattr(first, name), getattr(head, name)) for head in heads):
                return None
        columns, left, lengths = first.columns.numpy(), values(first.left), values(first.lengths)
        weights = np.array([values(head.ramps) for head in heads])

        def function(x: Floats) -> Floats:
            rises = _risen_in_numpy(x[:, columns], left, lengths)
            found: Floats = np.matmul(rises.reshape(len(x), -1), weights)
            return found

        return function


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

    def in_numpy(self) -> Function | None:
        """The same of arrays, for few rows."""
        activation = activation_of(self.activation)
        return chain(in_numpy(self.waves), in_numpy(self.linear), activation)
