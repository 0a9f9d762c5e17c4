"""Scores of predictions: pure functions of arrays, in double precision, returning floats.

Targets come first, then what was predicted. Everything that can be an array may be a NumPy array,
a tensor on any device, a list or a frame. For classes, `labels` are integers 0 … C−1, `(rows,)`,
and `probs` their predicted probabilities, `(rows, class)`. For numbers, the predictive is the
mixture over depths: q(ℓ), `(depth,)`, and the means and scales of its Gaussians, each
`(depth, rows)` or `(depth, rows, target)`, depth first as everywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


# Classes


def accuracy(labels: Any, probs: Any) -> float:
    """The share of rows whose most probable class is the right one."""
    y, p = _classes(labels, probs)
    return float((p.argmax(1) == y).mean())


def log_score(labels: Any, probs: Any) -> float:
    """(1/n) Σ_i log p(y_i): the mean log predictive probability of what came; at most 0.

    Minus this is scikit-learn's `log_loss`. A probability that was rounded to 0 counts as the
    smallest normal double, about −708 nats, rather than as minus infinity.
    """
    y, p = _classes(labels, probs)
    chosen = p[np.arange(y.size), y]
    return float(np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def brier(labels: Any, probs: Any) -> float:
    """(1/n) Σ_i Σ_c (p_ic − [y_i = c])², over all classes: between 0 and 2.

    For two classes this is twice the one-sided score that scikit-learn gives by default.
    """
    y, p = _classes(labels, probs)
    target = np.zeros_like(p)
    target[np.arange(y.size), y] = 1.0
    return float(((p - target) ** 2).sum(1).mean())


@dataclass(frozen=True)
class Reliability:
    """The points of a reliability diagram, one a bin with rows in it, by rising confidence."""

    confidence: Floats  # (bin,): mean probability of the predicted class
    accuracy: Floats  # (bin,): share of rows that were right
    count: NDArray[np.int64]  # (bin,): rows
    low: Floats  # (bin,): the bin's edges
    high: Floats


def reliability(labels: Any, probs: Any, bins: int = 15, *, adaptive: bool = False) -> Reliability:
    """How often predictions of each confidence are right.

    A row's confidence is the probability of its most probable class. Bins are of equal width on
    (0, 1], closed on the right. With `adaptive` their edges are the k/bins quantiles of the
    confidences, so that they hold about as many rows each; rows of equal confidence stay together.
    """
    y, p = _classes(labels, probs)
    if int(bins) != bins or bins < 1:
        raise ValueError(f"bins must be an integer of at least 1, got {bins!r}")
    confidence = p.max(1)
    correct = p.argmax(1) == y
    if adaptive:
        # The confidence of row ⌈kn/bins⌉ in rising order, in integers: no edge is off by rounding.
        last = -(-np.arange(1, bins + 1) * y.size // bins) - 1
        edges = np.concatenate([[0.0], np.unique(np.sort(confidence)[last])])
    else:
        edges = np.linspace(0, 1, bins + 1)
    row_bin = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
    count = np.bincount(row_bin, minlength=len(edges) - 1)
    filled = count > 0
    mean, right = (
        np.bincount(row_bin, values, len(edges) - 1)[filled] / count[filled]
        for values in (confidence, correct)
    )
    return Reliability(mean, right, count[filled], edges[:-1][filled], edges[1:][filled])


def ece(labels: Any, probs: Any, bins: int = 15) -> float:
    """Expected calibration error: Σ_b (n_b/n) |accuracy_b − confidence_b|, bins of equal width.

    Of the predicted class alone (Guo et al., 2017), with 15 bins as there.
    """
    return _calibration_error(reliability(labels, probs, bins))


def adaptive_ece(labels: Any, probs: Any, bins: int = 15) -> float:
    """Expected calibration error with bins of about as many rows each (Nixon et al., 2019)."""
    return _calibration_error(reliability(labels, probs, bins, adaptive=True))


def aurc(labels: Any, probs: Any) -> float:
    """Area under the risk–coverage curve: (1/n) Σ_k (share of errors in the k most confident rows).

    The error that remains if one answers only where one is sure, averaged over how often one
    answers; 0 is best. Among rows of equal confidence every order is equally likely, and the
    errors met are their expectation: the order of the rows does not matter.
    """
    y, p = _classes(labels, probs)
    _, group, size = np.unique(-p.max(1), return_inverse=True, return_counts=True)
    wrong = np.bincount(group, p.argmax(1) != y, size.size)
    errors = np.cumsum(np.repeat(wrong / size, size))  # expected errors among the first k
    return float((errors / np.arange(1, y.size + 1)).mean())


def roc_auc(labels: Any, probs: Any) -> float:
    """P(a row of class c gets a larger p(c) than one of another class), averaged over classes.

    Ties count a half. One class against the rest, each class with the same weight; for two classes
    this is the usual area under the ROC curve. Classes without rows do not count; NaN where there
    is one class only.
    """
    y, p = _classes(labels, probs)
    areas = []
    # Of two classes the second says it all.
    for c in np.unique(y) if p.shape[1] > 2 else [1]:
        own = y == c
        if own.all() or not own.any():
            continue
        _, place, count = np.unique(p[:, c], return_inverse=True, return_counts=True)
        rank = (np.cumsum(count) - (count - 1) / 2)[place]  # from 1; the mean of those that tie
        pairs = float(own.sum()) * float((~own).sum())
        areas.append((rank[own].sum() - own.sum() * (own.sum() + 1) / 2) / pairs)
    return float(np.mean(areas)) if areas else float("nan")


def precision(labels: Any, probs: Any) -> float:
    """The share of rows taken for a class that are of it, averaged over classes."""
    return float(_by_class(labels, probs)[0].mean())


def recall(labels: Any, probs: Any) -> float:
    """The share of a class's rows that are taken for it, averaged over classes."""
    return float(_by_class(labels, probs)[1].mean())


