"""Two models that anybody would try first, on the same split and the same encoding."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.predictions import ByDepth
from unbounded.tables.scores import REFERENCES, ScoreCollector

MAX_ROWS = 200_000
"""With more training rows than this, the references learn from that many of them."""


def compare(
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    is_classes: bool,
    num_classes: int,
    seed: int,
    own: ScoreCollector | None = None,
) -> dict[str, dict[str, float]]:
    """The scores of logistic or ridge regression and of HistGradientBoosting, all by default.

    For numbers both predict a Gaussian around their mean whose spread is that of their errors on
    a fifth of the training rows that they were kept from. Rows are encoded, with their classes
    (numbers from 0) or numbers.

    With `own`, our model's predictions of the same test rows, each also has "lead", by how much
    ours is better in the main score (negative where it is worse), and its standard error over
    the rows, "lead_error".
    """
    x, y = train
    if len(y) > MAX_ROWS:
        rows = np.random.default_rng(seed).permutation(len(y))[:MAX_ROWS]
        x, y = x[rows], y[rows]
    scores = {}
    for name in REFERENCES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence and of tiny classes
            model = _model(name, is_classes, seed)
            found = (
                _classes(model, x, y, test[0], num_classes)
                if is_classes
                else _numbers(model, x, y, test[0], seed)
            )
        collector = ScoreCollector(is_classes)
        collector.add(test[1], found)
        scores[name] = collector.scores()
        if own is not None:
            scores[name]["lead"], scores[name]["lead_error"] = own.lead_over(collector)
    return scores


def _model(name: str, is_classes: bool, seed: int) -> Any:
    from sklearn import ensemble, linear_model

    if name == "linear":
        return (
            linear_model.LogisticRegression(max_iter=1000) if is_classes else linear_model.Ridge()
        )
    kind = "Classifier" if is_classes else "Regressor"
    return getattr(ensemble, f"HistGradientBoosting{kind}")(random_state=seed)


def _classes(model: Any, x: Any, y: Any, x_test: Any, num_classes: int) -> ByDepth:
    model.fit(x, y.astype(np.int64))
    probs = np.zeros((1, len(x_test), num_classes))
    probs[0][:, model.classes_] = model.predict_proba(x_test)
    return ByDepth(np.ones(1), probs, None)


def _numbers(model: Any, x: Any, y: Any, x_test: Any, seed: int) -> ByDepth:
    rows = np.random.default_rng(seed).permutation(len(y))
    kept, rest = rows[: max(1, len(y) // 5)], rows[max(1, len(y) // 5) :]
    center, scale = float(np.mean(y)), float(np.std(y)) or 1.0
    y = (y - center) / scale
    errors = y[kept] - model.fit(x[rest], y[rest]).predict(x[kept])
    spread = max(float(np.sqrt(np.mean(errors**2))), 1e-6) * scale
    mean = model.fit(x, y).predict(x_test) * scale + center
    return ByDepth(np.ones(1), mean[None], np.full((1, len(mean)), spread))
