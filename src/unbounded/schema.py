"""Plain data from a file, checked field by field: what is expected, where, and in which range.

A schema is a check: a function that takes a value and the name of its place, gives the value back,
and raises a `FileError` that names the place where the value is not what it should be.
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], Any]
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


class FileError(ValueError):
    """A file that is not what it should be; nothing of it was executed."""


def wrong(where: str, expected: str, value: Any) -> FileError:
    """The error of a field that holds something else."""
    shown = _SHORT.repr(value)  # never the whole of a large or deeply nested value
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return FileError(f"the field {where} should be {expected}, got {shown}")


def whole(low: int = 0, high: int = 2**63 - 1) -> Check:
    """A whole number from `low` to `high`; truth values are none."""

    def check(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(where, f"a whole number from {low} to {high}", value)
        return value

    return check


def real(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number from `low` to `high`."""

    def check(value: Any, where: str) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            fits = is_number and math.isfinite(value) and low <= value <= high
        except OverflowError:  # a whole number beyond all floating-point ones
            fits = False
        if not fits:
            bounds = "" if low == -math.inf and high == math.inf else f" from {low:g} to {high:g}"
            raise wrong(where, f"a finite number{bounds}", value)
        return value

    return check


def text(longest: int = 1 << 20) -> Check:
    """A text of at most so many characters that can be written out."""

    def check(value: Any, where: str) -> str:
        if not isinstance(value, str) or len(value) > longest:
            raise wrong(where, f"a text of at most {longest:,} characters", value)
        try:
            value.encode()
        except UnicodeEncodeError:  # half a pair of surrogates
            raise wrong(where, "a text of whole characters", value) from None
        return value

    return check


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def anything(value: Any, where: str) -> Any:
    """Whatever JSON holds: the owner of the field looks at it."""
    return value


def choice(*allowed: Any) -> Check:
    """One of a few values."""

    def check(value: Any, where: str) -> Any:
        for one in allowed:
            if type(value) is type(one) and value == one:
                return value
        raise wrong(where, "one of " + ", ".join(repr(one) for one in allowed), value)

    return check


def either(*checks: Check) -> Check:
    """What one of the checks accepts; None is accepted by `choice(None)`."""

    def check(value: Any, where: str) -> Any:
        errors = []
        for one in checks:
            try:
                return one(value, where)
            except FileError as error:
                errors.append(error)
        raise errors[-1]

    return check


def optional(check: Check) -> Check:
    """What the check accepts, or null."""
    return lambda value, where: None if value is None else check(value, where)


def list_of(check: Check, *, least: int = 0, most: int = 1 << 24) -> Check:
    """A list whose items pass a check."""

    def check_all(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise wrong(where, f"a list of {least} to {most} items", value)
        return [check(item, f"{where}[{index}]") for index, item in enumerate(value)]

    return check_all


def mapping(check: Check) -> Check:
    """An object with keys of its own, whose values pass a check."""

    def check_all(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(where, "an object", value)
        return {key: check(item, f"{where}.{key[:60]}") for key, item in value.items()}

    return check_all


def record(
    fields: Mapping[str, Check],
    maybe: Mapping[str, Check] | None = None,
    others: Check | None = None,
) -> Check:
    """An object with these fields, perhaps with some of `maybe`, and others that pass a check.

    Without a check for `others` there may be none.
    """
    known = {**fields, **(maybe or {})}

    def check_all(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(where, "an object", value)
        inside = f"{where}." if where else ""
        for name in fields:
            if name not in value:
                raise FileError(f"the field {inside}{name} is missing")
        for name in value:
            if name not in known and others is None:
                raise FileError(f"the field {inside}{name[:60]} is not known to this version")
        return {
            name: (known.get(name) or others or anything)(item, inside + name[:60])
            for name, item in value.items()
        }

    return check_all
