"""The rule that goes by held-out rows: it finds the depth that pays, from any start."""

import copy
import dataclasses
import math
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import unbounded as ub
from helpers import classes, numbers, same, state
from unbounded.engines import Eager, Graphs, Stacked, graphs
from unbounded.steps import held_out as held_out_rule
from unbounded.steps import held_out_rows as over
from unbounded.training import Augment, HeldOutAscent, ImageData
from unbounded.training import best as best_epochs

ROWS = 400
SEE = HeldOutAscent.see


def tiny(place=4.0, spread=2.0, seed=0):
    layers = ub.PreNormDense(3, 4, 2)
    return ub.UDN(layers, ub.Categorical(2), ub.TruncatedNormal(place, spread), seed=seed)


def made_up(needed, *, noise=0.05, training_only=False, epochs=300, start=4.0, seed=0, rule=None):
    """q after a run in which depths score better up to `needed`, and no better behind it.

    Each depth learns over the first hundred epochs; rows differ by noise that is new every epoch,
    and by luck of their own that deeper networks turn one way or the other.
    """
    draw = torch.Generator().manual_seed(seed)
    model = tiny()
    model.depth = (
        start if not isinstance(start, float) else ub.TruncatedNormal(start, max(1.0, start / 2))
    )
    rule = HeldOutAscent() if rule is None else rule
    luck = torch.randn(200, ROWS, generator=draw).double() * 0.1
    guess = torch.full((ROWS,), 0.5).double().log()
    for epoch in range(epochs):
        depth = model.depth.max_depth()
        rule.reserve(model, depth)
        depths = torch.arange(1, depth + 1).double()
        learnt = min(1.0, epoch / 100)
        quality = -0.6 + learnt * 0.55 * (depths.clamp(max=needed) / needed)
        rule._sums[0, :depth] += 20 * quality  # twenty steps of the epoch
        rule._state[0, 0] += 20
        if training_only:
            quality = torch.full_like(depths, -0.69 - 0.4 * learnt)
        log_lik = quality[:, None] + luck[:depth].cumsum(0) / 10
        log_lik = log_lik + noise * torch.randn(depth, ROWS, generator=draw).double()
        rule.look(model, log_lik.clamp(max=-1e-4), guess, None)
        rule.settle(model, None)
    return model.depth, rule


@pytest.mark.parametrize("needed", [1, 3, 7])
def test_the_depth_that_pays_is_found_from_any_start(needed):
    found = {start: made_up(needed, start=start)[0] for start in (1.0, 4.0, 16.0)}
    for start, family in found.items():
        assert needed <= family.mode() <= needed + 1, (start, family)
        assert abs(family.mean() - needed) < 0.8, (start, family)
        assert family.spread < 1, (start, family)


def test_it_rests_and_says_so():
    _, rule = made_up(3, epochs=700)
    assert rule.columns()["depth_settled"] == 1
    _, rule = made_up(3, epochs=20)
    assert rule.columns()["depth_settled"] == 0
    model = tiny()
    rule.rest()
    before = state(model)
    rule.reserve(model, 4)
    rule._state[0, 0] = 5
    rule.settle(model, None)
    assert same(before, state(model))


def test_q_is_wide_while_the_network_learns():
    calm_family, calm = made_up(3)
    wide, rule = made_up(3, epochs=20)
    assert rule._state[0, 1] > calm._state[0, 1]
    assert wide.spread > 2 * calm_family.spread


@pytest.mark.parametrize(
    ("width", "narrowest", "spread"), [(1, 0.5, 3), (0.5, 0.5, 1.5), (0, 2, 2)]
)
def test_where_depths_are_worth_the_same_q_is_as_wide_as_it_is_told_to_be(width, narrowest, spread):
    model = tiny()
    rule = HeldOutAscent(
        floor=0.0, price=0.0, reference=(10.0, 3.0), width=width, narrowest=narrowest
    )
    guess = torch.full((ROWS,), 0.5).double().log()
    for _ in range(200):
        depth = model.depth.max_depth()
        rule.reserve(model, depth)
        rule._sums[0, :depth] -= 20 * 0.3
        rule._state[0, 0] += 20
        rule.look(model, torch.full((depth, ROWS), -0.3).double(), guess, None)
        rule.settle(model, None)
    assert model.depth.spread == pytest.approx(spread, rel=0.11)  # members are tried by tenths
    assert model.depth.place == pytest.approx(10, abs=0.5)


