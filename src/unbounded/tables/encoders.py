"""From the values of one column to numbers near 0 with a spread near 1, kind by kind.

Every encoder is data: it becomes a plain dictionary (`to_dict`) and comes back from one.
"""

import math
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unbounded.scaling import exponents, standardized
from unbounded.schema import (
    Check,
    FileError,
    choice,
    flag,
    list_of,
    mapping,
    real,
    record,
    text,
    wrong,
)
from unbounded.tables.encoder import Coded, Encoder, Response, weights_of
from unbounded.tables.text import count_of
from unbounded.tables.values import Floats, levels_by_number, same_level
from unbounded.tables.weighted import (
    counts_of,
    deviation_of,
    mean_of,
    out_of_fold,
    quantiles,
    smoothed_means,
)
from unbounded.tables.words import MAX_WORDS, WordsEncoder

MAX_LEVELS = 40
"""Categories with more levels than this also get the mean of the target at each level."""
_TOP_LEVELS = 20  # of which the most frequent have a place of their own
_MAX_MEANS = 2_000  # levels whose means are kept in the file
_HUGE = 1e150  # spreads from the centre; beyond this squares overflow
_MIN_LIMIT = 10.0
_YEAR, _WEEK, _DAY = 365.2425 * 86400, 7 * 86400, 86400
# Length and start; 1970 began on a Thursday: weeks are counted from the Monday after.
_CYCLES = {"year": (_YEAR, 0), "week": (_WEEK, 4 * _DAY), "day": (_DAY, 0)}


@dataclass
class Scale:
    """A number made comparable: centred, divided by a spread, heavy tails drawn in.

    z = (x − median) / spread, the spread from the quartiles; where z has heavy tails, asinh(z)
    in its place, which is linear near 0 and logarithmic far out; then the mean and the standard
    deviation of the training rows are taken out. Beyond `limit` values are cut off.
    """

    centre: float = 0.0
    spread: float = 1.0
    heavy: bool = False
    mean: float = 0.0
    sd: float = 1.0
    limit: float = _MIN_LIMIT

    @classmethod
    def fit(cls, values: Floats, weights: Floats | None = None) -> "Scale":
        """From the values of the training rows, `(rows,)`, NaN where there is none.

        Args:
            values: of the rows.
            weights: how often each row counts, `(rows,)`; None for once.
        """
        there = ~np.isnan(values)
        x, weights = values[there], None if weights is None else weights[there]
        if x.size == 0:
            return cls()
        low, centre, high = quantiles(x, weights, [0.25, 0.5, 0.75])
        # In units of a power of two: nothing overflows. 1.349: the quartiles of a Gaussian.
        unit = int(exponents(x[:, None])[0]) + 1
        spread = (math.ldexp(high, -unit) - math.ldexp(low, -unit)) / 1.349
        if not spread > 0:
            squares = (np.ldexp(x, -unit) - math.ldexp(centre, -unit)) ** 2
            spread = float(np.sqrt(mean_of(squares, weights)))
        with np.errstate(over="ignore"):
            spread = min(float(np.ldexp(spread, unit)), sys.float_info.max)
        if not spread > 0:
            return cls(centre=centre, spread=max(abs(centre), 1.0))
        z = np.abs(standardized(x, centre, spread, _HUGE))
        far = np.quantile(z, 0.99) if weights is None else quantiles(z, weights, [0.99])[0]
        heavy = bool(z.max() > 12 or far > 6)
        first = cls(centre, spread, heavy, limit=math.inf)
        t = first.transform(x)
        sd = float(deviation_of(t, weights))
        first.mean, first.sd = float(mean_of(t, weights)), sd if sd > 0 else 1.0
        furthest = float(np.abs(first.transform(x)).max())
        first.limit = max(_MIN_LIMIT, furthest)
        return first

    def transform(self, values: Floats) -> Floats:
        """Encoded numbers `(rows,)`; what is missing becomes the median."""
        x = np.where(np.isnan(values), self.centre, values)
        z = standardized(x, self.centre, self.spread, _HUGE)
        t = np.arcsinh(z) if self.heavy else z
        return np.clip((t - self.mean) / self.sd, -self.limit, self.limit)

    def inverse(self, encoded: Floats) -> Floats:
        """The values `(rows,)` of encoded numbers, as exactly as single precision told them."""
        with np.errstate(over="ignore", invalid="ignore"):
            t = encoded * self.sd + self.mean
            x: Floats = self.centre + self.spread * (np.sinh(t) if self.heavy else t)
        fine = max(self.spread * 1e-5, 1e-300)
        if not fine < 1e300:
            return x
        return np.round(x, int(np.clip(-math.floor(math.log10(fine)), -300, 300)))


