"""Frames straight into the estimators: one preprocessing for them and for tables in files."""

import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import unbounded
from unbounded import UDNClassifier, UDNRegressor, estimators
from unbounded.estimators.frames import categorical_columns, is_plain
from unbounded.estimators.rows import Scalings
from unbounded.tables import Table, prepare
from unbounded.tables.encoders import MAX_LEVELS

SHORT = {"epochs": 2, "width": 8, "random_state": 0, "device": "cpu", "refit": False}
SHORT |= {"preset": "paper"}  # the quicker one


def make_frame(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """All kinds of columns, each in the type that pandas has for it."""
    random = np.random.default_rng(seed)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 900, rows), "D")
    frame = pd.DataFrame(
        {
            "age": random.normal(40, 10, rows),
            "city": random.choice(["Rome", "Oslo", "Bonn"], rows),
            "member": random.random(rows) < 0.5,
            "day": days,
            "grade": pd.Categorical(random.choice(list("abc"), rows)),
            "count": random.integers(0, 9, rows),
            "word": random.choice(["x", "y", None], rows),
        }
    )
    frame.loc[random.random(rows) < 0.1, "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def labels(frame):
    return np.where(frame["city"] == "Rome", "south", "north")


@pytest.fixture(scope="module")
def fitted(frame, labels):
    return UDNClassifier(**SHORT | {"epochs": 20}).fit(frame, labels)


# What is made of the columns


def test_columns_are_understood_as_by_the_command_line(frame, labels, fitted, tmp_path):
    kinds = {column.name: column.kind for column in fitted.encoding_.columns}
    assert kinds == {
        "age": "number",
        "city": "category",
        "member": "boolean",
        "day": "date",
        "grade": "category",
        "count": "number",
        "word": "category",
    }
    assert fitted.n_features_in_ == 7
    assert list(fitted.feature_names_in_) == list(frame.columns)
    assert fitted.score(frame, labels) > 0.9
    # The encoding is that of a table of the same rows, number for number.
    path = tmp_path / "rows.parquet"
    frame.assign(side=labels).to_parquet(path)
    data = prepare(Table(path), "side", held_out=0.0)
    assert data.encoding.feature_names == fitted.encoding_.feature_names
    encoded = fitted.encoding_.transform_frame(next(Table(frame).chunks()).frame)
    assert np.array_equal(data.train.x, encoded)


def test_pandas_polars_and_objects_agree(frame, labels, fitted):
    other = pl.from_pandas(frame)
    assert other.schema["grade"] in (pl.Categorical, pl.Enum)
    short = UDNClassifier(**SHORT)
    expected = short.fit(frame, labels).predict_proba(frame)
    again = UDNClassifier(**SHORT).fit(other, pl.Series("side", labels.tolist()))
    assert np.array_equal(again.predict_proba(other), expected)
    assert np.array_equal(fitted.predict_proba(other), fitted.predict_proba(frame))
    objects = frame.drop(columns=["day", "grade"]).to_numpy(object)
    model = UDNClassifier(**SHORT).fit(objects, labels)
    kinds = [column.kind for column in model.encoding_.columns]
    assert kinds == ["number", "category", "boolean", "number", "category"]
    assert [column.name for column in model.encoding_.columns] == ["x0", "x1", "x2", "x3", "x4"]
    lists = objects.tolist()
    assert np.array_equal(model.predict_proba(lists), model.predict_proba(objects))


def test_numbers_with_gaps_are_filled_and_marked():
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 3))
    y = X[:, 0] + 2 * (X[:, 1] > 0)
    X[random.random(80) < 0.2, 1] = np.nan
    model = UDNRegressor(**SHORT).fit(X, y)
    assert model.encoding_.feature_names == ["x0", "x1", "x1 (missing)", "x2"]
    assert np.isfinite(model.predict(X)).all()
    # Filled with the median, and told from it.
    median, gap = X[:1].copy(), X[:1].copy()
    median[0, 1], gap[0, 1] = model.encoding_.encoders["x1"].scale.centre, np.nan
    assert model.predict(median) != model.predict(gap)
    nullable = pd.DataFrame(X, columns=list("abc")).convert_dtypes()
    other = UDNRegressor(**SHORT).fit(nullable, y)
    assert np.allclose(other.predict(nullable), model.predict(X))
    assert model.__sklearn_tags__().input_tags.allow_nan


