"""What every study writes down: where it ran, with what, and its numbers as JSON."""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbounded import atomic


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


def check_folder(folder: Path) -> None:
    """Make the folder of a study; an OSError before the work if nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.check_target(folder / "table.md")


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
