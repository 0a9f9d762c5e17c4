"""What a person sees of a model: findings in words, the page, and what they are made of."""

import html
import json
import math
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from unbounded import metrics
from unbounded.cli import main
from unbounded.depth import FixedDepth
from unbounded.report import page, svg
from unbounded.report.axes import number, rough
from unbounded.tables import Table, TableModel, column_sections, prepare
from unbounded.tables.encoders import Scale
from unbounded.tables.findings import (
    depth_moved,
    intervals_hold,
    training_went,
    uncertainty_split,
    verdict,
)
from unbounded.tables.pages import model_page
from unbounded.tables.predictions import ByDepth
from unbounded.tables.scores import ScoreCollector
from unbounded.tables.wording import Curve, finding
from unbounded.training import History

QUICK = {"epochs": 12, "width": 8, "device": "cpu", "lr": 0.02}


def make_houses(rows: int = 160) -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "rooms": random.integers(1, 9, rows),
            "city": random.choice(["Paris", "Lyon", "Nice"], rows),
            "sold": pd.date_range("2019-01-01", periods=rows, freq="9D").astype(str),
            "noise": random.normal(size=rows),
        }
    )
    price = 4000.0 * frame["rooms"] + 9000.0 * (frame["city"] == "Paris")
    frame["price"] = price + random.normal(size=rows) * 300
    frame["dear"] = np.where(price > price.median(), "yes, dear", "no")
    return frame


@pytest.fixture(scope="module")
def houses() -> TableModel:
    return TableModel.fit(make_houses().drop(columns="dear"), "price", seed=1, **QUICK)


@pytest.fixture(scope="module")
def classes() -> TableModel:
    return TableModel.fit(make_houses().drop(columns="price"), "dear", seed=1, **QUICK)


# Numbers are written in one way


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (3870.0, 3, "3,870"),
        (4000.0, 6, "4,000"),
        (1234.56, 6, "1,234.56"),
        (999.96, 4, "1,000"),
        (12.0, 3, "12"),
        (9.9999e8, 3, "1,000M"),
        (-9600.0, 6, "−9,600"),
    ],
)
def test_numbers_have_commas_and_no_exponents(value, digits, text):
    assert number(value, digits) == text


def test_about_is_two_digits():
    assert (rough(12345), rough(0.012345), rough(98765, 3)) == ("12,000", "0.012", "98,800")


def test_no_exponents_on_pages_or_in_scores(houses, capsys, tmp_path):
    text = re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", model_page(houses), flags=re.S)
    text += " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", model_page(houses)))
    assert not re.findall(r"\d\.?\d*e[+-]?\d\d", text)
    houses.save(tmp_path / "m.udn")
    make_houses().to_csv(tmp_path / "t.csv", index=False)
    assert main(["evaluate", str(tmp_path / "m.udn"), str(tmp_path / "t.csv")]) == 0
    assert "e+" not in capsys.readouterr().out


# Intervals


def test_wilson_is_what_the_formula_says():
    low, high = metrics.wilson([8, 0, 5], [10, 4, 5])
    assert low == pytest.approx([0.4902, 0.0, 0.5655], abs=1e-4)
    assert high == pytest.approx([0.9433, 0.4899, 1.0], abs=1e-4)
    low, high = metrics.wilson(0, 0)
    assert (float(low), float(high)) == pytest.approx((0.0, 1.0))
    with pytest.raises(ValueError, match="hits must be between 0 and rows"):
        metrics.wilson(3, 2)


def drawn(figure: str, kind: str) -> int:
    root = ElementTree.fromstring(figure)
    return sum(kind in element.get("class", "").split() for element in root.iter())


def test_small_groups_have_whiskers(houses, classes):
    words = {"title": "", "x_label": "", "y_label": ""}
    figure = svg.bar_chart([1.0, 2.0], ["a", "b"], bounds=[(0.5, 1.2), (1.0, math.nan)], **words)
    assert drawn(figure, "whisker") == 3  # a line and two caps; what is not finite has none
    assert "1 (0.5 to 1.2)" in figure
    figure = svg.reliability_chart([0.6, 0.9], [0.5, 1.0], [4, 6], title="")
    assert drawn(figure, "whisker") == 6
    for model in (houses, classes):
        bounds = model.info["held_out"]["uncertainty"]["by_fifth_bounds"]
        means = model.info["held_out"]["uncertainty"]["by_fifth"]
        assert all(low <= mean <= high for mean, (low, high) in zip(means, bounds, strict=True))