def test_a_gap_that_training_did_not_meet_is_the_mean():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = UDNRegressor(**SHORT).fit(X, X[:, 0])
    gap, mean = X[:4].copy(), X[:4].copy()
    gap[:, 1], mean[:, 1] = np.nan, model.input_scaling_.center[1]
    assert np.array_equal(model.predict(gap), model.predict(mean))
    raw = UDNRegressor(**SHORT, standardize=False).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="column 'x1' has missing values"):
        raw.predict(gap)


def test_plain_numbers_are_not_encoded():
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3))
    y = X[:, 0]
    expected = UDNRegressor(**SHORT).fit(X, y).predict(X)
    for same in (
        pd.DataFrame(X, columns=list("abc")),
        pl.DataFrame(X, schema=list("abc"), orient="row"),
        X.astype(object),
        X.tolist(),
        pd.DataFrame(X.astype(object), columns=list("abc")),
    ):
        assert is_plain(same)
        model = UDNRegressor(**SHORT).fit(same, y)
        assert model.encoding_ is None
        assert np.array_equal(model.predict(same), expected)
    assert is_plain(pd.DataFrame({"a": [True, False], "b": [1, 2], "c": [None, 2.5]}))
    assert not is_plain(pd.DataFrame({"a": ["1", "2"]}))


def test_many_levels_get_means_that_their_own_row_did_not_make():
    random = np.random.default_rng(0)
    rows, levels = 600, 2 * MAX_LEVELS
    town = random.integers(0, levels, rows)
    y = random.normal(size=rows)  # nothing to learn
    model = UDNRegressor(**SHORT).fit(pd.DataFrame({"town": [f"t{k}" for k in town]}), y)
    assert " (mean of target 1)" in "".join(model.encoding_.feature_names)
    two = np.column_stack([y, -y])
    model = UDNRegressor(**SHORT).fit(pd.DataFrame({"town": [f"t{k}" for k in town]}), two)
    assert sum("mean of target" in name for name in model.encoding_.feature_names) == 2


def test_rows_of_no_weight_say_nothing(frame, labels):
    weights = np.ones(len(frame))
    weights[:40] = 0
    weighted = UDNClassifier(**SHORT).fit(frame, labels, sample_weight=weights)
    fewer = UDNClassifier(**SHORT).fit(frame[40:], labels[40:])
    assert np.array_equal(weighted.predict_proba(frame), fewer.predict_proba(frame))
    other = UDNClassifier(**SHORT).fit(pl.from_pandas(frame), labels, sample_weight=weights)
    assert np.array_equal(other.predict_proba(frame), fewer.predict_proba(frame))


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_weight_is_a_number_of_copies_in_any_order(classes):
    """Also where means of the target, which copies must not tell each other, go along."""
    random = np.random.default_rng(0)
    rows = 200
    frame = make_frame(rows).assign(town=[f"t{k}" for k in random.integers(0, 60, rows)])
    frame["age"] = frame["age"].round(-1)
    y = random.integers(0, classes, rows) if classes else random.normal(size=rows)
    times = random.integers(1, 4, rows)
    copies = np.repeat(np.arange(rows), times)
    shuffled = random.permutation(copies)
    kind = UDNClassifier if classes else UDNRegressor
    model = kind(**SHORT).fit(frame, y, sample_weight=times)
    assert any("mean of target" in name for name in model.encoding_.feature_names)
    expected, *others = (
        m.predict_proba(frame) if classes else m.predict(frame)
        for m in (
            model,
            kind(**SHORT).fit(frame.iloc[copies], y[copies]),
            kind(**SHORT).fit(frame.iloc[shuffled], y[shuffled]),
            kind(**SHORT).fit(pl.from_pandas(frame.iloc[shuffled]), y[shuffled]),
        )
    )
    for other in others:
        assert np.array_equal(other, expected)


def towns(rows: int = 600, levels: int = 150):
    """A target that is noise, and a category of whose levels there are many."""
    random = np.random.default_rng(0)
    names = [f"t{k}" for k in random.integers(0, levels, rows)]
    return pd.DataFrame({"town": names}), random.normal(size=rows)


@pytest.mark.parametrize("further", ["fit", "partial_fit"])
def test_training_that_goes_on_shows_no_row_its_own_target(further, monkeypatch):
    X, y = towns()
    model = UDNRegressor(**SHORT | {"random_state": None}, warm_start=True).fit(X, y)
    plain = model.encoding_.transform_frame(X)[:, -1]
    assert np.corrcoef(plain, y)[0, 1] > 0.3
    seen = []
    monkeypatch.setattr(Scalings, "tensors", spied(Scalings.tensors, seen))
    getattr(model, further)(X, y)
    # Those that are learnt from and those that are held out.
    means, targets = (np.concatenate([part[k][:, -1] for part in seen]) for k in (0, 1))
    assert len(means) >= 600
    assert np.corrcoef(means, targets)[0, 1] < 0.15
    # Rows that are new have made no mean: theirs are of others.
    seen.clear()
    getattr(model, further)(X[::-1].iloc[:500], -y[::-1][:500])
    means = np.concatenate([rows.x[:, -1] for rows in seen])
    assert set(means) <= set(model.encoding_.transform_frame(X)[:, -1])


