"""What "auto" means: how many epochs and rows a step, and how the rate falls."""

from typing import NamedTuple

import numpy as np


class Steps(NamedTuple):
    """How many steps a training has: so many for each row, within bounds."""

    a_row: float
    least: int
    most: int
    most_epochs: int = 200


NUMBERS = Steps(1.3, 600, 18000)
"""Where targets are numbers: the error of smooth ones falls as long as there are steps."""
CLASSES = Steps(1.0, 700, 6000, most_epochs=120)
"""Of few rows classes are soon learnt by heart."""
MIN_EPOCHS = 10
PATIENCE = 5
"""Training stops after a fifth of its epochs without a better validation score."""


def choose_epochs(
    epochs: int | str, batch_size: int | str, rows: int, wanted: Steps, times: float = 1.0
) -> int:
    """As given, or as many as make the steps that are wanted; `times` that."""
    if not isinstance(epochs, str):
        return epochs
    steps = -(-rows // choose_batch_size(batch_size, rows))
    total = min(max(round(wanted.a_row * rows), wanted.least), wanted.most)
    usual = min(max(-(-total // steps), MIN_EPOCHS), wanted.most_epochs)
    return max(1, round(times * usual))


def choose_batch_size(batch_size: int | str, rows: int) -> int:
    """As given, or a power of two near 2√rows, from 32 to 1024; no more than there are rows."""
    if isinstance(batch_size, str):
        batch_size = int(np.clip(2 ** round(1 + np.log2(max(rows, 1)) / 2), 32, 1024))
    return min(batch_size, rows)


def choose_patience(patience: int | str | None, epochs: int) -> int | None:
    """As given, or a fifth of the epochs."""
    return max(1, epochs // PATIENCE) if isinstance(patience, str) else patience


def annealing_factor(epoch: int, epochs: int) -> float:
    """The full rate for the first half of the epochs, then down to nothing in a line."""
    return min(1.0, 2 * (1 - epoch / epochs))
