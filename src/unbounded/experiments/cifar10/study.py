"""The runs of a study and the folder that they live in: what is there, what is to be trained.

FOLDER/runs/NAME.json         the result of a finished run
FOLDER/runs/NAME.checkpoint   an unfinished run
FOLDER/models/NAME.udn        the model of a finished run, where models are kept
FOLDER/logs/NAME.log          the output of a run, where several ran at once
FOLDER/quick.json             only in the folder of a quick look
FOLDER/table.md, *.svg        made from the runs, see `table` and `figures`
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.experiments import StudyError, records
from unbounded.experiments.cifar10.presets import EARLIER
from unbounded.experiments.cifar10.recipe import CifarRun, Recipe, ignored, ignored_by
from unbounded.printing import show

if TYPE_CHECKING:
    from unbounded.data.images import Images

QUICK_IMAGES = {"train": 500, "test": 200}
MARK = "quick.json"
OUT_OF_TIME = "{}: out of time, its checkpoint is kept"


@dataclass(frozen=True)
class Study:
    """Runs of one recipe in one folder."""

    folder: Path
    runs: Sequence[CifarRun]  # all that are asked for, whether they are there or not
    recipe: Recipe
    quick: bool = False  # few images; a folder is for quick looks or for the study, not for both

    def result(self, run: CifarRun) -> Path:
        """The file with the result of a finished run."""
        return self.folder / "runs" / f"{run.name}.json"

    def checkpoint(self, run: CifarRun) -> Path:
        """The file from which an unfinished run goes on."""
        return self.folder / "runs" / f"{run.name}.checkpoint"

    def missing(self) -> list[CifarRun]:
        """The runs that are not finished."""
        return [run for run in self.runs if not self.result(run).is_file()]

    def progress(self) -> str:
        """How many runs are finished, in words."""
        done = len(self.runs) - len(self.missing())
        return f"{done} of {len(self.runs)} runs are in {self.folder}"

    def prepare(self, *, resume: bool = False, again: bool = False) -> list[CifarRun]:
        """Make the folder ready; returns the runs that are to be trained.

        A folder holds the runs of one recipe, so that its tables compare like with like.

        Runs that are there already must be told what becomes of them: `resume` keeps them and goes
        on with those on their way, `again` forgets those that are asked for.
        """
        folder, mark, note = self.folder / "runs", self.folder / MARK, self.folder / "recipe.json"
        begun = [r for r in self.runs if self.result(r).is_file() or self.checkpoint(r).exists()]
        forgotten = {path for r in begun for path in (self.result(r), self.checkpoint(r))}
        there = {*folder.glob("*.json"), *folder.glob("*.checkpoint")}
        kept = sorted(there - forgotten if again else there)
        if mark.is_file() != self.quick and (kept or mark.is_file()):
            kind = "a quick look" if mark.is_file() else "the study"
            raise StudyError(f"{self.folder} has runs of {kind}; name another folder with --out")
        for path in kept:
            if path.suffix == ".json":
                result = records.read_json(path)
                self._compare(path, result["recipe"], ignored_by(result["run"]))
            elif note.is_file():
                unseen = ignored("udn", some="-all-" not in path.stem)  # as `CifarRun.name` says
                self._compare(path, records.read_json(note), unseen)
        if begun and not resume and not again:
            raise StudyError(
                f"{self.folder} has {len(begun)} of the {len(self.runs)} runs already, such as "
                f"{begun[0].name}: --resume keeps them and goes on, --again trains them anew"
            )
        for path in forgotten if again else ():
            path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        records.write_json(note, self.recipe.config())
        if self.quick:
            records.write_json(mark, {**QUICK_IMAGES, "epochs": self.recipe.epochs})
        return self.missing()

    def _compare(self, path: Path, before: dict[str, Any], unseen: frozenset[str]) -> None:
        now = records.plain(self.recipe.config())
        # A field that did not exist then was as it is by default now.
        before = {**records.plain(Recipe().config()), **EARLIER, **before}
        keys = [key for key in {**before, **now} if key not in unseen]
        differing = [key for key in keys if before.get(key) != now.get(key)]
        if differing:
            each = ", ".join(f"{k} was {before.get(k)!r}, now {now.get(k)!r}" for k in differing)
            raise StudyError(f"{path} has another recipe: {each}; name another folder with --out")

    def train(
        self,
        runs: Iterable[CifarRun],
        *,
        device: str,
        data: Path | None,
        resume: bool,
        minutes: float | None = None,
        progress: bool | None = None,
        keep: bool = False,
    ) -> None:
        """Train runs one after the other in this process, all within so many `minutes`.

        With `keep` the trained models are written, too.
        """
        from unbounded.data import cifar10
        from unbounded.experiments.cifar10 import runs as training

        end = None if minutes is None else time.monotonic() + 60 * minutes
        images = cifar10.load(data)
        if self.quick:
            images = cifar10.CIFAR10(*quick_images(images))
        for run in runs:
            left = None if end is None else (end - time.monotonic()) / 60
            if left is not None and left <= 0:
                return
            found = training.train(
                run,
                self.recipe,
                images,
                device=device,
                folder=self.folder / "runs",
                resume=resume,
                progress=progress,
                minutes=left,
                keep=self.folder / "models" if keep else None,
            )
            if found is None:
                show(OUT_OF_TIME.format(run.name))
                return
            show(result_line(run, found))


def quick_images(images: "tuple[Images, Images]") -> "list[Images]":
    """The training and test images of a quick look."""
    parts = zip(images, QUICK_IMAGES.values(), strict=True)
    return [first_of_each_class(*part) for part in parts]


def first_of_each_class(images: "Images", count: int) -> "Images":
    """About `count` of the images, the first ones of each class, in their order."""
    each = -(-count // len(images.classes))
    rows = [np.flatnonzero(images.y == label)[:each] for label in range(len(images.classes))]
    return images.take(np.sort(np.concatenate(rows)))


def result_line(run: CifarRun, result: dict[str, Any]) -> str:
    """The result of a finished run, in one line."""
    if "test_accuracy" in result:
        accuracy = f"{result['test_accuracy']:.2%}"
    else:  # a trial
        accuracy = f"{result['validation_accuracy']:.2%} of validation images"
    return (
        f"{run.name}: {accuracy}, E[ℓ] {result['depth_mean']:.2f}, "
        f"{result['seconds'] / 60:.1f} minutes"
    )
