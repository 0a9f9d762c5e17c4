"""Model files and checkpoints that somebody changed: refused in one line, or the same numbers."""

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import unbounded as ub
from benchmarks.attack import checkpoints, fixtures
from benchmarks.attack.hostile import run_command
from benchmarks.attack.mutations import mutate_file
from unbounded import estimators
from unbounded.files import FileError
from unbounded.tables import TableModel
from unbounded.tables.pages import model_page


class Subject(NamedTuple):
    """A file, and what is done with it: numbers or texts that a changed file must not change."""

    name: str
    data: bytes
    use: Callable[[Path], list[Any]]
    expected: list[Any]


class DamagedFiles:
    """Changed model files, through the library and through the command line."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.table = folder / "rows.csv"
        fixtures.frame().drop(columns="y").head(4).to_csv(self.table, index=False)
        self.subjects = [self._subject(*one) for one in self._made()]
        self.found: Counter[str] = Counter()
        """How many were refused and how many loaded, in this process."""

    def _made(self) -> list[tuple[str, Any, Callable[[Path], list[Any]]]]:
        likelihood, depth = ub.Categorical(2), ub.TruncatedPoisson(1.5)
        dense = ub.UDN(ub.Dense(3, 6, 2), likelihood, depth, seed=1)
        images = ub.UDN(ub.ResidualConv(3, 2, width=4, stages=(1, 1)), likelihood, depth, seed=1)
        of_table = [(kind, fixtures.table_model(kind)) for kind in ("number", "classes")]
        return [
            ("a model", dense, use_model),
            ("a model of images", images, use_model),
            ("a regressor", fixtures.estimator("number", 2), use_estimator),
            ("a classifier", fixtures.estimator("classes"), use_estimator),
            *((f"a table of {kind}", model, use_table) for kind, model in of_table),
            *((f"a command on {kind}", model, self._command) for kind, model in of_table),
        ]

    def _subject(self, name: str, model: Any, use: Callable[[Path], list[Any]]) -> Subject:
        path = self.folder / "whole.udn"
        ub.save(model, path) if isinstance(model, ub.UDN) else model.save(path)
        return Subject(name, path.read_bytes(), use, use(path))

    def _command(self, path: Path) -> list[Any]:
        """What `unbounded predict` prints; a FileError where one line says why it does not."""
        status, words = run_command(["predict", str(path), str(self.table), "--device", "cpu"])
        begin = "unbounded: error: "
        if status == 2 and words.startswith(begin) and "unexpected" not in words:
            raise FileError(words.removeprefix(begin))
        if status:
            raise RuntimeError(f"exit {status}: {words}")
        return [np.array(words)]

    def case(self, number: int) -> str:
        """One change of one file."""
        rng = random.Random(f"{self.seed} {number}")
        subject = self.subjects[number % len(self.subjects)]
        change = mutate_file(subject.data, rng)
        path = self.folder / f"changed-{number}.udn"
        path.write_bytes(change.data)
        what = f"{subject.name}, {change.what}"
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # numbers that overflow: the attacker's own
                found = subject.use(path)
        except FileError as error:
            self.found["refused"] += 1
            if not str(error).startswith(str(path)) or "\n" in str(error).strip():
                return f"raw: {what}: no single line that names the file: {error}"
            return ""
        except Exception as error:
            return f"raw {type(error).__name__}: {what}: {str(error)[:200]}"
        finally:
            path.unlink()
        self.found["loaded"] += 1
        # Whoever computes the digest anew has written another model, which may be read.
        same = _same(found, subject.expected)
        return "" if same or change.resealed else f"other numbers: {what}"


def use_model(path: Path) -> list[Any]:
    """Load a plain model and predict."""
    model = ub.load(path)
    x = torch.from_numpy(fixtures.points()[0][:4])
    if isinstance(model.layers, ub.ResidualConv):
        x = x[..., None, None].expand(-1, -1, 8, 8)
    prediction = model.predict(x)
    return [prediction.outputs.numpy(), prediction.depth_log_probs.numpy()]


def use_estimator(path: Path) -> list[Any]:
    """Load an estimator and predict in every way."""
    estimator, x = estimators.load(path, device="cpu"), fixtures.points()[0][:4]
    if isinstance(estimator, ub.UDNClassifier):
        return [estimator.predict(x), estimator.predict_proba(x), estimator.predict_by_depth(x)]
    mean, std = estimator.predict(x, return_std=True)
    return [mean, std, estimator.predict_quantiles(x, [0.1, 0.9])]


def use_table(path: Path) -> list[Any]:
    """Load a model of a table, predict, and make its page."""
    model = TableModel.load(path, "cpu")
    frame = model.predict(fixtures.frame().head(4), parts=True)
    model_page(model)
    model.describe()
    return [np.array(list(frame)), *(frame[name].to_numpy() for name in frame)]


def _same(one: list[Any], other: list[Any]) -> bool:
    """Whether numbers and texts agree bit for bit."""
    return len(one) == len(other) and all(map(np.array_equal, one, other))


class DamagedCheckpoints:
    """Changed checkpoints, resumed by runs of every kind."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.names = list(checkpoints.RUNS)
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        for name in self.names:
            checkpoints.write(name, folder / name)

    def case(self, number: int) -> str:
        """One change of one checkpoint."""
        rng = random.Random(f"{self.seed} {number}")
        name = self.names[number % len(self.names)]
        place = self.folder / f"changed-{number}"
        place.mkdir()
        what = checkpoints.mutate(self.folder / name, place / "run", rng)
        try:
            checkpoints.attempt(name, place / "run")
        except Exception as error:
            return f"raw {type(error).__name__}: {name}, {what}: {str(error)[:200]}"
        finally:
            shutil.rmtree(place)
        return ""
