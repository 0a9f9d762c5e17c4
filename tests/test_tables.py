"""Tables: reading, understanding and encoding them."""

import gzip
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbounded.tables import (
    Encoding,
    Profile,
    Store,
    Table,
    TableError,
    Target,
    infer_target,
    profile,
    reading,
)
from unbounded.tables import encoders as enc
from unbounded.tables import values as read
from unbounded.tables.encoding import standardized_response


def frame_of(table: Table, **options) -> pd.DataFrame:
    return pd.concat([frame for _, frame in table.chunks(**options)], ignore_index=True)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def columns_of(frame: pd.DataFrame, **options):
    """The columns that the profile of a frame makes, by way of text."""
    found = {}
    for name in frame.columns:
        text = frame[name].map(lambda v: None if pd.isna(v) else str(v)).astype("str")
        p = Profile(name)
        p.update(text, 0)
        found[name] = p.column(**options.get(name, {}))
    return found


def text(values) -> pd.Series:
    return pd.Series(values, dtype="str")


# Reading


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "x,y\n1,a\n2,b\n"),
        ("a.tsv", "x\ty\n1\ta\n2\tb\n"),
        ("a.txt", "x\ty\n1\ta\n2\tb\n"),
        ("semicolon.csv", "x;y\n1;a\n2;b\n"),
        ("bar.csv", "x|y\n1|a\n2|b\n"),
        ("bom.csv", "\ufeffx,y\n1,a\n2,b\n"),
        ("blanks.csv", " x , y \n 1 , a\n2, b \n"),
        ("windows.csv", "x,y\r\n1,a\r\n2,b\r\n"),
        ("emptylines.csv", "x,y\n1,a\n\n2,b\n\n"),
        ("quotes.csv", '"x","y"\n"1","a"\n"2","b"\n'),
        ("utf16.csv", "x,y\n1,a\n2,b\n".encode("utf-16")),
        ("packed.csv.gz", gzip.compress(b"x,y\n1,a\n2,b\n", mtime=0)),
        ("packed_without_its_ending.csv", gzip.compress(b"x,y\n1,a\n2,b\n", mtime=0)),
    ],
)
def test_text_tables_are_read_alike_however_they_are_written(tmp_path, name, content):
    table = Table(write(tmp_path, name, content))
    assert table.names == ["x", "y"]
    assert frame_of(table).to_dict("list") == {"x": ["1", "2"], "y": ["a", "b"]}


