"""The ELBO: against the exact evidence, by its parts, under minibatches, and its gradient."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import unbounded as ub
from helpers import classes, classifier, numbers
from unbounded import elbo
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedPoisson
from unbounded.likelihoods import InputNoise, LearntNoise
from unbounded.steps.objective import Gradient
from unbounded.steps.options import StepOptions

DOUBLE = torch.float64


def gradient_of(model, x, y, num_data, weights=None, *, closed_form=True):
    """Terms and gradient of a batch, by closed forms where there are some or by autograd alone."""
    gradient = Gradient(model, num_data, StepOptions())
    gradient.closed_form &= closed_form
    gradient.add(x, y, weights)
    gradient.finish()
    return gradient


def random_terms(seed, depth, batch, extra=0):
    """log q, log-likelihoods, log prior and KLs of hand-made tensors: no network in sight."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=DOUBLE, generator=generator)

    return (
        draw(depth).log_softmax(0),
        draw(depth, batch),
        draw(depth).log_softmax(0),
        draw(depth + extra).square(),
        draw(depth).square(),
    )


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 6))
def test_elbo_is_a_lower_bound_of_the_evidence(seed, depth, batch):
    """With the weights frozen: ELBO ≤ logsumexp(log p(ℓ) + log p(y | ℓ))."""
    log_q, log_lik, log_prior, _, _ = random_terms(seed, depth, batch)
    nothing = torch.zeros(depth, dtype=DOUBLE)
    terms = elbo.elbo_terms(log_q, log_lik, log_prior, nothing, nothing, batch)
    assert terms.elbo <= elbo.evidence(log_prior, log_lik.sum(1)) + 1e-9


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 6))
def test_elbo_is_the_evidence_at_the_exact_posterior(seed, depth, batch):
    _, log_lik, log_prior, _, _ = random_terms(seed, depth, batch)
    exact = (log_prior + log_lik.sum(1)).log_softmax(0)
    nothing = torch.zeros(depth, dtype=DOUBLE)
    terms = elbo.elbo_terms(exact, log_lik, log_prior, nothing, nothing, batch)
    torch.testing.assert_close(terms.elbo, elbo.evidence(log_prior, log_lik.sum(1)))


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_terms_against_the_paper_s_double_sum(seed, depth, batch, extra):
    """The final equation of section 3.1, written out with loops."""
    log_q, log_lik, log_prior, hidden_kl, head_kl = random_terms(seed, depth, batch, extra)
    n = 7 * batch
    expected = 0.0
    for ell in range(depth):
        inner = log_prior[ell] - log_q[ell]
        inner = inner - sum(hidden_kl[k] for k in range(extra + ell + 1)) - head_kl[ell]
        inner = inner + n / batch * sum(log_lik[ell, i] for i in range(batch))
        expected = expected + log_q[ell].exp() * inner
    terms = elbo.elbo_terms(log_q, log_lik, log_prior, hidden_kl, head_kl, n)
    torch.testing.assert_close(terms.elbo, expected)
    torch.testing.assert_close(terms.loss(n), -expected / n)


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_terms_at_once_equal_terms_one_by_one(seed, depth, batch, extra, weighted, cumulative):
    """Value and gradient, so that the closed form cannot drift from the definition."""
    inputs = [t.requires_grad_() for t in random_terms(seed, depth, batch, extra)]
    log_q, log_lik, log_prior, hidden_kl, head_kl = inputs
    weights = torch.rand(batch, dtype=DOUBLE) if weighted else None
    together = elbo.elbo_terms(
        log_q, log_lik, log_prior.detach(), hidden_kl, head_kl, 50, weights, cumulative
    )
    apart = elbo.ElboTerms(
        elbo.expected_log_lik(log_q, log_lik, 50, weights),
        elbo.depth_kl(log_q, log_prior.detach()),
        elbo.weight_kl(log_q, hidden_kl, head_kl, cumulative),
    )
    wanted = (log_q, log_lik, hidden_kl, head_kl)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other)
    ours = torch.autograd.grad(together.loss(50), wanted)
    theirs = torch.autograd.grad(apart.loss(50), wanted)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_a_shared_head_counts_once():
    log_q, _, _, hidden_kl, _ = random_terms(0, 5, 1)
    one = torch.tensor([3.0], dtype=DOUBLE)
    with_head = elbo.weight_kl(log_q, hidden_kl, one)
    without = elbo.weight_kl(log_q, hidden_kl, torch.zeros(1, dtype=DOUBLE))
    assert (with_head - without).item() == pytest.approx(3.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_mean_over_minibatches_is_the_full_batch(weighted):
    x, y = classes(60)
    weights = torch.rand(60) if weighted else None
    model = classifier().double()
    x, weights = x.double(), None if weights is None else weights.double()
    full = model.elbo(x, y, 60, weights)
    parts = [
        model.elbo(
            x[i : i + 12], y[i : i + 12], 60, None if weights is None else weights[i : i + 12]
        )
        for i in range(0, 60, 12)
    ]
    for name in full._fields:
        mean = torch.stack([getattr(part, name) for part in parts]).mean()
        torch.testing.assert_close(mean, getattr(full, name))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_fixed_depth_is_a_plain_network_in_loss_and_gradient(depth):
    """Loss and gradients of FixedDepth(k) are those of k linear-ReLU layers, by hand."""
    x, y = classes(30)
    x = x.double()
    model = classifier(FixedDepth(depth)).double()
    assert list(model.network.heads) == [str(depth)]
    layers: list[nn.Module] = []
    for ell in range(1, depth + 1):
        source = model.network.hidden[str(ell)]
        linear = nn.Linear(source.in_features, source.out_features).double()
        linear.load_state_dict(source.state_dict())
        layers += [linear, nn.ReLU()]
    head = nn.Linear(8, 2).double()
    head.load_state_dict(model.network.heads[str(depth)].state_dict())
    plain = nn.Sequential(*layers, head)
    n = 100
    loss = F.cross_entropy(plain(x), y)
    loss = loss + sum(p.square().sum() for p in plain.parameters()) / (2 * n)
    # The constant −log p(ℓ = k)/n is all that is left of the depth.
    loss = loss - model.depth_prior.log_prob(torch.tensor(depth)) / n
    loss.backward()
    for closed_form in (True, False):
        model.zero_grad()
        gradient = gradient_of(model, x, y, n, closed_form=closed_form)
        torch.testing.assert_close(gradient.loss.detach(), loss.detach())
        ours = [p.grad for p in model.network.parameters()]
        theirs = [p.grad for p in plain.parameters()]
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)


