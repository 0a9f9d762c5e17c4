"""q(ℓ) as bars in a terminal."""

import math
from collections.abc import Sequence

from unbounded.printing import show as show

_EIGHTHS = " ▏▎▍▌▋▊▉"
_ROWS = 24  # what fits on a screen beside the rest of a report
_TAIL = 1e-3  # mass that may be left out at either end of a long posterior


def depth_bars(probs: Sequence[float], first_depth: int = 1, width: int = 40) -> str:
    """q(ℓ) as horizontal bars, a line for each depth.

    A posterior of more depths than a screen has lines is shown without its tails, several
    depths to a line where need be; a last line says what was left out or put together.

    Args:
        probs: q(first_depth), q(first_depth + 1), …
        first_depth: the depth of the first probability.
        width: characters of the longest bar.

    Example:
        >>> print(depth_bars([0.25, 0.5, 0.25], width=8))
        depth  q(ℓ)
            1  0.250  ████
            2  0.500  ████████
            3  0.250  ████
    """
    values = [float(p) for p in probs]
    if not values:
        raise ValueError("there are no probabilities to show, at least one is needed")
    if not all(math.isfinite(p) and p >= 0 for p in values):
        raise ValueError("probabilities must be finite and at least 0")
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    start, stop = shown_range(values, _ROWS)
    size = -(-(stop - start) // _ROWS)  # depths a line
    rows: list[tuple[str, float]] = []
    for low in range(start, stop, size):
        high = min(low + size, stop)
        names = (str(first_depth + low), str(first_depth + high - 1))
        rows.append((names[0] if high - low == 1 else "–".join(names), sum(values[low:high])))
    largest = max(p for _, p in rows) or 1.0
    column = max(len("depth"), *(len(name) for name, _ in rows))
    lines = [f"{'depth':>{column}}  q(ℓ)"]
    for name, p in rows:
        lines.append(f"{name:>{column}}  {p:.3f}  {_bar(p / largest * width)}".rstrip())
    notes = [f"{size} depths a line"] if size > 1 else []
    if stop - start < len(values):
        hidden, mass = len(values) - (stop - start), sum(values[:start]) + sum(values[stop:])
        among = f"{first_depth}–{first_depth + len(values) - 1}"
        notes.append(f"{hidden} of the depths {among} not shown, together {mass:.1e}")
    return "\n".join([*lines, f"({'; '.join(notes)})"] if notes else lines)


def shown_range(probs: Sequence[float], at_most: int) -> tuple[int, int]:
    """The indices `start, stop` worth showing: all `at_most` of them, or all but thin tails."""
    if len(probs) <= at_most:
        return 0, len(probs)
    total = sum(probs)
    start, stop = 0, len(probs)
    left = right = 0.0
    while stop - start > 1 and left + probs[start] <= _TAIL * total:
        left += probs[start]
        start += 1
    while stop - start > 1 and right + probs[stop - 1] <= _TAIL * total:
        right += probs[stop - 1]
        stop -= 1
    return start, stop


def _bar(length: float) -> str:
    """A bar to the nearest eighth of a character; anything above zero leaves a trace."""
    eighths = round(length * 8)
    if eighths == 0 and length > 0:
        eighths = 1
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
