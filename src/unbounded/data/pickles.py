"""Reading a stranger's pickle of plain containers and arrays without running it.

A pickle is a program that may call whatever it can name. Here it can name only those few things
by which NumPy and Python write arrays and bytes, and each is answered by a class that does no
more than write down what it is told. Arrays are made afterwards, by this module; no name is ever
looked up.

A few bytes can also ask for gigabytes. Every length is compared with the size of the file before
the pickle is read, and what is made of it takes no more memory than a small multiple of that.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read(content: bytes) -> Any:
    """What a pickle holds; in place of an array something that `array` understands.

    Text of Python 2 comes as bytes.

    Raises:
        pickle.UnpicklingError: if it names anything else, or asks for more than it holds.
        Exception: of almost any kind, if it is damaged.
    """
    _check_lengths(content)
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


def array(value: Any) -> NDArray[Any]:
    """The array that a value from `read` stands for, or the one of a list of numbers."""
    if isinstance(value, _Array):
        return value.array()
    # Flat: lists that hold one another many times over would be written out.
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise ValueError("a list of whole numbers was expected")
    return np.asarray(value)


_MOST_STEPS = 1_000_000  # of a pickle; a batch of CIFAR-10 takes some ten thousand
_MOST_CALLS = 64  # each may copy its bytes; an array takes up to three


def _check_lengths(content: bytes) -> None:
    """An error if a pickle has lengths or places beyond its own size, or far too many steps."""
    calls = 0
    # Reads nothing that is not there, where the unpickler makes room for it first.
    for steps, (code, argument, _) in enumerate(pickletools.genops(content)):
        if code.name in ("FRAME", "PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(
            content
        ):
            raise pickle.UnpicklingError(f"{code.name} asks for {argument}, beyond the file")
        calls += code.name in ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX")
        if steps > _MOST_STEPS or calls > _MOST_CALLS:
            raise pickle.UnpicklingError("it has too many steps for a batch of images")


class _Dtype:
    """Stands for a dtype: its code and byte order."""

    def __init__(self, code: Any, *flags: Any) -> None:
        self.code = _text(code)
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        """The real one, of whole numbers alone."""
        if self.code not in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"):
            raise ValueError(f"arrays must be of whole numbers, got {self.code!r}")
        order = self.order if self.order in ("<", ">") else "="
        return np.dtype(f"{order}{self.code}")


class _Array:
    """Stands for an array: shape, dtype, order and bytes."""

    def __init__(self, *ignored: Any) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.state = tuple(state[1:])  # after a version

    def array(self) -> NDArray[Any]:
        """The real one."""
        shape, dtype, by_columns, content = self.state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray):
            raise ValueError("an array must have a dtype and bytes")
        flat = np.frombuffer(content, dtype.dtype())
        return flat.reshape(shape, order="F" if by_columns else "C")


class _Buffer(_Array):
    """Stands for the function that makes an array from bytes, in pickles of protocol 5."""

    def __init__(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.state = (shape, dtype, _text(order) == "F", content)


class _Encoded:
    """Stands for the function by which the older protocols of Python 3 write bytes."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if encoding not in ("latin1", "latin-1"):
            raise ValueError(f"bytes must be written by latin1, got {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        """Kept, as in the other classes: without it a pickle could set attributes of the class."""


_KNOWN: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("numpy._core.numeric", "_frombuffer"): _Buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return _KNOWN[module, name]


def _text(word: Any) -> str:
    return word.decode("ascii") if isinstance(word, bytes) else str(word)
