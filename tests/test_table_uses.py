"""What users of the command line try: more scores, standard input, an index, a giveaway column."""

import io
import json
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference

from unbounded import metrics
from unbounded.cli import main
from unbounded.tables import Table, TableError, TableModel, prepare

QUICK = ("--epochs", "1", "--width", "4", "--no-references", "--no-report", "--device", "cpu")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    random = np.random.default_rng(0)
    rows = 120
    frame = pd.DataFrame({"a": random.normal(size=rows), "b": random.choice(list("xyz"), rows)})
    frame["kind"] = np.where(frame["a"] + random.normal(size=rows) > 0, "up", "down")
    path = tmp_path_factory.mktemp("uses") / "rows.csv"
    frame.to_csv(path, index=False)
    return path


# Scores


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_of_classes_are_those_of_scikit_learn(classes):
    random = np.random.default_rng(0)
    y = random.integers(0, classes, 200)
    probs = random.dirichlet(np.ones(classes), 200).round(2)
    probs = probs + (1 - probs.sum(1, keepdims=True)) / classes
    probs[np.arange(200), y] += 0.3
    probs /= probs.sum(1, keepdims=True)
    predicted = probs.argmax(1)
    scores = probs[:, 1] if classes == 2 else probs
    expected = reference.roc_auc_score(y, scores, multi_class="ovr")
    assert metrics.roc_auc(y, probs) == pytest.approx(expected)
    for own, other in (
        (metrics.precision, reference.precision_score),
        (metrics.recall, reference.recall_score),
        (metrics.f1, reference.f1_score),
    ):
        assert own(y, probs) == pytest.approx(other(y, predicted, average="macro"))


def test_scores_of_classes_that_are_not_there():
    probs = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    assert np.isnan(metrics.roc_auc([0, 0], probs))
    assert metrics.recall([0, 0], probs) == 1
    # Ties count a half, and a class without rows counts for nothing.
    assert metrics.roc_auc([0, 1], np.full((2, 3), 1 / 3)) == 0.5
    assert metrics.precision([0, 1], probs) == metrics.f1([0, 1], probs) - 1 / 12


