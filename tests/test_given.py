"""Containers that hide gaps and types are opened, and times are never read as other numbers."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from unbounded import UDNClassifier, UDNRegressor

ROWS = 80
SHORT = {"epochs": 2, "width": 8, "random_state": 0, "device": "cpu", "preset": "paper"}
RANDOM = np.random.default_rng(0)
S = RANDOM.integers(0, 4, ROWS)
B = RANDOM.normal(size=ROWS)
Y = 3.0 * S + 0.1 * B
DAYS = [dt.datetime(2020, 1, 1 + int(s), 12) for s in S]
TEXTS = np.array(list("abcd"))[S]


def fitted(X, **options):
    return UDNRegressor(**SHORT | options).fit(X, Y)


@pytest.mark.parametrize(
    "rows",
    [
        lambda: pl.DataFrame({"a": DAYS, "b": B}),
        lambda: pl.DataFrame({"a": [dt.timedelta(days=int(s)) for s in S], "b": B}),
        lambda: pl.DataFrame({"a": [day.time() for day in DAYS], "b": B}),
        lambda: pd.DataFrame({"a": DAYS, "b": B}),
        lambda: pd.DataFrame({"a": DAYS, "b": DAYS}),
        lambda: pd.DataFrame({"a": pd.to_timedelta(S, "D"), "b": B}),
        lambda: pd.DataFrame({"a": pd.Series(DAYS, dtype=object), "b": B}),
        lambda: pd.DataFrame({"a": pd.PeriodIndex(DAYS, freq="D"), "b": B}),
        lambda: pd.DataFrame({"a": pd.array(DAYS, dtype="timestamp[us][pyarrow]"), "b": B}),
        lambda: pd.DataFrame({"a": [[1]] * ROWS, "b": B}),
        lambda: pa.table({"a": DAYS, "b": B}),
    ],
)
def test_times_are_refused_where_training_had_numbers(rows):
    X = rows()
    make = pl.DataFrame if isinstance(X, pl.DataFrame) else pd.DataFrame
    model = fitted(make({"a": S, "b": B}))
    with pytest.raises(ValueError, match="column 'a' holds values of the type"):
        model.predict(X)
    with pytest.raises(ValueError, match="column 'a' holds values of the type"):
        model.partial_fit(X, Y)
    with pytest.raises(ValueError, match="column 'a' holds values of the type"):
        fitted(make({"a": S, "b": B})).fit(make({"a": S, "b": B}), Y, eval_set=(X, Y))


@pytest.mark.parametrize(
    "rows", [np.array(DAYS, "datetime64[s]")[:, None], [[day] for day in DAYS]]
)
def test_arrays_and_lists_of_dates_are_those_of_a_frame(rows):
    frame = pd.DataFrame({"x0": DAYS})
    expected = fitted(frame).predict(frame)
    model = fitted(rows)
    assert model.encoding_.columns[0].kind == "date"
    np.testing.assert_array_equal(model.predict(rows), expected)
    other = np.array(DAYS, "datetime64[ns]")[:, None]  # another unit
    np.testing.assert_array_equal(model.predict(other), expected)
    model.predict(np.array([["NaT"]], "datetime64[ns]"))  # missing, as in a frame
    numbers = fitted(S[:, None])
    with pytest.raises(ValueError, match="column 'x0' holds values of the type"):
        numbers.predict(rows)


def test_the_order_of_columns_does_not_decide_what_lists_are():
    pairs = [[day, text] for day, text in zip(DAYS, TEXTS.tolist(), strict=True)]
    kinds = [column.kind for column in fitted(pairs).encoding_.columns]
    assert kinds == ["date", "category"]
    assert [c.kind for c in fitted([p[::-1] for p in pairs]).encoding_.columns] == kinds[::-1]


def test_masked_values_are_missing():
    masked = np.ma.masked_array(np.where(S == 1, -999.0, S)[:, None], mask=(S == 1)[:, None])
    gaps = masked.filled(np.nan)
    np.testing.assert_array_equal(fitted(masked).predict(masked), fitted(gaps).predict(gaps))
    plain = fitted(S[:, None].astype(float))
    np.testing.assert_array_equal(plain.predict(masked), plain.predict(gaps))
    whole = np.ma.masked_array(S[:, None])
    np.testing.assert_array_equal(plain.predict(whole), plain.predict(S[:, None]))
    for kind, y in ((UDNRegressor, Y), (UDNClassifier, S)):
        hidden = np.ma.masked_array(y, mask=S == 1)
        row = int((S == 1).argmax()) + 1
        with pytest.raises(ValueError, match=f"y has no value in row {row} .masked"):
            kind(**SHORT).fit(S[:, None], hidden)
    weights = np.ma.masked_array(np.ones(ROWS), mask=S == 1)
    for bad in (weights, np.array(DAYS, "datetime64[s]")):
        with pytest.raises(ValueError, match="sample_weight must be a number for each row"):
            UDNRegressor(**SHORT).fit(S[:, None], Y, sample_weight=bad)


def test_tables_of_arrow_are_frames():
    table = pa.table({"d": [day.date() for day in DAYS], "t": TEXTS.tolist(), "b": B})
    model = fitted(table)
    assert [(c.name, c.kind) for c in model.encoding_.columns] == [
        ("d", "date"),
        ("t", "category"),
        ("b", "number"),
    ]
    np.testing.assert_array_equal(model.predict(table), model.predict(table.to_pandas()))


def test_gaps_of_pandas_are_missing_for_models_of_numbers():
    model = fitted(pd.DataFrame({"a": S.astype(float), "b": B}))
    expected = model.predict(pd.DataFrame({"a": [1.0, np.nan], "b": [0.1, 0.2]}))
    for gap in (pd.NA, pd.NaT, None):
        rows = pd.DataFrame({"a": pd.Series([1.0, gap], dtype=object), "b": [0.1, 0.2]})
        np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-6)
        assert rows["a"][1] is gap  # what was given stays


def test_sparse_columns_of_pandas_are_dense():
    dense = pd.DataFrame({"a": S.astype(float), "t": TEXTS})
    sparse = dense.assign(a=pd.arrays.SparseArray(dense["a"]))
    np.testing.assert_array_equal(fitted(sparse).predict(sparse), fitted(dense).predict(dense))
    alone = sparse[["a"]]
    np.testing.assert_array_equal(
        fitted(alone).predict(alone), fitted(dense[["a"]]).predict(dense[["a"]])
    )


def test_periods_may_be_categories():
    months = pd.Series(pd.period_range("2020-01", periods=4, freq="M")[S]).astype("category")
    model = fitted(pd.DataFrame({"a": months, "b": B}))
    assert model.encoding_.columns[0].kind == "category"
    assert "a=2020-02" in model.encoding_.feature_names


def test_labels_are_whole_texts():
    with pytest.raises(ValueError, match=r"y holds the text '\\ud800', no valid Unicode"):
        UDNClassifier(**SHORT).fit(S[:, None], np.array(["\ud800", "b", "c", "d"])[S])


@pytest.mark.parametrize(
    ("X", "match"),
    [
        (pd.DataFrame({"a": [1j * s for s in S], "t": TEXTS}, dtype=object), "'a' .* type complex"),
        ([[10**400 * int(s)] for s in S], "column 'x0' holds a number in row . that is too large"),
        ({"a": S, "t": TEXTS}, "X is a dict of columns: give pandas.DataFrame"),
    ],
)
def test_what_cannot_be_read_is_told(X, match):
    with pytest.raises((ValueError, TypeError), match=match):
        fitted(X)


def test_rare_types_are_read():
    frame = pd.DataFrame({"a": S.astype(float), "t": TEXTS})
    long = frame.assign(a=S.astype(np.longdouble))
    np.testing.assert_array_equal(fitted(long).predict(long), fitted(frame).predict(frame))
    pairs = frame.assign(a=pd.Categorical([(1, int(s)) for s in S]))
    assert fitted(pairs).encoding_.columns[0].kind == "category"
    texts = TEXTS[:, None]
    of_any_length = texts.astype(np.dtypes.StringDType())
    np.testing.assert_array_equal(
        fitted(of_any_length).predict(of_any_length), fitted(texts).predict(texts)
    )


def test_bad_numbers_elsewhere_are_told():
    with pytest.raises(ValueError, match=r"y holds a number in row . that is too large"):
        UDNRegressor(**SHORT).fit(S[:, None], [10**400 * int(s) for s in S])
    model = fitted(S[:, None])
    for coverage in ("a", None, [0.5], 2):
        with pytest.raises(ValueError, match="coverage must be strictly between 0 and 1"):
            model.predict_interval(S[:3, None], coverage=coverage)
