"""The one recipe for all nine sets: what is fixed, what is chosen, and on which rows.

Nothing here or in what calls it sees a test row. Inputs and targets are standardised by the rows
that a network trains on; inputs that are constant there say nothing and become zero. What is
chosen is chosen for each split and each model alone, on validation parts of that split's training
rows.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unbounded.data.uci import Floats, UCISet

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """Everything that a network is trained with.

    Attributes:
        width: of every hidden layer.
        steps: Adam steps of every network, about; the number of epochs follows from it.
        lr: the first learning rate; it falls to zero along a cosine, epoch by epoch.
        depth_lr_ratio: rate of the depth posterior as a multiple of it.
        rate: the first λ of a UDN.
        prior_rate: α of the prior on the depth, ℓ−1 ~ Poisson(α).
        average: decay a step of the moving average of all parameters, which is what predicts.
        beta: of the likelihood, see `BalancedGaussian`.
        scales: candidates for the scale s of the prior on the weights, N(0, s²).
        few_rows: with fewer training rows than this there are `parts` validation parts, else one.
        parts: how many validation parts small sets have.
        fraction: how much of the training rows a validation part has.
    """

    width: int = 64
    steps: int = 4000
    lr: float = 0.005
    depth_lr_ratio: float = 1.0
    rate: float = 3.0
    prior_rate: float = 0.5
    average: float = 0.999
    beta: float = 0.5
    scales: tuple[float, ...] = (0.2, 0.4, 1.0)
    few_rows: int = 2000
    parts: int = 3
    fraction: float = 0.2

    def __post_init__(self) -> None:
        if self.width < 1 or self.steps < 1:
            raise ValueError(f"width and steps must be positive, got {self.width}, {self.steps}")
        if not 0 < self.parts * self.fraction <= 1:
            raise ValueError(
                f"{self.parts} parts of {self.fraction} of the rows each do not fit into them"
            )

    def batch_size(self, rows: int) -> int:
        """A power of two near 1/32 of the rows, between 32 and 512."""
        near = 2 ** round(math.log2(max(1.0, rows / 32)))
        return min(max(32, near), 512, rows)

    def epochs(self, rows: int) -> int:
        """As many as make about `steps` steps."""
        return max(1, round(self.steps / math.ceil(rows / self.batch_size(rows))))

    def config(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "scales": list(self.scales)}


@dataclass(frozen=True)
class Table:
    """Rows to train on and rows to predict, standardised by the former."""

    train: tuple[Tensor, Tensor]  # inputs (rows, feature) and targets (rows, 1)
    x: Tensor  # inputs of the rows to predict
    y: Floats  # their targets, (rows,), in original units
    center: float  # of the targets, in original units
    scale: float  # of the targets
    rounding: float = 0.0  # what it took from the targets, as a standard deviation


def table(data: UCISet, train: Rows, held_out: Rows) -> Table:
    """Standardise by the training rows; inputs that are constant there become zero everywhere."""
    x, y = data.x[train], data.y[train]
    center, spread = x.mean(0), x.std(0)
    varies = spread > 1e-9 * (1 + np.abs(center))
    spread = np.where(varies, spread, 1.0)
    y_center, y_scale = float(y.mean()), float(y.std())
    y_scale = y_scale if y_scale > 0 else 1.0

    def inputs(rows: Rows) -> Tensor:
        return torch.from_numpy(np.where(varies, (data.x[rows] - center) / spread, 0.0)).float()

    targets = torch.from_numpy((y - y_center) / y_scale).float()[:, None]
    return Table(
        (inputs(train), targets), inputs(held_out), data.y[held_out], y_center, y_scale, rounding(y)
    )


def rounding(y: Floats) -> float:
    """step/√12 of targets `(rows,)` that are multiples of a step: the smallest gap between two.

    A density of rounded numbers can be made as high as one likes by spikes at the steps (the
    wines' notes are whole numbers). No prediction is allowed to be sharper than this.
    """
    gaps = np.diff(np.unique(y))
    gaps = gaps[gaps > 1e-9 * np.abs(y).max(initial=0.0)]
    return float(gaps.min() / math.sqrt(12)) if len(gaps) else 0.0


def training_rows(mask: NDArray[np.bool_]) -> Rows:
    """The rows of a split that are not for testing."""
    return np.flatnonzero(~mask)


def validation_parts(rows: Rows, recipe: Recipe, seed: int) -> list[tuple[Rows, Rows]]:
    """(rows to train on, rows to validate on), disjoint parts of a split's training rows.

    All have the same sizes, so that they go into one population.
    """
    shuffled = np.random.default_rng(seed).permutation(rows)
    size = int(recipe.fraction * len(rows))
    found = []
    for part in range(recipe.parts if len(rows) < recipe.few_rows else 1):
        place = slice(part * size, (part + 1) * size)
        kept = np.concatenate([shuffled[: place.start], shuffled[place.stop :]])
        found.append((np.sort(kept), np.sort(shuffled[place])))
    return found
