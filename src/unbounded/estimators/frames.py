"""Frames with text, categories, dates and gaps, as the estimators take them.

What a column is and how it becomes numbers is said in one place for the command line and for the
estimators: `unbounded.tables`. Plain finite numbers never come here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_X_y
from sklearn.utils.validation import validate_data

from unbounded.estimators.given import (
    as_numbers,
    has_times,
    is_frame,
    is_plain_number,
    names_of,
    opened,
    unreadable,
)
from unbounded.tables.columns import Column
from unbounded.tables.encoding import Encoding, Matrix
from unbounded.tables.reading import Table, TableError, pandas
from unbounded.tables.text import closest, is_broken, is_number, shorten
from unbounded.tables.values import native_kind

if TYPE_CHECKING:
    from unbounded.estimators.base import UDNEstimator
    from unbounded.estimators.predicting import Predictor

_PRECISIONS = [np.float64, np.float32]
REMEDY = "name the column in categorical_features"
# Types of numpy and polars, then of Arrow in pandas.
_UNREADABLE = re.compile(
    r"(complex\d+|List|Array|Struct|Object|Binary|((large|fixed_size)_)?(binary|list)|struct|map)\b"
)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def validate(
    estimator: "UDNEstimator", X: Any, y: Any, reset: bool, min_rows: int, **options: Any
) -> tuple[Any, Any]:
    """X and y, checked; X as numbers in single or double precision where it can be.

    Args:
        estimator: which these rows are for.
        X: an array or frame, `(rows, column)`.
        y: the targets.
        reset: these rows say what the columns are. What has to be encoded then stays as it is,
            a `RawTable`: the encoding wants the targets. Else they are encoded as those before.
        min_rows: fewer are refused.
        options: of scikit-learn's `check_X_y`.
    """
    options = {"ensure_min_samples": min_rows, "dtype": _PRECISIONS, **options}
    X = opened(X)
    check_columns(X)
    encoded = estimator.encoding_ is not None
    chosen = categorical_columns(X, estimator.categorical_features) if reset else []
    if (is_plain(X) and not chosen) if reset else not encoded:
        X = X if reset else as_numbers(X)
        with _telling_columns(X):
            x, y = validate_data(estimator, X, y, reset=reset, ensure_all_finite=False, **options)
        if not check_finite(x, X):
            return x, y
        if not reset:
            place = int(np.isnan(x).any(0).argmax())
            raise ValueError(
                f"column {names_of(X)[place]!r} has missing values, the rows before had none: "
                "call fit with all rows"
            )
        return RawTable(to_frame(X if is_frame(X) else x), ()), y
    X, y = validate_data(estimator, X, y, reset=reset, skip_check_array=True)
    _, y = check_X_y(np.zeros((len(X), 1)), y, estimator=estimator, **options)
    return (RawTable(to_frame(X, chosen), chosen) if reset else encode(estimator, X)), y


def validate_new(estimator: "Predictor", X: Any) -> NDArray[Any]:
    """Rows to predict, `(rows, features)`, as the network of a fitted estimator takes them.

    A number that is missing here, though none was in training, counts as its column's mean.
    """
    numbers = _as_expected(estimator, X)
    if numbers is not None and not check_finite(numbers, X):
        return numbers
    X = opened(X)
    check_columns(X)
    if estimator.encoding_ is not None:
        X = validate_data(estimator, X, reset=False, skip_check_array=True)
        return encode(estimator, X)
    options = {"dtype": _PRECISIONS, "ensure_all_finite": False}
    X = as_numbers(X)
    with _telling_columns(X):
        x: NDArray[Any] = validate_data(estimator, X, reset=False, **options)
    if check_finite(x, X):
        if not estimator.standardize:
            place = int(np.isnan(x).any(0).argmax())
            raise ValueError(
                f"column {names_of(X)[place]!r} has missing values, those in training had none"
            )
        x = np.where(np.isnan(x), estimator.input_scaling_.center.astype(x.dtype), x)
    return x


def _as_expected(estimator: "Predictor", X: Any) -> NDArray[Any] | None:
    """X as numbers if all of it is plainly as the fitted estimator expects, else None.

    Says no more than the full checks do, in a tenth of their time: a row is predicted in less
    than they take.
    """
    if estimator.encoding_ is not None:
        return None
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and is_frame(X) and list(X.columns) == names.tolist():
        if not hasattr(X, "iloc") and any(kind.is_temporal() for kind in X.dtypes):
            return None  # polars would make numbers of times
        X = X.to_numpy()
    elif names is not None or type(X) is not np.ndarray:
        return None
    expected = X.dtype in _PRECISIONS and X.ndim == 2 and X.shape[1] == estimator.n_features_in_
    return X if expected and len(X) else None


def check_finite(x: NDArray[Any], X: Any) -> bool:
    """Whether some numbers `(rows, column)` are missing; an error if some are infinite."""
    if np.isfinite(x).all():
        return False
    infinite = np.isinf(x)
    if infinite.any():
        place = int(infinite.any(0).argmax())
        row = int(infinite[:, place].argmax())
        raise ValueError(
            f"column {names_of(X)[place]!r} holds infinite values, the first "
            f"({x[row, place]}) in row {row + 1}: leave them empty if they are unknown"
        )
    return bool(np.isnan(x).any())


@contextmanager
def _telling_columns(X: Any) -> Iterator[None]:
    """Errors of a conversion to numbers, told with the column that they come from."""
    try:
        yield
    except OverflowError:
        raise ValueError(_too_large(X)) from None
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            raise
        rows = np.asarray(X, object)
        texts = [[isinstance(v, str) and not is_number(v) for v in row] for row in rows.tolist()]
        if not np.any(texts):
            raise
        row, place = np.argwhere(texts)[0]
        raise ValueError(
            f"column {names_of(X)[place]!r} holds {shorten(rows[row, place])!r} in row {row + 1}: "
            "a number was expected, as in the rows before"
        ) from None


def _too_large(X: Any) -> str:
    """Which column holds an integer that no float can be."""
    rows = np.asarray(X, object)
    largest = float(np.finfo(np.float64).max)
    whole = [[isinstance(v, int) and abs(v) > largest for v in row] for row in rows.tolist()]
    row, place = np.argwhere(whole)[0]
    return f"column {names_of(X)[place]!r} holds a number in row {row + 1} that is too large"


def check_columns(X: Any) -> None:
    """A ValueError if a frame has no column, two of one name, or one of what nothing reads."""
    if hasattr(X, "collect_schema") and hasattr(X, "collect") and not hasattr(X, "to_numpy"):
        raise TypeError(
            f"X is a {type(X).__name__}, whose rows are not there yet: give X.collect()"
        )
    if not is_frame(X):
        return
    names = names_of(X)
    if not names:
        raise ValueError("X has no columns, at least one is needed")
    odd = [name for name in names if is_broken(name)]
    if odd:  # files of models hold names
        raise ValueError(f"the name {shorten(ascii(odd[0]))} of a column is no valid Unicode")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"X has several columns of the name {twice[0]!r}: rename them")
    for name, kind in zip(names, X.dtypes, strict=True):
        # "object" is a type of its own in polars; in pandas it may hold anything.
        if _UNREADABLE.match(str(kind)):
            raise unreadable(name, shorten(str(kind)))


def categorical_columns(X: Any, given: Any) -> list[str]:
    """The names of the columns that are categories whatever they hold.

    Args:
        X: a frame or an array, `(rows, column)`.
        given: as in scikit-learn's HistGradientBoosting: None, "from_dtype" (those that a frame
            says are categories), or names, indices or a mask of columns.
    """
    if given is None:
        return []
    if isinstance(given, str):
        if given != "from_dtype":
            raise ValueError(
                "categorical_features must be None, 'from_dtype', or names, indices or a mask of "
                f"columns, got {given!r}"
            )
        pairs = zip(names_of(X), X.dtypes, strict=True) if is_frame(X) else ()
        return [name for name, kind in pairs if _is_category(kind)]
    if hasattr(X, "toarray") or (not is_frame(X) and np.asarray(X).ndim != 2):
        return []  # of what is no table scikit-learn tells
    names = names_of(X)
    chosen = np.asarray(given)
    if chosen.size == 0:
        return []
    if chosen.ndim == 1 and chosen.dtype.kind == "b":
        if len(chosen) != len(names):
            raise ValueError(
                f"categorical_features is a mask of {len(chosen)} columns, X has {len(names)}"
            )
        return [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]
    if chosen.ndim == 1 and chosen.dtype.kind in "iu":
        for place in chosen.tolist():
            if not 0 <= place < len(names):
                raise ValueError(
                    f"categorical_features names the column {place}, X has 0 … {len(names) - 1}"
                )
        return [names[place] for place in sorted(set(chosen.tolist()))]
    if chosen.ndim == 1 and all(isinstance(name, str) for name in chosen.tolist()):
        for name in chosen.tolist():
            if name.strip() not in names:
                hint = closest(name, names)
                raise ValueError(f"categorical_features: X has no column {name!r}: {hint}")
        return [name.strip() for name in chosen.tolist()]
    raise ValueError(
        "categorical_features must be names, indices or a mask of columns, all of one type"
    )


def _is_category(kind: Any) -> bool:
    """Whether the type of a frame's column is one of categories."""
    return str(kind).partition("(")[0].lower() in ("category", "categorical", "enum")


