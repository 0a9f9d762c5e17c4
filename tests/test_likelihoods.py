"""Likelihoods: one contract for all, SciPy as the oracle, mixtures against integrals."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unbounded as ub
from unbounded.likelihoods import (
    BalancedGaussian,
    FixedNoise,
    InputNoise,
    LearntNoise,
    Likelihood,
)

DEPTH, BATCH = 4, 9


class Laplace(Likelihood):
    """A user's own: one small class."""

    def log_prob(self, outputs, y):
        return -(outputs[..., 0] - y).abs() - math.log(2)


def learnt() -> LearntNoise:
    noise = LearntNoise(0.4, num_targets=2)
    noise.log_scale.data += torch.tensor([0.1, -0.3])
    return noise


def labels(count):
    return torch.randint(0, count, (BATCH,))


CASES = {
    "categorical": (lambda: ub.Categorical(3), 3, lambda: labels(3)),
    "bernoulli": (lambda: ub.Bernoulli(), 1, lambda: labels(2)),
    "gaussian-fixed": (lambda: ub.Gaussian(FixedNoise(0.3)), 1, lambda: torch.randn(BATCH, 1)),
    "gaussian-learnt": (lambda: ub.Gaussian(learnt()), 2, lambda: torch.randn(BATCH, 2)),
    "gaussian-input": (lambda: ub.Gaussian(InputNoise()), 2, lambda: torch.randn(BATCH, 1)),
    "user": (Laplace, 1, lambda: torch.randn(BATCH)),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request):
    make, outputs, targets = request.param
    likelihood, y = make().double(), targets()
    y = y.double() if y.is_floating_point() else y
    return likelihood, torch.randn(DEPTH, BATCH, outputs, dtype=torch.float64), y


def scipy_log_prob(likelihood, outputs, y):
    """log p(y; Ω) of one row of one depth by SciPy."""
    o = outputs.numpy()
    if isinstance(likelihood, ub.Categorical):
        return float(np.log(np.exp(o)[y] / np.exp(o).sum()))
    if isinstance(likelihood, ub.Bernoulli):
        return float(scipy.stats.bernoulli.logpmf(int(y), 1 / (1 + math.exp(-o[0]))))
    if isinstance(likelihood, Laplace):
        return float(scipy.stats.laplace.logpdf(float(y), o[0]))
    noise = likelihood.noise
    if isinstance(noise, InputNoise):
        return float(
            scipy.stats.norm.logpdf(float(y), o[0], noise.floor + math.log1p(math.exp(o[1])))
        )
    scale = noise.scale if isinstance(noise, FixedNoise) else noise.log_scale.detach().exp().numpy()
    return float(scipy.stats.norm.logpdf(y.numpy(), o, scale).sum())


def test_log_prob_against_scipy(case):
    likelihood, outputs, y = case
    result = likelihood.log_prob(outputs, y)
    assert result.shape == (DEPTH, BATCH)
    for depth in range(DEPTH):
        for row in range(BATCH):
            expected = scipy_log_prob(likelihood, outputs[depth, row], y[row])
            assert result[depth, row].item() == pytest.approx(expected, rel=1e-9)


def test_mixture_is_the_paper_s_predictive(case):
    """log Σ_ℓ q(ℓ) p(y; Ω_ℓ), against the plain sum."""
    likelihood, outputs, y = case
    log_q = torch.randn(DEPTH, dtype=torch.float64).log_softmax(0)
    prediction = likelihood.predict(outputs, log_q)
    plain = (log_q.exp()[:, None] * likelihood.log_prob(outputs, y).exp()).sum(0).log()
    torch.testing.assert_close(prediction.log_prob(y), plain)
    torch.testing.assert_close(prediction.log_prob_by_depth(y), likelihood.log_prob(outputs, y))


def test_mixture_survives_where_probabilities_underflow():
    outputs = torch.tensor([[[2000.0, 0.0]], [[1500.0, 0.0]]])
    log_q = torch.tensor([0.5, 0.5]).log()
    prediction = ub.Categorical(2).predict(outputs, log_q)
    expected = -1500 + math.log(0.5)
    assert prediction.log_prob(torch.tensor([1])).item() == pytest.approx(expected, rel=1e-6)


