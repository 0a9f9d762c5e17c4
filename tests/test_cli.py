"""The command line: what it writes, and that bad input costs one line and leaves nothing."""

import gzip
import io
import json
import shlex
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unbounded import metrics
from unbounded.cli import main
from unbounded.cli.program import COMMANDS, build_parser
from unbounded.files import read_header
from unbounded.tables import Encoding, reading

QUICK = ["--epochs", "3", "--width", "8"]


def run(capsys, *arguments) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    status = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def ok(capsys, *arguments) -> str:
    status, out, err = run(capsys, *arguments)
    assert status == 0, err
    return out


def fails(capsys, *arguments) -> str:
    """The one line of an error that was foreseen."""
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("unbounded: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "unexpected" not in err
    assert "Traceback" not in err
    return err


def make_frame(rows: int = 160, seed: int = 0) -> pd.DataFrame:
    """Numbers, categories, yes/no, dates, gaps and an identifier, with a target of each kind."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(rows) + 100,
            "x": random.normal(size=rows),
            "z": random.normal(size=rows) * 100,
            "town": random.choice(["Rome", "Oslo", "Bern"], rows),
            "member": random.choice(["yes", "no"], rows),
            "day": pd.date_range("2021-01-01", periods=rows, freq="D").strftime("%Y-%m-%d"),
        }
    )
    frame["price"] = 10 + 3 * frame["x"] + 2 * (frame["town"] == "Rome") + random.normal(size=rows)
    frame["kind"] = np.where(
        frame["price"] > 11, "dear", np.where(frame["price"] > 9, "mid", "low")
    )
    frame.loc[random.random(rows) < 0.1, "z"] = np.nan
    frame.loc[random.random(rows) < 0.1, "town"] = None
    return frame


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Tables and two models, one for each task."""
    folder = tmp_path_factory.mktemp("cli")
    frame = make_frame()
    frame.to_csv(folder / "train.csv", index=False)
    test = make_frame(70, seed=1)
    test.to_csv(folder / "test.csv", index=False)
    test.drop(columns=["price", "kind"]).to_csv(folder / "new.csv", index=False)
    for target, other, name in (("price", "kind", "number"), ("kind", "price", "class")):
        status = main(
            [
                *("fit", str(folder / "train.csv"), "--target", target, "--drop", other, *QUICK),
                *("--out", str(folder / f"{name}.udn"), "--no-references", "--quiet"),
            ]
        )
        assert status == 0
    return folder


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Fit


def test_fit_says_what_it_understood_and_writes_model_and_page(tmp_path, files, capsys):
    out = ok(
        capsys,
        *("fit", files / "train.csv", "--target", "kind", "--drop", "price", *QUICK),
        *("--out", tmp_path / "m.udn"),
    )
    assert listing(tmp_path) == {"m.udn", "m.html"}
    for line in (
        "160 rows, 8 columns",
        "an identifier",
        "target: kind, 3 classes (dear, low, mid)",
        "128 rows to learn from, 32 held out",
        "q(ℓ)",
        "on 32 held-out rows",
        "a linear model",
        "gradient boosting",
    ):
        assert line in out
    assert "town" in out
    assert "3 levels + missing" in out
    html = (tmp_path / "m.html").read_text()
    for heading in ("How good?", "How deep?", "Can it be trusted?", "Which columns matter?"):
        assert heading in html
    assert "<script" not in html
    assert "http://www.w3.org" in html or "http" not in html


def test_fit_json_is_all_that_is_on_standard_output(tmp_path, files, capsys):
    out = ok(
        capsys,
        *("fit", files / "train.csv", "--target", "price", "--drop", "kind", *QUICK),
        *("--out", tmp_path / "m.udn", "--json", "--no-report"),
    )
    found = json.loads(out)
    assert listing(tmp_path) == {"m.udn"}
    assert found["task"] == "regression"
    assert found["rows"] == {"train": 128, "held_out": 32}
    assert set(found["scores"]) == {"unbounded", "linear", "boosting"}
    for scores in found["scores"].values():
        assert set(scores) - {"lead", "lead_error"} == {
            *("rmse", "mae", "r2", "nll", "crps", "coverage_50", "coverage_90", "coverage_95")
        }
    assert sum(found["depth"]["probs"]) == pytest.approx(1)
    kinds = {column["name"]: column["kind"] for column in found["columns"]}
    assert kinds == {
        "id": "dropped",
        "x": "number",
        "z": "number",
        "town": "category",
        "member": "boolean",
        "day": "date",
    }
    # x is what the price is made of.
    assert found["scores"]["linear"]["r2"] > 0.7
    assert found["importance"] is None  # no page, no shuffling


def test_fit_is_the_same_twice_and_another_with_another_seed(tmp_path, files, capsys):
    outs = []
    for seed, name in ((0, "a"), (0, "b"), (1, "c")):
        ok(
            capsys,
            *("fit", files / "train.csv", "--target", "kind", "--drop", "price", *QUICK),
            *("--out", tmp_path / f"{name}.udn", "--seed", seed, "--quiet", "--no-report"),
        )
        outs.append(ok(capsys, "predict", tmp_path / f"{name}.udn", files / "new.csv"))
    assert outs[0] == outs[1]
    assert outs[0] != outs[2]


def test_every_class_is_learnt_from_even_a_rare_one(tmp_path, capsys):
    frame = make_frame(60)
    rare = [f"rare{i}" for i in range(8)]
    frame.loc[10:17, "kind"] = rare
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = ok(
        capsys,
        *("fit", tmp_path / "t.csv", "--target", "kind", "--drop", "price", *QUICK),
        *("--out", tmp_path / "m.udn", "--held-out", "0.5", "--no-references", "--json"),
    )
    assert set(rare) < set(json.loads(out)["classes"])
    assert "p_rare7" in ok(capsys, "predict", tmp_path / "m.udn", tmp_path / "t.csv")


def test_learning_from_all_rows_and_from_some(tmp_path, files, capsys):
    base = ("fit", files / "train.csv", "--target", "price", "--drop", "kind", *QUICK, "--json")
    every = json.loads(ok(capsys, *base, "--held-out", "0", "--out", tmp_path / "a.udn"))
    assert every["rows"] == {"train": 160, "held_out": 0}
    assert every["scores"] is None
    some = json.loads(
        ok(capsys, *base, "--max-rows", "50", "--no-references", "--out", tmp_path / "b.udn")
    )
    assert some["rows"] == {"train": 40, "held_out": 10}
    assert list(some["scores"]) == ["unbounded"]


def test_rows_without_a_target_are_left_out(tmp_path, capsys):
    frame = make_frame(80)
    frame.loc[:9, "price"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    base = ("fit", tmp_path / "t.csv", "--target", "price", "--drop", "kind", *QUICK)
    out = ok(capsys, *base, "--no-references", "--out", tmp_path / "m.udn")
    assert "10 rows without it left out" in out
    assert "56 rows to learn from, 14 held out" in out
    assert "(10 rows without a target left out)" in ok(
        capsys, "evaluate", tmp_path / "m.udn", tmp_path / "t.csv"
    )


def test_what_the_user_says_of_columns_counts(tmp_path, files, capsys):
    out = ok(
        capsys,
        *("fit", files / "train.csv", "--target", "kind", "--drop", "price,day", *QUICK),
        *("--keep", "id", "--category", "member", "--json", "--no-references"),
        *("--out", tmp_path / "m.udn"),
    )
    kinds = {column["name"]: column["kind"] for column in json.loads(out)["columns"]}
    assert kinds["id"] == "number"
    assert kinds["member"] == "category"
    assert "day" not in kinds
    assert "price" not in kinds


def interrupt_in_epoch(monkeypatch, number: int) -> None:
    from unbounded.training.trainer import Trainer

    original = Trainer._epoch
    count = [0]

    def epoch(self, *arguments):
        count[0] += 1
        if count[0] == number:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_epoch", epoch)


def test_ctrl_c_keeps_the_best_model(tmp_path, files, capsys, monkeypatch):
    interrupt_in_epoch(monkeypatch, 4)
    out = ok(
        capsys,
        *("fit", files / "train.csv", "--target", "kind", "--drop", "price", "--width", "8"),
        *("--out", tmp_path / "m.udn", "--json"),
    )
    found = json.loads(out)
    assert found["training"]["stopped"] == "interrupted"
    assert found["training"]["epochs"] == 3
    assert list(found["scores"]) == ["unbounded"]
    assert listing(tmp_path) == {"m.udn", "m.html"}
    assert "p_dear" in ok(capsys, "predict", tmp_path / "m.udn", files / "new.csv")


def test_ctrl_c_before_there_is_anything_to_keep(tmp_path, files, capsys, monkeypatch):
    interrupt_in_epoch(monkeypatch, 1)
    status, out, err = run(
        capsys,
        *("fit", files / "train.csv", "--target", "kind", "--drop", "price"),
        *("--out", tmp_path / "m.udn", "--quiet"),
    )
    assert (status, out) == (130, "")
    assert err == "unbounded: interrupted: nothing was written\n"
    assert listing(tmp_path) == set()


def test_references_are_what_scikit_learn_makes_of_the_same_rows():
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression

    from unbounded.tables.references import compare

    random = np.random.default_rng(0)
    x = random.normal(size=(300, 4)).astype(np.float32)
    y = x[:, 0] + 0.5 * random.normal(size=300)
    train, test = slice(0, 200), slice(200, 300)
    labels = (y > 0).astype(float)
    found = compare((x[train], labels[train]), (x[test], labels[test]), True, 2, 0)
    model = LogisticRegression(max_iter=1000).fit(x[train], labels[train])
    assert found["linear"]["accuracy"] == pytest.approx(model.score(x[test], labels[test]))
    found = compare((x[train], 1000 * y[train]), (x[test], 1000 * y[test]), False, 0, 0)
    booster = HistGradientBoostingRegressor(random_state=0).fit(x[train], y[train])
    error = booster.predict(x[test]) - y[test]
    assert found["boosting"]["rmse"] == pytest.approx(1000 * np.sqrt(np.mean(error**2)), rel=1e-6)
    assert 0.75 < found["linear"]["coverage_90"] <= 1.0  # the spread is one of held-out errors


# The file


def test_the_encoding_in_the_file_is_data(files):
    table = read_header(files / "class.udn")["extra"]["table"]
    assert Encoding.from_dict(table["encoding"]).used
    assert table["target"]["classes"] == ["dear", "low", "mid"]
    assert b"pickle" not in (files / "class.udn").read_bytes()


def test_the_file_opens_as_an_estimator(files):
    from unbounded import UDNClassifier

    assert UDNClassifier.load(files / "class.udn").classes_.tolist() == ["dear", "low", "mid"]


# Predict


def test_predictions_are_probabilities_or_mean_sd_and_interval(files, capsys):
    classes = pd.read_csv(
        io.StringIO(ok(capsys, "predict", files / "class.udn", files / "new.csv"))
    )
    probs = classes[["p_dear", "p_low", "p_mid"]].to_numpy()
    assert len(classes) == 70
    assert np.allclose(probs.sum(1), 1, atol=1e-6)
    names = np.array(["dear", "low", "mid"])
    assert (classes["prediction"] == names[probs.argmax(1)]).all()
    numbers = pd.read_csv(
        io.StringIO(ok(capsys, "predict", files / "number.udn", files / "new.csv", "--parts"))
    )
    assert list(numbers) == ["mean", "sd", "lower", "upper", "noise_sd", "depth_sd"]
    assert (numbers["lower"] < numbers["mean"]).all()
    assert (numbers["mean"] < numbers["upper"]).all()
    total = np.hypot(numbers["noise_sd"], numbers["depth_sd"])
    assert np.allclose(total, numbers["sd"], rtol=1e-5)
    # Near 3.29 standard deviations, as in a Gaussian, for a mixture that is nearly one.
    assert np.allclose((numbers["upper"] - numbers["lower"]) / numbers["sd"], 3.29, rtol=0.15)
    narrow = pd.read_csv(
        io.StringIO(
            ok(capsys, "predict", files / "number.udn", files / "new.csv", "--interval", "0.5")
        )
    )
    assert (narrow["upper"] - narrow["lower"] < numbers["upper"] - numbers["lower"]).all()


def test_order_extra_columns_and_format_do_not_matter(tmp_path, files, capsys):
    expected = ok(capsys, "predict", files / "class.udn", files / "new.csv")
    assert ok(capsys, "predict", files / "class.udn", files / "new.csv", "--out", "-") == expected
    frame = pd.read_csv(files / "new.csv")
    shuffled = frame[list(reversed(frame.columns))].assign(more="?", kind=None)
    shuffled.to_csv(tmp_path / "shuffled.csv", index=False)
    shuffled.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    shuffled.to_csv(tmp_path / "t.csv.gz", index=False)
    shuffled.to_parquet(tmp_path / "t.parquet")
    for name in ("shuffled.csv", "t.tsv", "t.csv.gz", "t.parquet"):
        assert ok(capsys, "predict", files / "class.udn", tmp_path / name) == expected


def test_streaming_in_small_chunks_changes_nothing(files, capsys, monkeypatch, tmp_path):
    pd.concat([pd.read_csv(files / "new.csv")] * 20).to_csv(tmp_path / "long.csv", index=False)
    whole = ok(capsys, "predict", files / "number.udn", tmp_path / "long.csv")
    monkeypatch.setattr(reading, "_CELLS", 0)
    pieces = ok(capsys, "predict", files / "number.udn", tmp_path / "long.csv")
    assert pieces == whole
    assert whole.count("\n") == 1401


def test_unseen_categories_and_new_gaps_are_predicted(files, tmp_path, capsys):
    frame = pd.read_csv(files / "new.csv")
    frame["town"] = "Atlantis"
    frame["member"] = "perhaps"
    frame["x"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = pd.read_csv(io.StringIO(ok(capsys, "predict", files / "number.udn", tmp_path / "t.csv")))
    assert len(out) == 70
    assert np.isfinite(out.to_numpy()).all()


def test_predictions_go_where_they_are_asked_for(files, tmp_path, capsys):
    base = ("predict", files / "class.udn", files / "new.csv", "--keep", "id,town")
    expected = pd.read_csv(io.StringIO(ok(capsys, *base)))
    assert list(expected)[:2] == ["id", "town"]
    assert expected["id"].tolist() == pd.read_csv(files / "new.csv")["id"].tolist()
    for name, read in (
        ("p.csv", pd.read_csv),
        ("p.csv.gz", pd.read_csv),
        ("p.tsv", lambda p: pd.read_csv(p, sep="\t")),
        ("p.parquet", pd.read_parquet),
        ("p.jsonl", lambda p: pd.read_json(p, lines=True)),
    ):
        said = json.loads(ok(capsys, *base, "--out", tmp_path / name, "--json"))
        assert said["rows"] == 70
        got = read(tmp_path / name)
        assert list(got) == list(expected) == said["columns"]
        assert np.allclose(got["p_dear"], expected["p_dear"], atol=1e-7)
        assert got["prediction"].tolist() == expected["prediction"].tolist()
    assert gzip.decompress((tmp_path / "p.csv.gz").read_bytes())[:3] == b"id,"
    lines = ok(capsys, *base, "--json").splitlines()
    assert len(lines) == 70
    assert set(json.loads(lines[0])) == set(expected)
    assert listing(tmp_path) == {"p.csv", "p.csv.gz", "p.tsv", "p.parquet", "p.jsonl"}


def test_columns_that_are_kept_stay_what_they_were(files, tmp_path, capsys, monkeypatch):
    frame = pd.concat([pd.read_csv(files / "new.csv")] * 10, ignore_index=True)
    frame["when"] = pd.Timestamp("2020-01-02")
    frame["gaps"] = pd.array([1, None] * 350, dtype="Int64")
    frame["late"] = [None] * 600 + ["here"] * 100
    frame.to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr(reading, "_CELLS", 0)  # "late" is empty in the whole first chunk
    base = ("predict", files / "number.udn", tmp_path / "t.parquet", "--keep", "id,when,gaps,late")
    lines = ok(capsys, *base).splitlines()
    assert lines[1].startswith("100,2020-01-02T00:00:00.000000,1,,")
    assert lines[700].split(",")[3] == "here"
    ok(capsys, *base, "--out", tmp_path / "p.parquet")
    got = pd.read_parquet(tmp_path / "p.parquet")
    assert got["id"].tolist() == frame["id"].tolist()
    assert got["late"].isna().sum() == 600
    frame.assign(mean=1).to_parquet(tmp_path / "t.parquet")
    said = fails(capsys, *base[:3], "--keep", "mean")
    assert "--keep mean" in said


def test_an_error_in_a_late_row_leaves_no_predictions(files, tmp_path, capsys, monkeypatch):
    frame = pd.concat([pd.read_csv(files / "new.csv")] * 10).astype({"x": object})
    frame.iloc[650, frame.columns.get_loc("x")] = "tall"
    frame.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr(reading, "_CELLS", 0)  # two chunks: the first one is written before
    said = fails(capsys, "predict", files / "number.udn", tmp_path / "t.csv")
    assert "'x' holds 'tall' in row 651" in said
    for name in ("p.csv", "p.parquet"):
        fails(capsys, "predict", files / "number.udn", tmp_path / "t.csv", "--out", tmp_path / name)
    assert listing(tmp_path) == {"t.csv"}


# Evaluate, inspect, report


def test_evaluate_agrees_with_the_predictions_themselves(files, tmp_path, capsys):
    test = pd.read_csv(files / "test.csv")
    found = json.loads(ok(capsys, "evaluate", files / "class.udn", files / "test.csv", "--json"))
    out = pd.read_csv(io.StringIO(ok(capsys, "predict", files / "class.udn", files / "test.csv")))
    probs = out[["p_dear", "p_low", "p_mid"]].to_numpy()
    y = test["kind"].map({"dear": 0, "low": 1, "mid": 2}).to_numpy()
    scores = found["scores"]
    assert scores["accuracy"] == pytest.approx(metrics.accuracy(y, probs))
    assert scores["log_score"] == pytest.approx(metrics.log_score(y, probs), abs=1e-5)
    assert scores["brier"] == pytest.approx(metrics.brier(y, probs), abs=1e-5)
    assert found["confusion"] == metrics.confusion_matrix(y, probs).tolist()
    found = json.loads(ok(capsys, "evaluate", files / "number.udn", files / "test.csv", "--json"))
    out = pd.read_csv(io.StringIO(ok(capsys, "predict", files / "number.udn", files / "test.csv")))
    price = test["price"]
    scores = found["scores"]
    assert scores["rmse"] == pytest.approx(metrics.rmse(price, out["mean"]), rel=1e-5)
    assert scores["r2"] == pytest.approx(metrics.r2(price, out["mean"]), rel=1e-4)
    inside = metrics.coverage(price, out["lower"], out["upper"])
    assert scores["coverage_90"] == pytest.approx(inside)
    assert scores["coverage_50"] <= scores["coverage_90"] <= scores["coverage_95"]
    # The score of a single Gaussian of the same mean and spread is close to that of the mixture.
    gaussian = (np.ones(1), out["mean"].to_numpy()[None], out["sd"].to_numpy()[None])
    assert scores["nll"] == pytest.approx(metrics.mixture_nll(price, *gaussian), abs=0.15)
    assert scores["crps"] == pytest.approx(metrics.mixture_crps(price, *gaussian), rel=0.1)


def test_evaluate_in_chunks_is_evaluate_of_all(files, tmp_path, capsys, monkeypatch):
    pd.concat([pd.read_csv(files / "test.csv")] * 20).to_csv(tmp_path / "t.csv", index=False)
    for name in ("class", "number"):
        monkeypatch.setattr(reading, "_CELLS", 1_500_000)
        whole = json.loads(
            ok(capsys, "evaluate", files / f"{name}.udn", tmp_path / "t.csv", "--json")
        )
        monkeypatch.setattr(reading, "_CELLS", 0)
        pieces = json.loads(
            ok(capsys, "evaluate", files / f"{name}.udn", tmp_path / "t.csv", "--json")
        )
        assert whole["rows"] == pieces["rows"] == 1400
        for score, value in whole["scores"].items():
            assert pieces["scores"][score] == pytest.approx(value, rel=1e-9)


def test_evaluate_prints_the_scores_and_a_page(files, tmp_path, capsys):
    page = tmp_path / "p.html"
    out = ok(capsys, "evaluate", files / "class.udn", files / "test.csv", "--out", page)
    for name in ("accuracy", "log score", "Brier", "ECE", "AURC", "true \\ predicted"):
        assert name in out
    assert "Reliability" in page.read_text()
    out = ok(capsys, "evaluate", files / "number.udn", files / "test.csv", "--out", page)
    for name in ("RMSE", "MAE", "R²", "NLL", "CRPS", "in 50 %", "in 90 %", "in 95 %"):
        assert name in out
    assert "share of targets inside" in page.read_text()


def test_inspect_shows_what_a_file_holds(files, tmp_path, capsys):
    out = ok(capsys, "inspect", files / "number.udn")
    for part in ("predicts price", "q(ℓ)", "parameters", "Dense(", "layer 1", "epoch", "town"):
        assert part in out
    found = json.loads(ok(capsys, "inspect", files / "class.udn", "--json"))
    assert sum(found["depth"]["probs"]) == pytest.approx(1)
    assert len(found["history"]) == 3
    assert found["parameters"] == sum(m["parameters"] for m in found["modules"]) + 2  # μ and s
    from unbounded import UDN, Categorical, Dense, TableDense, save

    save(UDN(Dense(2, 4, 2), Categorical(2)), tmp_path / "plain.udn")
    assert "a network of unbounded depth" in ok(capsys, "inspect", tmp_path / "plain.udn")
    layers = TableDense(2, 4, 2, steps=[(0, 0.5), (1, -0.25)])
    save(UDN(layers, Categorical(2)), tmp_path / "steps.udn")
    assert "steps=[2 lists of 2 numbers], height=0.3" in ok(
        capsys, "inspect", tmp_path / "steps.udn"
    )


def test_report_with_and_without_a_table(files, tmp_path, capsys):
    page = tmp_path / "p.html"
    found = json.loads(ok(capsys, "report", files / "class.udn", "--out", page, "--json"))
    held_out = read_header(files / "class.udn")["extra"]["table"]["info"]["held_out"]
    assert found["scores"] == held_out["scores"]
    assert "held out" in page.read_text()
    found = json.loads(
        ok(capsys, "report", files / "number.udn", files / "test.csv", "--out", page, "--json")
    )
    html = page.read_text()
    for heading in (
        "How deep?",
        "How training went",
        "RMSE at each depth",
        "Can it be trusted?",
        "How unsure is it, and why?",
        "Which columns matter?",
    ):
        assert heading in html
    assert "of test.csv" in html
    assert {row["column"] for row in found["importance"]} == {"x", "z", "town", "member", "day"}


def test_importance_finds_the_column_that_matters(tmp_path, capsys):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(400, 3)), columns=["noise", "signal", "other"])
    frame["y"] = (frame["signal"] > 0).map({True: "a", False: "b"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = ok(
        capsys,
        *("fit", tmp_path / "t.csv", "--target", "y", "--epochs", "20", "--json"),
        *("--no-references", "--out", tmp_path / "m.udn"),
    )
    first, second, *_ = json.loads(out)["importance"]
    assert first["column"] == "signal"
    assert first["loss"] > 10 * abs(second["loss"])


def test_names_are_escaped_in_pages(tmp_path, capsys):
    frame = make_frame(60).rename(columns={"x": "<b>x</b>"})
    frame["kind"] = frame["kind"].map({"dear": "<i>dear", "mid": "mid", "low": "low"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    ok(
        capsys,
        *("fit", tmp_path / "t.csv", "--target", "kind", "--drop", "price", *QUICK),
        *("--out", tmp_path / "m.udn", "--no-references"),
    )
    html = (tmp_path / "m.html").read_text()
    assert "<b>x" not in html
    assert "<i>dear" not in html
    assert "&lt;b&gt;x" in html


# Bad input


def bad_fit(capsys, folder: Path, content: str | bytes, *arguments, name: str = "t.csv") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = listing(folder)
    said = fails(capsys, "fit", path, "--out", folder / "m.udn", *(arguments or ("--target", "y")))
    assert listing(folder) == before  # nothing half-written
    return said


def table(columns: dict) -> str:
    return pd.DataFrame(columns).to_csv(index=False)


def test_a_target_that_is_not_there(tmp_path, capsys):
    said = bad_fit(capsys, tmp_path, "price,x\n1,2\n", "--target", "Prise")
    assert "no column 'Prise': did you mean 'price'?" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("x,y\n", "a header and no rows"),
        (b"\x93NUMPY\x01\x00v\x00", "binary"),
        ("<html><body>404</body></html>", "HTML"),
        ('{"x": [1, 2], "y": [3, 4]}', "JSON"),
        ("x,x,y\n1,2,3\n", "several columns of one name: 'x'"),
        ("y\n" + "1\n2\n" * 20, "no column besides the target"),
        (table({"x": range(20), "y": [None] * 20}), "all are missing"),
        (table({"x": range(20), "y": ["a"] * 20}), "one class only"),
        (table({"x": [1.5] * 20, "y": ["a", "b"] * 10}), "one value only"),
        (
            table({"x": [None] * 20, "z": [None] * 20, "y": ["a", "b"] * 10}),
            "all values are missing",
        ),
        (table({"x": [*range(19), "inf"], "y": ["a", "b"] * 10}), "infinite"),
        (table({"x": [*range(19), "tall"], "y": ["a", "b"] * 10}), "text among numbers"),
        (table({"x": range(4), "y": ["a", "b"] * 2}), "at least 10"),
        (table({"x": range(20), "y": [*range(19), "inf"]}), "finite"),
    ],
)
def test_tables_from_which_nothing_can_be_learnt(tmp_path, capsys, content, said):
    assert said in bad_fit(capsys, tmp_path, content)


def test_arguments_that_cannot_work(tmp_path, capsys):
    content = table({"x": range(20), "w": ["u", "v"] * 10, "y": ["a", "b"] * 10})
    for arguments, said in (
        (("--target", "y", "--task", "regression"), "regression needs numbers"),
        (("--target", "y", "--task", "clustering"), "invalid choice"),
        (("--target", "y", "--drop", "z"), "no column 'z'"),
        (("--target", "y", "--drop", "y"), "names the target"),
        (("--target", "y", "--category", "y"), "--category names the target"),
        (("--target", "y", "--keep", "x", "--drop", "x"), "keep and drop both name 'x'"),
        (("--target", "y", "--max-rows", "4"), "at least 10"),
        (("--target", "y", "--held-out", "0.9"), "2 rows to learn from of 2 classes are too few"),
        (("--target", "y", "--refit", "--stream"), "--refit trains on all rows in memory"),
        (("--target", "y", "--seed", "99999999999999"), "from 0 to 2,147,483,647"),
        (("--target", "y", "--epochs", "0"), "at least 1"),
        (("--target", "y", "--held-out", "1"), "below 1"),
        (("--target", "y", "--lr", "nan"), "positive"),
        (("--target", "y", "--device", "abacus"), "'abacus' cannot be used"),
        (("--target", "y", "--encoding", "klingon"), "no encoding 'klingon'"),
        (("--target", "y", "--delimiter", "::"), "single character"),
        (("--target", "y", "--report", tmp_path / "m.udn"), "cannot both be"),
        ((), "required: --target"),
    ):
        path = tmp_path / "t.csv"
        path.write_text(content)
        assert said in fails(capsys, "fit", path, "--out", tmp_path / "m.udn", *arguments)
    assert "there is no command 'fly'" in fails(capsys, "fly")
    assert listing(tmp_path) == {"t.csv"}
    assert main([]) == 0  # somebody looks what there is
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "report"])
def test_outputs_that_cannot_be_written_are_told_before_the_work(files, tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    base = {
        "fit": ("fit", files / "train.csv", "--target", "kind"),
        "predict": ("predict", files / "class.udn", files / "new.csv"),
        "evaluate": ("evaluate", files / "class.udn", files / "test.csv"),
        "report": ("report", files / "class.udn", files / "test.csv"),
    }[command]
    for out, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "m.udn", "does not exist"),
        (tmp_path / "file" / "m.udn", "is a file, not a folder"),
        (base[1], "being read from"),
    ):
        assert said in fails(capsys, *base, "--out", out)
    assert listing(tmp_path) == {"file"}


