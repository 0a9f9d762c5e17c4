"""What the commands share: errors, printing, arguments, and how they write files."""

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbounded import atomic
from unbounded.printing import one_line, show, show_json
from unbounded.tables import Table
from unbounded.tables.prepare import MIN_ROWS
from unbounded.tables.text import to_json

if TYPE_CHECKING:
    from unbounded.tables import Encoding, TableModel


TABLE_HELP = (
    "CSV, TSV or Parquet, plain or gzipped, or a folder of Parquet files; - is standard input"
)


class CommandError(Exception):
    """An error that the user can fix, told in one line."""


@contextmanager
def told_warnings(console: "Console") -> Iterator[None]:
    """Warnings about training as one line each, as a command tells them."""
    from unbounded.training import TrainingWarning

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def tell(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, TrainingWarning):
                console.warn(f"warning: {message}")
            else:
                usual(message, category, *place, **options)

        warnings.simplefilter("always", TrainingWarning)
        warnings.showwarning = tell
        yield


class Console:
    """Where a command prints.

    With `--json`, standard output holds one JSON document and nothing else: all words go to
    standard error. So they do if a file is written there (`--out /dev/stdout`). Progress is
    always there, and only if that is a terminal.
    """

    def __init__(self, options: argparse.Namespace, speaks: bool = True):
        self.speaks = speaks  # of several processes one does
        self.json = speaks and bool(getattr(options, "json", False))
        self.quiet = not speaks or bool(getattr(options, "quiet", False))
        written = [getattr(options, name, None) for name in ("out", "report")]
        taken = any(path is not None and atomic.descriptor(path) == 1 for path in written)
        self.words_aside = self.json or taken

    @property
    def shows_progress(self) -> bool:
        """Whether bars are drawn."""
        return not self.quiet and sys.stderr.isatty()

    def say(self, text: str = "") -> None:
        """Print a text for people, unless `--quiet` forbids it."""
        if not self.quiet:
            show(text, sys.stderr if self.words_aside else sys.stdout)

    def warn(self, text: str) -> None:
        """Print a warning on standard error."""
        if self.speaks:
            show(f"unbounded: {text}", sys.stderr, accent=("warning:", "yellow"))

    def result(self, document: dict[str, Any]) -> None:
        """Print the document, if `--json` asks for it."""
        if self.json:
            show_json(to_json(document))


