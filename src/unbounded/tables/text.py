"""Small helpers for messages, progress bars and JSON."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from unbounded.report.axes import number

_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)", re.I | re.A)


class TableError(ValueError):
    """A table that cannot be used, in one line that a user can act on."""


def closest(name: str, names: Iterable[str]) -> str:
    """Advice after a wrong name: "did you mean …?" if one is near, else the names there are."""
    import difflib

    names = list(names)
    lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.7)
    if len(name) > 2:  # a part of a name, or a name with more around it
        parts = (n for n in lower if len(n) > 2 and (name.lower() in n or n in name.lower()))
        near = [*near, *(n for n in parts if n not in near)][:3]
    if near:
        return "did you mean " + " or ".join(repr(lower[n]) for n in near) + "?"
    shown = ", ".join(repr(n) for n in names[:10])
    return f"there are {shown}" + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def shorten(text: object, size: int = 40) -> str:
    """The text on one line of at most `size` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= size else line[: size - 1] + "…"


def count_of(count: int, noun: str) -> str:
    """A count with its noun: "1 row", "1,234 rows"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def plain_number(value: float, digits: int = 4) -> str:
    """A number as pages write it, but with the minus sign of a keyboard: for terminals."""
    return number(value, digits).replace("−", "-")


def is_number(text: str) -> bool:
    """Whether the text is a number: digits 0–9 with sign, point and exponent, or infinite.

    This is the one rule: no thousands separators, other digits, hexadecimals or underscores.
    Whole columns of numbers as people write them are read, too: `writings`.
    """
    return _NUMBER.fullmatch(text) is not None


def is_broken(value: object) -> bool:
    """Whether a text holds half a pair of surrogates, and cannot be written out."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return True
    return False


def to_json(value: Any) -> Any:
    """The value as JSON can hold it: no NumPy, and null for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def blanks_before_quotes(file: IO[str], delimiter: str) -> bool:
    """Whether a CSV file has fields with blanks before their quotes, as in `a, "b"`."""
    if delimiter == " ":
        return True
    mark = re.escape(delimiter)
    token = re.compile(rf'"|[\r\n{mark}]| +|[^"\r\n{mark} ]+')
    # Where the last token was: at a field's start, behind blanks there, elsewhere in a field,
    # within quotes, or at a quote within quotes, which closes them unless another one follows.
    start, blanks, field, quoted, closing = range(5)
    state = start
    while block := file.read(1 << 20):
        if state in (start, field) and '"' not in block:
            state = start if block[-1] in f"\r\n{delimiter}" else field
            if state == field and block.rstrip(" ")[-1:] in ("\r", "\n", delimiter):
                state = blanks
            continue
        for part in token.findall(block):
            if state == quoted:
                state = closing if part == '"' else quoted
            elif state == closing and part == '"':
                state = quoted
            elif part in ("\r", "\n", delimiter):
                state = start
            elif part == '"':
                if state == blanks:
                    return True
                state = quoted if state == start else field
            else:
                state = blanks if state in (start, blanks) and not part.strip(" ") else field
    return False


@contextmanager
def progress_bar(
    show: bool, what: str, total: int | None = None
) -> Iterator[Callable[[int], None] | None]:
    """A function that counts rows, drawn as a bar on standard error; None if not to be shown."""
    if not show:
        yield None
        return
    from tqdm import tqdm

    with tqdm(
        total=total, desc=what, unit=" rows", unit_scale=True, leave=False, file=sys.stderr
    ) as bar:
        yield bar.update
