"""Model files and checkpoints that somebody changed: refused in one line, or the same numbers."""

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import unbounded as ub
from benchmarks.attack import checkpoints, fixtures
from benchmarks.attack.hostile import run_command
from benchmarks.attack.mutations import mutate_file
from unbounded.files import FileError
from unbounded.tables import TableModel


class Subject(NamedTuple):
    """A file, and what is done with it: numbers or texts that a changed file must not change."""

    name: str
    data: bytes
    use: Callable[[Path], Any]
    expected: Any


class DamagedFiles:
    """Changed model files, through the library and through the command line."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.table = folder / "rows.csv"
        fixtures.frame().drop(columns="y").head(4).to_csv(self.table, index=False)
        self.subjects = [self._subject(*one) for one in self._made()]

    def _made(self) -> list[tuple[str, Any, Callable[[Path], Any]]]:
        model = ub.UDN(ub.Dense(3, 6, 2), ub.Categorical(2), ub.TruncatedPoisson(1.5), seed=1)
        x = torch.from_numpy(fixtures.points()[0][:4])
        made: list[tuple[str, Any, Callable[[Path], Any]]] = [
            ("a model", model, lambda path: ub.predict(ub.load(path), x).log_probs.numpy()),
        ]
        for kind, members in (("number", 2), ("classes", 1)):
            cls = ub.UDNRegressor if kind == "number" else ub.UDNClassifier
            method = "predict" if kind == "number" else "predict_proba"

            def predicted(path: Path, cls: Any = cls, method: str = method) -> Any:
                estimator = cls.load(path, device="cpu")
                found = getattr(estimator, method)(fixtures.points()[0][:4])
                return np.append(found, getattr(estimator, "classes_", []))

            made.append((f"an estimator of a {kind}", fixtures.estimator(kind, members), predicted))
        for kind in ("number", "classes"):
            rows = fixtures.frame(kind).head(4)

            def columns(path: Path, rows: Any = rows) -> Any:
                return TableModel.load(path, "cpu").predict(rows).to_csv()

            made.append((f"a table of {kind}", fixtures.table_model(kind), columns))
            made.append((f"a command on {kind}", fixtures.table_model(kind), self._commanded))
        return made

    def _subject(self, name: str, model: Any, use: Callable[[Path], Any]) -> Subject:
        path = self.folder / "whole.udn"
        ub.save(model, path) if isinstance(model, ub.UDN) else model.save(path)
        return Subject(name, path.read_bytes(), use, use(path))

    def _commanded(self, path: Path) -> Any:
        """The words of `unbounded predict`; a FileError where it ends with one line and status 2."""
        status, words = run_command(["predict", str(path), str(self.table), "--device", "cpu"])
        if status == 2 and words.startswith("unbounded: error: ") and "unexpected" not in words:
            raise FileError(f"{path} {words}")
        if status:
            raise RuntimeError(f"exit {status}: {words}")
        return words

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
                warnings.simplefilter("ignore")
                found = subject.use(path)
        except FileError as error:
            if not str(error).startswith(str(path)) or "\n" in str(error).strip():
                return f"raw: {what}: no single line that names the file: {error}"
            return ""
        except BaseException as error:
            return f"raw {type(error).__name__}: {what}: {str(error)[:200]}"
        finally:
            path.unlink()
        same = np.array_equal(found, subject.expected)
        # Whoever computes the digest anew has written another model, which may be read.
        return "" if same or change.resealed else f"other numbers: {what}"


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
