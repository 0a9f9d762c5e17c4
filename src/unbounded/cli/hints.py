"""What to do next, after an error whose own words say only what is wrong."""

import re
import shlex
from itertools import islice
from pathlib import Path

from unbounded.printing import one_line
from unbounded.tables.text import closest

_MOST_NAMES = 1000  # of a folder; more are not looked at


def next_step(message: str) -> str:
    """The message with a step to take behind it, where one is known and not told yet."""
    for pattern, advice in _STEPS:
        found = re.search(pattern, message)
        step = advice(found) if found else ""
        if step:
            return f"{message}: {step}"
    return message


def _like_it(found: re.Match[str]) -> str:
    """Files in the same folder whose names are nearly the one that is not there."""
    path = Path(found[1])
    try:
        names = [one_line(other.name) for other in islice(path.parent.iterdir(), _MOST_NAMES)]
    except OSError:
        return f"there is no folder {one_line(path.parent)} either"
    advice = closest(path.name, names)
    if advice.startswith("did you mean"):
        return advice
    if path.suffix in (".udn", ".safetensors"):
        return "unbounded fit TABLE --target COLUMN --out FILE writes one"
    return f"look at the names in {one_line(path.parent.resolve())}"


def _make_folder(found: re.Match[str]) -> str:
    return f"mkdir -p {one_line(shlex.quote(found[1]))}"


def _model_file(found: re.Match[str]) -> str:
    if Path(found[1]).suffix.lower() in _TABLES:
        return "it seems to be a table: give the model first, a file that unbounded fit wrote"
    return "give the whole file that unbounded fit wrote (--out)"


def _saved_as_csv(found: re.Match[str]) -> str:
    return "CSV, TSV and Parquet are read; a spreadsheet can be saved as CSV"


def _needed_columns(found: re.Match[str]) -> str:
    return "unbounded inspect MODEL lists the columns that it needs"


def _other_names(found: re.Match[str]) -> str:
    return "change the header"


def _header_and_rows(found: re.Match[str]) -> str:
    return "a table has a line with the names of its columns, then a line for each row"


def _other_device(found: re.Match[str]) -> str:
    return "--device cpu works everywhere, unbounded doctor tells what there is"


_NO_MODEL = ": it is too short for its header|, but not one of this library"
_TABLES = (".csv", ".tsv", ".parquet", ".pq", ".gz", ".txt", ".xlsx")
_STEPS = (
    (r"there is no file (.+)$", _like_it),
    (r"the folder (.+) does not exist$", _make_folder),
    (rf"^(.+) is (?:not a complete|a) safetensors file(?:{_NO_MODEL})?$", _model_file),
    (r"is no table: it holds binary data$", _saved_as_csv),
    (r" lacks (?:the column|\d+ columns) [^;]+$", _needed_columns),
    (r"has several columns of one name", _other_names),
    (r" is empty$| has a header and no rows$", _header_and_rows),
    (r"the device '.*' cannot be used", _other_device),
)