# Which model is best, and by how much


def test_the_verdict_says_who_won_also_if_it_is_not_us():
    own = {"rmse": 10.0}
    others = {
        "linear": {"rmse": 12.0, "lead": 2.0, "lead_error": 0.4},
        "boosting": {"rmse": 10.5, "lead": 0.5, "lead_error": 0.4},
    }
    text = verdict(own, others, False, 1200)
    assert text == (
        "best on 1,200 held-out rows: unbounded depth, RMSE 10 against 10.5 of gradient boosting "
        "(4.8 % lower); no more than chance makes on so many rows (the difference is 0.5 ± 0.4)"
    )
    others["boosting"] |= {"rmse": 8.0, "lead": -2.0}
    text = verdict(own, others, False, 70)
    assert text.startswith("best on 70 held-out rows: gradient boosting, RMSE 8 against 10 of unbo")
    assert "; more than chance makes" in text
    assert verdict(own, {}, False, 70) == ""
    scores = {"log_score": -0.5, "accuracy": 0.8}
    other = {"linear": {"log_score": -0.4, "accuracy": 0.75}}
    text = verdict(scores, other, True, 9)
    assert "a linear model, log score −0.4 against −0.5 of unbounded depth" in text
    assert text.endswith("(accuracy 75.0 % against 80.0 %)")


def test_the_lead_is_paired_and_its_error_is_that_of_many_draws():
    random = np.random.default_rng(0)

    def collected(y, mean):
        one = ScoreCollector(is_classes=False)
        one.add(y, ByDepth(np.ones(1), mean[None], np.ones((1, len(y)))))
        return one

    leads, errors = [], []
    for _ in range(60):
        y = random.normal(size=200)
        first, second = (y + s * random.normal(size=200) for s in (1.0, 1.2))
        lead, error = collected(y, first).lead_over(collected(y, second))
        assert lead == pytest.approx(metrics.rmse(y, second) - metrics.rmse(y, first))
        leads.append(lead)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(leads), rel=0.25)


def test_fit_and_its_page_say_the_same(tmp_path, capsys):
    path, out = tmp_path / "t.csv", tmp_path / "m.udn"
    make_houses().drop(columns="dear").to_csv(path, index=False)
    arguments = ["--epochs", "3", "--width", "4", "--device", "cpu", "--json"]
    assert main(["fit", str(path), "--target", "price", "--out", str(out), *arguments]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found["findings"]) == [
        *("verdict", "training", "depth", "intervals", "uncertainty")
    ]
    shown = html.unescape((tmp_path / "m.html").read_text())
    for text in found["findings"].values():
        assert text in printed.err
        assert text[0].upper() + text[1:] + "." in shown
    assert found["scores"]["linear"]["lead_error"] > 0


def test_it_is_said_whether_the_file_holds_rows(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(400, 2))
    squares = rng.permutation(36).reshape(6, 6) % 3
    kinds = squares[tuple((3 * (x + 1)).astype(int).T)]
    rows = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": [f"k{kind}" for kind in kinds]})
    path, out = tmp_path / "board.csv", tmp_path / "m.udn"
    rows.to_csv(path, index=False)
    arguments = ["--target", "kind", "--out", str(out), "--epochs", "20", "--device", "cpu"]
    arguments += ["--no-references", "--json", "--force"]
    for further, held in ((["--no-report"], True), (["--no-least-squares"], False)):
        assert main(["fit", str(path), *arguments, *further]) == 0
        printed = capsys.readouterr()
        assert ("nearness to 320 rows" in printed.err) == held
        assert ("rows" in json.loads(printed.out)["findings"]) == held
        known = TableModel.load(out).estimator.model_.layers.head_rows
        assert len(known) == (320 if held else 0)


# How training went


