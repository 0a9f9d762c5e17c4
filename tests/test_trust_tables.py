"""Tables are never silently wrong: labels, offsets, short rows, dates, bounds, many columns."""

import contextlib
import csv
import gzip
import io
import os
import threading
import warnings
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbounded.estimators import UDNClassifier, UDNRegressor
from unbounded.estimators.rows import Scaling, check_weights
from unbounded.files import FileError
from unbounded.scaling import moments, standardized
from unbounded.tables import Table, TableError, TableModel, lines, prepare, scores
from unbounded.tables import encoders as enc
from unbounded.tables import values as read
from unbounded.tables.columns import profile
from unbounded.tables.reading import MISSING
from unbounded.tables.target import infer_target
from unbounded.tables.text import blanks_before_quotes, is_number

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def frame_of(source, **options):
    return pd.concat([chunk.frame for chunk in Table(source, **options).chunks()])


def classes_of(source):
    return infer_target(profile(Table(source))["y"], "classification").classes


# Labels and categories


LABELS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    .map(str.strip)
    .filter(lambda text: text and text not in MISSING),
    min_size=2,
    max_size=6,
    unique=True,
)
TRICKY = st.sampled_from(
    [
        "007",
        "7",
        "7.0",
        "1E5",
        "100000",
        "1.10",
        "1.1",
        "+1",
        "1",
        "-0",
        "0",
        "9007199254740993",
        "9007199254740992",
        "True",
        "TRUE",
        "true",
        "é",
        "é",
        "1_000",
        "٣",
        "３",
        "1e400",
        "inf",
        "0x10",
        "−1",
        "5%",
        ",",
    ]
)


def sources(folder, labels):
    """The same column in every form that a table may have."""
    text = {}
    for delimiter in ",\t":
        file = io.StringIO()
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([("x", "y"), *((i, label) for i, label in enumerate(labels))])
        text[delimiter] = file.getvalue().encode()
    yield write(folder, "t.csv", text[","])
    yield write(folder, "t.tsv", text["\t"])
    yield write(folder, "t.csv.gz", gzip.compress(text[","]))
    columns = {"x": list(range(len(labels))), "y": list(labels)}
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    yield folder / "t.parquet"
    yield pd.DataFrame(columns)
    yield pytest.importorskip("polars").DataFrame(columns)


@given(LABELS | st.lists(TRICKY, min_size=2, max_size=6, unique=True))
@settings(max_examples=15, deadline=None)
def test_labels_are_what_was_written_in_every_format(tmp_path_factory, labels):
    folder = tmp_path_factory.getbasetemp()
    for source in sources(folder, labels * 3):
        assert sorted(classes_of(source)) == sorted(labels)


def test_whole_numbers_and_decimals_keep_all_digits():
    large = [2**60 + 1, 2**60 + 2] * 5
    assert classes_of(pd.DataFrame({"y": large})) == [str(2**60 + 1), str(2**60 + 2)]
    unsigned = pa.table({"y": pa.array([2**64 - 1, 2**64 - 2] * 5, pa.uint64())})
    for values in (unsigned["y"], pa.array([Decimal("1.10"), Decimal("1.20")] * 5)):
        frame = pd.DataFrame({"y": pd.Series(values, dtype=pd.ArrowDtype(values.type))})
        wanted = sorted({str(v) for v in values.to_pylist()})
        assert sorted(classes_of(frame)) == wanted


def test_new_rows_may_write_the_same_number_in_another_way():
    target = infer_target(profile(Table(pd.DataFrame({"y": ["1", "2"] * 10})))["y"])
    assert target.read(pd.Series(["1.0", "2", "2.0"], dtype="str")).tolist() == [0, 1, 1]
    assert target.read(pd.Series([1.0, 2.0, np.nan]))[:2].tolist() == [0, 1]
    gaps = infer_target(profile(Table(pd.DataFrame({"y": ["1.0", "2.0"] * 10})))["y"])
    assert gaps.classes == ["1.0", "2.0"]
    assert gaps.read(pd.Series(["1", "2"], dtype="str")).tolist() == [0, 1]
    names = infer_target(profile(Table(pd.DataFrame({"y": ["007", "7"] * 10})))["y"])
    assert names.classes == ["007", "7"]
    assert names.note
    with pytest.raises(TableError, match=r"'7\.0'"):
        names.read(pd.Series(["7.0"], dtype="str"))