@dataclass
class NumberEncoder(Encoder):
    """One number, and whether it is missing if it ever was."""

    kind: ClassVar[str] = "number"
    word: ClassVar[str] = "scaled"
    scale: Scale
    indicator: bool

    @classmethod
    def fit(cls, values: Floats, response: Response | None = None) -> "NumberEncoder":
        """The scale, and whether values are missing."""
        return cls(Scale.fit(values, weights_of(response)), bool(np.isnan(values).any()))

    def parts(self) -> dict[str, list[str]]:
        """The number, its cycles, and whether it is missing."""
        tails = ", heavy tails drawn in" if self.kind == "number" and self.scale.heavy else ""
        cycles = {f"{name} cycle": [f" ({name}, sin)", f" ({name}, cos)"] for name in self.rounds()}
        missing = {"missing": [" (missing)"]} if self.indicator else {}
        return {self.word + tails: [""], **cycles, **missing}

    def transform(self, values: Floats) -> NDArray[np.float32]:
        """`(rows,)` → `(rows, width)`; where nothing stands, the cycles are 0."""
        missing = np.isnan(values)
        columns = [self.scale.transform(values)]
        for name in self.rounds():
            length, start = _CYCLES[name]
            angle = 2 * np.pi * ((np.where(missing, 0, values) - start) % length) / length
            columns += [np.where(missing, 0, wave(angle)) for wave in (np.sin, np.cos)]
        columns += [missing] if self.indicator else []
        return np.stack(columns, 1).astype(np.float32)

    def rounds(self) -> list[str]:
        """The cycles whose sine and cosine go along: a date has some."""
        return []


class BooleanEncoder(NumberEncoder):
    """Yes or no as a number; what is missing becomes the share of yes."""

    kind: ClassVar[str] = "boolean"
    word: ClassVar[str] = "yes or no"

    @classmethod
    def fit(cls, values: Floats, response: Response | None = None) -> "BooleanEncoder":
        """From 0, 1 and NaN."""
        there, weights = ~np.isnan(values), weights_of(response)
        weights = None if weights is None else weights[there]
        share = float(mean_of(values[there], weights)) if there.any() else 0.0
        sd = math.sqrt(share * (1 - share))
        # A rare yes lies far out: at 1/√share.
        limit = max(_MIN_LIMIT, 1 / sd if sd > 0 else 0.0)
        scale = Scale(centre=share, spread=sd if sd > 0 else 1.0, limit=limit)
        return cls(scale, bool(np.isnan(values).any()))


@dataclass
class PresenceEncoder(Encoder):
    """Of a text, only whether it is there."""

    kind: ClassVar[str] = "text"

    @classmethod
    def fit(cls, values: Floats, response: Response | None = None) -> "PresenceEncoder":
        """There is nothing to learn."""
        return cls()

    def parts(self) -> dict[str, list[str]]:
        """Whether it is missing."""
        return {"whether it is there": [" (missing)"]}

    def transform(self, values: Floats) -> NDArray[np.float32]:
        """`(rows,)`, NaN where nothing stands → `(rows, 1)`."""
        return np.isnan(values)[:, None].astype(np.float32)


@dataclass
class DateEncoder(NumberEncoder):
    """The time itself, and sine and cosine of its place in the year, the week and the day."""

    kind: ClassVar[str] = "date"
    word: ClassVar[str] = "time"
    cycles: list[str]

    @classmethod
    def fit(cls, values: Floats, response: Response | None = None) -> "DateEncoder":
        """From seconds since 1970.

        A cycle counts if the rows go through at least a good half of it: the year from 200 days,
        the week from 5 days, the day if there is a time of day at all.
        """
        there = values[~np.isnan(values)]
        cycles = []
        if there.size:
            span = float(there.max() - there.min())
            reach = (("year", 200 * _DAY), ("week", 5 * _DAY))
            cycles = [name for name, least in reach if span >= least]
            cycles += ["day"] if (there % _DAY != there[0] % _DAY).any() else []
        scale = Scale.fit(values, weights_of(response))
        return cls(scale, bool(np.isnan(values).any()), cycles)

    def rounds(self) -> list[str]:
        """Those that the training rows went through."""
        return self.cycles


