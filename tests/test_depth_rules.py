"""λ by coordinate ascent: that it finds the maximum of 𝓛, waits for the young, and can be kept."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded import elbo
from unbounded.depth.base import NO_MASS
from unbounded.engines import Eager, Graphs
from unbounded.steps.depth_rules import _as_grown
from unbounded.steps.objective import Gradient
from unbounded.training import DepthRule, RateAscent, Sharpen, StepOptions


def model_at(rate, prior=1.0):
    return classifier(ub.TruncatedPoisson(rate), depth_prior=ub.PoissonDepth(prior))


def gradient_of(model, x, y, *, closed_form=True, **options):
    """The gradient of all the data as one batch."""
    gradient = Gradient(model, len(x), StepOptions(**options))
    gradient.closed_form &= closed_form
    gradient.add(x, y, None)
    gradient.finish()


def observe(rule, model, log_lik, hidden_kl, num_data, steps=1):
    """Show the rule depths that are worth `log_lik(ℓ)` and layers that cost `hidden_kl`."""
    for _ in range(steps):
        last = model.depth.max_depth()
        rule.reserve(model, last)
        seen = SimpleNamespace(
            posterior=(1, last, None),
            model=model,
            num_data=num_data,
            log_lik=torch.tensor([log_lik(depth) for depth in range(1, last + 1)]),
            hidden_kl=torch.full((last,), float(hidden_kl)),
            head_kl=torch.ones(last),
        )
        rule.update(seen)


def bound(model, rate, log_lik, hidden_kl, num_data):
    """𝓛 as a function of λ with the weights held fixed, term by term."""
    family = ub.TruncatedPoisson(rate)
    depths = range(1, family.max_depth() + 1)
    log_q = family.log_probs().detach().double()
    log_p = model.depth_prior.log_prob(torch.arange(1, len(log_q) + 1))
    worth = torch.tensor([log_lik(depth) for depth in depths], dtype=torch.float64)
    kl = torch.full((len(log_q),), float(hidden_kl), dtype=torch.float64)
    return float(
        elbo.expected_log_lik(log_q, worth[:, None], num_data)
        - elbo.depth_kl(log_q, log_p)
        - elbo.weight_kl(log_q, kl, torch.ones_like(kl))
    )


def saturating(depth):
    return -1.5 * math.exp(-depth / 2) - 0.2


@pytest.mark.parametrize("start", [1.0, 4.0, 25.0])
@pytest.mark.parametrize(("price", "num_data"), [(2.0, 500), (20.0, 5000), (0.5, 200)])
def test_it_comes_to_rest_at_the_maximum_of_the_bound(start, price, num_data):
    model, rule = model_at(start), RateAscent(0.05, memory=5)
    observe(rule, model, saturating, price, num_data, steps=250)
    grid = [0.05 * 1.02**step for step in range(400)]
    values = [bound(model, rate, saturating, price, num_data) for rate in grid]
    reached = bound(model, model.depth.rate, saturating, price, num_data)
    # Cliffs of the truncation leave it a little below the top; a nat is nothing beside the range.
    assert reached > max(values) - 1.0
    assert max(values) - min(values) > 50


FAMILIES = {
    "Poisson": ub.TruncatedPoisson,
    "concentrated": lambda rate: ub.TruncatedConwayMaxwell(rate, 4.0),
    "spread": lambda rate: ub.TruncatedConwayMaxwell(rate, 0.5),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rate", [0.4, 6.0, 60.0])
def test_members_are_the_family_s_own(name, rate):
    make = FAMILIES[name]
    family = make(rate)
    factors = torch.tensor([0.3, 0.9, 1.0, 1.4], dtype=torch.float64)
    found = family.log_probs_at(family.scaled(factors), make(1.5 * rate).max_depth())
    for factor, row in zip(factors.tolist(), found, strict=True):
        alone = make(rate * factor)
        assert int((row > NO_MASS / 2).sum()) == alone.max_depth()
        expected = alone.log_probs().detach().double()
        assert torch.allclose(row[: alone.max_depth()], expected, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@given(st.floats(1e-3, 1e3), st.floats(0.5, 2.0))
def test_scaling_the_rate(name, rate, factor):
    family = FAMILIES[name](rate)
    before = family.rate
    family.scale_rate(torch.tensor(factor))
    assert family.rate == pytest.approx(before * factor, rel=1e-5)


def test_the_rule_serves_every_family_with_members():
    reached = []
    for start in (2.0, 15.0):
        model = classifier(ub.TruncatedConwayMaxwell(start, 4.0))
        observe(RateAscent(0.05, memory=5), model, saturating, 10.0, 5000, steps=150)
        reached.append(model.depth.mean())
    assert reached[0] == pytest.approx(reached[1], rel=0.1)


def test_a_step_is_no_longer_than_the_speed():
    model, rule = model_at(3.0), RateAscent(0.01, memory=5)
    observe(rule, model, lambda depth: 0.5 * depth, 0.0, 1e5, steps=25)
    assert model.depth.rate == pytest.approx(3)  # nobody is grown yet: it waits
    for _ in range(50):
        before = model.depth.rate
        observe(rule, model, lambda depth: 0.5 * depth, 0.0, 1e5)
        assert abs(math.log(model.depth.rate / before)) < 0.01 + 1e-6
    assert model.depth.rate == pytest.approx(3 * math.exp(0.5), rel=1e-3)


def test_it_does_not_draw_back_from_a_newborn_head():
    ages = {}

    def learning(depth):  # a newborn head predicts badly for 20 steps
        ages[depth] = ages.get(depth, 0) + 1
        return saturating(depth) - 3 * math.exp(-ages[depth] / 20)

    model, rule = model_at(2.0), RateAscent(0.02, memory=20, youth=60)
    rates = []
    for _ in range(200):
        observe(rule, model, learning, 1.0, 5000)
        rates.append(model.depth.rate)
    assert rates[-1] > 6
    assert min(b / a for a, b in itertools.pairwise(rates)) > 0.97


@pytest.mark.parametrize("start", [3.0, 12.0])
def test_what_all_depths_learn_together_moves_nothing(start):
    """The young are seen late, when everybody is better: that is not to be their merit."""
    step = itertools.count()
    family = ub.TruncatedPoisson(start)
    model = classifier(family, depth_prior=ub.GeometricDepth.priced(10.0))
    rule, rates = RateAscent(0.01, memory=20), []
    for _ in range(300):
        now = -2 * math.exp(-next(step) / 100)
        observe(rule, model, lambda depth, now=now: now + saturating(depth), 0.0, 5000)
        rates.append(model.depth.rate)
    # As if nobody had learned anything.
    still = classifier(ub.TruncatedPoisson(start), depth_prior=ub.GeometricDepth.priced(10.0))
    steady = RateAscent(0.01, memory=20)
    expected = []
    for _ in range(300):
        observe(steady, still, saturating, 0.0, 5000)
        expected.append(still.depth.rate)
    assert rates == pytest.approx(expected, rel=1e-4)


def test_young_depths_count_as_grown_ones():
    mean = torch.tensor([-2.0, -1.0, -3.0, -0.5], dtype=torch.float64)
    price = torch.tensor([10.0, 20.0, 900.0, 5.0], dtype=torch.float64)
    grown = torch.tensor([True, True, False, False])
    value, prices = _as_grown(mean, price, grown, 1)
    assert value.tolist() == [-2.0, -1.0, -1.0, -0.5]
    assert prices.tolist() == [10.0, 20.0, 15.0, 5.0]
    nobody = torch.zeros(4, dtype=torch.bool)
    assert torch.equal(_as_grown(mean, price, nobody, 1)[1], price)
    _, below = _as_grown(mean[2:], price, grown[2:], 3)  # layers 1 and 2 are used by all depths
    assert below.tolist() == [10.0, 20.0, 15.0, 5.0]


def test_who_leaves_the_support_comes_back_young():
    model, rule = model_at(8.0), RateAscent(1e-6, memory=3, youth=3)
    observe(rule, model, saturating, 1.0, 500, steps=5)
    deep = model.depth.max_depth()
    assert rule._seen[deep - 1] > 3
    model.depth.scale_rate(torch.tensor(0.2))
    observe(rule, model, saturating, 1.0, 500)
    assert rule._seen[deep - 1] == 0


def test_fit_with_the_rule_moves_lambda_alone():
    x, y = classes(128)
    model = classifier(ub.TruncatedPoisson(2.0), width=16)
    rule = RateAscent(0.02, memory=8)
    optimizer = ub.make_optimizer(model, depth_lr_ratio=1.0)
    before = model.depth.rate
    ub.fit(
        model, x, y, epochs=10, batch_size=16, optimizer=optimizer, depth_rule=rule, progress=False
    )
    assert model.depth.rate != pytest.approx(before, rel=0.02)
    assert not optimizer.state[model.depth.raw_rate]
    assert float(rule._seen[0]) == 80
    assert 0 < float(rule._gain[1]) < 1


def test_a_checkpoint_keeps_the_running_means(tmp_path):
    x, y = classes(128)
    options = {"batch_size": 16, "progress": False, "lr": 0.02}

    def model_and_rule():
        return classifier(ub.TruncatedPoisson(2.0), width=16), RateAscent(0.05, memory=8)

    model, rule = model_and_rule()
    ub.fit(model, x, y, epochs=8, depth_rule=rule, **options)
    path = tmp_path / "run.checkpoint"
    part, first = model_and_rule()
    ub.fit(part, x, y, epochs=4, depth_rule=first, checkpoint=path, **options)
    rest, second = model_and_rule()
    ub.fit(rest, x, y, epochs=8, depth_rule=second, checkpoint=path, resume=True, **options)
    assert same(state(model), state(rest))
    assert torch.equal(rule._gain, second._gain)


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_state_can_be_put_back_whatever_the_depth_was(before, after):
    rule = RateAscent(memory=3)
    rule.reserve(model_at(1.0), before)
    rule._gain[: before // 2], rule._seen[:before] = -0.5, 7.0
    rule.rest()
    again = RateAscent(memory=3)
    again.reserve(model_at(1.0), after)
    again.load_state(model_at(1.0), rule.state())
    assert all(torch.equal(value, rule.state()[key]) for key, value in again.state().items())
    again.reserve(model_at(1.0), after)  # as `fit` does then
    assert again._gain.shape[0] > after
    assert float(again._gain[: before // 2].sum()) == -0.5 * (before // 2)


@pytest.mark.parametrize("closed_form", [True, False])
@pytest.mark.parametrize("equal", ["heads", "layers", "heads and layers"])
def test_equal_paces_divide_by_q_and_by_nothing_else(equal, closed_form):
    x, y = classes(32)
    grads = []
    for on in (False, True):
        model = classifier(ub.TruncatedPoisson(2.0), width=16)
        paces = {f"equal_{kind}": on and kind in equal for kind in ("heads", "layers")}
        gradient_of(model, x, y, closed_form=closed_form, **paces)
        grads.append({name: p.grad for name, p in model.named_parameters()})
    q = model.depth.log_probs().detach().exp()
    changed = set()
    for name, grad in grads[0].items():
        share = 1.0
        kind, place = [*name.split("."), "", ""][1:3]
        if kind == "heads" and "heads" in equal:
            share = float(q[int(place) - 1])
        elif kind == "hidden" and "layers" in equal:
            share = float(q[int(place) - 1 :].sum())
        changed |= {kind} if share < 0.9 else set()
        assert torch.allclose(grads[1][name], grad / share, rtol=1e-4, atol=1e-8), name
    assert changed == {"heads": {"heads"}, "layers": {"hidden"}}.get(equal, {"heads", "hidden"})


def test_equal_layers_learn_what_a_deep_network_would():
    """The last layer of the support, as fast as if no other depth were there."""
    x, y = classes(64)
    model = classifier(ub.TruncatedPoisson(3.0), width=16)
    gradient_of(model, x, y, equal_layers=True, equal_heads=True)
    last = model.depth.max_depth()
    alone = classifier(ub.FixedDepth(last), width=16)
    alone.load_state_dict(
        {k: v for k, v in model.state_dict().items() if k in alone.state_dict()}, strict=False
    )
    gradient_of(alone, x, y)
    theirs = dict(alone.named_parameters())
    found = [name for name in theirs if f".{last}." in name]
    assert len(found) == 4  # weights and biases of a layer and of a head
    for name, parameter in model.named_parameters():
        if name in found:
            assert torch.allclose(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-7), name


def test_equal_heads_are_refused_where_heads_are_shared():
    x, y = classes(32)
    layers = ub.Dense(3, 8, 2, shares_head=True)
    model = ub.UDN(layers, ub.Categorical(2))
    with pytest.raises(ValueError, match="used at one depth each"):
        ub.fit(model, x, y, epochs=1, batch_size=16, equal_heads=True, progress=False)


def test_errors_say_what_was_expected():
    with pytest.raises(ValueError, match="speed must be positive"):
        RateAscent(0.0)
    with pytest.raises(ValueError, match="odd number"):
        RateAscent(0.1, candidates=4)
    with pytest.raises(ValueError, match="reach must be at least the speed"):
        RateAscent(0.5, reach=0.1)
    with pytest.raises(ValueError, match="youth must be at least the memory"):
        RateAscent(0.1, memory=10, youth=5)
    with pytest.raises(ValueError, match="members of a RateFamily; FixedDepth is none"):
        RateAscent().reserve(classifier(ub.FixedDepth(2)), 2)


def test_without_the_weights_cost_lambda_follows_worth_and_prior_alone():
    """The price of the layers must not matter, and the rest must be the bound's maximum."""
    rates = []
    for price in (0.0, 500.0):
        model, rule = model_at(4.0), RateAscent(0.05, memory=5, weight_cost=False)
        observe(rule, model, saturating, price, 2000, steps=250)
        rates.append(model.depth.rate)
    assert rates[0] == rates[1]
    grid = [0.05 * 1.02**step for step in range(400)]
    best = max(bound(model, rate, saturating, 0.0, 2000) for rate in grid)
    assert bound(model, rates[0], saturating, 0.0, 2000) > best - 1.0


