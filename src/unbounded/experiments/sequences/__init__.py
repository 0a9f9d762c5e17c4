"""Sequences: does a transformer that infers its depth end at the depth that a task needs?

k-hop induction, whose needed depth is known; word problems of three groups over lengths; and
characters of a text that you give (--data FILE, or UNBOUNDED_DATA). On each, networks of fixed
depths say what every depth is worth, by the same recipe, and what a search over them would cost.

Writes NAME.json of each network, and all of it as table.md and figures.
"""

import argparse
import dataclasses
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from unbounded import interrupts
from unbounded.data.downloads import FOLDER, DataError
from unbounded.data.sequences import Text
from unbounded.devices import one_thread
from unbounded.experiments import StudyError, records, shares, usable_device
from unbounded.experiments.sequences import recipe, runs
from unbounded.experiments.sequences.recipe import Settings, settings_of
from unbounded.printing import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    add, usual = parser.add_argument, Settings()
    many: dict[str, Any] = {"nargs": "+", "metavar": "N"}
    add("--tasks", nargs="+", metavar="NAME", help="hops, words, text (default: all)")
    add("--hops", help="k of the induction tasks (default: 1 2 4 8 16)", **many)
    add("--groups", nargs="+", metavar="NAME", help="S3, A5, Z60 (default: all)")
    add("--lengths", help="of word problems (default: 8 16)", **many)
    add("--depths", help="the fixed ones, as 1-4 or 1 2 4 (default: 1-8)", **many)
    add("--text-depths", help="those of text (default: 1-8)", **many)
    add("--seeds", help="of data and weights (default: 0-1)", **many)
    add("--width", type=int, help=f"of hidden states (default: {usual.width})")
    add("--heads", type=int, help=f"of attention (default: {usual.heads})")
    add("--rows", type=int, help=f"sequences of a batch (default: {usual.rows})")
    add("--hop-length", type=int, help=f"letters of a sequence (default: {usual.hop_length})")
    add("--letters", type=int, help=f"how many there are (default: {usual.letters})")
    add("--lr", type=float, help=f"the highest learning rate (default: {usual.lr:g})")
    add("--steps", type=int, help=f"of training on hops (default: {usual.steps})")
    add("--word-steps", type=int, help=f"on word problems (default: {usual.word_steps})")
    add("--text-steps", type=int, help=f"of training on text (default: {usual.text_steps})")
    add("--looks", type=int, help=f"how often depth may move (default: {usual.looks})")
    add("--most", type=int, help=f"tokens that a look counts, at most (default: {usual.most})")
    add("--text-most", type=int, help=f"the same of text (default: {usual.text_most})")
    place, spread = usual.text_reference
    start = f"place and spread that depth starts from on text (default: {place:g} {spread:g})"
    add("--text-reference", type=float, nargs=2, metavar=("PLACE", "SPREAD"), help=start)
    narrow = f"smallest spread of the depth on text (default: {usual.text_narrowest:g})"
    add("--text-narrowest", type=float, metavar="SPREAD", help=narrow)
    dropped = (
        f"share of channels that training on text leaves out (default: {usual.text_dropout:g})"
    )
    add("--text-dropout", type=float, metavar="SHARE", help=dropped)
    cut = (
        f"a text is cut into so many; each one's end is held out (default: {usual.text_stretches})"
    )
    add("--text-stretches", type=int, metavar="N", help=cut)
    add("--equal", help="fixed depths at equal parameters (default: 2 3 4 8 12)", **many)
    blocks = f"these are those of so many usual blocks (default: {usual.equal_to})"
    add("--equal-to", type=int, help=blocks)
    add("--data", type=Path, help=f"a text file for the task text; else ${FOLDER}/text.txt")
    add("--device", default=None, help="cpu or cuda; cuda if there is one")
    add("--bf16", action="store_true", help="run the layers in bfloat16")
    add("--minutes", type=float, help="begin no network after so many; --resume goes on")
    add("--quick", action="store_true", help="small networks, short training: three minutes")
    add("--keep", action="store_true", help="keep the trained UDNs, in the folder's models/")
    add("--resume", action="store_true", help="go on where this was interrupted")
    add("--out", type=Path, default=Path("results/sequences"), help="folder to write")


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train, score, write results, table and figures; returns the rows of the networks."""
    settings = settings_of(options)
    if options.minutes is not None and not options.minutes > 0:
        raise StudyError(f"--minutes must be positive, got {options.minutes:g}")
    processes = shares.processes()
    text = _text(options, settings, show if processes.is_first else lambda words: None)
    if text is None and "text" in settings.tasks:
        settings = dataclasses.replace(
            settings, tasks=tuple(task for task in settings.tasks if task != "text")
        )
    device = usable_device(options.device)
    planned = recipe.plan(settings)
    if not planned:
        raise StudyError("there is nothing to do: the task text needs --data FILE")
    parts, names = options.out / "parts", [f"{run.name}.json" for run in planned]
    described = runs.described(settings, recipe.digest(text), options.bf16)

    def opened() -> None:
        looks_back = options.resume and not (parts / records.NOTE).exists()
        records.open_parts(parts, described, names, options.resume)
        if looks_back:
            _kept(planned, described, options.out, parts)

    shares.planned(opened)
    if options.quick and processes.is_first:
        show("quick: small networks, short training: how it goes, not how good it is")
    place = runs.Place(
        device,
        parts,
        text,
        options.resume,
        torch.bfloat16 if options.bf16 else None,
        options.out / "models" if options.keep else None,
    )
    threads = one_thread() if options.quick else nullcontext()
    with records.resumable(options.out, parts), threads:
        return _run(planned, settings, described, place, options)


def _kept(planned: list[recipe.Run], described: dict[str, Any], folder: Path, parts: Path) -> None:
    """Take for done what is in the folder and was made by these settings; say what was not."""
    kept, others = 0, dict[str, list[str]]()
    for run in planned:
        path = folder / f"{run.name}.json"
        if not path.exists():
            continue
        differing = runs.differing(records.read_json(path), run, described)
        if differing:
            others[path.name] = differing
        else:
            kept += 1
            records.write_text(parts / f"{run.name}.done", "")
    show(f"{kept} of {len(planned)} networks are there already")
    if others:
        names = ", ".join(sorted({name for found in others.values() for name in found}))
        show(f"of other settings ({names}), to be trained again: {', '.join(others)}")


def _run(
    planned: list[recipe.Run],
    settings: Settings,
    described: dict[str, Any],
    place: runs.Place,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    start = time.perf_counter()
    until = math.inf if options.minutes is None else start + 60 * options.minutes

    def done(one: recipe.Run) -> Path | None:
        """The file of a run that is finished, now or in the run that is resumed."""
        path = options.out / f"{one.name}.json"
        return path if (place.parts / f"{one.name}.done").exists() and path.exists() else None

    with shares.divided(shares.planned(lambda: [r for r in planned if not done(r)])) as mine:
        for one in mine:
            if time.perf_counter() > until:
                break
            row = runs.train(one, settings, place)
            with interrupts.shielded():
                document = runs.document(row, described, place)
                records.write_json(options.out / f"{one.name}.json", document)
                records.write_text(place.parts / f"{one.name}.done", "")
    with shares.concluded() as is_mine:
        if not is_mine:
            return []
        files = [path for path in map(done, planned) if path is not None]
        rows = [records.read_json(path)["run"] for path in files]
        if len(rows) < len(planned):
            show(f"--minutes {options.minutes:g} are over; go on with --resume")
            return rows
        return _written(rows, place, options, time.perf_counter() - start)


def _written(
    rows: list[dict[str, Any]], place: runs.Place, options: argparse.Namespace, seconds: float
) -> list[dict[str, Any]]:
    from unbounded.experiments.sequences import table  # a command of its own, with `python -m`

    with interrupts.shielded():
        shutil.rmtree(place.parts)
        show(table.write(options.out))
    show(f"{seconds:.0f} s in all; wrote table.md and figures into {options.out}")
    return rows


def _text(
    options: argparse.Namespace, settings: Settings, say: Callable[[str], None]
) -> Text | None:
    """The text, if one is asked for and there; says why not."""
    if "text" not in settings.tasks:
        return None
    path = recipe.text_file(options.data, os.environ.get(FOLDER))
    if path is None:
        say(f"text: skipped, no text file is given (--data FILE, or ${FOLDER})")
        return None
    try:
        text = Text.read(path)
    except DataError as error:
        raise StudyError(f"--data: {error}") from None
    # Too short a text is to be found out before anything is trained.
    recipe.text_parts(text, 1.0, settings.text_length, settings.text_stretches)
    return text