def stub(model: TableModel, best: int, scores: list[float], **options) -> SimpleNamespace:
    """A model of the same target with another history, from `scores` on the validation rows."""
    name = "val_log_score" if model.target.is_classes else "val_rmse"
    last = options.pop("last", 3.37)
    rows = [
        {"epoch": i + 1, "lr": 0.005, name: score, "depth_mean": last}
        for i, score in enumerate(scores)
    ]
    estimator = {
        "depth": None,
        "layers": None,
        "preset": "tables",
        "stopped_": "epochs",
        "depth_mean_": 3.3,
    }
    estimator |= {"quality": "default", "members_": [None], "_apart": False}
    estimator |= {"history_": History(rows), "best_epoch_": best, "n_iter_": len(rows), **options}
    return SimpleNamespace(estimator=SimpleNamespace(**estimator), target=model.target)


def test_training_is_judged_by_where_its_best_epoch_lies(houses, classes):
    falls, rises = [-0.5 - 0.01 * i for i in range(30)], [-0.9 + 0.02 * i for i in range(30)]
    text = training_went(stub(classes, 1, falls))
    assert "epoch 1 of 30" in text
    assert "learnt its rows by heart; next, try --lr 0.0005, --width 32 or --members 5" in text
    back = [-0.5, *(-0.6 + 0.002 * i for i in range(29))]
    assert "better again until the end; next, try --epochs 90" in training_went(
        stub(classes, 1, back)
    )
    ended = {"stopped_": "patience", "patience": "auto"}
    assert "learnt its rows by heart" in training_went(stub(classes, 20, falls, **ended))
    several = {"members_": [None] * 3, "_apart": True}
    text = training_went(stub(classes, 20, falls, **several, **ended))
    assert "by heart, so 3 networks with different validation rows are averaged; next" in text
    assert "--members" not in text
    asked = training_went(stub(classes, 20, falls, members_=[None] * 3, **ended))
    assert "by heart; next" in asked
    assert "--members" not in asked
    assert "would not help" in training_went(stub(classes, 20, falls, **ended | {"patience": 9}))
    text = training_went(stub(classes, 30, rises))
    assert "still improved at the end; next, try --epochs 60 or --quality best" in text
    sinks = [1.0 * 0.97**i for i in range(30)]
    assert "--epochs 60" in training_went(stub(houses, 30, sinks))
    assert "raise --time-limit" in training_went(stub(houses, 30, sinks, stopped_="time"))
    assert "--quality" not in training_went(stub(houses, 30, sinks, quality="best"))
    text = training_went(stub(houses, 30, sinks, stopped_="interrupted"))
    assert text.endswith("of those before the interruption; to train to the end, fit again")
    rests = [0.5 + 0.5 * math.exp(-i) for i in range(30)]
    assert "longer training would gain little" in training_went(stub(houses, 30, rests))
    assert training_went(stub(houses, 15, rests)).endswith("longer training would not help")
    text = training_went(stub(houses, 15, rests, **several))
    assert "not help; 3 networks are averaged, all but the first trained for less long" in text
    lost = [*rests[:10], *(2.0 for _ in range(20))]
    assert "by heart; 3 networks are av" in training_went(
        stub(houses, 10, lost, **several, **ended)
    )
    assert "by heart" not in training_went(stub(houses, 10, rests, **ended))
    assert "without validation rows" in training_went(stub(houses, 3, []))


def test_whether_depth_moved_is_told(houses):
    flat = [1.0] * 30
    assert depth_moved(stub(houses, 30, flat, depth_mean_=1.5)) == (
        "depth moved: from 3.37 expected layers at the start to 1.50"
    )
    text = "depth stayed about where it began: 3.37 expected layers, now 3.30"
    assert depth_moved(stub(houses, 30, flat)).startswith(f"{text}: held-out rows gave no reason")
    assert depth_moved(stub(houses, 2, flat, last=1.2)) == (
        f"{text} (epoch 2 is kept; later epochs went to 1.20)"
    )
    own = stub(houses, 30, flat, depth=FixedDepth(4), depth_mean_=4.0)
    assert "4.00 expected layers, now 4.00" in depth_moved(own)
    assert houses.describe()["findings"]["depth"].startswith("depth ")


# What depth and what noise contribute


