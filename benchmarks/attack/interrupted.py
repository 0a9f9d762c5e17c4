"""Ctrl-C and SIGTERM at random moments of training: the best model and a checkpoint are kept."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attack import fixtures, killed, pool
from unbounded.tables import TableModel
from unbounded.training.trainer import Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def command(folder: Path, resume: bool) -> int:
    """`unbounded fit`, with its model and its page."""
    from unbounded.cli import main

    table = folder / "table.csv"
    fixtures.frame("number", 400).to_csv(table, index=False)
    size = ["--epochs", "40", "--patience", "40", "--width", "8", "--no-references"]
    status = main(["fit", str(table), "--target", "y", "--out", str(folder / "m.udn"), *size])
    _done()
    return status


def library(folder: Path, resume: bool) -> int:
    """`unbounded.fit` with a checkpoint."""
    found = killed.one(folder, resume)
    _done()
    (folder / "digest").write_text(killed.digest(found))
    return 0


def study(folder: Path, resume: bool) -> int:
    """`unbounded reproduce`, which writes what it has and goes on with --resume."""
    from unbounded.cli import main

    status = main(killed.study_command(folder, resume))
    _done()
    if status == 0:
        (folder / "digest").write_text(killed.digest(killed.study_results(folder)))
    return status


JOBS: list[Callable[[Path, bool], int]] = [command, library, study]


class Interrupted:
    """Runs that get a signal after their first epoch."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.seconds, self.expected = [], []
        for job in JOBS:
            place = folder / f"calm-{job.__name__}"
            place.mkdir()
            process = self._begin(job, place, False)
            begun = time.monotonic()
            process.join()
            self.seconds.append(time.monotonic() - begun)
            digest = place / "digest"
            self.expected.append(digest.read_text() if digest.exists() else "")

    def _begin(self, job: Callable[[Path, bool], int], place: Path, resume: bool) -> Any:
        process = pool.start(_work, job, place, resume)
        while process.exitcode is None and not (place / "begun").exists():
            time.sleep(0.005)
        return process

    def case(self, number: int) -> str:
        """One run, one signal."""
        which = number % len(JOBS)
        random = np.random.default_rng([self.seed, number])
        sent = SIGNALS[int(random.integers(2))]
        place = self.folder / f"interrupted-{number}"
        place.mkdir()
        process = self._begin(JOBS[which], place, False)
        time.sleep(float(random.uniform(0, 0.8 * self.seconds[which])))
        if process.exitcode is None:
            os.kill(process.pid, sent)
        process.join()
        name = f"{JOBS[which].__name__}, {sent.name}"
        words = (place / "words").read_text(encoding="utf-8", errors="replace")
        if process.exitcode not in (0, 130, 143):
            return f"{name}: exit {process.exitcode}: {words[-200:]}"
        if "Traceback" in words or "unexpected" in words:
            return f"{name}: {words[-300:]}"
        left = [p.name for p in place.rglob(".*")]
        if left:
            return f"{name}: left {left}"
        fault = _kept_model(place) if which == 0 else self._resumed(which, place)
        return f"{name}: {fault}" if fault else ""

    def _resumed(self, which: int, place: Path) -> str:
        process = self._begin(JOBS[which], place, True)
        process.join()
        if process.exitcode != 0:
            return f"resuming ended with exit {process.exitcode}"
        same = (place / "digest").read_text() == self.expected[which]
        return "" if same else "resumed, it ends otherwise"


def _kept_model(place: Path) -> str:
    if not (place / "m.udn").exists():
        return "no model was kept"
    model = TableModel.load(place / "m.udn", "cpu")
    finite = np.isfinite(model.predict(fixtures.frame()).to_numpy()).all()
    return "" if finite else "the model predicts no numbers"


def _work(job: Callable[[Path, bool], int], folder: Path, resume: bool) -> int:
    """The job, with a mark when the first epoch is done and its words in a file."""
    plain = Trainer._epoch

    def marked(self: Trainer, *arguments: Any) -> bool:
        whole = plain(self, *arguments)
        (folder / "begun").touch()
        return whole

    Trainer._epoch = marked  # type: ignore[method-assign]
    with open(folder / "words", "a") as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
    # A child of a fork that ignores Ctrl-C (as those of a shell in the background) would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return job(folder, resume)


def _done() -> None:
    """Signals that come now come after the end."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
