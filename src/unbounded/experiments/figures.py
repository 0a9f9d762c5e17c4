"""Style and files of the study figures, drawn with matplotlib (the extra `figures`)."""

import textwrap
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from unbounded.experiments import StudyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: people who are colour-blind can tell them apart, too.
BLUE, ORANGE, GREEN, PINK, RED, SKY = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"),
)
INK, MUTED, GRID = "#1f2430", "#5b6472", "#e3e5ea"

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "font.size": 9,
    "grid.color": GRID,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # words stay words: small files that can be searched
    "svg.hashsalt": "unbounded",  # equal numbers give equal files
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}


SIZE = (7.2, 4.2)
"""Width and height in inches, where a figure does not say otherwise."""


class NothingToDraw(ValueError):
    """No run has anything for a figure."""


def render(paint: Callable[["Figure"], None], size: tuple[float, float] = SIZE) -> str:
    """A figure as the text of an SVG file.

    Args:
        paint: draws on the empty figure that it is given.
        size: width and height in inches.

    Raises:
        StudyError: if matplotlib is not installed.
    """
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise StudyError(
            "figures need matplotlib, which is not installed: pip install 'unbounded[figures]'"
        ) from None
    with matplotlib.style.context(["default", STYLE]):  # whatever the user's own settings are
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def title(figure: "Figure", words: str, notes: Sequence[str] = ()) -> None:
    """The title above a figure, and notes below it that nobody should miss."""
    figure.suptitle(words, x=0.01, ha="left", weight="bold", size="large")
    width = int(14 * figure.get_figwidth())  # characters in a line
    lines = [line for note in notes if note for line in textwrap.wrap(note, width)]
    if lines:
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", color=RED, size="medium")


def label(axes: "Axes", x: str, y: str, *, whole: bool = False) -> None:
    """Names of both axes; `whole` puts ticks at whole numbers of x alone."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if whole:
        axes.locator_params(axis="x", integer=True)


def legend(figure: "Figure", handles: Sequence[Any]) -> None:
    """The legend beside all panels."""
    figure.legend(handles=list(handles), loc="outside right upper")


def line(axes: "Axes", points: Sequence[tuple[float, float]], **style: Any) -> Any:
    """A line through (x, y) points; returns it, for a legend."""
    (drawn,) = axes.plot([x for x, _ in points], [y for _, y in points], **style)
    return drawn