def test_parquet_also_gzipped_has_the_types_it_was_written_with(tmp_path):
    frame = pd.DataFrame(
        {
            "whole": [1, 2, 3],
            "real": [0.5, None, 2.5],
            "word": ["a", None, "?"],
            "yes": [True, False, True],
            "day": pd.to_datetime(["2020-01-01", None, "2020-01-03"]),
            "level": pd.Categorical(["u", "v", "u"]),
            "list": [[1], [2], None],
        }
    )
    plain = tmp_path / "t.parquet"
    frame.to_parquet(plain)
    packed = write(tmp_path, "t.parquet.gz", gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        table = Table(path)
        assert table.num_rows == 3
        got = frame_of(table)
        kinds = {name: read.native_kind(got[name]) for name in got}
        assert kinds == {
            "whole": "number",
            "real": "number",
            "word": "text",
            "yes": "boolean",
            "day": "date",
            "level": "text",
            "list": "text",
        }
        assert got["word"].isna().tolist() == [False, True, True]  # "?" stands for missing
        assert read.dates(got["day"], read.ISO).values[0] == 1577836800.0
        assert read.numbers(got["whole"]).values.tolist() == [1, 2, 3]


def test_columns_of_parquet_that_hold_no_plain_values_are_left_out(tmp_path):
    frame = pd.DataFrame({"x": [{"a": 1}] * 20, "b": [b"1"] * 20, "n": range(20)})
    frame.to_parquet(tmp_path / "t.parquet")
    found = {name: p.column() for name, p in profile(Table(tmp_path / "t.parquet")).items()}
    assert [found[name].why for name in ("x", "b")] == ["no plain values"] * 2
    assert found["n"].kind == "number"


def test_chunks_are_bounded_and_together_the_whole(tmp_path, monkeypatch):
    rows = 1234
    frame = pd.DataFrame({"i": range(rows), "word": [f"w{i % 7}" for i in range(rows)]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr(reading, "_CELLS", 0)  # the smallest chunks there are
    for name in ("t.csv", "t.parquet"):
        table = Table(tmp_path / name)
        seen: list[int] = []
        chunks = list(table.chunks(progress=seen.append))
        assert [len(frame) for _, frame in chunks] == [500, 500, 234] == seen
        assert [start for start, _ in chunks] == [0, 500, 1000]
        got = pd.concat([chunk for _, chunk in chunks])
        assert read.numbers(got["i"]).values.tolist() == list(range(rows))
        assert got["word"].tolist() == frame["word"].tolist()


def test_wide_tables_have_short_chunks(tmp_path):
    wide = pd.DataFrame(np.zeros((2000, 1500), dtype=int)).add_prefix("c")
    wide.to_parquet(tmp_path / "wide.parquet")
    assert max(len(frame) for _, frame in Table(tmp_path / "wide.parquet").chunks()) == 1000


def test_quoted_fields_hold_delimiters_and_line_ends(tmp_path):
    path = write(tmp_path, "t.csv", 'name,"a, b"\n"Smith, J.\nSenior",1\n')
    table = Table(path)
    assert table.names == ["name", "a, b"]
    assert frame_of(table)["name"].tolist() == ["Smith, J.\nSenior"]


def test_in_a_table_of_one_column_an_empty_line_is_a_missing_value(tmp_path):
    table = Table(write(tmp_path, "t.csv", "x\n1\n\n3\n"))
    assert frame_of(table)["x"].isna().tolist() == [False, True, False]


def test_missing_values_are_missing_and_users_add_their_own(tmp_path):
    content = "x,y\n1,a\nNA,?\n,null\n-99,NaN\n-,None\n"
    path = write(tmp_path, "t.csv", content)
    got = frame_of(Table(path))
    assert got.isna().sum().to_dict() == {"x": 3, "y": 4}
    assert frame_of(Table(path, missing=["-99"])).isna().sum().to_dict() == {"x": 4, "y": 4}


def test_another_encoding_and_delimiter_can_be_said(tmp_path):
    path = write(tmp_path, "t.csv", "größe:x\nmaß:1\n".encode("latin-1"))
    with pytest.raises(TableError, match="--encoding"):
        Table(path)
    table = Table(path, encoding="latin-1", delimiter=":")
    assert frame_of(table).to_dict("list") == {"größe": ["maß"], "x": ["1"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"  \n\n ", "is empty"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b'{"a": [1, 2]}', "JSON"),
        (b"[1, 2, 3]", "JSON"),
        (b'[\n  {"a": 1}\n]', "JSON"),
        (b"\x00\x01\x02binary", "binary"),
        (b"PK\x03\x04rest of a spreadsheet", "spreadsheet"),
        (b"PAR1 and then rubbish", "damaged"),
        (gzip.compress(b"x,y\n1,2\n" * 10000, mtime=0)[:60], "damaged"),
        (b"x,x,y\n1,2,3\n", "'x'"),
        (b"1.5,2.5\n3,4\n", "names of the columns"),
        (b"x,y\n1,2\n3,4,5\n", "line 3"),
        (b"x,y\n1,2,3\n4,5,6\n", "line 2 has 3 fields"),
        (b'x,y\n1,"2\n', "no table"),
        ("x,y\n1,\xe9\n".encode("latin-1"), "utf-8"),
    ],
)
def test_what_is_no_table_is_told_so(tmp_path, content, said):
    path = write(tmp_path, "t.csv", content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as for a user: nothing may depend on pytest's filters
        with pytest.raises(TableError, match=said) as caught:
            frame_of(Table(path))
    assert "t.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_byte_far_into_the_file_is_told_too(tmp_path):
    path = write(tmp_path, "t.csv", b"x,y\n" + b"1,2\n" * 50_000 + b"1,\xff\n")
    with pytest.raises(TableError, match="0xff"):
        frame_of(Table(path))


def test_header_names_that_are_whole_numbers_or_brackets_are_fine(tmp_path):
    assert Table(write(tmp_path, "a.csv", "0,1\n5,6\n")).names == ["0", "1"]
    assert Table(write(tmp_path, "b.csv", "[cm],[kg]\n5,6\n")).names == ["[cm]", "[kg]"]
    assert Table(write(tmp_path, "c.csv", ",y\n0,1\n")).names == ["(column 1)", "y"]


def test_without_pandas_the_error_names_the_extra(tmp_path, monkeypatch):
    path = write(tmp_path, "t.csv", "x,y\n1,2\n")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(TableError, match=r"unbounded\[tables\]"):
        Table(path)


# Values


def test_numbers_are_numbers_and_nothing_else_is():
    got = read.numbers(text(["1", " 2.5 ".strip(), "1e3", "-inf", None, "x", "1_0", "+3"]))
    assert got.bad.tolist() == [False, False, False, False, False, True, True, False]
    assert got.values[[0, 1, 2, 7]].tolist() == [1, 2.5, 1000, 3]
    assert math.isinf(got.values[3])
    assert np.isnan(got.values[4:7]).all()


@pytest.mark.parametrize(
    ("values", "format", "first"),
    [
        (["2020-03-04", "2021-12-31"], read.ISO, "2020-03-04"),
        (["2020-03-04T10:00:00Z", "2021-12-31T01:02:03Z"], read.ISO, "2020-03-04T10:00"),
        (["04/03/2020", "31/12/2021"], "%d/%m/%Y", "2020-03-04"),
        (["03/04/2020", "12/31/2021"], "%m/%d/%Y", "2020-03-04"),
        (["4.3.2020", "31.12.2021"], "%d.%m.%Y", "2020-03-04"),
        (["4 Mar 2020", "31 Dec 2021"], "%d %b %Y", "2020-03-04"),
        (["04/03/2020 10:30", "31/12/2021 00:00"], "%d/%m/%Y %H:%M", "2020-03-04T10:30"),
        (["01/02/2020", "03/04/2020"], "%d/%m/%Y", "2020-02-01"),  # both fit: the day first
    ],
)
def test_dates_are_found_with_the_format_that_reads_them_all(values, format, first):
    column = columns_of(pd.DataFrame({"d": values}))["d"]
    assert (column.kind, column.format) == ("date", format)
    seconds = read.dates(text(values), format).values
    expected = np.array([first], "datetime64[s]").astype(np.int64)
    assert seconds[0] == expected[0]


def test_a_format_must_read_all_chunks():
    p = Profile("d")
    p.update(text(["01/02/2020"] * 3), 0)
    p.update(text(["12/31/2020"] * 3), 3)
    assert p.column().format == "%m/%d/%Y"
    p.update(text(["whenever"] * 3), 6)
    assert p.column().kind == "category"


# Columns


def test_the_kinds_of_columns():
    rows = 200
    frame = pd.DataFrame(
        {
            "number": np.linspace(0, 1, rows),
            "count": np.arange(rows) % 7,
            "word": [f"w{i % 5}" for i in range(rows)],
            "yes": ["yes" if i % 3 else "No" for i in range(rows)],
            "gone": [None] * rows,
            "same": ["a"] * rows,
            "same_or_missing": ["a" if i % 2 else None for i in range(rows)],
            "user_id": [900 - i for i in range(rows)],
            "code": [f"x{i}" for i in range(rows)],
            "code_or_missing": [f"x{i}" if i % 2 else None for i in range(rows)],
            "year": [1800 + i for i in range(rows)],
            "paid": [500 + i for i in range(rows)],
        }
    )
    found = columns_of(frame)
    assert {name: column.kind for name, column in found.items()} == {
        "number": "number",
        "count": "number",
        "word": "category",
        "yes": "boolean",
        "gone": "dropped",
        "same": "dropped",
        "same_or_missing": "category",
        "user_id": "dropped",
        "code": "dropped",
        "code_or_missing": "text",
        "year": "number",
        "paid": "number",  # ends in "id", and is none
    }
    assert "missing" in found["gone"].why
    assert "one value" in found["same"].why
    assert "identifier" in found["user_id"].why
    assert found["number"].summary() == "0 … 1"
    told = columns_of(frame, user_id={"keep": True}, count={"category": True})
    assert told["user_id"].kind == "number"
    assert told["count"].kind == "category"
    assert told["count"].numeric


def test_text_among_numbers_is_an_error_that_says_where():
    values = [str(i) for i in range(99)] + ["unknown"]
    with pytest.raises(TableError, match=r"'age'.*'unknown'.*row 100.*--missing"):
        columns_of(pd.DataFrame({"age": values}))
    assert columns_of(pd.DataFrame({"age": values}), age={"category": True})["age"].kind != "number"
    half = [str(i % 9) for i in range(50)] + ["a", "b"] * 25
    assert columns_of(pd.DataFrame({"mixed": half}))["mixed"].kind == "category"


def test_infinite_values_are_an_error_that_says_where():
    with pytest.raises(TableError, match=r"'x'.*infinite.*-inf.*row 3"):
        columns_of(pd.DataFrame({"x": ["1", "2", "-inf", "4"]}))


def test_many_different_values_are_counted_no_further_than_needed(monkeypatch):
    from unbounded.tables import columns

    monkeypatch.setattr(columns, "TRACKED", 50)
    p = Profile("x")
    for start in range(0, 1000, 100):
        p.update(text([f"t{i}" for i in range(start, start + 100)]), start)
    assert p.levels is None
    assert p.column().kind == "dropped"
    assert p.rows == 1000


# The target


def target_of(values, task=None) -> Target:
    p = Profile("y")
    p.update(text([None if v is None else str(v) for v in values]), 0)
    return infer_target(p, task)


def test_the_task_follows_from_the_target():
    assert target_of(["a", "b"] * 10).task == "classification"
    assert target_of(["yes", "no"] * 10).classes == ["no", "yes"]
    assert target_of([1, 2, 3] * 10).task == "classification"
    assert target_of([10, 9] * 5).classes == ["9", "10"]
    mixed = target_of([10, 9] * 5 + ["1e1", "9.0"], "classification")
    assert mixed.classes == ["10", "1e1", "9", "9.0"]
    assert "different classes" in mixed.note
    assert target_of([0.5, 1.5] * 10).task == "classification"  # two values
    assert target_of([0.5, 1.5, 2.5] * 10).task == "regression"
    assert target_of(range(21)).task == "regression"
    assert target_of([1, 2, 3] * 4).task == "regression"  # 4 rows a class: too few
    assert target_of([1, 2, 3] * 10, "regression").task == "regression"
    assert target_of([1, 2, 3, 4] * 2, "classification").task == "classification"


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        ([None, None], None, "all are missing"),
        (["a"] * 20, None, "one class only"),
        ([2.5] * 20, "regression", "one value only"),
        ([3] * 20, "classification", "one class only"),
        ([f"n{i}" for i in range(30)], None, "30 different values in 30 rows"),
        ([f"n{i % 250}" for i in range(500)], None, "at most 200"),
        (["a", "b"] * 10, "regression", "needs numbers"),
        ([*range(30), "inf"], None, "finite"),
        ([*range(30), "1e200"], None, "too large"),
        ([*range(99), "oops"], None, "'oops'"),
        (range(300), "classification", "--task regression"),
    ],
)
def test_targets_from_which_nothing_can_be_learnt(values, task, said):
    with pytest.raises(TableError, match=said):
        target_of(values, task)


def test_the_labels_of_the_classes_sort_as_the_classes_do():
    for values in ([10, 9, 2], ["b", "a", "10"], [0.5, 10.5], [1e300, 2, 3]):
        target = target_of(values * 10, "classification")
        labels = target.labels
        assert np.array_equal(np.unique(labels), labels)
        assert [str(v) for v in labels] == target.classes or target.numeric
        codes = target.read(text([str(v) for v in values]))
        assert [target.classes[int(c)] for c in codes] == [
            read.number_text(float(v)) if target.numeric else v for v in values
        ]
        assert Target.from_dict(json.loads(json.dumps(target.to_dict()))) == target


def test_a_class_that_is_not_known_is_named():
    with pytest.raises(TableError, match=r"'c' in row 12.*'a', 'b'"):
        target_of(["a", "b"] * 10).read(text(["a", "c"]), start=10)


# Encoding


def make_table(folder: Path, rows: int = 300, seed: int = 0) -> tuple[Path, pd.DataFrame]:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": random.normal(50, 10, rows).round(3),
            "income": np.exp(3 * random.normal(size=rows)).round(6),
            "town": random.choice(["Rome", "Oslo", "Bern"], rows),
            "shop": random.choice([f"s{i}" for i in range(60)], rows),
            "member": random.choice(["yes", "no"], rows),
            "day": pd.date_range("2020-01-01", periods=rows, freq="D").strftime("%Y-%m-%d"),
            "note": [f"text {i}" for i in range(rows)],
            "const": 1,
        }
    )
    for name in ("age", "town", "note"):
        frame.loc[random.random(rows) < 0.1, name] = None
    frame["y"] = frame["age"].fillna(50) + random.normal(size=rows)
    path = folder / "train.csv"
    frame.to_csv(path, index=False)
    return path, frame


