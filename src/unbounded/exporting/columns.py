"""The encoding of a table's columns as tensors: what goes into an exported file with the network.

Columns come as `(batch, 1)`: numbers, yes/no (1 and 0) and dates (seconds since 1970, UTC) in
double precision, NaN where nothing stands; categories and texts as codes, which an ONNX file finds
by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unbounded.exporting.graphs import ExportError
from unbounded.tables.encoders import (
    _CYCLES,
    _HUGE,
    CategoryEncoder,
    Coded,
    NumberEncoder,
    PresenceEncoder,
    WordsEncoder,
)
from unbounded.tables.encoding import Encoding, parse
from unbounded.tables.reading import MISSING
from unbounded.tables.values import number_of, number_text

_UNKNOWN = "\0 no level"  # a text that is none of training's
_SHOWN_CODES = 6
_WORDS = {
    "number": "a number; NaN where it is missing",
    "boolean": "1 for yes, 0 for no, NaN where it is missing",
    "date": "seconds since 1970-01-01 in UTC; NaN where it is missing",
    "category": "a text as in training; an empty one where it is missing",
    "text": "a text, of which counts whether it is there; an empty one where it is missing",
}


@dataclass(frozen=True)
class Input:
    """What a file takes of one column.

    Attributes:
        name: of the input.
        kind: of the column: "number", "boolean", "date", "category" or "text".
        codes: of a category or text, by its text; every other text has the code `other`.
        other: see there.
    """

    name: str
    kind: str
    codes: dict[str, int] = field(default_factory=dict)
    other: int = 0

    @property
    def is_text(self) -> bool:
        """Whether it is a text, and in a program of torch a code."""
        return self.kind in ("category", "text")

    def expects(self, as_codes: bool) -> dict[str, Any]:
        """What stands in the file's description: plain data."""
        words = _WORDS[self.kind]
        if not (self.is_text and as_codes):
            return {"name": self.name, "kind": self.kind, "expects": words}
        missing = self.codes.get("")
        levels = [f"{code} for {text!r}" for text, code in self.codes.items() if code != missing]
        if len(levels) > _SHOWN_CODES:
            levels = ["the code of the text, from `codes` in the file's description"]
        levels += [] if missing is None else [f"{missing} where it is missing"]
        words = ", ".join([*levels, f"{self.other} for every other text"])
        coded = {"codes": self.codes, "other": self.other}
        return {"name": self.name, "kind": self.kind, "expects": words, **coded}

    def texts(self, values: Sequence[str | None]) -> NDArray[np.object_]:
        """Texts as an ONNX file takes them, `(batch, 1)`."""
        return np.array([["" if value is None else value] for value in values], dtype=object)

    def coded(self, values: Sequence[str | None]) -> NDArray[np.int64]:
        """Texts as a program of torch takes them, `(batch, 1)`."""
        found = [self.codes.get("" if value is None else value, self.other) for value in values]
        return np.array(found, np.int64)[:, None]


class Columns(nn.Module):
    """The columns of a table as one matrix `(batch, feature)` in single precision."""

    order: Tensor  # (feature,): where each computed number stands
    centre: Tensor  # (number,), as the other fields of `Scale`
    spread: Tensor
    mean: Tensor
    sd: Tensor
    limit: Tensor
    heavy: Tensor
    in_cycle: Tensor  # (cycle,): of which number
    length: Tensor  # (cycle,), in seconds
    start: Tensor  # (cycle,)
    with_gaps: Tensor  # (indicator,): of which number

    def __init__(self, encoding: Encoding):
        super().__init__()
        names = [column.name for column in encoding.used]
        kinds = {column.name: column.kind for column in encoding.used}
        encoders: dict[str, Any] = {name: encoding.encoders[name] for name in names}
        slices = encoding.slices
        self.inputs: list[Input] = []
        self.numbers = [n for n in names if isinstance(encoders[n], NumberEncoder)]
        self.looked_up = [n for n in names if n not in self.numbers]
        self.tables = nn.ParameterList()
        for column in encoding.used:
            name = column.name
            codes: dict[str, int] = {}
            if isinstance(encoders[name], WordsEncoder):
                raise ExportError(
                    f"the column {name!r} is free text, of which the model sees words; a file of "
                    "this kind cannot find them: fit without it"
                )
            if not isinstance(encoders[name], NumberEncoder):
                table, codes = _table(encoders[name], encoding.missing, column.numeric)
                self.tables.append(nn.Parameter(torch.from_numpy(table), requires_grad=False))
                self.inputs.append(Input(name, kinds[name], codes, len(table) - 1))
            else:
                self.inputs.append(Input(name, kinds[name]))
        # Where each number that is computed below stands in the encoded row.
        order = [slices[n].start for n in self.numbers]
        cycles = [(n, c, o) for n in self.numbers for o, c in enumerate(encoders[n].rounds())]
        for part in (0, 1):
            order += [slices[n].start + 1 + 2 * o + part for n, _, o in cycles]
        gaps = [n for n in self.numbers if encoders[n].indicator]
        order += [slices[n].stop - 1 for n in gaps]
        order += [place for n in self.looked_up for place in range(slices[n].start, slices[n].stop)]
        self._buffer("order", np.argsort(order), torch.int64)
        self.is_sorted = order == sorted(order)
        self._scales([encoders[n].scale for n in self.numbers])
        self._buffer("in_cycle", [self.numbers.index(n) for n, _, _ in cycles], torch.int64)
        self._buffer("length", [_CYCLES[c][0] for _, c, _ in cycles])
        self._buffer("start", [_CYCLES[c][1] for _, c, _ in cycles])
        self._buffer("with_gaps", [self.numbers.index(n) for n in gaps], torch.int64)

    def _buffer(self, name: str, values: Any, dtype: torch.dtype = torch.float64) -> None:
        self.register_buffer(name, torch.tensor(np.asarray(values).tolist(), dtype=dtype))

    def _scales(self, scales: Sequence[Any]) -> None:
        for name in ("centre", "spread", "mean", "sd", "limit"):
            self._buffer(name, [getattr(scale, name) for scale in scales])
        self._buffer("heavy", [scale.heavy for scale in scales], torch.bool)
        self.some_heavy = any(scale.heavy for scale in scales)

    def forward(self, columns: dict[str, Tensor]) -> Tensor:
        """The encoded rows: `(batch, feature)`."""
        parts: list[Tensor] = []
        if self.numbers:
            x = torch.cat([columns[name] for name in self.numbers], 1)
            missing = x.isnan()
            parts.append(self._scaled(x, missing))
            if len(self.in_cycle):
                parts += self._cycles(x, missing)
            if len(self.with_gaps):
                parts.append(missing.index_select(1, self.with_gaps).float())
        for name, table in zip(self.looked_up, self.tables, strict=True):
            parts.append(nn.functional.embedding(columns[name][:, 0], table))
        row = torch.cat(parts, 1)
        return row if self.is_sorted else row.index_select(1, self.order)

    def _scaled(self, x: Tensor, missing: Tensor) -> Tensor:
        """As `Scale.transform`, all columns at once."""
        z = (torch.where(missing, self.centre, x) - self.centre) / self.spread
        z = z.clamp(-_HUGE, _HUGE)
        if self.some_heavy:
            z = torch.where(self.heavy, z.asinh(), z)
        z = (z - self.mean) / self.sd
        return torch.minimum(torch.maximum(z, -self.limit), self.limit).float()

    def _cycles(self, x: Tensor, missing: Tensor) -> list[Tensor]:
        """As `NumberEncoder.transform`: sines, then cosines, 0 where nothing stands."""
        gone = missing.index_select(1, self.in_cycle)
        times = torch.where(gone, 0.0, x.index_select(1, self.in_cycle)) - self.start
        turns = times / self.length
        angle = 2 * torch.pi * (turns - turns.floor())
        return [torch.where(gone, 0.0, wave).float() for wave in (angle.sin(), angle.cos())]


