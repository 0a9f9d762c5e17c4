"""Tables written chunk by chunk: CSV, TSV, JSON lines or Parquet, every value exact.

Numbers are written as the shortest text that reads back as the same number. Columns that are kept
from another table come as Arrow arrays and are not understood, only written: into Parquet as they
are, into text as `_cells` says.
"""

import base64
import json
import math
import re
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import IO, Any

import numpy as np

from unbounded.tables.reading import TableError

KINDS = ("csv", "tsv", "jsonl", "parquet")

# What a spreadsheet takes for a formula (a tab or the end of a line may stand before it), and
# the numbers that begin in the same way.
_FORMULA = re.compile(r" *[=+\-@\t\r\n]")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_SECONDS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class Sink:
    """A table in a file.

    Args:
        file: for text an open file, without translation of line ends; for Parquet a path.
        kind: one of `KINDS`.
        spreadsheet: put an apostrophe before text that a spreadsheet would take for a formula.
    """

    def __init__(self, file: IO[str] | Path, kind: str, *, spreadsheet: bool = False):
        self.file: Any = file
        self.kind = kind
        self.spreadsheet = spreadsheet
        self.names: list[str] = []
        self._delimiter = "\t" if kind == "tsv" else ","
        # Blanks at the ends are quoted, too: many programs take them away otherwise.
        self._quoted = re.compile(f'["\\r\\n{self._delimiter}]|^\\s|^\ufeff|\\s$')
        self._writer: Any = None

    def write(self, columns: dict[str, Any]) -> None:
        """Append rows; the header or the schema comes with the first.

        Args:
            columns: NumPy arrays of numbers or texts, and Arrow arrays of any kind.
        """
        first, self.names = not self.names, list(columns)
        if self.kind == "parquet":
            self._write_group(columns)
        elif self.kind == "jsonl":
            cells = [_json_texts(*_cells(name, values)) for name, values in columns.items()]
            names = (json.dumps(name).replace("%", "%%") for name in columns)
            line = "{" + ",".join(f"{name}:%s" for name in names) + "}\n"
            self.file.writelines(line % row for row in zip(*cells, strict=True))
        else:
            if first:
                self._write_lines([[self._field(name)] for name in columns])
            cells = [self._fields(*_cells(name, values)) for name, values in columns.items()]
            self._write_lines(cells)

    def close(self) -> None:
        """Write the footer of a Parquet file."""
        if self._writer is not None:
            self._writer.close()

    def _write_lines(self, cells: list[list[str]]) -> None:
        rows = zip(*cells, strict=True)
        self.file.writelines(f"{self._delimiter.join(row)}\n" for row in rows)

    def _fields(self, kind: str, values: list[Any]) -> list[str]:
        if kind == "float":
            return ["" if value is None else repr(value) for value in values]
        if kind == "text":
            return ["" if value is None else self._field(value) for value in values]
        return ["" if value is None else str(value) for value in values]

    def _field(self, text: str) -> str:
        if self.spreadsheet and _FORMULA.match(text) and not _NUMBER.fullmatch(text):
            text = f"'{text}"
        return '"' + text.replace('"', '""') + '"' if self._quoted.search(text) else text

    def _write_group(self, columns: dict[str, Any]) -> None:
        import pyarrow
        from pyarrow import parquet

        arrays = {
            name: pyarrow.array(values.tolist(), pyarrow.string())
            if isinstance(values, np.ndarray) and values.dtype == object
            else pyarrow.array(values)
            if isinstance(values, np.ndarray)
            else values
            for name, values in columns.items()
        }
        table = pyarrow.table(arrays)
        try:
            if self._writer is None:
                self._writer = parquet.ParquetWriter(self.file, table.schema)
            self._writer.write_table(table)
        except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid) as error:
            reason = " ".join(str(error).split())
            raise TableError(f"--keep: a column cannot go into a Parquet file: {reason}") from None


def _json_texts(kind: str, values: list[Any]) -> list[str]:
    """Values as JSON: whole numbers with all digits, what is not finite as null."""
    if kind == "float":
        return [repr(v) if v is not None and math.isfinite(v) else "null" for v in values]
    if kind == "text":
        return ["null" if v is None else encode_basestring_ascii(v) for v in values]
    return [json.dumps(value) for value in values]


def _cells(name: str, values: Any) -> tuple[str, list[Any]]:
    """A column's kind ("float", "integer", "boolean" or "text") and its values, None for null.

    Decimals, times, dates and durations become texts with all their digits: times as ISO 8601
    (in UTC with a Z where they have a zone), durations as in PT1.5S. Bytes become base64.

    Raises:
        TableError: if the column is nested.
    """
    if isinstance(values, np.ndarray):
        return "text" if values.dtype == object else "float", values.tolist()
    import pyarrow
    from pyarrow import compute, types

    if isinstance(values.type, pyarrow.BaseExtensionType):
        values = values.storage
    if types.is_run_end_encoded(values.type):
        values = compute.run_end_decode(values)
    kind = values.type
    if types.is_dictionary(kind):
        return _cells(name, values.dictionary_decode())
    if types.is_boolean(kind):
        return "boolean", values.to_pylist()
    if types.is_integer(kind):
        return "integer", values.to_pylist()
    if types.is_floating(kind):
        return "float", [None if v is None else float(v) for v in values.to_pylist()]
    if types.is_timestamp(kind):
        return "text", _times(values)
    if types.is_duration(kind):
        return "text", _durations(values)
    if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind):
        return "text", values.cast(pyarrow.string()).to_pylist()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text", values.to_pylist()
    if types.is_null(kind):
        return "text", [None] * len(values)
    if types.is_fixed_size_binary(kind) or kind in (
        pyarrow.binary(),
        pyarrow.large_binary(),
        pyarrow.binary_view(),
    ):
        coded = (None if v is None else base64.b64encode(v).decode() for v in values.to_pylist())
        return "text", list(coded)
    raise TableError(f"--keep {name}: a column of the kind {kind} can only go into a Parquet file")


def _times(values: Any) -> list[str | None]:
    """Instants as ISO 8601 with all digits of their unit."""
    import pyarrow

    ticks = values.cast(pyarrow.int64())
    there = ticks.is_valid().to_numpy(zero_copy_only=False)
    numbers = ticks.fill_null(0).to_numpy(zero_copy_only=False)
    unit, zone = values.type.unit, "Z" if values.type.tz else ""
    texts = np.datetime_as_string(numbers.view(f"datetime64[{unit}]"), unit=unit)
    return [f"{text}{zone}" if known else None for text, known in zip(texts, there, strict=True)]


def _durations(values: Any) -> list[str | None]:
    import pyarrow

    digits = _SECONDS[values.type.unit]

    def text(ticks: int) -> str:
        whole, rest = divmod(abs(ticks), 10**digits)
        fraction = f".{rest:0{digits}d}" if rest else ""
        return f"{'-' if ticks < 0 else ''}PT{whole}{fraction}S"

    ticks = values.cast(pyarrow.int64()).to_pylist()
    return [None if one is None else text(one) for one in ticks]
