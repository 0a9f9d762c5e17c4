"""A table in, a model out, in Python: the same as the command line, without its words."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from unbounded import FileError
from unbounded.cli import main
from unbounded.tables import Table, TableError, TableModel

QUICK = {"epochs": 3, "width": 8, "references": False}


def make_frame(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(rows) + 100,
            "x": random.normal(size=rows),
            "count": random.integers(0, 9, rows),
            "town": random.choice(["Rome", "Oslo", "Bern"], rows),
            "member": random.choice([True, False], rows),
            "day": pd.date_range("2021-01-01", periods=rows, freq="D"),
        }
    )
    frame["price"] = 10 + 3 * frame["x"] + random.normal(size=rows)
    frame["kind"] = np.where(frame["price"] > 11, "dear", "low")
    frame.loc[random.random(rows) < 0.1, "x"] = np.nan
    frame.loc[random.random(rows) < 0.1, "town"] = None
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    make_frame().to_csv(folder / "train.csv", index=False)
    make_frame(40, seed=1).to_csv(folder / "test.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def number(folder):
    return TableModel.fit(folder / "train.csv", target="price", drop=["kind"], **QUICK)


@pytest.fixture(scope="module")
def classes(folder):
    return TableModel.fit(folder / "train.csv", target="kind", drop="price", **QUICK)


def test_a_path_and_a_frame_give_the_same_model(folder, number, tmp_path):
    frame, test = make_frame(), make_frame(40, seed=1)
    expected = number.predict(folder / "test.csv")
    frame.to_parquet(tmp_path / "train.parquet")
    for source in (frame, tmp_path / "train.parquet"):
        model = TableModel.fit(source, target="price", drop=["kind"], **QUICK)
        pd.testing.assert_frame_equal(model.predict(str(folder / "test.csv")), expected)
        pd.testing.assert_frame_equal(model.predict(test), expected)
    assert model.info["rows"] == number.info["rows"] == 96


def test_polars_frames(number):
    polars = pytest.importorskip("polars")
    test = make_frame(40, seed=1)
    frame = polars.from_pandas(test).with_columns(polars.col("town").cast(polars.Categorical))
    pd.testing.assert_frame_equal(number.predict(frame), number.predict(test))


def test_frames_of_odd_columns():
    frame = pd.DataFrame({1: [1, "a", None], "big": [10**30, 1, 2]})
    table = Table(frame)
    assert table.names == ["1", "big"]
    ((_, chunk),) = table.chunks()
    assert chunk["1"].tolist()[:2] == ["1", "a"]
    assert chunk["1"].isna().tolist() == [False, False, True]


def test_predictions_keep_the_index_of_a_frame(classes):
    test = make_frame(40, seed=1).sample(frac=1, random_state=0)
    found = classes.predict(test)
    assert found.index.equals(test.index)
    assert list(found) == ["prediction", "p_dear", "p_low"]
    assert np.allclose(found[["p_dear", "p_low"]].sum(axis=1), 1)


@pytest.mark.parametrize("name", ["number", "classes"])
def test_predictions_are_what_the_command_line_writes(name, request, folder, tmp_path, capsys):
    model = request.getfixturevalue(name)
    path = tmp_path / "m.udn"
    target, other = ("price", "kind") if name == "number" else ("kind", "price")
    arguments = ["fit", folder / "train.csv", "--target", target, "--drop", other, "--out", path]
    arguments += ["--epochs", 3, "--width", 8, "--no-references", "--quiet"]
    assert main([str(a) for a in arguments]) == 0
    assert main(["predict", str(path), str(folder / "test.csv"), "--parts"]) == 0
    written = pd.read_csv(io.StringIO(capsys.readouterr().out))
    found = model.predict(folder / "test.csv", parts=True)
    assert list(found) == list(written)
    pd.testing.assert_frame_equal(found, written, check_dtype=False, rtol=1e-6)


def test_save_and_load(classes, folder, tmp_path):
    classes.save(tmp_path / "m.udn")
    loaded = TableModel.load(tmp_path / "m.udn")
    test = folder / "test.csv"
    pd.testing.assert_frame_equal(loaded.predict(test), classes.predict(test))
    assert loaded.evaluate(test) == classes.evaluate(test)
    assert loaded.describe()["scores"] == classes.describe()["scores"]
    (tmp_path / "half.udn").write_bytes((tmp_path / "m.udn").read_bytes()[:1000])
    with pytest.raises(FileError, match="not a complete"):
        TableModel.load(tmp_path / "half.udn")


def test_evaluate_agrees_with_the_predictions(number, classes, folder):
    test = pd.read_csv(folder / "test.csv")
    found = classes.predict(test)
    scores = classes.evaluate(test)
    assert scores["accuracy"] == (found["prediction"] == test["kind"]).mean()
    scores = number.evaluate(test)
    error = number.predict(test)["mean"] - test["price"]
    assert scores["rmse"] == pytest.approx(np.sqrt((error**2).mean()))
    assert set(scores) >= {"mae", "r2", "nll", "crps", "coverage_90"}


def test_references_stand_beside_the_scores():
    options = {**QUICK, "references": True}
    model = TableModel.fit(make_frame(), target="kind", drop=["price"], **options)
    assert set(model.describe()["scores"]) == {"unbounded", "linear", "boosting"}


def test_report_writes_a_page(number, tmp_path, folder):
    page = tmp_path / "page.html"
    shown = number.report(page)
    assert shown["rows"] == 24
    assert "that were held out" in page.read_text()
    shown = number.report(page, folder / "test.csv")
    assert shown["scores"] == number.evaluate(folder / "test.csv")
    assert {row["column"] for row in shown["importance"]} == {"x", "count", "town", "member", "day"}
    assert "of test.csv" in page.read_text()
    number.report(page, make_frame(40, seed=1))
    assert "of a frame" in page.read_text()


def test_another_delimiter(number, folder, tmp_path):
    test = make_frame(40, seed=1)
    test.to_csv(tmp_path / "t.txt", sep="~", index=False)
    table = number.open(tmp_path / "t.txt", delimiter="~")
    pd.testing.assert_frame_equal(number.predict(table), number.predict(test))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "prise"}, "the frame has no column 'prise': did you mean 'price'"),
        ({"drop": ["nothing"]}, "drop: the frame has no column 'nothing'"),
        ({"drop": ["price"]}, "drop names the target"),
        ({"held_out": 1.0}, "held_out"),
        ({"max_rows": 9}, "max_rows must be at least 10"),
        ({"keep": ["price"]}, "keep names the target"),
        ({"held_out": 0.995}, "1 row to learn from are too few"),
        (
            {"table": make_frame().assign(town=pd.Series(["a", "b\ud800"] * 60, dtype=object))},
            "'town' holds a text in row 2 that cannot be written out",
        ),
        ({"task": "clustering"}, "task must be"),
        ({"table": make_frame().head(5)}, "at least 10"),
        ({"table": make_frame().head(0)}, "all are missing|no rows"),
        ({"table": make_frame()[["price"]], "drop": []}, "no column besides the target"),
        ({"table": "nowhere.csv"}, "there is no file nowhere.csv"),
        ({"table": {"x": [1, 2]}}, "a pandas or polars frame, got a value of type dict"),
    ],
)
def test_bad_input_to_fit(change, words):
    options = {"table": make_frame(), "target": "price", "drop": ["kind"], **QUICK, **change}
    with pytest.raises(ValueError, match=words):
        TableModel.fit(options.pop("table"), **options)


def test_bad_input_to_a_model(number):
    test = make_frame(40, seed=1)
    with pytest.raises(TableError, match="the frame lacks the column 'town'"):
        number.predict(test.drop(columns="town"))
    with pytest.raises(TableError, match="'price', the target"):
        number.evaluate(test.drop(columns="price"))
    with pytest.raises(TableError, match="no rows"):
        number.predict(test.head(0))
    with pytest.raises(ValueError, match="interval must be between 0 and 1"):
        number.predict(test, interval=1.0)
    with pytest.raises(TypeError, match="depht"):
        TableModel.fit(test, target="price", depht=3)


def test_importing_the_room_costs_no_pandas_and_no_scikit_learn():
    code = (
        "import sys, unbounded.tables, unbounded;"
        "assert unbounded.TableModel is unbounded.tables.TableModel;"
        "assert not {'pandas', 'pyarrow', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