def test_an_epoch_that_is_long_shows_drift_too():
    """The memory holds several looks, however many steps lie between them."""
    model, rule = tiny(3.0, 1.0), HeldOutAscent()
    guess = torch.full((ROWS,), 0.5).double().log()
    for epoch in range(6):
        rule.reserve(model, model.depth.max_depth())
        rule._state[0, 0] += 1000
        depths = torch.arange(1.0, model.depth.max_depth() + 1)[:, None]
        rule.look(model, (-0.6 - 0.01 * epoch * depths).expand(-1, ROWS), guess, None)
    assert rule._state[0, 1] > 1
    assert rule.columns()["depth_settled"] == 0


def test_a_new_depth_gains_nothing_by_the_progress_of_all():
    model, rule = tiny(3.0, 1.0), HeldOutAscent()
    guess = torch.full((1, ROWS), 0.5).double().log()
    rule.reserve(model, 5)
    for epoch in range(12):  # depth 5 comes late, and is as good as depth 4
        depth = 4 if epoch < 10 else 5
        rule._state[0, 0] += 100
        log_q = torch.full((1, depth), 1 / depth).log()
        rule.see(torch.full((1, depth, ROWS), -0.6 + 0.04 * epoch), log_q, guess, None)
    rule._state[0, 2] = 1
    worth = rule._worth(torch.full((1, 5), 0.2), slice(0, 1), None)
    asked_for = min(rule.floor, 0.05 * float(rule._state[0, 9]))  # a twentieth of what is learnt
    assert 0 < asked_for < rule.floor
    assert worth.diff().flatten().tolist() == pytest.approx([-asked_for] * 4)


def test_a_layer_is_asked_for_little_while_little_is_learnt():
    """Else q falls back to depth 1 as soon as something generalises at all."""
    model = tiny(3.0, 1.0)
    guess = torch.full((ROWS,), 0.5).double().log()
    for lead, asked_for in ((0.02, "a share"), (2.4, "all")):
        rule = HeldOutAscent()
        rule.reserve(model, model.depth.max_depth())
        rule._state[0, 0] += 10
        rule.look(model, guess.expand(model.depth.max_depth(), -1) + lead, guess, None)
        learnt = ROWS * (math.log(0.5 + 0.5 * math.exp(lead)))
        assert float(rule._state[0, 9]) == pytest.approx(learnt)
        rule._state[0, 2] = 1
        worth = rule._worth(model.depth.log_probs().detach().exp()[None], slice(0, 1), None)
        floor = rule.floor if asked_for == "all" else 0.05 * learnt
        assert worth.diff().flatten().tolist()[0] == pytest.approx(-floor)


@pytest.mark.parametrize(
    ("lead", "fitted", "generalises"),
    [(0.02, 0.1, 0), (0.02, 0.4, 1), (0.2, 0.2, 1), (0.0, 0.4, 0)],
    ids=["a little", "a little and overfits", "enough", "nothing"],
)
def test_held_out_rows_have_a_say_once_enough_is_learnt(lead, fitted, generalises):
    """A line through a spiral beats guessing for sure, and says nothing of what depth could do."""
    model, rule = tiny(3.0, 1.0), HeldOutAscent()
    guess = torch.full((ROWS,), 0.5).double().log()
    depth = model.depth.max_depth()
    rule.reserve(model, depth)
    rule._state[0, 0] += 10
    rule._sums[0, : depth - 1] = 10 * (math.log(0.5) + fitted)  # the last one is trained no more
    rule.look(model, guess.expand(depth, -1) + lead, guess, None)
    assert float(rule._state[0, 2]) == generalises


def test_drift_is_what_shallow_depths_catch_up():
    """The deviation of the gaps under q, less what rises with depth along a line."""
    q = torch.tensor([[0.2, 0.5, 0.3]]).double()
    depths = torch.tensor([[1.0, 2.0, 3.0]]).double()

    def variance(values):
        mean = (q * values).sum()
        return (q * (values - mean) ** 2).sum()

    assert float(over.behind(torch.full((1, 3), 4.0).double(), q)) == pytest.approx(0, abs=1e-7)
    assert float(over.behind(2 * depths, q)) == pytest.approx(0, abs=1e-7)
    assert float(over.behind(-2 * depths, q)) == pytest.approx(2 * float(variance(depths)) ** 0.5)
    bent = torch.tensor([[0.0, 1.0, -1.0]]).double()
    assert float(over.behind(bent, q)) == pytest.approx(float(variance(bent)) ** 0.5)
    line = float((q * bent * (depths - (q * depths).sum())).sum() / variance(depths) ** 0.5)
    assert line < 0
    rest = (float(variance(bent)) - line**2) ** 0.5
    assert float(over.behind(-bent, q)) == pytest.approx(rest)


