"""The models of `python -m benchmarks.tables`, each with its defaults and one thread."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from unbounded import UDNClassifier, UDNRegressor
from unbounded.depth import FixedDepth

FIXED = range(1, 7)
"""Depths of the networks that have one depth, by the UDN's own recipe."""

Fit = Callable[[Any, Any], Any]  # (rows, targets) ↦ a fitted model, for rows as the task has them


def models(is_classes: bool, seed: int) -> Iterator[tuple[str, Fit]]:
    """Names, and what fits them; it raises ImportError where a package is missing."""
    ours: Any = UDNClassifier if is_classes else UDNRegressor

    def udn(**options: Any) -> Fit:
        return lambda x, y: ours(random_state=seed, device="cpu", **options).fit(x, y)

    yield "UDN", udn()
    yield "UDN, best", udn(quality="best")
    yield "UDN, paper", udn(preset="paper")
    yield "RealMLP-TD", lambda x, y: _realmlp(is_classes, seed, x, y)
    yield "CatBoost", lambda x, y: _catboost(is_classes, seed, x, y)
    yield "boosting", lambda x, y: _boosting(is_classes, seed, x, y)
    yield "linear", lambda x, y: _linear(is_classes, x, y)
    for depth in FIXED:
        yield f"depth {depth}", udn(depth=FixedDepth(depth))


class _Prepared:
    """A fitted model with what is done to frames before it sees them."""

    def __init__(self, model: Any, prepare: Callable[[Any], Any]):
        self.model, self.prepare = model, prepare

    def predict(self, x: Any) -> Any:
        return self.model.predict(self.prepare(x))

    def predict_proba(self, x: Any) -> Any:
        return self.model.predict_proba(self.prepare(x))

    @property
    def classes_(self) -> Any:
        return self.model.classes_


def _texts(x: Any) -> list[str]:
    """The columns of a frame that are no numbers; none of an array."""
    return [] if isinstance(x, np.ndarray) else [c for c in x if x[c].dtype.kind not in "fiu"]


def _with_texts(x: Any, texts: list[str], medians: Any = None) -> Any:
    """A frame without gaps in its texts and, where medians are given, in its numbers."""
    if isinstance(x, np.ndarray):
        return x
    x = x.copy()
    for column in texts:
        x[column] = x[column].astype(object).where(x[column].notna(), "missing").astype(str)
    if medians is not None:
        for column, median in medians.items():
            x[column] = x[column].astype(float).fillna(median)
    return x


def _catboost(is_classes: bool, seed: int, x: Any, y: Any) -> Any:
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostClassifier if is_classes else CatBoostRegressor
    texts = _texts(x)
    model = kind(thread_count=1, verbose=0, random_seed=seed, allow_writing_files=False)
    model.set_params(cat_features=texts or None)

    def prepare(x: Any) -> Any:
        return _with_texts(x, texts)

    return _Prepared(model.fit(prepare(x), y), prepare)


def _realmlp(is_classes: bool, seed: int, x: Any, y: Any) -> Any:
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

    kind = RealMLP_TD_Classifier if is_classes else RealMLP_TD_Regressor
    model = kind(n_threads=1, device="cpu", random_state=seed, verbosity=0)
    texts = _texts(x)
    if isinstance(x, np.ndarray):
        return model.fit(x, y)
    medians = x[[c for c in x if c not in texts]].astype(float).median()  # it takes no gaps

    def prepare(x: Any) -> Any:
        return _with_texts(x, texts, medians)

    return _Prepared(model.fit(prepare(x), y, cat_col_names=texts), prepare)


def _boosting(is_classes: bool, seed: int, x: Any, y: Any) -> Any:
    kind = HistGradientBoostingClassifier if is_classes else HistGradientBoostingRegressor
    texts = _texts(x)
    if not texts:
        return kind(random_state=seed).fit(x, y)
    model = kind(random_state=seed, categorical_features="from_dtype")
    levels = {c: sorted(x[c].dropna().astype(str).unique())[:250] for c in texts}

    def prepare(x: Any) -> Any:
        import pandas as pd

        x = x.copy()
        for column, known in levels.items():
            there = x[column].astype(object).where(x[column].notna(), None)
            x[column] = pd.Categorical(there.map(lambda v: v if v is None else str(v)), known)
        return x

    return _Prepared(model.fit(prepare(x), y), prepare)


def _linear(is_classes: bool, x: Any, y: Any) -> Any:
    model = LogisticRegression(max_iter=2000) if is_classes else RidgeCV(np.logspace(-3, 3, 13))
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = _texts(x)
    if not texts:
        return make_pipeline(numbers, model).fit(x, y)
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), texts), remainder=numbers
    )
    return make_pipeline(columns, model).fit(x, y)
