"""Fetching files and keeping them, for the data sets that are not made but read.

A file is fetched and kept whole or not at all. The caller compares what came with a checksum
before keeping it.
"""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.atomic import replacing

FOLDER = "UNBOUNDED_DATA"  # environment: a folder with the files
CACHE = "UNBOUNDED_CACHE"  # environment: where downloads are kept
_TIMEOUT = 60.0  # seconds without a byte
_LARGEST = 1 << 28  # bytes that one file may have


class DataError(OSError):
    """A data set that cannot be downloaded, or is not what it should be."""


def fetch(url: str, instead: str) -> bytes:
    """All bytes of a file; a connection that ends too early is an error.

    Args:
        url: of the file.
        instead: what a user can do without the download, for the end of an error.

    Raises:
        DataError: if the file cannot be downloaded, is cut short, or is absurdly large.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            content: bytes = answer.read(_LARGEST + 1)
            announced = answer.headers.get("Content-Length")
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(f"{url} cannot be downloaded ({error}); {instead}") from None
    if len(content) > _LARGEST:
        raise DataError(f"{url} is larger than {_LARGEST >> 20} MiB; {instead}")
    if announced is not None and len(content) != int(announced):
        raise DataError(
            f"{url} ended after {len(content)} of {announced} bytes; try again, or {instead}"
        )
    return content


def read_arrays(path: Path, *keys: str) -> list[NDArray[Any]]:
    """Arrays of an .npz file, in which no pickle is believed."""
    # Opened here: of a damaged file NumPy forgets to close its own.
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return [file[key] for key in keys]


def save_arrays(path: Path, *, compressed: bool, **arrays: Any) -> None:
    """Write arrays to an .npz file, atomically, and its folder if that is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save = np.savez_compressed if compressed else np.savez
    with replacing(path) as temporary, open(temporary, "wb") as file:
        save(file, **arrays)


def cache_folder(chosen: str | Path | None, name: str) -> Path:
    """Where downloads are kept: as chosen, else UNBOUNDED_CACHE, else ~/.cache/unbounded/NAME."""
    chosen = chosen or os.environ.get(CACHE)
    return Path(chosen) if chosen else Path.home() / ".cache" / "unbounded" / name
