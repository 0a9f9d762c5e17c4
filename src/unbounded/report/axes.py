"""Round ticks and short numbers, and the mapping from data to a drawing's coordinates."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Axis(NamedTuple):
    """The ticks of an axis and the range that it shows, linear or logarithmic."""

    ticks: list[float]
    low: float
    high: float
    log: bool = False
    texts: tuple[str, ...] = ()  # what is written at the ticks, where these are no plain numbers

    @property
    def names(self) -> list[str]:
        """What is written at the ticks."""
        if self.texts:
            return list(self.texts)
        return [number(tick) for tick in self.ticks] if self.log else labels(self.ticks)

    def scale(self, start: float, stop: float) -> Callable[[float], float]:
        """Where a value is drawn, if the range goes from `start` to `stop` of a drawing."""
        log = math.log10 if self.log else float
        low, high = log(self.low), log(self.high)
        return lambda value: start + (log(value) - low) / (high - low) * (stop - start)


def ticks(low: float, high: float, count: int = 5, *, integers: bool = False) -> list[float]:
    """About `count` intervals of round (or whole) numbers that cover `low` to `high`."""
    low, high = widened(low, high)
    step = round_step((high - low) / max(1, count), integers)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Rounding to the step's digits: 3 * 0.1 must read 0.3.
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(index * step, digits) + 0.0 for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Powers of ten that cover `low` to `high` (both positive), their ends included."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if first == last:
        last += 1
    step = -(-(last - first) // max(1, count))
    last = first + -(-(last - first) // step) * step
    return [10.0**power for power in range(first, last + 1, step)]


def labels(values: Sequence[float]) -> list[str]:
    """Tick labels, all with as many decimals as the ticks have."""
    if not values:
        return []
    steps = [b - a for a, b in pairwise(values) if b > a]
    step = min(steps, default=abs(values[0]) or 1.0)
    largest = max(abs(v) for v in values)
    if largest >= 1e5 or step < 1e-4:
        return [number(v) for v in values]
    decimals = next(
        count for count in range(8) if all(abs(v - round(v, count)) < 1e-3 * step for v in values)
    )
    return [f"{v:,.{decimals}f}".replace("-", "−") for v in values]


def number(value: float, digits: int = 3) -> str:
    """A number for people, the one way to write it: short, with a proper minus sign.

    `digits` significant ones, but all of those before the point; commas from 1,000 on, letters
    from a million on, a power of ten only below 0.0001 and from 10¹⁵ on.
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    value += 0.0  # −0 is 0
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        mantissa, power = f"{value:.{max(0, digits - 1)}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        times = "" if mantissa in ("1", "-1") else f"{mantissa}×"
        sign = "−" if mantissa == "-1" else ""
        return f"{sign}{times}10{str(int(power)).translate(_SUPERSCRIPTS)}".replace("-", "−")
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= unit:
            return f"{number(value / unit, digits)}{name}"
    if size < 1:
        return f"{value:.{digits}g}".replace("-", "−")
    decimals = max(0, digits - len(f"{size:.0f}"))
    text = f"{value:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text).replace("-", "−")


def rough(value: float, digits: int = 2) -> str:
    """A number of so many significant digits, for "about": 12,345 is 12,000."""
    return number(float(f"{value:.{digits}g}"), digits)


def inner_ticks(low: float, high: float, count: int = 5, *, integers: bool = False) -> list[float]:
    """Round numbers within `low` to `high`: at least two, where there are two."""
    found: list[float] = []
    for more in (1, 2, 4):
        found = [t for t in ticks(low, high, count * more, integers=integers) if low <= t <= high]
        if len(found) > 1:
            break
    return found


def widened(low: float, high: float) -> tuple[float, float]:
    """The range itself, or one with room around it where it is no more than a point."""
    if high - low > 1e-9 * max(abs(low), abs(high)) and high - low > 1e-200:
        return low, high
    pad = 0.5 if low == round(low) and abs(low) < 100 else abs(low) * 0.1
    pad = max(pad, 1e-100)
    return low - pad, high + pad


def trimmed(low: float, high: float, count: int) -> Axis:
    """An axis that ends soon after the data where the ticks would not."""
    values = ticks(low, high, count)
    if widened(low, high) != (low, high):
        return Axis(values, values[0], values[-1])
    span = high - low
    start = low - 0.04 * span if low - values[0] > 0.1 * span else values[0]
    stop = high + 0.04 * span if values[-1] - high > 0.1 * span else values[-1]
    return Axis(inner_ticks(start, stop, count), start, stop)


def finite(values: Iterable[float]) -> list[float]:
    """Only the values that can be drawn."""
    return [value for value in values if drawable(value)]


def drawable(value: float) -> bool:
    """Whether a value has a place on an axis: finite, and so that differences are finite too."""
    return abs(value) < 1e200  # False for NaN


def round_step(rough: float, integers: bool = False) -> float:
    """The smallest round number of at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(
        factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * 0.999
    )
    if integers:
        step = max(1.0, step)
        if step != round(step):  # 2.5
            step = 5.0 if step == 2.5 else float(math.ceil(step))
    return step
