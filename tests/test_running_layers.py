"""A stack runs only the layers that a member can reach, and finds the same numbers."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import unbounded as ub
from helpers import classes, same, state
from unbounded.engines import Stacked
from unbounded.engines.stacked import OutgrownError
from unbounded.engines.stacked.networks import VmapStack
from unbounded.layers.dense_stack import DenseStack
from unbounded.layers.stacks import Extent
from unbounded.priors import WeightPrior
from unbounded.training import Callback, HeldOutAscent


def batch_norm_layers():
    def hidden(depth):
        return nn.Sequential(nn.Linear(3 if depth == 1 else 4, 4), nn.BatchNorm1d(4), nn.Tanh())

    return ub.CustomLayers(hidden, lambda depth: nn.Linear(4, 2))


class LaplaceWeights(WeightPrior):
    """|θ|: a prior whose gradient is left to autograd."""

    def kl(self, parameters):
        return torch.stack([p.abs().sum() for p in parameters])


LAYERS = {
    "dense": ub.Dense(3, 4, 2),
    "pre-norm": ub.PreNormDense(3, 4, 2),
    "shared head": ub.PreNormDense(3, 4, 2, shares_head=True),
    "batch norm": batch_norm_layers(),
}
DATA, HELD_OUT = (
    [(x.double(), y) for x, y in (classes(rows, seed=seed) for seed in seeds)]
    for rows, seeds in ((96, (0, 1, 2)), (64, (3, 4, 5)))
)


def population(name, starts=(12.0, 9.0, 12.0), **options):
    return [
        ub.UDN(
            LAYERS[name], ub.Categorical(2), ub.TruncatedNormal(start, 2.0), seed=seed, **options
        ).double()
        for seed, start in enumerate(starts)
    ]


class Watch(Callback):
    """Notes how many layers are allocated and run after each epoch; may put λ of all members."""

    def __init__(self, places=None):
        self.seen, self.places = [], places or {}

    def on_epoch_end(self, trainer, row):
        engine = trainer.engine
        if trainer.epoch in self.places:
            put(engine, self.places[trainer.epoch])
        self.seen.append((engine.work.depth, engine.work.running))


def put(engine, place):
    """Give all members a q at that place."""
    for run in engine.work.depths.runs:
        numbers = ub.TruncatedNormal(place, 2.0).numbers()
        for name, own in run.block.shape.unpack(run.block.value[0]).items():
            own.fill_(numbers[name].item())
    engine._reach()


class RunAll(Stacked):
    """As if no support ever shrank."""

    def _run(self, reach):
        assert reach <= self.work.depth == self.work.running


OPTIONS = {"batch_size": 32, "progress": False, "lr": 0.02}


def run(models, engine=None, epochs=8, places=None, **options):
    """By the rule, or with λ put by hand after some epochs."""
    watch = Watch(places)
    if places is None:
        options["depth_rule"] = HeldOutAscent(speed=0.2, reference=(2.0, 1.5))
    else:
        options["depth_lr_ratio"] = 0.0
    results = ub.fit(
        models,
        DATA[: len(models)],
        validation=HELD_OUT[: len(models)],
        engine=Stacked() if engine is None else engine,
        callbacks=[watch],
        epochs=epochs,
        **OPTIONS | options,
    )
    return results, watch.seen


def assert_same_runs(models, results, others, expected):
    for one, other, result, wanted in zip(models, others, results, expected, strict=True):
        assert same(state(one), state(other))
        rows = [[{**row, "seconds": 0} for row in r.history.rows] for r in (result, wanted)]
        assert rows[0] == rows[1]
        assert result.history.births == wanted.history.births


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("dense", {"clip": 0.1, "equal_heads": True}, DenseStack),
        ("dense", {"weight_prior": LaplaceWeights(), "clip": 0.1}, DenseStack),
        ("pre-norm", {"average": 0.9}, DenseStack),
        ("shared head", {"clip": 0.1}, DenseStack),
        ("batch norm", {"average": 0.9, "clip": 0.1}, VmapStack),
    ],
)
def test_layers_that_are_not_run_change_no_bit(name, options, kind):
    of_models = {k: options[k] for k in options if k == "weight_prior"}
    options = {k: options[k] for k in options if k not in of_models}
    models, others = population(name, **of_models), population(name, **of_models)
    engine = Stacked()
    results, seen = run(models, engine, **options)
    assert type(engine.work.network) is kind
    depth, running = seen[-1]
    assert running < depth / 2
    for block in engine.work.blocks:
        assert not block.grad[block.rows_up_to(running) :].any()
    assert_same_runs(models, results, others, run(others, RunAll(), **options)[0])


@pytest.mark.parametrize(
    ("name", "average"), [("pre-norm", None), ("pre-norm", 0.9), ("batch norm", None)]
)
def test_members_equal_lone_models(name, average):
    models = population(name)
    lone = copy.deepcopy(models)
    results, seen = run(models, average=average)
    assert seen[-1][1] < seen[-1][0] / 2
    for number, model in enumerate(lone):
        alone = ub.fit(
            model,
            *DATA[number],
            validation=HELD_OUT[number],
            depth_rule=HeldOutAscent(speed=0.2, reference=(2.0, 1.5)),
            average=average,
            epochs=8,
            **OPTIONS,
        )
        for one, other in zip(alone.history.rows, results[number].history.rows, strict=True):
            for column in ("elbo", "depth_mean", "max_depth", "num_layers", "val_log_score"):
                assert one[column] == pytest.approx(other[column], rel=1e-6), (number, column)
        mine, theirs = model.state_dict(), models[number].state_dict()
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            torch.testing.assert_close(tensor, theirs[key], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "average", "expected"),
    [
        ("pre-norm", None, (9, 14, 19, 10)),
        ("pre-norm", 0.9, (17, 14, 19, 19)),  # the averaged q lags behind
        ("batch norm", None, (9, 14, 19, 10)),
    ],
)
def test_it_grows_again(name, average, expected):
    options = {"average": average, "select": "last", "epochs": 5}
    options["places"] = {1: 2.0, 2: 9.0, 3: 14.0, 4: 3.0}
    models, others = population(name), population(name)
    results, seen = run(models, **options)
    assert seen[:4] == list(zip((17, 17, 19, 19), expected, strict=True))
    assert_same_runs(models, results, others, run(others, RunAll(), **options)[0])


class Bell(ub.DepthFamily):
    """It cannot tell where its support will be after a step."""

    def __init__(self, place):
        super().__init__()
        self.place = nn.Parameter(torch.tensor(place))
        self.idle = nn.Parameter(torch.zeros(4))  # too many numbers to look at all corners

    def scores(self, at, size):
        depths = torch.arange(1, size + 1)
        return -((depths - at["place"].double()[..., None]) / 2).square()

    def end(self, at, size):
        return (at["place"].double() + 2).floor().clamp(min=1).long()


@pytest.mark.parametrize(
    ("family", "optimizer", "ratio"),
    [
        (Bell, torch.optim.Adam, 60.0),
        (ub.TruncatedPoisson, partial(torch.optim.SGD, momentum=0.9), 400.0),
    ],
)
def test_supports_that_grow_by_any_step_are_scored_whole(family, optimizer, ratio):
    class Down(Callback):
        """λ is put far down after two epochs, and rises from there."""

        running = ()

        def on_epoch_end(self, trainer, row):
            engine = trainer.engine
            if trainer.epoch == 2:
                for run in engine.work.depths.runs:
                    run.block.value[0, :, 0] = 1.0  # the first number is the place
                    if family is Bell:  # Adam takes it upwards, about a layer a step
                        run.block.state[0][0, :, 0], run.block.state[1][0, :, 0] = -0.5, 0.002
                engine._reach()
            self.running += (engine.work.running,)

    def trained(engine):
        models = [
            ub.UDN(
                LAYERS["dense"], ub.Categorical(2), family(start), ub.PoissonDepth(20.0), seed=seed
            ).double()
            for seed, start in enumerate((9.0, 10.0))
        ]
        watch = Down()
        options = {"depth_lr_ratio": ratio, "optimizer": optimizer, "select": "last"}
        options["batch_size"] = 96  # every step is the last of an epoch
        results = ub.fit(
            models,
            DATA[:2],
            validation=HELD_OUT[:2],
            engine=engine,
            callbacks=[watch],
            epochs=8,
            **OPTIONS | options,
        )
        return models, results, watch.running

    models, results, running = trained(Stacked())
    others, expected, _ = trained(RunAll())
    assert running[1] < running[0]
    assert running[-1] > running[1]
    assert_same_runs(models, results, others, expected)


def test_the_best_weights_are_written_whole():
    class FirstIsBest(Stacked):
        def keep_best(self, models):
            if self.epoch == 1:
                super().keep_best(models)
                self.show()
                self.kept = [copy.deepcopy(state(model)) for model in self.task.models]

    engine, models = FirstIsBest(), population("pre-norm")
    _, seen = run(models, engine, epochs=4, places={1: 2.0})
    assert seen[-1] == (17, 9)
    for model, kept in zip(models, engine.kept, strict=True):
        assert same(state(model), kept)
        assert model.depth.max_depth() > 9
    assert [model.network.num_layers for model in models] == [17, 14, 17]


def test_resumed_bit_for_bit_where_fewer_layers_run(tmp_path):
    name = "pre-norm"
    models, others, path = population(name), population(name), tmp_path / "stack.checkpoint"
    results, seen = run(models, average=0.5)
    assert seen[4][1] < seen[4][0]
    run(population(name), average=0.5, epochs=5, checkpoint=path)
    again, after = run(others, average=0.5, checkpoint=path, resume=True)
    assert all(running < depth for depth, running in after)
    assert_same_runs(others, again, models, results)


def test_who_trains_no_more_does_not_count_until_it_goes_on(tmp_path):
    class Stop(Watch):
        def on_epoch_end(self, trainer, row):
            super().on_epoch_end(trainer, row)
            if trainer.epoch == 1:
                trainer.engine.stop(0)
            if trainer.epoch == 3:
                trainer.engine.go_on(0)

    watch, models = Stop(), population("pre-norm", (12.0, 2.0))
    engine = Stacked()
    ub.fit(
        models, DATA[:2], engine=engine, callbacks=[watch], epochs=5, depth_lr_ratio=0.0, **OPTIONS
    )
    assert [running for _, running in watch.seen] == [17, 9, 9, 17, 17]


def test_all_heads_at_once_are_those_that_run(monkeypatch):
    apart, at_once = population("pre-norm"), population("pre-norm")
    run(apart, epochs=3, places={1: 2.0})
    monkeypatch.setattr(DenseStack, "_joint", lambda self, x: True)
    _, seen = run(at_once, epochs=3, places={1: 2.0})
    assert seen[-1] == (17, 9)
    for one, other in zip(apart, at_once, strict=True):
        for key, tensor in one.state_dict().items():
            torch.testing.assert_close(tensor, other.state_dict()[key], rtol=1e-9, atol=1e-9)


def test_a_support_beyond_what_runs_is_an_error_not_a_wrong_number():
    class Push(Watch):
        def on_epoch_end(self, trainer, row):
            super().on_epoch_end(trainer, row)
            if trainer.epoch == 2:
                for run in trainer.engine.work.depths.runs:
                    run.block.value.add_(5.0)  # nobody looks

    watch = Push({1: 2.0})
    with pytest.raises(OutgrownError, match="more than 9 layers in epoch"):
        ub.fit(
            population("pre-norm"),
            DATA,
            engine=Stacked(),
            callbacks=[watch],
            epochs=4,
            depth_lr_ratio=0.0,
            **OPTIONS,
        )


def test_an_extent_that_runs_in_part():
    extent = Extent([None, 4, 3, 3, 1], [1, 1, 3, 3, 1], 5, 2)
    assert (extent.depth, extent.running) == (5, 2)
    assert (extent.counts, extent.starts) == ([5, 4], [0, 0])
    assert not extent.uniform
    assert Extent([None, 4], [1, 1], 7, 4).uniform
    assert not Extent([None, 4], [1, 1], 7).uniform
