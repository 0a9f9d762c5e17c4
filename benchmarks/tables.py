"""`python -m benchmarks.tables`: default estimators on scikit-learn's small sets, 5 folds.

Ours beside scikit-learn's neural network and gradient boosting on the same folds, all with their
default arguments. Inputs (and a regression's target) are standardised for all of them; the neural
network gets enough iterations to converge, and is shown with and without early stopping. Baselines
that predict a number and no spread are given a Gaussian around it, with the standard deviation of
their own errors in an inner 5-fold cross-validation; its time is not counted.
"""

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from unbounded import UDNClassifier, UDNRegressor, metrics

SECONDS = 60.0
"""The most that a fold of ours may take, on 2 cores."""


class Task(NamedTuple):
    name: str
    load: Callable[..., Any]
    is_classification: bool
    target: float  # accuracy at least, or RMSE at most


class Fold(NamedTuple):
    score: float  # accuracy or RMSE
    log_score: float
    calibration: float  # ECE, or the coverage of the 90% interval
    seconds: float
    depth: float  # E[ℓ], of ours


TASKS = [
    Task("breast cancer", datasets.load_breast_cancer, True, 0.97),
    Task("digits", datasets.load_digits, True, 0.975),
    Task("wine", datasets.load_wine, True, 0.97),
    Task("diabetes", datasets.load_diabetes, False, 56.0),
]


def classifiers(seed: int) -> dict[str, Any]:
    def scaled(model: Any) -> Any:
        return make_pipeline(StandardScaler(), model)

    return {
        "UDNClassifier": UDNClassifier(random_state=seed),
        "MLPClassifier": scaled(MLPClassifier(max_iter=1000, random_state=seed)),
        "MLPClassifier, early stopping": scaled(
            MLPClassifier(max_iter=1000, early_stopping=True, random_state=seed)
        ),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
        "logistic regression": scaled(LogisticRegression(max_iter=1000)),
    }


def regressors(seed: int) -> dict[str, Any]:
    def scaled(model: Any) -> Any:
        inner = make_pipeline(StandardScaler(), model)
        return TransformedTargetRegressor(inner, transformer=StandardScaler())

    return {
        "UDNRegressor": UDNRegressor(random_state=seed),
        "MLPRegressor": scaled(MLPRegressor(max_iter=1000, random_state=seed)),
        "MLPRegressor, early stopping": scaled(
            MLPRegressor(max_iter=1000, early_stopping=True, random_state=seed)
        ),
        "HistGradientBoosting": HistGradientBoostingRegressor(random_state=seed),
        "ridge regression": scaled(RidgeCV(np.logspace(-3, 3, 13))),
    }


def classify(model: Any, X: Any, y: Any, train: Any, test: Any) -> Fold:
    start = time.perf_counter()
    model.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    probs = model.predict_proba(X[test])
    return Fold(
        metrics.accuracy(y[test], probs),
        metrics.log_score(y[test], probs),
        metrics.ece(y[test], probs),
        seconds,
        getattr(model, "depth_mean_", float("nan")),
    )


def regress(model: Any, X: Any, y: Any, train: Any, test: Any) -> Fold:
    start = time.perf_counter()
    model.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    if isinstance(model, UDNRegressor):
        q = model.depth_probs_
        means, scales = model.predict_by_depth(X[test], return_std=True)
        depth = model.depth_mean_
    else:
        held_out = cross_val_predict(model, X[train], y[train], cv=KFold(5))
        q, means = np.ones(1), model.predict(X[test])[None]
        scales = np.full_like(means, metrics.rmse(y[train], held_out))
        depth = float("nan")
    return Fold(
        metrics.rmse(y[test], q @ means),
        -metrics.mixture_nll(y[test], q, means, scales),
        metrics.mixture_intervals(y[test], q, means, scales, [0.9])[0].coverage,
        seconds,
        depth,
    )


def run(task: Task, seed: int, only_ours: bool) -> list[dict[str, Any]]:
    """One row for each model, with the mean over folds and the standard deviation of the score."""
    X, y = task.load(return_X_y=True)
    kind = StratifiedKFold if task.is_classification else KFold
    folds = list(kind(5, shuffle=True, random_state=seed).split(X, y))
    models = classifiers(seed) if task.is_classification else regressors(seed)
    evaluate = classify if task.is_classification else regress
    rows = []
    for name, model in models.items():
        ours = name.startswith("UDN")
        if only_ours and not ours:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = [evaluate(model, X, y, train, test) for train, test in folds]
        mean = Fold(*(float(np.mean(column)) for column in zip(*found, strict=True)))
        slowest = max(fold.seconds for fold in found)
        reached = mean.score >= task.target if task.is_classification else mean.score <= task.target
        rows.append(
            {
                "task": task.name,
                "seed": seed,
                "model": name,
                "score_name": "accuracy" if task.is_classification else "RMSE",
                **mean._asdict(),
                "score_sd": float(np.std([fold.score for fold in found], ddof=1)),
                "slowest_fold": slowest,
                "target": task.target if ours else None,
                "holds": bool(reached and slowest <= SECONDS) if ours else None,
            }
        )
    return rows


def line(row: dict[str, Any], is_classification: bool) -> str:
    score = f"{row['score']:.4f}" if is_classification else f"{row['score']:.2f}"
    spread = f"{row['score_sd']:.4f}" if is_classification else f"{row['score_sd']:.2f}"
    depth = "" if np.isnan(row["depth"]) else f"{row['depth']:.2f}"
    verdict = ""
    if row["holds"] is not None:
        sign = "≥" if is_classification else "≤"
        verdict = f"{sign} {row['target']:g}: {'yes' if row['holds'] else 'NO'}"
    return (
        f"{row['model']:30} {score:>8} ± {spread:<7} {row['log_score']:9.4f} "
        f"{row['calibration']:7.3f} {row['seconds']:7.2f} {depth:>6}  {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=__doc__.splitlines()[0]
    )
    names = [task.name for task in TASKS]
    parser.add_argument("only", nargs="*", metavar="SET", help=f"some of {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=0, help="of the folds and the models")
    parser.add_argument("--ours", action="store_true", help="leave the baselines out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f"no such set: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    print(
        f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads, seed {options.seed}",
        file=sys.stderr,
    )
    every = []
    for task in TASKS:
        if options.only and task.name not in options.only:
            continue
        rows = run(task, options.seed, options.ours)
        every += rows
        if not options.json:
            score = "accuracy" if task.is_classification else "RMSE"
            calibration = "ECE" if task.is_classification else "in 90%"
            print(
                f"\n{task.name:30} {score:>8}   {'sd':7} {'log score':>9} {calibration:>7} "
                f"{'s/fold':>7} {'E[ℓ]':>6}  target"
            )
            for row in rows:
                print(line(row, task.is_classification), flush=True)
    if options.json:
        print(json.dumps(every, indent=1))
    return 0 if all(row["holds"] for row in every if row["holds"] is not None) else 1


if __name__ == "__main__":
    sys.exit(main())
