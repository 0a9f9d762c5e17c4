"""`unbounded predict`: a table in, a table of predictions out, a chunk at a time."""

import argparse
import gzip
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from unbounded.atomic import replacing
from unbounded.cli import common
from unbounded.cli.common import CommandError, Console
from unbounded.tables.reading import pandas
from unbounded.tables.text import count_of

NAME = "predict"
HELP = "predict the rows of a table"
DESCRIPTION = """\
Predict the target for every row of a table, in the order of its rows.

For classes: the most probable one and the probability of each. For a number: mean, standard
deviation and the bounds of a central interval of the predictive distribution.

The columns may stand in another order, and others may be there. Categories that training did not
know are taken as rare ones. Memory is bounded: rows by the million are fine."""
EPILOG = """\
examples:
  unbounded predict house.udn new.csv --out predictions.csv
  unbounded predict house.udn new.parquet --keep id --interval 0.5 --out predictions.parquet
  unbounded predict house.udn new.csv | head
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded predict`."""
    common.add_out_argument(
        parser,
        "CSV, or by its ending .tsv, .parquet or .jsonl, also with .gz (default: CSV on standard "
        "output; JSON lines with --json)",
    )
    words = "probability that the interval should hold (default: 0.9)"
    parser.add_argument("--interval", type=common.share, default=0.9, metavar="P", help=words)
    words = "also how much of the uncertainty is noise and how much disagreement between depths"
    parser.add_argument("--parts", action="store_true", help=words)
    common.add_list_argument(parser, "--keep", "columns of the table to put before the predictions")
    common.add_model_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Predict chunk by chunk into a temporary file; it appears when it is whole."""
    console = Console(options)
    if not 0 < options.interval < 1:
        raise CommandError(f"--interval must be between 0 and 1, got {options.interval:g}")
    out: Path | None = options.out
    model, table = common.open_model(options)
    wanted = common.column_names(options, "keep", table)
    keep = [name for name in table.names if name in wanted]
    rows = 0
    with _sink(out, options.json) as sink:
        shown = {"parts": options.parts, "progress": console.shows_progress}
        for frame, columns in model.predict_chunks(table, interval=options.interval, **shown):
            both = [name for name in keep if name in columns]
            if both:
                raise CommandError(f"--keep {both[0]}: the predictions have a column of this name")
            kept = {name: frame[name].reset_index(drop=True) for name in keep}
            sink.write(kept | columns)
            rows += len(frame)
    if out is not None:
        console.say(f"{count_of(rows, 'row')} predicted: {out}")
        console.result({"rows": rows, "out": out, "columns": sink.names})


class Sink:
    """A table in a file: CSV, TSV, JSON lines or (then the file is a path) Parquet."""

    def __init__(self, file: Any, kind: str):
        self.file = file
        self.kind = kind
        self.names: list[str] = []
        self._writer: Any = None

    def write(self, columns: dict[str, Any]) -> None:
        """Append rows; the header or the schema comes with the first."""
        first, self.names = not self.names, list(columns)
        if self.kind == "parquet":
            self._write_group(pandas().DataFrame(columns))
            return
        frame = pandas().DataFrame({name: _whole(values) for name, values in columns.items()})
        if self.kind == "jsonl":
            frame.to_json(self.file, orient="records", lines=True, double_precision=9)
            return
        style = {"sep": "\t" if self.kind == "tsv" else ",", "float_format": "%.8g"}
        frame.to_csv(self.file, header=first, index=False, lineterminator="\n", **style)

    def _write_group(self, frame: Any) -> None:
        import pyarrow
        from pyarrow import parquet

        schema = None if self._writer is None else self._writer.schema
        table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self.file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Write the footer of a Parquet file."""
        if self._writer is not None:
            self._writer.close()


def _whole(values: Any) -> Any:
    """Whole numbers that were kept as such: Parquet's are read as floating-point numbers."""
    if not hasattr(values, "reset_index") or values.dtype.kind != "f":
        return values
    there = values.dropna()
    whole = bool(((there == there.round()) & (there.abs() < 2**53)).all())
    return values.astype("Int64") if whole else values


_KINDS = {".parquet": "parquet", ".pq": "parquet", ".tsv": "tsv", ".tab": "tsv"}
_KINDS |= {".jsonl": "jsonl", ".ndjson": "jsonl"}


@contextmanager
def _sink(out: Path | None, json_lines: bool) -> Iterator[Sink]:
    """Where predictions go; a file or standard output gets all of them or nothing."""
    if out is None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
            yield Sink(file, "jsonl" if json_lines else "csv")
            file.seek(0)
            shutil.copyfileobj(file, sys.stdout)
        return
    endings = [ending.lower() for ending in out.suffixes]
    is_gzip = endings[-1:] == [".gz"]
    kind = _KINDS.get("".join((endings[:-1] if is_gzip else endings)[-1:]), "csv")
    with replacing(out) as temporary:
        if kind == "parquet":
            with closing(Sink(temporary, kind)) as sink:
                yield sink
        else:
            opener = gzip.open if is_gzip else open
            with opener(temporary, "wt", encoding="utf-8", newline="") as file:
                yield Sink(file, kind)
