"""Conformal intervals, time limits and words for the quality."""

import time

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.datasets import make_friedman1

from unbounded import UDNClassifier, UDNRegressor
from unbounded.cli import main
from unbounded.estimators import conformal
from unbounded.estimators.auto import CLASSES, NUMBERS, choose_batch_size, choose_epochs
from unbounded.estimators.pace import Clock, quality
from unbounded.estimators.rows import outweighing
from unbounded.files import FileError

SMALL = {"random_state": 0, "epochs": 8, "width": 8}


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(300, noise=1.0, random_state=0)


@pytest.fixture(scope="module")
def fitted(friedman):
    return UDNRegressor(**SMALL).fit(*friedman)


@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize("count", [19, 60])
def test_coverage_of_exchangeable_scores(coverage, count):
    """On average over held-out sets it is ⌈(n+1)p⌉/(n+1): at least p, at most 1/(n+1) more."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1500):
        y = rng.standard_t(3, (count + 20, 1))
        kept, shares = conformal.kept_scores(np.abs(y[:count]), np.ones(count))
        assert shares is None
        held.append(np.mean(np.abs(y[count:]) <= conformal.factor(kept, coverage)))
    error = np.std(held) / np.sqrt(len(held))
    assert coverage - 3 * error < np.mean(held) < coverage + 1 / (count + 1) + 3 * error


def test_many_scores_are_thinned_to_the_safe_side():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(12_345, 1))
    for weights in (np.ones(len(y)), np.tile([1.0, 3.0, 1.0], len(y) // 3)):
        kept, shares = conformal.kept_scores(np.abs(y), weights)
        assert kept.shape == (conformal.MOST_SCORES, 1)
        exact = np.quantile(np.repeat(np.abs(y), weights.astype(int)), 0.9, method="higher")
        assert exact <= conformal.factor(kept, 0.9, shares)[0] < exact + 0.02
        assert kept[-1, 0] == np.abs(y).max()


def test_few_rows_cannot_promise_much():
    kept = np.arange(9.0)[:, None]
    assert conformal.factor(kept, 0.9)[0] == 8
    with pytest.raises(ValueError, match=r"9 held-out rows can promise .* at most 0.900"):
        conformal.factor(kept, 0.95)
    for wrong in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            conformal.factor(kept, wrong)


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_scores_count_as_often_as_their_rows(coverage):
    """Half of the rows are there once, and half nine times, with errors three times as large."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1500):
        often = rng.random(60) < 0.5
        y = rng.normal(size=(60, 1)) * np.where(often, 3, 1)[:, None]
        kept, shares = conformal.kept_scores(np.abs(y), np.where(often, 9.0, 1.0))
        wide = conformal.factor(kept, coverage, shares)[0]
        held.append(norm.cdf(wide) * 0.2 - 0.1 + norm.cdf(wide / 3) * 1.8 - 0.9)
    error = np.std(held) / np.sqrt(len(held))
    assert coverage - 3 * error < np.mean(held) < coverage + 1 / 20 + 3 * error


def test_rows_that_are_too_heavy_to_be_held_out_have_the_score_that_they_have():
    light, heavy = np.arange(1.0, 20)[:, None], np.array([[0.5], [30.0]])
    found = conformal.kept_scores(light, np.ones(19), heavy, np.array([40.0, 20.0, 140.0]))
    assert np.isclose(found[1][0, 0], 0.2)  # the first heavy row is a fifth of all
    assert conformal.factor(found[0], 0.19, found[1]) == 0.5
    assert conformal.factor(found[0], 0.2 + 0.7 * 0.49, found[1]) == 10  # 10 of 19, by 20
    assert conformal.factor(found[0], 0.95, found[1]) == 30
    with pytest.raises(ValueError, match=r"at most 0.965 by their weights"):
        conformal.factor(found[0], 0.97, found[1])
    assert outweighing(np.ones(60), 0.15).sum() == 0
    assert outweighing(np.append(np.ones(400), [200.0, 20.0]), 0.15).tolist()[-2:] == [True, False]
    assert outweighing(np.append(np.ones(20), 200.0), 0.15).sum() == 0  # too few to hold some out


def cells(count: int, rng: np.random.Generator):
    """A grid of 25 points, whole numbers for targets: rows are there many times."""
    x = rng.integers(1, 6, (count, 2)).astype(float)
    return x, np.round(x.sum(1) + 2 * rng.normal(size=count))


def atoms(count: int, rng: np.random.Generator):
    """Two rows that are half of the table, and others that differ."""
    half = rng.random(count) < 0.5
    x = np.where(half, 0, rng.uniform(1, 2, count))
    return x[:, None], np.where(half, rng.choice([-3.0, 3.0], count), 0.3 * rng.normal(size=count))


