"""Fetching files and keeping them, for the data sets that are not made but read.

A file is fetched whole or not at all, and written by way of a temporary one: what fails leaves
nothing behind. Whoever fetches compares what came with a checksum before keeping it.
"""

import http.client
import io
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

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


def write(path: Path, fill: Callable[[io.BufferedWriter], None]) -> None:
    """Write a file by way of a temporary one beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def cache_folder(chosen: str | Path | None, name: str) -> Path:
    """Where downloads are kept: as chosen, else UNBOUNDED_CACHE, else ~/.cache/unbounded/NAME."""
    chosen = chosen or os.environ.get(CACHE)
    return Path(chosen) if chosen else Path.home() / ".cache" / "unbounded" / name