def test_a_network_that_is_worse_than_guessing_makes_q_no_narrower():
    """T is at least 1, whatever the first look says."""
    model, rule = tiny(3.0, 1.0), HeldOutAscent()
    guess = torch.full((ROWS,), 0.5).double().log()
    rule.reserve(model, model.depth.max_depth())
    rule._state[0, 0] += 10
    rule.look(model, guess.expand(model.depth.max_depth(), -1) - 3, guess, None)
    assert float(rule._state[0, 1]) == 0


def test_layers_say_where_depths_are_looked_for_first():
    class Deep(ub.PreNormDense):
        reference = (9.0, 1.0)

    for reference, place in ((None, (9.0, 1.0)), ((4.0, 2.0), (4.0, 2.0))):
        model = ub.UDN(Deep(3, 4, 2), ub.Categorical(2), ub.TruncatedNormal(2.0, 1.0), seed=0)
        rule = HeldOutAscent(reference=reference)
        rule.reserve(model, model.depth.max_depth())
        rule.settle(model, None)  # before anything is seen
        assert (float(model.depth.place), float(model.depth.spread)) == pytest.approx(place)
        guess = torch.full((ROWS,), 0.5).double().log()
        rule._state[0, 0] += 10
        rule.look(model, guess.expand(model.depth.max_depth(), -1), guess, None)
        rule.settle(model, None)  # a step of ten times the speed, not a leap
        assert abs(float(model.depth.place) - place[0]) <= 10 * rule.speed * place[0] / 4 + 1e-9
    for wrong in ((1.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="a place and a spread"):
            HeldOutAscent(reference=wrong)
    assert ub.ResidualConv(3, 10).reference == (12.0, 1.5)


@pytest.mark.parametrize("engine", [Eager, Stacked])
def test_the_start_does_not_matter_bit_for_bit(engine):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=draw)
    y = (x.prod(1) > 0).long()
    found = []
    for place, spread in ((1.0, 0.5), (4.0, 2.0), (16.0, 8.0)):
        family = ub.TruncatedNormal(place, spread)
        model = ub.UDN(ub.PreNormDense(3, 4, 2), ub.Categorical(2), family, seed=0)
        rest = {"epochs": 4, "batch_size": 8, "depth_rule": HeldOutAscent(), "progress": False}
        data, held_out = (x[:40], y[:40]), (x[40:], y[40:])
        if engine is Stacked:
            ub.fit([model], [data], validation=[held_out], engine=Stacked(), **rest)
        else:
            ub.fit(model, *data, validation=held_out, engine=Eager(), **rest)
        with torch.no_grad():
            found.append((float(family.place), float(family.spread), ub.predict(model, x).probs))
    for place, spread, probs in found[1:]:
        assert (place, spread) == found[0][:2]
        assert torch.equal(probs, found[0][2])


def test_a_rest_ends_where_much_is_to_be_gained():
    family, rule = made_up(3, epochs=300)
    assert rule.columns()["depth_settled"] == 1
    before = family.mean()
    family, rule = made_up(7, epochs=300, start=family, rule=rule)
    assert family.mean() > before + 2


def test_the_best_epoch_goes_with_q():
    """Another depth replaces the best epoch unless it is worse for sure."""
    best = best_epochs.BestEpoch(3, (0.9, -0.3), {"depth_mean": 8.0}, (0.9, -0.3))
    later = {"depth_mean": 4.0, "val_error": 0.01, "val_log_error": 0.02}
    assert best_epochs.has_moved_on(later, (0.895, -0.31), best)
    assert not best_epochs.has_moved_on({**later, "depth_mean": 8.2}, (0.895, -0.31), best)
    assert not best_epochs.has_moved_on(later, (0.88, -0.31), best)
    assert not best_epochs.has_moved_on(later, (0.895, -0.33), best)
    kept = dataclasses.replace(best, key=(0.892, -0.305))  # small losses do not add up
    assert not best_epochs.has_moved_on(later, (0.885, -0.305), kept)
    assert best_epochs.has_moved_on(later, (0.891, -0.305), kept)
    assert not best_epochs.has_moved_on(later, (0.891, -0.305), kept, slack=0.1)
    assert not best_epochs.has_moved_on({"depth_mean": 4.0}, (0.895, -0.31), best)