def fitted(path: Path, train: int = 200):
    table = Table(path)
    profiles = profile(table)
    target = infer_target(profiles.pop("y"))
    columns = [p.column() for p in profiles.values()]
    store = Store.of(table, columns, target)
    encoding, x = Encoding.fit(store, columns, np.arange(train), (), seed=0)
    return table, store, encoding, x


def test_encoded_columns_are_centred_and_of_unit_spread(tmp_path):
    _, store, encoding, x = fitted(make_table(tmp_path)[0])
    names = encoding.feature_names
    assert x.shape == (200, len(names))
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    for name in ("income", "member", "day"):
        column = x[:, names.index(name)]
        assert abs(column.mean()) < 1e-5
        assert abs(column.std() - 1) < 1e-5
    assert encoding.encoders["income"].scale.heavy
    assert not encoding.encoders["age"].scale.heavy
    missing = np.isnan(store.values(store.columns[0], np.arange(200)))
    assert x[:, names.index("age (missing)")].tolist() == missing.astype(float).tolist()
    towns = [i for i, name in enumerate(names) if name.startswith("town")]
    assert (x[:, towns].sum(1) == 1).all()


def test_an_encoding_is_data_and_comes_back_from_json(tmp_path):
    path, _ = make_table(tmp_path)
    table, _, encoding, _ = fitted(path)
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict(), allow_nan=False)))
    assert again == encoding
    frame = frame_of(table)
    assert np.array_equal(again.transform_frame(frame), encoding.transform_frame(frame))


