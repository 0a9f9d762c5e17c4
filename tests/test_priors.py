"""Priors are normalised and what SciPy says they are."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

import unbounded as ub
from unbounded.priors import squared_norms


@pytest.mark.parametrize(
    "prior",
    [
        ub.PoissonDepth(0.5),
        ub.PoissonDepth(40.0),
        ub.GeometricDepth(0.3),
        ub.UniformDepth(12),
    ],
    ids=str,
)
def test_depth_priors_are_normalised(prior):
    depths = torch.arange(-2, 400)
    log_prob = prior.log_prob(depths)
    assert (log_prob[:3] == -torch.inf).all()
    assert torch.logsumexp(log_prob, 0).item() == pytest.approx(0, abs=1e-10)


@given(st.floats(0.01, 30))
def test_a_layer_costs_what_it_is_said_to(nats):
    prior = ub.GeometricDepth.priced(nats)
    steps = prior.log_prob(torch.arange(1, 6)).diff()
    assert steps.tolist() == pytest.approx([-nats] * 4, rel=1e-3)
    assert float(prior.log_prob(torch.tensor(1))) == pytest.approx(math.log(prior.prob))


def test_a_price_is_positive_and_finite():
    for nats in (0.0, -1.0, 31.0, math.nan):
        with pytest.raises(ValueError, match="nats must be positive and at most 30"):
            ub.GeometricDepth.priced(nats)


def test_depth_priors_against_scipy():
    depths = torch.arange(1, 50)
    count = depths.numpy() - 1
    np.testing.assert_allclose(
        ub.PoissonDepth(3.5).log_prob(depths), scipy.stats.poisson.logpmf(count, 3.5), rtol=1e-12
    )
    np.testing.assert_allclose(
        ub.GeometricDepth(0.2).log_prob(depths), scipy.stats.geom.logpmf(count + 1, 0.2), rtol=1e-12
    )
    uniform = scipy.stats.randint(1, 31).logpmf(count + 1)
    np.testing.assert_allclose(ub.UniformDepth(30).log_prob(depths), uniform, rtol=1e-12)


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_weight_kl_against_torch_distributions(scale, posterior_scale):
    means = [torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    kl = ub.GaussianWeights(scale, posterior_scale).kl(means)
    for value, mean in zip(kl, means, strict=True):
        q, p = Normal(mean, posterior_scale), Normal(torch.zeros_like(mean), scale)
        torch.testing.assert_close(value, kl_divergence(q, p).sum())


def test_weight_kl_is_the_paper_s_by_default():
    nu = torch.randn(7, 2)
    torch.testing.assert_close(ub.GaussianWeights().kl([nu])[0], nu.square().sum() / 2)


def test_weight_prior_density_is_normalised():
    scale = 0.7
    grid = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    density = torch.stack([ub.GaussianWeights(scale).log_prob(x[None]) for x in grid]).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-9)


def test_squared_norms_and_their_gradient():
    tensors = [torch.randn(n, n, dtype=torch.float64, requires_grad=True) for n in (1, 3, 40)]
    weights = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    result = squared_norms(tensors)
    expected = torch.stack([t.square().sum() for t in tensors])
    torch.testing.assert_close(result, expected)
    ours = torch.autograd.grad(result @ weights, tensors)
    theirs = torch.autograd.grad(expected @ weights, tensors)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(squared_norms(tensors), expected.detach())


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_bad_arguments(value):
    with pytest.raises(ValueError, match="rate must be a positive"):
        ub.PoissonDepth(value)
    with pytest.raises(ValueError, match="scale must be a positive"):
        ub.GaussianWeights(value)
    with pytest.raises(ValueError, match="prob must be strictly between 0 and 1"):
        ub.GeometricDepth(value)


def test_a_bounded_prior_goes_with_a_bounded_family():
    with pytest.raises(ValueError, match="no mass beyond depth 10"):
        ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2), depth_prior=ub.UniformDepth(10))
    with pytest.raises(ValueError, match="reaches depth 11"):
        ub.UDN(
            ub.Dense(2, 4, 2),
            ub.Categorical(2),
            depth=ub.FiniteDepth(11),
            depth_prior=ub.UniformDepth(10),
        )
    ub.UDN(
        ub.Dense(2, 4, 2),
        ub.Categorical(2),
        depth=ub.FiniteDepth(10),
        depth_prior=ub.UniformDepth(10),
    )
