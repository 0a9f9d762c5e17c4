"""`python -m benchmarks.tables`: default estimators beside those that people choose today.

Every model has its defaults, one thread, and the same rows. CatBoost and RealMLP-TD are the extra
`unbounded[rivals]`; where they are not installed they are left out, and it is said. Sets: nine of
UCI (with --data or $UNBOUNDED_DATA), scikit-learn's, and some that are made. The defaults were
developed on these sets, by validation rows. Scores are RMSE or log loss of test rows, and CPU
seconds of a fit. Results go to OUT/runs.json as they come; a second run goes on from there.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from unbounded import UDNClassifier, UDNRegressor, __version__, metrics
from unbounded.atomic import write_text
from unbounded.data import uci
from unbounded.data.downloads import DataError

MOST_ROWS = 6000
"""Training rows of a set; others are left out, the same for all models."""

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


class Task(NamedTuple):
    """A set: split ↦ training rows and targets, test rows and targets."""

    name: str
    is_classes: bool
    rows: Callable[[int], Arrays]


def _uci(name: str, data: Path | None) -> Callable[[int], Arrays]:
    def rows(split: int) -> Arrays:
        found = uci.load(name, data)
        test = found.masks()[split]
        train = np.flatnonzero(~test)
        train = np.sort(np.random.default_rng(split).permutation(train)[:MOST_ROWS])
        return found.x[train], found.y[train], found.x[test], found.y[test]

    return rows


def _bundled(loader: Callable[..., Any]) -> Callable[[int], Arrays]:
    def rows(split: int) -> Arrays:
        x, y = loader(return_X_y=True)
        stratify = y if y.dtype.kind == "i" else None
        parts = train_test_split(x, y, test_size=0.2, random_state=split, stratify=stratify)
        return parts[0], parts[2], parts[1], parts[3]

    return rows


def _made(make: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]) -> Callable[[int], Arrays]:
    def rows(split: int) -> Arrays:
        x, y = make(split)
        count = len(x) * 7 // 8
        return x[:count], y[:count], x[count:], y[count:]

    return rows


def _friedman(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = datasets.make_friedman1(4000, 8, random_state=seed)
    return x, y


def _arm(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """How far the hand of a robot is, from four angles and lengths."""
    x = np.random.default_rng(seed).random((4000, 8))
    angles, lengths = np.cumsum(2 * np.pi * x[:, :4], 1), x[:, 4:]
    y = np.hypot((lengths * np.cos(angles)).sum(1), (lengths * np.sin(angles)).sum(1))
    return x, y


def _clusters(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    options = {"n_informative": 8, "n_redundant": 4, "n_classes": 3, "n_clusters_per_class": 3}
    x, y = datasets.make_classification(
        4000, 20, class_sep=0.9, flip_y=0.05, random_state=seed, **options
    )
    return x, y


def _shells(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = datasets.make_gaussian_quantiles(
        n_samples=3000, n_features=8, n_classes=3, random_state=seed
    )
    return x, y


def tasks(data: Path | None) -> list[Task]:
    """All sets."""
    bundled = {"breast-cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}
    bundled |= {"wine": datasets.load_wine, "iris": datasets.load_iris}
    return [
        *(Task(f"uci-{name}", False, _uci(name, data)) for name in uci.names()),
        Task("diabetes", False, _bundled(datasets.load_diabetes)),
        Task("friedman", False, _made(_friedman)),
        Task("robot-arm", False, _made(_arm)),
        *(Task(name, True, _bundled(loader)) for name, loader in bundled.items()),
        Task("moons", True, _made(lambda s: datasets.make_moons(3000, noise=0.25, random_state=s))),
        Task("clusters", True, _made(_clusters)),
        Task("shells", True, _made(_shells)),
    ]


def models(is_classes: bool, seed: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and makers of all models; a maker raises ImportError where its package is missing."""

    def catboost() -> Any:
        from catboost import CatBoostClassifier, CatBoostRegressor

        kind = CatBoostClassifier if is_classes else CatBoostRegressor
        return kind(thread_count=1, verbose=0, random_seed=seed, allow_writing_files=False)

    def realmlp() -> Any:
        from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

        kind = RealMLP_TD_Classifier if is_classes else RealMLP_TD_Regressor
        return kind(n_threads=1, device="cpu", random_state=seed, verbosity=0)

    def linear() -> Any:
        model = LogisticRegression(max_iter=1000) if is_classes else RidgeCV(np.logspace(-3, 3, 13))
        return make_pipeline(StandardScaler(), model)

    def boosting() -> Any:
        kind = HistGradientBoostingClassifier if is_classes else HistGradientBoostingRegressor
        return kind(random_state=seed)

    ours: Any = UDNClassifier if is_classes else UDNRegressor
    yield "UDN", lambda: ours(random_state=seed, device="cpu")
    yield "UDN, best", lambda: ours(random_state=seed, device="cpu", quality="best")
    yield "UDN, paper", lambda: ours(random_state=seed, device="cpu", preset="paper")
    yield "RealMLP-TD", realmlp
    yield "CatBoost", catboost
    yield "boosting", boosting
    yield "linear", linear