def spied(method, seen):
    """A method that keeps what it is given."""

    def wrapper(self, rows, *others):
        seen.append(rows)
        return method(self, rows, *others)

    return wrapper


# Categories by name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ("from_dtype", ["grade"]),
        (["count", "city"], ["count", "city"]),
        ([5, 1], ["city", "count"]),
        ([False, True, False, False, False, True, False], ["city", "count"]),
        (np.array([], dtype=int), []),
    ],
)
def test_categorical_features_as_in_scikit_learn(given, expected, frame):
    assert categorical_columns(frame, given) == expected
    assert categorical_columns(pl.from_pandas(frame), given) == expected


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("all", "None, 'from_dtype', or names, indices or a mask"),
        (["cuont"], r"no column 'cuont': did you mean 'count'\?"),
        ([7], "names the column 7, X has 0 … 6"),
        ([True, False], "mask of 2 columns, X has 7"),
        ([0.5], "all of one type"),
    ],
)
def test_categorical_features_that_are_not_there(given, match, frame, labels):
    with pytest.raises(ValueError, match=match):
        UDNClassifier(categorical_features=given, **SHORT).fit(frame, labels)


def test_numbers_can_be_categories(frame, labels):
    model = UDNClassifier(categorical_features=["count"], **SHORT).fit(frame, labels)
    assert {c.name: c.kind for c in model.encoding_.columns}["count"] == "category"
    X = np.random.default_rng(0).integers(0, 3, size=(60, 2))
    model = UDNClassifier(categorical_features=[1], **SHORT).fit(X, X[:, 1] > 1)
    assert model.encoding_.feature_names[0] == "x0"
    assert set(model.encoding_.feature_names[1:]) == {"x1=0", "x1=1", "x1=2"}
    # A number is a level in whatever type it comes.
    assert np.array_equal(model.predict_proba(X), model.predict_proba(X.astype(float)))
    numbers = pd.DataFrame({"a": X[:, 0], "b": pd.Categorical(X[:, 1])})
    assert UDNClassifier(**SHORT).fit(numbers, X[:, 1] > 1).encoding_ is not None
    plain = UDNClassifier(**SHORT, categorical_features=None).fit(numbers, X[:, 1] > 1)
    assert plain.encoding_ is None


# At prediction


@pytest.mark.parametrize("kind", ["named", "typed"])
def test_dates_can_be_categories(kind, frame, labels):
    days = frame.day.dt.to_period("Y").dt.to_timestamp()
    given = frame.assign(day=days if kind == "named" else pd.Categorical(days))
    chosen = {"categorical_features": ["day"]} if kind == "named" else {}
    model = UDNClassifier(**SHORT, **chosen).fit(given, labels)
    assert {row["name"]: row["kind"] for row in model.encoding_.listing()}["day"] == "category"
    assert min(model.encoding_.encoders["day"].levels).startswith("2020-01-01")
    assert np.isfinite(model.predict_proba(given)).all()


def test_an_unknown_category_is_predicted_all_the_same(fitted, frame):
    new = frame.head(5).assign(city="Lima", grade=pd.Categorical(["z"] * 5))
    probs = fitted.predict_proba(new)
    assert np.isfinite(probs).all()
    # It is none of the known ones, but something between them.
    known = [fitted.predict_proba(new.assign(city=c))[:, 0] for c in ("Rome", "Oslo", "Bonn")]
    assert (probs[:, 0] > np.min(known, 0)).all()
    assert (probs[:, 0] < np.max(known, 0)).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.rename(columns={"city": "town"}), "(?s)feature names should match.*city"),
        (lambda f: f.drop(columns="age"), "(?s)feature names should match.*age"),
        (lambda f: f.assign(more=1), "(?s)feature names should match.*more"),
        (lambda f: f.assign(age="old"), "column 'age' holds 'old' in row 1"),
        (lambda f: f.assign(age=np.inf), "column 'age' holds 'inf' in row 1"),
        (lambda f: f.assign(age=f["day"]), "column 'age' holds .* in row 1: a finite number"),
        (lambda f: f.assign(day=3.5), "column 'day' holds '3.5' in row 1: a date"),
        (lambda f: f.assign(city=1.5), "column 'city' holds numbers, the first 1.5: categories"),
        (lambda f: f.assign(city=f["day"]), "column 'city' holds dates"),
        (lambda f: f.assign(member=0.5), "column 'member' holds numbers, the first 0.5: truth"),
        (lambda f: f.assign(city=[1, "a"] * 60, age=[1, "a"] * 60), "column 'age' holds values of"),
    ],
)
def test_other_columns_and_types_are_told(change, match, fitted, frame):
    with pytest.raises(ValueError, match=match):
        fitted.predict(change(frame))