def test_categories_are_not_merged_and_come_back(tmp_path):
    codes = ["007", "7", "1E5", "100000"] * 20
    y = [0.0, 1.0, 2.0, 3.0] * 20
    table = Table(pd.DataFrame({"c": codes, "y": np.array(y) + np.arange(80) % 7}))
    data = prepare(table, "y", category=["c"])
    assert set(data.encoding.encoders["c"].levels) == set(codes)
    numeric = Table(pd.DataFrame({"c": [1, 2, 3, 4] * 20, "y": np.arange(80) % 7 + 0.5}))
    encoding = prepare(numeric, "y", category=["c"]).encoding
    as_text, as_floats = (
        encoding.transform_frame(pd.DataFrame({"c": values}))
        for values in (pd.Series(["1", "2"], dtype="str"), pd.Series([1.0, 2.0]))
    )
    gaps = encoding.transform_frame(pd.DataFrame({"c": pd.Series(["1.0", "2.0"], dtype="str")}))
    assert np.array_equal(as_text, as_floats)
    assert np.array_equal(as_text, gaps)


def test_one_rule_of_what_a_number_is():
    numbers = ["1", "-1", "+1", "1.", ".5", "1e5", "1E-5", "inf", "-Infinity", "1e400", "007"]
    texts = [
        "5%",
        "1_000",
        "٣",
        "１",
        "0x10",
        "0x1p3",
        "1,000",
        "−1",
        "5%",
        "1d5",
        "TRUE",
        "nan(1)",
        "NAN",
    ]
    for text in numbers + texts:
        assert is_number(text) == (text in numbers)
        for beside in ("1", "text"):  # both ways through the reader
            found = read.numbers(pd.Series([text, beside], dtype="str"))
            assert bool(found.bad[0]) == (text in texts), text


# Scaling


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(1, 30),
)
@settings(deadline=None)
def test_constants_become_zero(value, rows):
    values = np.full((rows, 1), value)
    scaling = Scaling.of(values, np.linspace(0.1, 1, rows))
    assert (scaling.apply(values) == 0).all()
    scale = enc.Scale.fit(values[:, 0])
    assert (scale.transform(values[:, 0]) == 0).all()


@pytest.mark.parametrize("offset", [0.0, 1.7e18, -1e30, 1e300, 1.7e308])
def test_offsets_keep_what_double_precision_holds(offset):
    step = max(float(np.spacing(abs(offset))), 1e-3)
    signs = np.where(np.arange(40) % 2, 1.0, -1.0)
    values = (offset - 4 * step + signs * 2 * step)[:, None]
    scaled = Scaling.of(values, np.ones(40)).apply(values)[:, 0]
    assert scaled == pytest.approx(signs, abs=0.5)
    assert len(np.unique(scaled)) == 2
    encoded = enc.Scale.fit(values[:, 0]).transform(values[:, 0])
    assert np.sign(encoded).tolist() == signs.tolist() or len(np.unique(encoded)) == 2


def test_numbers_near_the_end_of_double_precision():
    values = np.array([[-1.7e308, 5e-310], [1.7e308, 1e-309], [1e308, 2e-309]])
    with np.errstate(over="raise", invalid="raise"):
        center, scale = moments(values, np.ones(3))
        scaled = standardized(values, center, scale)
    assert np.isfinite(scaled).all()
    assert scaled[:, 0].std() == pytest.approx(1)
    assert (np.diff(scaled[:, 1]) > 0).all()


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_huge_numbers_are_predicted_alike_alone_and_together(size):
    x = np.random.default_rng(0).normal(size=(100, 2))
    numbers = UDNRegressor(epochs=1, width=8, random_state=0).fit(x, x[:, 0])
    classes = UDNClassifier(epochs=1, width=8, random_state=0).fit(x, x[:, 0] > 0)
    for predict in (numbers.predict, numbers.predict_quantiles, classes.predict_proba):
        alone, together = predict(x[:1] * size), predict(x * size)
        assert np.isfinite(together).all()
        rows = together[:1] if len(together) == 100 else together[:, :1]
        assert alone == pytest.approx(rows, rel=1e-6)


