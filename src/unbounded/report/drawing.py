"""What all charts share: the frame with its axes, text, colours, escaping."""

import html
import re
from typing import NamedTuple, TypedDict

from unbounded.report.axes import Axis

WIDTH, HEIGHT = 440.0, 264.0
COLOURS = 6  # series and classes before the colours repeat
MIDDLE = 0.35  # from the middle of a line of text to its baseline
CHAR = 8.0  # units a character takes at the largest size of text, the one of narrow figures

STYLE = """
.chart { margin: 0; container-type: inline-size; min-width: 0; }
.chart svg { display: block; width: 100%; height: auto; overflow: visible; }
.chart figcaption { font-size: .86rem; font-weight: 600; margin: 0 0 .45rem; line-height: 1.35;
  overflow-wrap: anywhere; }
.chart .legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: 0 0 .4rem; padding: 0;
  list-style: none; font-size: .8rem; color: var(--muted); }
.chart .legend li { display: inline-flex; align-items: center; gap: .4rem; overflow-wrap: anywhere;
  min-width: 0; }
.chart .key { flex: none; width: .95rem; height: 3px; border-radius: 2px;
  background: currentColor; }
.chart .key.dot { width: .6rem; height: .6rem; border-radius: 50%; }
.chart .key.cross { background: none; width: auto; height: auto; line-height: 1; font-weight: 700; }
.chart .key.ramp { width: 3.2rem; height: .6rem;
  background: linear-gradient(to right, transparent, currentColor);
  outline: 1px solid var(--edge); }
.chart .key.dash { background: none; height: 0; border-radius: 0; border-top: 2px dashed; }
.chart text { font-size: 12px; fill: var(--muted); font-variant-numeric: tabular-nums; }
.chart text.strong { fill: var(--ink); }
.chart .grid { stroke: var(--grid); stroke-width: 1; vector-effect: non-scaling-stroke; }
.chart .axis { stroke: var(--axis); stroke-width: 1; vector-effect: non-scaling-stroke; }
.chart .line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round; vector-effect: non-scaling-stroke; }
.chart .mark { stroke: var(--axis); stroke-width: 1; stroke-dasharray: 2 3;
  vector-effect: non-scaling-stroke; }
.chart .mark.short { stroke-dasharray: none; }
.chart .reference { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 5 4;
  vector-effect: non-scaling-stroke; }
.chart .whisker { stroke: var(--ink); stroke-width: 1.2; vector-effect: non-scaling-stroke; }
.chart .bar { fill: currentColor; }
.chart .bar:hover, .chart .dot:hover { filter: brightness(1.15) saturate(1.15); }
.chart .dot { fill: currentColor; stroke: var(--card); stroke-width: 1.2;
  vector-effect: non-scaling-stroke; }
.chart .dots { fill: none; stroke: currentColor; stroke-linecap: round; }
.chart .halo { fill: none; stroke: var(--card); stroke-linecap: round; opacity: .85; }
.chart .crosses { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.chart .hit { fill: var(--ink); fill-opacity: 0; }
.chart .hit:hover { fill-opacity: .07; }
.chart .faint { opacity: .28; }
.c1 { color: var(--series-1); } .c2 { color: var(--series-2); } .c3 { color: var(--series-3); }
.c4 { color: var(--series-4); } .c5 { color: var(--series-5); } .c6 { color: var(--series-6); }
.c-ink { color: var(--ink); } .c-muted { color: var(--muted); }
@container (max-width: 440px) { .chart text { font-size: 13px; } }
@container (max-width: 380px) { .chart text { font-size: 14.2px; } }
@container (min-width: 500px) { .chart text { font-size: 11px; } }
@container (min-width: 580px) { .chart text { font-size: 9.6px; } }
@container (min-width: 680px) { .chart text { font-size: 8.4px; } }
@container (min-width: 780px) { .chart text { font-size: 7.3px; } }
"""


class Words(TypedDict):
    """The words around a chart: its title and the names of its axes."""

    title: str
    x_label: str
    y_label: str


class Plot(NamedTuple):
    """The rectangle between the axes, in units of the drawing."""

    left: float
    right: float
    top: float
    bottom: float


class Key(NamedTuple):
    """A line of a legend."""

    name: str
    colour: str  # a class of STYLE
    kind: str = ""  # a line; or "dot", "dash", "cross", "ramp"


def plot_area(y: Axis, top: float = 28.0, height: float = HEIGHT) -> Plot:
    """The rectangle that is left once the axes have their room."""
    left = 9.0 + CHAR * max((len(name) for name in y.names), default=1)
    return Plot(left, WIDTH - 8.0, top, height - 40.0)