def test_who_overfits_goes_by_training_rows_no_more():
    model, rule = tiny(3.0, 1.0), HeldOutAscent()
    guess = torch.full((ROWS,), 0.5).double().log()
    depth = model.depth.max_depth()
    rule.reserve(model, depth)
    for level in (0.4, 0.4, *[-2.0] * 12):  # good at first, then worse than guessing
        rule._state[0, 0] += 10
        rule.look(model, guess.expand(depth, -1) + level, guess, None)
    assert float(rule._state[0, 9]) == 0  # nothing is learnt any more
    assert float(rule._state[0, 2]) == 1


@pytest.mark.parametrize("weight", [None, 3.0])
def test_the_error_of_the_score_is_that_of_a_mean_over_rows(weight):
    """In units of the score: accuracies have a binomial error, in whatever units weights are."""
    validation = classes(64, seed=1)
    if weight is not None:
        validation += (torch.full((64,), weight),)
    _, result, _ = spiral_run(epochs=2, validation=validation)
    row = result.history.rows[-1]
    share = row["val_accuracy"]
    assert row["val_error"] == pytest.approx((share * (1 - share) / 63) ** 0.5, rel=1e-6)


def test_an_error_from_sums_of_parts_is_that_from_rows():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 40, generator=generator).double()
    weights = torch.rand(2, 40, generator=generator).double()
    weights[:, :5], scores[..., :5] = 0.0, 7.0  # no part of it
    for w in (None, weights):
        parts = [slice(0, 11), slice(11, 40)]
        pieces = [(scores[..., p], None if w is None else w[:, None, p]) for p in parts]
        mean, error = over.mean_and_error(sum(over.sums(*piece) for piece in pieces))
        assert torch.allclose(mean, over.mean(scores, w))
        assert torch.allclose(error, over.standard_error(scores, mean, w))


def test_training_rows_stand_in_while_nothing_generalises():
    """Held-out rows that say nothing must not stop a network from growing."""
    grown, rule = made_up(8, training_only=True, start=1.0)
    assert rule._state[0, 2] == 0
    assert grown.mode() >= 6
    assert rule.columns()["depth_settled"] == 0


def test_noise_alone_earns_no_layer():
    family, _ = made_up(2, noise=0.5, epochs=600, start=8.0)
    assert family.mode() <= 4


def test_gains_and_errors_of_weighted_rows_count_as_often_as_they_say():
    draw = torch.Generator().manual_seed(3)
    log_lik = -torch.rand(5, 40, generator=draw).double()
    counts = torch.randint(1, 4, (40,), generator=draw)
    one, many = HeldOutAscent(), HeldOutAscent()
    model = tiny(3.0, 1.0)
    for rule, values, weights in (
        (one, log_lik, counts.double()),
        (many, log_lik.repeat_interleave(counts, 1), None),
    ):
        rule.reserve(model, 5)
        rule._state[0, 0] += 10
        guess = torch.full((values.shape[1],), -0.7).double()
        rule.look(model, values, guess, weights)
    torch.testing.assert_close(one._state[0, 1], many._state[0, 1])
    q = model.depth.log_probs().detach()[None, :5].exp()
    worths = [
        rule._worth(q, slice(0, 1), weights)
        for rule, weights in ((one, counts.double()[None]), (many, None))
    ]
    # The means agree; a row that counts twice is less than two rows, so its error is larger.
    assert bool((worths[0] <= worths[1] + 1e-9).all())


def spiral_run(place=3.0, **options):
    model = tiny(place)
    x, y = classes(96)
    options = {"validation": classes(64, seed=1), "batch_size": 32, **options}
    rule = HeldOutAscent()
    return model, ub.fit(model, x, y, depth_rule=rule, progress=False, lr=0.02, **options), rule


def test_fit_moves_place_and_spread_and_keeps_a_column():
    model, result, _ = spiral_run(epochs=30)
    assert {"depth_settled", "depth_mean"} <= set(result.history.rows[0])
    first, last = result.history.rows[0], result.history.rows[-1]
    assert last["depth_mean"] != first["depth_mean"]
    assert model.depth.spread != pytest.approx(2.0)
    for parameter in model.depth.parameters():  # the optimiser has not touched them
        assert parameter not in result.optimizer.state or not result.optimizer.state[parameter]


def test_resumed_bit_for_bit(tmp_path):
    whole, expected, _ = spiral_run(epochs=12)
    path = tmp_path / "run.checkpoint"
    spiral_run(epochs=5, checkpoint=path)
    again, result, rule = spiral_run(epochs=12, checkpoint=path, resume=True)
    assert same(state(whole), state(again))
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history.rows]
    assert rows == [{k: v for k, v in r.items() if k != "seconds"} for r in expected.history.rows]
    assert rule._state[0, 8] > 0


