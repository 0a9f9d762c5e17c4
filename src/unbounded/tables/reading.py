"""Tables, a chunk at a time: CSV, TSV and Parquet files, plain or gzipped, and frames."""

import io
import os
import shutil
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from unbounded.steps.disk_files import parquet_files
from unbounded.tables import lines, sniff
from unbounded.tables.arrow import NO_VALUE as NO_VALUE
from unbounded.tables.arrow import arrow_texts as arrow_texts
from unbounded.tables.arrow import check_size, frame_to_arrow, from_arrow, text_types
from unbounded.tables.arrow import is_text as is_text
from unbounded.tables.arrow import pandas as pandas
from unbounded.tables.text import TableError as TableError
from unbounded.tables.text import blanks_before_quotes, closest

LONGEST_TEXT = 1 << 16
"""Letters of a column's name, a class or a category, at most: longer texts are free ones."""

# What stands for "nothing is known" in a text file; a user may add to these.
MISSING = (
    *("", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "NaN", "nan", "-nan", "NaT"),
    *("NULL", "Null", "null", "None", "none", "?", "-", "."),
)

STREAM = Path("standard input")  # what errors call a stream

_CELLS = 1_500_000  # cells a chunk, about: what bounds the memory of everything that streams


class Chunk(NamedTuple):
    """Some rows of a table."""

    start: int  # index of the first row, from 0
    frame: Any  # a pandas frame; text is stripped, what stands for missing is missing


