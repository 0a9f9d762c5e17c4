"""Numbers as people write them: with a decimal comma, thousands apart, a currency, percent."""

import math
import re
from collections.abc import Iterable

from unbounded.tables.text import is_number

POINT, COMMA = "1,234.5", "1.234,5"
WRITINGS = (POINT, COMMA)
"""How the number 1234.5 may be written, besides as a program writes it."""
_APART = "'’ \u00a0\u202f"  # what thousands are kept apart by in both
_MONEY = "$€£¥₹"

_FEW = 20  # texts that tell of nearly every column that it is none of numbers


def _pattern(apart: str, decimal: str) -> re.Pattern[str]:
    """(sign) (currency) (sign) digits in groups of three, or in one, and decimals (a mark)."""
    digits = rf"(?:[1-9][0-9]{{0,2}}(?:[{apart}{_APART}][0-9]{{3}})+|[0-9]+)(?:{decimal}[0-9]+)?"
    money = f"[{re.escape(_MONEY)}]"
    return re.compile(rf"([-+−]?) ?{money}? ?([-+−]?)({digits})[ \u00a0\u202f]?(?:{money}|[%‰])?")


_PATTERNS = {POINT: _pattern(",", r"\."), COMMA: _pattern(r"\.", ",")}


def number(text: str, writing: str) -> float:
    """The number that a text stands for in a writing, NaN if none; 12 % is 12."""
    if writing == POINT and is_number(text):
        return float(text)
    found = _PATTERNS[writing].fullmatch(text.strip())
    if found is None or (found[1] and found[2]):
        return math.nan
    decimal = "," if writing == COMMA else "."
    whole, _, part = found[3].partition(decimal)
    value = float("".join(filter(str.isdigit, whole)) + "." + (part or "0"))
    return -value if (found[1] or found[2]) in ("-", "−") else value


Range = tuple[float, float, bool]
"""The lowest and the highest of some numbers, and whether all are whole."""
NOTHING: Range = (math.inf, -math.inf, True)


def joined(one: Range, other: Range) -> Range:
    """The range of the numbers of both."""
    return min(one[0], other[0]), max(one[1], other[1]), one[2] and other[2]


class Candidates:
    """Which writings read every text of a column so far, and the range of the numbers."""

    def __init__(self) -> None:
        self.ranges: dict[str, Range] = dict.fromkeys(WRITINGS, NOTHING)

    def add_plain(self, range: Range) -> None:
        """Take in a chunk of numbers as programs write them, which all writings read alike."""
        for writing, before in self.ranges.items():
            self.ranges[writing] = joined(before, range)

    def add(self, texts: Iterable[str]) -> None:
        """Take in different texts of a chunk."""
        given = list(texts)
        for writing, before in list(self.ranges.items()):
            if any(math.isnan(number(text, writing)) for text in given[:_FEW]):
                del self.ranges[writing]
                continue
            values = [number(text, writing) for text in given]
            if any(map(math.isnan, values)):
                del self.ranges[writing]
            elif values:
                whole = all(value.is_integer() for value in values)
                self.ranges[writing] = joined(before, (min(values), max(values), whole))

    @property
    def best(self) -> str | None:
        """The writing of the column, if any; where both read it, 1,234 has its thousands apart."""
        return next(iter(self.ranges), None)


def note(text: str, writing: str) -> str:
    """What to know of a column that is written so, of which this is one value."""
    return f"numbers: {text!r} is read as {number(text, writing):.15g}"