def test_the_split_of_the_uncertainty_adds_up():
    random = np.random.default_rng(0)
    q = np.array([0.25, 0.75])
    means, scales = random.normal(size=(2, 50)), random.uniform(0.5, 1.5, (2, 50))
    one = ScoreCollector(is_classes=False)
    one.add(np.zeros(50), ByDepth(q, means, scales))
    found = {"task": "regression", **one.summary()}
    within, between = q @ scales**2, q @ (means - q @ means) ** 2
    share = between.mean() / (within.mean() + between.mean())
    assert found["uncertainty"]["depth_share"] == pytest.approx(share)
    assert f"{share:.0%}".replace("%", " %") in uncertainty_split(found)

    probs = random.dirichlet(np.ones(3), (2, 50))
    one = ScoreCollector(is_classes=True)
    one.add(np.zeros(50), ByDepth(q, probs, None))
    found = {"task": "classification", **one.summary()}
    entropy = -(probs * np.log(probs)).sum(-1)
    mixed = np.tensordot(q, probs, 1)
    total = -(mixed * np.log(mixed)).sum(-1).mean()
    assert found["uncertainty"]["depth_share"] == pytest.approx(1 - (q @ entropy).mean() / total)
    assert "mutual information of class and depth" in uncertainty_split(found)


def test_intervals_are_judged_by_what_the_rows_can_tell():
    def told(share, rows):
        scores = {"coverage_90": share}
        return intervals_hold({"task": "regression", "scores": scores, "rows": rows})

    assert "the 90 % intervals held 72.9 % of the targets: they are too narrow" in told(0.7286, 70)
    assert "predict with a larger --interval" in told(0.7286, 70)
    assert "as far as these rows can tell" in told(0.8, 10)
    assert "wider than they need to be" in told(0.99, 1000)
    assert intervals_hold({"task": "classification"}) == ""