def test_a_constant_of_many_digits_does_not_harm_an_estimator():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=120)
    plain = UDNRegressor(random_state=0, epochs=3)
    wanted = plain.fit(np.c_[x, np.zeros(120)], y).predict(np.c_[x, np.zeros(120)])
    for value in (1.7e18, 1e30):
        wide = np.c_[x, np.full(120, value)]
        found = UDNRegressor(random_state=0, epochs=3).fit(wide, y).predict(wide)
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize("size", [1e-300, 5e-324, 1e300])
def test_weights_of_any_size_train(size):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = UDNRegressor(random_state=0, epochs=2).fit(x, x[:, 0], np.full(40, size))
        assert np.isfinite(model.predict(x)).all()
    assert any("how often each row counts" in str(w.message) for w in caught) == (size < 1)
    assert check_weights([1.0, 2.0], 2).tolist() == [1, 2]


# Reading


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b,c\n1,2,3\n4,5\n", r"t\.csv.*line 3 has 2 fields, fewer than the 3 columns"),
        ('a,b\n1,"x\ny"\n4\n', "line 4 has 1 field"),
        ("a,b\n1,2,\n", "line 2 has 3 fields, more"),
        ("a,b,\n1,2\n", "line 2 has 2 fields"),
        ('a,b\n1,"2\n3,4\n', "quote that opens in line 2 never closes"),
        ("a,b\n" + "1,2\n" * 20000 + "1,\0\n", "binary data"),
        ("<!doctype html>\n<p>", "HTML"),
        ("<data>\n<row>1</row>\n</data>", "HTML or XML"),
    ],
)
def test_rows_that_do_not_fit_are_errors(tmp_path, content, said):
    with pytest.raises(TableError, match=said):
        frame_of(write(tmp_path, "t.csv", content))


@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        ("\n\ny\n1\n2\n", ["y"], [["1"], ["2"]]),
        ("\r\n  \r\nx,y\r\n1,2\r\n", ["x", "y"], [["1", "2"]]),
        ("x,y\r1,2\r3,4\r", ["x", "y"], [["1", "2"], ["3", "4"]]),
        ("x,y\n1,2\r\n\n3,4", ["x", "y"], [["1", "2"], ["3", "4"]]),
        ("<50k,<x>\n1,2\n", ["<50k", "<x>"], [["1", "2"]]),
        ('"a\nb",c\n"1\n2",3\n', ["a\nb", "c"], [["1\n2", "3"]]),
        ("a\u2028b,c\n1,2\n", ["a\u2028b", "c"], [["1", "2"]]),
        ("\ufeffx,y\n1,2\n", ["x", "y"], [["1", "2"]]),
        ('x,y\n1,"say ""no"""\n', ["x", "y"], [["1", 'say "no"']]),
        ("x,y\n1," + "z" * 200_000 + "\n", ["x", "y"], [["1", "z" * 200_000]]),
    ],
)
def test_odd_tables_that_are_fine(tmp_path, content, names, rows):
    for options in ({}, {"encoding": "utf-8"}):
        frame = frame_of(write(tmp_path, "t.csv", content), **options)
        assert list(frame.columns) == names
        assert frame.to_numpy().tolist() == rows
    assert csv.field_size_limit() == 131072  # the process's own bound is left alone


def test_headers_of_any_length(tmp_path):
    names = [f"a rather long name of a column {i}" for i in range(9000)]
    path = write(tmp_path, "t.csv", ",".join([*names, "y"]) + "\n" + "1," * 9000 + "2\n")
    assert Table(path).names[-1] == "y"


