"""Numbers as people write them."""

import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded import UDNRegressor
from unbounded.cli import main
from unbounded.schema import FileError
from unbounded.tables import Profile, TableError, infer_target
from unbounded.tables.columns import Column
from unbounded.tables.writings import COMMA, POINT, number

FAST = {"quality": "fast", "random_state": 0}


def column(values, **options):
    found = Profile("x")
    found.update(pd.Series(values, dtype="str"), 0)
    return found.column(**options)


@given(st.decimals(-(10**9), 10**9, places=2))
def test_both_writings_read_back(value):
    us = f"{value:,.2f}"
    german = us.translate(str.maketrans(",.", ".,"))
    assert number(us, POINT) == number(german, COMMA) == float(value)
    assert number(f"{value:,.0f}".replace(",", "'"), COMMA) == float(f"{value:.0f}")


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("$1,234.50", 1234.5, None),
        ("-5 €", -5, -5),
        ("€ -5,5", None, -5.5),
        ("12.5%", 12.5, None),
        ("1.234", 1.234, 1234),
        ("1,234", 1234, 1.234),
        ("0,123", None, 0.123),
        ("1e3", 1000, None),
        *((text, None, None) for text in ("1,2,3", "5 kg", "--5", "12a", "1 23", "", "%", "1.2.3")),
    ],
)
def test_what_a_text_is_read_as(text, point, comma):
    for writing, expected in ((POINT, point), (COMMA, comma)):
        found = number(text, writing)
        assert math.isnan(found) if expected is None else found == expected


@pytest.mark.parametrize(
    ("values", "writing", "low", "high"),
    [
        (["0,5", "1,25", "12", None], COMMA, 0.5, 12),
        (["1.234,5", "17", "-3,5"], COMMA, -3.5, 1234.5),
        (["1,234.5", "17.25", "1e4"], POINT, 17.25, 10000),
        (["1,234", "5,678"], POINT, 1234, 5678),
        (["12%", "7%", "12 %"], POINT, 7, 12),
        (["5", "6", "7.5"], None, 5, 7.5),
    ],
)
def test_a_column_in_one_writing_is_one_of_numbers(values, writing, low, high):
    found = column(values)
    assert (found.kind, found.format, found.low, found.high) == ("number", writing, low, high)
    assert ("is read as" in found.why) == (writing is not None)


def test_chunks_must_agree():
    found = Profile("x")
    for chunk in (["1", "2"], ["3,5"], ["4"]):
        found.update(pd.Series(chunk, dtype="str"), 0)
    assert (found.writing, found.low, found.high, found.whole) == (COMMA, 1, 4, False)
    found.update(pd.Series(["1.5"], dtype="str"), 4)  # a point that keeps no thousands apart
    assert found.writing is None
    assert not found.is_number


@pytest.mark.parametrize(
    "values", [["1,5", "2,5", "many"], ["1,2,3", "2,3", "3"], ["3A", "4B", "5A"], ["1:30", "2:15"]]
)
def test_what_is_no_number_stays_a_text(values):
    assert column(values).kind != "number"
    assert column(["1,5", "2,5", "1,5"], category=True).kind == "category"


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_marks_of_gaps_among_numbers_are_told(share):
    values = [f"{value:.3f}" for value in np.random.default_rng(0).normal(size=200)]
    values[: int(200 * share)] = ["k.A."] * int(200 * share)
    with pytest.raises(TableError, match=r"text among numbers, the first \('k.A.'\) in row 1"):
        column(values)
    levels = [str(i % 9) if i % 3 else "other" for i in range(200)]  # few numbers: codes
    assert column(levels).kind == "category"


def test_estimators_and_targets_read_them():
    a = np.random.default_rng(0).normal(size=120)
    plain = pd.DataFrame({"x": [f"{value:.2f}" for value in a]})
    german = plain.map(lambda text: text.replace(".", ","))
    models = [UDNRegressor(**FAST).fit(frame, a) for frame in (plain.astype(float), german)]
    found = [m.predict(f) for m, f in zip(models, (plain.astype(float), german), strict=True)]
    assert np.corrcoef(found[1], a)[0, 1] > 0.99
    assert np.abs(models[1].predict(plain.astype(float)) - found[1]).max() < 1e-6
    with pytest.raises(ValueError, match=r"column 'x' holds .*written as 1\.234,5"):
        models[1].predict(plain)
    target = Profile("y")
    target.update(german["x"].astype("str"), 0)
    found = infer_target(target)
    assert (found.task, found.writing) == ("regression", COMMA)
    assert found.read(german["x"].astype("str")).tolist() == plain["x"].astype(float).tolist()
    assert type(found).from_dict(found.to_dict()) == found


def test_files_have_the_format_of_their_kind():
    found = asdict(column(["0,5", "1,5"]))
    assert Column.from_dict(found, "x") == column(["0,5", "1,5"])
    for kind, wrong in (("number", "ISO8601"), ("date", COMMA), ("category", COMMA)):
        with pytest.raises(FileError, match=r"x\.format"):
            Column.from_dict(found | {"kind": kind, "format": wrong}, "x")


def test_a_file_of_a_spreadsheet(tmp_path, capsys):
    a = np.random.default_rng(1).normal(size=80)
    lines = ["größe;preis", *(f"{v:.2f};{1000 + 300 * v:.2f}".replace(".", ",") for v in a)]
    table, model = tmp_path / "t.csv", tmp_path / "m.udn"
    table.write_text("\n".join(lines), encoding="utf-8")
    words = ["fit", str(table), "--target", "preis", "--out", str(model), "--quality", "fast"]
    assert main([*words, "--no-report", "--no-references"]) == 0
    told = capsys.readouterr().err
    assert "column 'größe': numbers: " in told
    assert "the target 'preis' holds numbers written as 1.234,5" in told
    answers = tmp_path / "p.csv"
    assert main(["predict", str(model), str(table), "--out", str(answers)]) == 0
    found = pd.read_csv(answers)
    numbers = found.select_dtypes("number")
    assert max(abs(np.corrcoef(numbers[name], a)[0, 1]) for name in numbers) > 0.97
