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


class Candidates:
    """Which writings read every text of a column so far, and the range of the numbers."""

    def __init__(self) -> None:
        nothing = math.inf, -math.inf, True
        self.ranges: dict[str, tuple[float, float, bool]] = dict.fromkeys(WRITINGS, nothing)

    def add_plain(self, low: float, high: float, whole: bool, has_points: bool) -> None:
        """Take in a chunk of numbers as programs write them, by their range."""
        if has_points:
            self.ranges.pop(COMMA, None)
        for writing, (least, most, all_whole) in self.ranges.items():
            self.ranges[writing] = min(low, least), max(high, most), whole and all_whole

    def add(self, texts: Iterable[str]) -> None:
        """Take in different texts of a chunk."""
        given = list(texts)
        for writing, (low, high, whole) in list(self.ranges.items()):
            if any(math.isnan(number(text, writing)) for text in given[:_FEW]):
                del self.ranges[writing]
                continue
            values = [number(text, writing) for text in given]
            if any(map(math.isnan, values)):
                del self.ranges[writing]
            elif values:
                whole = whole and all(value.is_integer() for value in values)
                self.ranges[writing] = min(low, *values), max(high, *values), whole

    @property
    def best(self) -> str | None:
        """The writing of the column, if any; where both read it, 1,234 has its thousands apart."""
        return next(iter(self.ranges), None)


def note(text: str, writing: str) -> str:
    """What to know of a column that is written so, of which this is one value."""
    return f"numbers: {text!r} is read as {number(text, writing):.15g}"
