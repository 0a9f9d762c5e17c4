"""One plain sentence about a curve: how a prediction goes with a column."""

import math
from typing import NamedTuple

import numpy as np

from unbounded.report.axes import number, rough
from unbounded.report.lines import date
from unbounded.tables.values import Floats

_STRAY = 0.2  # of the change, that may go the other way
_LEVEL = 0.05  # of the change, within which a curve counts as flat
_STRETCH = 0.15  # of the range, from which a flat end is worth a word


class Curve(NamedTuple):
    """Mean predictions along a column, with what is needed to speak of them."""

    column: str
    what: str  # is predicted
    means: Floats  # (places,)
    places: Floats | None  # where, in order; None for levels
    levels: tuple[str, ...]
    flat: float  # a change that is none
    is_share: bool  # means are probabilities
    is_time: bool = False


def finding(curve: Curve) -> str:
    """What the curve shows, such as "price rises by about 40 as rooms goes from 3 to 6"."""
    if np.ptp(curve.means) <= curve.flat:
        return f"{curve.what} hardly changes with {curve.column}"
    return _by_level(curve) if curve.places is None else _along(curve, curve.places)


def _by_level(curve: Curve) -> str:
    low, high = int(curve.means.argmin()), int(curve.means.argmax())
    least, most = (_state(curve.levels[i]) for i in (low, high))
    if curve.is_share:
        parts = (f"({curve.means[i]:.0%})".replace("%", " %") for i in (high, low))
        one, other = parts
    else:
        one, other = "", ""
    if len(curve.levels) == 2 and not curve.is_share:
        by = _about(curve.means[high] - curve.means[low])
        return f"{curve.what} is {by} higher where {curve.column} {most} than where it {least}"
    apart = "" if curve.is_share else f", {_about(curve.means[high] - curve.means[low])} apart"
    text = f"{curve.what} is highest where {curve.column} {most} {one}".rstrip()
    return f"{text} and lowest where it {least} {other}".rstrip() + apart


def _along(curve: Curve, xs: Floats) -> str:
    ys, what = curve.means, curve.what
    steps = np.diff(ys)
    up, down = float(steps[steps > 0].sum()), float(-steps[steps < 0].sum())
    if min(up, down) <= _STRAY * max(up, down):
        return f"{what} {_one_way(curve, xs)}"
    for turn in (int(ys.argmax()), int(ys.argmin())):
        before, after = ys[: turn + 1], ys[turn:]
        if 0 < turn < len(ys) - 1 and _is_even(before) and _is_even(after):
            first, then = _change(curve, before[0], ys[turn]), _change(curve, ys[turn], after[-1])
            words = ("rises", "falls") if ys[turn] > before[0] else ("falls", "rises")
            at = _place(curve, xs, turn)
            return f"{what} {words[0]} {first} until {curve.column} is {at}, then {words[1]} {then}"
    low, high = int(ys.argmin()), int(ys.argmax())
    at_low, at_high = (_place(curve, xs, place) for place in (low, high))
    return (
        f"{what} goes up and down with {curve.column}, between {_value(curve, ys[low])} (at "
        f"{at_low}) and {_value(curve, ys[high])} (at {at_high})"
    )


def _one_way(curve: Curve, xs: Floats) -> str:
    """A curve that rises or falls, without its flat ends."""
    ys = curve.means
    low, high = sorted((int(ys.argmin()), int(ys.argmax())))
    done = (ys - ys[low]) / (ys[high] - ys[low])
    span = xs[-1] - xs[0]
    start = max((i for i in range(low, high) if done[i] <= _LEVEL), default=low)
    stop = min((i for i in range(start + 1, high + 1) if done[i] >= 1 - _LEVEL), default=high)
    flat_before = bool(xs[start] - xs[0] >= _STRETCH * span)
    flat_after = bool(xs[-1] - xs[stop] >= _STRETCH * span)
    start, stop = start if flat_before else 0, stop if flat_after else len(ys) - 1
    word = "rises" if ys[stop] > ys[start] else "falls"
    said = f"{word} {_change(curve, ys[start], ys[stop])} as {curve.column} goes from "
    said += f"{_place(curve, xs, start)} to {_place(curve, xs, stop)}"
    ends = ["before" if curve.is_time else "below"] * flat_before
    ends += ["after" if curve.is_time else "beyond"] * flat_after
    return said + (f"; flat {' and '.join(ends)}" if ends else "")


def _is_even(ys: Floats) -> bool:
    """Whether a stretch goes one way, all in all, and somewhere."""
    steps = np.diff(ys)
    up, down = float(steps[steps > 0].sum()), float(-steps[steps < 0].sum())
    return min(up, down) <= _STRAY * max(up, down)


def _change(curve: Curve, start: float, stop: float) -> str:
    if curve.is_share:
        return f"from {_value(curve, start)} to {_value(curve, stop)}"
    return f"by {_about(abs(stop - start))}"


def _about(value: float) -> str:
    return f"about {rough(value)}"


def _value(curve: Curve, value: float) -> str:
    return f"{value:.0%}".replace("%", " %") if curve.is_share else rough(value, 3)


def _place(curve: Curve, xs: Floats, index: int) -> str:
    """A place on the axis, no finer than the axis is long."""
    if curve.is_time:
        return date(float(xs[index]), float(xs[-1] - xs[0]))
    fine = float(xs[-1] - xs[0]) / 50
    digits = -math.floor(math.log10(fine)) if fine > 0 else 0
    return number(round(float(xs[index]), digits), 4)


def _state(level: str) -> str:
    return "is missing" if level == "(missing)" else f"is {level}"