@pytest.mark.parametrize(("make", "rows"), [(cells, 4000), (atoms, 800)])
def test_intervals_of_rows_that_are_there_often(make, rows, tmp_path):
    rng = np.random.default_rng(0)
    model = UDNRegressor(epochs=15, width=32, random_state=0).fit(*make(rows, rng))
    X, y = make(4000, rng)
    low, high = model.predict_interval(X, 0.8)
    assert 0.79 < np.mean((low <= y) & (y <= high)) < 0.93
    model.save(tmp_path / "m.udn")
    assert np.allclose(UDNRegressor.load(tmp_path / "m.udn").predict_interval(X, 0.8), (low, high))


def test_intervals_of_a_regressor(friedman, fitted, tmp_path):
    X, y = friedman
    low, high = fitted.predict_interval(X, 0.8)
    mean, std = fitted.predict(X, return_std=True)
    assert low.shape == high.shape == y.shape
    assert np.allclose((low + high) / 2, mean)
    assert np.ptp((high - low) / std) < 1e-6  # a number of standard deviations
    wider = fitted.predict_interval(X, 0.95)
    assert (wider[0] < low).all()
    fitted.save(tmp_path / "m.udn")
    again = UDNRegressor.load(tmp_path / "m.udn", device="cpu").predict_interval(X, 0.8)
    assert np.allclose(again, (low, high))


def test_held_out_rows_lie_in_their_intervals(friedman):
    X, y = friedman
    fresh = make_friedman1(80, noise=1.0, random_state=7)
    model = UDNRegressor(**SMALL).fit(X, y, eval_set=fresh)
    low, high = model.predict_interval(fresh[0], 0.9)
    middle, reach = (low + high) / 2, (high - low) / 2
    # ⌈81·0.9⌉ = 73 of 80, those at the ends among them, up to rounding; intervals are wider by a
    # standard error of the noise.
    distance = np.abs(fresh[1] - middle) * np.exp(1 / np.sqrt(160))
    assert 72 <= np.sum(distance <= reach * (1 + 1e-5)) <= 74
    plain = UDNRegressor(**SMALL, calibrate=False).fit(X, y, eval_set=fresh)
    low, high = plain.predict_interval(fresh[0], 0.9)
    assert 72 <= np.sum((fresh[1] >= low - 1e-5) & (fresh[1] <= high + 1e-5)) <= 74


def test_several_targets_have_intervals_of_their_own(friedman):
    X, y = friedman
    both = np.column_stack([y, 100 * X[:, 0]])
    low, high = UDNRegressor(**SMALL).fit(X, both).predict_interval(X)
    assert low.shape == high.shape == both.shape
    assert (high > low).all()


@pytest.mark.parametrize("options", [{"refit": True}, {"validation_fraction": 0.0}])
def test_without_held_out_rows_there_is_no_promise(friedman, options, tmp_path):
    model = UDNRegressor(**SMALL, **options).fit(*friedman)
    with pytest.raises(ValueError, match="intervals need held-out rows"):
        model.predict_interval(friedman[0])
    model.save(tmp_path / "m.udn")
    assert UDNRegressor.load(tmp_path / "m.udn").conformal_scores_ is None


def test_a_model_that_is_trained_further_forgets_its_promise(friedman):
    model = UDNRegressor(**SMALL).fit(*friedman).partial_fit(*friedman)
    with pytest.raises(ValueError, match="held-out rows"):
        model.predict_interval(friedman[0])


@pytest.mark.parametrize(
    "scores", [[[2.0], [1.0]], [[-1.0]], [[1.0, 2.0]], [], "1", [[1.0]] * 1001]
)
def test_scores_of_a_file_are_checked(scores):
    with pytest.raises(FileError, match="scores"):
        conformal.read(scores, 1, "scores")


def test_time_is_kept(friedman):
    X, y = friedman
    start = time.monotonic()
    model = UDNRegressor(random_state=0, width=8, epochs=100_000, time_limit=3.0).fit(X, y)
    assert model.stopped_ == "time"
    assert 1 < model.n_iter_ < 100_000
    assert time.monotonic() - start < 30  # a fit of all epochs takes hours
    assert model.predict(X).shape == y.shape


def test_enough_time_changes_nothing(friedman):
    X, y = friedman
    limited = UDNRegressor(**SMALL, time_limit=3600).fit(X, y)
    assert limited.stopped_ == "epochs"
    assert np.array_equal(limited.predict(X), UDNRegressor(**SMALL).fit(X, y).predict(X))