def test_no_rows_are_told(fitted, frame):
    with pytest.raises(ValueError, match="X has no rows"):
        fitted.predict(frame[:0])


def test_missing_values_anywhere_are_predicted(fitted, frame):
    nothing = frame.head(3).copy()
    for name in nothing.columns:
        nothing[name] = pd.Series([None] * 3, dtype=nothing[name].dtype if name == "day" else None)
    assert np.isfinite(fitted.predict_proba(nothing)).all()


def test_arrays_and_frames_of_a_fitted_estimator(fitted, frame, labels):
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        array = fitted.predict_proba(frame.to_numpy(object))
    assert np.array_equal(array, fitted.predict_proba(frame))
    unnamed = UDNClassifier(**SHORT).fit(frame.to_numpy(object), labels)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        named = unnamed.predict_proba(frame)
    assert np.array_equal(named, unnamed.predict_proba(frame.to_numpy(object)))


# Bad input in training


def arrow(values):
    found = pa.array(values)
    return pd.array(found, dtype=pd.ArrowDtype(found.type))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.assign(nothing=None), "column 'nothing' has no values, all are missing"),
        (lambda f: f.assign(nothing=np.nan), "column 'nothing' has no values, all are missing"),
        (lambda f: f.assign(odd=[1, "a"] * 60), "column 'odd' .* several types .int, str."),
        (lambda f: f.assign(odd=[{"a": 1}] * 120), "column 'odd' holds values of the type dict"),
        (lambda f: f.assign(odd=[b"u", b"v"] * 60), "column 'odd' holds values of the type bytes"),
        (lambda f: f.assign(odd=[b"u", None] * 60), "column 'odd' holds values of the type bytes"),
        (lambda f: f.assign(odd=pd.Categorical([b"u", b"v"] * 60)), "'odd' .* of the type bytes"),
        (lambda f: f.assign(odd=arrow([b"u"] * 120)), "'odd' holds values of the type binary"),
        (lambda f: f.assign(odd=arrow([[1]] * 120)), "'odd' holds values of the type list"),
        (lambda f: f.assign(odd=arrow([{"a": 1}] * 120)), "'odd' holds values of the type struct"),
        (
            lambda f: f.assign(odd=pd.Series(["a", "b\ud800"] * 60, f.index, object)),
            r"column 'odd' holds the text 'b\\ud800', no valid Unicode",
        ),
        (
            lambda f: f.set_axis(pd.Index(["a\ud800", *f.columns[1:]], dtype=object), axis=1),
            r"the name 'a\\ud800' of a column is no valid Unicode",
        ),
        (lambda f: f.assign(count=np.inf), "column 'count' holds infinite values, the first"),
        (lambda f: f.set_axis(list("abcdefa"), axis=1), "several columns of the name 'a'"),
        (
            lambda f: f.assign(num=[*map(str, range(119)), "many"]),
            "column 'num' holds text among numbers.*'many'.*categorical_features",
        ),
    ],
)
def test_bad_columns_are_named(change, match, frame, labels):
    with pytest.raises(ValueError, match=match) as error:
        UDNClassifier(**SHORT).fit(change(frame), labels)
    assert "\n" not in str(error.value)


def test_mixed_types_may_be_categories(frame, labels):
    mixed = frame.assign(odd=[1, "a"] * 60)
    model = UDNClassifier(**SHORT, categorical_features=["odd"]).fit(mixed, labels)
    assert {"odd=1", "odd=a"} <= set(model.encoding_.feature_names)


@pytest.mark.parametrize("kind", [UDNClassifier, UDNRegressor])
def test_bad_numbers_are_named(kind):
    X = np.random.default_rng(0).normal(size=(30, 3))
    y = np.arange(30) % 2
    X[4, 1] = -np.inf
    with pytest.raises(ValueError, match=r"column 'x1' .*infinite.*\(-inf\) in row 5"):
        kind(**SHORT).fit(X, y)
    X[4, 1] = 0
    frame = pd.DataFrame(X, columns=list("abc"))
    model = kind(**SHORT).fit(frame, y)
    with pytest.raises(ValueError, match="column 'b' holds infinite values"):
        model.predict(frame.assign(b=np.inf))
    with pytest.raises(ValueError, match="several columns of the name 'a'"):
        kind(**SHORT).fit(frame.set_axis(["a", "b", "a"], axis=1), y)
    large = np.full((30, 3), 1e308) * np.linspace(0.1, 1, 30)[:, None]
    assert kind(**SHORT).fit(large, y).encoding_ is None  # a sum that overflows is no infinity