# Arguments


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--quiet`."""
    group = parser.add_argument_group("output")
    words = "print one JSON document on standard output"
    group.add_argument("--json", action="store_true", help=words)
    words = "say nothing but errors and warnings"
    group.add_argument("-q", "--quiet", action="store_true", help=words)


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """How a table is read."""
    group = parser.add_argument_group("how the table is read")
    group.add_argument(
        "--delimiter",
        metavar="CHAR",
        type=_delimiter,
        help="between the fields (default: told from the header: comma, tab, semicolon or bar)",
    )
    group.add_argument("--encoding", help="of the text (default: UTF-8)")


def add_model_arguments(parser: argparse.ArgumentParser, about_table: str = "") -> None:
    """A model file and a table, which may be left out if there is a text about it."""
    parser.add_argument("model", type=Path, help="what `unbounded fit` wrote")
    help = about_table or TABLE_HELP
    parser.add_argument("table", type=Path, nargs="?" if about_table else None, help=help)
    add_device_argument(parser)
    add_table_arguments(parser)
    add_output_arguments(parser)


def add_out_argument(parser: argparse.ArgumentParser, help: str, **options: Any) -> None:
    """`--out` and `--force`."""
    parser.add_argument("--out", type=Path, metavar="FILE", help=help, **options)
    words = "replace files that are there, also those that unbounded did not write"
    parser.add_argument("--force", action="store_true", help=words)


def add_list_argument(parser: Any, name: str, help: str, metavar: str = "COLUMNS") -> None:
    """An option that may be repeated."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=help)


def add_device_argument(parser: Any) -> None:
    """`--device`."""
    words = '"cpu", "cuda" or "auto", the GPU if there is one'
    parser.add_argument("--device", default="auto", help=words)


def open_table(options: argparse.Namespace, missing: Sequence[str]) -> Table:
    """The table that the arguments name, read as they say; "-" is standard input."""
    source = sys.stdin.buffer if str(options.table) == "-" else options.table
    given = {"delimiter": options.delimiter, "encoding": options.encoding, "missing": missing}
    return Table(source, **given)


def open_model(options: argparse.Namespace, kind: str) -> tuple["TableModel", Any]:
    """The model and the table (if one is named) of `add_model_arguments`, and `--out` checked.

    Args:
        options: of the command.
        kind: of the file that it writes, see `outputs.check_output`.
    """
    from unbounded.cli.outputs import check_output
    from unbounded.tables import TableModel

    if options.out is not None:
        check_output(options, options.out, kind, options.model, options.table)
    model = TableModel.load(options.model, check_device(options.device))
    return model, open_table(options, model.encoding.missing) if options.table else None


def column_names(options: argparse.Namespace, option: str, table: Table) -> list[str]:
    """Names of columns from "a,b" and repeated options; a name may hold a comma itself."""
    names: list[str] = []
    for text in getattr(options, option):
        names += [text] if text in table.names else [part.strip() for part in text.split(",")]
    table.check_names(names, f"--{option}: ")
    return names


def check_device(name: str) -> str:
    """The name of a device, if it can be used."""
    from unbounded import devices

    return devices.check_device(name, CommandError)


def _number(kind: Any, test: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    """Reads an argument as a number that passes a test."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
            if test(value):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{expected} was expected, got {text!r}")

    return read


positive = _number(int, lambda v: v >= 1, "a whole number of at least 1")
row_count = _number(int, lambda v: v >= MIN_ROWS, f"a whole number of at least {MIN_ROWS}")
_SEED = "a whole number from 0 to 2,147,483,647"
not_negative = _number(int, lambda v: 0 <= v < 2**31, _SEED)
share = _number(float, lambda v: 0 <= v < 1, "a number from 0 to below 1 (0.9 for 90 %)")
rate = _number(float, lambda v: 0 < v < math.inf, "a positive number")


def _delimiter(text: str) -> str:
    names = {"\\t": "\t", "tab": "\t", "comma": ",", "semicolon": ";", "space": " ", "bar": "|"}
    text = names.get(text, text)
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"a single character was expected, got {text!r}")
    return text


# Words


def columns_of_text(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows as aligned columns; those in `right` are flush right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def column_rows(encoding: "Encoding", *names: str) -> list[list[str]]:
    """A heading and a row for each column of a table: name, kind, `names`, what it is used as."""
    rows = [["  column", "kind", *names, "used as"]]
    for one in encoding.listing():
        kind, use = (one["kind"], one["used_as"]) if one["used_as"] else ("", f"– {one['why']}")
        one["missing"] = f"{one['missing']:,}" if one["missing"] else ""
        rows.append([f"  {one['name']}", kind, *(one[name] for name in names), use])
    return rows


def score_table(
    own: dict[str, float], references: dict[str, dict[str, float]], is_classes: bool, heading: str
) -> str:
    """The scores of a model and of its references as aligned columns."""
    from unbounded.tables.scores import score_rows

    first, *rows = score_rows(own, references, is_classes)
    return columns_of_text([[heading, *first[1:]], *rows], right=range(1, len(first)))


def add_preset_argument(parser: Any, default: str | None = None) -> None:
    """`--preset`, a name of `unbounded.training.PRESETS`, which is slow to import."""
    text = (
        "depth by held-out rows, with what tables need or plain, or by the paper's family and "
        f"gradient (default: {default or 'tables'})"
    )
    names = ("tables", "settled", "paper")
    parser.add_argument("--preset", choices=names, default=default, help=text)