def sharpened(**options):
    """A short run in which λ rises, then rests while the family narrows."""
    model = classifier(
        ub.TruncatedConwayMaxwell(2.0, 1.0),
        width=16,
        depth_prior=ub.PoissonDepth(30.0),
        weight_prior=ub.GaussianWeights(30.0),
    )
    rule = RateAscent(0.05, memory=2)
    x, y = classes(128)
    options = {"epochs": 6, "batch_size": 16, "progress": False, **options}
    result = ub.fit(model, x, y, depth_rule=rule, callbacks=[Sharpen(3, 9.0)], **options)
    return model, result.history


@pytest.mark.parametrize("engine", [Eager, Graphs])
def test_sharpen_narrows_the_family_and_lets_lambda_rest(engine):
    before, _ = sharpened(engine=engine(), epochs=3)
    # The end of the third epoch is when it happens; the run above has seen it too.
    model, history = sharpened(engine=engine())
    depth = model.depth
    assert depth.rate == before.depth.rate > 3
    assert depth.concentration == 9
    wide = ub.TruncatedConwayMaxwell(depth.rate, 1.0)
    assert depth.max_depth() < wide.max_depth()
    assert depth.mode() == wide.mode()
    rows = history.rows
    assert [row["max_depth"] for row in rows[3:]] == [depth.max_depth()] * 3
    assert rows[2]["depth_mean"] == pytest.approx(wide.mean(), rel=1e-4)
    assert rows[3]["depth_mean"] == pytest.approx(depth.mean())