class Table:
    """Rows with named columns, from a file or a frame. Opening a file reads its header alone.

    Args:
        source: the path of a CSV, TSV or Parquet file, plain or gzipped, or of a folder of Parquet
            files with the same columns; or a pandas or polars frame. What a file is follows from
            its content; of its name, only the endings .tsv and .tab count (tabs). A stream of
            bytes, such as standard input, is copied to a temporary file first: tables are read
            more than once.
        delimiter: between the fields; by default the one that the header uses most.
        encoding: of the text; UTF-8 (or UTF-16 with its mark) by default.
        missing: texts that stand for a missing value, besides `MISSING`.
        literal: columns in which no text but the empty one does.

    Raises:
        TableError: if the source is empty or no table, or if two columns have one name.
    """

    def __init__(
        self,
        source: Any,
        *,
        delimiter: str | None = None,
        encoding: str | None = None,
        missing: Sequence[str] = (),
        literal: Collection[str] = (),
    ):
        pandas()
        if delimiter is not None and len(delimiter) != 1:
            raise TableError(f"a delimiter is a single character, got {delimiter!r}")
        for text in missing:
            if not text.isprintable() and text.encode("utf-8", "ignore").decode() != text:
                raise TableError(f"missing: {text!r} is no text in UTF-8")
        self.missing = tuple(dict.fromkeys((*MISSING, *missing)))
        self.literal = frozenset(literal)
        self.num_rows: int | None = None
        """How many rows there are, where the source says so."""
        self.delimiter = ","
        self.encoding = "utf-8-sig"
        self.is_parquet = self.is_gzip = False
        self._arrow: Any = None  # the frame's rows
        self._types: dict[str, Any] = {}  # of a Parquet file's columns
        self._files: list[Table] = []  # of a folder
        self._identity: tuple[int, ...] | None = None  # of the file that was opened first
        if isinstance(source, str | Path) or hasattr(source, "read"):
            self.path = self._bytes = Path(source) if isinstance(source, str | Path) else STREAM
            if self.path is STREAM:
                self._bytes = _copied(source)
                weakref.finalize(self, self._bytes.unlink, missing_ok=True)
            # A name that is no text (bytes of another encoding) is shown escaped.
            self.label, self.name = (
                text.encode("utf-8", "backslashreplace").decode()
                for text in (str(self.path), self.path.name)
            )
            self.names = self._open_file(delimiter, encoding)
        else:
            self.label, self.name = "the frame", "a frame"
            self._arrow = frame_to_arrow(source)
            self.num_rows = self._arrow.num_rows
            self.names = list(self._arrow.column_names)
        _check_names(self.label, self.names)

    def _open_file(self, delimiter: str | None, encoding: str | None) -> list[str]:
        """Find out what the file is; returns the names of its columns."""
        if not self._bytes.exists():
            raise TableError(f"there is no file {self.path}")
        if self._bytes.is_dir():
            return self._open_folder()
        with self._open() as (file, self.is_gzip), _damaged(self.path):
            sample = file.read(sniff.SAMPLE)
        self.is_parquet = sample[:4] == b"PAR1"
        if self.is_parquet:
            with self._parquet() as parquet:
                self.num_rows = parquet.metadata.num_rows
                return list(parquet.schema_arrow.names)
        self.encoding = sniff.encoding(self.path, sample, encoding)
        sniff.check_text(self.path, sample, self.encoding)
        with self._open() as (file, _), _damaged(self.path):
            text = lines.first_line(self.path, file, self.encoding)
        self.delimiter = delimiter or sniff.delimiter(self.path, text)
        with self._rows() as rows:
            return sniff.column_names(self.path, rows.header, self.delimiter)

    def _open_folder(self) -> list[str]:
        """The Parquet files of a folder, one after another by name."""
        try:
            paths = parquet_files(self.path)
        except ValueError:
            empty = f"{self.path} is a folder without .parquet files"
            raise TableError(f"{empty}, a table was expected") from None
        self._files = [Table(path) for path in paths]
        first, self.is_parquet = self._files[0], True
        for table in self._files:
            if not table.is_parquet:
                raise TableError(f"{table.path} is no Parquet file, as those of a folder should be")
            for name in {*first.names, *table.names}:
                kinds = first._types.get(name), table._types.get(name)
                if kinds[0] != kinds[1]:
                    told = [str(kind) if kind is not None else "not there" for kind in kinds]
                    raise TableError(
                        f"the column {name!r} is {told[0]} in {first.path} and {told[1]} in "
                        f"{table.path}: the files of a folder need the same columns"
                    )
        self.num_rows = sum(table.num_rows or 0 for table in self._files)
        return first.names

    def check_names(self, names: Sequence[str], option: str = "") -> None:
        """A TableError, after the option that gave these names, if a column is not there."""
        for name in names:
            if name not in self.names:
                hint = closest(name, self.names)
                raise TableError(f"{option}{self.label} has no column {name!r}: {hint}")

    def chunks(
        self,
        columns: Sequence[str] | None = None,
        *,
        rows: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Chunk]:
        """The rows in order, a bounded number at a time.

        Args:
            columns: those to give; all by default.
            rows: rows a chunk; by default as many as make about 1.5 million cells.
            progress: called with the number of rows of each chunk.
        """
        for chunk, _ in self.chunks_with((), columns, rows=rows, progress=progress):
            yield chunk

    def chunks_with(
        self,
        raw: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        rows: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[Chunk, dict[str, Any]]]:
        """As `chunks`, each with some columns as they are in the source: Arrow arrays by name.

        Of a text file these are the texts of the fields, blanks included; only a file that puts
        blanks before quotes (`a, "b"`) says that blanks before a field do not belong to it.
        """
        names = list(self.names if columns is None else columns)
        rows = rows or min(max(_CELLS // max(len(self.names), 1), 500), 1 << 16)
        start = 0
        for frame, kept in self._frames(names, rows, raw):
            yield Chunk(start, self._clean(frame[names])), kept
            start += len(frame)
            if progress is not None:
                progress(len(frame))

    def _frames(
        self, names: Sequence[str], rows: int, raw: Sequence[str]
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        for table in self._files:
            yield from table._frames(names, rows, raw)
        if self._files:
            return
        both = list(dict.fromkeys([*names, *raw]))
        if self._arrow is None and not self.is_parquet:
            for frame in self._text_frames(both, rows, not raw or self._blanks_are_skipped()):
                yield frame, {name: arrow_texts(frame[name]) for name in raw}
            return
        if self._arrow is not None:
            batches = iter(self._arrow.select(both).to_batches(max_chunksize=rows))
        else:
            batches = self._parquet_batches(both, rows)
        for batch in batches:
            kept = {name: self._as_written(name, batch.column(name)) for name in raw}
            yield from_arrow(batch.select(names)), kept

    def _as_written(self, name: str, column: Any) -> Any:
        """A column with the type that the file says it has."""
        kind = self._types.get(name, column.type)
        if column.type == kind:
            return column
        check_size(name, column)
        return column.cast(kind)

    def _blanks_are_skipped(self) -> bool:
        """Whether the file has fields with blanks before their quotes."""
        with self._open() as (file, _), _damaged(self.path):
            text = io.TextIOWrapper(file, self.encoding, newline="")
            return blanks_before_quotes(text, self.delimiter)

    def _clean(self, frame: Any) -> Any:
        """Text without blanks around it, and what stands for missing as missing."""
        import pyarrow
        from pyarrow import compute

        pd = pandas()
        columns = {name: frame[name] for name in frame.columns}
        marks = [pyarrow.array(one, pyarrow.string()) for one in (self.missing, [""])]
        for name, series in columns.items():
            if is_text(series):
                texts = arrow_texts(series)
                stripped = compute.utf8_trim_whitespace(texts)
                missing = compute.is_in(stripped, marks[name in self.literal])
                known = compute.if_else(missing, None, stripped)
                columns[name] = pd.Series(pd.array(known, dtype=series.dtype), frame.index)
        return pd.DataFrame(columns, index=frame.index)

    def _text_frames(
        self, names: Sequence[str], rows: int, skip_blanks: bool = True
    ) -> Iterator[Any]:
        pd = pandas()
        place_of = {name: place for place, name in enumerate(self.names)}
        places = [place_of[name] for name in names]
        with self._rows(skip_blanks) as reader, _damaged(self.path):
            for chunk in reader.chunks(rows):
                columns = lines.columns_of(chunk, places)
                yield pd.DataFrame(
                    {n: pd.array(c, dtype="str") for n, c in zip(names, columns, strict=True)}
                )

    @contextmanager
    def _rows(self, skip_blanks: bool = True) -> Iterator[lines.RowReader]:
        with self._open() as (file, _), _damaged(self.path):
            options = (self.encoding, self.delimiter, skip_blanks)
            with lines.row_reader(self.path, file, *options) as reader:
                yield reader

    def _parquet_batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        with self._parquet() as file, _damaged(self.path):
            yield from file.iter_batches(batch_size=rows, columns=list(names))

    @contextmanager
    def _parquet(self) -> Iterator[Any]:
        from pyarrow import parquet

        with ExitStack() as stack:
            file, is_gzip = stack.enter_context(self._open())
            with _damaged(self.path):
                if is_gzip:  # Parquet is read from its end: unpack it onto the disk first
                    unpacked = stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(file, unpacked)
                    file = unpacked
                opened = stack.enter_context(parquet.ParquetFile(file))
                _check_parquet(self.path, opened.metadata, self._bytes.stat().st_size)
                # Texts that repeat stay coded until their size is known.
                self._types = {field.name: field.type for field in opened.schema_arrow}
                coded = [name for name, kind in self._types.items() if kind in text_types()]
                opened = stack.enter_context(parquet.ParquetFile(file, read_dictionary=coded))
            yield opened

    @contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], bool]]:
        """The bytes, unpacked where they are gzipped, and whether they are."""
        with open(self._bytes, "rb") as raw:
            status = os.fstat(raw.fileno())
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if self._identity not in (None, identity):
                raise TableError(f"{self.path} has changed while it was read: try again")
            self._identity = identity
            if not raw.seekable():
                told = f"{self.path} is a pipe, which is read once"
                raise TableError(f"{told}: give a file, or - and the table as standard input")
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not packed:
                yield raw, False
                return
            yield io.BufferedReader(lines.BoundedGzip(self.path, raw), 1 << 16), True