def is_plain(X: Any) -> bool:
    """Whether X is numbers and truth values alone, gaps aside, and needs no encoding."""
    if is_frame(X):
        return all(_is_plain_column(X, *item) for item in enumerate(X.dtypes))
    if hasattr(X, "__array_namespace__") and not isinstance(X, np.ndarray):
        return True
    if isinstance(X, np.ndarray) and X.dtype.kind not in "OUSMm":
        return True
    try:
        values = np.asarray(X)
        if values.dtype.kind in "OUS" and values.ndim == 2:
            values.astype(np.float64)
    except ValueError as error:  # texts that are no numbers, or rows of different lengths
        return "convert string" not in str(error)
    except OverflowError:  # told with the column
        return True
    except TypeError:  # what is neither number, text nor time: scikit-learn's own words tell
        return values.ndim != 2 or not has_times(values)
    return values.dtype.kind not in "Mm" or values.ndim != 2


def _is_plain_column(X: Any, place: int, kind: Any) -> bool:
    if hasattr(kind, "is_numeric"):  # polars
        return bool(kind.is_numeric()) or str(kind) == "Boolean"
    from pandas.api import types  # it is there: X is one of its frames

    if _is_category(kind):
        return bool(types.is_numeric_dtype(kind.categories.dtype))
    if types.is_object_dtype(kind):
        values = X.iloc[:, place].tolist()
        # Of gaps, scikit-learn knows None and NaN.
        return all(value is None or is_plain_number(value) for value in values)
    return bool(types.is_numeric_dtype(kind) or types.is_bool_dtype(kind))


