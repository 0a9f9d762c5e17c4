"""The labels of classes, from plain data in a file."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded.schema import Check, FileError, either, flag, list_of, real, record, text, whole

_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|U[0-9]{1,9})|object")
_SMALL, _LARGEST = 1 << 20, 1 << 24  # bytes of an array of texts


def read_classes(described: Any, count: int | None, where: str) -> NDArray[Any]:
    """The labels as `np.unique` gave them: of one type, in order, each once.

    Args:
        described: their dtype and values.
        count: how many the model tells apart; None where it does not say.
        where: what errors call the field.

    Raises:
        FileError: if they are anything else.
    """
    exactly = {} if count is None else {"most": count}
    outer = record({"dtype": text(20), "values": list_of(_any, least=count or 2, **exactly)})
    found = outer(described, where)
    code, values = found["dtype"], found["values"]
    if _DTYPE.fullmatch(code) is None:
        raise FileError(f"the field {where}.dtype should be one of numbers or texts, got {code!r}")
    kind = "O" if code == "object" else code.lstrip("<>|=")[0]
    list_of(_CHECKS[kind])(values, f"{where}.values")
    if kind == "U":
        code = _text_dtype(code, values, where)
    try:
        labels = np.array(values, dtype=np.dtype(code))
        in_order = labels.shape == (len(values),) and np.array_equal(np.unique(labels), labels)
    except (TypeError, ValueError, OverflowError):  # of several types, or too large for the dtype
        in_order = False
    if not in_order:
        raise FileError(f"the field {where}.values should be labels in order, each once")
    return labels


def _any(value: Any, where: str) -> Any:
    return value


_CHECKS: dict[str, Check] = {
    "b": flag,
    "i": whole(-(2**63)),
    "u": whole(0, 2**64 - 1),
    "f": real(),
    "U": text(),
    "O": either(flag, whole(-(2**63)), real(), text()),
}


def _text_dtype(code: str, values: list[str], where: str) -> str:
    """The dtype itself where it is small, else one that is as wide as the longest text."""
    longest = max(1, *(len(value) for value in values))
    order, size = code[0] if code[0] in "<>|=" else "", int(code.lstrip("<>|=")[1:])
    if size < longest or 4 * size * len(values) > _SMALL:
        size = longest
    if 4 * size * len(values) > _LARGEST:
        raise FileError(f"the field {where}.values holds texts that are too long")
    return f"{order.replace('|', '')}U{size}"