@pytest.mark.parametrize("engine", [Eager, Graphs])
@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_sharpened_run_can_be_cut_anywhere(tmp_path, engine, cut):
    whole, history = sharpened(engine=engine())
    path = tmp_path / "run.checkpoint"
    sharpened(engine=engine(), epochs=cut, checkpoint=path)
    rest, later = sharpened(engine=engine(), checkpoint=path, resume=True)
    assert same(state(whole), state(rest))
    assert later.births == history.births
    depths = [[row["depth_mean"] for row in h.rows] for h in (history, later)]
    assert depths[0] == depths[1]


def test_a_sharpened_model_can_be_saved(tmp_path):
    model, _ = sharpened()
    ub.save(model, tmp_path / "model.udn")
    again = ub.load(tmp_path / "model.udn")
    assert again.depth.concentration == 9
    assert torch.equal(again.depth.log_probs(), model.depth.log_probs())


class Restless(DepthRule):
    """Leaves λ alone, and does not say how to do so for good."""

    def reserve(self, model, depth):
        return False

    def update(self, gradient):
        pass


def test_sharpen_says_what_it_needs():
    x, y = classes(32)
    options = {"epochs": 1, "batch_size": 16, "progress": False, "callbacks": [Sharpen(1, 4.0)]}
    with pytest.raises(ValueError, match="needs a TruncatedConwayMaxwell, got TruncatedPoisson"):
        ub.fit(classifier(), x, y, depth_rule=RateAscent(), **options)
    with pytest.raises(ValueError, match="needs a depth_rule"):
        ub.fit(classifier(ub.TruncatedConwayMaxwell(1.0)), x, y, **options)
    late = options | {"callbacks": [Sharpen(99, 4.0)]}
    with pytest.raises(ValueError, match="Restless has no `rest`"):
        ub.fit(classifier(ub.TruncatedConwayMaxwell(1.0)), x, y, depth_rule=Restless(), **late)
    with pytest.raises(ValueError, match="positive finite number, got 0"):
        ub.TruncatedConwayMaxwell(1.0).sharpen(0)


class Slopes(DepthRule):
    """One that moves λ by the gradient of 𝓛 itself."""

    def reserve(self, model, depth):
        return False

    @torch.no_grad()
    def update(self, gradient):
        rate = gradient.model.depth.raw_rate
        rate -= 5.0 * rate.grad


def test_who_moves_by_the_slope_in_the_depth_gets_it_and_nobody_else_pays_for_it():
    x, y = classes(64)
    model = model_at(2.0, prior=6.0)
    gradient_of(model, x, y, depth_rule=Slopes())
    assert float(model.depth.raw_rate.grad) != 0
    uphill, before = -float(model.depth.raw_rate.grad), float(model.depth.raw_rate.detach())
    optimizer = ub.make_optimizer(model)
    ub.step(model, optimizer, x, y, num_data=len(x), depth_rule=Slopes())
    assert float(model.depth.raw_rate.detach()) - before == pytest.approx(5 * uphill, rel=1e-4)
    model, plain = model_at(2.0), model_at(2.0)
    gradient_of(model, x, y, depth_rule=RateAscent())
    gradient_of(plain, x, y)
    assert model.depth.raw_rate.grad is None
    for one, other in zip(model.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