def f1(labels: Any, probs: Any) -> float:
    """The harmonic mean of each class's precision and recall, averaged over classes."""
    return float(_by_class(labels, probs)[2].mean())


def confusion_matrix(
    labels: Any, predicted: Any, num_classes: int | None = None
) -> NDArray[np.int64]:
    """How many rows of class r were taken for class c: entry (r, c), `(class, class)`.

    Args:
        labels: the true classes, `(rows,)`.
        predicted: the predicted classes, `(rows,)`, or probabilities, `(rows, class)`.
        num_classes: C; by default the columns of the probabilities or the largest class seen + 1.
    """
    p = _array(predicted)
    if p.ndim == 2:
        num_classes = p.shape[1] if num_classes is None else num_classes
        p = p.argmax(1)
    y = _labels(labels)
    predictions = _labels(p)
    if y.shape != predictions.shape:
        raise ValueError(f"there are {y.size} labels and {predictions.size} predictions")
    largest = max(y.max(initial=0), predictions.max(initial=0))
    classes = int(largest) + 1 if num_classes is None else num_classes
    if largest >= classes:
        raise ValueError(f"classes must be in 0 … {classes - 1}, got {largest}")
    return np.bincount(y * classes + predictions, minlength=classes**2).reshape(classes, classes)


def wilson(hits: Any, rows: Any, z: float = 1.96) -> tuple[Floats, Floats]:
    """Lower and upper ends of Wilson's interval of a share, `hits` of `rows`, each `(n,)`.

    It holds the share in 95 of 100 cases for z = 1.96, also where rows are few; all of 0 … 1
    where there are none.
    """
    k, n = _floats(hits), _floats(rows)
    if (n < 0).any() or (k < 0).any() or (k > n).any():
        raise ValueError("hits must be between 0 and rows")
    n = np.maximum(n, 1e-12)
    p, weight = k / n, z**2 / n
    centre = (p + weight / 2) / (1 + weight)
    half = np.sqrt(weight * p * (1 - p) + weight**2 / 4) / (1 + weight)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


# Numbers


def rmse(y: Any, mean: Any) -> float:
    """√((1/n) Σ_i (y_i − mean_i)²); several targets count as further rows."""
    return float(np.sqrt((_errors(y, mean) ** 2).mean()))


def mae(y: Any, mean: Any) -> float:
    """(1/n) Σ_i |y_i − mean_i|."""
    return float(np.abs(_errors(y, mean)).mean())


def r2(y: Any, mean: Any) -> float:
    """1 − Σ (y − mean)² / Σ (y − ȳ)², averaged over targets; 1 is perfect, 0 is the mean of y.

    Where y is constant: 1 if every prediction is right, else 0.
    """
    values = _floats(y)
    left = (_errors(y, mean) ** 2).sum(0)
    spread = ((values - values.mean(0)) ** 2).sum(0)
    constant = spread == 0
    safe = np.where(constant, 1.0, spread)
    return float(np.where(constant, (left == 0) * 1.0, 1 - left / safe).mean())


