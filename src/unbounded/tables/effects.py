"""How predictions go with one column: partial dependence, and a sentence about it.

A column is set to one value in all of some rows, the others staying as they are, and predictions
are averaged; then to the next value. This says what the model has learnt, not what would happen
to a row whose column one changed.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unbounded.tables.encoders import (
    BooleanEncoder,
    CategoryEncoder,
    Coded,
    Encoder,
    NumberEncoder,
    WordsEncoder,
)
from unbounded.tables.scores import importance_of_columns
from unbounded.tables.text import shorten
from unbounded.tables.values import Floats
from unbounded.tables.wording import Curve, finding

if TYPE_CHECKING:
    from unbounded.tables.model import TableModel

EFFECT_COLUMNS = 6
"""So many columns at most are looked at, the most important ones."""
_ROWS = 300
_PLACES = 20  # along a column
_FEW = 12  # values up to which each has a place
_LEVELS = 8
_CLASSES = 6


class Grid(NamedTuple):
    """Values that a column is set to."""

    encoded: NDArray[np.float32]  # (places, numbers)
    numbers: list[int]  # which of the column's numbers are set
    shares: Floats  # (places,): of the rows
    places: Floats | None = None  # numbers, or seconds since 1970
    levels: tuple[str, ...] = ()


def about_columns(model: "TableModel", x: NDArray[Any], y: Floats) -> dict[str, Any]:
    """The importance of the columns, and how predictions go with the foremost of them."""
    importance = importance_of_columns(model, x, y)
    return {"importance": importance, "effects": effects_of_columns(model, x, importance)}


def effects_of_columns(
    model: "TableModel", x: NDArray[Any], importance: list[dict[str, Any]], seed: int = 0
) -> list[dict[str, Any]]:
    """The partial dependence on the columns that matter most, as plain data with a sentence each.

    Columns count whose shuffling costs more than twice its standard deviation, at most
    `EFFECT_COLUMNS` of them; of the rows at most 300, of each column at most 20 values.

    Args:
        model: the model.
        x: encoded rows, `(rows, features)`.
        importance: what `importance_of_columns` gave.
        seed: of the choice of rows.

    Returns:
        For each column: its name and kind, "places" (numbers) or "levels" (texts), the "shares" of
        the rows there, "curves" (class, or "" for a number ↦ the mean prediction at each place)
        and the "finding".
    """
    x = x[np.random.default_rng(seed).permutation(len(x))[:_ROWS]]
    names = [row["column"] for row in importance if row["loss"] > max(2 * row["sd"], 0.0)]
    kinds = {column.name: column.kind for column in model.encoding.used}
    base = model.by_depth(x).mixture
    shown = _classes(base) if model.target.is_classes else [0]
    flat = 0.02 if model.target.is_classes else 0.05 * float(base.std())
    found = []
    for name in names[:EFFECT_COLUMNS]:
        columns = model.encoding.slices[name]
        grid = _grid(model.encoding.encoders[name], x[:, columns])
        if grid is None:
            continue
        curves = _curves(model, x, columns.start, grid)[:, shown]  # (places, shown)
        widest = int(np.ptp(curves, 0).argmax())
        target = model.target
        curve = Curve(
            column=shorten(name),
            what=_what(target, shown[widest]),
            means=curves[:, widest],
            places=grid.places,
            levels=tuple(shorten(level) for level in grid.levels),
            flat=flat,
            is_share=target.is_classes,
            is_time=kinds[name] == "date",
        )
        keys = [target.classes[c] for c in shown] if target.is_classes else [""]
        places = {} if grid.places is None else {"places": grid.places.tolist()}
        found.append(
            {
                "column": name,
                "kind": kinds[name],
                **(places or {"levels": list(grid.levels)}),
                "shares": grid.shares.tolist(),
                "curves": dict(zip(keys, curves.T.tolist(), strict=True)),
                "finding": finding(curve),
            }
        )
    return found


def _what(target: Any, index: int) -> str:
    if not target.is_classes:
        return shorten(target.name)
    return f"the probability of {shorten(target.classes[index])}"


def _classes(probs: Floats) -> list[int]:
    """Of two classes the rarer, of several the most frequent."""
    order = np.argsort(-probs.mean(0), kind="stable").tolist()
    return order[1:] if len(order) == 2 else order[:_CLASSES]


def _curves(model: "TableModel", x: NDArray[Any], start: int, grid: Grid) -> Floats:
    """Mean predictions at each place: `(places, classes)`, or `(places, 1)` for a number."""
    where = [start + number for number in grid.numbers]
    means = []
    for values in grid.encoded:
        changed = x.copy()
        changed[:, where] = values[grid.numbers]
        means.append(np.atleast_1d(model.by_depth(changed).mixture.mean(0)))
    return np.stack(means)


def _grid(encoder: Encoder, x: NDArray[Any]) -> Grid | None:
    """Values to set a column to, from its encoded rows; None where there are not two."""
    if isinstance(encoder, CategoryEncoder):
        grid = _level_grid(encoder, x)
    elif isinstance(encoder, WordsEncoder):
        grid = _word_grid(encoder, x)
    elif isinstance(encoder, NumberEncoder) and not isinstance(encoder, BooleanEncoder):
        return _number_grid(encoder, x)
    else:
        grid = _yes_no_grid(encoder, x)
    return grid if len(grid.levels) > 1 else None


def _number_grid(encoder: NumberEncoder, x: NDArray[Any]) -> Grid | None:
    there = x[x[:, -1] < 0.5] if encoder.indicator else x
    values = encoder.scale.inverse(there[:, 0].astype(np.float64))
    values = values[np.isfinite(values)]
    places = np.unique(values)
    if len(places) < 2:
        return None
    if len(places) > _FEW:
        low, high = np.quantile(values, [0.02, 0.98])
        if encoder.scale.heavy or not low < high:  # as far apart as the rows are
            places = np.unique(np.quantile(values, np.linspace(0.02, 0.98, _PLACES)))
        else:
            places = np.linspace(low, high, _PLACES)
    if len(places) < 2:
        return None
    nearest = np.abs(values[:, None] - places).argmin(1)
    shares = np.bincount(nearest, minlength=len(places)) / max(len(x), 1)
    # Of a date the time alone is set: season, weekday and hour stay those of the rows.
    numbers = [0, x.shape[1] - 1] if encoder.indicator else [0]
    return Grid(encoder.transform(places), numbers, shares, places)


def _yes_no_grid(encoder: Encoder, x: NDArray[Any]) -> Grid:
    """Yes and no, or there and not there, and missing where that is known."""
    values, levels = (1.0, 0.0, np.nan), ("yes", "no", "(missing)")
    if not isinstance(encoder, BooleanEncoder):  # of a text, only whether it is there
        values, levels = (1.0, np.nan, np.nan), ("there", "(missing)", "")
    count = 3 if isinstance(encoder, BooleanEncoder) and encoder.indicator else 2
    encoded = encoder.transform(np.array(values[:count]))
    nearest = np.abs(x[:, None] - encoded).sum(2).argmin(1)
    shares = np.bincount(nearest, minlength=count) / max(len(x), 1)
    kept = [i for i in range(count) if shares[i] > 0 or i < 2]
    chosen = tuple(levels[i] for i in kept)
    return Grid(encoded[kept], list(range(x.shape[1])), shares[kept], levels=chosen)


def _level_grid(encoder: CategoryEncoder, x: NDArray[Any]) -> Grid:
    """The most frequent levels, and missing where that has a place and rows."""
    shares = x[:, : len(encoder.levels)].mean(0, dtype=np.float64)
    order = np.argsort(-shares, kind="stable")[:_LEVELS]
    kept = [int(i) for i in order if shares[i] > 0]
    levels = [encoder.levels[i] for i in kept]
    codes, parts = list(range(len(levels))), [float(shares[i]) for i in kept]
    if encoder.missing:
        at = len(encoder.levels) + encoder.other
        absent = float(x[:, at].mean())
        if absent > 0:
            codes, parts = [*codes, -1], [*parts, absent]
    encoded = encoder.transform(Coded(np.array(codes, np.int32), levels))
    names = (*levels, *(["(missing)"] if -1 in codes else []))
    return Grid(encoded, list(range(x.shape[1])), np.array(parts), levels=names)


def _word_grid(encoder: WordsEncoder, x: NDArray[Any]) -> Grid:
    """Texts with one of the most frequent words alone; others, and missing ones, if there are."""
    count = len(encoder.words)
    shares = x[:, :count].mean(0, dtype=np.float64)
    order = np.argsort(-shares, kind="stable")[: _LEVELS - 2]
    words = [encoder.words[int(i)] for i in order if shares[i] > 0]
    gone = x[:, -1] > 0.5 if encoder.missing else np.zeros(len(x), bool)
    none = (x[:, :count] == 0).all(1) & ~gone
    places = [(code, f"a text with {word!r}") for code, word in enumerate(words)]
    parts = [float(shares[i]) for i in order if shares[i] > 0]
    for code, name, rows in ((len(words), "any other text", none), (-1, "(missing)", gone)):
        if rows.any():
            places, parts = [*places, (code, name)], [*parts, float(rows.mean())]
    codes = np.array([code for code, _ in places], np.int32)
    encoded = encoder.transform(Coded(codes, [*words, ""]))
    names = tuple(name for _, name in places)
    return Grid(encoded, list(range(x.shape[1])), np.array(parts), levels=names)
