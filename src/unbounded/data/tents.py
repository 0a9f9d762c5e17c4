"""Iterated tent maps: problems of one input whose needed depth is known."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FLIPS = 0.05
_PARTS = ("train", "validation", "test")


def tent(
    folds: int, num_data: int = 1024, *, part: str = "train", seed: int = 0, flips: float = FLIPS
) -> tuple[Tensor, Tensor]:
    """A sample of the tent map T(x) = 1 − |2x − 1|, applied `folds` times.

    x ~ U(0, 1); y tells on which side of ½ T(T(…x)) is, and changes 2^folds times along x. A
    layer of two ReLUs folds the line once, so `folds` narrow layers are enough; one layer alone
    needs a unit for each change (Telgarsky, 2016).

    Args:
        folds: how often the map is applied, at least 1.
        num_data: rows.
        part: "train", "validation" or "test": disjoint streams of one seed.
        seed: of the sample.
        flips: the share of labels that are wrong, in every part: something to overfit. No
            classifier can expect more than 1 − flips.

    Returns:
        Inputs `(num_data, 1)` in single precision and labels 0 or 1 `(num_data,)`.
    """
    if part not in _PARTS:
        raise ValueError(f"part must be one of {_PARTS}, got {part!r}")
    if isinstance(folds, bool) or int(folds) != folds or folds < 1:
        raise ValueError(f"folds must be an integer of at least 1, got {folds!r}")
    if not 0 <= flips <= 0.5:
        raise ValueError(f"flips must be from 0 to 0.5, got {flips}")
    random = np.random.default_rng(np.random.SeedSequence([seed, _PARTS.index(part)]))
    x = random.uniform(size=num_data)
    wrong = random.uniform(size=num_data) < flips
    y = (folded(x, int(folds)) > 0.5) ^ wrong
    return torch.from_numpy(x).float()[:, None], torch.from_numpy(y.astype(np.int64))


def folded(x: NDArray[np.float64], folds: int) -> NDArray[np.float64]:
    """T(T(…x)), the tent map applied `folds` times to numbers in [0, 1]."""
    for _ in range(folds):
        x = 1 - np.abs(2 * x - 1)
    return x