def test_fit_tells_all_scores(table, tmp_path, capsys):
    out = tmp_path / "m.udn"
    arguments = ["fit", str(table), "--target", "kind", "--out", str(out), *QUICK]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    for word in ("accuracy", "ROC-AUC", "F1", "precision", "recall"):
        assert word in printed.out
    assert printed.err == ""
    assert main(["evaluate", str(out), str(table), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert {"roc_auc", "f1", "precision", "recall"} < set(scores)
    # One class alone has no ROC curve.
    frame = pd.read_csv(table)
    found = TableModel.load(out).evaluate(frame[frame["kind"] == "up"])
    assert np.isnan(found["roc_auc"])
    frame[frame["kind"] == "up"].to_csv(tmp_path / "up.csv", index=False)
    assert main(["evaluate", str(out), str(tmp_path / "up.csv")]) == 0
    assert "nan" not in capsys.readouterr().out


# Standard input


class Stream:
    def __init__(self, data: bytes):
        self.buffer = io.BytesIO(data)


def test_tables_from_standard_input(table, tmp_path, monkeypatch, capsys):
    out, data = tmp_path / "m.udn", table.read_bytes()
    arguments = ["--target", "kind", "--out", str(out), *QUICK]
    monkeypatch.setattr(sys, "stdin", Stream(data))
    assert main(["fit", "-", *arguments]) == 0
    assert "standard input: 120 rows, 3 columns" in capsys.readouterr().out
    weights = out.read_bytes()
    assert main(["fit", str(table), *arguments, "--force", "-q"]) == 0
    one, other = (TableModel.load(path) for path in (out, out))
    assert one.estimator.depth_mean_ == other.estimator.depth_mean_
    out.write_bytes(weights)
    monkeypatch.setattr(sys, "stdin", Stream(data))
    assert main(["predict", str(out), "-"]) == 0
    expected = capsys.readouterr().out
    assert main(["predict", str(out), str(table)]) == 0
    assert capsys.readouterr().out == expected
    monkeypatch.setattr(sys, "stdin", Stream(b""))
    assert main(["predict", str(out), "-"]) == 2
    assert capsys.readouterr().err == (
        "unbounded: error: standard input is empty: a table has a line with the names of its "
        "columns, then a line for each row\n"
    )


def test_streams_of_any_kind(table, tmp_path):
    frame = pd.read_csv(table)
    packed, parquet = tmp_path / "rows.csv.gz", tmp_path / "rows.parquet"
    frame.to_csv(packed, index=False)
    frame.to_parquet(parquet)
    for path in (table, packed, parquet):
        with open(path, "rb") as stream:
            found = Table(stream)
        assert found.label == "standard input"
        assert found.names == ["a", "b", "kind"]
        for _ in range(2):  # more than once
            assert sum(len(chunk.frame) for chunk in found.chunks()) == 120
        copy = found._bytes
        assert copy.exists()
        del found
        assert not copy.exists()


# An index without a name


def test_an_index_without_a_name(table, tmp_path, capsys):
    frame = pd.read_csv(table)
    path, out = tmp_path / "rows.csv", str(tmp_path / "m.udn")
    frame.to_csv(path)  # with an empty name for it
    assert main(["fit", str(path), "--target", "kind", "--out", out, *QUICK]) == 0
    assert "(column 1)" in capsys.readouterr().out
    text = path.read_text().removeprefix(",")  # without any, as R writes it
    path.write_text(text)
    assert main(["fit", str(path), "--target", "kind", "--out", out, *QUICK]) == 2
    error = capsys.readouterr().err
    assert "line 2 has 4 fields, more than the 3 columns" in error
    assert "if the first column is an index without a name, put a name" in error
    path.write_text("," + text)  # the remedy
    assert Table(path).names == ["(column 1)", "a", "b", "kind"]
    path.write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(TableError, match=r"line 3 has 3 fields.*; put fields that hold") as told:
        list(Table(path).chunks())
    assert "an index" not in str(told.value)


# A target of dates


@pytest.mark.parametrize("native", [True, False])
def test_a_target_of_dates_is_told(native):
    days = pd.Series(pd.date_range("2021-01-01", periods=6).repeat(10))
    frame = pd.DataFrame({"a": np.arange(60) % 7, "day": days if native else days.astype(str)})
    with pytest.raises(TableError, match=r"the target 'day' holds dates.*--task classification"):
        prepare(Table(frame), "day")
    assert len(prepare(Table(frame), "day", task="classification").target.classes) == 6


# A column that gives the target away


def make_leaks(rows: int = 200):
    random = np.random.default_rng(0)
    number = random.normal(size=rows)
    flag = random.random(rows) < 0.4
    grade = random.choice(["low", "mid", "high"], rows)
    frame = pd.DataFrame({"noise": random.normal(size=rows), "half": number + flag})
    return frame, number, flag, grade


def test_columns_that_give_a_number_away():
    frame, number, _, _ = make_leaks()
    frame = frame.assign(cents=(100 * number).round(), good=number + 0.1 * frame["noise"])
    data = prepare(Table(frame.assign(y=number)), "y")
    assert data.giveaways == ("cents",)
    (note,) = data.notes
    assert note.startswith("column 'cents' tells the target all by itself")
    assert "--drop 'cents'" in note
    levels = np.round(number)
    data = prepare(Table(frame.assign(y=levels + 0.5, code=[f"c{k:.0f}" for k in levels])), "y")
    assert "code" in data.giveaways


def test_columns_that_give_classes_away():
    frame, number, flag, grade = make_leaks()
    for y, giveaway in (
        (grade, np.char.add("is ", grade.astype(str))),
        (flag, np.where(flag, "paid", "open")),
        (flag, flag + 0.001 * frame["noise"]),
        (grade, pd.factorize(grade)[0]),
    ):
        table = Table(frame.assign(y=y, code=giveaway))
        assert prepare(table, "y", task="classification").giveaways == ("code",)
    # Good columns are none, nor are few rows, nor a class that is hardly there.
    near = frame.assign(y=np.where(number + 0.2 * frame["noise"] > 0, "a", "b"), code=number)
    assert prepare(Table(near), "y").giveaways == ()
    few = frame.assign(y=grade, code=grade).head(40)
    assert prepare(Table(few), "y").giveaways == ()
    rare = frame.assign(y=np.arange(200) > 195, code=np.arange(200.0) / 7)
    assert prepare(Table(rare), "y").giveaways == ()


def test_fit_warns_of_a_giveaway(tmp_path, capsys):
    frame, number, *_ = make_leaks()
    path = tmp_path / "rows.csv"
    frame.assign(y=number, copy=2 * number).to_csv(path, index=False)
    assert main(["fit", str(path), "--target", "y", "--out", str(tmp_path / "m"), *QUICK]) == 0
    assert "unbounded: column 'copy' tells the target all by itself" in capsys.readouterr().err
    words = ["fit", str(path), "--target", "y", "--out", str(tmp_path / "q"), *QUICK, "-q"]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
