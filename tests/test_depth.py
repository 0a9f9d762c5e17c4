"""Depth families: one contract for all, SciPy as the oracle, and the whole of Theorem 1."""

import math
from unittest import mock

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from unbounded.depth import (
    FiniteDepth,
    FixedDepth,
    TruncatedConwayMaxwell,
    TruncatedNormal,
    TruncatedPoisson,
)
from unbounded.depth.base import NO_MASS
from unbounded.depth.rates import poisson_quantile

FAMILIES = {
    "poisson-tiny": lambda: TruncatedPoisson(1e-4),
    "poisson": lambda: TruncatedPoisson(1.0),
    "poisson-89": lambda: TruncatedPoisson(89.0),  # single precision overflows here if naive
    "poisson-large": lambda: TruncatedPoisson(3000.0, quantile=0.99),
    "poisson-limit": lambda: TruncatedPoisson(20.0, limit=7),
    "concentrated": lambda: TruncatedConwayMaxwell(5.0, 4.0),
    "concentrated-tiny": lambda: TruncatedConwayMaxwell(1e-4, 4.0),
    "concentrated-large": lambda: TruncatedConwayMaxwell(3000.0, 2.5, quantile=0.99),
    "spread": lambda: TruncatedConwayMaxwell(20.0, 0.5, limit=7),
    "normal": lambda: TruncatedNormal(4.2, 1.3),
    "normal-wide": lambda: TruncatedNormal(-3.0, 40.0, quantile=0.9),
    "normal-limit": lambda: TruncatedNormal(20.0, 3.0, limit=7),
    "fixed": lambda: FixedDepth(5),
    "finite": lambda: FiniteDepth(6),
}
SCORES = TruncatedNormal.scores
RATES = st.floats(math.log(1e-4), math.log(1e5)).map(math.exp)


def quantile_of(rate, quantile):
    return int(poisson_quantile(torch.tensor(rate, dtype=torch.float64), quantile))


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request):
    return request.param()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract(family, dtype):
    family = family.to(dtype)
    m = family.max_depth()
    log_probs = family.log_probs()
    assert isinstance(m, int)
    assert m >= 1
    assert log_probs.shape == (m,)
    assert log_probs.dtype == dtype
    probs = log_probs.detach().double().exp()
    assert probs.sum().item() == pytest.approx(1, abs=1e-4 if dtype == torch.float32 else 1e-9)
    assert probs[m - 1] > 0
    first = family.first_depth()
    assert (probs[: first - 1] == 0).all()
    depths = torch.arange(1, m + 1).double()
    assert family.mean() == pytest.approx((probs @ depths).item(), rel=1e-4)
    assert probs[family.mode() - 1] == pytest.approx(probs.max().item(), rel=1e-6)
    assert isinstance(family.mode(), int)


def test_members_move_with_their_parameters(family):
    """Condition (3) of Definition 1: λ is continuous, and an optimiser can move it."""
    parameters = list(family.parameters())
    if not parameters:
        assert isinstance(family, FixedDepth)
        return
    log_probs = family.log_probs()
    weights = torch.linspace(0, 1, log_probs.numel())
    loss = (log_probs.exp() * weights).sum()
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in parameters)
    before = family.mean()
    with torch.no_grad():
        for p in parameters:
            p += 0.05 * torch.linspace(-1, 1, p.numel()) if p.dim() else 0.05
    if family.max_depth() > 1 and getattr(family, "limit", None) is None:
        assert family.mean() > before


def test_gradient_in_the_parameters_against_finite_differences(family):
    """What autograd says of log q(ℓ) in λ is what log q(ℓ) does, for one member and for several."""
    family = family.double()
    named = dict(family.named_parameters())
    if not named:
        return
    size = max(3, min(family.max_depth(), 40)) if family.bound is None else family.bound

    def log_probs(*values):
        at = {**family.numbers(), **dict(zip(named, values, strict=True))}
        others = {
            name: t.expand(values[0].shape[: values[0].dim() - t.dim()] + t.shape)
            for name, t in at.items()
            if name not in named
        }
        return family.scores({**at, **others}, size).log_softmax(-1)

    one = [p.detach().clone().requires_grad_() for p in named.values()]
    assert torch.autograd.gradcheck(log_probs, one)
    many = [
        torch.stack([p + 0.3 * index for index in range(3)]).detach().requires_grad_() for p in one
    ]
    assert torch.autograd.gradcheck(log_probs, many)
    # And the gradient of `log_probs` itself, with its support and in the family's parameters.
    own = family.log_probs()
    direction = torch.randn(own.shape, dtype=torch.float64)
    found = torch.autograd.grad(own @ direction, list(named.values()))
    again = [p.detach().clone().requires_grad_() for p in named.values()]
    at = {**family.numbers(), **dict(zip(named, again, strict=True))}
    expected = family.log_probs_at(at, family.max_depth())
    torch.testing.assert_close(own, expected)
    for one_grad, other in zip(
        found, torch.autograd.grad(expected @ direction, again), strict=True
    ):
        torch.testing.assert_close(one_grad, other)


