"""Folders as model hubs have them: a card for people, a configuration, the weights.

`model.safetensors` is a whole model file of this library, with its header and digest. `config.json`
is that header once more, for people and hubs to read; a folder whose two descriptions differ is
refused.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded import atomic, files
from unbounded.files import Contents, FileError
from unbounded.likelihoods import MultiLabel
from unbounded.model import UDN
from unbounded.printing import one_line
from unbounded.tables.text import count_of

if TYPE_CHECKING:
    from unbounded.tables import TableModel

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
_LARGEST = 1 << 25  # bytes of a configuration
_SHOWN = 50  # names of columns


def save_folder(model: Any, folder: str | Path, *, card: str | None = None) -> None:
    """Write a model as a folder: README.md, config.json and model.safetensors.

    Each file is written atomically, the weights first; other files of the folder stay.

    Args:
        model: a `TableModel`, a fitted estimator or a `UDN`.
        folder: made if it is not there; its parent must be.
        card: the text of README.md; by default what the model itself tells.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"cannot write {folder}: it is a file, a folder was expected")
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot write {folder}: the folder {folder.parent} does not exist")
    folder.mkdir(exist_ok=True)
    if isinstance(model, UDN):
        files.save(model, folder / WEIGHTS)
    elif hasattr(model, "save"):
        model.save(folder / WEIGHTS)
    else:
        raise TypeError(
            f"a TableModel, an estimator or a UDN was expected, got {type(model).__name__}"
        )
    header = files.read(folder / WEIGHTS).header
    atomic.write_text(folder / CONFIG, json.dumps(header, indent=1, ensure_ascii=False) + "\n")
    atomic.write_text(folder / CARD, model_card(model) if card is None else card)


def load_folder(folder: str | Path, *, device: Any = "cpu", **parts: Any) -> Any:
    """Read what `save_folder` wrote: a `TableModel`, an estimator or a `UDN`, as it was.

    No pickle is read and no code is run that a file could choose: it is checked as a model file is.

    Args:
        folder: with config.json and model.safetensors.
        device: where the model goes.
        parts: of your own, as in `unbounded.load`; not for a `TableModel`.

    Raises:
        FileError: if a file is damaged or foreign, or if the two do not belong together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder} is no folder: unbounded.load reads a single file")
    contents = files.read(folder / WEIGHTS)
    _check_config(folder / CONFIG, contents)
    if "table" in contents.extra:
        from unbounded.tables import TableModel

        return TableModel.load(contents, device)
    from unbounded.estimators import files as estimator_files

    if estimator_files.holds_estimator(contents):
        return estimator_files.load(contents, device=device, **parts)
    return files.load(contents, device=device, **parts)


def _check_config(path: Path, contents: Contents) -> None:
    """A FileError if a configuration is not that of the weights."""
    if not path.is_file():
        raise FileError(f"{path.parent} has no {CONFIG}")
    if path.stat().st_size > _LARGEST:
        raise FileError(f"{path} is larger than {_LARGEST:,} bytes")
    text = path.read_bytes().decode("utf-8", "replace")
    # The digest is that of the weights' file, which has been compared already.
    config = files.parse_header(path, {"unbounded": text, "digest": ""})
    for name in sorted({*config, *contents.header}):
        if _plain(config.get(name)) != _plain(contents.header.get(name)):
            raise FileError(f"{path} does not belong to {WEIGHTS}: they differ in {name[:60]!r}")


def _plain(value: Any) -> str:
    """A text that tells values apart; one NaN is like another."""
    return json.dumps(value, sort_keys=True)


def model_card(model: Any) -> str:
    """What README.md says of a model, in Markdown with the head that hubs read."""
    from unbounded import __version__
    from unbounded.tables import TableModel

    network = model if isinstance(model, UDN) else getattr(model, "estimator", model).model_
    tags = ["unbounded", "depth-inference"]
    head = ["library_name: unbounded", f"tags: [{', '.join(tags)}]"]
    is_table = isinstance(model, TableModel)
    if not isinstance(model, UDN):
        is_classes = model.target.is_classes if is_table else hasattr(model, "classes_")
        head.append(f"pipeline_tag: tabular-{'classification' if is_classes else 'regression'}")
    lines = ["---", *head, "---", "", "# A network of unbounded depth", ""]
    if not isinstance(model, UDN):
        lines.append(_about_table(model) if is_table else _about_estimator(model))
    first, last = network.support()
    mass = network.depth_log_probs().detach().double().exp().numpy(force=True)
    mass = mass / mass.sum()
    mean = float(mass @ np.arange(first, last + 1))
    size = sum(p.numel() for p in network.parameters())
    lines += [
        f"Its depth was inferred: E[ℓ] = {mean:.2f}, at most {last}; {size:,} parameters.",
        "",
        "| depth | q(ℓ) |",
        "|---|---|",
        *(f"| {depth} | {q:.3f} |" for depth, q in enumerate(mass, first)),
        "",
    ]
    lines += _scores(model) if isinstance(model, TableModel) else []
    lines += ["```python", "import unbounded as ub", "", 'model = ub.load_folder("this folder")']
    lines += ["```", "", f"Written by unbounded {__version__}. Weights are safetensors, no pickle."]
    return "\n".join(lines) + "\n"


def _about_table(model: "TableModel") -> str:
    target = model.target
    what = f"one of {len(target.classes)} classes" if target.is_classes else "a number"
    names = _listed([column.name for column in model.encoding.used])
    rows = model.info.get("rows", 0)
    return f"Predicts `{_cell(target.name)}` ({what}) from {names}; learnt from {rows:,} rows.\n"


def _about_estimator(model: Any) -> str:
    """What a fitted estimator predicts, and from which columns."""
    names = getattr(model, "feature_names_in_", ())
    columns = _listed(names) if len(names) else count_of(model.n_features_in_, "column")
    what = "a number"
    if hasattr(model, "classes_"):
        labels = isinstance(model.model_.likelihood, MultiLabel)
        what = (
            f"{len(model.classes_)} labels" if labels else f"one of {len(model.classes_)} classes"
        )
    return f"A `{type(model).__name__}`: predicts {what} from {columns}.\n"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(_cell(f"`{name}`") for name in names[:_SHOWN]) + more


def _scores(model: "TableModel") -> list[str]:
    """The scores on held-out rows, if there are any."""
    found = model.info.get("held_out", {}).get("scores")
    if not found:
        return []
    rows = model.info.get("held_out_rows", 0)
    head = [f"On {rows:,} held-out rows:", "", "| score | value |", "|---|---|"]
    return [*head, *(f"| {name} | {value:.4g} |" for name, value in found.items()), ""]


def _cell(text: str) -> str:
    """A name that breaks no table and no line."""
    return one_line(text).replace("|", "\\|")