def test_a_page_that_cannot_be_written_costs_no_training(files, tmp_path, capsys):
    base = ("fit", files / "train.csv", "--target", "kind", "--out", tmp_path / "m.udn")
    assert "does not exist" in fails(capsys, *base, "--report", tmp_path / "no" / "p.html")
    assert listing(tmp_path) == set()


def test_files_that_are_not_there(files, tmp_path, capsys):
    for arguments in (
        ("fit", tmp_path / "no.csv", "--target", "y", "--out", tmp_path / "m.udn"),
        ("predict", tmp_path / "no.udn", files / "new.csv"),
        ("predict", files / "class.udn", tmp_path / "no.csv"),
        ("evaluate", files / "class.udn", tmp_path / "no.csv"),
        ("inspect", tmp_path / "no.udn"),
        ("report", tmp_path / "no.udn", "--out", tmp_path / "p.html"),
    ):
        assert "there is no file" in fails(capsys, *arguments)
    assert "is a folder" in fails(capsys, "predict", files / "class.udn", tmp_path)
    assert "is a folder" in fails(capsys, "inspect", tmp_path)


def with_header(source: Path, target: Path, change) -> None:
    """A copy of a model file with another header."""
    from unbounded.files import read_tensors, write_tensors

    tensors, metadata = read_tensors(source)
    header = json.loads(metadata["unbounded"])
    change(header)
    write_tensors(target, tensors, {"unbounded": json.dumps(header)})


