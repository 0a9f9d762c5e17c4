"""What every study writes down: where it ran, with what, and its numbers as JSON."""

import json
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbounded import atomic
from unbounded.experiments import StudyError

NOTE = "settings.json"
"""In the folder of a study's unfinished work: what its numbers depend on."""


def versions(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Versions and machine, without names of people or places."""
    import sklearn

    import unbounded

    device = torch.device(device)
    on_gpu = device.type == "cuda"
    return {
        "unbounded": unbounded.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "cpu_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
    } | ({"cuda": torch.version.cuda} if on_gpu else {})


def check_folder(folder: Path, *names: str) -> None:
    """Make the folder of a study and see, before the work, that results can be written there.

    Args:
        folder: where.
        names: of the JSON files that the study writes.

    Raises:
        OSError: if nothing can be written there.
        StudyError: if a file of one of these names, or a table.md, is none of a study's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = atomic.check_target(folder / "table.md")
    foreign = [path for path in map(folder.joinpath, names) if path.exists() and not _is_ours(path)]
    if page.exists() and not any(map(_is_ours, folder.glob("*.json"))):
        foreign.append(page)
    if foreign:
        raise StudyError(f"{foreign[0]} is no file of a study's: name another folder with --out")


def open_parts(
    parts: Path,
    described: dict[str, Any],
    names: Sequence[str],
    resume: bool,
    what: str = "study",
) -> None:
    """A clean folder for unfinished work, or the one that an interrupted run of a study left.

    Args:
        parts: the folder, within that of the study.
        described: what the numbers depend on; an interrupted run must agree on it.
        names: of the JSON files that the study writes.
        resume: whether to go on from an interrupted run.
        what: that run was, in words.

    Raises:
        OSError: if nothing can be written there.
        StudyError: if the interrupted run was another one, or a folder is none of a study's.
    """
    described, note = plain(described), parts / NOTE
    if resume and note.exists():
        before = read_json(note)
        differing = [k for k in described if before.get(k) != described[k]]
        if differing:
            raise StudyError(
                f"cannot resume: {', '.join(differing)} of the interrupted {what} differ "
                f"({before.get(differing[0])}, now {described[differing[0]]})"
            )
        return
    check_folder(parts.parent, *names)
    if parts.exists():
        if not note.exists():
            raise StudyError(f"{parts} is no folder of a study's: name another one with --out")
        shutil.rmtree(parts)
    parts.mkdir(parents=True)
    write_json(note, described)


def _is_ours(path: Path) -> bool:
    """Whether a file holds the numbers of a study."""
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "study" in found


def write_text(path: Path, text: str) -> None:
    """Write a file, atomically, and its folder if that is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, text)


def write_json(path: Path, value: Any) -> None:
    """Write plain data, one run or figure a line so that changes can be read."""
    write_text(path, _lines(value) + "\n")


def read_json(path: Path) -> Any:
    """Read plain data."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_study(folder: Path, study: str, called: str) -> list[dict[str, Any]]:
    """The JSON files of a folder that are of this study, by their names.

    Raises:
        StudyError: if there is none.
    """
    found = [read_json(path) for path in sorted(folder.glob("*.json"))]
    found = [one for one in found if isinstance(one, dict) and one.get("study") == study]
    if not found:
        raise StudyError(f"{folder} has no results of the {called}: no NAME.json in it")
    return found


@contextmanager
def resumable(*places: Path) -> Iterator[None]:
    """Ctrl-C says where that which is done is, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        where = " and ".join(map(str, places))
        kept = f"what is done so far is in {where}; go on with --resume"
        raise KeyboardInterrupt(kept) from None


def plain(value: Any) -> Any:
    """As it will be when it is read back: tuples become lists."""
    return json.loads(json.dumps(value))


def _lines(value: Any) -> str:
    """JSON with the entries of lists at the second level on a line each."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    parts = []
    for key, entry in value.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], dict):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in entry)
            text = f"[\n{rows}\n ]"
        else:
            text = json.dumps(entry, ensure_ascii=False)
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"