def to_frame(X: Any, categorical: Sequence[str] = (), names: Sequence[str] | None = None) -> Any:
    """X as a frame whose columns each have one type.

    Args:
        X: a frame, or an array `(rows, column)` of anything.
        categorical: the columns whose values may be of several types: names all the same.
        names: of the columns, in order, if not X's own.

    Raises:
        ValueError: if another column holds values of several types; it names the column.
    """
    pd = pandas()
    names = names_of(X) if names is None else list(names)
    if is_frame(X) and not isinstance(X, pd.DataFrame):
        return X.rename(dict(zip(X.columns, names, strict=True)))
    if not is_frame(X):
        X = pd.DataFrame(np.asarray(X, None if isinstance(X, np.ndarray) else object))
        X = X.infer_objects()
    columns = {}
    for place, name in enumerate(names):
        series = X.iloc[:, place]
        levels = getattr(series.dtype, "categories", series)
        is_any = pd.api.types.is_object_dtype(levels.dtype) or levels.dtype.kind == "S"
        of = pd.api.types.infer_dtype(levels, skipna=True) if is_any else ""
        if of in ("bytes", "complex"):
            raise unreadable(name, of)
        if pd.api.types.is_object_dtype(series.dtype):
            series = _of_one_type(series, of, name, name in categorical)
        elif series.dtype == np.longdouble:  # Arrow has none
            series = series.astype(np.float64)
        elif isinstance(series.dtype, pd.PeriodDtype):
            series = series.dt.to_timestamp()
        elif isinstance(levels.dtype, pd.IntervalDtype | pd.PeriodDtype) or of == "mixed":
            series = series.astype(object).map(str, na_action="ignore")
        columns[name] = series
    return pd.DataFrame(columns)


