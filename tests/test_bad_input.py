"""Odd columns and targets: learnt from as what they are, or one line that names them."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from unbounded import UDNClassifier, UDNRegressor

QUICK = {"epochs": 1, "width": 8, "random_state": 0}
ROWS = 30
X = np.random.default_rng(0).standard_normal((ROWS, 2))
y = X[:, 0]


def again(*values):
    return (list(values) * ROWS)[:ROWS]


def objects(*values):
    return pd.Series(again(*values), dtype=object)


DAYS = pd.date_range("2020-01-01", periods=ROWS, freq="D")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (objects(1.5, None, np.nan, pd.NA, 2.0, 3), "number"),
        (objects("x", None, np.nan, pd.NA, "y"), "category"),
        (objects(True, False, np.nan), "boolean"),
        (pd.Series(again(True, False, None), dtype="boolean"), "boolean"),
        (pd.Series(again(1, 2, None, 4), dtype="Int64"), "number"),
        (pd.Series(DAYS.tz_localize("Europe/Rome")), "date"),
        (pd.Series(pd.period_range("2020-01", periods=ROWS, freq="M")), "date"),
        (pd.cut(pd.Series(y), 3), "category"),
        (pd.Series(pd.Categorical(again("a", "b"), categories=["a", "b", "z"])), "category"),
        (pl.Series("b", again(True, None)), "boolean"),
        (pl.Series("b", again("a", "b"), dtype=pl.Enum(["a", "b", "c"])), "category"),
    ],
    ids=str,
)
def test_odd_columns_are_what_they_are(column, kind):
    library = pl if isinstance(column, pl.Series) else pd
    frame = library.DataFrame({"a": X[:, 0], "b": column})
    model = UDNRegressor(**QUICK).fit(frame, y)
    assert model.encoding_.columns[1].kind == kind
    assert np.isfinite(model.predict(frame)).all()


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (X[:, 0] + 1j, "column 'b' holds values of the type complex128"),
        (objects([1, 2]), "column 'b' holds values of the type list"),
        (objects(1, "a"), "column 'b' holds values of several types"),
        (pd.Series([10**400 + k for k in range(ROWS)], dtype=object), "'b' .* row 1 .* too large"),
        (objects(None), "column 'b' has no values"),
        (np.where(y > 0, np.inf, y), "column 'b' holds infinite values"),
        (pl.Series("b", [[1, k] for k in range(ROWS)]), r"column 'b' .* type List\(Int64\)"),
        (pl.Series("b", [{"x": k} for k in range(ROWS)]), r"column 'b' .* type Struct"),
        (pl.Series("b", [b"x"] * ROWS), "column 'b' .* type Binary"),
    ],
    ids=str,
)
def test_columns_that_nothing_can_be_learnt_from_are_named(column, match):
    library = pl if isinstance(column, pl.Series) else pd
    frame = library.DataFrame({"a": X[:, 0], "b": column})
    with pytest.raises(ValueError, match=match) as told:
        UDNRegressor(**QUICK).fit(frame, y)
    assert "\n" not in str(told.value)


def test_names_of_columns():
    with pytest.raises(ValueError, match="X has no columns"):
        UDNRegressor(**QUICK).fit(pd.DataFrame(index=range(ROWS)), y)
    with pytest.raises(ValueError, match="several columns of the name 'a'"):
        UDNRegressor(**QUICK).fit(pd.DataFrame(X, columns=["a", "a"]), y)
    pairs = pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])
    for columns in ([3, 7], pairs):
        frame = pd.DataFrame(X, columns=columns)
        assert UDNRegressor(**QUICK).fit(frame, y).predict(frame).shape == (ROWS,)


@pytest.mark.parametrize("kind", [UDNClassifier, UDNRegressor])
@pytest.mark.parametrize(
    ("target", "match"),
    [
        (pd.Series(np.where(y > 0, np.nan, 1.0), name="price"), "'price' has no value in row"),
        (pd.Series(again(1, 2, None), dtype="Int64", name="q"), "'q' has no value in row 3"),
        (pl.Series("q", again(1.0, None)), "'q' has no value in row 2"),
        (y + 1j, "complex"),
        (pl.Series("day", [datetime.date(2020, 1, 1)] * ROWS), "'day' holds dates"),
        (pd.Series(again(1, "a"), name="kind", dtype=object), "'kind' holds"),
        (again(1, "a"), r"y holds values of several types \(int, str\)"),
        (again("a", "b", np.nan), "y has no value in row 3"),
        (np.where(y > 1, np.inf, 1.0), "y holds inf in row"),
    ],
    ids=str,
)
def test_targets_that_nothing_can_be_learnt_from_are_named(kind, target, match):
    with pytest.raises(ValueError, match=match) as told:
        kind(**QUICK).fit(X, target)
    assert "\n" not in str(told.value)


def test_classes_keep_their_type():
    for dtype, expected in (("boolean", bool), ("Int64", np.int64), ("Int8", np.int8)):
        target = pd.Series(again(True, False)).astype(dtype)
        assert UDNClassifier(**QUICK).fit(X, target).classes_.dtype == expected
    with pytest.raises(ValueError, match=r"one class \(1\.0\)"):
        UDNClassifier(**QUICK).fit(X, np.ones(ROWS))


def test_weights_that_are_no_numbers():
    with pytest.raises(ValueError, match="sample_weight must be a number for each row"):
        UDNRegressor(**QUICK).fit(X, y, sample_weight=["a"] * ROWS)


@pytest.mark.parametrize("device", ["cuda:99", "banana", None, 3.5, "meta"])
def test_a_device_that_cannot_be_used(device):
    with pytest.raises(ValueError, match="cannot be used") as told:
        UDNRegressor(**QUICK, device=device).fit(X, y)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["time_limit", "validation_fraction", "lr"])
@pytest.mark.parametrize("value", ["5", True, [1]])
def test_arguments_that_are_no_numbers_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a number, got"):
        UDNRegressor(**{**QUICK, name: value}).fit(X, y)


def test_rows_that_are_not_there_yet():
    lazy = pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}).lazy()
    with pytest.raises(TypeError, match=r"LazyFrame, whose rows are not there yet: .*collect\(\)"):
        UDNRegressor(**QUICK).fit(lazy, y)
    model = UDNRegressor(**QUICK).fit(lazy.collect(), y)
    with pytest.raises(TypeError, match="LazyFrame"):
        model.predict(lazy)


@pytest.mark.parametrize("kind", ["frame", "polars", "list"])
def test_texts_where_numbers_were_are_named_at_prediction(kind):
    model = UDNRegressor(**QUICK).fit(pd.DataFrame(X, columns=["a", "b"]), y)
    if kind == "list":
        model = UDNRegressor(**QUICK).fit(X, y)
    columns = {"a": ["1", "2"], "b": ["3", "many rooms"]}
    given = {
        "frame": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "list": [["1", "3"], ["2", "many rooms"]],
    }[kind]
    name = "x1" if kind == "list" else "b"
    with pytest.raises(ValueError, match=f"column '{name}' holds 'many rooms' in row 2: a number"):
        model.predict(given)