def _table(
    encoder: CategoryEncoder | PresenceEncoder, missing: Sequence[str], numeric: bool
) -> tuple[NDArray[np.float32], dict[str, int]]:
    """The encoded row of each code, the last for other texts, and the codes of texts."""
    gone = (*MISSING, *missing)
    if isinstance(encoder, PresenceEncoder):
        return encoder.transform(np.array([np.nan, 1.0])), dict.fromkeys(gone, 0)
    levels = [level for level in dict.fromkeys((*encoder.levels, *encoder.means)) if level]
    codes = np.array([*range(len(levels)), -1, len(levels)], np.int32)
    table = encoder.transform(Coded(codes, [*levels, _UNKNOWN]))
    places = dict.fromkeys(gone, len(levels)) | {name: at for at, name in enumerate(levels)}
    if numeric:  # whole numbers with gaps are written with a point by many programs
        for at, name in enumerate(levels):
            number = number_of(name)
            if number is not None and number.is_integer():
                for text in (number_text(number), f"{number_text(number)}.0"):
                    places.setdefault(text, at)
    return table, places


def frame_columns(
    encoding: Encoding, inputs: Sequence[Input], frame: Any, as_codes: bool
) -> dict[str, NDArray[Any]]:
    """The columns of a chunk of a table as a file takes them, `(batch, 1)` each."""
    found: dict[str, NDArray[Any]] = {}
    for column, one in zip(encoding.used, inputs, strict=True):
        values: Any = parse(column, frame[column.name])
        if isinstance(values, Coded):
            texts = [None if code < 0 else values.levels[code] for code in values.codes]
        elif one.is_text:
            texts = [None if np.isnan(value) else "there" for value in values]
        else:
            found[one.name] = np.array(values, np.float64)[:, None]
            continue
        found[one.name] = one.coded(texts) if as_codes else one.texts(texts)
    return found


def made_up_rows(encoding: Encoding, rows: int, seed: int = 0) -> Any:
    """A frame of rows such as training might have seen, with gaps and unknown levels."""
    import pandas as pd

    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for column in encoding.used:
        gaps = random.random(rows) < 0.15
        low = 0.0 if column.low is None else column.low
        high = 1.0 if column.high is None else column.high
        encoder: Any = encoding.encoders[column.name]
        if column.kind in ("number", "date"):
            values: Any = low + (high - low) * random.uniform(-0.1, 1.1, rows)
            values[gaps] = np.nan
            if column.kind == "date":
                values = pd.to_datetime(np.round(values), unit="s", utc=True)
        elif column.kind == "boolean":
            values = pd.array(random.random(rows) < 0.5, dtype="boolean")
            values[gaps] = pd.NA
        else:
            known = [
                level
                for level in (*getattr(encoder, "levels", ()), *getattr(encoder, "means", ()))
                if level
            ]
            texts = random.choice(np.array([*known, "a text of no row"], dtype=object), rows)
            texts[gaps] = None
            values = pd.Series(texts, dtype="string")
        columns[column.name] = values
    return pd.DataFrame(columns)