def test_a_damaged_description_is_refused(tmp_path):
    data = fitted(make_table(tmp_path)[0])[2].to_dict()
    for damage in (
        lambda d: d["encoders"].pop("age"),
        lambda d: d["encoders"]["age"].update(kind="pickle"),
        lambda d: d["encoders"]["age"].update(kind="category"),
        lambda d: d["encoders"]["town"]["shares"].append(0.5),
        lambda d: d["columns"][0].update(extra=1),
    ):
        damaged = json.loads(json.dumps(data))
        damage(damaged)
        with pytest.raises((KeyError, TypeError, ValueError)):
            Encoding.from_dict(damaged)


def test_chunks_encode_like_the_whole_and_like_the_store(tmp_path):
    path, _ = make_table(tmp_path)
    table, store, encoding, _ = fitted(path)
    whole = encoding.transform_frame(frame_of(table))
    pieces = [encoding.transform_frame(frame, start) for start, frame in table.chunks(rows=37)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert np.array_equal(encoding.transform(store.values), whole)


def test_encodings_do_not_look_at_rows_outside_of_training(tmp_path):
    path, frame = make_table(tmp_path)
    _, _, before, _ = fitted(path)
    frame.loc[200:, "age"] = 1000.0
    frame.loc[200:, "town"] = "Atlantis"
    frame.loc[200:, "y"] = 1e6
    frame.to_csv(path, index=False)
    _, _, after, _ = fitted(path)
    assert after.encoders == before.encoders


def test_parquet_and_csv_encode_alike(tmp_path):
    path, frame = make_table(tmp_path)
    _, _, encoding, _ = fitted(path)
    frame["day"] = pd.to_datetime(frame["day"])
    frame["member"] = frame["member"] == "yes"
    frame.to_parquet(tmp_path / "t.parquet")
    from_csv = encoding.transform_frame(frame_of(Table(path)))
    from_parquet = encoding.transform_frame(frame_of(Table(tmp_path / "t.parquet")))
    assert np.array_equal(from_csv, from_parquet)


def test_a_row_that_counts_twice_is_two_rows():
    random = np.random.default_rng(0)
    times = random.integers(1, 5, 500)
    number = np.where(random.random(500) < 0.1, np.nan, random.standard_t(2, 500))
    truth = np.where(np.isnan(number), np.nan, number > 0.5)
    coded = enc.Coded(random.integers(-1, 60, 500).astype(np.int32), [f"l{i}" for i in range(60)])
    response = random.normal(size=(500, 2))
    once = enc.Response(response, 0, times.astype(float))
    copies = np.repeat(np.arange(500), times)
    twice = enc.Response(response[copies], 0)
    for kind, values, more in (
        (enc.NumberEncoder, number, number[copies]),
        (enc.BooleanEncoder, truth, truth[copies]),
        (enc.CategoryEncoder, coded, coded.take(copies)),
    ):
        found = kind.fit(values, once).transform(values)
        np.testing.assert_allclose(found, kind.fit(more, twice).transform(values), atol=1e-6)
    y = random.integers(0, 3, 500)
    found = standardized_response(y, 3, times.astype(float))[copies]
    np.testing.assert_allclose(found, standardized_response(y[copies], 3), atol=1e-12)


def test_unseen_levels_go_where_rare_ones_went():
    values = enc.Coded(np.array([0] * 50 + [1] * 49 + [2], np.int32), ["a", "b", "rare"])
    encoder = enc.CategoryEncoder.fit(values)
    assert encoder.names("c") == ["c=a", "c=b", "c (other)"]
    new = enc.Coded(np.array([0, 1, -1], np.int32), ["new", "b"])
    assert encoder.transform(new).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1]]


