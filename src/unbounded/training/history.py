"""What happened, epoch by epoch, as a table."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unbounded import atomic

Row = dict[str, Any]


class History:
    """A table with one row an epoch; `history["elbo"]` is a column, `history[-1]` a row.

    Columns: epoch, step, seconds; elbo and its terms (means over the epoch's steps, in nats for
    the whole data set); depth_mean (E[ℓ]), max_depth, num_layers; lr; and for each scored set
    NAME_SCORE and NAME_log_score, such as val_accuracy. With a rule that goes by held-out rows:
    depth_settled, whether q(ℓ) is at rest, and the standard errors val_error and val_log_error.
    """

    def __init__(self, rows: list[Row] | None = None, births: list[Row] | None = None):
        self.rows: list[Row] = [] if rows is None else rows
        self.births: list[Row] = [] if births is None else births
        """Births of layers: one row each with step, epoch and depth."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, int):
            return self.rows[key]
        if key not in self.columns:
            raise KeyError(f"no column {key!r}; there are {self.columns}")
        return [row.get(key, math.nan) for row in self.rows]

    @property
    def settled_epoch(self) -> int | None:
        """Since when q(ℓ) has been at rest until the end; None if it is not, or no rule says so."""
        since = None
        for row in self.rows:
            if not row.get("depth_settled"):
                since = None
            elif since is None:
                since = int(row["epoch"])
        return since

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame (needs pandas)."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)

    def to_csv(self, path: str | Path) -> None:
        """Write the table to a file."""
        with (
            atomic.replacing(path) as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)

    def __repr__(self) -> str:
        if not self.rows:
            return "History(empty)"
        shown = self.rows if len(self.rows) <= 8 else [*self.rows[:3], {}, *self.rows[-4:]]
        columns = [c for c in self.columns if c not in ("seconds", "step")]
        cells = [[_cell(row.get(c)) if row else "…" for c in columns] for row in shown]
        widths = [max(len(c), *(len(r[i]) for r in cells)) for i, c in enumerate(columns)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(columns, widths, strict=True))]
        lines += ["  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in cells]
        return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def mean_row(given: Sequence[Row | None]) -> Row:
    """The one row there is, or means of numbers and the largest of counts over several."""
    rows = [row for row in given if row is not None]
    if len(rows) < 2:
        return rows[0] if rows else {}
    return {
        name: sum(row[name] for row in rows) / len(rows)
        if isinstance(value, float)
        else max(row[name] for row in rows)
        for name, value in rows[0].items()
    }
