"""What a text file is, told from its beginning: its encoding, delimiter and names of columns."""

import codecs
import json
import re
from collections.abc import Sequence
from pathlib import Path

from unbounded.tables import lines
from unbounded.tables.text import TableError, is_number, shorten

SAMPLE = 1 << 16  # bytes that are looked at to tell what a file is
_DELIMITERS = (",", "\t", ";", "|")
_MARKUP = re.compile(r"<(!doctype|!--|\?xml|(html|head|body|table|svg)[\s>])", re.I)
_TAG = re.compile(r"<([a-z][\w:.-]*)[\s>]", re.I)


def encoding(path: Path, sample: bytes, given: str | None) -> str:
    """The encoding of a text file, or an error if the file is no text."""
    if given is not None:
        try:
            name = codecs.lookup(given).name
            return "utf-8-sig" if name == "utf-8" else name
        except LookupError:
            raise TableError(f"there is no encoding {given!r}") from None
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if sample.startswith(b"PK\x03\x04"):
        raise TableError(f"{path} is no table but a zip archive or a spreadsheet: export it as CSV")
    if b"\x00" in sample:
        raise TableError(f"{path} is no table: it holds binary data")
    return "utf-8-sig"


def check_text(path: Path, sample: bytes, encoding: str) -> None:
    """An error if a sample of a file, which may end within a character, is no table's."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError as error:
        raise TableError(not_text(path, encoding, error)) from None
    if "\x00" in text:
        raise TableError(f"{path} is no table: it holds binary data")
    start = text.lstrip("\ufeff").lstrip()
    if not start and len(sample) < SAMPLE:
        raise TableError(f"{path} is empty")
    for kind, fits in (("HTML or XML", _is_markup(start)), ("JSON", _is_json(start))):
        if fits:
            quoted = shorten(start.splitlines()[0], 30)
            raise TableError(f"{path} is no table but {kind}: it starts with {quoted!r}")


def _is_markup(text: str) -> bool:
    """Whether text opens as HTML or XML does (a column may well be called "<50k" or "<x>")."""
    first = text.splitlines()[0] if text else ""
    if _MARKUP.match(text):
        return first.startswith(("<!", "<?")) or not any(mark in first for mark in _DELIMITERS)
    tag = _TAG.match(text)
    return tag is not None and f"</{tag[1]}>" in text


def _is_json(text: str) -> bool:
    """Whether text opens as a JSON object or list does (a column may well be called "[cm]")."""
    if text[:1] not in ("{", "["):
        return False
    first = text[1:].lstrip()[:1]
    if text[0] == "{":
        return re.match(r'\{\s*("[^"]*"\s*:|\}|$)', text) is not None
    try:
        json.loads(text.splitlines()[0])
    except ValueError:
        return first in ("{", "[", "")
    return True


def delimiter(path: Path, header: str) -> str:
    """The delimiter that the first line uses most."""
    endings = [suffix.lower() for suffix in path.suffixes]
    if (".tsv" in endings or ".tab" in endings) and "\t" in header:
        return "\t"
    # Fields rather than characters: a delimiter within quotes is none.
    fields = {d: lines.num_fields(path, header, d) for d in _DELIMITERS}
    return max(_DELIMITERS, key=fields.__getitem__)


def column_names(path: Path, fields: Sequence[str], delimiter: str) -> list[str]:
    """The names in a header; a column without one is called by its place."""
    if not fields:
        raise TableError(f"{path} is empty")
    names = [field.strip() for field in fields]
    if all(is_number(name) for name in names) and not all(name.isdigit() for name in names):
        first = f"the first line of {path} holds numbers ({shorten(delimiter.join(names), 30)!r})"
        raise TableError(f"{first}: names of the columns are needed there")
    return [name or f"(column {index})" for index, name in enumerate(names, 1)]


def not_text(path: Path, encoding: str, error: UnicodeDecodeError) -> str:
    """What to say of bytes that are no text in an encoding."""
    return (
        f"{path} is not text in the encoding {encoding.removesuffix('-sig')} "
        f"(byte 0x{error.object[error.start]:02x}); --encoding says another, such as latin-1"
    )
