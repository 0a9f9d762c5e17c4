"""CIFAR-10: 60,000 colour photographs of 32 × 32 pixels in ten classes.

It comes from a folder with any of the forms in which the set goes round, or from a cache that is
filled by a download:

- `cifar10.npz`: `x` `(60000, 32, 32, 3)` and `y` `(60000,)`, the first 50,000 for training;
- `cifar-10-batches-py/`, the authors' pickled batches, which are read without running anything
  that a pickle may ask for;
- `cifar-10-batches-bin/`, their binary batches: for each image a byte for the class and the
  three colour planes;
- `cifar-10-python.tar.gz` or `cifar-10-binary.tar.gz`, the archives of these.

Whatever the form, pixels and labels are compared with their checksums.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.data import pickles
from unbounded.data.downloads import (
    FOLDER,
    DataError,
    cache_folder,
    fetch,
    read_arrays,
    save_arrays,
)
from unbounded.data.images import Images

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
ALIASES = {"car": "automobile", "plane": "airplane", "aeroplane": "airplane"}
"""Other words for classes; the paper says "car"."""

_FORMS = (
    "cifar10.npz",
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    "cifar-10-python.tar.gz",
    "cifar-10-binary.tar.gz",
)
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_SIDE, _PIXELS = 32, 3 * 32 * 32
_LARGEST = 1 << 28  # bytes that one batch may have

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Entry:
    """What is known of the set before it is read."""

    train: int  # how many images are for training; they come first
    test: int
    pixels: str  # SHA-256 of all pixels, (rows, height, width, channel)
    labels: str  # SHA-256 of all labels, a byte each
    url: str  # the archive of the pickled batches
    md5: str  # of that archive, as its authors publish it


ENTRY = Entry(
    50_000,
    10_000,
    "0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d",
    "3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
)
"""CIFAR-10 itself."""


class CIFAR10(NamedTuple):
    """The two parts of the set: `train, test = load()`."""

    train: Images
    test: Images


def load(
    folder: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    entry: Entry = ENTRY,
) -> CIFAR10:
    """The training and the test images.

    Args:
        folder: where the set is, in any of its forms, in the folder itself or one level below; or
            the file. By default what the environment's UNBOUNDED_DATA says. Without either, the
            cache, and if it is not there a download into it.
        cache: where the download is kept; by default UNBOUNDED_CACHE or
            ~/.cache/unbounded/cifar10.
        entry: what it must be.

    Raises:
        DataError: if the set is missing or damaged, or the download fails.
    """
    folder = folder or os.environ.get(FOLDER)
    if folder:
        return read(find(Path(folder)), entry)
    path = cache_folder(cache, "cifar10") / "cifar10.npz"
    if not path.is_file():
        download(path, entry)
    try:
        return read(path, entry)
    except DataError as error:
        raise DataError(f"{error}; delete it to have it downloaded again") from None


def find(folder: Path) -> Path:
    """The set in a folder: the first of its forms, in the folder itself or one level below."""
    if folder.is_file():
        return folder
    below = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for place in (folder, *below):
        if (place / _BATCHES[0]).is_file() or (place / f"{_BATCHES[0]}.bin").is_file():
            return place
        for name in _FORMS:
            if (place / name).exists():
                return place / name
    raise DataError(
        f"{folder} has no CIFAR-10, nor has a folder in it; --data (or {FOLDER}) must name a "
        f"folder with one of {', '.join(_FORMS)}"
    )


def read(path: Path, entry: Entry = ENTRY) -> CIFAR10:
    """The set from a file or folder in one of its forms, checked."""
    try:
        if path.is_dir():
            x, y = _together(path, _from_folder(path))
        elif path.name.endswith((".tar.gz", ".tgz", ".tar")):
            with path.open("rb") as opened:
                x, y = _together(path, _from_archive(opened))
        else:
            x, y = _from_npz(path)
    except DataError:
        raise
    except Exception as error:  # NumPy, zipfile, tarfile and pickle raise a dozen kinds
        raise DataError(f"{path} is not CIFAR-10: {error}") from None
    return _checked(str(path), x, y, entry)


def download(path: Path, entry: Entry = ENTRY) -> None:
    """Fetch the archive, check what it holds, and write it to `path` as `cifar10.npz`.

    The file appears whole or not at all; nothing is left behind by a download that fails.
    """
    content = fetch(entry.url, _INSTEAD)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != entry.md5:
        raise DataError(
            f"the MD5 of what {entry.url} sent is {found}, it should be {entry.md5}; {_INSTEAD}"
        )
    x, y = _together(entry.url, _from_archive(io.BytesIO(content)))
    del content  # 170 MB
    _checked(entry.url, x, y, entry)
    save_arrays(path, compressed=False, x=x, y=y)


_INSTEAD = f"put the set into a folder and name it by --data or {FOLDER}"


def _checked(source: str, x: Bytes, y: Bytes, entry: Entry) -> CIFAR10:
    """The two parts, once sizes and checksums are right."""
    rows = entry.train + entry.test
    if x.shape != (rows, _SIDE, _SIDE, 3) or y.shape != (rows,):
        raise DataError(
            f"{source}: there must be {rows} images {(_SIDE, _SIDE, 3)} and their labels, got "
            f"{x.shape} and {y.shape}"
        )
    for name, array, wanted in (("pixels", x, entry.pixels), ("labels", y, entry.labels)):
        found = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        if found != wanted:
            raise DataError(
                f"{source} is damaged, or not the original: the checksum of its {name} is {found}, "
                f"it should be {wanted}"
            )
    labels, parts = y.astype(np.int64), (slice(entry.train), slice(entry.train, None))
    return CIFAR10(*(Images(x[part], labels[part], CLASSES, ALIASES) for part in parts))


def _from_npz(path: Path) -> tuple[Bytes, Bytes]:
    x, y = read_arrays(path, "x", "y")
    if x.dtype != np.uint8 or y.dtype.kind not in "iu":
        raise DataError(f"{path}: x must be bytes and y whole numbers, got {x.dtype} and {y.dtype}")
    return x, _labels(str(path), y)


def _labels(source: str, y: NDArray[Any]) -> Bytes:
    if y.size and (y.min() < 0 or y.max() > 255):
        raise DataError(f"{source}: labels must be 0 to 9, got {y.min()} to {y.max()}")
    return y.astype(np.uint8)


Batch = tuple[str, Bytes, Bytes]  # name, rows of pixels, labels


def _from_folder(path: Path) -> Iterator[Batch]:
    binary = (path / f"{_BATCHES[0]}.bin").is_file()
    for name in _BATCHES:
        file = path / (f"{name}.bin" if binary else name)
        if file.is_file():  # what is missing is told at the end
            yield name, *_batch(str(file), file.read_bytes())


def _from_archive(opened: Any) -> Iterator[Batch]:
    """Batches of an archive; nothing is unpacked to the disk."""
    with tarfile.open(fileobj=opened, mode="r|*") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if not member.isfile() or name.removesuffix(".bin") not in _BATCHES:
                continue
            if member.size > _LARGEST:
                raise DataError(f"{member.name} is larger than {_LARGEST >> 20} MiB")
            content = archive.extractfile(member)
            assert content is not None  # it is a file
            yield name.removesuffix(".bin"), *_batch(name, content.read())


def _together(source: Any, batches: Iterator[Batch]) -> tuple[Bytes, Bytes]:
    """All batches in their order, pixels as `(rows, height, width, channel)`."""
    try:
        found = {name: (pixels, labels) for name, pixels, labels in batches}
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{source} is damaged: {error}") from None
    missing = [name for name in _BATCHES if name not in found]
    if missing:
        raise DataError(f"{source} has no {', '.join(missing)}")
    planes = np.concatenate([found[name][0] for name in _BATCHES])
    x = planes.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x), np.concatenate([found[name][1] for name in _BATCHES])


def _batch(name: str, content: bytes) -> tuple[Bytes, Bytes]:
    """Pixels `(rows, 3072)` and labels `(rows,)` of one file."""
    if name.endswith(".bin"):
        if len(content) % (1 + _PIXELS):
            raise DataError(
                f"{name} must have {1 + _PIXELS} bytes an image, got {len(content)} in all"
            )
        rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
        return rows[:, 1:], rows[:, 0]
    try:
        words = pickles.read(content)
        if not isinstance(words, dict):
            raise ValueError(f"a dictionary was expected, got {type(words).__name__}")
        words = {k.decode() if isinstance(k, bytes) else k: v for k, v in words.items()}
        x, y = (pickles.array(words[key]) for key in ("data", "labels"))
        if x.dtype != np.uint8 or x.shape != (len(y), _PIXELS) or y.dtype.kind not in "iu":
            raise ValueError(
                f"data must be bytes (rows, {_PIXELS}) and labels (rows,), got {x.dtype} "
                f"{x.shape} and {y.dtype} {y.shape}"
            )
        return x, _labels(name, y)
    except Exception as error:  # a broken pickle raises anything
        raise DataError(f"{name} is not a batch of CIFAR-10: {error!r}") from None