class Chart:
    """A figure that is being drawn: grid lines, ticks and names of its axes, then `parts`.

    The vertical axis is named above it, where nobody has to turn their head. Distances are in
    units of text, which is small beside the drawing in wide figures.

    Args:
        plot: where the axes stand.
        words: around them.
        x: the horizontal axis; None leaves it to the caller.
        y: the vertical one; without it the grid is that of the horizontal axis.
        marks: whether labels stand above the plot.
    """

    def __init__(
        self, plot: Plot, words: Words, x: Axis | None, y: Axis | None, *, marks: bool = False
    ):
        left, right, top, bottom = self.plot = plot
        self.words = words
        self.x = (x or _UNIT).scale(left, right)
        self.y = (y or _UNIT).scale(bottom, top)
        self.keys: list[Key] = []
        self.parts: list[str] = []
        for tick, name in zip(y.ticks, y.names, strict=True) if y else ():
            self.parts.append(line("grid", left, self.y(tick), right, self.y(tick)))
            self.parts.append(text(left - 6, self.y(tick), name, "end", drop=MIDDLE))
        above = top - (8 if marks else 12)
        self.parts.append(text(0, above, words["y_label"], drop=-1.4 if marks else 0.0))
        self.parts.append(
            text((left + right) / 2, bottom + 7, words["x_label"], "middle", drop=2.3)
        )
        for tick, name in zip(x.ticks, x.names, strict=True) if x else ():
            px = self.x(tick)
            ends = ("axis", px, bottom, px, bottom + 4) if y else ("grid", px, top, px, bottom)
            self.parts.append(line(*ends))
            # The last label must not leave the drawing.
            self.parts.append(below(min(px, WIDTH - CHAR * len(name) / 2), bottom, name))
        if x and y:
            self.parts.append(line("axis", left, bottom, right, bottom))

    def point(self, x: float, y: float) -> str:
        """Where a point lies, as a path says it."""
        return f"{at(self.x(x))} {at(self.y(y))}"

    def circle(self, x: float, y: float, radius: float, colour: str, tip: str = "") -> str:
        """A dot, perhaps with a tooltip."""
        where = f'cx="{at(self.x(x))}" cy="{at(self.y(y))}" r="{at(radius)}"'
        end = f">{tooltip(tip)}</circle>" if tip else "/>"
        return f'<circle class="dot {colour}" {where}{end}'

    def figure(self, height: float | None = None) -> str:
        """Caption, legend (if it would tell things apart) and drawing."""
        title = escape(self.words["title"])
        height = self.plot.bottom + 40.0 if height is None else height
        legend = "".join(
            f'<li><span class="key {key.colour} {key.kind}" aria-hidden="true">'
            f"{'×' if key.kind == 'cross' else ''}</span>{escape(key.name)}</li>"
            for key in self.keys
        )
        legend = f'<ul class="legend">{legend}</ul>' if legend else ""
        return (
            f'<figure class="chart">{caption(self.words["title"])}{legend}'
            f'<svg viewBox="0 0 {at(WIDTH)} {at(height)}" role="img" aria-label="{title}">'
            f"<title>{title}</title>{''.join(self.parts)}</svg></figure>"
        )


def caption(title: str) -> str:
    """The heading of a figure, if it has one."""
    return f"<figcaption>{escape(title)}</figcaption>" if title else ""


def rect(
    kind: str, x: float, y: float, width: float, height: float, tip: str = "", style: str = ""
) -> str:
    """A rectangle of a class of `STYLE`, with a tooltip."""
    size = f'width="{at(width)}" height="{at(height)}"'
    return f'<rect class="{kind}" x="{at(x)}" y="{at(y)}" {size}{style}>{tooltip(tip)}</rect>'


def path(kind: str, commands: str, style: str = "") -> str:
    """A path of a class of `STYLE`."""
    return f'<path class="{kind}"{style} d="{commands}"/>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float, tip: str = "") -> str:
    """A line of a class of `STYLE`, perhaps with a tooltip."""
    ends = f'x1="{at(x1)}" y1="{at(y1)}" x2="{at(x2)}" y2="{at(y2)}"'
    return f'<line class="{kind}" {ends}>{tooltip(tip)}</line>'


def whisker(x1: float, y1: float, x2: float, y2: float, cap: float = 3.0) -> list[str]:
    """An error bar, upright or lying, with a short stroke at either end."""
    dx, dy = (0.0, cap) if y1 == y2 else (cap, 0.0)
    ends = [(x1, y1), (x2, y2)]
    strokes = [line("whisker", x - dx, y - dy, x + dx, y + dy) for x, y in ends]
    return [line("whisker", x1, y1, x2, y2), *strokes]


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    *,
    strong: bool = False,
    drop: float = 0.0,
) -> str:
    """Words on a baseline at `y`, or `drop` times the size of text below it."""
    if not words:
        return ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    shift = f' dy="{drop:g}em"' if drop else ""
    weight = ' class="strong"' if strong else ""
    return f'<text x="{at(x)}" y="{at(y)}"{shift}{side}{weight}>{escape(words)}</text>'


def below(x: float, y: float, words: str) -> str:
    """Words centred under a tick; their distance to the axis goes with the size of text."""
    return text(x, y + 7, words, "middle", drop=0.78)


def tooltip(words: str) -> str:
    """What a browser shows while the pointer rests on the element around it."""
    return f"<title>{escape(words)}</title>" if words else ""


def colour(index: int) -> str:
    """The class of the colour of a series."""
    return f"c{index % COLOURS + 1}"


def short(words: str, length: int) -> str:
    """Cut to a length, with a sign that it was."""
    return words if len(words) <= length else words[: length - 1] + "…"


def at(value: float) -> str:
    """A coordinate to a hundredth of a unit, without idle digits."""
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if digits in ("-0", "") else digits


def escape(words: object) -> str:
    """Safe as text and in attributes, of HTML and of XML (which has no control characters)."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(words)), quote=True)


_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNIT = Axis([], 0.0, 1.0)
