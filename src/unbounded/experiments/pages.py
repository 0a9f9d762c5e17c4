"""Tables and figures of a study written, also again, and into a page of the documentation."""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unbounded.experiments import figures, records
from unbounded.printing import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Drawings = Mapping[str, tuple[Callable[[Figure], None], tuple[float, float]]]

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def insert(page: str, text: str) -> str:
    """A page with `text` between its two marks, which must be there."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must have one {BEGIN} and one {END} behind it")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with an end of line."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def plus_minus(mean: float, error: float | None, digits: int) -> str:
    """ "1.0 ± 0.1"; the mean alone where the error is None or NaN."""
    shown = f"{mean:.{digits}f}".replace("-", "−")
    return shown if error is None or math.isnan(error) else f"{shown} ± {error:.{digits}f}"


def publish(folder: Path, text: str, drawings: "Drawings", loud: str = "") -> str:
    """Write `table.md` and the figures into a folder; returns the page.

    Args:
        folder: where.
        text: of the page.
        drawings: the painter and the size of each figure, by file name. One that has nothing to
            draw is left out, and the page says so.
        loud: what must be said before anything else.
    """
    records.write_text(folder / "table.md", text)  # before drawing, which may fail
    left_out = ""
    for name, (paint, size) in drawings.items():
        try:
            records.write_text(folder / name, figures.render(paint, size))
        except figures.NothingToDraw as error:
            (folder / name).unlink(missing_ok=True)  # of runs that are no longer there
            left_out += f"- {name}: {error}\n"
    if left_out:
        text += f"\n### What is not drawn\n\n{left_out}"
    if loud:
        text = f"**{loud}**\n\n{text}"
    records.write_text(folder / "table.md", text)
    return text


def rewrite(
    write: Callable[[Path], str],
    about: str | None,
    results: str,
    arguments: list[str] | None = None,
) -> int:
    """A program that writes a study's tables and figures again from its files.

    Args:
        write: does it for a folder; returns the tables as Markdown.
        about: what the program does.
        results: what the folder is.
        arguments: of the command line; the process's own by default.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("results", type=Path, help=results)
    parser.add_argument("--into", type=Path, help=f"also between {BEGIN} and {END} of this page")
    options = parser.parse_args(arguments)
    text = write(options.results)
    show(text)
    if options.into is not None:
        page = options.into.read_text(encoding="utf-8")
        records.write_text(options.into, insert(page, text))
    return 0