def test_unseen_levels_are_a_mixture_where_none_was_rare():
    values = enc.Coded(np.array([0] * 75 + [1] * 25, np.int32), ["a", "b"])
    encoder = enc.CategoryEncoder.fit(values)
    new = enc.Coded(np.array([0, 1, -1], np.int32), ["b", "new"])
    assert encoder.transform(new).tolist() == [[0, 1], [0.75, 0.25], [0.75, 0.25]]


def test_many_levels_carry_means_to_which_a_row_does_not_contribute():
    random = np.random.default_rng(0)
    rows, levels = 4000, 800
    codes = random.integers(0, levels, rows).astype(np.int32)
    values = enc.Coded(codes, [f"l{i}" for i in range(levels)])
    noise = random.normal(size=(rows, 1))
    response = enc.Response((noise - noise.mean()) / noise.std(), seed=0)
    encoder = enc.CategoryEncoder.fit(values, response)
    out_of_fold = encoder.fit_transform(values, response)[:, -1]
    naive = encoder.transform(values)[:, -1]
    # The target is noise: a level's mean tells of a row only if the row is in it.
    assert np.corrcoef(naive, noise[:, 0])[0, 1] > 0.3
    assert abs(np.corrcoef(out_of_fold, noise[:, 0])[0, 1]) < 0.05
    # And where levels do matter, the means find it.
    effect = random.normal(size=levels)[codes][:, None]
    told = enc.Response(effect / effect.std(), seed=0)
    useful = enc.CategoryEncoder.fit(values, told).fit_transform(values, told)[:, -1]
    assert np.corrcoef(useful, effect[:, 0])[0, 1] > 0.7
    assert len(encoder.levels) <= 20
    assert encoder.transform(enc.Coded(np.array([0], np.int32), ["never"]))[0, -1] == pytest.approx(
        0, abs=1e-6
    )