def test_many_members_are_each_as_if_alone(family):
    """λ with leading axes: every member has its own support, and `NO_MASS` beyond it."""
    family = family.double()
    size = family.max_depth() + 3
    lead = (2, 3)
    at = {name: t.detach().expand(*lead, *t.shape).clone() for name, t in family.numbers().items()}
    if "raw_rate" in at:
        at["raw_rate"] -= torch.arange(6.0).view(lead) / 3
    log_q, ends = family.log_probs_at(at, size), family.end(at, size)
    assert log_q.shape == (*lead, size)
    assert ends.shape == lead
    for index in np.ndindex(*lead):
        for name, own in family.numbers().items():
            own.data.copy_(at[name][index])
        m = family.max_depth()
        assert int(ends[index]) == m
        torch.testing.assert_close(log_q[index][:m], family.log_probs().detach())
        assert (log_q[index][m:] <= NO_MASS / 2).all()
        assert torch.isfinite(log_q[index]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [1e-4, 1e-2, 0.7, 1, 5, 37.5, 88, 89, 92, 150, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.999])
def test_truncated_poisson_against_scipy(rate, quantile, dtype):
    q = TruncatedPoisson(rate, quantile).to(dtype)
    rate = q.rate  # as rounded to the parameter's precision
    m = q.max_depth()
    assert m - 1 == int(scipy.stats.poisson.ppf(quantile, rate))
    count = np.arange(m)
    expected = scipy.stats.poisson.logpmf(count, rate) - scipy.stats.poisson.logcdf(m - 1, rate)
    # Rounding of the result to the dtype is all that is allowed.
    tolerance = 2e-7 if dtype == torch.float32 else 1e-10
    np.testing.assert_allclose(
        q.log_probs().detach().double().numpy(), expected, rtol=tolerance, atol=tolerance
    )


@given(RATES, st.floats(0.5, 0.999999))
def test_quantile_against_scipy(rate, quantile):
    assert quantile_of(rate, quantile) == int(scipy.stats.poisson.ppf(quantile, rate))


@given(RATES)
def test_theorem_bounds(rate):
    """Theorem 1, (7): λ − ln 2 ≤ m ≤ 1.3 λ + 5, where m counts from 0 as in the paper."""
    q = TruncatedPoisson(rate).double()
    m = q.max_depth() - 1
    assert q.rate - math.log(2) <= m <= 1.3 * q.rate + 5


def test_theorem_bounds_at_the_integers_of_the_proof():
    for k in range(1, 71):
        assert quantile_of(k, 0.95) <= 1.3 * (k - 1) + 5


def test_steps_of_the_proof_that_fail_as_written():
    """The proof says 0.96^70 < 0.05 and n + 0.5 − ln 2 > n; neither is true, the claims are."""
    assert 0.96**70 > 0.05
    assert 0.5 - math.log(2) < 0


@given(st.integers(0, 100_000), st.floats(0.5, 0.99))
def test_theorem_mode(n, quantile):
    """Theorem 1, (8): n is a mode of the truncated Poisson(n + ½): any depth can be the mode."""
    q = TruncatedPoisson(n + 0.5, quantile).double()
    assert q.mode() == n + 1
    log_probs = q.log_probs()
    assert log_probs[n].item() == pytest.approx(log_probs.max().item(), abs=1e-9)


@given(st.floats(0.01, 300))
def test_theorem_continuity(rate):
    """Theorem 1, (9): inside a support, log q is smooth in λ; its derivative is (k − E[k])/λ."""
    q = TruncatedPoisson(rate).double()
    log_probs = q.log_probs()
    direction = torch.randn(log_probs.shape, dtype=torch.float64)
    (grad,) = torch.autograd.grad(log_probs @ direction, q.raw_rate)
    probs, count = log_probs.detach().exp(), torch.arange(len(log_probs)).double()
    by_rate = (count - probs @ count) / q.rate
    softplus_slope = torch.sigmoid(q.raw_rate.detach())
    expected = (by_rate @ direction) * softplus_slope
    torch.testing.assert_close(grad, expected, rtol=1e-7, atol=1e-9)


