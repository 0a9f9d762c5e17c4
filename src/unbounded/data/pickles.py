"""Reading a stranger's pickle of plain containers and arrays without running it.

A pickle is a program that may call whatever it can name. Here it can name only those few things
by which NumPy and Python write arrays and bytes, and each is answered by a class that does no
more than write down what it is told. Arrays are made afterwards, by this module; no name is ever
looked up.
"""

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read(content: bytes) -> Any:
    """What a pickle holds; in place of an array something that `array` understands.

    Text of Python 2 comes as bytes.

    Raises:
        pickle.UnpicklingError: if it names anything else.
        Exception: of almost any kind, if it is damaged.
    """
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


def array(value: Any) -> NDArray[Any]:
    """The array that a value from `read` stands for, or the one of a list of numbers."""
    return value.array() if isinstance(value, _Array) else np.asarray(value)


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
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise ValueError("an array must have a dtype and bytes")
        flat = np.frombuffer(content, dtype.dtype())
        return flat.reshape(shape, order="F" if by_columns else "C")


class _Buffer(_Array):
    """Stands for the function that makes an array from bytes, in pickles of protocol 5."""

    def __init__(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.state = (shape, dtype, _text(order) == "F", bytes(memoryview(content)))


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
