"""A population trains each member as if it were alone: the same weights, births and best epochs."""

import copy
import math
import os
import signal
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import unbounded as ub
from unbounded.data import spiral
from unbounded.engines import Eager, Stacked
from unbounded.engines.stacked import OutgrownError
from unbounded.engines.stacked.networks import VmapStack
from unbounded.engines.stacked.optimizers import RowAdam, RowAdamW, RowSGD
from unbounded.files import FileError
from unbounded.layers.dense import DenseLayer
from unbounded.layers.dense_stack import DenseStack
from unbounded.layers.stacks import Extent
from unbounded.predictive import combine, predict_ensemble
from unbounded.priors import WeightPrior
from unbounded.steps.options import FitOptions
from unbounded.training import Callback, RateAscent
from unbounded.training.checkpoint import seconds_so_far
from unbounded.training.fit import _task

ROWS, BATCH = 96, 32


def classes(seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    return spiral(4, rows, seed=seed)


def held_out(seed: int, rows: int = 64) -> tuple[Tensor, Tensor]:
    return spiral(4, rows, seed=seed, part="validation")


DEEP = ub.PoissonDepth(9.0)
"""A prior under which λ rises from 1 and layers are born within a few epochs."""


def udn(seed: int, depth=None, prior=DEEP, layers=None, **options) -> ub.UDN:
    """In double precision, so that rounding stays far below the differences that matter."""
    layers = ub.Dense(2, 6, 2) if layers is None else layers
    return ub.UDN(layers, ub.Categorical(2), depth, prior, seed=seed, **options).double()


def started(models, data, *, validation=None, batch_size=BATCH, lr=0.005, **options) -> Stacked:
    """An engine with a task, before its first epoch."""
    sets = {} if validation is None else {"val": validation}
    task = _task(
        models,
        range(len(models)),
        lambda number, birth: None,
        data=data,
        sets=sets,
        batch_size=batch_size,
        lr=lr,
        seed=None,
        options=FitOptions.of(options),
        lone=False,
    )
    engine = Stacked()
    engine.start(task)
    return engine


def run_epoch(engine: Stacked) -> list:
    engine.begin_epoch(engine.epoch)
    while engine.step(True):
        pass
    rows = engine.end_epoch()
    if engine.task.validates:
        engine.keep_best(range(len(rows)))
    return rows


def assert_same(one: ub.UDN, other: ub.UDN, tolerance: float = 1e-9) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=tolerance, atol=tolerance)


def assert_same_history(one, other, columns=("elbo", "depth_mean", "val_log_score")) -> None:
    for column in (*columns, "max_depth", "num_layers"):
        assert one.history[column] == pytest.approx(other.history[column], rel=1e-6, abs=1e-9)
    assert one.history.births == other.history.births
    assert one.best_epoch == other.best_epoch
    assert one.best_score == pytest.approx(other.best_score, abs=1e-9)
    assert one.stopped == other.stopped


def mixed(layers=None) -> list[ub.UDN]:
    return [
        udn(0, ub.TruncatedPoisson(1.0), layers=layers),
        udn(1, ub.FixedDepth(3), layers=layers),
        udn(2, ub.TruncatedPoisson(2.0, quantile=0.9), layers=layers),
        udn(3, ub.FiniteDepth(4), ub.UniformDepth(4), layers=layers),
        udn(4, ub.FixedDepth(2), layers=layers),
        udn(
            5,
            ub.TruncatedConwayMaxwell(1.0, 3.0, limit=6),
            ub.GeometricDepth(0.3),
            layers=layers,
        ),
    ]


def type_name(part) -> str:
    return type(part).__name__


def test_every_member_equals_the_same_model_alone_over_50_epochs_with_births():
    lr, ratio = [0.02, 0.01, 0.03, 0.01, 0.02, 0.02], [20.0, 0.1, 10.0, 1.0, 0.1, 20.0]
    data = [classes(seed) for seed in range(6)]
    validation = [held_out(seed) for seed in range(6)]
    together = mixed()
    results = ub.fit(
        together,
        data,
        validation=validation,
        epochs=50,
        batch_size=BATCH,
        lr=lr,
        depth_lr_ratio=ratio,
    )
    births = 0
    for index, alone in enumerate(mixed()):
        result = ub.fit(
            alone,
            *data[index],
            validation=validation[index],
            epochs=50,
            batch_size=BATCH,
            lr=lr[index],
            depth_lr_ratio=ratio[index],
        )
        births += len(result.history.births)
        assert_same(together[index], alone)
        assert_same_history(results[index], result, ("elbo", "weight_kl", "val_accuracy"))
    assert births >= 4, "the rates were chosen so that layers are born"


def test_a_population_of_one_reproduces_fit_in_single_precision():
    def model() -> ub.UDN:
        return ub.UDN(ub.Dense(2, 8, 2), ub.Categorical(2), seed=3)

    x, y = classes(0)
    alone, member = model(), model()
    options = {
        "validation": held_out(0),
        "epochs": 8,
        "batch_size": 40,
        "depth_lr_ratio": 10.0,
        "seed": 9,
    }
    expected = ub.fit(alone, x, y, **options)
    (result,) = ub.fit([member], (x, y), **options)
    assert_same(member, alone, 1e-4)
    assert result.best_epoch == expected.best_epoch
    assert result.history["val_log_score"] == pytest.approx(
        expected.history["val_log_score"], abs=1e-4
    )


def batch_norm_layers() -> ub.CustomLayers:
    def hidden(depth: int) -> nn.Module:
        linear = nn.Linear(2 if depth == 1 else 6, 6)
        return nn.Sequential(linear, nn.BatchNorm1d(6), nn.Tanh())

    return ub.CustomLayers(hidden, lambda depth: nn.Linear(6, 2))