@given(st.floats(0.01, 1e4), st.floats(1.0, 1.2))
def test_support_grows_with_the_rate(rate, factor):
    assert quantile_of(rate * factor, 0.95) >= quantile_of(rate, 0.95)


def test_no_cap_on_depth():
    assert TruncatedPoisson(1e7).max_depth() == 1 + int(scipy.stats.poisson.ppf(0.95, 1e7))


def test_limit_is_a_guard():
    q = TruncatedPoisson(50.0, limit=10)
    assert q.max_depth() == 10
    assert q.log_probs().shape == (10,)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_bad_rate(rate):
    with pytest.raises(ValueError, match="rate must be a positive finite number, got"):
        TruncatedPoisson(rate)


@pytest.mark.parametrize("quantile", [0.49, 1.0, -1, math.nan])
def test_bad_quantile(quantile):
    with pytest.raises(ValueError, match=r"quantile must be in \[0.5, 1\), got"):
        TruncatedPoisson(1.0, quantile)


@pytest.mark.parametrize("family", [FixedDepth, FiniteDepth])
@pytest.mark.parametrize("depth", [0, -3, 1.5])
def test_bad_depth(family, depth):
    with pytest.raises(ValueError, match="must be an integer of at least 1, got"):
        family(depth)


def test_a_rate_that_is_lost_says_so():
    q = TruncatedPoisson(1.0)
    q.raw_rate.data.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="diverged"):
        q.max_depth()


@given(RATES, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_concentration_one_is_the_papers_family(rate, quantile):
    ours = TruncatedConwayMaxwell(rate, 1.0, quantile).double()
    paper = TruncatedPoisson(rate, quantile).double()
    assert ours.max_depth() == paper.max_depth()
    torch.testing.assert_close(ours.log_probs(), paper.log_probs(), rtol=1e-6, atol=1e-6)


@given(RATES, st.floats(0.2, 20.0), st.sampled_from([0.5, 0.95, 0.999]))
def test_concentrated_quantile_against_a_plain_sum(rate, concentration, quantile):
    q = TruncatedConwayMaxwell(min(rate, 300.0), concentration, quantile).double()
    rate, m = q.rate, q.max_depth() - 1
    counts = np.arange(0, 20_000, dtype=float)
    log_terms = concentration * (counts * math.log(rate) - scipy.special.gammaln(counts + 1))
    terms = np.exp(log_terms - log_terms.max())
    cdf = terms.cumsum() / terms.sum()
    assert cdf[m] >= quantile - 1e-12
    assert m == 0 or cdf[m - 1] < quantile + 1e-12


@given(st.integers(0, 400), st.floats(0.3, 12.0))
def test_every_depth_is_the_mode_of_a_concentrated_member(n, concentration):
    q = TruncatedConwayMaxwell(n + 0.5, concentration).double()
    assert q.mode() == n + 1
    assert int(q.log_probs().argmax()) == n
    wide, narrow = (TruncatedConwayMaxwell(n + 0.5, c).double() for c in (0.5, 8.0))
    assert narrow.max_depth() <= wide.max_depth()


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (1.0, 0.0), (1.0, math.inf), (1.0, 1.0, 0.4)])
def test_concentrated_members_are_checked(arguments):
    with pytest.raises(ValueError, match="must be"):
        TruncatedConwayMaxwell(*arguments)


# TruncatedNormal


def normal_probs(place, spread, quantile, size):
    """[min(F(ℓ), δ) − F(ℓ−1)]₊/δ of a normal that is cut at ½, by SciPy."""
    edges = np.arange(size + 1) + 0.5
    tails = np.exp(
        scipy.stats.norm.logsf(edges, place, spread) - scipy.stats.norm.logsf(0.5, place, spread)
    )
    return np.clip(np.minimum(1 - tails[1:], quantile) - (1 - tails[:-1]), 0, None) / quantile