def test_gradient_of_log_prob(case):
    likelihood, outputs, y = case
    outputs.requires_grad_()
    assert torch.autograd.gradcheck(lambda o: likelihood.log_prob(o, y), (outputs,))


def test_score_is_a_number_a_row(case):
    likelihood, outputs, y = case
    log_q = torch.zeros(DEPTH, dtype=torch.float64).log_softmax(0)
    prediction = likelihood.predict(outputs, log_q)
    rows = likelihood.score(prediction, y)
    assert rows.shape == (BATCH,)
    score = likelihood.finish_score(rows.double().mean().item())
    if likelihood.score_name == "accuracy":
        classes = prediction.probs.argmax(1)
        assert score == pytest.approx((classes == y).double().mean().item())
        torch.testing.assert_close(prediction.probs.sum(1), torch.ones(BATCH).double())
        torch.testing.assert_close(prediction.classes, classes)
    elif likelihood.score_name == "rmse":
        expected = (prediction.mean - y).square().mean().sqrt()
        assert score == pytest.approx(expected.item())
    else:
        assert score == pytest.approx(prediction.log_prob(y).mean().item())


def test_class_probabilities_sum_to_one_at_each_depth():
    for likelihood, size in ((ub.Categorical(4), 4), (ub.Bernoulli(), 1)):
        prediction = likelihood.predict(torch.randn(3, 5, size), torch.zeros(3).log_softmax(0))
        by_depth = prediction.log_probs_by_depth
        assert by_depth.shape == (3, 5, max(size, 2))
        torch.testing.assert_close(by_depth.exp().sum(-1), torch.ones(3, 5))
        assert torch.equal(prediction.classes_by_depth, by_depth.argmax(-1))