def _of_one_type(series: Any, of: str, name: str, is_category: bool) -> Any:
    """A column of anything, if its values are of one type; as texts where they are categories.

    Args:
        series: the column.
        of: what pandas infers of its values.
        name: for errors.
        is_category: whether its values are names, whatever they are.
    """
    if not of.startswith("mixed") or of == "mixed-integer-float":
        try:
            return series.infer_objects()
        except UnicodeEncodeError as error:
            text = shorten(ascii(error.object))
            raise ValueError(f"column {name!r} holds the text {text}, no valid Unicode") from None
    if is_category:
        return series.map(str, na_action="ignore")
    there = list(series.dropna())
    if all(map(is_plain_number, there)):
        return series.where(series.notna(), np.nan).astype(np.float64)
    kinds = list(dict.fromkeys(type(value).__name__ for value in there))
    if len(kinds) == 1:
        raise unreadable(name, kinds[0])
    raise ValueError(
        f"column {name!r} holds values of several types ({', '.join(kinds[:4])}): make them one "
        f"type, or {REMEDY}"
    )


@dataclass(frozen=True)
class RawTable:
    """Rows that have to be encoded before a network can take them.

    Attributes:
        frame: of pandas or polars, each column of one type.
        categorical: the columns that are categories whatever they hold.
    """

    frame: Any
    categorical: Sequence[str]

    def take(self, rows: NDArray[np.bool_]) -> "RawTable":
        """Some of the rows, by a mask."""
        frame = self.frame
        kept = frame.loc[rows] if hasattr(frame, "loc") else frame.filter(rows)
        return RawTable(kept, self.categorical)


def known_table(estimator: "Predictor", X: Any) -> Table:
    """New rows as a table with the columns of a fitted estimator's encoding."""
    assert estimator.encoding_ is not None
    columns = estimator.encoding_.columns
    named = is_frame(X) and hasattr(estimator, "feature_names_in_")
    categories = [column.name for column in columns if column.kind == "category"]
    names = None if named else [column.name for column in columns]
    literal = [column.name for column in columns if column.literal]
    return Table(to_frame(X, categories, names), literal=literal)


def encode(estimator: "Predictor", X: Any) -> Matrix:
    """New rows `(rows, features)` by the encoding of a fitted estimator.

    Raises:
        TableError: that names the column, if it is missing or of another type.
    """
    encoding, table = estimator.encoding_, known_table(estimator, X)
    assert encoding is not None
    if not table.num_rows:
        raise ValueError("X has no rows, at least one is needed")
    encoding.check_names(table)
    parts = []
    for start, chunk in table.chunks([column.name for column in encoding.used]):
        for column in encoding.used:
            _check_type(column, chunk[column.name], encoding)
        parts.append(encoding.transform_frame(chunk, start))
    return np.concatenate(parts)


def _check_type(column: Column, series: Any, encoding: Encoding) -> None:
    """An error if values are of a type that training did not meet, where nothing else would tell.

    Numbers and dates are told when they are read; a category would take anything for a level that
    is not known, and truth values anything else for missing.
    """
    kind = native_kind(series)
    if kind == "text" or series.isna().all():
        return
    if column.kind == "boolean" and kind != "boolean":
        values = series.dropna().astype(object)
        odd = kind == "date" or not values.isin([0, 1]).all()
        expected = "truth values"
    elif column.kind == "category":
        encoder: Any = encoding.encoders[column.name]
        fits: dict[str, Any] = {
            "number": is_number,
            "boolean": {"True", "False"}.__contains__,
            "date": _DAY.match,
        }
        odd = not any(fits[kind](level) for level in (*encoder.levels, *encoder.means))
        expected = "categories"
    else:
        return
    if odd:
        first = series.dropna().iloc[0]
        raise TableError(
            f"column {column.name!r} holds {kind}s, the first {first}: {expected} such as those in "
            "training were expected"
        )