MODELS = {
    "dense": lambda: ub.UDN(ub.Dense(3, 8, 2, init="he"), ub.Categorical(2)),
    "dense-fixed": lambda: ub.UDN(
        ub.Dense(3, 8, 2, init="he"), ub.Categorical(2), depth=FixedDepth(4)
    ),
    "dense-finite": lambda: ub.UDN(
        ub.Dense(3, 8, 2, init="he"), ub.Categorical(2), depth=FiniteDepth(5)
    ),
    "dense-tanh": lambda: ub.UDN(ub.Dense(3, 8, 2, activation="tanh"), ub.Categorical(2)),
    "shared-head": lambda: ub.UDN(ub.Dense(3, 8, 2, shares_head=True), ub.Categorical(2)),
    "residual": lambda: ub.UDN(ub.ResidualDense(3, 8, 2, identity=False), ub.Categorical(2)),
    "bernoulli": lambda: ub.UDN(ub.Dense(3, 8, 1, init="he"), ub.Bernoulli()),
    "cumulative": lambda: ub.UDN(
        ub.Dense(3, 8, 2, init="he"), ub.Categorical(2), cumulative_heads=True
    ),
    "wide-prior": lambda: ub.UDN(
        ub.Dense(3, 8, 2, init="he"), ub.Categorical(2), weight_prior=ub.GaussianWeights(3.0)
    ),
    "gaussian": lambda: ub.UDN(ub.Dense(3, 8, 1, init="he"), ub.Gaussian(LearntNoise(0.5))),
    "gaussian-input": lambda: ub.UDN(ub.Dense(3, 8, 2, init="he"), ub.Gaussian(InputNoise())),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_all_ways_to_the_gradient_agree(make, weighted):
    """Autograd through everything, and closed forms: the same gradient, and the definition's."""
    model = make().double()
    regression = isinstance(model.likelihood, ub.Gaussian)
    x, y = numbers(20) if regression else classes(20)
    x = x.double()
    y = model.likelihood.check_targets(y.double() if regression else y)
    weights = torch.rand(20, dtype=DOUBLE) if weighted else None
    found = []
    for closed_form in (True, False):
        model.zero_grad(set_to_none=True)
        gradient = gradient_of(model, x, y, 77, weights, closed_form=closed_form)
        found.append({name: p.grad for name, p in model.named_parameters()})
        found[-1]["loss"] = gradient.loss.detach()
    model.zero_grad(set_to_none=True)
    model.elbo(x, y, 77, weights).loss(77).backward()
    found.append(
        {name: p.grad for name, p in model.named_parameters()} | {"loss": found[0]["loss"]}
    )
    assert found[0].keys() == found[1].keys() == found[2].keys()
    for name in found[0]:
        assert found[0][name] is not None, name
        for other in found[1:]:
            torch.testing.assert_close(
                found[0][name], other[name], msg=lambda m, n=name: f"{n}: {m}"
            )


def test_gradient_of_the_rate_against_finite_differences():
    """λ's gradient is that of the ELBO as a function of λ, inside one support."""
    x, y = classes(25)
    x = x.double()
    model = classifier(TruncatedPoisson(2.3)).double()
    gradient_of(model, x, y, 25)
    slope = model.depth.raw_rate.grad.item()
    raw, step = model.depth.raw_rate, 1e-6
    losses = []
    for sign in (1, -1):
        raw.data += sign * step
        losses.append(gradient_of(model, x, y, 25).loss.item())
        raw.data -= sign * step
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5)


def test_expected_log_lik_of_certain_predictions_is_zero():
    log_q = torch.tensor([0.25, 0.75]).log()
    assert elbo.expected_log_lik(log_q, torch.zeros(2, 3), 10).item() == 0
    assert elbo.depth_kl(log_q, log_q).item() == pytest.approx(0, abs=1e-7)
    assert elbo.depth_kl(log_q, torch.tensor([0.5, 0.5]).log()).item() == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    )