def _copied(stream: IO[bytes]) -> Path:
    """A temporary file with the bytes of a stream."""
    number, name = tempfile.mkstemp(prefix="unbounded-")
    try:
        with open(number, "wb") as file:
            shutil.copyfileobj(stream, file)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def _check_names(label: str, names: Sequence[str]) -> None:
    if not names:
        raise TableError(f"{label} has no columns")
    longest = max(names, key=len)
    if len(longest) > LONGEST_TEXT:
        raise TableError(f"{label} has a column whose name is longer than {LONGEST_TEXT:,} letters")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        shown = ", ".join(repr(name) for name in twice[:5])
        raise TableError(f"{label} has several columns of one name: {shown}")


def _check_parquet(path: Path, metadata: Any, packed: int) -> None:
    """An error if a Parquet file unpacks to more than `lines.max_unpacked`; a cell is a byte."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(max(group.total_byte_size, group.num_rows * group.num_columns) for group in groups)
    size = max(size, metadata.num_rows * metadata.num_columns)
    lines.check_unpacked(path, size, lines.max_unpacked(packed))


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """What goes wrong in a file that is cut short or scrambled, as an error of ours."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        raise TableError(f"{path} is damaged: {_line(error)}") from None
    except UnicodeDecodeError as error:
        raise TableError(sniff.not_text(path, error.encoding, error)) from None


def _line(error: BaseException) -> str:
    """The message of another package's error on one line."""
    return " ".join(str(error).split()) or type(error).__name__
