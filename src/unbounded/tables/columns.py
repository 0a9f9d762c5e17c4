"""What each column of a table is, told from all of its values in one pass over the file."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unbounded.schema import choice, flag, optional, real, record, text, whole
from unbounded.tables import values as read
from unbounded.tables import words, writings
from unbounded.tables.reading import LONGEST_TEXT, NO_VALUE, Table, TableError
from unbounded.tables.text import is_number, plain_number, shorten

TRACKED = 20_000
"""How many different values of a column are counted; more are only known to be many."""

# A text column whose values nearly all differ says nothing that could be met again.
_UNIQUE_FROM = 20  # rows from which "no value is there twice" means something
_TEXT_FROM, _TEXT_SHARE = 50, 0.5  # different texts, and as a share of the rows with a value
# A column of numbers with some text in it is a mistake in the file rather than a category.
_NUMBER_SHARE, _NUMBERS_FROM = 0.9, 10
# So is one of many numbers, half of the values or more, and very few texts: marks of gaps.
_HALF, _MARKS, _MANY_NUMBERS = 0.5, 4, 30
_ID = re.compile(r"(^|[\W_])(id|uuid|guid|index|key|row|rownum|nr|no)$", re.I)
_ID_CAMEL = re.compile(r"[a-z](Id|ID|Key)$")
_UNNAMED = re.compile(r"^\(column \d+\)$|^Unnamed: \d+$|^__index_level_\d+__$|^$")


@dataclass(frozen=True)
class Column:
    """What a column is and holds.

    Attributes:
        name: as in the file.
        kind: "number", "category", "boolean", "date", "words" (texts that hardly repeat, of which
            some words do), "text" (only whether it is there counts) or "dropped".
        rows: how many rows were looked at.
        missing: how many of them have no value.
        distinct: how many different values there are; None if more than `TRACKED`.
        low: the smallest number, or date in seconds since 1970.
        high: the largest.
        format: of a date; of numbers, their writing where it is not that of programs.
        numeric: a category whose levels are numbers, each in its own writing (`are_numbers`).
        literal: a category that somebody made one: NA, None and - are levels like others.
        why: the reason for being dropped; of a column that is used, what to know of its reading.
    """

    name: str
    kind: str
    rows: int = 0
    missing: int = 0
    distinct: int | None = None
    low: float | None = None
    high: float | None = None
    format: str | None = None
    numeric: bool = False
    literal: bool = False
    why: str = ""

    @property
    def is_used(self) -> bool:
        """Whether the model sees anything of it."""
        return self.kind != "dropped"

    def summary(self) -> str:
        """The range or the number of levels, for people."""
        if self.kind == "number" and self.low is not None and self.high is not None:
            return f"{plain_number(self.low, 6)} … {plain_number(self.high, 6)}"
        if self.kind == "date" and self.low is not None and self.high is not None:
            return f"{_day(self.low)} … {_day(self.high)}"
        if self.kind == "boolean":
            return "yes, no"
        if self.kind == "dropped" and self.missing == self.rows:
            return ""
        many = f"over {TRACKED:,}" if self.distinct is None else f"{self.distinct:,}"
        return f"{many} value{'' if self.distinct == 1 else 's'}"

    @classmethod
    def from_dict(cls, data: Any, where: str) -> "Column":
        """What `asdict` made of a column; a FileError that names the field otherwise."""
        column = cls(**_FIELDS(data, where))
        allowed = {"date": read.DATE_FORMATS, "number": writings.WRITINGS}.get(column.kind, ())
        optional(choice(*allowed))(column.format, f"{where}.format")
        if column.kind == "date":  # beyond these no calendar goes
            for name in ("low", "high"):
                optional(real(-1e13, 1e13))(getattr(column, name), f"{where}.{name}")
        return column


_KINDS = ("number", "category", "boolean", "date", "words", "text", "dropped")
_FIELDS = record(
    {"name": text(), "kind": choice(*_KINDS)},
    {
        "rows": whole(),
        "missing": whole(),
        "distinct": optional(whole()),
        "low": optional(real()),
        "high": optional(real()),
        "format": optional(choice(*read.DATE_FORMATS, *writings.WRITINGS)),
        "numeric": flag,
        "literal": flag,
        "why": text(),
    },
)


class Profile:
    """Facts about a column, gathered chunk by chunk in bounded memory."""

    remedy = "use --missing {text!r} or --category {name!r}"
    """What to do about text among numbers, besides correcting it, in the words of the caller."""

    def __init__(self, name: str):
        self.name = name
        self.rows = 0
        self.missing = 0
        self.kinds: set[str] = set()
        self.numbers = 0
        self._range = writings.NOTHING  # of plain numbers; whether all are whole
        self._written = writings.Candidates()
        self.infinite: tuple[int, float] | None = None  # the first: row from 1, value
        self.text: tuple[int, str] | None = None  # the first that is no number
        self.levels: Counter[str] | None = Counter()
        self.repeats = False
        self.is_long = False  # holds a text that nobody names a category by
        self.words: words.Count | None = None  # of texts that are too many to be counted
        self.formats: list[str] | None = None  # that read every date so far
        self.days = (math.inf, -math.inf)

    @property
    def present(self) -> int:
        """The number of rows that have a value."""
        return self.rows - self.missing

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, in one writing."""
        plain = self.numbers == self.present > 0 and not self.kinds & {"boolean", "date"}
        return plain or self.writing is not None

    @property
    def writing(self) -> str | None:
        """How numbers are written, where it is not as programs write them."""
        if self.kinds != {"text"} or self.numbers == self.present:
            return None
        return self._written.best

    @property
    def low(self) -> float:
        """The smallest number."""
        return self._ranged[0]

    @property
    def high(self) -> float:
        """The largest number."""
        return self._ranged[1]

    @property
    def whole(self) -> bool:
        """Whether all numbers are whole."""
        return self._ranged[2]

    @property
    def _ranged(self) -> tuple[float, float, bool]:
        writing = self.writing
        return self._range if writing is None else self._written.ranges[writing]

    @property
    def is_date(self) -> bool:
        """Whether all values are dates."""
        return self.kinds == {"date"} or bool(self.formats and not self.numbers)

    def update(self, series: Any, start: int) -> None:
        """Take in the values of a chunk that starts at row `start` (from 0)."""
        kind = read.native_kind(series)
        missing = int(series.isna().sum())
        self.rows += len(series)
        self.missing += missing
        if missing < len(series):
            self.kinds.add(kind)
        values, bad = read.numbers(series)
        spans = self._update_numbers(values, start)
        if kind == "text" and self._written.ranges:
            self._update_written(series, spans, bool(bad.any()))
        if bad.any():
            if self.text is None:
                at = int(bad.argmax())
                self.text = (start + at + 1, str(series.iloc[at]))
            self._update_dates(series, kind)
        self._update_levels(series, kind)

    def _update_numbers(self, values: Any, start: int) -> tuple[float, float, bool]:
        """Take in the numbers of a chunk; their range, and whether all are whole."""
        there = values[~np.isnan(values)]
        self.numbers += there.size
        infinite = np.isinf(values)
        if infinite.any() and self.infinite is None:
            at = int(infinite.argmax())
            self.infinite = (start + at + 1, float(values[at]))
        there = there[np.isfinite(there)]
        if not there.size:
            return writings.NOTHING
        spans = float(there.min()), float(there.max()), bool((there == np.round(there)).all())
        self._range = writings.joined(self._range, spans)
        return spans

    def _update_written(
        self, series: Any, spans: tuple[float, float, bool], is_foreign: bool
    ) -> None:
        if is_foreign:
            self._written.add(read.distinct(series))
            return
        if writings.COMMA in self._written.ranges and read.has_points(series):
            del self._written.ranges[writings.COMMA]
        self._written.add_plain(spans)

    def _update_dates(self, series: Any, kind: str) -> None:
        if self.formats is None:
            self.formats = list(read.DATE_FORMATS) if self.numbers == 0 else []
        if kind == "text" and self.formats:
            few = series.dropna().head(20)
            self.formats = [f for f in self.formats if not read.dates(few, f).bad.any()]
        low, high = self.days
        surviving: list[str] = []
        for format in self.formats:
            seconds, bad = read.dates(series, format)
            if bad.any():
                continue
            if not surviving:
                low, high = min(low, np.nanmin(seconds)), max(high, np.nanmax(seconds))
            surviving.append(format)
        self.formats, self.days = surviving, (float(low), float(high))

    def _update_levels(self, series: Any, kind: str) -> None:
        if self.levels is None:
            if self.words is not None:
                self.words.add(read.level_counts(series, kind))
            return
        counts = read.level_counts(series, kind)
        self.is_long = max(map(len, counts), default=0) > LONGEST_TEXT
        if self.levels:
            for name, count in counts.items():
                self.levels[name] += count
        else:
            self.levels = Counter(counts)
        # Once something is there twice it stays so; how often no longer matters.
        self.repeats = self.repeats or self.present > len(self.levels)
        if self.is_long or len(self.levels) > TRACKED:
            if kind == "text":
                self.words = words.Count()
                self.words.add(self.levels)
            self.levels = None

    def column(self, *, category: bool = False, keep: bool = False) -> Column:
        """What the column is; the user may say that its numbers are names, or that it is no id.

        Raises:
            TableError: on infinite values, or text in a column of numbers.
        """
        distinct = None if self.levels is None else len(self.levels)

        def found(kind: str, why: str = "", **more: Any) -> Column:
            return Column(self.name, kind, self.rows, self.missing, distinct, why=why, **more)

        if self.present == 0:
            return found("dropped", "all values are missing")
        if self.infinite is not None and not category:
            row, value = self.infinite
            raise TableError(
                f"column {self.name!r} holds infinite values, the first ({value}) in row {row}: "
                "leave them empty if they are unknown"
            )
        if distinct == 1 and self.missing == 0:
            nested = NO_VALUE in (self.levels or ())
            return found("dropped", "no plain values" if nested else "one value only")
        if self.kinds == {"boolean"}:
            return found("boolean")
        if self.is_number and not category:
            if not keep and self.whole and _UNNAMED.search(self.name):
                # pandas writes its index so; it may repeat, in tables put together of several.
                return found("dropped", "an index without a name")
            if not keep and self._is_identifier():
                return found("dropped", "an identifier: every value differs")
            note = ""
            if self.writing is not None and self.text is not None:
                note = writings.note(self.text[1], self.writing)
            return found("number", note, low=self.low, high=self.high, format=self.writing)
        if self.is_date and not category:
            format = self.formats[0] if self.formats else read.ISO
            why = read.both_orders(self.formats or [])
            return found("date", why, low=self.days[0], high=self.days[1], format=format)
        if not category:
            self.check_text()
        lowered = {level.lower() for level in self.levels or ()}
        if len(lowered) == 2 and lowered & read.YES and lowered & read.NO and not category:
            return found("boolean")
        why = "" if keep or category else self._why_text()
        if (why or (keep and distinct is None)) and self._has_words():
            return found("words")
        if why:
            return found("text") if self.missing else found("dropped", why)
        if distinct is None:
            return found("dropped", self._long or f"more than {TRACKED:,} different texts")
        return found("category", numeric=read.are_numbers(self.levels or ()))

    def check_text(self) -> None:
        """An error if this is a column of numbers with some text in it."""
        if self.text is None or self.numbers == 0:
            return
        names = 0 if self.levels is None else sum(is_number(level) for level in self.levels)
        enough = self.levels is None or names >= _NUMBERS_FROM
        marks = math.inf if self.levels is None else len(self.levels) - names
        share = _NUMBER_SHARE if marks > _MARKS or names < _MANY_NUMBERS else _HALF
        if enough and self.numbers >= share * self.present:
            row, text = self.text[0], shorten(self.text[1])
            raise TableError(
                f"column {self.name!r} holds text among numbers, the first ({text!r}) in "
                f"row {row}: correct it, or {self.remedy.format(text=text, name=self.name)}"
            )

    def _has_words(self) -> bool:
        """Whether words of the texts are there again and again."""
        counted = self.words
        if counted is None:
            counted = words.Count()
            counted.add(self.levels or {})
        return counted.repeats

    def _is_identifier(self) -> bool:
        if self.repeats or not self.whole or self.present < _UNIQUE_FROM:
            return False
        return (_ID.search(self.name) or _ID_CAMEL.search(self.name)) is not None

    @property
    def _long(self) -> str:
        return f"texts of more than {LONGEST_TEXT:,} letters" if self.is_long else ""

    def _why_text(self) -> str:
        """Why texts that hardly repeat, or are very long, are of no use; empty if they are."""
        if self.is_long:
            return self._long
        if not self.repeats and self.present >= _UNIQUE_FROM:
            return "an identifier: every value differs"
        distinct = TRACKED + 1 if self.levels is None else len(self.levels)
        if distinct > _TEXT_FROM and distinct > _TEXT_SHARE * self.present:
            return "free text: most values differ"
        return ""


def profile(
    table: Table,
    columns: Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Profile]:
    """A profile of each column, from one pass over the file; a TableError without rows."""
    names = list(table.names if columns is None else columns)
    profiles = {name: Profile(name) for name in names}
    for start, frame in table.chunks(names, progress=progress):
        for name in names:
            profiles[name].update(frame[name], start)
    if not any(p.rows for p in profiles.values()):
        raise TableError(f"{table.label} has a header and no rows")
    return profiles


def _day(seconds: float) -> str:
    return str(np.datetime64(round(seconds), "s").astype("datetime64[D]"))