def test_a_rest_that_was_asked_for_holds(tmp_path):
    """During the fits that follow, of one model or many, and in one that goes on from a file."""
    models, data, held_out, options = stacked_run(12)
    places = [(model.depth.place, model.depth.spread) for model in models]
    rule = HeldOutAscent(speed=0.05)
    rule.rest()
    results = ub.fit(models, data, validation=held_out, depth_rule=rule, **options)
    alone = tiny(3.0)
    options |= {"validation": held_out[0], "checkpoint": tmp_path / "run.checkpoint"}
    results.append(ub.fit(alone, *data[0], depth_rule=rule, **options))
    for model, before in zip([*models, alone], [*places, (3.0, 2.0)], strict=True):
        assert (model.depth.place, model.depth.spread) == pytest.approx(before, abs=1e-6)
    assert all(result.history["depth_settled"] == [1] * 12 for result in results)
    moving = HeldOutAscent(speed=0.05)
    options["checkpoint"] = tmp_path / "moving.checkpoint"
    ub.fit(tiny(3.0), *data[0], depth_rule=moving, **options)
    assert moving.columns()["depth_settled"] == 0
    rest = ub.fit(
        tiny(3.0), *data[0], depth_rule=rule, resume=True, **{**options, "epochs": 16}
    ).history["depth_mean"]
    assert rest[11] != pytest.approx(rest[0], abs=0.01)
    assert rest[12:] == [rest[12]] * 4


def test_a_population_under_eager_equals_lone_models():
    x, y = classes(96)
    options = {"validation": classes(64, seed=1), "batch_size": 32, "epochs": 6, "progress": False}
    models = [tiny(3.0, seed=seed) for seed in (1, 2)]
    lone = [copy.deepcopy(model) for model in models]
    engine = ub.engines.Eager()
    ub.fit(models, x, y, depth_rule=HeldOutAscent(), engine=engine, **options)
    for one, member in zip(lone, models, strict=True):
        ub.fit(one, x, y, depth_rule=HeldOutAscent(), **options)
        assert same(state(one), state(member))


def image_run(engine, **options):
    draw = torch.Generator().manual_seed(5)
    y = torch.arange(60) % 3
    x = torch.randint(0, 90, (60, 8, 8, 3), generator=draw) + 70 * y[:, None, None, None]
    images = ImageData(x[:40].to(torch.uint8), y[:40], augment=Augment(crop=1))
    layers = ub.ResidualConv(3, 3, width=8, stages=(1, 1))
    model = ub.UDN(layers, ub.Categorical(3), ub.TruncatedNormal(3.0, 1.5), seed=2)
    result = ub.fit(
        model,
        images,
        validation=images.like(x[40:].to(torch.uint8), y[40:]),
        depth_rule=HeldOutAscent(speed=1.0, reference=(6.0, 3.0)),
        engine=engine,
        **{"epochs": 6, "batch_size": 10, "equal_heads": True, "progress": False} | options,
    )
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history.rows]
    return model, rows


def test_graphs_follow_a_depth_that_moves_between_epochs(monkeypatch, tmp_path):
    captured = []
    entry = graphs._Entry.__init__

    def note(self, name, member, support, batch, processes):
        captured.append(support)
        entry(self, name, member, support, batch, processes)

    monkeypatch.setattr(graphs._Entry, "__init__", note)
    model, rows = image_run(Eager(), select="last")
    lasts = list(dict.fromkeys(row["max_depth"] for row in rows))
    assert len(lasts) > 2
    captured_model, found = image_run(Graphs(lag=0), select="last")
    assert found == rows
    assert same(state(model), state(captured_model))
    # One graph for each depth, however often q comes back to it.
    assert captured == [(1, last) for last in lasts]
    # Nor does a lag matter, as q rests within an epoch; cut and resumed it is the same.
    path = tmp_path / "run.checkpoint"
    image_run(Graphs(), select="last", epochs=3, checkpoint=path)
    rest, found = image_run(Graphs(), select="last", checkpoint=path, resume=True)
    assert found == rows
    assert same(state(model), state(rest))


def stacked_run(epochs, quantiles=(0.99, 0.99, 0.95), **options):
    """Three models with data, starts and numbers of held-out rows of their own, as one stack."""
    starts = ((3.0, 1.0), (1.0, 1.0), (8.0, 4.0))
    models = [
        ub.UDN(
            ub.PreNormDense(3, 4, 2),
            ub.Categorical(2),
            ub.TruncatedNormal(*start, quantile=quantile),
            seed=seed,
        ).double()
        for seed, (start, quantile) in enumerate(zip(starts, quantiles, strict=True))
    ]
    data = [
        tuple(t.double() if t.is_floating_point() else t for t in classes(96, seed=s))
        for s in (0, 1, 2)
    ]
    held_out = [
        (x[:n].double(), y[:n])
        for n, (x, y) in ((n, classes(64, seed=s)) for n, s in ((64, 3), (64, 4), (50, 5)))
    ]
    options = {"batch_size": 32, "epochs": epochs, "progress": False, "lr": 0.02, **options}
    return models, data, held_out, options


