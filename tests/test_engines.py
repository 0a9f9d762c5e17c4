"""Engines under `fit`: steps with the host behind the device, and what they refuse."""

import pytest
import torch

import unbounded as ub
from gpu import imagecheck
from helpers import classes, classifier, same, state
from unbounded import network as network_
from unbounded.engines import Eager, Graphs
from unbounded.engines.graphs import _Entry, _Lagging
from unbounded.training import Callback, DepthRule, NonFiniteError, RateAscent


def rising(seed=0, **options):
    """λ rises within a few epochs, so that layers are born in mid-training."""
    return classifier(
        ub.TruncatedPoisson(1.0),
        width=16,
        seed=seed,
        depth_prior=ub.PoissonDepth(30.0),
        weight_prior=ub.GaussianWeights(30.0),
        **options,
    )


def train(model, engine=None, **options):
    x, y = classes(128)
    options = {"epochs": 6, "batch_size": 16, "lr": 0.01, "progress": False, **options}
    return ub.fit(model, x, y, engine=engine, **{"depth_lr_ratio": 5.0, **options})


def test_without_lag_it_is_the_eager_engine():
    models, births = [], []
    for engine in (Eager(), Graphs(lag=0)):
        model = rising()
        result = train(model, engine)
        models.append(model)
        births.append(result.history.births)
    assert births[0] == births[1]
    assert any(birth["step"] > 0 for birth in births[0])
    one, other = state(models[0]), state(models[1])
    assert one.keys() == other.keys()
    for key in one:
        assert torch.allclose(one[key], other[key], rtol=1e-4, atol=1e-5), key


def test_births_come_as_late_as_the_lag():
    first = {}
    for lag in (0, 1, 3):
        result = train(rising(), Graphs(lag=lag))
        first[lag] = min(b["step"] for b in result.history.births if b["step"] > 0)
    assert first[1] == first[0] + 1
    assert first[3] == first[0] + 3


@pytest.mark.parametrize("rule", [None, RateAscent])
def test_cut_in_two_at_a_checkpoint(tmp_path, rule):
    def options():
        return {"depth_rule": None if rule is None else rule(0.05, memory=4)}

    whole = rising()
    births = train(whole, Graphs(), **options()).history.births
    path = tmp_path / "run.checkpoint"
    train(rising(), Graphs(), epochs=3, checkpoint=path, **options())
    rest = rising()
    result = train(rest, Graphs(), checkpoint=path, resume=True, **options())
    assert same(state(whole), state(rest))
    assert result.history.births == births


def test_caches_are_filled_before_a_graph_is_captured(monkeypatch):
    """λ that comes back to a support after a step elsewhere must not fill a cache in its graph.

    A graph cannot hold the copies from the host that filling takes, and what it makes is its own.
    """
    inside, filled = [], []
    function, gather = _Entry.function, network_._gather

    def watched(entry):
        if entry.runs < 2:  # from then on a graph is replayed
            inside.append(entry.support)
        function(entry)
        inside.clear()

    def gathered(hidden, *rest):
        assert not inside
        filled.append(len(hidden))
        return gather(hidden, *rest)

    class Swing(DepthRule):
        def reserve(self, model, depth):
            return False

        def update(self, gradient):
            family, self.up = gradient.model.depth, not getattr(self, "up", False)
            family.scale_rate(torch.tensor(4.0 if self.up else 0.25))

    monkeypatch.setattr(_Entry, "function", watched)
    monkeypatch.setattr(network_, "_gather", gathered)
    train(rising(), Graphs(lag=0), depth_rule=Swing(), epochs=1)
    assert len(set(filled)) == 2
    assert len(filled) > 3


def test_a_checkpoint_keeps_the_time_of_capturing(tmp_path):
    path = tmp_path / "run.checkpoint"
    first, second = Graphs(), Graphs()
    first.capture_seconds = 1.5  # on a CPU nothing is captured
    train(rising(), first, epochs=1, checkpoint=path)
    train(rising(), second, epochs=2, checkpoint=path, resume=True)
    assert second.capture_seconds == 1.5


def test_the_support_is_held_between_births():
    """The host knows λ late: q is exact but for its truncation."""
    model = rising()
    held = model.posterior_over(1, 3)
    assert held.log_q.shape == (3,)
    assert float(held.log_q.exp().sum().detach()) == pytest.approx(1)
    own = model.posterior()
    assert torch.allclose(held.log_q, own.log_q[:3].log_softmax(0), atol=1e-6)
    family = ub.TruncatedConwayMaxwell(4.0)
    assert torch.equal(family.log_probs_up_to(family.max_depth()), family.log_probs())
    fixed = ub.FixedDepth(3)
    assert torch.equal(fixed.log_probs_up_to(3), fixed.log_probs())