@settings(max_examples=5)  # each integrates numerically
@given(st.integers(0, 10_000))
def test_gaussian_mixture_moments_and_quantiles(seed):
    """Mean, variance split, distribution and quantiles against numerical integration."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, 1, 2, dtype=torch.float64, generator=generator)
    log_q = torch.randn(3, dtype=torch.float64, generator=generator).log_softmax(0)
    prediction = ub.Gaussian(InputNoise(0.05)).predict(outputs, log_q)

    def density(t):
        y = torch.tensor([[t]], dtype=torch.float64)
        return prediction.log_prob(y).exp().item()

    grid = np.linspace(-14, 14, 4001)
    values = np.array([density(t) for t in grid])
    mean = scipy.integrate.simpson(grid * values, x=grid)
    variance = scipy.integrate.simpson((grid - mean) ** 2 * values, x=grid)
    assert prediction.mean.item() == pytest.approx(mean, abs=1e-5)
    assert prediction.variance.item() == pytest.approx(variance, abs=1e-4)
    torch.testing.assert_close(
        prediction.variance, prediction.noise_variance + prediction.depth_variance
    )
    levels = [0.05, 0.5, 0.9]
    quantiles = prediction.quantile(levels)
    assert quantiles.shape == (3, 1, 1)
    torch.testing.assert_close(
        prediction.cdf(quantiles)[:, 0, 0], torch.tensor(levels, dtype=torch.float64)
    )
    below = grid <= quantiles[0].item()
    area = scipy.integrate.trapezoid(values[below], grid[below])
    assert area == pytest.approx(0.05, abs=0.01)


def test_depth_variance_is_what_depths_disagree_by():
    outputs = torch.tensor([[[1.0]], [[3.0]]])
    prediction = ub.Gaussian(FixedNoise(0.5)).predict(outputs, torch.tensor([0.5, 0.5]).log())
    assert prediction.mean.item() == pytest.approx(2)
    assert prediction.depth_variance.item() == pytest.approx(1)
    assert prediction.noise_variance.item() == pytest.approx(0.25)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1])
def test_bad_quantile_level(level):
    prediction = ub.Gaussian().predict(torch.zeros(1, 1, 1), torch.zeros(1))
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        prediction.quantile(level)


@pytest.mark.parametrize(
    ("likelihood", "targets", "message"),
    [
        (ub.Categorical(3), torch.tensor([0, 3]), r"must be in 0 … 2, got 0 … 3"),
        (ub.Categorical(3), torch.tensor([-1, 1]), r"must be in 0 … 2, got -1 … 1"),
        (ub.Categorical(3), torch.tensor([0.5, 1]), "must be integers"),
        (ub.Categorical(3), torch.tensor([math.nan, 1]), "must be finite"),
        (ub.Categorical(3), torch.zeros(2, 2), r"must have shape \(rows,\)"),
        (ub.Bernoulli(), torch.tensor([0, 2]), r"must be in 0 … 1, got 0 … 2"),
        (ub.Gaussian(), torch.tensor([0.0, math.inf]), "the first at index"),
        (ub.Gaussian(), torch.zeros(2, 2, 2), "must have shape"),
    ],
)
def test_bad_targets(likelihood, targets, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check_targets(targets)


def test_bad_heads():
    with pytest.raises(ValueError, match="heads must give 3 numbers"):
        ub.Categorical(3).check_outputs(torch.zeros(1, 2, 4), torch.zeros(2).long())
    with pytest.raises(ValueError, match="heads must give 1 number"):
        ub.Bernoulli().check_outputs(torch.zeros(1, 2, 2), torch.zeros(2).long())
    with pytest.raises(ValueError, match="heads must give 4 numbers a row for 2 targets"):
        ub.Gaussian(InputNoise()).check_outputs(torch.zeros(1, 2, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"LearntNoise\(num_targets=3\)"):
        ub.Gaussian(LearntNoise(num_targets=2)).check_outputs(
            torch.zeros(1, 2, 3), torch.zeros(2, 3)
        )


@pytest.mark.parametrize("scale", [0, -1, math.nan])
def test_bad_noise(scale):
    with pytest.raises(ValueError, match="scale must be a positive"):
        FixedNoise(scale)
    with pytest.raises(ValueError, match="scale must be a positive"):
        LearntNoise(scale)


def test_one_target_may_have_no_axis_of_its_own():
    """`(batch,)` means `(batch, 1)`, also where nobody has checked the targets before."""
    model = ub.UDN(ub.Dense(2, 4, 1), ub.Gaussian())
    x, y = torch.randn(5, 2), torch.randn(5)
    torch.testing.assert_close(
        model.elbo(x, y, num_data=5).elbo, model.elbo(x, y[:, None], num_data=5).elbo
    )
    prediction = model.predict(x)
    torch.testing.assert_close(prediction.log_prob(y), prediction.log_prob(y[:, None]))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_balanced_slopes_of_several_targets(beta):
    """Each target's slopes are weighed by its own σ^2β; values stay."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    balanced = BalancedGaussian(beta, num_targets=2).double()
    with torch.no_grad():
        balanced.noise.log_scale.copy_(torch.tensor([0.3, -0.7]))
    means, scales = balanced.noise.split(outputs)
    each = torch.distributions.Normal(means, scales).log_prob(y)
    value = balanced.log_prob(outputs, y)
    torch.testing.assert_close(value, each.sum(-1))
    weights = scales.detach() ** (2 * beta)
    weights = weights / weights.mean(1, keepdim=True)
    (slope,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
    (wanted,) = torch.autograd.grad((weights * each).sum(), outputs)
    torch.testing.assert_close(slope, wanted)
    if beta == 1.0:  # least squares, target by target
        pull = slope[..., :2] / (y - means.detach())
        torch.testing.assert_close(pull, pull[:, :1].expand_as(pull))


def test_balanced_gaussians_are_rebuilt_from_files(tmp_path):
    layers = ub.PreNormDense(2, 8, 4)
    model = ub.UDN(layers, BalancedGaussian(0.75, 0.01, num_targets=2), ub.FixedDepth(2))
    with torch.no_grad():
        model.likelihood.noise.log_scale.copy_(torch.tensor([0.5, -1.0]))
    ub.save(model, tmp_path / "m.udn")
    again = ub.load(tmp_path / "m.udn")
    assert again.likelihood.config() == {"beta": 0.75, "floor": 0.01, "num_targets": 2}
    assert torch.equal(again.likelihood.noise.log_scale, model.likelihood.noise.log_scale)
    x = torch.randn(5, 2)
    assert torch.equal(ub.predict(again, x).variance, ub.predict(model, x).variance)
