"""What the encoder of a column is, and what it is fitted to."""

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.values import Floats
from unbounded.tables.weighted import Codes


class Coded(NamedTuple):
    """Texts as numbers into a list of levels, −1 where there is none."""

    codes: Codes  # (rows,)
    levels: list[str]

    def take(self, rows: Any) -> "Coded":
        """Some of the rows."""
        return Coded(self.codes[rows], self.levels)


class Response(NamedTuple):
    """What the means of a category's levels are means of: columns with a mean and a spread."""

    values: Floats  # (rows, means): indicators of the classes, or the number, standardised
    seed: int
    weights: Floats | None = None  # (rows,): how often each row counts; None for once


class Encoder(ABC):
    """A column's encoder, fitted to training rows."""

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, values: Any, response: Response | None = None) -> "Encoder":
        """From the values of the training rows, `(rows,)`, as the column's kind reads them."""

    @abstractmethod
    def parts(self) -> dict[str, list[str]]:
        """What the model sees, in words ↦ how the names of these numbers end."""

    @abstractmethod
    def transform(self, values: Any) -> NDArray[np.float32]:
        """`(rows,)` values, as the column's kind reads them, to `(rows, width)`."""

    def fit_transform(self, values: Any, response: Response | None) -> NDArray[np.float32]:
        """The training rows themselves."""
        return self.transform(values)

    def names(self, column: str) -> list[str]:
        """The names of the numbers that it gives."""
        return [column + ending for endings in self.parts().values() for ending in endings]

    def uses(self) -> str:
        """What the model sees of the column, for people."""
        return " + ".join(self.parts())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the kind."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


def weights_of(response: Response | None) -> Floats | None:
    """How often each row counts; None for once."""
    return None if response is None else response.weights
