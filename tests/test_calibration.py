"""Noise and certainty by held-out rows."""

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.datasets import make_classification, make_friedman1

import unbounded as ub
from unbounded import UDNClassifier, UDNRegressor
from unbounded.baselines import dun
from unbounded.estimators.calibration import HeldOutPredictions, _highest, calibrate, temper
from unbounded.estimators.rows import Scaling, Scalings, WeightedRows
from unbounded.likelihoods import BalancedGaussian, LearntNoise

NO_SCALING = Scaling(np.zeros(3), np.ones(3))


def rows(count=400, classes=False, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    y = rng.integers(0, 3, count) if classes else rng.normal(size=(count, 1))
    return WeightedRows(x, y, rng.integers(1, 4, count).astype(float))


def model(likelihood, outputs, seed=0):
    depth = ub.TruncatedNormal(2.0, 1.0)
    made = ub.UDN(ub.Dense(3, 8, outputs), likelihood, depth, seed=seed).double()
    return made.eval()


@torch.no_grad()
def log_likelihood(models, held):
    x, y = torch.from_numpy(held.x), torch.from_numpy(held.y)
    each = torch.stack([m.predict(x).log_prob(y) for m in models]).logsumexp(0)
    return float(torch.from_numpy(held.weights) @ (each - np.log(len(models))))


@pytest.mark.parametrize("members", [1, 3])
def test_the_noise_is_the_most_likely_one(members):
    held = rows()
    models = [
        model(ub.Gaussian(LearntNoise(scale=0.2 + 0.1 * k)), 1, seed=k) for k in range(members)
    ]
    means = [m.predict(torch.from_numpy(held.x)).mean for m in models]
    before = [float(m.likelihood.noise.log_scale.detach()) for m in models]

    def loss(log_factor):
        for m, log_scale in zip(models, before, strict=True):
            m.likelihood.noise.log_scale.data.fill_(log_scale + log_factor)
        return log_factor**2 / (2 * 0.25) - log_likelihood(models, held)

    best = optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    loss(0.0)  # as it was
    scalings = Scalings(NO_SCALING, Scaling(np.zeros(1), np.ones(1)))
    factor = calibrate(HeldOutPredictions(models, scalings, held))
    error = 1 / np.sqrt(2 * held.weights.sum())  # of log c: the rows have chosen the epoch as well
    assert np.log(factor) == pytest.approx(best.x + error, abs=1e-5)
    for m, mean, log_scale in zip(models, means, before, strict=True):
        shifted = float(m.likelihood.noise.log_scale.detach())
        assert shifted == pytest.approx(log_scale + best.x + error, abs=1e-5)
        assert torch.equal(m.predict(torch.from_numpy(held.x)).mean, mean)
    assert calibrate(HeldOutPredictions(models, scalings, held)) == pytest.approx(
        1, abs=0.02
    )  # once is enough


def test_noise_from_the_heads_is_multiplied_as_a_whole():
    held = rows()
    made = model(BalancedGaussian(1.0, floor=0.2), 2)
    torch.nn.init.normal_(made.network.heads["1"].weight)
    before = made.predict(torch.from_numpy(held.x)).components()[1]
    scalings = Scalings(NO_SCALING, Scaling(np.zeros(1), np.ones(1)))
    factor = calibrate(HeldOutPredictions([made], scalings, held))
    assert abs(np.log(factor)) > 0.01
    after = made.predict(torch.from_numpy(held.x)).components()[1]
    torch.testing.assert_close(after, factor * before)


def test_few_rows_make_intervals_wider():
    held, factors = rows(640), {}
    for count in (10, 40, 640):
        made = model(ub.Gaussian(), 1)
        scalings = Scalings(NO_SCALING, Scaling(np.zeros(1), np.ones(1)))
        # The same rows again and again, each counting for less: what they say stays.
        few = WeightedRows(held.x, held.y, np.full(640, count / 640))
        factors[count] = calibrate(HeldOutPredictions([made], scalings, few))
    assert factors[10] > factors[40] > factors[640] > 0
    assert np.log(factors[40] / factors[640]) == pytest.approx(1 / np.sqrt(80), abs=0.05)


def test_the_temperature_is_the_most_likely_one():
    held = rows(classes=True)
    made = model(ub.Categorical(3), 3)
    with torch.no_grad():
        for parameter in made.network.heads.parameters():
            parameter *= 20  # far too sure
    first = {name: p.detach().clone() for name, p in made.network.heads.named_parameters()}
    by_depth = made.predict(torch.from_numpy(held.x)).classes_by_depth

    def loss(log_factor):
        with torch.no_grad():
            for name, parameter in made.network.heads.named_parameters():
                parameter.copy_(first[name] / np.exp(log_factor))
        return log_factor**2 / (2 * 0.25) - log_likelihood([made], held)

    best = optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    loss(0.0)
    before = log_likelihood([made], held)
    factor = calibrate(HeldOutPredictions([made], Scalings(NO_SCALING, None), held))
    assert factor > 2
    assert np.log(factor) == pytest.approx(best.x, abs=1e-5)
    assert log_likelihood([made], held) > before
    assert torch.equal(made.predict(torch.from_numpy(held.x)).classes_by_depth, by_depth)


def test_a_head_for_all_depths_is_tempered_once():
    torch.manual_seed(0)
    model = dun(4, 8, 3, ub.Categorical(3), max_depth=3)
    x, y = torch.randn(50, 4), torch.randint(3, (50,))
    with torch.no_grad():
        for parameter in {id(p): p for p in model.network.heads["1"].parameters()}.values():
            parameter.mul_(6)
    before = ub.predict(model, x)
    factor = temper(model, before, y)
    assert factor > 1.5  # labels are mere chance
    after = ub.predict(model, x)
    torch.testing.assert_close(after.outputs, before.outputs / factor)

    def loss(log_factor):  # of the posterior of log c, N(0, ½²) beforehand
        by_depth = (before.outputs.double() / np.exp(log_factor)).log_softmax(-1)
        own = by_depth.gather(-1, y.expand(3, -1)[..., None])[..., 0]
        each = (before.depth_log_probs.double()[:, None] + own).logsumexp(0)
        return -float(each.sum()) + 2 * log_factor**2

    best = optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded").x
    assert np.log(factor) == pytest.approx(best, abs=1e-4)


def test_few_rows_that_are_all_right_do_not_make_it_sure():
    made = model(ub.Categorical(3), 3)
    held = rows(4, classes=True)
    right = made.predict(torch.from_numpy(held.x)).classes.numpy()
    factor = calibrate(
        HeldOutPredictions([made], Scalings(NO_SCALING, None), held._replace(y=right))
    )
    assert 0.2 < factor < 1


def test_what_cannot_be_changed_stays():
    scalings = Scalings(NO_SCALING, None)
    fixed = model(ub.Gaussian(ub.likelihoods.FixedNoise(0.5)), 1)
    targets = Scalings(NO_SCALING, Scaling(np.zeros(1), np.ones(1)))
    assert calibrate(HeldOutPredictions([fixed], targets, rows())) == 1
    custom = ub.UDN(
        ub.CustomLayers(
            lambda depth: torch.nn.Linear(3, 3),
            lambda depth: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()),
        ),
        ub.Categorical(3),
    )
    assert calibrate(HeldOutPredictions([custom], scalings, rows(classes=True))) == 1
    none = rows(classes=True)
    none = WeightedRows(none.x[:0], none.y[:0], none.weights[:0])
    assert calibrate(HeldOutPredictions([model(ub.Categorical(3), 3)], scalings, none)) == 1


