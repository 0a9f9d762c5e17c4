"""One self-contained HTML page: no script, nothing fetched, light and dark."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from unbounded import atomic
from unbounded.atomic import check_target as check_target
from unbounded.report import svg
from unbounded.report.drawing import COLOURS, caption, escape


@dataclass(frozen=True)
class Section:
    """A heading, a few sentences and figures.

    Attributes:
        title: plain text.
        text: plain text; an empty line starts a new paragraph.
        figures: HTML from `unbounded.report.svg` or `table`, put on the page as it is.
        wide: over the whole width of the page, with the text beside the figure.
        full: the same with the text above, and figures below each other: for large tables.
        across: with `full`, so many figures beside each other where there is room.
        points: plain sentences, as a list below the text.
    """

    title: str
    text: str = ""
    figures: list[str] = field(default_factory=list)
    wide: bool = False
    full: bool = False
    across: int = 1
    points: list[str] = field(default_factory=list)


class Cell(NamedTuple):
    """A cell of a table with more than its text.

    Attributes:
        text: what stands in it.
        note: in small letters below.
        strong: whether it stands out.
        tint: its background: the index of a colour from 0, and how much of it, 0 … 1.
    """

    text: object
    note: str = ""
    strong: bool = False
    tint: tuple[int, float] | None = None


def render(
    title: str, subtitle: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]
) -> str:
    """The page as text.

    Args:
        title: of the page.
        subtitle: a sentence or two below it.
        facts: (name, value) pairs shown as large numbers at the top.
        sections: in order.
    """
    from unbounded import __version__

    numbers = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts
    )
    numbers = f'<dl class="facts">{numbers}</dl>' if numbers else ""
    body = "".join(_section(section) for section in sections)
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta name="generator" content="unbounded {escape(__version__)}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{escape(title)}</title><style>{STYLE}{svg.STYLE}</style></head>\n"
        f"<body><header><h1>{escape(title)}</h1>{_paragraphs(subtitle)}{numbers}</header>\n"
        f"<main>{body}</main>\n"
        f"<footer>Written by unbounded {escape(__version__)}. This page is complete in itself: "
        "it loads nothing and runs nothing.</footer></body></html>\n"
    )


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", names: int = 1
) -> str:
    """A table as a figure; wide ones scroll within it, with a shadow where they go on.

    Args:
        columns: headings.
        rows: cells, shown as `str` gives them, or a `Cell`.
        title: of the figure.
        names: how many columns from the left are names; the others are numbers.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells, there are {len(columns)} columns")
    head = "".join(
        f'<th scope="col"{"" if i < names else _NUMBER}>{escape(c)}</th>'
        for i, c in enumerate(columns)
    )
    body = "".join(
        "<tr>"
        + "".join(_cell(cell, is_name=index < names) for index, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<figure class="chart">{caption(title)}<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>"
    )


def write(path: str | Path, html: str) -> None:
    """Write the page, atomically."""
    atomic.write_text(check_target(path), html)


_NUMBER = ' class="number"'


def _cell(cell: object, is_name: bool) -> str:
    given = cell if isinstance(cell, Cell) else Cell(cell)
    words = escape(given.text)
    words = f"<strong>{words}</strong>" if given.strong else words
    words += f"<small>{escape(given.note)}</small>" if given.note else ""
    if is_name:
        return f'<th scope="row">{words}</th>'
    if given.tint is None:
        return f"<td{_NUMBER}>{words}</td>"
    index, share = given.tint
    mixed = f"var(--series-{index % COLOURS + 1}) {100 * min(max(share, 0.0), 1.0):.0f}%"
    style = f"background: color-mix(in srgb, {mixed}, transparent)"
    return f'<td class="number tinted" style="{style}">{words}</td>'


def _section(section: Section) -> str:
    across = f" across-{min(section.across, 3)}" if section.across > 1 else ""
    kind = f"full{across}" if section.full else "wide" if section.wide else ""
    kind = f' class="{kind}"' if kind else ""
    points = "".join(f"<li>{escape(point)}</li>" for point in section.points)
    points = f'<ul class="points">{points}</ul>' if points else ""
    figures = "".join(section.figures)
    figures = f'<div class="figures">{figures}</div>' if figures else ""
    return (
        f'<section{kind}><div class="words"><h2>{escape(section.title)}</h2>'
        f"{_paragraphs(section.text)}{points}</div>{figures}</section>"
    )


def _paragraphs(text: str) -> str:
    # Not str.split(): a no-break space is there on purpose.
    parts = [re.sub(r"[ \t\r\n]+", " ", part).strip() for part in text.split("\n\n")]
    return "".join(f"<p>{escape(part)}</p>" for part in parts if part)


_LIGHT = """
  --page: #f6f6f3; --card: #ffffff; --ink: #1c2026; --muted: #5f6773; --edge: #e3e3de;
  --grid: #ebebe7; --axis: #a9aeb6; --shadow: #1c202633;
  --series-1: #2566ae; --series-2: #c4581a; --series-3: #2b7d59; --series-4: #7b4fa8;
  --series-5: #8d6c12; --series-6: #ab3a61;
"""
_DARK = """
  --page: #121418; --card: #1a1d23; --ink: #e9eaed; --muted: #9da5b1; --edge: #2a2e36;
  --grid: #292d35; --axis: #5a626e; --shadow: #000000b0;
  --series-1: #6db0f0; --series-2: #f39a5b; --series-3: #62c498; --series-4: #bb98e6;
  --series-5: #d8b74d; --series-6: #ef8cab;
"""
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
@media print {{ :root {{ {_LIGHT} --page: #ffffff; }} section {{ break-inside: avoid; }} }}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }}
body {{ margin: 0 auto; padding: clamp(1.25rem, 4vw, 3.25rem) clamp(1rem, 4vw, 2.5rem);
  max-width: 76rem; background: var(--page); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Noto Sans", "DejaVu Sans",
  sans-serif; font-size: 1rem; }}
header {{ margin-bottom: clamp(1.5rem, 3vw, 2.25rem); }}
h1 {{ font-size: clamp(1.55rem, 1.2rem + 1.6vw, 2.3rem); line-height: 1.15; margin: 0 0 .6rem;
  letter-spacing: -.018em; font-weight: 680; text-wrap: balance; overflow-wrap: anywhere; }}
header p {{ margin: 0 0 .4rem; color: var(--muted); max-width: 44rem; text-wrap: pretty;
  overflow-wrap: anywhere; }}
.facts {{ display: flex; flex-wrap: wrap; gap: 1px; margin: 1.6rem 0 0; overflow: hidden;
  background: var(--edge); border: 1px solid var(--edge); border-radius: .7rem; }}
.facts div {{ display: flex; flex-direction: column; flex: 1 1 min(9.5rem, 45%); min-width: 0;
  background: var(--card); padding: .8rem 1rem .75rem; }}
.facts dt {{ font-size: .78rem; color: var(--muted); line-height: 1.3; overflow-wrap: anywhere; }}
.facts dd {{ margin: auto 0 0; padding-top: .15rem; font-size: 1.4rem; font-weight: 620;
  line-height: 1.2;
  font-variant-numeric: tabular-nums; letter-spacing: -.01em; overflow-wrap: anywhere; }}
main {{ display: grid; gap: 1.1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }}
section {{ background: var(--card); border: 1px solid var(--edge); border-radius: .7rem;
  padding: clamp(1rem, 2.2vw, 1.5rem); min-width: 0; display: flex; flex-direction: column; }}
section.wide, section.full {{ grid-column: 1 / -1; }}
section.full .figures {{ grid-template-columns: minmax(0, 1fr); }}
section.full.across-2 .figures {{
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }}
section.full.across-3 .figures {{
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); }}
section.full p, section.full .points {{ max-width: 60rem; }}
.points {{ margin: 0; padding: 0; list-style: none; font-size: .95rem; }}
.points li {{ padding: .42rem 0 .42rem 1.1rem; position: relative; text-wrap: pretty;
  overflow-wrap: anywhere; }}
.points li::before {{ content: ""; position: absolute; left: 0; top: 1.02em; width: .42rem;
  height: .42rem; border-radius: 50%; background: var(--series-1); }}
h2 {{ font-size: 1.08rem; line-height: 1.3; margin: 0 0 .4rem; letter-spacing: -.006em;
  font-weight: 640; text-wrap: balance; overflow-wrap: anywhere; }}
section p {{ margin: 0 0 .6rem; font-size: .9rem; color: var(--muted); text-wrap: pretty;
  overflow-wrap: anywhere; max-width: 40rem; }}
.figures {{ display: grid; gap: 1.4rem 1.8rem; margin-top: auto; padding-top: .9rem;
  align-items: end;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 18.5rem), 1fr)); }}
@media (min-width: 70rem) {{
  section.wide {{ display: grid; grid-template-columns: minmax(0, 19rem) minmax(0, 1fr);
    gap: 2.2rem; }}
  section.wide .figures {{ margin-top: 0; padding-top: 0; align-items: start; }}
}}
.scroll {{ overflow-x: auto; background:
  linear-gradient(to right, var(--card) 40%, transparent) left / 2.4rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) right / 2.4rem 100% no-repeat local,
  linear-gradient(to right, var(--shadow), transparent) left / .8rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shadow), transparent) right / .8rem 100% no-repeat scroll; }}
.scroll:focus-visible {{ outline: 2px solid var(--series-1); outline-offset: 3px; }}
table {{ border-collapse: collapse; width: 100%; font-size: .86rem;
  font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .38rem .9rem .38rem 0; border-bottom: 1px solid var(--edge);
  font-weight: 400; white-space: nowrap; }}
thead th {{ color: var(--muted); font-size: .8rem; vertical-align: bottom; line-height: 1.3;
  white-space: normal; }}
th small, td small {{ display: block; color: var(--muted); font-size: .76rem; line-height: 1.3;
  white-space: normal; }}
@media (max-width: 34rem) {{
  table {{ font-size: .82rem; }}
  th small {{ display: none; }}
  th.number, td.number {{ padding-left: .5rem; }}
}}
td strong {{ font-weight: 680; }}
td.number.tinted {{ padding-right: .6rem; border: 2px solid var(--card); border-radius: .4rem; }}
th.number, td.number {{ text-align: right; padding-right: 0; padding-left: .9rem; }}
footer {{ margin-top: 2rem; font-size: .8rem; color: var(--muted); }}
"""
