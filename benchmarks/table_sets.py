"""The sets of `python -m benchmarks.tables`: where their rows come from, and how they are split."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split

from unbounded.data import uci

MOST_ROWS = 6000
"""Training rows of a set unless --rows says otherwise; the same for all models."""
_RARE = 6  # rows: classes with fewer are left out of a table

Split = tuple[Any, NDArray[Any], Any, NDArray[Any]]
Made = tuple[NDArray[Any], NDArray[Any]]


class Task(NamedTuple):
    """A set: split ↦ training rows and targets, test rows and targets.

    Rows are an array of numbers, or a frame where columns are of several kinds.
    """

    name: str
    is_classes: bool
    rows: Callable[[int], Split]


def tasks(data: Path | None, tables: Path | None = None, most: int = MOST_ROWS) -> list[Task]:
    """All sets: UCI's, scikit-learn's, some that are made, and the tables of a folder.

    Args:
        data: folder with the UCI sets.
        tables: folder with NAME.csv files, the target in the last column. Texts are classes.
        most: training rows of a set.
    """
    bundled = {"breast-cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}
    bundled |= {"wine": datasets.load_wine, "iris": datasets.load_iris}
    found = [
        *(Task(f"uci-{name}", False, _uci(name, data, most)) for name in uci.names()),
        Task("diabetes", False, _bundled(datasets.load_diabetes)),
        Task("friedman", False, _made(_friedman)),
        Task("robot-arm", False, _made(_arm)),
        *(Task(name, True, _bundled(loader)) for name, loader in bundled.items()),
        Task("moons", True, _made(lambda s: datasets.make_moons(3000, noise=0.25, random_state=s))),
        Task("clusters", True, _made(_clusters)),
        Task("shells", True, _made(_shells)),
    ]
    if tables is not None:
        found += [_table(path, most) for path in sorted(tables.glob("*.csv"))]
    return found


def _uci(name: str, data: Path | None, most: int) -> Callable[[int], Split]:
    def rows(split: int) -> Split:
        found = uci.load(name, data)
        test = found.masks()[split]
        train = np.flatnonzero(~test)
        train = np.sort(np.random.default_rng(split).permutation(train)[:most])
        x = found.x.astype(np.float32)
        return x[train], found.y[train], x[test], found.y[test]

    return rows


def _bundled(loader: Callable[..., Any]) -> Callable[[int], Split]:
    def rows(split: int) -> Split:
        x, y = loader(return_X_y=True)
        stratify = y if y.dtype.kind == "i" else None
        parts = train_test_split(
            x.astype(np.float32), y, test_size=0.2, random_state=split, stratify=stratify
        )
        return parts[0], parts[2], parts[1], parts[3]

    return rows


def _table(path: Path, most: int) -> Task:
    """A file of a folder: a quarter of its rows is for testing."""
    import pandas as pd

    first = pd.read_csv(path)
    target = first.columns[-1]
    is_classes = first[target].dtype.kind not in "fiu"

    def rows(split: int) -> Split:
        frame = pd.read_csv(path)
        frame = frame[frame[target].notna()]
        if is_classes:
            frame = frame[frame[target].map(frame[target].value_counts()) >= _RARE]
        y = frame.pop(target).to_numpy()
        x, test_x, y, test_y = train_test_split(
            frame, y, test_size=0.25, random_state=split, stratify=y if is_classes else None
        )
        return x.iloc[:most], y[:most], test_x, test_y

    return Task(path.stem, is_classes, rows)


def _made(make: Callable[[int], Made]) -> Callable[[int], Split]:
    def rows(split: int) -> Split:
        x, y = make(split)
        count = len(x) * 7 // 8
        x = x.astype(np.float32)
        return x[:count], y[:count], x[count:], y[count:]

    return rows


def _friedman(seed: int) -> Made:
    x, y = datasets.make_friedman1(4000, 8, random_state=seed)
    return x, y


def _arm(seed: int) -> Made:
    """How far the hand of a robot is, from four angles and lengths."""
    x = np.random.default_rng(seed).random((4000, 8))
    angles, lengths = np.cumsum(2 * np.pi * x[:, :4], 1), x[:, 4:]
    y = np.hypot((lengths * np.cos(angles)).sum(1), (lengths * np.sin(angles)).sum(1))
    return x, y


def _clusters(seed: int) -> Made:
    options = {"n_informative": 8, "n_redundant": 4, "n_classes": 3, "n_clusters_per_class": 3}
    x, y = datasets.make_classification(
        4000, 20, class_sep=0.9, flip_y=0.05, random_state=seed, **options
    )
    return x, y


def _shells(seed: int) -> Made:
    x, y = datasets.make_gaussian_quantiles(
        n_samples=3000, n_features=8, n_classes=3, random_state=seed
    )
    return x, y