def test_what_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    content = b"x,y\n" + b"1,2\n" * 40_000
    path = write(tmp_path, "t.csv.gz", gzip.compress(content))
    assert sum(len(chunk.frame) for chunk in Table(path).chunks()) == 40_000
    monkeypatch.setattr(lines, "MAX_UNPACKED", 1 << 16)
    with pytest.raises(TableError, match=r"unpacks to more than.*UNBOUNDED_MAX_UNPACKED"):
        frame_of(path)
    monkeypatch.setenv("UNBOUNDED_MAX_UNPACKED", "2e5")
    assert len(frame_of(path)) == 40_000
    monkeypatch.setenv("UNBOUNDED_MAX_UNPACKED", "much")
    with pytest.raises(TableError, match="number of bytes"):
        frame_of(path)
    monkeypatch.delenv("UNBOUNDED_MAX_UNPACKED")
    monkeypatch.setattr(lines, "LONGEST_LINE", 1 << 12)
    with pytest.raises(TableError, match="longer than"):
        frame_of(write(tmp_path, "long.csv", "x,y\n1," + "2" * 5000))


def test_parquet_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 2000), ["x" * 10_000])
    parquet.write_table(pa.table({"t": repeated}), path)
    monkeypatch.setattr(lines, "MAX_UNPACKED", 1 << 20)
    with pytest.raises(TableError, match="column 't' holds"):
        frame_of(path)
    parquet.write_table(pa.table({"x": np.zeros(2_000_000, np.int8)}), path)
    with pytest.raises(TableError, match="unpacks to more"):
        Table(path)


def test_dates_that_fit_both_orders_are_noted():
    def notes(days):
        frame = pd.DataFrame({"day": days * 10, "x": np.arange(40) % 5, "y": np.arange(40) * 1.5})
        data = prepare(Table(frame), "y")
        return data.notes, data.encoding.listing()[0]["why"]

    (note,), why = notes(["3/4/2021", "5/6/2021", "1/2/2020", "7/8/2019"])
    assert "'day'" in note
    assert "day, month, year" in note
    assert why in note
    assert notes(["3/4/2021", "25/6/2021", "1/2/2020", "7/8/2019"]) == ([], None)
    assert notes(["2021-04-03", "2021-06-05", "2020-02-01", "2019-08-07"]) == ([], None)


# Many columns


def test_importance_of_many_columns_is_bounded(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 12))
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(12)])
    frame["y"] = 3 * x[:, 5] + 0.1 * rng.normal(size=300)
    data = prepare(Table(frame), "y")
    model = TableModel.train(data, epochs=8)
    model.score_held_out(data, references=False, importance=False)
    assert "importance" not in model.info["held_out"]
    monkeypatch.setattr(scores, "IMPORTANCE_COLUMNS", 3)
    model.score_held_out(data, references=False)
    found = model.info["held_out"]["importance"]
    assert len(found) == 3
    assert found[0]["column"] == "x5"


# What a stranger found


