"""Images of another kind than a model has learnt, to see whether it notices."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unbounded.data.images import Pixels, from_folder

BUILT_IN = ("digits", "photographs")
"""Sets that come with scikit-learn: small handwritten digits, and pieces of two photographs."""


def read(source: str | Path, size: tuple[int, int], most: int = 10_000, seed: int = 0) -> Pixels:
    """Images as bytes, `(rows, height, width, 3)`.

    Args:
        source: "digits" or "photographs"; a folder with a subfolder for each class; a file .npy or
            .npz with an array of images, bytes; a .mat of SVHN; or the images of MNIST and its
            kin, …-ubyte or …-ubyte.gz.
        size: height and width; images of other sizes are brought to it by their nearest pixels.
        most: no more than so many, the first ones.
        seed: of the places of pieces of photographs.

    Raises:
        ValueError: if there are no such images.
    """
    path = Path(source)
    if str(source) == "digits":
        from sklearn.datasets import load_digits

        x = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)[..., None]
    elif str(source) == "photographs":
        x = _photographs(size, min(most, 2000), seed)
    elif path.is_dir():
        x = from_folder(path, size).x
    elif path.is_file():
        x = _array(path)
    else:
        raise ValueError(f"{source} is no folder, no file and none of {', '.join(BUILT_IN)}")
    x = x[:most]
    rows, columns = (
        (np.arange(wanted) * have // wanted)
        for wanted, have in zip(size, x.shape[1:3], strict=True)
    )
    x = x[:, rows][:, :, columns]
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:3], 3)))


def _photographs(size: tuple[int, int], count: int, seed: int) -> Pixels:
    """Pieces of scikit-learn's two photographs, each of two to eight times the wanted size."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        whole = photographs[number % len(photographs)]
        times = int(draw.integers(2, 9))
        height, width = times * size[0], times * size[1]
        top = int(draw.integers(0, whole.shape[0] - height + 1))
        left = int(draw.integers(0, whole.shape[1] - width + 1))
        piece = whole[top : top + height, left : left + width]
        # The mean of each square of pixels, as a camera further away would have it.
        blocks = piece.reshape(size[0], times, size[1], times, 3).mean((1, 3))
        found.append(np.rint(blocks).astype(np.uint8))
    return np.stack(found)


def _array(path: Path) -> Pixels:
    """The images of a file: the one array in it that can be images."""
    if path.suffix == ".npy":
        arrays: list[NDArray] = [np.load(path, allow_pickle=False)]
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as opened:
            arrays = [opened[name] for name in opened.files]
    elif path.suffix == ".mat":
        from scipy.io import loadmat

        arrays = [value for value in loadmat(path).values() if isinstance(value, np.ndarray)]
        arrays = [a.transpose(3, 0, 1, 2) if a.ndim == 4 else a for a in arrays]  # as SVHN has it
    elif path.name.endswith(("-ubyte", "-ubyte.gz")):
        arrays = [_idx(path)]
    else:
        raise ValueError(f"{path} ends with neither .npy, .npz, .mat, -ubyte nor -ubyte.gz")
    for array in arrays:
        if array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3):
            return array
        if array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] in (1, 3):
            return array.transpose(0, 2, 3, 1)
        if array.dtype == np.uint8 and array.ndim == 3:
            return array[..., None]
    raise ValueError(f"{path} has no array of images: bytes, (rows, height, width, channel)")


def _idx(path: Path) -> NDArray:
    """The array of a file in the form of MNIST: bytes after their sizes."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from None
    axes = raw[3] if raw[:3] == b"\x00\x00\x08" and len(raw) > 3 else 0
    start = 4 + 4 * axes
    sizes = np.frombuffer(raw[4:start], ">u4").astype(int).tolist() if len(raw) >= start else []
    if not axes or len(sizes) != axes or len(raw) != start + math.prod(sizes):
        raise ValueError(f"{path} has no array of images: its first bytes and its length disagree")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)