@given(
    place=st.floats(-20, 60),
    spread=st.floats(0.01, 30),
    quantile=st.sampled_from([0.5, 0.9, 0.99, 1 - 1e-6]),
)
def test_normal_agrees_with_scipy(place, spread, quantile):
    family = TruncatedNormal(place, spread, quantile).double()
    found = family.log_probs().exp().detach().numpy()
    expected = normal_probs(family.place, family.spread, quantile, len(found))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    # The support is as long as it must be: nothing is left beyond it, something in its last depth.
    assert (
        normal_probs(family.place, family.spread, quantile, len(found) + 3)[len(found) :].max()
        < 1e-9
    )


@pytest.mark.parametrize("moved", ["place", "spread"])
def test_nothing_jumps_where_a_layer_is_born(moved):
    """q(ℓ) and 𝓛 change as little across a birth as anywhere else; with a Poisson they jump."""

    def bounds(members):
        values, ends = [], []
        for family in members:
            log_q = family.log_probs_at(
                {k: v.double() for k, v in family.numbers().items()}, 40
            ).detach()
            worth = 8 * torch.arange(1, 41).double().sqrt()  # what each depth explains
            values.append(float((log_q.exp() * (worth - log_q)).sum()))
            ends.append(family.max_depth())
        return np.abs(np.diff(values)).max(), len(set(ends))

    steps = np.linspace(3, 9, 2401)
    if moved == "place":
        members = [TruncatedNormal(step, 1.0).double() for step in steps]
    else:
        members = [TruncatedNormal(3.0, step / 3).double() for step in steps]
    largest, sizes = bounds(members)
    jump, _ = bounds([TruncatedPoisson(step).double() for step in steps])
    assert sizes > 4
    assert largest < 0.02
    assert jump > 10 * largest


def test_normal_extremes():
    for place, spread in ((-1e6, 1e-3), (1e4, 1e-3), (-50, 3), (5, 100)):
        family = TruncatedNormal(place, spread)
        log_probs = family.log_probs()
        log_probs.exp().sum().backward()
        assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)
        assert all(torch.isfinite(p.grad) for p in family.parameters())
    family = TruncatedNormal(4.0, 1.0)
    family.put(2.5, torch.tensor(0.25))
    assert (family.place, family.spread) == pytest.approx((2.5, 0.25))
    for wrong in (
        {"place": math.nan},
        {"spread": 0.0},
        {"quantile": 1.0},
        {"limit": 0},
        {"limit": 2.5},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TruncatedNormal(**wrong)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_without_gradients_log_q_is_that_of_the_member_as_it_is(family):
    q = family()
    with torch.no_grad():
        first = q.log_probs()
        expected = first.clone()
        first.zero_()  # a copy of its own
        assert torch.equal(q.log_probs(), expected)
    assert torch.equal(q.log_probs().detach(), expected)
    with torch.inference_mode():
        q.log_probs()
    weight = torch.ones_like(first, requires_grad=True)
    with torch.no_grad():
        kept = q.log_probs()
    (weight * kept).sum().backward()  # no tensor of inference mode
    for parameter in q.parameters():
        with torch.no_grad():
            parameter += 0.5 * torch.arange(1, parameter.numel() + 1).view(parameter.shape)
            fresh = family()
            fresh.load_state_dict(q.state_dict())
            assert torch.equal(q.log_probs(), fresh.log_probs())
    with torch.no_grad():
        assert q.double().log_probs().dtype == torch.float64 or not list(q.parameters())


def test_log_q_is_found_once_for_a_member():
    q = TruncatedNormal(4.0, 2.0)
    with mock.patch.object(TruncatedNormal, "scores", autospec=True, side_effect=SCORES) as asked:
        with torch.no_grad():
            for _ in range(3):
                q.log_probs()
            assert asked.call_count == 1
            q.mu += 1
            q.log_probs()
            assert asked.call_count == 2
        q.log_probs()  # with gradients
        assert asked.call_count == 3


@pytest.mark.parametrize("family", [FixedDepth(3), FiniteDepth(4)])
def test_who_knows_its_depth_has_nothing_read(family):
    with torch.no_grad():
        assert family.to("meta").log_probs().shape == (family.max_depth(),)


def test_a_truncation_that_is_changed_is_noticed():
    q, wide = TruncatedNormal(4.0, 2.0, quantile=0.9), TruncatedNormal(4.0, 2.0, quantile=0.99)
    with torch.no_grad():
        q.log_probs()
        q.quantile = 0.99
        assert torch.equal(q.log_probs(), wide.log_probs())