@pytest.mark.parametrize(
    ("layers", "kind"),
    [
        (ub.Dense(2, 6, 2, activation="tanh"), DenseStack),
        (ub.Dense(2, 6, 2, activation="gelu"), DenseStack),
        (ub.Dense(2, 6, 2, activation="mish"), VmapStack),
        (ub.Dense(2, 6, 2, shares_head=True, init="he"), DenseStack),
        (ub.PreNormDense(2, 6, 2), DenseStack),
        (ub.PreNormDense(2, 6, 2, activation="tanh", shares_head=True), DenseStack),
        (ub.PreNormDense(2, 6, 2, activation="relu"), DenseStack),
        (ub.PreNormDense(2, 6, 2, activation="mish"), VmapStack),
        (ub.TableDense(2, 6, 2, embedded=[0]), VmapStack),
        (ub.ResidualDense(2, 6, 2, identity=False), VmapStack),
        (ub.ResidualDense(2, 6, 2, shares_head=True), VmapStack),
        (batch_norm_layers(), VmapStack),
    ],
    ids=[
        *("tanh", "gelu", "mish", "shared head", "pre-norm", "pre-norm, shared head"),
        *("pre-norm, relu", "pre-norm, mish"),
        *("tables", "residual", "residual, shared head", "batch norm"),
    ],
)
def test_other_layers(layers, kind):
    def models() -> list[ub.UDN]:
        return [
            udn(0, ub.TruncatedPoisson(1.0), layers=layers),
            udn(1, ub.FiniteDepth(3), ub.UniformDepth(3), layers=layers),
            udn(2, ub.FixedDepth(2), layers=layers),
        ]

    data, validation = [classes(s) for s in range(3)], [held_out(s) for s in range(3)]
    together = models()
    options = {"validation": validation, "batch_size": BATCH, "lr": 0.02, "depth_lr_ratio": 8.0}
    assert type(started(models(), data, **options).work.network) is kind
    results = ub.fit(together, data, epochs=6, **options)
    for index, alone in enumerate(models()):
        result = ub.fit(
            alone,
            *data[index],
            validation=validation[index],
            epochs=6,
            batch_size=BATCH,
            lr=0.02,
            depth_lr_ratio=8.0,
        )
        assert_same(together[index], alone)
        assert_same_history(results[index], result)