def test_log_probs_up_to_has_the_closed_form_s_gradient():
    family = ub.TruncatedPoisson(4.0)
    weights = torch.linspace(-1, 1, family.max_depth())
    slopes = []
    for log_q in (family.log_probs(), family.log_probs_up_to(family.max_depth())):
        (slope,) = torch.autograd.grad(log_q @ weights, family.raw_rate)
        slopes.append(float(slope))
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-5)


class Bell(ub.DepthFamily):
    """A user's own: a bell around a place that is learnt."""

    def __init__(self, place=2.0):
        super().__init__()
        self.place = torch.nn.Parameter(torch.tensor(place))

    def scores(self, at, size):
        depths = torch.arange(1, size + 1, device=at["place"].device)
        return -(depths - at["place"].double()[..., None]).square()

    def end(self, at, size):
        return (at["place"].double() + 2).floor().clamp(min=1).long()


def test_an_unbounded_family_of_one_s_own_works_in_graphs_too():
    found = []
    for engine in (Eager(), Graphs(lag=0)):
        model = classifier(
            Bell(), depth_prior=ub.PoissonDepth(30.0), weight_prior=ub.GaussianWeights(30.0)
        )
        births = train(model, engine, depth_lr_ratio=20.0).history.births
        assert any(birth["step"] > 1 for birth in births)
        found.append((births, state(model)))
    assert found[0][0] == found[1][0]
    for key, value in found[0][1].items():
        assert torch.allclose(value, found[1][1][key], rtol=1e-4, atol=1e-5), key


def test_lambda_travels_late_and_in_order():
    family = ub.TruncatedPoisson(1.0)
    way = _Lagging(family, 2, None)
    seen = []
    for rate in (3.0, 6.0, 12.0, 24.0):
        seen.append(way.support()[1])
        family.scale_rate(torch.tensor(rate / family.rate))
        way.send()
    expected = [ub.TruncatedPoisson(r).max_depth() for r in (1.0, 1.0, 1.0, 3.0, 6.0)]
    assert [*seen, way.support()[1]] == expected
    again = _Lagging(family, 2, way.pending())
    for follow in (way, again):
        follow.send()
    assert way.support() == again.support() == (1, ub.TruncatedPoisson(12.0).max_depth())


def test_parameters_outside_the_support_are_not_moved():
    model = rising()
    shrinking = ub.TruncatedPoisson(6.0)
    model.depth = shrinking
    ub.growth.grow(model)
    top = str(model.network.num_layers)

    class Shrink(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 1:
                shrinking.scale_rate(torch.tensor(0.1))
            kept.append(model.network.hidden[top].weight.detach().clone())

    kept = []
    train(model, Graphs(), callbacks=[Shrink()], epochs=4)
    # The lag lets two more steps of the second epoch through.
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(kept[1], kept[3])


def test_a_loss_that_is_no_number_is_told_at_the_end_of_the_epoch():
    model = classifier(ub.FixedDepth(3))
    with pytest.raises(NonFiniteError, match="not finite in epoch 1: expected_log_lik = "):
        train(model, Graphs(), lr=1e30)


def test_what_graphs_refuse():
    with pytest.raises(ValueError, match="drop_inactive"):
        train(rising(), Graphs(), drop_inactive=True)
    with pytest.raises(ValueError, match="float16"):
        train(rising(), Graphs(), autocast=torch.float16)
    with pytest.raises(ValueError, match="lag must be at least 0"):
        Graphs(lag=-1)
    with pytest.raises(ValueError, match="CUDA"):
        train(rising(), Graphs(graphs=True))


def test_clipping_and_weights_work_under_it():
    x, y = classes(128)
    weights = torch.linspace(0.5, 1.5, 128)
    results = []
    for engine in (Eager(), Graphs(lag=0)):
        model = rising()
        ub.fit(
            model,
            x,
            y,
            weights=weights,
            clip=0.1,
            engine=engine,
            epochs=3,
            batch_size=16,
            progress=False,
        )
        results.append(state(model))
    for key in results[0]:
        assert torch.allclose(results[0][key], results[1][key], rtol=1e-4, atol=1e-5), key


def test_the_check_of_images_passes_and_can_fail(capsys, monkeypatch):
    assert imagecheck.main(["--device", "cpu", "--no-compile"]) == 0
    assert "all checks passed" in capsys.readouterr().out
    # A running statistic that is counted twice must be seen.
    monkeypatch.setattr("unbounded.network._recomputing", _counting_twice)
    assert not imagecheck.check(torch.device("cpu"), None, compiles=False)
    assert "FAIL the optimiser moves λ: recomputing layers" in capsys.readouterr().out


def _counting_twice(layer, run):
    from torch.utils.checkpoint import checkpoint

    return lambda hidden: checkpoint(run, hidden, use_reentrant=False)