@pytest.mark.parametrize(("average", "clip"), [(None, None), (0.9, 0.1)])
def test_members_of_a_stack_equal_lone_models(average, clip):
    models, data, held_out, options = stacked_run(12, average=average, clip=clip)
    lone = [copy.deepcopy(model) for model in models]
    # From (9, 5) on, twenty layers blow rounding up to 1e-5 within twelve epochs.
    rule = HeldOutAscent(speed=0.05, reference=(6.0, 4.0))
    results = ub.fit(models, data, validation=held_out, depth_rule=rule, **options)
    for number, model in enumerate(lone):
        rule = HeldOutAscent(speed=0.05, reference=(6.0, 4.0))
        options["validation"] = held_out[number]
        alone = ub.fit(model, *data[number], depth_rule=rule, **options)
        for one, other in zip(alone.history.rows, results[number].history.rows, strict=True):
            for name in ("elbo", "depth_mean", "max_depth", "num_layers", "depth_settled"):
                assert one[name] == pytest.approx(other[name], rel=1e-6), (number, name)
        assert alone.history.births == results[number].history.births
        assert model.depth.place == pytest.approx(models[number].depth.place, rel=1e-6)
        assert abs(model.depth.mean() - alone.history.rows[0]["depth_mean"]) > 0.02


def test_a_stack_resumed_bit_for_bit(tmp_path):
    def run(epochs, **more):
        models, data, held_out, options = stacked_run(epochs, **more)
        rule = HeldOutAscent(speed=0.05)
        return models, ub.fit(models, data, validation=held_out, depth_rule=rule, **options)

    whole, expected = run(9)
    path = tmp_path / "stack.checkpoint"
    run(4, checkpoint=path)
    again, results = run(9, checkpoint=path, resume=True)
    for one, other, a, b in zip(whole, again, expected, results, strict=True):
        assert same(state(one), state(other))
        rows = [[{**row, "seconds": 0} for row in r.history.rows] for r in (a, b)]
        assert rows[0] == rows[1]


def test_looks_are_spared_at_rest_once_the_memory_holds_enough_of_them():
    rule = HeldOutAscent()
    assert all(rule.is_due(epoch) for epoch in range(5000))
    rule.rest()
    assert all(rule.is_due(epoch) for epoch in range(1280))
    for end in (4000, 16000):
        within = sum(rule.is_due(epoch) for epoch in range(int(0.95 * end), end))
        assert 30 <= within <= 65, (end, within)
    often = HeldOutAscent(memory=0.7)  # no multiple: an interval of its own would never come
    assert any(often.is_regular(epoch) for epoch in range(50_000, 51_100))


def test_looks_between_two_moves_add_up():
    model, rule = tiny(3.0, 1.0), HeldOutAscent()
    guess = torch.full((ROWS,), 0.5).double().log()
    rule.reserve(model, 6)
    rule.settle(model, None)
    for steps in (3, 4, 0):
        rule._state[0, 0] += steps
        rule.look(model, torch.full((model.depth.max_depth(), ROWS), -0.5), guess, None)
    assert rule._state[0, 10] == 7
    assert rule._state[0, 0] == 0
    rule.settle(model, None)
    assert rule._state[0, 10] == 0


