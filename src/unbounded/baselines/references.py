"""References on the spirals: nearest neighbours, an RBF support vector machine, the limit."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unbounded.data.spirals import NOISE

Split = tuple[Tensor, Tensor]
NEIGHBOURS = (1, 2, 3, 5, 7, 9, 13, 19)
# Wider kernels with larger penalties do worse on every spiral and take minutes.
PENALTIES = (1.0, 10.0, 100.0, 1e3)
WIDTHS = (10.0, 30.0, 100.0, 300.0, 1e3, 3e3)


def nearest_neighbours(
    train: Split, validation: Split, test: Split, counts: Sequence[int] = NEIGHBOURS
) -> dict[str, float]:
    """Test accuracy of the number of neighbours that does best on the validation part."""
    from sklearn.neighbors import KNeighborsClassifier

    candidates = [(KNeighborsClassifier(count), {"neighbours": count}) for count in counts]
    return _select(candidates, train, validation, test)


def rbf_svm(
    train: Split,
    validation: Split,
    test: Split,
    penalties: Sequence[float] = PENALTIES,
    widths: Sequence[float] = WIDTHS,
) -> dict[str, float]:
    """Test accuracy of the penalty C and kernel γ that do best on the validation part."""
    from sklearn.svm import SVC

    candidates = [(SVC(C=c, gamma=g), {"C": c, "gamma": g}) for c in penalties for g in widths]
    return _select(candidates, train, validation, test)


def bayes_accuracy(omega: float, noise: float = NOISE, points: int = 521) -> float:
    """The accuracy that nobody exceeds on D(ω), the generator being known.

    The density of a branch, ∫ N(x; c(√t), noise² I) dt, is integrated along the curve by the
    midpoint rule, on a grid over the plane: with the nodes' Gaussians g in each coordinate and
    masses w it is the matrix product (g w) gᵀ. The other branch is its mirror image through the
    origin. The best classifier takes the likelier branch: ∫ max(p₊, p₋)/2 dx is its accuracy.

    Args:
        omega: rotation speed.
        noise: standard deviation of the noise.
        points: along each side of the grid; its spacing must be well below `noise`.
    """
    reach = 1 + 6 * noise
    axis, spacing = np.linspace(-reach, reach, points, retstep=True)
    if spacing > noise / 2:
        raise ValueError(
            f"{points} points are {spacing:.3g} apart, noise {noise} needs {noise / 2}"
        )
    # Nodes a quarter of the noise apart where the curve is fastest.
    speed = math.hypot(1, omega * math.pi / 2)
    count = max(200, math.ceil(4 * speed / noise))
    u = (np.arange(count) + 0.5) / count
    angle = omega * u * (math.pi / 2)
    masses = 2 * u / count  # u = √t of a uniform t has density 2u

    def gaussians(centres: NDArray[np.float64]) -> NDArray[np.float64]:
        z = (axis[:, None] - centres) / noise
        values: NDArray[np.float64] = np.exp(-0.5 * z * z) / (noise * math.sqrt(2 * math.pi))
        return values

    density = (gaussians(u * np.cos(angle)) * masses) @ gaussians(u * np.sin(angle)).T
    other = density[::-1, ::-1]
    return float(np.maximum(density, other).sum() / 2 * float(spacing) ** 2)


def _select(
    candidates: Sequence[tuple[Any, dict[str, Any]]], train: Split, validation: Split, test: Split
) -> dict[str, float]:
    """The best candidate by validation accuracy (the first of equals), scored on the test part."""
    (x, y), held_out, unseen = ((a.numpy(), b.numpy()) for a, b in (train, validation, test))
    scores = [float(model.fit(x, y).score(*held_out)) for model, _ in candidates]
    best = max(scores)
    model, settings = candidates[scores.index(best)]
    return {"test_accuracy": float(model.score(*unseen)), "val_accuracy": best, **settings}