def test_the_rate_falls_with_the_clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = Clock(60.0, 1000)
    assert clock.done(0) == pytest.approx(0.0005)
    now[0] += 30
    assert clock.done(1) == pytest.approx(0.5)
    assert clock.left == pytest.approx(30)
    assert clock.done(900) == pytest.approx(0.9005)
    now[0] += 90
    assert clock.done(2) == 1
    assert Clock(None, 10).done(4) == 0.45
    assert Clock(None, 10).left is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time_limit": 0}, "time_limit must be None or positive"),
        ({"time_limit": float("inf")}, "time_limit must be None or positive"),
        ({"quality": "good"}, "quality must be one of"),
        ({"n_members": 0}, "n_members must be 'auto' or an integer"),
    ],
)
def test_bad_arguments_are_told(friedman, options, said):
    with pytest.raises(ValueError, match=said):
        UDNRegressor(**options).fit(*friedman)


@pytest.mark.parametrize("rows", [100, 400, 1000, 5000, 20_000])
def test_steps_go_with_the_rows(rows):
    def taken(wanted):
        batches = -(-rows // choose_batch_size("auto", rows))
        return batches * choose_epochs("auto", "auto", rows, wanted), batches

    rules = (CLASSES, 700, 6000, 1.0, 120), (NUMBERS, 600, 18_000, 1.3, 200)
    for wanted, least, most, each, epochs in rules:
        steps, of_an_epoch = taken(wanted)
        expected = min(max(each * rows, least), most)
        assert min(expected, epochs * of_an_epoch) <= steps < expected + of_an_epoch + 1
        assert steps <= epochs * of_an_epoch


def test_quality_says_how_much():
    X, y = make_friedman1(60, random_state=0)
    steps = {name: choose_epochs("auto", "auto", 5000, CLASSES, quality(name).steps) for name in
             ("fast", "default", "best")}  # fmt: skip
    assert steps["fast"] < steps["default"] < steps["best"]
    model = UDNClassifier(quality="best", epochs=2, width=4, random_state=0).fit(X, y > 14)
    assert len(model.members_) == quality("best").members == 5
    assert (
        len(UDNClassifier(quality="best", n_members=2, epochs=2, width=4).fit(X, y > 14).members_)
        == 2
    )


# The command line


@pytest.fixture(scope="module")
def files(friedman, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    X, y = friedman
    frame = pd.DataFrame(X[:, :5], columns=list("abcde"))
    frame.assign(y=y, side=np.where(y > 14, "up", "down")).to_csv(folder / "t.csv", index=False)
    return folder


def command(capsys, *words):
    status = main([str(word) for word in words])
    return status, *capsys.readouterr()


def test_conformal_predictions_of_a_table(files, capsys):
    model, quick = files / "m.udn", ("--epochs", 4, "--width", 8, "--no-references", "--no-report")
    status, _, err = command(
        capsys, "fit", files / "t.csv", "--target", "y", "--drop", "side", "--out", model, *quick,
        "--quality", "fast", "--members", 2, "--time-limit", 600,
    )  # fmt: skip
    assert status == 0, err
    fitted = UDNRegressor.load(model)
    assert (fitted.quality, fitted.n_members, fitted.time_limit) == ("fast", 2, 600)
    for words, out in (((), "q.csv"), (("--conformal",), "c.csv")):
        status, _, err = command(
            capsys, "predict", model, files / "t.csv", "--out", files / out, *words
        )
        assert status == 0, err
    plain, conformal_ = (pd.read_csv(files / name) for name in ("q.csv", "c.csv"))
    assert plain["mean"].equals(conformal_["mean"])
    expected = fitted.interval_factor(0.9)[0] * conformal_["sd"]
    assert np.allclose(conformal_["upper"] - conformal_["mean"], expected)
    assert np.allclose(conformal_["mean"] - conformal_["lower"], expected)
    status, _, err = command(
        capsys, "predict", model, files / "t.csv", "--conformal", "--interval", 0.999
    )
    assert status == 2
    assert "held-out rows can promise a coverage of at most" in err


def test_classes_have_no_intervals(files, capsys):
    model, quick = files / "c.udn", ("--epochs", 2, "--width", 4, "--no-references", "--no-report")
    words = ("--target", "side", "--drop", "y", "--out", model)
    status, _, err = command(capsys, "fit", files / "t.csv", *words, *quick)
    assert status == 0, err
    status, _, err = command(capsys, "predict", model, files / "t.csv", "--conformal")
    assert status == 2
    assert "conformal intervals are for numbers" in err