@pytest.mark.parametrize("engine", [Eager, Stacked])
def test_spared_looks_are_the_same_for_all_engines_and_resumed(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(held_out_rule, "_ENOUGH_LOOKS", 0.1)  # every other epoch from the fourth on

    def rest_soon(self, q, noise):
        self._state[:, 7] = self._state[:, 3] >= 5

    monkeypatch.setattr(HeldOutAscent, "_check_rest", rest_soon)

    def run(epochs, which=slice(0, 3), engine=engine, **more):
        models, data, held_out, options = stacked_run(epochs, average=0.9, **more)
        rule = HeldOutAscent(speed=0.05, reference=(6.0, 4.0), floor=0.01)
        given = {"engine": engine(), "depth_rule": rule, "validation": held_out[which]}
        return models[which], ub.fit(models[which], data[which], **given, **options), rule

    whole, expected, rule = run(12)
    for number, model in enumerate(whole):
        with mock.patch.object(HeldOutAscent, "see", autospec=True, side_effect=SEE) as looks:
            (alone,), (result,), _ = run(12, slice(number, number + 1), Eager)
        spared = sum(not rule.is_regular(epoch) for epoch in range(6, 13))
        assert looks.call_count == 12 - spared < 12
        for one, other in zip(result.history.rows, expected[number].history.rows, strict=True):
            for name in ("elbo", "depth_mean", "val_log_score", "val_log_error", "depth_settled"):
                assert one[name] == pytest.approx(other[name], rel=1e-6), (number, name)
        assert alone.depth.place == pytest.approx(model.depth.place, rel=1e-6)
    for end in (5, 9):  # with a look that q has not moved by, and without one
        path = tmp_path / f"{end}.checkpoint"
        run(end, checkpoint=path)
        again, _, _ = run(12, checkpoint=path, resume=True)
        assert all(same(state(one), state(other)) for one, other in zip(whole, again, strict=True))


def test_a_stopped_member_of_a_stack_stays():
    models, data, held_out, options = stacked_run(30, patience=2, lr=0.2)
    results = ub.fit(models, data, validation=held_out, depth_rule=HeldOutAscent(), **options)
    assert {result.stopped for result in results} == {"patience"}
    for model, result in zip(models, results, strict=True):
        assert model.depth.mean() == pytest.approx(result.best_row["depth_mean"])


def test_regression_and_a_likelihood_without_a_guess():
    class Laplace(ub.Likelihood):
        def log_prob(self, outputs, y):
            return -(outputs[..., 0] - y).abs() - 0.7

    x, y = numbers(96)
    for likelihood in (ub.Gaussian(), Laplace()):
        layers = ub.PreNormDense(3, 6, 1)
        model = ub.UDN(layers, likelihood, ub.TruncatedNormal(3.0, 1.0), seed=1)
        result = ub.fit(
            model,
            x,
            y,
            validation=numbers(48, seed=2),
            epochs=8,
            batch_size=32,
            depth_rule=HeldOutAscent(),
            progress=False,
        )
        assert result.history.rows[-1]["depth_mean"] != result.history.rows[0]["depth_mean"]


def test_guesses():
    y = torch.tensor([0, 0, 0, 1])
    found = ub.Categorical(3).guess(y)
    torch.testing.assert_close(found.exp(), torch.tensor([4, 4, 4, 2]).double() / 6)
    y = torch.tensor([[1.0], [3.0]])
    normal = torch.distributions.Normal(2.0, 1.0)
    torch.testing.assert_close(ub.Gaussian().guess(y).float(), normal.log_prob(y[:, 0]))


def test_refusals():
    model = ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2))
    x, y = classes(32)
    common = {"epochs": 1, "batch_size": 8, "progress": False, "depth_rule": HeldOutAscent()}
    with pytest.raises(ValueError, match="TruncatedPoisson has none"):
        ub.fit(model, x, y, validation=(x, y), **common)
    with pytest.raises(ValueError, match="needs a validation set"):
        ub.fit(tiny(), x, y, **common)
    with pytest.raises(ValueError, match="TruncatedPoisson has none"):
        ub.fit([model], x, y, validation=(x, y), **common)
    with pytest.raises(ValueError, match="needs a validation set"):
        ub.fit([tiny(), tiny()], x, y, **common)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    with pytest.raises(ValueError, match="as arrays"):
        ub.fit(tiny(), x, y, validation=loader, **common)
    bad = [("memory", 0), ("speed", 2), ("price", -1), ("narrowest", 0), ("width", -1)]
    for reference in ((1e9, 1), (3, 1e9), (3, 1e-200), (3,), 5, (1, 2, 3), "ab"):
        bad.append(("reference", reference))
    for name, value in bad:
        with pytest.raises(ValueError, match=name):
            HeldOutAscent(**{name: value})


