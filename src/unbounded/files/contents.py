"""What a file holds: read at once from one descriptor, and checked against its digest."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded import atomic
from unbounded.schema import FileError

FORMAT = "unbounded-model-2"
_ALSO_READ = {FORMAT: ("unbounded-model-1",)}
_WITHOUT_DIGEST = ("unbounded-model-1", "unbounded-checkpoint-1", "unbounded-checkpoint-2")
_LARGEST_HEADER = 1 << 25  # bytes; 10,000 columns of a table take a fifth of it
_MOST_BRACKETS = 1 << 20  # in it: three bytes make a list of seventy
_BROKEN = "is not a complete safetensors file"


@dataclass(frozen=True)
class Contents:
    """All that a file held at the moment it was read.

    Attributes:
        label: what errors call the file: its path.
        header: the configuration, as JSON gives it.
        tensors: by name.
    """

    label: str
    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def extra(self) -> dict[str, Any]:
        """The plain data that travelled along; empty if there is none."""
        extra = self.header.get("extra")
        return extra if isinstance(extra, dict) else {}


def read(source: "str | Path | Contents", expected: str = FORMAT) -> Contents:
    """Read a file of this library, opening it once; contents that were read already pass through.

    Raises:
        FileError: if the file is damaged, foreign, or of another version.
    """
    if isinstance(source, Contents):
        return source
    tensors, metadata = read_tensors(source)
    return Contents(str(source), parse_header(source, metadata, expected), tensors)


def read_header(path: str | Path, expected: str = FORMAT) -> dict[str, Any]:
    """The configuration in a file's header. The whole file is read and checked for it."""
    return read(path, expected).header


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a safetensors file, from one reading of its bytes.

    Raises:
        FileError: if it is no such file, or if its contents do not fit its digest.
        OSError: if there is none to read.
    """
    from safetensors.torch import load as from_bytes

    data = _read_bytes(path)
    try:
        tensors = dict(sorted(from_bytes(data).items()))
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except (SystemExit, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a reader in Rust that panics raises no Exception
        raise FileError(f"{path} {_BROKEN}: {error}") from None
    if "digest" in metadata and metadata["digest"] != digest(tensors, metadata):
        raise FileError(f"{path} is damaged: its contents do not fit its digest")
    return tensors, metadata


def write_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file with the digest of its contents, atomically."""
    from safetensors.torch import save as to_bytes

    path = atomic.check_target(path)
    # clone: safetensors refuses tensors that share memory, as views of one buffer do.
    plain = {k: v.detach().to("cpu").contiguous().clone() for k, v in tensors.items()}
    atomic.write_bytes(path, to_bytes(plain, {**metadata, "digest": digest(plain, metadata)}))


def digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """SHA-256 over all tensors and all metadata but the digest itself, as a hexadecimal text.

    It tells damage: a bit that flipped, a file that was cut or mixed with another. It is no
    signature: whoever changes a file on purpose can compute it anew.
    """
    total = hashlib.sha256()

    def add(*parts: Any) -> None:
        for part in parts:
            piece = part.encode() if isinstance(part, str) else part
            total.update(memoryview(piece).nbytes.to_bytes(8, "little"))  # no two ways to split it
            total.update(piece)

    for name in sorted(metadata):
        if name != "digest":
            add("metadata", name, metadata[name])
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        content = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
        add("tensor", name, str(tensor.dtype), repr(tuple(tensor.shape)), content)
    return total.hexdigest()


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def parse_header(
    path: str | Path, metadata: dict[str, str], expected: str = FORMAT
) -> dict[str, Any]:
    """The header of a file in the expected format, or in an earlier one that is still read.

    Raises:
        FileError: if it is damaged, of another format, or lacks the digest that its format has.
    """
    if "unbounded" not in metadata:
        raise FileError(f"{path} is a safetensors file, but not one of this library")
    if len(metadata["unbounded"]) > _LARGEST_HEADER:
        raise FileError(f"{path} has a damaged header: it is larger than {_LARGEST_HEADER:,} bytes")
    if sum(map(metadata["unbounded"].count, "[{")) > _MOST_BRACKETS:
        raise FileError(f"{path} has a damaged header: it has more than {_MOST_BRACKETS:,} parts")
    try:
        header = json.loads(metadata["unbounded"])
    except (ValueError, RecursionError):
        raise FileError(f"{path} has a damaged header: it is not JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("format"), str):
        raise FileError(f"{path} has a damaged header: no format is named")
    found = header["format"]
    if found != expected and found not in _ALSO_READ.get(expected, ()):
        writer = header.get("version")
        by = f" (unbounded {writer[:20]} wrote it)" if isinstance(writer, str) else ""
        raise FileError(
            f"{path} has the format {found[:60]!r}{by}, this version reads {expected!r} here"
        )
    if "digest" not in metadata and found not in _WITHOUT_DIGEST:
        raise FileError(f"{path} is damaged: a file of the format {found!r} has a digest")
    return header


@contextmanager
def rebuilding(source: "str | Path | Contents", what: str) -> Iterator[None]:
    """What goes wrong while a file's description is built again, as a FileError with its path.

    The checks by `schema` come first and name the field; the rest is the last net.
    """
    label = source.label if isinstance(source, Contents) else str(source)
    try:
        yield
    except FileError as error:
        if str(error).startswith(label):
            raise
        raise FileError(f"{label} {what}: {error}") from None
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        words = " ".join(str(error).split()) or type(error).__name__  # torch's go over lines
        raise FileError(f"{label} {what}: {words}") from None


def _read_bytes(path: str | Path) -> bytes:
    """The bytes of a regular file, opened once; what is clearly no safetensors file is not read."""
    path = Path(path)
    # Not blocking: a FIFO that nobody writes to would be waited for.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except OSError as error:
        if path.is_dir():  # not every system opens one
            raise IsADirectoryError(f"{path} is a folder, a model file was expected") from None
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    try:
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(f"{path} is a folder, a model file was expected")
        if not stat.S_ISREG(info.st_mode):
            raise FileError(f"{path} is a pipe or a device, a model file was expected")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            head = _read_up_to(file, 9)
            if len(head) < 9 or not 2 <= int.from_bytes(head[:8], "little") <= info.st_size - 8:
                raise FileError(f"{path} {_BROKEN}: it is too short for its header")
            if head[8:] != b"{":
                raise FileError(f"{path} {_BROKEN}: its header is no JSON")
            return head + _read_up_to(file, info.st_size - 9)
    finally:
        os.close(descriptor)


def _read_up_to(file: Any, size: int) -> bytes:
    """So many bytes, or as many as there are."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
