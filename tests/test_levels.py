"""Levels of intervals by held-out rows: shape is mended, and nothing else."""

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import make_friedman1

from unbounded import UDNRegressor
from unbounded.estimators import levels
from unbounded.estimators.levels import EDGES, Levels, find_levels
from unbounded.files import FileError
from unbounded.tables.predictions import ByDepth
from unbounded.tables.scores import ScoreCollector

PLAIN = Levels(EDGES.tolist())
# What intervals of a normal distribution hold where errors are heavy-tailed: more, then less.
HEAVY = Levels(stats.t(3).cdf(np.r_[stats.norm.ppf((1 + EDGES[:-1]) / 2) * 1.5, np.inf]) * 2 - 1)


def covered(found, truth, scale, p):
    """What the interval of a normal distribution holds at levels that are to hold p."""
    asked = np.array([(1 - p) / 2, (1 + p) / 2])
    ends = stats.norm.ppf(asked if found is None else found.nominal(asked)) * scale
    return float(np.diff(truth.cdf(ends))[0])


@pytest.mark.parametrize("truth", [stats.t(3), stats.laplace(), stats.uniform(-1, 2)])
def test_intervals_hold_what_they_say_whatever_the_shape(truth):
    before, after = [], []
    for seed in range(20):
        z = truth.rvs(900, random_state=seed)
        found = find_levels(stats.norm.cdf(z / z.std()), np.ones(900))
        before.append([abs(covered(None, truth, z.std(), p) - p) for p in (0.5, 0.9, 0.98)])
        after.append([abs(covered(found, truth, z.std(), p) - p) for p in (0.5, 0.9, 0.98)])
    assert np.mean(after) < 0.5 * np.mean(before)
    assert np.max(np.mean(after, 0)) < 0.025


def test_a_normal_distribution_is_left_alone():
    taken = [
        find_levels(stats.norm.cdf(stats.norm.rvs(size=500, random_state=seed)), np.ones(500))
        for seed in range(20)
    ]
    assert sum(found is not None for found in taken) <= 2


def test_few_rows_change_little_and_fewer_nothing():
    u = stats.norm.cdf(stats.t(2).rvs(60, random_state=0))
    many = find_levels(np.tile(u, 50), np.ones(3000))
    few = find_levels(u, np.ones(60))
    assert few is not None
    assert many is not None
    off = [np.abs(np.array(found.held) - EDGES).max() for found in (few, many)]
    # 60 rows against 50 at the identity.
    assert off[0] < 0.6 * off[1]
    assert find_levels(u[:40], np.ones(40)) is None
    # Ten rows that outweigh all others are ten rows.
    assert find_levels(u, np.r_[np.full(10, 1e6), np.ones(50)]) is None


def test_a_weight_is_a_row_that_is_there_as_often():
    u = np.random.default_rng(0).beta(3, 3, 300)
    twice = find_levels(np.r_[u, u], np.ones(600))
    weighed = find_levels(u, np.full(300, 2.0))
    assert twice is not None
    assert weighed is not None
    # Twice the weight of a row is no second observation: between the two and the identity.
    once = find_levels(u, np.ones(300))
    assert weighed == once
    assert np.abs(np.array(twice.held) - EDGES).max() > np.abs(np.array(once.held) - EDGES).max()


def test_the_median_stays_and_ends_mirror_each_other():
    p = np.linspace(0.001, 0.999, 999)
    asked = HEAVY.nominal(p)
    assert HEAVY.nominal(np.array([0.5]))[0] == 0.5
    assert np.allclose(asked + asked[::-1], 1)
    assert (np.diff(asked) > 0).all()
    assert np.allclose(HEAVY.actual(asked), p, atol=1e-9)
    assert np.allclose(PLAIN.nominal(p), p)
    assert np.allclose(PLAIN.actual(p), p)
    extreme = HEAVY.nominal(np.array([1e-15, 1 - 1e-15]))
    assert ((extreme > 0) & (extreme < 1)).all()


@pytest.fixture(scope="module")
def fitted():
    X, y = make_friedman1(700, random_state=0)
    y = y + stats.t(2).rvs(len(y), random_state=1)
    options = {"random_state": 0, "epochs": 8, "width": 8, "validation_fraction": 0.5}
    return X, y, UDNRegressor(**options).fit(X, y)


def test_a_regressor_takes_levels_from_its_held_out_rows(fitted, tmp_path):
    X, _, model = fitted
    (found,) = model.levels_
    assert found is not None
    q = [0.05, 0.5, 0.9]
    ours = model.predict_quantiles(X, q)
    mean, std = model.predict(X, return_std=True)
    model.levels_ = [None]
    try:
        plain = model.predict_quantiles(X, found.nominal(np.array(q)))
        assert np.array_equal(ours, plain)
        assert not np.allclose(ours[0], model.predict_quantiles(X, 0.05))
        assert np.array_equal(model.predict(X, return_std=True), (mean, std))
    finally:
        model.levels_ = [found]
    model.save(tmp_path / "m.udn")
    again = UDNRegressor.load(tmp_path / "m.udn", device="cpu")
    assert again.levels_ == [found]
    assert np.array_equal(again.predict_quantiles(X, q), ours)


def test_caution_is_not_taken_back(fitted):
    """Levels are those of the noise before it was widened by a standard error."""
    X, y, _ = fitted
    options = {"random_state": 0, "epochs": 8, "width": 8}
    model = UDNRegressor(**options).fit(X[350:], y[350:], eval_set=(X[:350], y[:350]))
    means, scales = model.predict_by_depth(X[:350], return_std=True)
    probs, caution = model.depth_probs_, np.exp(1 / np.sqrt(2 * 350))
    by_hand = [
        find_levels(probs @ stats.norm.cdf((y[:350] - means) / scales * factor), np.ones(350))
        for factor in (caution, 1.0)
    ]
    assert np.allclose(model.levels_[0].held, by_hand[0].held, atol=0.003)
    assert not np.allclose(model.levels_[0].held, by_hand[1].held, atol=0.01)
    plain = UDNRegressor(**options | {"epochs": 1}, calibrate=False).fit(X, y)
    assert plain.levels_ == [None]


def test_levels_are_forgotten_with_the_rows_that_they_were_of(fitted):
    X, y, _ = fitted
    model = UDNRegressor(random_state=0, epochs=2, width=8).fit(X, np.c_[y, -y])
    assert len(model.levels_) == 2
    model.partial_fit(X, np.c_[y, -y])
    assert model.levels_ == [None, None]


@pytest.mark.parametrize("bad", ["x", [], [[0.0, 1.0]], [EDGES.tolist()[::-1]], [[0.5] * 14]])
def test_levels_of_a_file_are_checked(bad):
    with pytest.raises(FileError, match="levels"):
        levels.read(bad, 1, "levels")


def test_files_of_earlier_versions_have_none():
    assert levels.read(None, 2, "levels") == [None, None]


def test_tables_use_them_in_columns_and_scores():
    y = np.array([-0.5, 0.2, 2.5])
    mixture = np.ones(1), np.zeros((1, 3)), np.ones((1, 3))
    with_levels = ByDepth(*mixture, HEAVY)
    columns = with_levels.columns([], 0.9, False)
    expected = stats.norm.ppf(HEAVY.nominal(np.array([0.05, 0.95])))
    assert np.allclose([columns["lower"][0], columns["upper"][0]], expected)
    one = ScoreCollector(is_classes=False)
    one.add(y, with_levels)
    inside = (y >= columns["lower"]) & (y <= columns["upper"])
    assert one.scores()["coverage_90"] == pytest.approx(inside.mean())