def test_dates_turn_with_the_year_the_week_and_the_day():
    hours = np.arange("2020-01-01", "2022-01-01", 7, dtype="datetime64[h]")
    seconds = hours.astype("datetime64[s]").astype(np.float64)
    encoder = enc.DateEncoder.fit(seconds)
    assert encoder.cycles == ["year", "week", "day"]
    names = encoder.names("d")
    monday = np.array(["2021-03-01T00:00", "2021-03-08T00:00", "2021-03-04T12:00"])
    x = encoder.transform(monday.astype("datetime64[s]").astype(np.float64))
    week = x[:, [names.index("d (week, sin)"), names.index("d (week, cos)")]]
    assert np.allclose(week[0], [0, 1], atol=1e-6)
    assert np.allclose(week[1], week[0], atol=1e-6)
    assert np.allclose(week[2], -week[0], atol=1e-6)
    assert np.allclose(x[2, names.index("d (day, cos)")], -1)
    assert enc.DateEncoder.fit(seconds[:2]).cycles == ["day"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=True, allow_infinity=False),
            st.sampled_from([0.0, 1.0, 1e308, -1e308, 5e-324, float("nan")]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.lists(st.floats(allow_nan=True, allow_infinity=False), max_size=10),
)
def test_every_number_is_encoded_as_a_finite_one(train, new):
    encoder = enc.NumberEncoder.fit(np.array(train))
    x = encoder.transform(np.array(train + new))
    assert np.isfinite(x).all()
    again = enc.encoder_from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert np.array_equal(again.transform(np.array(train + new)), x)


