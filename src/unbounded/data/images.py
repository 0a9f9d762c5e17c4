"""Labelled images: what every image set is once it is read, and ways to make one.

Pixels are bytes, `(rows, height, width, channel)`, as files hold them; scaling, layout and
precision are the business of whoever trains on them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

_CHANNELS = (1, 3)  # grey and colour: what a channel axis is recognised by
_ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
)


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their classes, checked."""

    x: Pixels  # (rows, height, width, channel), bytes
    y: Labels  # (rows,), from 0: places in `classes`
    classes: tuple[str, ...]  # the names of the classes, each once
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Other words for classes, word → name; `only` understands them."""

    def __post_init__(self) -> None:
        for name, array, dtype in (("x", self.x, np.uint8), ("y", self.y, np.int64)):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                seen = getattr(array, "dtype", type(array).__name__)
                raise ValueError(
                    f"{name} must be a NumPy array of {np.dtype(dtype)}, got {seen}; from_arrays "
                    "converts"
                )
        if self.x.ndim != 4 or not self.x.size:
            raise ValueError(
                f"x must be (rows, height, width, channel), none of them 0, got {self.x.shape}"
            )
        if self.y.shape != self.x.shape[:1]:
            raise ValueError(f"y must be ({len(self.x)},) as x has rows, got {self.y.shape}")
        if not isinstance(self.classes, tuple) or not all(isinstance(c, str) for c in self.classes):
            raise ValueError(f"classes must be a tuple of names, got {self.classes!r}")
        twice = [name for name in self.classes if self.classes.count(name) > 1]
        if twice:
            raise ValueError(f"the class {twice[0]!r} is named twice")
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(
                f"labels must be 0 to {len(self.classes) - 1}, places among the "
                f"{len(self.classes)} classes, got {low} to {high}"
            )
        for word, name in self.aliases.items():
            if word in self.classes or name not in self.classes:
                raise ValueError(f"the alias {word!r} → {name!r} does not lead to a class")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        height, width, channels = self.x.shape[1:]
        return (
            f"Images({len(self)} of {height} × {width} × {channels}, "
            f"{len(self.classes)} classes: {_few(self.classes)})"
        )

    def counts(self) -> dict[str, int]:
        """How many images each class has."""
        numbers = np.bincount(self.y, minlength=len(self.classes))
        return {name: int(number) for name, number in zip(self.classes, numbers, strict=True)}

    def only(self, *names: str) -> "Images":
        """The images of these classes, labelled 0, 1, … in the order of the names.

        The images keep their order.

        Raises:
            ValueError: if a name is not known, or is there twice, or no image has one of them.
        """
        if not names:
            raise ValueError(f"name the classes to keep; there are: {', '.join(self.classes)}")
        kept = tuple(self.aliases.get(name, name) for name in names)
        for word, name in zip(names, kept, strict=True):
            if name not in self.classes:
                raise ValueError(
                    f"there is no class {word!r}; there are: {', '.join(self.classes)}"
                )
            if kept.count(name) > 1:
                raise ValueError(f"the class {name!r} is named twice")
        new = np.full(len(self.classes), -1, dtype=np.int64)
        new[[self.classes.index(name) for name in kept]] = np.arange(len(kept))
        y = new[self.y]
        rows = np.flatnonzero(y >= 0)
        if not len(rows):
            raise ValueError(f"no image is of {' or '.join(kept)}")
        aliases = {word: name for word, name in self.aliases.items() if name in kept}
        return Images(self.x[rows], y[rows], kept, aliases)

    def take(self, rows: ArrayLike) -> "Images":
        """The images at these rows, in this order; or where a mask `(rows,)` is true.

        Raises:
            ValueError: if the rows are neither, or there are none.
        """
        chosen = np.asarray(rows)
        if chosen.dtype == bool:
            if chosen.shape != self.y.shape:
                raise ValueError(f"a mask must be ({len(self)},), got {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
            raise ValueError(
                "rows must be a list of whole numbers or a mask, and choose at least one image; "
                f"got {chosen.dtype} {chosen.shape}"
            )
        return Images(self.x[chosen], self.y[chosen], self.classes, self.aliases)

    def stratified_split(self, fraction: float, seed: int) -> tuple["Images", "Images"]:
        """Two parts in which the classes are as frequent as here: the rest, and a held-out part.

        A class with c images gives c·fraction of them to the held-out part, rounded so that the
        whole part is as near to `fraction` as it can be, and has at least one image on each side.
        Both parts keep the order of the images.

        Raises:
            ValueError: if the fraction is not between 0 and 1, or a class has one image alone.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
        by_class = [np.flatnonzero(self.y == label) for label in range(len(self.classes))]
        sizes = np.array([len(rows) for rows in by_class])
        if (sizes == 1).any():
            name = self.classes[int(np.flatnonzero(sizes == 1)[0])]
            raise ValueError(
                f"the class {name!r} has a single image, which cannot be on both sides"
            )
        shares = fraction * sizes
        quota = np.floor(shares).astype(np.int64)
        missing = round(float(shares.sum())) - int(quota.sum())
        quota[np.argsort(quota - shares, kind="stable")[:missing]] += 1
        quota = np.minimum(np.maximum(quota, 1), sizes - 1)
        random = np.random.default_rng(seed)
        held_out = np.zeros(len(self), dtype=bool)
        for rows, number in zip(by_class, quota, strict=True):
            if len(rows):
                held_out[random.permutation(rows)[:number]] = True
        return self.take(~held_out), self.take(held_out)

    def checksum(self) -> str:
        """SHA-256 of shapes, pixels, labels and the names of the classes."""
        found = hashlib.sha256()
        for name, array in (("x", self.x), ("y", self.y.astype("<i8"))):
            found.update(f"{name}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        for name in self.classes:
            found.update(f"{len(name)} {name}".encode())
        return found.hexdigest()


def from_arrays(
    x: Any, y: Any, classes: Sequence[str] | None = None, *, layout: str | None = None
) -> Images:
    """Images from a pair of arrays.

    Args:
        x: pixels, `(rows, height, width)`, `(rows, height, width, channel)` or
            `(rows, channel, height, width)`: bytes or whole numbers from 0 to 255, or floats that
            are such numbers divided by 255.
        y: labels, `(rows,)`: whole numbers from 0, or names.
        classes: the names of the classes; label k is the k-th. By default whole numbers are
            their own names, and names are sorted. Two sets that belong together must be
            given the same.
        layout: "HWC" or "CHW" tells where the channels are. By default the axis of length 1 or 3
            is the one; without a channel axis it does not matter.

    Raises:
        ValueError: if the pixels or the labels are not of this kind, or the layout is not clear.
    """
    pixels = _channels_last(_bytes(np.asarray(x)), layout)
    labels, names = _labels(np.asarray(y), classes)
    return Images(pixels, labels, names)


def _bytes(x: NDArray[Any]) -> Pixels:
    """Pixels as bytes if that loses nothing."""
    if x.dtype == np.uint8 or (x.dtype.kind in "iuf" and not x.size):
        return x.astype(np.uint8, copy=False)  # of none, the constructor tells what is missing
    if x.dtype.kind in "iu":
        if x.min() < 0 or x.max() > 255:
            raise ValueError(f"pixels must be 0 to 255, got {x.min()} to {x.max()}")
        return x.astype(np.uint8)
    if x.dtype.kind != "f":
        raise ValueError(f"pixels must be bytes (uint8), got {x.dtype}")
    low, high = x.min(), x.max()
    if not (low >= 0 and high <= 1):  # also if one is not a number
        raise ValueError(
            f"pixels as floats must be k/255 with k = 0 … 255, got {low} to {high}; if they are "
            "whole numbers from 0 to 255, pass x.astype('uint8')"
        )
    whole = np.rint(x * x.dtype.type(255)).astype(np.uint8)
    exact = (whole / 255.0).astype(x.dtype)
    # k/255 and k·(1/255) differ in the last place: both are meant.
    wrong = np.abs(x - exact) > np.spacing(exact)
    if wrong.any():
        raise ValueError(
            f"pixels as floats must be k/255 with k = 0 … 255, got {x[wrong][0]}; pass bytes, "
            "rounded as you see fit: np.rint(255 * x).astype('uint8')"
        )
    return whole


def _channels_last(x: Pixels, layout: str | None) -> Pixels:
    """The layout `(rows, height, width, channel)`."""
    if layout not in (None, "HWC", "CHW"):
        raise ValueError(f'layout must be "HWC" or "CHW", got {layout!r}')
    if x.ndim == 3:
        return x[..., None]
    if x.ndim != 4:
        raise ValueError(
            "x must be (rows, height, width), (rows, height, width, channel) or "
            f"(rows, channel, height, width), got {x.shape}"
        )
    if layout is None:
        last, first = x.shape[3] in _CHANNELS, x.shape[1] in _CHANNELS
        if last == first:
            seen = "both the second and the last axis" if last else "no axis"
            raise ValueError(
                f"where are the channels of {x.shape}? {seen} could be (1 or 3 long): pass "
                'layout="HWC" if they are last, layout="CHW" if they come before the height'
            )
        layout = "HWC" if last else "CHW"
    return x if layout == "HWC" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def _labels(y: NDArray[Any], classes: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    """Labels from 0, and the names of the classes."""
    if y.ndim != 1:
        raise ValueError(f"y must be (rows,), got {y.shape}")
    named = y.dtype.kind == "U" or (
        y.dtype.kind in "OT" and all(isinstance(label, str) for label in y)
    )
    if named:
        labels = [str(label) for label in y]
        names = tuple(sorted(set(labels)) if classes is None else classes)
        unknown = sorted(set(labels) - set(names))
        if unknown:
            raise ValueError(f"there is no class {unknown[0]!r}; there are: {', '.join(names)}")
        place = {name: index for index, name in enumerate(names)}
        return np.array([place[label] for label in labels], dtype=np.int64), names
    if y.dtype.kind not in "iub":
        raise ValueError(f"labels must be whole numbers or names, got {y.dtype}")
    numbers = y.astype(np.int64)
    if classes is None:
        classes = [str(label) for label in range(int(numbers.max(initial=-1)) + 1)]
    return numbers, tuple(classes)


def from_folder(path: str | Path, size: int | tuple[int, int] | None = None) -> Images:
    """Images from a folder with one subfolder for each class.

    The classes are the subfolders, sorted by name; a class has all image files in and below its
    subfolder, sorted by path. Names that begin with a dot and files that do not end like an image
    (.png, .jpg, …) are passed over. If all images are grey there is one channel, else there are
    three; transparency is dropped, and photographs are turned as their camera noted.

    Args:
        path: the folder.
        size: the height and width that all images are resized to (one number: a square), without
            regard to their proportions. By default they must all have the same already.

    Raises:
        ValueError: if the folder is not of this kind, or a file cannot be read.
        ImportError: if Pillow is not installed.
    """
    path = Path(path)
    shape = (size, size) if isinstance(size, int) else size
    if shape is not None and (len(shape) != 2 or min(shape) < 1):
        raise ValueError(f"size must be a positive number or (height, width), got {size!r}")
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise ValueError(f"{path} has no subfolders; there must be one for each class")
    images: list[Pixels] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        files = list(_files(folder))
        if not files:
            raise ValueError(f"{folder} has no images; a class must have one at least")
        for file in files:
            image = _read(file, shape)
            if images and image.shape[:2] != images[0].shape[:2]:
                raise ValueError(
                    f"{file} is {_size(image)} where the images before it are "
                    f"{_size(images[0])}; pass size=(height, width) to resize them all"
                )
            images.append(image)
            labels.append(label)
    channels = max(image.shape[2] for image in images)
    x = np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in images])
    return Images(x, np.array(labels, dtype=np.int64), tuple(folder.name for folder in folders))


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.suffix.lower() in _ENDINGS and not hidden and file.is_file():
            yield file


def _read(file: Path, shape: tuple[int, int] | None) -> Pixels:
    """The pixels of a file, `(height, width, 1 or 3)`."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError(
            "reading image files needs Pillow: pip install 'unbounded[images]'"
        ) from None
    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened)
            deep = image.mode.startswith(("I", "F"))
            grey = image.mode in ("1", "L", "LA")
            if not deep:
                if image.mode == "P":  # a palette may hold transparency, of which Pillow warns
                    image = image.convert("RGBA")
                image = image.convert("L" if grey else "RGB")
                if shape is not None and image.size != shape[::-1]:
                    image = image.resize(shape[::-1], Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except Exception as error:  # every format has its own ways to be broken
        raise ValueError(f"{file} cannot be read as an image: {error}") from None
    if deep:
        raise ValueError(f"{file} has more than 8 bits a channel (mode {image.mode}); convert it")
    return pixels[..., None] if grey else pixels


def _size(image: Pixels) -> str:
    return f"{image.shape[0]} × {image.shape[1]}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 10 else [*names[:9], "…"])
