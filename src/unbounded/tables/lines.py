"""Text files as rows of fields, in bounded memory: one parser for the header and for the rows.

A row has as many fields as the header has names. Rows that are shorter or longer, quotes that
nobody closed and lines without an end are errors that name the line.
"""

import csv
import gzip
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from unbounded.tables.text import TableError, count_of

LONGEST_LINE = 1 << 26
"""Characters of a line, and of a field that goes over several lines, at most."""
MAX_UNPACKED = 1 << 30
"""Bytes that any compressed file may unpack to; a larger one may unpack to `MAX_RATIO` times its
size. The environment variable UNBOUNDED_MAX_UNPACKED sets another number of bytes for all."""
MAX_RATIO = 100
_VARIABLE = "UNBOUNDED_MAX_UNPACKED"
_CHUNK_TEXT = 1 << 26  # characters of the rows that are read at a time, about
_END = "\0end"  # no line of a table: those with a NUL are refused


def max_unpacked(packed: int) -> int:
    """The bytes that a compressed file of this size may unpack to."""
    given = os.environ.get(_VARIABLE)
    if given is None:
        return max(MAX_UNPACKED, MAX_RATIO * packed)
    try:
        return int(float(given))
    except (ValueError, OverflowError):
        raise TableError(f"{_VARIABLE} should be a number of bytes, got {given!r}") from None


def check_unpacked(path: Path, size: int, bound: int, what: str = "unpacks to") -> None:
    """A TableError if a file unpacks to more than the bound."""
    if size > bound:
        raise TableError(
            f"{path} {what} more than {bound / 2**30:.3g} GiB, which is suspicious for its size: "
            f"if it is meant, set {_VARIABLE} to the bytes that are fine"
        )


class BoundedGzip(io.RawIOBase):
    """A gzip file's content, up to the bound of `max_unpacked`."""

    def __init__(self, path: Path, raw: IO[bytes]):
        self._path = path
        self._file = gzip.GzipFile(fileobj=raw)
        self._bound = max_unpacked(os.fstat(raw.fileno()).st_size)
        self._count = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        data = self._file.read1(len(buffer))
        self._count += len(data)
        check_unpacked(self._path, self._count, self._bound)
        buffer[: len(data)] = data
        return len(data)


class RowReader:
    """The rows of an open text file as lists of fields; the first that is not blank is the header.

    Blank lines count for nothing, but in a table of one column they are rows without a value.
    """

    def __init__(self, path: Path, text: IO[str], delimiter: str, skip_blanks: bool = True):
        self.path = path
        self._text = text
        self._size = 0  # characters of the lines since the last chunk
        self._reader = csv.reader(self._lines(), delimiter=delimiter, skipinitialspace=skip_blanks)
        self.header: list[str] = []
        while not self.header and (rows := self._take(1)):
            self.header = [] if _is_blank(rows[0]) else rows[0]
        self._header_end = self._reader.line_num

    def chunks(self, rows: int) -> Iterator[list[list[str]]]:
        """The rows after the header, at most so many at a time, all of the header's length."""
        while found := self._take(rows):
            yield found

    def _take(self, rows: int) -> list[list[str]]:
        """The next rows; none at the end."""
        reader, width = self._reader, len(self.header)
        found: list[list[str]] = []
        line, self._size = reader.line_num, 0
        with _long_fields(self.path):
            for row in reader:
                if not row or len(row) != width or row[-1].endswith(_END):
                    if row == [_END]:
                        break
                    if row and row[-1].endswith(_END):
                        said = f"a quote that opens in line {line + 1} never closes"
                        raise TableError(f"{self.path} is no table: {said}")
                    if width > 1 and _is_blank(row):
                        line = reader.line_num
                        continue
                    if width:
                        row = [""] if _is_blank(row) else self._refuse(row, line + 1)
                found.append(row)
                line = reader.line_num
                if len(found) == rows or self._size > _CHUNK_TEXT:
                    break
        return found

    def _refuse(self, row: Sequence[str], line: int) -> NoReturn:
        width = len(self.header)
        fewer = len(row) < width
        remedy = "put fields that hold the delimiter into quotes"
        if fewer:
            remedy = "write empty fields for values that are missing"
        elif len(row) == width + 1 and line == self._header_end + 1:  # as R writes row names
            remedy = (
                "if the first column is an index without a name, put a name (or an empty one) "
                f"before the others in the header; else {remedy}"
            )
        what = "fewer" if fewer else "more"
        raise TableError(
            f"{self.path} is no table: line {line} has {count_of(len(row), 'field')}, {what} than "
            f"the {count_of(width, 'column')} that the header names; {remedy}"
        )

    def _lines(self) -> Iterator[str]:
        number = 0
        while line := self._text.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise TableError(
                    f"{self.path} is no table: line {number} is longer than {LONGEST_LINE:,} "
                    "characters"
                )
            if "\0" in line:
                raise TableError(f"{self.path} is no table: it holds binary data (line {number})")
            self._size += len(line)
            yield line if number > 1 else line.removeprefix("\ufeff")
        yield _END


def first_line(path: Path, file: IO[bytes], encoding: str) -> str:
    """The first line of an open text file that is not blank, whole; empty if there is none."""
    with _decoded(file, encoding) as text:
        while line := text.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise TableError(f"{path} is no table: a line without an end is not a header")
            if line.strip().removeprefix("\ufeff"):
                return line
    return ""


def num_fields(path: Path, line: str, delimiter: str) -> int:
    """How many fields a line has with this delimiter."""
    with _long_fields(path):
        return len(next(csv.reader([line], delimiter=delimiter)))


@contextmanager
def row_reader(
    path: Path, file: IO[bytes], encoding: str, delimiter: str, skip_blanks: bool = True
) -> Iterator["RowReader"]:
    """The rows of an open text file, which stays open; without blanks before fields or with."""
    with _decoded(file, encoding) as text:
        yield RowReader(path, text, delimiter, skip_blanks)


def columns_of(rows: Sequence[Sequence[str]], places: Sequence[int]) -> list[tuple[str, ...]]:
    """The fields of some columns, `(rows,)` each."""
    if len(places) * 4 > len(rows[0]):
        every = list(zip(*rows, strict=True))
        return [every[place] for place in places]
    return [tuple(row[place] for row in rows) for place in places]


def _is_blank(row: Sequence[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


@contextmanager
def _decoded(file: IO[bytes], encoding: str) -> Iterator[IO[str]]:
    """The text of an open file, line ends as they are."""
    text = io.TextIOWrapper(file, encoding, newline="")
    try:
        yield text
    finally:
        text.detach()  # else it would close the file when it goes


@contextmanager
def _long_fields(path: Path) -> Iterator[None]:
    """The parser's own bound of a field, which is one for the whole process, raised to ours."""
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield
    except csv.Error as error:
        raise TableError(f"{path} is no table: {error}") from None
    finally:
        csv.field_size_limit(before)