def test_golden_sections_find_the_peak():
    assert _highest(lambda t: -((t - 0.7) ** 2), -3, 3) == pytest.approx(0.7, abs=1e-5)


def test_intervals_hold_what_they_say():
    X, y = make_friedman1(1400, noise=1.0, random_state=0)
    options = {"random_state": 0, "epochs": 60, "width": 32}
    shares = {}
    for calibrated in (True, False):
        fitted = UDNRegressor(**options, calibrate=calibrated).fit(X[:350], y[:350])
        low, high = fitted.predict_quantiles(X[350:], [0.05, 0.95])
        shares[calibrated] = np.mean((low <= y[350:]) & (y[350:] <= high))
    assert 0.84 < shares[True] < 0.96
    assert shares[False] < shares[True]  # it takes what it has learnt by heart for less noise


def test_probabilities_are_better_calibrated():
    X, y = make_classification(1800, 12, n_informative=6, flip_y=0.2, random_state=0)
    scores = {}
    for calibrated in (True, False):
        fitted = UDNClassifier(
            random_state=0, epochs=30, width=32, calibrate=calibrated, select="score"
        ).fit(X[:450], y[:450])
        probs = fitted.predict_proba(X[450:])
        scores[calibrated] = np.log(probs[np.arange(1350), y[450:]]).mean()
    assert scores[True] > scores[False]