@pytest.mark.parametrize("families", ["uniform", "mixed"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu", "gelu"])
@pytest.mark.parametrize("shares_head", [False, True], ids=["own heads", "shared head"])
@pytest.mark.parametrize("kind", [ub.Dense, ub.PreNormDense])
def test_passes_by_hand_equal_the_modules_and_autograd(kind, shares_head, activation, families):
    """Outputs, also of the averages, and gradients: those of `VmapStack` on the same blocks."""
    layers = kind(2, 6, 2, activation=activation, shares_head=shares_head)
    models = mixed(layers)
    if families == "uniform":
        models = [udn(s, ub.TruncatedPoisson(2.0), layers=layers) for s in range(3)]
    engine = started(models, classes(0), average=0.9, lr=0.02)
    run_epoch(engine)  # averages differ from values
    work = engine.work
    ours, theirs = work.network, VmapStack(layers)
    assert type(ours) is DenseStack
    assert work.extent.uniform == (families == "uniform")
    theirs.allocate(work.extent, work.blocks, work.templates)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(models), 9, 2, generator=generator, dtype=torch.float64)
    active = torch.ones(len(models), work.depth, dtype=torch.bool)
    found = []
    for network in (ours, theirs):
        outputs = network.outputs(x)
        weights = torch.linspace(-1, 2, outputs.numel(), dtype=torch.float64).view(outputs.shape)
        (outputs * weights).sum().backward()
        network.collect(active)
        grads = [b.grad.clone() for b in work.blocks if b.role in ("hidden", "heads")]
        scored = [network.evaluate(x, source).clone() for source in ("value", "average")]
        found.append([outputs.detach().clone(), *scored, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    outputs, scored, averaged = found[0][:3]
    torch.testing.assert_close(outputs, scored, rtol=1e-12, atol=1e-12)
    assert (averaged - scored).abs().max() > 1e-4


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_pre_norm_members_train_as_alone_and_as_by_vmap(monkeypatch, activation):
    layers = ub.PreNormDense(2, 6, 2, activation=activation)
    data, deep = [classes(s) for s in range(8)], ub.PoissonDepth(1e9)

    def models() -> list[ub.UDN]:
        rising = [udn(s, ub.TruncatedPoisson(s - 5.0), deep, layers) for s in (6, 7)]
        return mixed(layers) + rising

    options = {"epochs": 5, "batch_size": 40, "lr": 0.02, "depth_lr_ratio": 10.0, "average": 0.9}
    together, by_vmap, alone = models(), models(), models()
    results = ub.fit(together, data, validation=held_out(0), **options)
    assert any(result.history.births for result in results)
    monkeypatch.setattr(ub.PreNormDense, "stacked", lambda *_: None)
    ub.fit(by_vmap, data, validation=held_out(0), **options)
    for index, model in enumerate(alone):
        result = ub.fit(model, *data[index], validation=held_out(0), **options)
        assert_same(together[index], model)
        assert_same(together[index], by_vmap[index])
        assert_same_history(results[index], result)


def test_pre_norm_layers_that_were_changed_run_by_vmap():
    layers = ub.PreNormDense(2, 6, 2)

    def models() -> list[ub.UDN]:
        return [udn(s, ub.FixedDepth(3), layers=layers) for s in range(2)]

    def modules(models):
        heads = [head for m in models for head in m.network.heads.children()]
        return [list(m.network.hidden.children()) for m in models], heads

    def plain(model):
        old = model.network.hidden["2"]
        model.network.hidden["2"] = DenseLayer(6, 6, torch.relu).double()
        model.network.hidden["2"].load_state_dict(old.state_dict())

    def frozen(model):
        model.network.hidden["2"].weight.requires_grad_(False)

    def hooked(model):
        model.network.hidden["3"].register_forward_hook(lambda *_: None)

    assert layers.stacked(*modules(models())) is DenseStack
    assert ub.Dense(2, 6, 2).stacked(*modules(models())) is None
    for change in (plain, frozen, hooked):
        changed = models()
        change(changed[1])
        assert layers.stacked(*modules(changed)) is None
    for change in (plain, frozen):
        together, alone = models(), models()
        for model in (*together, *alone):
            change(model)
        ub.fit(together, classes(0), epochs=2, batch_size=BATCH)
        ub.fit(alone[1], *classes(0), epochs=2, batch_size=BATCH)
        assert_same(together[1], alone[1])


@pytest.mark.parametrize("noise", [ub.likelihoods.LearntNoise(), ub.likelihoods.InputNoise()])
def test_regression(noise):
    def models() -> list[ub.UDN]:
        layers = ub.Dense(1, 6, noise.outputs_per_target)
        kind = type(noise)
        return [ub.UDN(layers, ub.Gaussian(kind()), seed=s).double() for s in range(3)]

    x = torch.linspace(-1, 1, ROWS)[:, None]
    data = (x, torch.sin(4 * x) + 0.1 * torch.cos(50 * x))
    options = {
        "validation": (x[::3], torch.sin(4 * x[::3])),
        "epochs": 6,
        "batch_size": 30,
        "lr": 0.03,
    }
    together = models()
    results = ub.fit(together, data, **options)
    for index, alone in enumerate(models()):
        result = ub.fit(alone, *data, **options)
        assert_same(together[index], alone)
        assert_same_history(results[index], result, ("elbo", "val_rmse"))


def test_members_with_different_sizes_and_weights():
    sizes = [96, 70, 64]
    weights = [torch.rand(n, generator=torch.Generator().manual_seed(n)) + 0.5 for n in sizes]
    data = [(*classes(s, n), w) for s, (n, w) in enumerate(zip(sizes, weights, strict=True))]
    validation = [held_out(s, 40 + 7 * s) for s in range(3)]
    together = [udn(s) for s in range(3)]
    options = {"epochs": 7, "batch_size": BATCH, "depth_lr_ratio": 10.0}
    results = ub.fit(together, data, validation=validation, **options)
    for index in range(3):
        alone = udn(index)
        x, y, w = data[index]
        result = ub.fit(alone, x, y, weights=w, validation=validation[index], **options)
        assert_same(together[index], alone)
        assert_same_history(results[index], result)


class LaplaceWeights(WeightPrior):
    """|θ|: a prior whose gradient is left to autograd."""

    def kl(self, parameters):
        return torch.stack([p.abs().sum() for p in parameters])


@pytest.mark.parametrize(
    "options",
    [
        {"weight_prior": ub.GaussianWeights(0.5, posterior_scale=0.2)},
        {"weight_prior": LaplaceWeights()},
        {"cumulative_heads": True},
    ],
    ids=["posterior scale", "a prior of one's own", "cumulative heads"],
)
def test_what_the_weights_cost(options):
    data = classes(0)
    together = [udn(s, ub.TruncatedPoisson(1.5), **options) for s in range(2)]
    arguments = {"epochs": 5, "batch_size": BATCH, "lr": 0.02, "depth_lr_ratio": 10.0}
    results = ub.fit(together, data, **arguments)
    for index in range(2):
        alone = udn(index, ub.TruncatedPoisson(1.5), **options)
        result = ub.fit(alone, *data, **arguments)
        assert_same(together[index], alone)
        for column in ("elbo", "weight_kl"):
            assert results[index].history[column] == pytest.approx(result.history[column])


def test_clipping_and_schedules():
    data, validation = classes(0), held_out(0)
    together, alone = [udn(0), udn(1)], udn(1)

    def factor(epoch: int) -> float:
        return 1 / (1 + epoch)

    options = {"validation": validation, "epochs": 6, "batch_size": BATCH, "lr": 0.05, "clip": 0.1}
    results = ub.fit(together, data, schedule=factor, **options)
    result = ub.fit(alone, *data, scheduler=lambda o: LambdaLR(o, factor), **options)
    assert_same(together[1], alone)
    assert_same_history(results[1], result)


def test_lambda_can_be_held_still_at_first():
    models = [udn(s, ub.TruncatedPoisson(2.0)) for s in range(2)]
    results = ub.fit(
        models,
        classes(0),
        epochs=4,
        batch_size=BATCH,
        depth_lr_ratio=10.0,
        depth_schedule=lambda epoch: float(epoch >= 2),
    )
    means = results[0].history["depth_mean"]
    assert means[0] == means[1] == pytest.approx(ub.TruncatedPoisson(2.0).mean())
    assert abs(means[2] - means[1]) > 0.05


def test_sgd_with_momentum_whose_steps_have_no_bound():
    data = classes(0)
    together = [udn(s, ub.TruncatedPoisson(1.0)) for s in range(2)]
    results = ub.fit(
        together,
        data,
        validation=held_out(0),
        epochs=12,
        batch_size=BATCH,
        lr=0.05,
        depth_lr_ratio=40.0,
        optimizer=partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=1e-3),
    )
    births = 0
    for index in range(2):
        alone = udn(index, ub.TruncatedPoisson(1.0))
        groups = ub.training.param_groups(alone, 0.05, 40.0, weight_decay=1e-3)
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
        result = ub.fit(
            alone,
            *data,
            validation=held_out(0),
            epochs=12,
            batch_size=BATCH,
            optimizer=optimizer,
        )
        births += len(result.history.births)
        assert_same(together[index], alone)
        assert_same_history(results[index], result)
    assert births


def test_layers_outside_of_the_support_keep_weights_and_state():
    """One member's depth falls: what it leaves behind is not moved, nor does its state age."""
    models = [udn(0, ub.TruncatedPoisson(3.0)), udn(1, ub.TruncatedPoisson(3.0))]
    engine = started(models, classes(0), lr=0.02, depth_lr_ratio=30.0)
    deepest = engine.work.depth
    run = engine.work.depths.runs[0]
    with torch.no_grad():
        run.block.value[0, 0] = -3.0  # λ = 0.05, depth 2 and falling
    block = next(b for b in engine.work.blocks if b.role == "hidden" and 2 in b.depths)
    before = block.value.clone()
    for _ in range(2):
        run_epoch(engine)
    row = block.depths.index(5)
    assert deepest >= 5
    assert torch.equal(block.value[row, 0], before[row, 0])
    assert block.steps[row, 0] == 0
    assert all(torch.equal(t[row, 0], torch.zeros_like(t[row, 0])) for t in block.state)
    assert not torch.equal(block.value[row, 1], before[row, 1])
    assert block.steps[row, 1] == 2 * engine.num_steps


def test_a_member_that_diverges_leaves_the_others_alone():
    data, validation = classes(0), held_out(0)
    together, alone = [udn(0), udn(1)], udn(1)
    rates = [1e200, 0.02]  # overflows in the second step
    options = {"validation": validation, "epochs": 4, "batch_size": BATCH}
    results = ub.fit(together, data, lr=rates, depth_lr_ratio=[0.0, 1.0], **options)
    assert results[0].stopped == "diverged"
    assert all(torch.isfinite(t).all() for t in together[1].state_dict().values())
    ub.fit(alone, *data, lr=0.02, depth_lr_ratio=1.0, **options)
    assert_same(together[1], alone)
    assert results[1].stopped == "epochs"


def test_patience_stops_each_member_by_itself():
    data, validation = [classes(s) for s in range(3)], [held_out(s) for s in range(3)]
    options = {"epochs": 40, "batch_size": BATCH, "lr": 0.05, "patience": 3}
    together = [udn(s) for s in range(3)]
    results = ub.fit(together, data, validation=validation, **options)
    lengths = set()
    for index in range(3):
        alone = udn(index)
        result = ub.fit(alone, *data[index], validation=validation[index], **options)
        assert_same(together[index], alone)
        assert_same_history(results[index], result)
        assert len(results[index].history) == len(result.history)
        lengths.add(len(result.history))
    assert len(lengths) > 1


def test_chunks_change_nothing():
    data = [classes(s) for s in range(6)]
    whole, chunked = mixed(), mixed()
    options = {
        "validation": held_out(0),
        "epochs": 3,
        "batch_size": BATCH,
        "lr": [0.01 + 0.001 * i for i in range(6)],
    }
    results = ub.fit(whole, data, **options)
    in_parts = ub.fit(chunked, data, chunk=4, **options)
    for index in range(6):
        assert_same(whole[index], chunked[index], 1e-12)
        assert results[index].best_epoch == in_parts[index].best_epoch


def test_chunks_are_resumed_one_by_one(tmp_path):
    def models() -> list[ub.UDN]:
        return [udn(s, ub.TruncatedPoisson(0.5 + s % 3)) for s in range(8)]

    class Epochs(Callback):
        def __init__(self):
            self.seen: list[int] = []

        def on_epoch_end(self, trainer, row):
            self.seen.append(trainer.epoch)

    data = [classes(s) for s in range(8)]
    options = {
        "validation": held_out(0),
        "batch_size": BATCH,
        "lr": 0.05,
        "depth_lr_ratio": [5.0 + s for s in range(8)],
    }
    alone, resumed = models(), models()
    before = torch.get_rng_state()
    results = ub.fit(alone, data, epochs=6, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(len(r.history.births) for r in results) > 4
    path = tmp_path / "a.safetensors"
    ub.fit(models(), data, epochs=3, chunk=4, checkpoint=path, **options)
    assert {p.name for p in tmp_path.iterdir()} == {
        "a-1of2.safetensors",
        "a-2of2.safetensors",
    }
    assert seconds_so_far(path) > 0
    assert seconds_so_far(tmp_path / "b.safetensors") == 0
    epochs = Epochs()
    arguments = {"chunk": 4, "checkpoint": path, "resume": True, "callbacks": [epochs], **options}
    ub.fit(resumed, data, epochs=6, **arguments)
    assert sorted(epochs.seen) == [4, 4, 5, 5, 6, 6]
    for index in range(8):
        assert_same(resumed[index], alone[index], 1e-12)


def test_the_number_of_threads_changes_nothing():
    """With enough rows that torch divides the operations among its threads."""

    def train(threads: int) -> list[ub.UDN]:
        torch.set_num_threads(threads)
        models = [udn(s, layers=ub.Dense(2, 32, 2)) for s in range(12)]
        data = [classes(s, 128) for s in range(12)]
        ub.fit(models, data, validation=held_out(0, 128), epochs=2, batch_size=128)
        assert torch.get_num_threads() == threads
        return models

    for one, other in zip(train(1), train(2), strict=True):
        assert_same(one, other, 1e-12)


def test_monitored_sets_and_a_thinned_history():
    models = [udn(0), udn(1)]
    results = ub.fit(
        models,
        classes(0),
        validation=held_out(0),
        monitor={"test": [held_out(7), held_out(8)]},
        epochs=7,
        batch_size=BATCH,
        history_every=3,
    )
    history = results[1].history
    assert history["epoch"] == [3, 6, 7]
    alone = udn(1)
    expected = ub.fit(
        alone,
        *classes(0),
        validation=held_out(0),
        monitor={"test": held_out(8)},
        epochs=7,
        batch_size=BATCH,
    )
    every = expected.history["test_accuracy"]
    assert history["test_accuracy"] == pytest.approx([every[2], every[5], every[6]])
    best = expected.history[results[1].best_epoch - 1]
    assert results[1].best_row["val_log_score"] == pytest.approx(best["val_log_score"])


def test_moving_averages_follow_their_definition():
    data, validation = classes(0), held_out(0)
    member, alone = udn(0, ub.FixedDepth(2)), udn(0, ub.FixedDepth(2))
    ub.fit([member], data, validation=validation, epochs=1, batch_size=BATCH, average=0.8)
    optimizer = ub.make_optimizer(alone)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    averages = {name: p.detach().clone() for name, p in alone.named_parameters()}
    for taken, rows in enumerate(order.split(BATCH), 1):
        ub.step(alone, optimizer, data[0][rows].double(), data[1][rows], ROWS)
        decay = min(0.8, (1 + taken) / (10 + taken))
        for name, parameter in alone.named_parameters():
            averages[name].lerp_(parameter.detach(), 1 - decay)
    for name, parameter in member.named_parameters():
        torch.testing.assert_close(parameter.detach(), averages[name])


@pytest.mark.parametrize("averaging", [None, 0.9])
def test_resuming_goes_on_bit_for_bit(tmp_path, averaging):
    data = [classes(s) for s in range(6)]
    options = {
        "validation": held_out(0),
        "batch_size": 40,
        "lr": 0.02,
        "depth_lr_ratio": 10.0,
        "average": averaging,
    }
    whole, resumed = mixed(), mixed()
    path = tmp_path / "population.safetensors"
    results = ub.fit(whole, data, epochs=9, **options)
    ub.fit(mixed(), data, epochs=4, checkpoint=path, **options)
    again = ub.fit(resumed, data, epochs=9, checkpoint=path, resume=True, **options)
    for index in range(6):
        for name, tensor in whole[index].state_dict().items():
            assert torch.equal(tensor, resumed[index].state_dict()[name])
        rows = [
            [{**row, "seconds": 0} for row in found[index].history] for found in (results, again)
        ]
        assert rows[0] == rows[1]
        assert results[index].history.births == again[index].history.births
    finished = mixed()
    ub.fit(finished, data, epochs=9, checkpoint=path, resume=True, **options)
    assert_same(finished[0], whole[0], 0)


def test_resuming_batch_norm_and_another_population(tmp_path):
    layers = batch_norm_layers()
    path = tmp_path / "population.safetensors"

    def models() -> list[ub.UDN]:
        return [udn(s, layers=layers) for s in range(2)]

    options = {"validation": held_out(0), "batch_size": BATCH}
    whole, resumed = models(), models()
    ub.fit(whole, classes(0), epochs=4, **options)
    ub.fit(models(), classes(0), epochs=2, checkpoint=path, **options)
    ub.fit(resumed, classes(0), epochs=4, checkpoint=path, resume=True, **options)
    assert_same(whole[1], resumed[1], 0)
    with pytest.raises(FileError, match="models was 2, is 1"):
        ub.fit(models()[:1], classes(0), checkpoint=path, resume=True, **options)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileError, match="complete"):
        ub.fit(models(), classes(0), checkpoint=path, resume=True, **options)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_ends_after_the_epoch_and_keeps_the_best_one():
    models = [udn(0), udn(1)]

    class Interrupt(Callback):
        def on_epoch_end(self, trainer, row):
            if trainer.epoch == 3:
                os.kill(os.getpid(), signal.SIGINT)

    results = ub.fit(
        models,
        classes(0),
        validation=held_out(0),
        epochs=50,
        batch_size=BATCH,
        callbacks=[Interrupt()],
    )
    assert [r.stopped for r in results] == ["interrupted"] * 2
    assert all(len(r.history) <= 4 for r in results)
    expected = udn(1)
    ub.fit(
        expected,
        *classes(0),
        validation=held_out(0),
        epochs=len(results[1].history),
        batch_size=BATCH,
    )
    assert_same(models[1], expected)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outgrowing_the_allocation_is_an_error_not_a_wrong_number(monkeypatch):
    monkeypatch.setattr(RowAdam, "longest_step", 1e-6)  # a bound that does not hold
    models = [udn(0, ub.TruncatedPoisson(1.0))]
    engine = started(models, classes(0), batch_size=8, lr=0.5, depth_lr_ratio=2.0)
    run = engine.work.depths.runs[0]
    run.block.state[0].fill_(-1.0)  # a momentum upwards
    with pytest.raises(OutgrownError, match="layers in epoch"):
        run_epoch(engine)


def test_new_layers_are_allocated_only_when_they_may_be_needed():
    models = [udn(0, ub.TruncatedPoisson(1.0)), udn(1, ub.FixedDepth(2))]
    engine = started(models, classes(0), depth_lr_ratio=0.1)
    assert engine.work.depth == models[0].depth.max_depth() == 4
    assert engine.work.extent.counts == [2, 2, 1, 1]
    run_epoch(engine)
    assert engine.work.depth == 4


def numbers_of(families) -> dict[str, Tensor]:
    """λ of several families of one class, with a leading axis."""
    names = families[0].numbers()
    return {n: torch.stack([f.numbers()[n].detach() for f in families]) for n in names}


@given(
    raw=st.lists(st.floats(-8, 60), min_size=1, max_size=5),
    family=st.sampled_from(
        [
            lambda: ub.TruncatedPoisson(1.0, 0.5),
            lambda: ub.TruncatedPoisson(1.0, 0.999),
            lambda: ub.TruncatedPoisson(1.0, limit=9),
            lambda: ub.TruncatedConwayMaxwell(1.0, 0.3),
            lambda: ub.TruncatedConwayMaxwell(1.0, 10.0),
        ]
    ),
)
@settings(max_examples=100, deadline=None)
def test_many_members_have_the_supports_of_lone_ones(raw, family):
    families = [family().double() for _ in raw]
    for one, value in zip(families, raw, strict=True):
        one.raw_rate.data.fill_(value)
    at = numbers_of(families)
    expected = [one.max_depth() for one in families]
    size = max(expected)
    assert families[0].end(at, size).tolist() == expected
    if size > 1:
        short = families[0].end(at, size - 1)
        assert (short > size - 1).tolist() == [e > size - 1 for e in expected]
    movement = torch.full((len(raw),), 0.3, dtype=torch.float64)
    for one in families:
        one.raw_rate.data.add_(0.3)
    moved = [one.max_depth() for one in families]
    assert families[0].reach(at, movement, max(moved)).tolist() == moved


def test_many_members_have_the_probabilities_and_gradients_of_lone_ones():
    finite = [ub.FiniteDepth(3).double() for _ in range(2)]
    finite[1].logits.data = torch.tensor([1.0, -2.0, 0.5]).double()
    for families in (
        [ub.TruncatedConwayMaxwell(r, 4.0).double() for r in (0.5, 5.0, 8.0)],
        [ub.TruncatedPoisson(r).double() for r in (0.3, 4.0, 30.0)],
        [ub.FixedDepth(3), ub.FixedDepth(1)],
        finite,
    ):
        at = {n: t.requires_grad_(t.is_floating_point()) for n, t in numbers_of(families).items()}
        size = 2 + max(f.max_depth() for f in families)
        log_q = families[0].log_probs_at(at, size)
        weights = torch.linspace(-1, 2, size).double()
        if log_q.requires_grad:
            (log_q.exp() * weights).sum().backward()
        for row, family in enumerate(families):
            own = family.log_probs()
            expected = torch.zeros(size, dtype=torch.float64)
            expected[: len(own)] = own.detach().double().exp()
            torch.testing.assert_close(log_q[row].detach().exp(), expected)
            if own.requires_grad:
                (own.double().exp() * weights[: len(own)]).sum().backward()
            for name, parameter in family.named_parameters():
                torch.testing.assert_close(at[name].grad[row], parameter.grad)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RowAdam(), lambda p: torch.optim.Adam(p, lr=0.1)),
        (
            RowAdam((0.8, 0.99), 1e-3, 0.2),
            lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.99), 1e-3, weight_decay=0.2),
        ),
        (RowAdamW(), lambda p: torch.optim.AdamW(p, lr=0.1)),
        (
            RowAdamW((0.8, 0.99), 1e-3, 0.2),
            lambda p: torch.optim.AdamW(p, 0.1, (0.8, 0.99), 1e-3, weight_decay=0.2),
        ),
        (RowSGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            RowSGD(0.9, True, 0.2),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2),
        ),
    ],
    ids=["adam", "adam with options", "adamw", "adamw with options", "sgd", "sgd with options"],
)
def test_optimisers_have_torchs_arithmetic_row_by_row(ours, theirs):
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    value = first.clone()
    state = [torch.zeros_like(value) for _ in range(ours.slots)]
    steps = torch.zeros(2, 3, dtype=torch.float64)
    lone = [[nn.Parameter(first[i, j].clone()) for j in range(3)] for i in range(2)]
    optimisers = [[theirs([p]) for p in row] for row in lone]
    lr = torch.full((3,), 0.1, dtype=torch.float64)
    for _ in range(12):
        grad = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
        active = torch.rand(2, 3, generator=generator) < 0.6
        for i in range(2):
            for j in range(3):
                lone[i][j].grad = grad[i, j].clone() if active[i, j] else None
                optimisers[i][j].step()
        ours.update(value, grad.clone(), state, ours.coefficients(steps, active, lr, value.dtype))
    expected = torch.stack([torch.stack([p.detach() for p in row]) for row in lone])
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.9, 0.82)]))
@settings(max_examples=40, deadline=None)
def test_no_adam_step_is_longer_than_its_bound(seed, betas):
    """Also not after unkind gradients: quiet for long, then growing as the bound fears."""
    adam = RowAdam(betas)
    generator = torch.Generator().manual_seed(seed)
    count = 200
    value = torch.zeros(1, count, 1, dtype=torch.float64)
    state = [torch.zeros_like(value), torch.zeros_like(value)]
    steps = torch.zeros(1, count, dtype=torch.float64)
    always = torch.ones(1, count, dtype=torch.bool)
    lr = torch.ones(count, dtype=torch.float64)
    ratio = torch.rand(count, generator=generator, dtype=torch.float64) * 1.5 + 0.5
    quiet = torch.randint(0, 40, (count,), generator=generator)
    for time in range(60):
        before = value.clone()
        growing = (betas[1] / betas[0]) ** (time * ratio)
        grad = torch.where(time < quiet, 1e-12, growing)[None, :, None]
        adam.update(value, grad.clone(), state, adam.coefficients(steps, always, lr, value.dtype))
        assert (value - before).abs().max() <= adam.longest_step * (1 + 1e-9)
    assert (value - before).abs().max() > 0.5  # the bound is not idle