@given(st.permutations(range(12)))
def test_scaling_keeps_the_order_of_numbers(order):
    values = np.array([-1e9, -50, -3, -1, -0.1, 0, 0.2, 1, 2, 70, 1e4, 1e12])
    scale = enc.Scale.fit(values[list(order)])
    assert (np.diff(scale.transform(values)) > 0).all()


def test_missing_columns_are_named_others_ignored(tmp_path):
    path, frame = make_table(tmp_path)
    _, _, encoding, _ = fitted(path)
    frame = frame[list(reversed(frame.columns))].drop(columns=["y", "const"])
    frame["more"] = 1
    frame.to_csv(tmp_path / "new.csv", index=False)
    table = Table(tmp_path / "new.csv")
    encoding.check_names(table)
    assert np.array_equal(
        encoding.transform_frame(frame_of(table)), encoding.transform_frame(frame_of(Table(path)))
    )
    frame.rename(columns={"town": "Town"}).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(TableError, match=r"lacks the column 'town'; did you mean 'Town'"):
        encoding.check_names(Table(tmp_path / "new.csv"))
    frame.drop(columns=["town", "age"]).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(TableError, match=r"2 columns 'age', 'town'"):
        encoding.check_names(Table(tmp_path / "new.csv"))


def test_text_in_a_number_column_of_new_rows_is_named(tmp_path):
    path, frame = make_table(tmp_path)
    _, _, encoding, _ = fitted(path)
    for bad in ("tall", "inf"):
        frame = frame.astype({"age": object})
        frame.loc[7, "age"] = bad
        frame.to_csv(tmp_path / "new.csv", index=False)
        with pytest.raises(TableError, match=rf"'age' holds '{bad}' in row 8"):
            encoding.transform_frame(frame_of(Table(tmp_path / "new.csv")))


@pytest.mark.parametrize("category", [False, True])
def test_a_long_text_that_repeats_is_no_identifier(category):
    table = Table(pd.DataFrame({"a": ["#", "!" * 300_000] * 15}))
    column = profile(table)["a"].column(category=category)
    assert (column.kind, column.why) == ("dropped", "texts of more than 65,536 letters")
