"""Tables of a study written again, also into a page of the documentation."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from unbounded.experiments import records

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def insert(page: str, text: str) -> str:
    """A page with `text` between its two marks.

    Raises:
        ValueError: if the marks are not there.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must have one {BEGIN} and one {END} behind it")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with an end of line."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


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
    print(text)
    if options.into is not None:
        page = options.into.read_text(encoding="utf-8")
        records.write_text(options.into, insert(page, text))
    return 0