def run(task: Task, split: int, name: str, make: Callable[[], Any]) -> dict[str, Any]:
    """One fit and its scores."""
    x, y, test_x, test_y = task.rows(split)
    x, test_x = (part.astype(np.float32) for part in (x, test_x))
    model = make()
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    row: dict[str, Any] = {
        "set": task.name,
        "split": split,
        "model": name,
        "rows": len(x),
        "columns": x.shape[1],
        "cpu_seconds": round(time.process_time() - start, 2),
    }
    if task.is_classes:
        probs = np.asarray(model.predict_proba(test_x), np.float64)
        probs = np.clip(probs, 1e-15, None)
        probs /= probs.sum(1, keepdims=True)
        row["log_loss"] = -metrics.log_score(test_y, probs)
        row["accuracy"] = metrics.accuracy(test_y, probs)
    else:
        row["rmse"] = metrics.rmse(test_y, np.asarray(model.predict(test_x)).ravel())
    if name.startswith("UDN"):
        row["depth_mean"] = round(model.depth_mean_, 3)
        row["best_epoch"], row["epochs"] = model.best_epoch_, model.n_iter_
        if not task.is_classes:
            low, high = model.predict_quantiles(test_x, [0.05, 0.95])
            row["in_90"] = float(np.mean((test_y >= low) & (test_y <= high)))
            if model.conformal_scores_ is not None and len(model.conformal_scores_) > 9:
                low, high = model.predict_interval(test_x, 0.9)
                row["in_90_conformal"] = float(np.mean((test_y >= low) & (test_y <= high)))
    return {key: round(v, 8) if isinstance(v, float) else v for key, v in row.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Mean scores of each set and model, and how models compare over all sets."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    parts = []
    for is_classes, score in ((False, "rmse"), (True, "log_loss")):
        some = [row for row in rows if (score in row)]
        sets = list(dict.fromkeys(row["set"] for row in some))
        if not sets:
            continue

        def mean(which: str, model: str, of: str, some: Any = some) -> float:
            found = [r[of] for r in some if r["set"] == which and r["model"] == model and of in r]
            return float(np.mean(found)) if found else math.nan

        heading = "Test log loss" if is_classes else "Test RMSE"
        lines = [f"{heading}, mean over splits", "", f"| set | rows | {' | '.join(names)} | E[ℓ] |"]
        lines.append("|---" * (len(names) + 3) + "|")
        for which in sets:
            values = [mean(which, name, score) for name in names]
            best = np.nanmin(values)
            cells = ["–" if math.isnan(v) else f"{v:.4g}" for v in values]
            cells = [f"**{c}**" if v == best else c for c, v in zip(cells, values, strict=True)]
            count = round(mean(which, names[0], "rows"))
            depth = mean(which, names[0], "depth_mean")
            lines.append(f"| {which} | {count:,} | {' | '.join(cells)} | {depth:.1f} |")
        lines.append(_summary("UDN ÷ model, geometric mean", sets, names, mean, score))
        lines.append(_summary("CPU seconds of a fit, mean", sets, names, mean, "cpu_seconds"))
        if is_classes:
            lines.append(_summary("accuracy, mean", sets, names, mean, "accuracy"))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _summary(what: str, sets: list[str], names: list[str], mean: Any, of: str) -> str:
    cells = []
    for name in names:
        both = [(mean(s, names[0], of), mean(s, name, of)) for s in sets]
        both = [pair for pair in both if not any(math.isnan(v) for v in pair)]
        if "geometric" in what:
            ratios = [math.log(max(ours, 1e-4) / max(theirs, 1e-4)) for ours, theirs in both]
            cells.append(f"{math.exp(np.mean(ratios)):.3f}" if ratios else "–")
        else:
            cells.append(f"{np.mean([theirs for _, theirs in both]):.4g}" if both else "–")
    return f"| {what} | | {' | '.join(cells)} | |"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--sets", nargs="+", metavar="NAME", help="some of the sets; all by default")
    add("--models", nargs="+", metavar="NAME", help="some of the models; all by default")
    add("--splits", type=int, default=3, help="splits of each set (default: 3)")
    add("--data", type=Path, help="folder with the UCI sets; else $UNBOUNDED_DATA")
    add("--out", type=Path, default=Path("results/tables"), help="where results go")
    add("--minutes", type=float, default=math.inf, help="begin no fit after so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.out / "runs.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    done = {(row["set"], row["split"], row["model"]) for row in rows}
    missing: dict[str, str] = {}
    start = time.monotonic()
    for split in range(options.splits):
        for task in tasks(options.data):
            if options.sets and task.name not in options.sets:
                continue
            for name, make in models(task.is_classes, split):
                key = (task.name, split, name)
                wanted = not options.models or name in options.models
                if key in done or name in missing or task.name in missing or not wanted:
                    continue
                if time.monotonic() - start > 60 * options.minutes:
                    continue
                try:
                    rows.append(run(task, split, name, make))
                except ImportError as error:
                    missing[name] = f"{error}; pip install 'unbounded[rivals]'"
                    continue
                except DataError as error:
                    missing[task.name] = str(error)
                    continue
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                options.out.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps({"versions": versions(), "runs": rows}, indent=1))
    for name, reason in missing.items():
        print(f"{name}: left out, {reason}", file=sys.stderr)
    if not rows:
        print("nothing was run", file=sys.stderr)
        return 1
    text = table(rows)
    write_text(options.out / "table.md", text + "\n")
    print(text)
    return 0


def versions() -> dict[str, Any]:
    """Of what the numbers depend on."""
    found: dict[str, Any] = {"unbounded": __version__, "python": platform.python_version()}
    found |= {"torch": torch.__version__, "scikit-learn": sklearn.__version__}
    for name in ("catboost", "pytabkit"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found | {"cpu_cores": os.cpu_count(), "threads": 1}


if __name__ == "__main__":
    sys.exit(main())