def test_parts_of_ones_own_are_told_apart_by_what_is_known_of_them():
    class Laplace(ub.Likelihood):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def log_prob(self, outputs, y):
            return -(outputs[..., 0] - y[..., 0]).abs() / self.scale

    def halved(linear):
        linear.weight.data.mul_(0.5)

    def model(seed, scale=1.0, init=halved):
        return ub.UDN(ub.Dense(1, 4, 1, init=init), Laplace(scale), seed=seed).double()

    x = torch.linspace(-1, 1, ROWS)[:, None]
    together, alone = [model(0), model(1)], model(1)
    ub.fit(together, (x, x), epochs=3, batch_size=BATCH)
    ub.fit(alone, x, x, epochs=3, batch_size=BATCH)
    assert_same(together[1], alone)
    with pytest.raises(ValueError, match="model 1 has likelihood"):
        ub.fit([model(0), model(1, scale=2.0)], (x, x), batch_size=BATCH)
    with pytest.raises(ValueError, match="model 1 has layers"):
        ub.fit([model(0), model(1, init=lambda _: None)], (x, x), batch_size=BATCH)


def test_an_ensemble_is_one_mixture():
    x, y = classes(0)
    models = [udn(s) for s in range(3)]
    ub.fit(models, (x, y), epochs=2, batch_size=BATCH, lr=0.05)
    mixture = predict_ensemble(models, x)
    lone = [ub.predict(m, x) for m in models]
    torch.testing.assert_close(mixture.probs, sum(p.probs for p in lone) / 3)
    torch.testing.assert_close(
        mixture.log_prob(y), torch.stack([p.log_prob(y) for p in lone]).logsumexp(0) - math.log(3)
    )
    assert mixture.depth_log_probs.exp().sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="one likelihood"):
        combine([lone[0], ub.predict(ub.UDN(ub.Dense(2, 4, 1), ub.Gaussian()), x)])