@pytest.mark.parametrize("command", ["predict", "evaluate", "inspect", "report"])
def test_model_files_that_are_not_whole_or_not_ours(files, tmp_path, capsys, command):
    model = tmp_path / "m.udn"
    arguments = {
        "predict": (files / "new.csv", "--out", tmp_path / "p.csv"),
        "evaluate": (files / "test.csv", "--out", tmp_path / "p.html"),
        "inspect": (),
        "report": ("--out", tmp_path / "p.html"),
    }[command]
    whole = (files / "class.udn").read_bytes()
    for content, said in (
        (whole[: len(whole) // 2], "not a complete"),
        (whole[:100], "not a complete"),
        (b"", "not a complete"),
        (b"x,y\n1,2\n" * 100, "not a complete"),
    ):
        model.write_bytes(content)
        assert said in fails(capsys, command, model, *arguments)
    for change, said in (
        (lambda h: h.update(format="unbounded-model-99"), "unbounded-model-99"),
        (lambda h: h["extra"]["table"].update(version=99), "version 99"),
        (lambda h: h["extra"]["table"]["encoding"].pop("columns"), "damaged"),
        (lambda h: h["extra"]["table"]["encoding"]["encoders"]["x"].update(kind="os"), "damaged"),
        (
            lambda h: h["extra"]["table"]["encoding"]["encoders"]["x"].update(indicator=True),
            "damaged",
        ),
        (lambda h: h["extra"]["table"].update(target=None), "damaged"),
    ):
        with_header(files / "class.udn", model, change)
        assert said in fails(capsys, command, model, *arguments)
    assert listing(tmp_path) == {"m.udn"}


def test_a_model_that_no_table_made(files, tmp_path, capsys):
    from unbounded import UDN, Categorical, Dense, save

    save(UDN(Dense(2, 4, 2), Categorical(2)), tmp_path / "m.udn")
    assert "knows of no columns" in fails(capsys, "predict", tmp_path / "m.udn", files / "new.csv")


def test_new_tables_that_do_not_fit_the_model(files, tmp_path, capsys):
    new = pd.read_csv(files / "new.csv")
    path, out = tmp_path / "t.csv", tmp_path / "p.csv"

    def said(frame: pd.DataFrame, *arguments, command: str = "predict") -> str:
        frame.to_csv(path, index=False)
        return fails(capsys, command, files / "number.udn", path, *arguments, "--out", out)

    assert "lacks the column 'x'" in said(new.drop(columns="x"))
    assert "'price'" not in said(new.drop(columns="x").assign(price=1))
    assert "ask for a smaller interval" in said(new, "--conformal", "--interval", "0.999")
    assert "'town', 'day'" in said(new.drop(columns=["town", "day"]))
    assert "'x' holds 'tall' in row 1" in said(new.assign(x="tall"))
    assert "'x' holds 'inf' in row 1" in said(new.assign(x=np.inf))
    assert "'day' holds 'today' in row 1" in said(new.assign(day="today"))
    assert "header and no rows" in said(new.head(0))
    assert "no column 'nix'" in said(new, "--keep", "nix")
    assert "must be between 0 and 1" in said(new, "--interval", "0")
    assert "no column 'price', the target" in said(new, command="evaluate")
    assert "no rows with a target" in said(new.assign(price=None), command="evaluate")
    assert "holds 'dear' in row 1" in said(new.assign(price="dear"), command="evaluate")
    assert listing(tmp_path) == {"t.csv"}


def test_an_unknown_class_in_the_test_table(files, tmp_path, capsys):
    frame = pd.read_csv(files / "test.csv")
    frame.loc[4, "kind"] = "free"
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = fails(capsys, "evaluate", files / "class.udn", tmp_path / "t.csv")
    assert "'free' in row 5: the classes are 'dear', 'low', 'mid'" in said


def test_a_mistake_of_ours_is_told_as_such(files, capsys, monkeypatch):
    from unbounded.tables.model import TableModel

    def broken(self, x):
        raise KeyError("oops")

    monkeypatch.setattr(TableModel, "by_depth", broken)
    status, _, err = run(capsys, "predict", files / "class.udn", files / "new.csv")
    assert status == 2
    assert "unexpected KeyError" in err
    monkeypatch.setenv("UNBOUNDED_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["predict", str(files / "class.udn"), str(files / "new.csv")])


# Help, demo, reproduce


@pytest.mark.parametrize("command", [c.NAME for c in COMMANDS])
def test_every_command_has_help_with_an_example(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"unbounded {command}" in out
    assert ("examples:" in out) or command == "reproduce"


def test_the_commands_in_the_documentation_are_commands():
    page = Path(__file__).parent.parent / "docs" / "command_line.md"
    typed = [line[2:] for line in page.read_text().splitlines() if line.startswith("$ ")]
    parts = [part for line in typed for part in line.split("; ")]
    commands = [part for part in parts if part.startswith("unbounded ")]
    assert {command.split()[1] for command in commands} >= {
        *("fit", "predict", "evaluate", "inspect", "report")
    }
    for command in commands:
        options = build_parser().parse_args(shlex.split(command)[1:])
        assert options.command == command.split()[1]


def test_demo_runs_from_the_command_line(tmp_path, capsys):
    out = ok(capsys, "demo", "--out", tmp_path / "d.html", "--epochs", "2", "--json")
    assert json.loads(out)["depth"]["max"] >= 1
    assert listing(tmp_path) == {"d.html"}
    assert "is a folder" in fails(capsys, "demo", "--out", tmp_path)


def test_reproduce_hands_over_to_a_study(capsys, monkeypatch):
    from unbounded import experiments

    study = types.ModuleType("a_study")
    study.__doc__ = "What it is about."
    study.add_arguments = lambda parser: parser.add_argument("--seeds", type=int, required=True)
    study.run = lambda options: print(f"ran with {options.seeds}")
    monkeypatch.setitem(sys.modules, "a_study", study)
    monkeypatch.setitem(
        experiments.STUDIES, "spirals-again", experiments.Study("a_study", "spirals, again")
    )
    assert ok(capsys, "reproduce", "spirals-again", "--seeds", "7") == "ran with 7\n"
    assert "--seeds" in fails(capsys, "reproduce", "spirals-again")
    said = fails(capsys, "reproduce", "everything")
    assert "no study 'everything'" in said
    assert "spirals-again" in said
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    assert "spirals, again" in capsys.readouterr().out


# Anything at all

_JUNK = [
    "",
    "NA",
    "a",
    "yes",
    "no",
    "2020-01-02",
    "-0",
    "1e300",
    "-1e308",
    "inf",
    "0x1",
    "é",
    '"',
    ",",
]
_KINDS = {
    "normal": lambda r, n: r.normal(size=n),
    "whole": lambda r, n: r.integers(-3, 4, n),
    "heavy": lambda r, n: np.exp(r.normal(size=n) * 20),
    "huge": lambda r, n: r.choice([1e308, -1e308, 1e150, 0.0], n),
    "tiny": lambda r, n: r.choice([5e-324, 1e-300, 0.0], n),
    "two": lambda r, n: r.choice(["a", "b"], n),
    "words": lambda r, n: r.choice(["red", "green", "blue", "Ω ", "x,y", 'a"b'], n),
    "many": lambda r, n: [f"w{i}" for i in r.integers(0, 60, n)],
    "unique": lambda r, n: [f"u{i}" for i in range(n)],
    "truth": lambda r, n: r.choice(["yes", "No"], n),
    "day": lambda r, n: [f"20{i:02d}-03-0{1 + i % 9}" for i in r.integers(0, 99, n)],
    "swapped": lambda r, n: [f"{1 + i % 28}/{1 + i % 12}/2020" for i in r.integers(0, 99, n)],
    "same": lambda r, n: ["c"] * n,
    "junk": lambda r, n: r.choice(_JUNK, n),
}


@st.composite
def tables(draw, kinds=None) -> tuple[pd.DataFrame, list[str]]:
    """Rows of columns of known kinds, with gaps and now and then a cell of rubbish."""
    rows = draw(st.sampled_from([90, 60, 40, 40, 30, 12, 12, 3, 0]))
    if kinds is None:
        target = draw(st.sampled_from([*["two", "whole", "normal", "words"] * 4, *_KINDS]))
        kinds = [target, *draw(st.lists(st.sampled_from(sorted(_KINDS)), max_size=5))]
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns = {}
    for index, kind in enumerate(kinds):
        values = pd.Series(list(_KINDS[kind](random, rows)), dtype=object)
        gaps = draw(st.sampled_from([0, 0, 0, 0, 0.1, 0.1, 0.1, 0.8, 1]))
        values[random.random(rows) < gaps] = None
        if rows and draw(st.integers(0, 19)) == 7:
            values[random.integers(rows)] = str(random.choice(_JUNK))
        columns[f"c{index}"] = values
    return pd.DataFrame(columns), kinds


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_random_tables_give_a_result_or_a_clean_error(tmp_path, capsys, data):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    train, kinds = data.draw(tables())
    new, _ = data.draw(tables(kinds) if data.draw(st.booleans()) else tables())
    train.to_csv(folder / "train.csv", index=False)
    new.to_csv(folder / "new.csv", index=False)
    arguments = ["fit", folder / "train.csv", "--target", "c0", "--out", folder / "m.udn"]
    arguments += ["--epochs", "1", "--width", "4", "--quiet"]
    arguments += data.draw(
        st.sampled_from([[], [], ["--task", "classification"], ["--task", "regression"]])
    )
    status, out, err = run(capsys, *arguments)
    assert status in (0, 2)
    assert "unexpected" not in err, err
    assert out == ""
    if status == 2:
        assert err.startswith("unbounded: error: ")
        assert err.count("\n") == 1
        assert listing(folder) == {"train.csv", "new.csv"}
        return
    assert err == ""
    assert listing(folder) == {"train.csv", "new.csv", "m.udn", "m.html"}
    for command in ("predict", "evaluate"):
        for name in ("train.csv", "new.csv"):
            status, out, err = run(capsys, command, folder / "m.udn", folder / name)
            assert "unexpected" not in err, err
            if status == 0:
                assert "nan" not in out.lower()
            else:
                assert (status, out, err.count("\n")) == (2, "", 1)
                assert name == "new.csv"  # whatever it learnt from it can predict and score


def test_the_presets_of_the_command_line_are_those_of_the_library():
    import argparse

    from unbounded.cli import common
    from unbounded.training import PRESETS

    parser = argparse.ArgumentParser()
    common.add_preset_argument(parser)
    (option,) = (action for action in parser._actions if action.dest == "preset")
    assert set(option.choices) == set(PRESETS)