def written_as(tmp_path, y):
    table = pa.table({"a": np.arange(len(y)) % 7 * 1.0, "y": y})
    parquet.write_table(table, tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


@pytest.mark.parametrize(
    ("values", "kind", "names"),
    [
        (
            [10**18, 10**18 + 1],
            ("timestamp", "ns"),
            ["2001-09-09T01:46:40", "2001-09-09T01:46:40.000000001"],
        ),
        ([1, 2], ("date32",), ["1970-01-02", "1970-01-03"]),
        ([1, 2], ("duration", "ns"), ["0.001", "0.002"]),
        ([1, 2], ("time64", "ns"), ["0.001", "0.002"]),
    ],
)
def test_times_and_days_are_classes_by_all_their_digits(values, kind, names, tmp_path):
    made = getattr(pa, kind[0])(*kind[1:])
    path = written_as(tmp_path, pa.array(values * 30, made))
    data = prepare(Table(path), "y", task="classification")
    assert sorted(data.target.classes) == names


def test_decimals_are_classes_as_their_type_writes_them(tmp_path):
    values = [Decimal("1.10"), Decimal("2.25")] * 30
    path = written_as(tmp_path, pa.array(values, pa.decimal128(9, 2)))
    assert prepare(Table(path), "y", task="classification").target.classes == ["1.10", "2.25"]


def test_a_file_whose_name_is_no_text_makes_a_model_that_loads(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"t\xff.csv")
    rows = "".join(f"{i % 7},{i % 5},{i * 0.1}\n" for i in range(60))
    with open(path, "w") as file:
        file.write("a,b,y\n" + rows)
    short = {"epochs": 2, "width": 4, "references": False, "device": "cpu"}
    model = TableModel.fit(os.fsdecode(path), "y", **short)
    model.save(tmp_path / "m.udn")
    assert TableModel.load(tmp_path / "m.udn").info["table"] == "t\\udcff.csv"
    with pytest.raises(TableError, match="no text in UTF-8"):
        Table(os.fsdecode(path), missing=["\udcff"])


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    rows = "".join(f"{i % 7},{i % 5},{i * 0.1}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows)
    short = {"epochs": 2, "width": 4, "references": False, "device": "cpu"}
    model = TableModel.fit(tmp_path / "t.csv", "y", **short)
    model.info["rows"] = "many"
    with pytest.raises(FileError, match=r"table\.info\.rows should be a whole number"):
        model.save(tmp_path / "m.udn")
    assert not (tmp_path / "m.udn").exists()


def test_texts_of_a_megabyte_are_no_names(tmp_path):
    long = "L" * 70_000
    rows = "".join(f"{long}{i % 2},{i % 7},{i * 0.1}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("k,a,y\n" + rows)
    data = prepare(Table(tmp_path / "t.csv"), "y")
    assert {column.name: column.kind for column in data.encoding.columns}["k"] == "dropped"
    (tmp_path / "n.csv").write_text(f"{long},y\n1,2\n")
    with pytest.raises(TableError, match="whose name is longer than 65,536"):
        Table(tmp_path / "n.csv")


def test_the_largest_numbers_are_scaled_in_tables_too(tmp_path):
    rows = "".join(f"{(-1) ** i * 1.7e308},{i % 7},{i * 0.1}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("k,a,y\n" + rows)
    x = prepare(Table(tmp_path / "t.csv"), "y").train.x
    assert np.isfinite(x).all()
    assert len(np.unique(x[:, 0])) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('key,t\n  k1,"say, ""x"""\n', False),
        ('key,t\n  k1,"a\n  ""b"" c"\n', False),
        ('key,t\n  k1, "b"\n', True),
        (' "key",t\n1,2\n', True),
        ('key,t\n5" disk, 3" disk\n', False),
        ('key,t\n"a" ,b\n', False),
        ("key,t\n  1,  2\n", False),
    ],
)
def test_blanks_before_quotes_are_told_from_quotes_in_a_field(text, expected):
    assert blanks_before_quotes(io.StringIO(text), ",") is expected


def test_markup_and_json_are_told_from_names(tmp_path):
    path = tmp_path / "t.csv"
    for header in ("<table>,a,y", '{"a"},b,y', "<b>,a,y"):
        path.write_text(header + "\n1,2,3\n")
        assert Table(path).names == next(csv.reader([header]))
    for text in ("<table>\n<tr><td>1</td></tr>", '{"a": 1, "b": 2}\n', "<!doctype html>, a"):
        path.write_text(text)
        with pytest.raises(TableError, match="is no table but"):
            Table(path)


def test_a_pipe_is_told_so(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def write_into():
        with contextlib.suppress(BrokenPipeError):
            (tmp_path / "pipe").write_text("a,y\n1,2\n")

    writer = threading.Thread(target=write_into)
    writer.start()
    with pytest.raises(TableError, match="is a pipe"):
        Table(tmp_path / "pipe")
    writer.join()