def test_an_ensemble_of_regressors_keeps_each_members_noise():
    x = torch.linspace(-1, 1, 20)[:, None]
    models = [ub.UDN(ub.Dense(1, 4, 1), ub.Gaussian(), seed=s).double() for s in range(2)]
    with torch.no_grad():
        models[1].likelihood.noise.log_scale.fill_(-2.0)
    mixture = predict_ensemble(models, x)
    one, two = (ub.predict(m, x) for m in models)
    mean = (one.mean + two.mean) / 2
    torch.testing.assert_close(mixture.mean, mean)
    variance = (
        (one.variance + (one.mean - mean) ** 2) + (two.variance + (two.mean - mean) ** 2)
    ) / 2
    torch.testing.assert_close(mixture.variance, variance)
    y = torch.zeros(20, 1).double()
    torch.testing.assert_close(
        mixture.log_prob(y).exp(), (one.log_prob(y).exp() + two.log_prob(y).exp()) / 2
    )


class HostReads(TorchDispatchMode):
    """Notes operations that a CUDA graph cannot hold: reads by the host, data from the host."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "is_pinned")

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        name = func.overloadpacket.__name__
        booleans = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in self.FORBIDDEN or booleans:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("layers", "likelihood", "options"),
    [
        (ub.Dense(2, 6, 2), ub.Categorical(2), {}),
        (ub.Dense(2, 6, 2, shares_head=True), ub.Categorical(2), {"average": 0.9, "clip": 1.0}),
        (ub.PreNormDense(2, 6, 2), ub.Categorical(2), {"average": 0.9}),
        (batch_norm_layers(), ub.Categorical(2), {}),
        (ub.Dense(2, 6, 1), ub.Bernoulli(), {"patience": 3}),
        (ub.Dense(2, 6, 1), ub.Gaussian(), {"select": "log_score"}),
    ],
    ids=["dense", "shared head", "pre-norm", "batch norm", "bernoulli", "regression"],
)
def test_an_epoch_can_be_captured(layers, likelihood, options):
    """What CUDA graphs ask for, as far as a CPU can tell: no host reads, nothing changes place."""

    def model(seed, depth=None):
        return ub.UDN(layers, copy.deepcopy(likelihood), depth, seed=seed)

    models = [model(0), model(1, ub.FiniteDepth(3)), model(2, ub.FixedDepth(2))]
    x, y = classes(0)
    y = y.float() if isinstance(likelihood, ub.Gaussian) else y
    validation = [(x[s : s + 40], y[s : s + 40]) for s in (0, 9, 20)]
    data = [(x, y), (x[:70], y[:70]), (x, y, torch.rand(ROWS))]
    options.pop("patience", None)  # the loop's
    engine = started(models, data, validation=validation, **options)
    work = engine.work
    run_epoch(engine)  # the first call of each part runs outside of a graph

    def places():
        tensors = work.tensors()
        for index, block in enumerate(work.blocks):
            tensors[f"{index}.grad"] = block.grad
        inner = ("cursor", "sums", "taken", "status", "rates", "movement", "better")
        tensors |= {name: getattr(work, name) for name in inner}
        tensors["orders"] = work.orders.orders
        return {name: tensor.data_ptr() for name, tensor in tensors.items()}

    before = places()
    for part in (lambda: work.step(BATCH), work.score, work.look, work.keep_best):
        work.cursor.zero_()
        with HostReads() as mode:
            part()
        assert mode.calls > 5
        assert mode.seen == []
    run_epoch(engine)
    assert places() == before
    with HostReads() as mode:
        work.status.tolist()
        work.status.sum().item()
    assert mode.seen, "the mode would have noticed"


@pytest.mark.parametrize("layers", [ub.Dense(2, 6, 2), ub.PreNormDense(2, 6, 2)], ids=type_name)
def test_all_heads_as_one_product_give_the_same(monkeypatch, layers):
    """As on a GPU, where fewer kernels matter more than caches."""

    def train() -> list[ub.UDN]:
        models = [udn(s, ub.TruncatedPoisson(1.0 + s), layers=layers) for s in range(3)]
        options = {"validation": held_out(0), "batch_size": 40, "lr": 0.02, "depth_lr_ratio": 8.0}
        ub.fit(models, classes(0), epochs=4, **options)
        return models

    apart = train()
    asked = []

    def joint(self, x):
        asked.append(self.extent.uniform)
        return True

    monkeypatch.setattr(DenseStack, "_joint", joint)
    at_once = train()
    assert asked
    assert all(asked), "this path is for members that all may have every depth"
    for one, other in zip(apart, at_once, strict=True):
        assert_same(one, other, 1e-11)


def test_extent_says_who_runs_which_layer():
    extent = Extent([None, 4, 3, 3, 1], [1, 1, 3, 3, 1], 5)
    assert extent.counts == [5, 4, 4, 2, 1]
    assert extent.starts == [0, 0, 0, 0, 0]
    assert not extent.uniform
    fixed = Extent([3, 2, 2], [3, 2, 2], 3)
    assert fixed.counts == [3, 3, 1]
    assert fixed.heads(1) is None
    assert fixed.heads(2) == slice(1, 3)
    assert fixed.heads(3) == slice(0, 1)
    assert Extent([None, None], [1, 1], 7).uniform


def test_mistakes_are_told_before_any_training():
    first, second = udn(0), udn(1)
    data = classes(0)
    both = [first, second]

    def refused(match, models, data=data, **options):
        with pytest.raises(ValueError, match=match):
            ub.fit(models, data, **{"batch_size": BATCH, **options})

    refused("at least one", [])
    refused("twice", [first, first])
    refused("model 1 has layers", [first, udn(1, layers=ub.Dense(2, 7, 2))])
    refused("3 sets for 2 models", both, [data] * 3)
    refused("2 values of lr for 1 models", [first], lr=[0.1, 0.2])
    refused("larger than the data", both, batch_size=ROWS + 1)
    refused("single class", both, (data[0], torch.zeros(ROWS)))
    refused("patience needs", both, patience=2)
    refused("resume needs", both, resume=True)
    refused("does not exist", both, checkpoint="/nowhere/at/all")
    with pytest.raises(ValueError, match="betas"):
        RowAdam((0.95, 0.5))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"autocast": torch.bfloat16}, "autocast"),
        ({"depth_rule": RateAscent()}, "depth_rule"),
        ({"drop_inactive": True}, "drop_inactive"),
        ({"grow_every": "epoch"}, "grow_every"),
        ({"micro_batches": 2}, "micro_batches"),
        ({"scheduler": lambda o: LambdaLR(o, lambda _: 1.0)}, "scheduler"),
        ({"optimizer": torch.optim.Adagrad}, "optimizer=Adagrad"),
        ({"optimizer": partial(torch.optim.Adam, amsgrad=True)}, "amsgrad"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_batched_is_refused_in_a_line_and_runs_one_by_one(option, words):
    models = [udn(0), udn(1)]
    with pytest.raises(ValueError, match=f"Stacked does not take .*{words}") as caught:
        ub.fit(models, classes(0), batch_size=BATCH, **option)
    assert "\n" not in str(caught.value)
    results = ub.fit(models, classes(0), batch_size=BATCH, epochs=1, engine=Eager(), **option)
    assert [len(result.history) for result in results] == [1, 1]


def test_hooks_and_loaders_are_refused():
    models = [udn(0), udn(1)]
    loader = DataLoader(TensorDataset(*classes(0)), 8)
    with pytest.raises(ValueError, match="Stacked does not take DataLoader as training data"):
        ub.fit(models, loader, batch_size=8)
    models[1].network.hidden["2"].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"Stacked does not take hooks, .* hidden\.2"):
        ub.fit(models, classes(0), batch_size=8)


def test_models_in_turn_equal_models_at_once():
    """The same loop over another engine: rows, best epochs, births, averages, schedules."""
    options = {
        "validation": [held_out(s) for s in range(3)],
        "epochs": 7,
        "batch_size": BATCH,
        "lr": [0.02, 0.03, 0.01],
        "depth_lr_ratio": 10.0,
        "average": 0.9,
        "schedule": lambda epoch: 1 / (1 + epoch),
        "depth_schedule": lambda epoch: float(epoch > 0),
        "equal_heads": True,
        "equal_layers": True,
        "clip": 1.0,
        "history_every": 2,
        "patience": 4,
    }
    data = [classes(s) for s in range(3)]
    at_once, in_turn = [udn(s) for s in range(3)], [udn(s) for s in range(3)]
    ones = ub.fit(at_once, data, **options)
    others = ub.fit(in_turn, data, engine=Eager(), **options)
    for one, other, a, b in zip(ones, others, at_once, in_turn, strict=True):
        assert_same(a, b)
        assert one.history.columns == other.history.columns
        assert_same_history(one, other, ("elbo", "weight_kl", "val_accuracy", "lr", "step"))
        assert one.best_row["val_log_score"] == pytest.approx(other.best_row["val_log_score"])


def test_a_subclass_of_a_family_is_taken_as_it_is():
    class Own(ub.TruncatedPoisson):
        def scores(self, at, size):
            return 2 * super().scores(at, size)

    together, alone = [udn(0, Own(1.0)), udn(1, Own(2.0))], udn(1, Own(2.0))
    options = {"epochs": 4, "batch_size": BATCH, "depth_lr_ratio": 10.0}
    ub.fit(together, classes(0), **options)
    ub.fit(alone, *classes(0), **options)
    assert_same(together[1], alone)


def test_a_family_of_two_numbers_is_looked_at_before_every_step_if_need_be():
    class Bell(ub.DepthFamily):
        def __init__(self, place):
            super().__init__()
            self.place = nn.Parameter(torch.tensor(place))
            self.spread = nn.Parameter(torch.zeros(4))

        def scores(self, at, size):
            depths = torch.arange(1, size + 1)
            width = at["spread"].double().mean(-1, keepdim=True).exp()
            return -((depths - at["place"].double()[..., None]) / width).square()

        def end(self, at, size):
            return (at["place"].double() + 2).floor().clamp(min=1).long()

    together, alone = [udn(0, Bell(1.5)), udn(1, Bell(3.0))], udn(1, Bell(3.0))
    options = {"epochs": 6, "batch_size": BATCH, "depth_lr_ratio": 40.0}
    results = ub.fit(together, classes(0), **options)
    result = ub.fit(alone, *classes(0), **options)
    assert_same(together[1], alone)
    assert results[1].history.births == result.history.births
    assert any(r.history.births for r in results)


def test_the_old_name_still_works_and_says_so():
    from unbounded.engine import fit_population

    models = [udn(0), udn(1)]
    with pytest.warns(DeprecationWarning, match="unbounded.fit"):
        results = fit_population(models, classes(0), epochs=1, batch_size=BATCH, seeds=[1, 2])
    assert len(results) == 2
