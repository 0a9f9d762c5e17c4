"""A PNG file from an array, by hand: a heat map needs no imaging library."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # channels → grey, RGB, RGBA


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file.

    Args:
        pixels: `(rows, columns, channels)` with 1 (grey), 3 (RGB) or 4 (RGBA) channels; the
            first row is the top.
    """
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES:
        raise ValueError(
            "pixels must be unsigned bytes (rows, columns, 1, 3 or 4), "
            f"got {pixels.dtype} {pixels.shape}"
        )
    rows, columns, channels = pixels.shape
    if rows == 0 or columns == 0:
        raise ValueError(f"an image needs at least one pixel, got {pixels.shape}")
    flat = pixels.reshape(rows, columns * channels)
    # Filter 2, "up": each byte less the one above it. Smooth pictures compress far better.
    above = np.zeros_like(flat)
    above[1:] = flat[:-1]
    filtered = np.full((rows, columns * channels + 1), 2, dtype=np.uint8)
    filtered[:, 1:] = flat - above  # modulo 256, as the format asks
    header = struct.pack(">IIBBBBB", columns, rows, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9))
        + _chunk(b"IEND", b"")
    )


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """A PNG file as a `data:` address, which carries the picture itself."""
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