def mixture_nll(y: Any, depth_probs: Any, means: Any, scales: Any) -> float:
    """−(1/n) Σ_i log Σ_ℓ q(ℓ) Π_t N(y_it; μ_ℓit, σ_ℓit²), in nats and in the units of y.

    Minus this is the log score of a regression.
    """
    target, log_q, mu, sigma = _mixture(y, depth_probs, means, scales)
    log_density = -0.5 * ((target - mu) / sigma).square() - sigma.log() - _LOG_SQRT_2PI
    if log_density.dim() == 3:
        log_density = log_density.sum(2)
    return float(-torch.logsumexp(log_q[:, None] + log_density, 0).mean())


def mixture_crps(y: Any, depth_probs: Any, means: Any, scales: Any) -> float:
    """Continuous ranked probability score, ∫ (F(t) − [t ≥ y])² dt, averaged; 0 is best.

    For a mixture of Gaussians in closed form (Grimit et al., 2006), with
    A(μ, σ) = E|N(μ, σ²)| = 2σ φ(μ/σ) + μ (2Φ(μ/σ) − 1):

        Σ_k q_k A(y − μ_k, σ_k) − ½ Σ_k Σ_l q_k q_l A(μ_k − μ_l, √(σ_k² + σ_l²))

    In the units of y; for a forecast without spread it is the absolute error.
    """
    target, log_q, mu, sigma = _mixture(y, depth_probs, means, scales)
    q = log_q.exp()
    total = torch.tensordot(q, _mean_absolute(target - mu, sigma), 1)
    for k in range(q.shape[0]):  # depth by depth: (depth, depth, rows) might not fit
        pairs = _mean_absolute(mu[k] - mu, torch.hypot(sigma[k].expand_as(sigma), sigma))
        total = total - 0.5 * q[k] * torch.tensordot(q, pairs, 1)
    return float(total.mean())


def mixture_cdf(y: Any, depth_probs: Any, means: Any, scales: Any) -> Floats:
    """P(Y ≤ y) of each entry of y: the shape of y.

    On held-out rows these values are uniform if the predictive is calibrated.
    """
    target, log_q, mu, sigma = _mixture(y, depth_probs, means, scales)
    values = torch.tensordot(log_q.exp(), torch.special.ndtr((target - mu) / sigma), 1)
    return np.asarray(values.numpy())


def mixture_quantile(
    levels: float | Sequence[float], depth_probs: Any, means: Any, scales: Any
) -> Floats:
    """The t with P(Y ≤ t) = level, `(level, rows)` or `(level, rows, target)`, by bisection."""
    mu, sigma = _tensor(means), _tensor(scales)
    _, log_q, mu, sigma = _mixture(np.zeros(mu.shape[1:]), depth_probs, mu, sigma)
    level = torch.as_tensor(levels, dtype=torch.float64).reshape(-1, *[1] * (mu.dim() - 1))
    if not bool(((level > 0) & (level < 1)).all()):
        raise ValueError(f"levels must be strictly between 0 and 1, got {levels}")
    q = log_q.exp()
    # The quantile of a mixture lies between the smallest and the largest of its components'.
    each = mu[:, None] + sigma[:, None] * torch.special.ndtri(level)
    low, high = each.amin(0), each.amax(0)
    for _ in range(60):
        middle = (low + high) / 2
        z = (middle - mu[:, None]) / sigma[:, None]
        below = torch.tensordot(q, torch.special.ndtr(z), 1) < level
        low, high = middle.where(below, low), high.where(below, middle)
    return np.asarray(((low + high) / 2).numpy())


def coverage(y: Any, lower: Any, upper: Any) -> float:
    """The share of targets with lower ≤ y ≤ upper."""
    target, low = _alike(y, lower, "lower")
    _, high = _alike(y, upper, "upper")
    return float(((low <= target) & (target <= high)).mean())


def mean_width(lower: Any, upper: Any) -> float:
    """The mean of upper − lower."""
    low, high = _alike(lower, upper, "upper")
    return float((high - low).mean())


class Interval(NamedTuple):
    """How central predictive intervals of one level did."""

    level: float  # the probability that they should hold
    coverage: float  # the share of targets that they held
    width: float  # their mean width, in the units of y


