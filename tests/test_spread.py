"""Noise that follows the mean: found on held-out rows, kept in files, harmless to the mean."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import unbounded as ub
from unbounded import UDNRegressor
from unbounded.estimators.spread import Errors, _basis, _fitted, find_bend
from unbounded.files.contents import FileError
from unbounded.likelihoods import LearntNoise

BEND = ([-1.0, 0.0, 2.0], [-0.5, 0.3, 1.0])


def noisy(rows, seed, power):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=rows)
    return means, rng.normal(size=rows) * np.exp(power * np.clip(means, -1.5, 1.5))


def test_sigma_is_interpolated_between_knots():
    noise = LearntNoise(0.4, 2, [BEND, None])
    means = torch.linspace(-3, 4, 29)[None, :, None].repeat(2, 1, 2)
    same, scales = noise.split(means)
    assert same is means
    expected = 0.4 * np.exp(np.interp(means[0, :, 0], *BEND))
    np.testing.assert_allclose(scales[1, :, 0].detach(), expected, rtol=1e-6)
    np.testing.assert_allclose(scales[0, :, 1].detach(), 0.4, rtol=1e-6)


def test_a_bend_pulls_at_no_mean():
    straight, bent = ub.Gaussian(LearntNoise(1.0)), ub.Gaussian(LearntNoise(1.0, 1, [BEND]))
    outputs = torch.tensor([[[0.5], [-0.7]]], requires_grad=True)
    y = outputs.detach()[0].clone()  # no error: whatever pulls, pulls for the sake of σ
    bent.log_prob(outputs, y).sum().backward()
    assert (outputs.grad == 0).all()
    assert not torch.equal(straight.log_prob(outputs, y), bent.log_prob(outputs, y))


@pytest.mark.parametrize(
    "bend",
    [([0.0], [0.0]), ([1.0, 0.0], [0, 0]), ([0.0, 1.0], [0.0]), ([0.0, float("nan")], [0.0, 0.0])],
)
def test_what_is_no_bend_is_refused(bend):
    with pytest.raises(ValueError, match="a bend is two or more knots"):
        LearntNoise(1.0, 1, [bend])
    with pytest.raises(ValueError, match="2 bends for 1 targets"):
        LearntNoise(1.0, 1, [None, None])


def test_files_keep_the_bend(tmp_path):
    model = ub.UDN(ub.Dense(3, 4, 1), ub.Gaussian(LearntNoise(0.5, 1, [BEND])))
    ub.save(model, tmp_path / "m.safetensors")
    again = ub.load(tmp_path / "m.safetensors")
    outputs = torch.randn(2, 7, 1)
    for one, other in zip(
        model.likelihood.noise.split(outputs), again.likelihood.noise.split(outputs), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "bends", [[[[0, 0], [1, 1]]], [[[0, 1], [1]]], [[[0, 1], [99, 1]]], [None, None], [[[0], [1]]]]
)
def test_files_with_a_bend_that_is_none_are_refused(tmp_path, bends):
    from safetensors import safe_open

    from unbounded.files.contents import write_tensors

    path = tmp_path / "m.safetensors"
    ub.save(ub.UDN(ub.Dense(3, 4, 1), ub.Gaussian(LearntNoise(0.5, 1, [BEND]))), path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["unbounded"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header["likelihood"]["config"]["noise"]["bends"] = bends
    write_tensors(path, tensors, {"unbounded": json.dumps(header)})
    with pytest.raises(FileError, match="bends"):
        ub.load(path)


def _errors(means, z):
    return Errors(means, z, np.ones(len(z)))


@given(st.integers(0, 50))
def test_newton_finds_the_highest_penalised_density(seed):
    means, z = noisy(120, seed, 0.8)
    weights = np.random.default_rng(seed).uniform(0.5, 2, len(means))
    basis = _basis(means, np.array([-1.0, 0.0, 1.0]))

    def cost(v):
        f = basis @ v
        return weights @ (0.5 * z**2 * np.exp(-2 * f) + f) + np.sum(np.diff(v) ** 2) / (2 * 0.5**2)

    found = _fitted(basis, z, weights)
    best = minimize(cost, np.zeros(3), method="BFGS", options={"gtol": 1e-8})
    assert cost(found) <= best.fun + 1e-6


def test_a_bend_that_is_there_is_found_and_one_that_is_not_is_rare():
    means, z = noisy(800, 0, 0.6)
    bend = find_bend(_errors(means, z))
    assert bend is not None
    at = np.linspace(-1.2, 1.2, 9)
    assert np.abs(np.interp(at, *bend) - 0.6 * at).max() < 0.25
    for rows in (45, 300):
        alarms = [find_bend(_errors(*noisy(rows, seed, 0.0))) for seed in range(60)]
        assert sum(bend is not None for bend in alarms) <= 4
    strong = noisy(39, 0, 1.5)
    assert find_bend(_errors(*strong)) is None  # too few rows to tell
    assert find_bend(_errors(np.zeros(400), z[:400])) is None  # one mean has no trend


def test_held_out_rows_confirm_a_trend_of_rows_that_were_learnt_from():
    means, z = noisy(400, 0, 1.0)
    learnt = _errors(means, 0.2 * z)  # learnt closely: the errors are too small
    few = noisy(32, 1, 1.0)
    assert find_bend(_errors(*few)) is None
    bend = find_bend(_errors(*few), learnt)
    assert bend is not None
    at = np.linspace(-1, 1, 9)
    slope = np.polyfit(at, np.interp(at, *bend), 1)[0]
    assert 0.7 < slope < 1.3
    assert abs(np.interp(few[0], *bend).mean()) < 1e-9  # s has the level
    # Held-out rows that show no such trend, or the contrary, or are too few: no bend.
    others = [find_bend(_errors(*noisy(32, seed, 0.0)), learnt) for seed in range(40)]
    assert sum(bend is not None for bend in others) <= 2
    assert find_bend(_errors(*noisy(32, 1, -1.0)), learnt) is None
    assert find_bend(_errors(few[0][:19], few[1][:19]), learnt) is None
    # What many held-out rows say themselves goes before.
    contrary = noisy(800, 3, -1.0)
    assert find_bend(_errors(*contrary), learnt) == find_bend(_errors(*contrary))


def test_small_tables_have_noise_that_follows_the_mean():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(260, 2)).astype(np.float32)
    y = np.exp(3 * X[:, 0]) * (1 + 0.3 * rng.normal(size=len(X)))
    constant = ub.Gaussian()  # but for its bend
    model = UDNRegressor(random_state=0, epochs=25, width=16, likelihood=constant)
    model.fit(X[:200], y[:200])
    assert 20 <= len(model.conformal_scores_) < 40
    assert model.model_.likelihood.noise.bends
    _, std = model.predict(X[200:], return_std=True)
    order = np.argsort(X[200:, 0])
    assert std[order[-15:]].mean() > 2.5 * std[order[:15]].mean()


def test_noise_that_is_too_large_as_a_whole_bends_alike():
    means, z = noisy(3000, 0, 1.0)
    bend, small = find_bend(_errors(means, z)), find_bend(_errors(means, z / 50))
    np.testing.assert_allclose(small.values, bend.values, atol=1e-5)  # s has the level
    assert np.ptp(bend.values) > 0.5


def test_rows_that_weigh_nothing_bend_nothing():
    means, z = noisy(300, 0, 1.0)
    assert find_bend(_errors(means, z)) is not None
    heavy = np.ones(300)
    heavy[:3] = 1e12
    assert find_bend(Errors(means, z, heavy)) is None  # three rows, by their weight
    assert find_bend(Errors(means, z, np.full(300, 1e-6))) is None


def test_intervals_hold_as_many_small_values_as_large_ones(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2400, 3)).astype(np.float32)
    size = np.exp(0.8 * X[:, 0] + 0.4 * X[:, 1])
    y = size * (1 + 0.25 * rng.normal(size=len(X)))
    options = {"random_state": 0, "quality": "fast", "likelihood": ub.Gaussian()}
    model = UDNRegressor(**options).fit(X[:1600], y[:1600])
    plain = UDNRegressor(**options, calibrate=False).fit(X[:1600], y[:1600])
    X, y = X[1600:], y[1600:]
    assert np.array_equal(model.predict(X), plain.predict(X))  # the mean is what it was
    groups = np.array_split(np.argsort(model.predict(X)), 4)

    def inside(fitted):
        low, high = fitted.predict_quantiles(X, [0.05, 0.95])
        return [np.mean((y[g] >= low[g]) & (y[g] <= high[g])) for g in groups]

    bent, constant = inside(model), inside(plain)
    assert constant[0] == constant[1] == 1.0  # of the cheaper half a constant σ is too large
    assert 0.8 < bent[0] < 0.97
    assert bent[3] > constant[3]
    model.save(tmp_path / "m.udn")
    again = UDNRegressor.load(tmp_path / "m.udn")
    assert np.array_equal(again.predict_quantiles(X, [0.05]), model.predict_quantiles(X, [0.05]))


def test_a_bend_is_of_its_own_training():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)).astype(np.float32), rng.normal(size=60)
    options = {"random_state": 0, "epochs": 1, "width": 8, "likelihood": ub.Gaussian()}
    model = UDNRegressor(**options, warm_start=True, calibrate=False)
    model.fit(X, y).model_.likelihood.noise.bend([BEND])
    assert not model.fit(X, y).model_.likelihood.noise.bends
