"""The one way to print: nothing that a terminal cannot show, nothing that it would obey."""

import json
import os
import re
import sys
from typing import Any, TextIO

from unbounded.atomic import naming

# Control characters of ASCII and Latin-1, marks that turn the direction of writing or end a
# line, and halves of characters. A name that holds them must not move the cursor or hide a word.
_CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[{_CONTROLS}]")
_IN_TEXT = re.compile(f"(?![\n\t])[{_CONTROLS}]")
# What is printed instead where the encoding of a terminal has no such character.
_PLAIN = {
    **dict.fromkeys("–—−‐‑", "-"),
    **dict.fromkeys("▏▎▍▌▋▊▉", ""),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("\u00a0\u202f\u2009", " "),
    "█": "#",
    "ℓ": "l",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "×": "x",
    "·": ".",
    "²": "^2",
    "±": "+-",
    "→": "->",
    "ω": "omega",
    "λ": "lambda",
    "δ": "delta",
    "θ": "theta",
}


def printable(text: object) -> str:
    r"""The text with control characters escaped, such as `\x1b`; line feeds and tabs stay."""
    return _IN_TEXT.sub(_escaped, str(text))


def one_line(text: object) -> str:
    r"""A name as part of a line: as `printable`, and a line feed becomes `\n`."""
    return _IN_LINES.sub(_escaped, str(text))


def readable(text: str, file: TextIO | None) -> str:
    """The printable text in characters that the file's encoding has."""
    text = printable(text)
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        parts = (_in_encoding(character, encoding) for character in text)
        return "".join(parts)
    return text


def show(
    text: object = "", file: TextIO | None = None, accent: tuple[str, str] | None = None
) -> None:
    """Print a line or more for people, on standard output by default, to any terminal.

    Args:
        text: the lines.
        file: where to.
        accent: a word of it and its colour, which is seen on terminals alone.
    """
    file = sys.stdout if file is None else file
    if file is not None:  # None: there is no standard output
        with naming("standard error" if file is sys.stderr else "standard output"):
            line = readable(str(text), file)
            if accent is not None and takes_colour(file):  # once there is nothing to obey in it
                word, colour = accent
                line = line.replace(word, f"{_COLOURS[colour]}{word}\x1b[0m", 1)
            # The line and its end at once: other processes may print at the same time.
            print(line + "\n", end="", file=file, flush=True)


_COLOURS = {"red": "\x1b[1;31m", "yellow": "\x1b[33m"}


def takes_colour(file: TextIO) -> bool:
    """Whether a file is a terminal with colours whose user has not asked for none (NO_COLOR)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and hasattr(file, "isatty") and file.isatty()


def show_json(document: Any) -> None:
    """Print plain data as one JSON document on standard output."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    text = _IN_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2, allow_nan=False).replace("\x7f", "\\u007f")
    if sys.stdout is not None:
        with naming("standard output"):
            print(text, flush=True)


def _escaped(found: re.Match[str]) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(found[0])
    return short.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _in_encoding(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        plain = _PLAIN.get(character, character)
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return character