DAYS = pd.Series(pd.date_range("2021-01-01", periods=40), name="due")


@pytest.mark.parametrize("kind", [UDNClassifier, UDNRegressor])
@pytest.mark.parametrize(
    "y", [DAYS, DAYS.to_numpy(), DAYS.dt.date, pl.Series("due", DAYS.dt.date.tolist())]
)
def test_a_target_of_dates_is_told(kind, y):
    with pytest.raises(ValueError, match=r"the target ('due'|y) holds dates or times"):
        kind(**SHORT).fit(np.ones((40, 2)), y)


@pytest.mark.parametrize("kind", [UDNClassifier, UDNRegressor])
@pytest.mark.parametrize("gap", [None, np.nan, pd.NA])
def test_a_target_with_gaps_is_told(kind, gap):
    y = pd.Series(["1", gap, "0", "1"] * 10, name="kind", dtype=object)
    with pytest.raises(ValueError, match=r"the target 'kind' has no value in row 2 \(NaN\)"):
        kind(**SHORT).fit(np.ones((40, 2)), y)


def test_a_target_of_free_text_is_told():
    X = np.arange(80.0).reshape(40, 2)
    texts = pd.Series([f"a note {k}" for k in range(40)], name="note")
    with pytest.raises(ValueError, match="the target 'note' holds 40 different texts in 40 rows"):
        UDNClassifier(**SHORT).fit(X, texts)
    with pytest.raises(
        ValueError, match="the target 'note' holds 'a note 0' in row 1: a regressor"
    ):
        UDNRegressor(**SHORT).fit(X, texts)
    with pytest.raises(ValueError, match="the target y holds 40 classes in 40 rows"):
        UDNClassifier(**SHORT).fit(X, np.arange(40))


# Files


def test_a_file_carries_the_encoding(fitted, frame, labels, tmp_path):
    path = tmp_path / "model.udn"
    fitted.set_params(categorical_features=("city",)).save(path)
    loaded = estimators.load(path)
    assert loaded.categorical_features == ["city"]
    assert np.array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))
    assert loaded.encoding_ == fitted.encoding_
    copied = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copied.predict_proba(frame), fitted.predict_proba(frame))
    extra = unbounded.files.read_header(path)["extra"]
    extra["estimator"]["encoding"]["columns"].pop()
    unbounded.save(fitted.model_, path, extra=json.loads(json.dumps(extra)))
    with pytest.raises(unbounded.FileError, match="encoding"):
        estimators.load(path)


def test_partial_fit_keeps_the_first_encoding(frame, labels):
    model = UDNClassifier(**SHORT)
    model.partial_fit(frame[:60], labels[:60], classes=["north", "south"])
    encoding = model.encoding_
    model.partial_fit(frame[60:], labels[60:])
    assert model.encoding_ is encoding
    assert model.n_rows_seen_ == 120
    plain = UDNRegressor(**SHORT).partial_fit(np.eye(4), np.arange(4.0))
    with pytest.raises(ValueError, match="column 'x2' has missing values, the rows before had"):
        plain.partial_fit(np.where(np.eye(4)[::-1] > 0, np.nan, 0)[1:2], [1.0])


@pytest.mark.parametrize("by", ["type", "name"])
def test_levels_of_categories_may_be_called_na(by, tmp_path):
    names = np.array(["NA", "none", "-", "x"])
    codes = np.random.default_rng(0).integers(0, 4, 200)
    frame, y = pd.DataFrame({"c": names[codes]}), codes.astype(float)
    options = {"categorical_features": ["c"]} if by == "name" else {}
    frame = frame.astype("category") if by == "type" else frame
    model = UDNRegressor(random_state=0, quality="fast", **options).fit(frame, y)
    assert model.score(frame, y) > 0.99
    model.save(tmp_path / "m.udn")
    again = UDNRegressor.load(tmp_path / "m.udn")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    texts = pd.DataFrame({"c": names[codes]})  # the type says nothing: marks as in files
    assert UDNRegressor(random_state=0, quality="fast").fit(texts, y).score(texts, y) < 0.9
