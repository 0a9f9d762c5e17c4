"""The paper's spirals D(ω): two interleaved branches at rotation speed ω."""

import math

import numpy as np
import torch
from torch import Tensor

NOISE = 0.02
_PARTS = ("train", "validation", "test")


def spiral(
    omega: float, num_data: int = 1024, *, part: str = "train", seed: int = 0, noise: float = NOISE
) -> tuple[Tensor, Tensor]:
    """A sample of D(ω), by the generative process of the paper's appendix B.1.

    t ~ U(0, 1), u = √t, y ~ U{−1, 1}, x ~ N(y·u·(cos ωuπ/2, sin ωuπ/2), noise²).

    Args:
        omega: rotation speed; the paper uses 0 to 30.
        num_data: rows.
        part: "train", "validation" or "test": disjoint streams of one seed.
        seed: of the sample.
        noise: standard deviation of the noise.

    Returns:
        Inputs `(num_data, 2)` in single precision and labels 0 or 1 `(num_data,)`.
    """
    if part not in _PARTS:
        raise ValueError(f"part must be one of {_PARTS}, got {part!r}")
    stream = np.random.SeedSequence([seed, _PARTS.index(part)])
    random = np.random.default_rng(stream)
    u = np.sqrt(random.uniform(size=num_data))
    y = random.integers(0, 2, size=num_data)
    sign = 2 * y - 1
    angle = omega * u * (math.pi / 2)
    centre = np.stack([sign * u * np.cos(angle), sign * u * np.sin(angle)], 1)
    x = random.normal(centre, noise)
    return torch.from_numpy(x).float(), torch.from_numpy(y)