@dataclass
class CategoryEncoder(Encoder):
    """A place for each frequent level, one for the rest and one for missing values.

    A level that was never seen, or is rare, goes where the rare ones went in training. If none
    was rare there is no such place: an unseen level then counts as a mixture of the known ones
    by their shares, and so does a missing value if none was missing in training.

    Where there are many levels, the mean of the target at each level goes along, drawn
    towards the overall mean where rows are few.
    """

    kind: ClassVar[str] = "category"
    levels: list[str]  # with a place of their own, most frequent first
    shares: list[float]  # of each place, in the training rows
    other: bool
    missing: bool
    means: "dict[str, list[float]]" = field(default_factory=dict)
    """Level to the target's means there; "" is not a level, and stands for all others."""

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.levels) + self.other:
            raise ValueError("shares and levels of a category do not fit")

    @classmethod
    def fit(cls, values: Coded, response: Response | None = None) -> "CategoryEncoder":
        """From the training rows; with the response, means for many levels."""
        codes, names = values
        weights = weights_of(response)
        rows = len(codes) if weights is None else weights.sum()
        counts = counts_of(codes, weights, len(names))
        total = counts.sum()
        order = [int(i) for i in np.lexsort((np.arange(len(names)), -counts)) if counts[i] > 0]
        least = max(4, math.ceil(0.001 * rows))
        many = len(order) > MAX_LEVELS
        kept = [i for i in order if counts[i] >= least][: _TOP_LEVELS if many else MAX_LEVELS]
        if not kept or (not many and len(order) <= 2):
            kept = order[:2]
        missing = bool((codes < 0).any())
        pooled = sorted(set(order) - set(kept))
        places = [*counts[kept].tolist(), *([float(counts[pooled].sum())] if pooled else [])]
        shares = [count / (total or 1) for count in places]
        encoder = cls([names[i] for i in kept], shares, bool(pooled), missing)
        if many and response is not None:
            table = smoothed_means(codes, response.values, len(names), weights).tolist()
            encoder.means = {"": mean_of(response.values, weights).tolist()}
            encoder.means |= {names[i]: table[i] for i in order[:_MAX_MEANS]}
        return encoder

    def by_number(self, values: Coded) -> Coded:
        """Levels that training did not know as those that it did, where they are one number."""
        known = {*self.levels, *self.means}
        if known.issuperset(values.levels):
            return values
        by_number = levels_by_number(known)
        found = [v if v in known else same_level(v, by_number) for v in values.levels]
        return Coded(values.codes, found)

    def fit_transform(self, values: Coded, response: Response | None) -> NDArray[np.float32]:
        """The training rows, each with means to which its own target did not contribute."""
        encoded = self.transform(values)
        if self.means and response is not None:
            encoded[:, -response.values.shape[1] :] = out_of_fold(
                *values, response.values, response.seed, response.weights
            )
        return encoded

    def parts(self) -> dict[str, list[str]]:
        """The levels, what they do not cover, and the means."""
        parts = {count_of(len(self.levels), "level"): [f"={level}" for level in self.levels]}
        parts |= {"other": [" (other)"]} if self.other else {}
        parts |= {"missing": [" (missing)"]} if self.missing else {}
        means = [f" (mean of target {i + 1})" for i in range(len(self.means.get("", ())))]
        return parts | ({"mean of target": means} if means else {})

    def transform(self, values: Coded) -> NDArray[np.float32]:
        """Texts as codes `(rows,)` → `(rows, width)`."""
        place = {level: index for index, level in enumerate(self.levels)}
        width = len(self.levels) + self.other + self.missing
        elsewhere = np.zeros(width, np.float32)
        if self.other:
            elsewhere[len(self.levels)] = 1
        else:
            elsewhere[: len(self.shares)] = self.shares
        # One row for each level of the chunk, and a last one for missing values (code −1).
        table = np.tile(elsewhere, (len(values.levels) + 1, 1))
        for index, level in enumerate(values.levels):
            if level in place:
                table[index] = 0
                table[index, place[level]] = 1
        if self.missing:
            table[-1] = 0
            table[-1, -1] = 1
        if self.means:
            rest = self.means[""]
            means = [self.means.get(level, rest) for level in values.levels]
            table = np.concatenate([table, np.array([*means, rest], np.float32)], 1)
        return table[values.codes].astype(np.float32)


ENCODERS: dict[str, type[Encoder]] = {
    cls.kind: cls
    for cls in (
        NumberEncoder,
        BooleanEncoder,
        PresenceEncoder,
        DateEncoder,
        CategoryEncoder,
        WordsEncoder,
    )
}


_SPREAD = real(5e-324)
_SCALE = {"centre": real(), "spread": _SPREAD, "heavy": flag, "mean": real()}
_SCALE |= {"sd": _SPREAD, "limit": _SPREAD}
_NUMBER: dict[str, Check] = {"scale": record(_SCALE), "indicator": flag}
_FIELDS: dict[str, dict[str, Check]] = {
    "number": _NUMBER,
    "boolean": _NUMBER,
    "text": {},
    "date": {**_NUMBER, "cycles": list_of(choice(*_CYCLES), most=len(_CYCLES))},
    "category": {
        "levels": list_of(text()),
        "shares": list_of(real(0, 1)),
        "other": flag,
        "missing": flag,
        "means": mapping(list_of(real(), least=1)),
    },
    "words": {"words": list_of(text(), least=1, most=MAX_WORDS), "missing": flag},
}


def encoder_from_dict(data: Any, where: str = "encoder") -> Encoder:
    """What `to_dict` described; a FileError that names the field if it is no such thing."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in ENCODERS:
        raise wrong(f"{where}.kind", "one of " + ", ".join(ENCODERS), kind)
    fields = record({"kind": text(), **_FIELDS[kind]})(data, where)
    del fields["kind"]
    if "scale" in fields:
        fields["scale"] = Scale(**fields["scale"])
    for name in ("levels", "cycles", "words"):
        if len(set(fields.get(name, ()))) < len(fields.get(name, ())):
            raise FileError(f"the field {where}.{name} holds something twice")
    if "levels" in fields and len(fields["shares"]) != len(fields["levels"]) + fields["other"]:
        raise FileError(f"the field {where}.shares should be one for each level and for the rest")
    means = fields.get("means")
    if means and ("" not in means or len({len(row) for row in means.values()}) > 1):
        raise FileError(f"the field {where}.means should be of one length, with one for the rest")
    return ENCODERS[kind](**fields)