def mixture_intervals(
    y: Any, depth_probs: Any, means: Any, scales: Any, levels: Sequence[float] = (0.5, 0.9, 0.95)
) -> list[Interval]:
    """Coverage and mean width of the central intervals from quantile (1−p)/2 to (1+p)/2."""
    tails = [(1 + sign * level) / 2 for level in levels for sign in (-1, 1)]
    bounds = mixture_quantile(tails, depth_probs, means, scales)
    return [
        Interval(float(level), coverage(y, low, high), mean_width(low, high))
        for level, low, high in zip(levels, bounds[::2], bounds[1::2], strict=True)
    ]


# What the functions share


def _by_class(labels: Any, probs: Any) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 of each class that has rows or is predicted, `(class,)` each.

    What has nothing to be divided by is 0.
    """
    y, p = _classes(labels, probs)
    table = confusion_matrix(y, p).astype(np.float64)
    right, true, taken = table.diagonal(), table.sum(1), table.sum(0)
    there = (true + taken) > 0
    right, true, taken = right[there], true[there], taken[there]
    shares = right / np.maximum(taken, 1), right / np.maximum(true, 1)
    return *shares, 2 * right / (true + taken)


def _calibration_error(curve: Reliability) -> float:
    gaps = np.abs(curve.accuracy - curve.confidence)
    return float((gaps * curve.count).sum() / curve.count.sum())


def _mean_absolute(mean: Tensor, scale: Tensor) -> Tensor:
    """E|N(μ, σ²)|."""
    z = mean / scale
    density = torch.exp(-0.5 * z.square() - _LOG_SQRT_2PI)
    return 2 * scale * density + mean * (2 * torch.special.ndtr(z) - 1)


def _mixture(
    y: Any, depth_probs: Any, means: Any, scales: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y `(rows, …)`, log q `(depth,)`, means and scales `(depth, rows, …)`, checked."""
    target, q = _tensor(y), _tensor(depth_probs)
    mu, sigma = _tensor(means), _tensor(scales)
    if mu.dim() not in (2, 3):
        raise ValueError(
            f"means must have shape (depth, rows) or (depth, rows, target), got {tuple(mu.shape)}"
        )
    if target.shape != mu.shape[1:]:
        raise ValueError(
            f"targets have shape {tuple(target.shape)}, means {tuple(mu.shape)}: "
            "the means must have one more axis, depth, in front"
        )
    if q.shape != mu.shape[:1]:
        raise ValueError(f"means are of {mu.shape[0]} depths, depth_probs has {tuple(q.shape)}")
    if not bool((q >= 0).all()) or abs(float(q.sum()) - 1) > 1e-4:
        raise ValueError(f"depth_probs must be probabilities, got a sum of {float(q.sum())}")
    if not bool((sigma > 0).all()):
        raise ValueError("scales must be positive")
    return target, (q / q.sum()).log(), mu, sigma.expand_as(mu)


def _classes(labels: Any, probs: Any) -> tuple[NDArray[np.int64], Floats]:
    y, p = _labels(labels), _floats(probs)
    if p.ndim != 2 or p.shape[0] != y.size:
        raise ValueError(f"probs must have shape ({y.size}, class), got {p.shape}")
    if y.size == 0:
        raise ValueError("there are no rows to score")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels must be in 0 … {p.shape[1] - 1}, got {y.min()} … {y.max()}")
    if p.min() < -1e-6 or np.abs(p.sum(1) - 1).max() > 1e-3:
        raise ValueError("probs must be at least 0 and sum to 1 in every row")
    return y, p


def _labels(values: Any) -> NDArray[np.int64]:
    array = _array(values)
    if array.ndim != 1:
        raise ValueError(f"labels must have shape (rows,), got {array.shape}")
    whole = array.astype(np.int64)
    if array.dtype.kind not in "biu" and not np.array_equal(whole, array):
        raise ValueError("labels must be integers, got fractions")
    return whole


def _errors(y: Any, mean: Any) -> Floats:
    target, prediction = _alike(y, mean, "mean")
    if target.size == 0:
        raise ValueError("there are no rows to score")
    return target - prediction


def _alike(one: Any, other: Any, name: str) -> tuple[Floats, Floats]:
    """Both as floats, of one shape."""
    a, b = _floats(one), _floats(other)
    if a.shape != b.shape:
        raise ValueError(f"{name} must have shape {a.shape}, got {b.shape}")
    return a, b


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):  # pandas and polars
        values = values.to_numpy()
    return np.asarray(values)


def _floats(values: Any) -> Floats:
    return _array(values).astype(np.float64)


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(_array(values), dtype=np.float64))
