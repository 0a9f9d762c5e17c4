"""Two models that anybody would try first, on the same split and the same encoding."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded import metrics
from unbounded.cli.scores import LEVELS, class_scores

NAMES = {"linear": "a linear model", "boosting": "gradient boosting"}
MAX_ROWS = 200_000
"""With more training rows than this, the references learn from that many of them."""


def compare(
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    is_classes: bool,
    num_classes: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """The scores of logistic or ridge regression and of HistGradientBoosting, all by default.

    For numbers both predict a Gaussian around their mean whose spread is that of their errors on
    a fifth of the training rows that they were kept from.

    Args:
        train: encoded rows and their classes (numbers from 0) or numbers.
        test: the same, to be scored on.
        is_classes: the task.
        num_classes: how many classes there are.
        seed: of the boosting and of that fifth.
    """
    x, y = train
    if len(y) > MAX_ROWS:
        rows = np.random.default_rng(seed).permutation(len(y))[:MAX_ROWS]
        x, y = x[rows], y[rows]
    scores = {}
    for name in NAMES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence and of tiny classes
            if is_classes:
                scores[name] = _classes(_classifier(name, seed), x, y, *test, num_classes)
            else:
                scores[name] = _numbers(name, x, y, *test, seed)
    return scores


def _classifier(name: str, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    if name == "linear":
        return LogisticRegression(max_iter=1000)
    return HistGradientBoostingClassifier(random_state=seed)


def _regressor(name: str, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    return Ridge() if name == "linear" else HistGradientBoostingRegressor(random_state=seed)


def _classes(
    model: Any, x: Any, y: Any, x_test: Any, y_test: Any, num_classes: int
) -> dict[str, float]:
    model.fit(x, y.astype(np.int64))
    probs = np.zeros((len(y_test), num_classes))
    probs[:, model.classes_] = model.predict_proba(x_test)
    return class_scores(y_test, probs)


def _numbers(name: str, x: Any, y: Any, x_test: Any, y_test: Any, seed: int) -> dict[str, float]:
    rows = np.random.default_rng(seed).permutation(len(y))
    kept, rest = rows[: max(1, len(y) // 5)], rows[max(1, len(y) // 5) :]
    center, scale = float(np.mean(y)), float(np.std(y)) or 1.0
    y = (y - center) / scale
    errors = y[kept] - _regressor(name, seed).fit(x[rest], y[rest]).predict(x[kept])
    spread = max(float(np.sqrt(np.mean(errors**2))), 1e-6) * scale
    mean = _regressor(name, seed).fit(x, y).predict(x_test) * scale + center
    gaussian = (np.ones(1), mean[None], np.full((1, len(y_test)), spread))
    inside = np.abs(metrics.mixture_cdf(y_test, *gaussian) - 0.5)
    return {
        "rmse": metrics.rmse(y_test, mean),
        "mae": metrics.mae(y_test, mean),
        "r2": metrics.r2(y_test, mean),
        "nll": metrics.mixture_nll(y_test, *gaussian),
        "crps": metrics.mixture_crps(y_test, *gaussian),
        **{f"coverage_{round(100 * p)}": float((inside <= p / 2).mean()) for p in LEVELS},
    }