@pytest.mark.parametrize("guesses", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_gives_no_number_spoils_nothing(value, guesses):
    model, rule = tiny(), HeldOutAscent()
    depth = model.depth.max_depth()
    log_lik = torch.full((depth, ROWS), -0.5)
    guess = torch.full((ROWS,), -0.7)
    log_lik[2, 5] = guess[7] = value
    for _ in range(3):
        rule.look(model, log_lik, guess if guesses else None, None)
        rule.settle(model, None)
    rule.check_state(rule.state())
    # The depth that gave no number has lost by it, no more than a row can lose.
    lost = rule._gains[0, 2, 5].item()
    assert -1.2 < lost < -0.5 if guesses else lost == 0
    assert rule._gains[0, :, 7].abs().sum().item() == pytest.approx(0 if guesses else 0.5)


def test_a_look_at_more_or_fewer_rows_keeps_the_means():
    model, rule = tiny(), HeldOutAscent()
    depth = model.depth.max_depth()
    draw = torch.Generator().manual_seed(0)
    for epoch in range(40):
        rows = 400 if epoch < 39 else 150
        scores = -9.0 + 8.0 * (torch.arange(depth) > 0).double()[:, None]
        log_lik = scores + 0.1 * torch.randn(depth, rows, generator=draw).double()
        rule._state[:, 0] += 20  # steps
        rule.look(model, log_lik, None, None)
    means = over.mean(rule._gains, None)[0, :depth]
    torch.testing.assert_close(means[:2], torch.tensor([-9.0, 8.0]).double(), atol=0.1, rtol=0)
    gains = torch.randn(1, 3, 50, generator=draw).double() + 2
    for rows in (20, 50, 170):
        other = over.resized(gains, rows)
        found = [over.mean(t, None) for t in (gains, other)]
        torch.testing.assert_close(*found)
        errors = [over.standard_error(t, found[0], None) for t in (gains, other)]
        torch.testing.assert_close(*errors, rtol=0.3, atol=0)


@pytest.mark.parametrize("needed", [2, 5])
def test_the_depth_that_pays_is_found_where_rows_are_fresh_and_count_differently(needed):
    """Half of the rows need depth and are short. Which ones, is drawn anew for each look."""
    draw = torch.Generator().manual_seed(0)
    model, rule, rows = tiny(), HeldOutAscent(most=1024), 2000
    guess = torch.full((rows,), 0.25).double().log()
    for epoch in range(200):
        depth = model.depth.max_depth()
        rule.reserve(model, depth)
        hard = torch.rand(rows, generator=draw) < 0.5
        counts = torch.where(hard, 15.0, 55.0)
        depths, learnt = torch.arange(1, depth + 1).double()[:, None], min(1.0, epoch / 20)
        log_lik = -1.3 + learnt * torch.where(hard, depths.clamp(max=needed) / needed, 1.2)
        log_lik = log_lik + 0.1 * torch.randn(depth, rows, generator=draw).double()
        rule._sums[0, :depth] += 20 * log_lik.mean(1)
        rule._state[0, 0] += 20
        rule.look_at_fresh(model, log_lik.clamp(max=-1e-4), guess, counts)
        rule.settle(model, over.even(counts[None])[0])
    assert float(rule._state[0, 1]) < 0.5  # nothing drifts
    assert model.depth.mode() == needed


def test_evened_rows_have_the_mean_and_the_error_of_weighted_ones():
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, 500, generator=draw).double()
    weights = torch.rand(2, 500, generator=draw) * 9 + 1
    found = over.evened(values, weights)
    torch.testing.assert_close(found.mean(-1), over.mean(values, weights))
    errors = (
        over.standard_error(rows, over.mean(rows, by), by)
        for rows, by in ((found, over.even(weights)), (values, weights))
    )
    torch.testing.assert_close(*errors, rtol=1e-3, atol=0)  # n − 1 of 500 rows, or of fewer
    assert over.even(weights).sum(1).tolist() == pytest.approx(weights.sum(1).tolist())


def test_rows_count_for_no_more_than_most():
    """As if each counted for less: means and errors stay, nats shrink."""
    moved = []
    for rule, weights in (
        (HeldOutAscent(most=40), None),
        (HeldOutAscent(), torch.full((ROWS,), 40 / ROWS)),
        (HeldOutAscent(most=ROWS), None),
        (HeldOutAscent(), None),
    ):
        model = tiny()
        draw = torch.Generator().manual_seed(0)
        for _ in range(12):
            depth = model.depth.max_depth()
            rule.reserve(model, depth)
            rule._state[0, 0] += 20
            quality = -0.5 + 0.4 * (torch.arange(1, depth + 1) > 2)[:, None]
            log_lik = quality - 0.1 * torch.rand(depth, ROWS, generator=draw)
            rule.look(model, log_lik.double(), torch.full((ROWS,), -0.7), weights)
            rule.settle(model, weights)
        moved.append((model.depth.place, model.depth.spread))
    assert moved[0] == pytest.approx(moved[1], abs=1e-6)
    assert moved[2] == moved[3]
    assert moved[0] != pytest.approx(moved[3], abs=1e-2)
    with pytest.raises(ValueError, match="most must be"):
        HeldOutAscent(most=0)
