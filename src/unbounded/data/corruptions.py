"""Images made worse on purpose: noise, blur and little contrast, each at five severities.

Of the kinds of CIFAR-10-C (Hendrycks and Dietterich, 2019), but made here, with strengths of our
own: figures are for comparisons with each other and not with others'.
"""

import numpy as np
from numpy.typing import NDArray

from unbounded.data.images import Pixels

SEVERITIES = (1, 2, 3, 4, 5)
STRENGTHS: dict[str, tuple[float, ...]] = {
    "noise": (0.04, 0.06, 0.08, 0.10, 0.12),
    "blur": (0.4, 0.6, 0.8, 1.0, 1.2),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
}
"""Standard deviation of the noise, of values from 0 to 1; that of the blur, in pixels; what is left
of the differences from the mean."""


def corrupted(x: Pixels, kind: str, severity: int, seed: int = 0) -> Pixels:
    """Images, each made worse.

    Args:
        x: bytes, `(rows, height, width, channel)`.
        kind: "noise" (Gaussian, of each value), "blur" (Gaussian) or "contrast" (towards the mean
            colour of the image).
        severity: 1 to 5.
        seed: of the noise.

    Returns:
        Bytes of the same shape.
    """
    if kind not in STRENGTHS:
        raise ValueError(f"kind must be one of {tuple(STRENGTHS)}, got {kind!r}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be 1 to 5, got {severity!r}")
    strength = STRENGTHS[kind][severity - 1]
    draws = np.random.default_rng([seed, severity])
    pieces = []
    for start in range(0, len(x), 1000):
        piece: NDArray[np.float32] = x[start : start + 1000].astype(np.float32) / np.float32(255)
        if kind == "noise":
            noise = draws.standard_normal(piece.shape, dtype=np.float32)
            piece = piece + np.float32(strength) * noise
        elif kind == "blur":
            piece = _blurred(_blurred(piece, strength, 1), strength, 2)
        else:
            mean = piece.mean((1, 2), keepdims=True)
            piece = mean + np.float32(strength) * (piece - mean)
        pieces.append(np.rint(255 * piece.clip(0, 1)).astype(np.uint8))
    return np.concatenate(pieces)


def _blurred(x: NDArray[np.float32], spread: float, axis: int) -> NDArray[np.float32]:
    """Along one axis, the edge mirrored."""
    reach = max(1, int(np.ceil(3 * spread)))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / spread) ** 2)
    weights /= weights.sum()
    padding = [(reach, reach) if a == axis else (0, 0) for a in range(x.ndim)]
    padded = np.pad(x, padding, mode="reflect")
    size = x.shape[axis]
    total = np.zeros_like(x)
    for offset, weight in enumerate(weights):
        total += np.float32(weight) * padded.take(range(offset, offset + size), axis)
    return total
