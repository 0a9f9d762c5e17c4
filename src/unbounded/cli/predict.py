"""`unbounded predict`: a table in, a table of predictions out, a chunk at a time."""

import argparse
import gzip
import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from unbounded import atomic
from unbounded.cli import common, outputs
from unbounded.cli.common import CommandError, Console
from unbounded.printing import one_line, readable
from unbounded.tables.text import count_of
from unbounded.tables.writing import Sink

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
        "CSV, or by its ending .tsv, .parquet or .jsonl, also with .gz (default, and -: CSV on "
        "standard output; JSON lines with --json)",
    )
    words = "probability that the interval should hold (default: 0.9)"
    parser.add_argument("--interval", type=common.share, default=0.9, metavar="P", help=words)
    words = "by held-out rows of the training table: holds what it says whatever the model is worth"
    parser.add_argument("--conformal", action="store_true", help=f"the interval {words}")
    words = "also how much of the uncertainty is noise and how much disagreement between depths"
    parser.add_argument("--parts", action="store_true", help=words)
    words = "columns of the table to put before the predictions, exactly as they are"
    common.add_list_argument(parser, "--keep", words)
    parser.add_argument(
        "--spreadsheet",
        action="store_true",
        help="put an apostrophe before texts that a spreadsheet would take for formulas: those "
        "that begin with =, +, -, @, a tab or an end of line and are no numbers",
    )
    common.add_model_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Predict chunk by chunk into a temporary file; it appears when it is whole."""
    console = Console(options)
    if not 0 < options.interval < 1:
        raise CommandError(f"--interval must be between 0 and 1, got {options.interval:g}")
    if str(options.out) == "-":
        options.out = None
    out: Path | None = options.out
    model, table = common.open_model(options, outputs.PREDICTIONS)
    wanted = common.column_names(options, "keep", table)
    keep = [name for name in table.names if name in wanted]
    rows = 0
    with _sink(out, options.json, options.spreadsheet) as sink:
        shown = {"parts": options.parts, "progress": console.shows_progress}
        chosen = {"interval": options.interval, "conformal": options.conformal, "keep": keep}
        for frame, columns in model.predict_chunks(table, **chosen, **shown):
            sink.write(columns)
            rows += len(frame)
    if out is not None:
        console.say(f"{count_of(rows, 'row')} predicted: {one_line(out)}")
        console.result({"rows": rows, "out": out, "columns": sink.names})


_KINDS = {".parquet": "parquet", ".pq": "parquet", ".tsv": "tsv", ".tab": "tsv"}
_KINDS |= {".jsonl": "jsonl", ".ndjson": "jsonl"}
# Files of these names hold something else, and programs would take ours for broken ones.
_OTHERS = {".xlsx", ".xls", ".ods", ".json", ".feather", ".arrow", ".pkl", ".html", ".xml"}
_OTHERS |= {".udn", ".safetensors", ".onnx", ".pt2", ".zip", ".bz2", ".xz", ".zst"}
_WORDS = {"jsonl": "JSON lines", "parquet": "Parquet"}


@contextmanager
def _sink(out: Path | None, json_lines: bool, spreadsheet: bool) -> Iterator[Sink]:
    """Where predictions go; a file or standard output gets all of them or nothing."""
    kind, opener = ("jsonl" if json_lines else "csv"), _open
    if out is not None:
        endings = [ending.lower() for ending in out.suffixes]
        is_gzip = endings[-1:] == [".gz"]
        ending = "".join((endings[:-1] if is_gzip else endings)[-1:])
        if ending in _OTHERS:
            raise CommandError(
                f"predictions are not written as {ending}: "
                "end --out with .csv, .tsv, .jsonl or .parquet"
            )
        kind = _KINDS.get(ending, "csv")
        opener = _open_gzip if is_gzip else _open
    if spreadsheet and kind not in ("csv", "tsv"):
        raise CommandError(f"--spreadsheet is for CSV and TSV, not for {_WORDS[kind]}")
    # `spooling` first: standard output gets nothing of a table that is not whole.
    with atomic.spooling("standard output") if out is None else atomic.replacing(out) as temporary:
        if kind == "parquet":
            with closing(Sink(temporary, kind)) as sink:
                yield sink
        else:
            with opener(temporary) as file:
                yield Sink(file, kind, spreadsheet=spreadsheet)
        if out is None:
            _print_file(temporary)


def _open(path: Path) -> IO[str]:
    return open(path, "w", encoding="utf-8", newline="")


def _open_gzip(path: Path) -> IO[str]:
    return gzip.open(path, "wt", encoding="utf-8", newline="")


def _print_file(path: Path) -> None:
    """Copy to standard output: byte by byte, but to a terminal only what it can show."""
    output = sys.stdout
    binary = None if output.isatty() else getattr(output, "buffer", None)
    output.flush()
    if binary is not None:
        # Unbuffered streams may write less than they are given, without a word.
        writer = binary if isinstance(binary, io.BufferedIOBase) else io.BufferedWriter(binary)
        try:
            with path.open("rb") as file:
                shutil.copyfileobj(file, writer)
                writer.flush()
        finally:
            if writer is not binary:
                writer.detach()
        return
    with path.open(encoding="utf-8", newline="") as text:
        while block := text.read(1 << 20):
            output.write(readable(block, output) if output.isatty() else block)
    output.flush()