def test_evaluate_tells_the_split(houses, classes, tmp_path, capsys):
    frame = make_houses()
    frame.to_csv(tmp_path / "t.csv", index=False)
    for model in (houses, classes):
        model.save(tmp_path / "m.udn")
        assert main(["evaluate", str(tmp_path / "m.udn"), str(tmp_path / "t.csv")]) == 0
        assert re.search(r"of the uncertainty \d+ % is noise and \d+ %", capsys.readouterr().out)
        assert main(["evaluate", str(tmp_path / "m.udn"), str(tmp_path / "t.csv"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["uncertainty"]
        assert 0 <= found["depth_share"] <= 1


# What predictions go with


def sentence(means, places=None, levels=(), **options) -> str:
    given = {"column": "rooms", "what": "price", "flat": 1.0, "is_share": False} | options
    where = None if places is None else np.array(places, dtype=float)
    return finding(Curve(means=np.array(means, float), places=where, levels=tuple(levels), **given))


@pytest.mark.parametrize(
    ("means", "text"),
    [
        ([10, 10, 20, 40, 50, 50, 50], "rises by about 40 as rooms goes from 2 to 5; flat below a"),
        ([0, 13, 27, 40, 40, 40, 40], "rises by about 40 as rooms goes from 1 to 4; flat beyond"),
        ([60, 50, 40, 30, 20, 10, 0], "falls by about 60 as rooms goes from 1 to 7"),
        ([0, 10, 20, 30, 20, 10, 5], "rises by about 30 until rooms is 4, then falls by about 25"),
        ([30, 10, 0, 10, 20, 30, 40], "falls by about 30 until rooms is 3, then rises by about 40"),
        ([0, 30, 5, 30, 0, 30, 5], "goes up and down with rooms, between 0 (at 1) and 30 (at 2)"),
        ([5, 5.1, 5.3, 5, 5, 5, 5], "hardly changes with rooms"),
    ],
)
def test_a_curve_in_a_sentence(means, text):
    assert sentence(means, range(1, 8)).startswith(f"price {text}")


def test_levels_and_probabilities_in_a_sentence():
    assert sentence([10, 26], levels=["no", "yes"]) == (
        "price is about 16 higher where rooms is yes than where it is no"
    )
    assert sentence([10, 50, 20], levels=["a", "b", "(missing)"]) == (
        "price is highest where rooms is b and lowest where it is a, about 40 apart"
    )
    assert sentence([0.1, 0.5, 0.2], levels="abc", is_share=True, flat=0.02) == (
        "price is highest where rooms is b (50 %) and lowest where it is a (10 %)"
    )
    assert sentence([0.18, 0.3, 0.45], [0, 1, 2], is_share=True, flat=0.02) == (
        "price rises from 18 % to 45 % as rooms goes from 0 to 2"
    )
    days = [k * 86400.0 * 400 for k in range(5)]
    assert sentence([0, 10, 20, 30, 40], days, is_time=True) == (
        "price rises by about 40 as rooms goes from 1970-01 to 1974-05"
    )


@pytest.mark.parametrize("heavy", [False, True])
def test_scaled_numbers_are_read_back(heavy):
    random = np.random.default_rng(0)
    values = np.exp(random.normal(0, 3, 300)) if heavy else random.integers(1, 10, 300) * 1.0
    scale = Scale.fit(values)
    assert scale.heavy == heavy
    back = scale.inverse(scale.transform(values).astype(np.float32).astype(float))
    assert np.abs(back - values).max() <= 1e-5 * np.ptp(values)
    assert heavy or (back == values).all()


def test_effects_are_mean_predictions_with_the_column_set(houses):
    found = {one["column"]: one for one in houses.info["held_out"]["effects"]}
    assert {"rooms", "city"} <= set(found)
    rooms = found["rooms"]
    assert rooms["places"] == sorted(set(rooms["places"]))
    assert set(rooms["places"]) <= set(range(1, 9))
    assert sum(rooms["shares"]) == pytest.approx(1)
    assert rooms["finding"].startswith("price rises by about")
    # The same by hand: the frame of the held-out rows, each with so many rooms.
    frame = make_houses().drop(columns="dear")
    held = prepare(Table(frame), "price", seed=1).held_out
    by_hand = []
    for k in rooms["places"]:
        x = held.x.copy()
        column = houses.encoding.slices["rooms"].start
        x[:, column] = houses.encoding.encoders["rooms"].transform(np.array([float(k)]))[0, 0]
        by_hand.append(houses.by_depth(x).mixture.mean())
    assert rooms["curves"][""] == pytest.approx(by_hand, rel=1e-6)
    assert found["city"]["finding"].startswith("price is highest where city is Paris")


def test_importance_has_an_error_bar_and_bounded_cost(houses):
    rows = houses.info["held_out"]["importance"]
    assert rows[0]["column"] == "rooms"
    assert rows[0]["loss"] > 4 * rows[0]["sd"] > 0
    assert all(row["sd"] >= 0 for row in rows)


def test_the_page_says_what_was_left_out(houses):
    rows = [{"column": f"c{k}", "loss": 1.0, "sd": 0.1} for k in range(30)]
    used = [SimpleNamespace(name=f"c{k}") for k in range(400)]
    wide = SimpleNamespace(encoding=SimpleNamespace(used=used))
    text = column_sections.importance(wide, {"importance": rows, "task": "regression"}).text
    assert "Of 400 columns the 30 were shuffled to which the predictions react most" in text
    assert "the other 370 were left out" in text
    assert "The 5 least important of 30 are not drawn" in text
    one = {"column": "c", "kind": "number", "places": [0.0, 1.0], "shares": [0.5, 0.5]}
    one |= {"curves": {"": [1.0, 2.0]}, "finding": "price rises"}
    section = column_sections.effects(houses, {"importance": rows, "effects": [one] * 6})
    assert "24 more columns matter and are not drawn" in section.text


# The page


def test_the_page_of_a_number(houses, tmp_path):
    text = model_page(houses)
    root = ElementTree.fromstring(text)
    titles = [heading.text for heading in root.iter("h2")]
    assert titles == [
        *("In short", "How good?", "How deep?", "RMSE at each depth", "Which columns matter?"),
        *("What was learnt from them?", "Can it be trusted?", "How close?"),
        *("How unsure is it, and why?", "How training went", "The table"),
    ]
    captions = [caption.text for caption in root.iter("figcaption")]
    assert "RMSE on validation rows" in captions
    assert "RMSE added by shuffling a column" in captions
    assert "RMSE gained" not in text
    for one in houses.info["held_out"]["effects"]:
        assert one["finding"][0].upper() + one["finding"][1:] in captions
    # In the units of the target.
    scale = float(houses.estimator.target_scaling_.scale[0])
    best = houses.estimator.history_["val_rmse"][houses.estimator.best_epoch_ - 1]
    assert f"validation rows {number(best * scale, 4)}" in text or len(captions) > 8
    # An older file knows of none of this.
    held = houses.info["held_out"]
    older = {k: v for k, v in held.items() if k not in ("effects", "score_error")}
    names = ("depth_share", "by_fifth_bounds")
    older["uncertainty"] = {k: v for k, v in held["uncertainty"].items() if k not in names}
    info = {**houses.info, "held_out": older}
    model = TableModel(houses.estimator, houses.encoding, houses.target, info)
    ElementTree.fromstring(model_page(model))
    model.save(tmp_path / "older.udn")
    assert TableModel.load(tmp_path / "older.udn").info["held_out"]["rows"] == held["rows"]


def test_the_page_of_classes(classes):
    text = model_page(classes)
    root = ElementTree.fromstring(text)
    captions = [caption.text for caption in root.iter("figcaption")]
    assert {"Confusion matrix", "Class by class", "Log score on validation rows"} <= set(captions)
    tints = re.findall(r"color-mix\(in srgb, var\(--series-(\d)\) (\d+)%", text)
    assert {series for series, _ in tints} <= {"1", "2"}
    confusion = classes.info["held_out"]["confusion"]
    assert len(tints) >= sum(count > 0 for row in confusion for count in row)
    assert "macro" in text


def test_tables_hint_that_they_scroll():
    text = page.table(["a", "b"], [[page.Cell("x", "about x"), page.Cell(1, strong=True)]])
    assert "<small>about x</small>" in text
    assert "<strong>1</strong>" in text
    assert 'class="scroll" tabindex="0"' in text
    rule = re.search(r"\.scroll \{(.*?)\}", page.STYLE, re.S)
    assert rule is not None
    assert rule[1].count("var(--shadow)") == 2


def test_a_giveaway_is_named_on_the_page():
    frame = make_houses(80).drop(columns="dear")
    frame["cents"] = 100 * frame["price"]
    model = TableModel.fit(frame, "price", references=False, **QUICK | {"epochs": 1})
    assert "Column &#x27;cents&#x27; tells the target all by itself" in model_page(model)


# An index without a name


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_an_index_is_left_out_and_need_not_come_again(name, tmp_path, capsys):
    frame = make_houses(60).drop(columns=["dear", "sold"])
    half = frame.iloc[:30]
    twice = pd.concat([half, half])  # whose index repeats
    path, out = tmp_path / "t.csv", str(tmp_path / "m.udn")
    twice.to_csv(path, index_label=name)
    options = ["--epochs", "1", "--width", "4", "--no-references", "--no-report"]
    assert main(["fit", str(path), "--target", "price", "--out", out, *options]) == 0
    assert re.search(
        r"(\(column 1\)|Unnamed: 0) .* – an index without a name", capsys.readouterr().out
    )
    printed = []
    for index in (True, False):
        frame.to_csv(path, index=index)
        assert main(["predict", out, str(path)]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    kept = prepare(Table(twice.reset_index(names=["Unnamed: 0"])), "price", keep=["Unnamed: 0"])
    assert "Unnamed: 0" in {column.name for column in kept.encoding.used}


# Columns that give the target away


def test_copies_give_a_number_away_and_identifiers_do_not():
    random = np.random.default_rng(0)
    y = random.normal(size=400)
    frame = pd.DataFrame(
        {
            "exact": y,
            "linear": -3 * y + 7,
            "near": y + 0.01 * random.normal(size=400),
            "good": y + 0.3 * random.normal(size=400),
            "customer": random.permutation(400) + 0.0,
            "code": [f"c{k}" for k in random.permutation(400)],
            "y": y,
        }
    )
    assert prepare(Table(frame), "y").giveaways == ("exact", "linear", "near")
    flags = pd.DataFrame(
        {
            "exact": np.where(y > 0, "up", "down"),
            "coded": 5.0 - 2.0 * (y > 0),
            "near": np.where(random.random(400) < 0.002, y < 0, y > 0),
            "customer": random.permutation(400) + 0.0,
            "y": np.where(y > 0, "a", "b"),
        }
    )
    assert prepare(Table(flags), "y").giveaways == ("exact", "coded", "near")
