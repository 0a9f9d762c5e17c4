"""A population trains each member as if it were alone: the same weights, births and best epochs."""

import copy
import math
import os
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode

import unbounded as ub
from unbounded.data import spiral
from unbounded.depth.truncated_poisson import poisson_quantile
from unbounded.engine import (
    SGD,
    Adam,
    Population,
    combine,
    fit_population,
    predict_ensemble,
    selfcheck,
)
from unbounded.engine.dense import DenseStack
from unbounded.engine.depths import (
    ConwayMaxwellStack,
    DepthStack,
    FiniteDepthStack,
    FixedDepthStack,
    TruncatedPoissonStack,
)
from unbounded.engine.loop import seconds_so_far
from unbounded.engine.networks import VmapStack
from unbounded.engine.population import OutgrownError
from unbounded.engine.scores import score_epoch
from unbounded.engine.stacks import Extent
from unbounded.files import FileError
from unbounded.priors import WeightPrior

ROWS, BATCH = 96, 32


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def mixed() -> list[ub.UDN]:
    return [
        udn(0, ub.TruncatedPoisson(1.0)),
        udn(1, ub.FixedDepth(3)),
        udn(2, ub.TruncatedPoisson(2.0, quantile=0.9)),
        udn(3, ub.FiniteDepth(4), ub.UniformDepth(4)),
        udn(4, ub.FixedDepth(2)),
        udn(5, ub.TruncatedConwayMaxwell(1.0, 3.0, limit=6), ub.GeometricDepth(0.3)),
    ]


def test_every_member_equals_the_same_model_alone_over_50_epochs_with_births():
    lr, ratio = [0.02, 0.01, 0.03, 0.01, 0.02, 0.02], [20.0, 0.1, 10.0, 1.0, 0.1, 20.0]
    data = [classes(seed) for seed in range(6)]
    validation = [held_out(seed) for seed in range(6)]
    together = mixed()
    results = fit_population(
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
    options["seeds"] = [options.pop("seed")]
    (result,) = fit_population([member], (x, y), **options)
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
        (ub.Dense(2, 6, 2, activation="gelu"), VmapStack),
        (ub.Dense(2, 6, 2, shares_head=True, init="he"), DenseStack),
        (ub.ResidualDense(2, 6, 2, identity=False), VmapStack),
        (ub.ResidualDense(2, 6, 2, shares_head=True), VmapStack),
        (batch_norm_layers(), VmapStack),
    ],
    ids=["tanh", "gelu", "shared head", "residual", "residual, shared head", "batch norm"],
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
    population = Population(
        together, data, validation=validation, batch_size=BATCH, lr=0.02, depth_lr_ratio=8.0
    )
    assert type(population.network) is kind
    for _ in range(6):
        population.run_epoch()
        population.record()
    results = population.finish()
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
    results = fit_population(together, data, **options)
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
    results = fit_population(together, data, validation=validation, **options)
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
    results = fit_population(together, data, **arguments)
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
    results = fit_population(together, data, schedule=factor, **options)
    result = ub.fit(alone, *data, scheduler=lambda o: LambdaLR(o, factor), **options)
    assert_same(together[1], alone)
    assert_same_history(results[1], result)


def test_lambda_can_be_held_still_at_first():
    models = [udn(s, ub.TruncatedPoisson(2.0)) for s in range(2)]
    results = fit_population(
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
    results = fit_population(
        together,
        data,
        validation=held_out(0),
        epochs=12,
        batch_size=BATCH,
        lr=0.05,
        depth_lr_ratio=40.0,
        optimizer=SGD(momentum=0.9, nesterov=True, weight_decay=1e-3),
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
    population = Population(models, classes(0), batch_size=BATCH, lr=0.02, depth_lr_ratio=30.0)
    deepest = population.depth
    run = population.depths.runs[0]
    with torch.no_grad():
        run.block.value[0, 0] = -3.0  # λ = 0.05, depth 2 and falling
    block = next(b for b in population.blocks if b.role == "hidden" and 2 in b.depths)
    before = block.value.clone()
    for _ in range(2):
        population.run_epoch()
    row = block.depths.index(5)
    assert deepest >= 5
    assert torch.equal(block.value[row, 0], before[row, 0])
    assert block.steps[row, 0] == 0
    assert all(torch.equal(t[row, 0], torch.zeros_like(t[row, 0])) for t in block.state)
    assert not torch.equal(block.value[row, 1], before[row, 1])
    assert block.steps[row, 1] == 2 * population.num_steps


def test_a_member_that_diverges_leaves_the_others_alone():
    data, validation = classes(0), held_out(0)
    together, alone = [udn(0), udn(1)], udn(1)
    rates = [1e200, 0.02]  # overflows in the second step
    options = {"validation": validation, "epochs": 4, "batch_size": BATCH}
    results = fit_population(together, data, lr=rates, depth_lr_ratio=[0.0, 1.0], **options)
    assert results[0].stopped == "diverged"
    assert all(torch.isfinite(t).all() for t in together[1].state_dict().values())
    ub.fit(alone, *data, lr=0.02, depth_lr_ratio=1.0, **options)
    assert_same(together[1], alone)
    assert results[1].stopped == "epochs"


def test_patience_stops_each_member_by_itself():
    data, validation = [classes(s) for s in range(3)], [held_out(s) for s in range(3)]
    options = {"epochs": 40, "batch_size": BATCH, "lr": 0.05, "patience": 3}
    together = [udn(s) for s in range(3)]
    results = fit_population(together, data, validation=validation, **options)
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
    results = fit_population(whole, data, **options)
    in_parts = fit_population(chunked, data, chunk=4, **options)
    for index in range(6):
        assert_same(whole[index], chunked[index], 1e-12)
        assert results[index].best_epoch == in_parts[index].best_epoch


def test_workers_change_nothing_and_share_no_random_numbers(tmp_path):
    """Layers are born in both threads at once, from torch's one global generator."""

    def models() -> list[ub.UDN]:
        return [udn(s, ub.TruncatedPoisson(0.5 + s % 3)) for s in range(8)]

    data = [classes(s) for s in range(8)]
    options = {
        "validation": held_out(0),
        "batch_size": BATCH,
        "lr": 0.05,
        "depth_lr_ratio": [5.0 + s for s in range(8)],
    }
    alone, divided, resumed = models(), models(), models()
    before = torch.get_rng_state()
    results = fit_population(alone, data, epochs=6, workers=1, **options)
    in_parts = fit_population(divided, data, epochs=6, workers=2, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 1
    for index in range(8):
        assert_same(divided[index], alone[index], 1e-12)
        assert results[index].history.births == in_parts[index].history.births
    assert sum(len(r.history.births) for r in results) > 4
    path = tmp_path / "a.safetensors"
    fit_population(models(), data, epochs=3, workers=2, checkpoint=path, **options)
    assert {p.name for p in tmp_path.iterdir()} == {
        "a-1of2.safetensors",
        "a-2of2.safetensors",
    }
    assert seconds_so_far(path) > 0
    assert seconds_so_far(tmp_path / "b.safetensors") == 0
    seen: list[int] = []
    fit_population(
        resumed,
        data,
        epochs=6,
        workers=1,  # divided as before all the same
        checkpoint=path,
        resume=True,
        on_epoch=lambda population: seen.append(population.epoch),
        **options,
    )
    assert sorted(seen) == [4, 4, 5, 5, 6, 6]
    for index in range(8):
        assert_same(resumed[index], alone[index], 1e-12)


def test_the_number_of_threads_changes_nothing():
    """With enough rows that torch divides the operations among its threads."""

    def train(threads: int) -> list[ub.UDN]:
        torch.set_num_threads(threads)
        models = [udn(s, layers=ub.Dense(2, 32, 2)) for s in range(12)]
        data = [classes(s, 128) for s in range(12)]
        fit_population(models, data, validation=held_out(0, 128), epochs=2, batch_size=128)
        assert torch.get_num_threads() == threads
        return models

    for one, other in zip(train(1), train(2), strict=True):
        assert_same(one, other, 1e-12)


def test_a_failing_worker_ends_the_others():
    models = [udn(s) for s in range(8)]
    epochs = []

    def fail(population: Population) -> None:
        epochs.append(population.epoch)
        if models[0] in population.models and population.epoch == 2:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        fit_population(
            models, classes(0), epochs=10_000, batch_size=BATCH, workers=2, on_epoch=fail
        )
    assert max(epochs) < 1000


def test_monitored_sets_and_a_thinned_history():
    models = [udn(0), udn(1)]
    results = fit_population(
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
    fit_population([member], data, validation=validation, epochs=1, batch_size=BATCH, average=0.8)
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
    results = fit_population(whole, data, epochs=9, **options)
    fit_population(mixed(), data, epochs=4, checkpoint=path, **options)
    again = fit_population(resumed, data, epochs=9, checkpoint=path, resume=True, **options)
    for index in range(6):
        for name, tensor in whole[index].state_dict().items():
            assert torch.equal(tensor, resumed[index].state_dict()[name])
        assert results[index].history.rows == again[index].history.rows
        assert results[index].history.births == again[index].history.births
    finished = mixed()
    fit_population(finished, data, epochs=9, checkpoint=path, resume=True, **options)
    assert_same(finished[0], whole[0], 0)


def test_resuming_batch_norm_and_another_population(tmp_path):
    layers = batch_norm_layers()
    path = tmp_path / "population.safetensors"

    def models() -> list[ub.UDN]:
        return [udn(s, layers=layers) for s in range(2)]

    options = {"validation": held_out(0), "batch_size": BATCH}
    whole, resumed = models(), models()
    fit_population(whole, classes(0), epochs=4, **options)
    fit_population(models(), classes(0), epochs=2, checkpoint=path, **options)
    fit_population(resumed, classes(0), epochs=4, checkpoint=path, resume=True, **options)
    assert_same(whole[1], resumed[1], 0)
    with pytest.raises(FileError, match="another population"):
        fit_population(models()[:1], classes(0), checkpoint=path, resume=True, **options)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileError, match="complete"):
        fit_population(models(), classes(0), checkpoint=path, resume=True, **options)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_ends_after_the_epoch_and_keeps_the_best_one():
    models = [udn(0), udn(1)]

    def interrupt(population: Population) -> None:
        if population.epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

    results = fit_population(
        models, classes(0), validation=held_out(0), epochs=50, batch_size=BATCH, on_epoch=interrupt
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
    monkeypatch.setattr(Adam, "longest_step", 1e-6)  # a bound that does not hold
    population = Population(
        [udn(0, ub.TruncatedPoisson(1.0))], classes(0), batch_size=8, lr=0.5, depth_lr_ratio=2.0
    )
    run = population.depths.runs[0]
    run.block.state[0].fill_(-1.0)  # a momentum upwards
    with pytest.raises(OutgrownError, match="layers allocated"):
        population.run_epoch()


def test_new_layers_are_allocated_only_when_they_may_be_needed():
    models = [udn(0, ub.TruncatedPoisson(1.0)), udn(1, ub.FixedDepth(2))]
    population = Population(models, classes(0), batch_size=BATCH, depth_lr_ratio=0.1)
    assert population.depth == models[0].depth.max_depth() == 4
    assert population.extent.counts == [2, 2, 1, 1]
    population.run_epoch()
    assert population.depth == 4


@given(
    raw=st.lists(st.floats(-8, 60), min_size=1, max_size=5),
    quantile=st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
@settings(max_examples=60, deadline=None)
def test_stacked_truncated_poisson_agrees_with_the_lone_one(raw, quantile):
    families = [ub.TruncatedPoisson(1.0, quantile) for _ in raw]
    for family, value in zip(families, raw, strict=True):
        family.double().raw_rate.data.fill_(value)
    stack = TruncatedPoissonStack(families)
    values = stack.values()
    expected = [1 + poisson_quantile(f.rate, quantile) for f in families]
    size = max(expected)
    assert stack.max_depths(values, size).tolist() == expected
    if size > 1:
        short = stack.max_depths(values, size - 1)
        assert (short > size - 1).tolist() == [e > size - 1 for e in expected]
    movement = torch.full((len(raw),), 0.3, dtype=torch.float64)
    moved = 1 + poisson_quantile(
        max(torch.nn.functional.softplus(values + 0.3)[:, 0].tolist()), quantile
    )
    assert stack.reach_exactly(values, movement) == moved
    assert int(stack.reach(values, movement, moved).max()) == moved


@given(
    raw=st.lists(st.floats(-8, 60), min_size=1, max_size=4),
    concentration=st.floats(0.3, 10),
)
@settings(max_examples=40, deadline=None)
def test_stacked_conway_maxwell_agrees_with_the_lone_one(raw, concentration):
    families = [ub.TruncatedConwayMaxwell(1.0, concentration) for _ in raw]
    for family, value in zip(families, raw, strict=True):
        family.double().raw_rate.data.fill_(value)
    stack = ConwayMaxwellStack(families)
    expected = [f.max_depth() for f in families]
    size = max(expected)
    assert stack.max_depths(stack.values(), size).tolist() == expected
    if size > 1:
        short = stack.max_depths(stack.values(), size - 1)
        assert (short > size - 1).tolist() == [e > size - 1 for e in expected]


def test_stacked_families_have_the_lone_ones_probabilities():
    finite = [ub.FiniteDepth(3).double() for _ in range(2)]
    finite[1].logits.data = torch.tensor([1.0, -2.0, 0.5]).double()
    concentrated = [ub.TruncatedConwayMaxwell(r, c).double() for r, c in ((5, 4), (1, 9), (8, 0.5))]
    groups = [
        (ConwayMaxwellStack, concentrated),
        (TruncatedPoissonStack, [ub.TruncatedPoisson(r).double() for r in (0.3, 4.0, 30.0)]),
        (FixedDepthStack, [ub.FixedDepth(3), ub.FixedDepth(1)]),
        (FiniteDepthStack, finite),
    ]
    for kind, families in groups:
        stack = kind(families)
        size = 2 + max(f.max_depth() for f in families)
        depths = stack.max_depths(stack.values(), size)
        scores = stack.scores(stack.values(), size)
        inside = torch.arange(1, size + 1) <= depths[:, None]
        probs = scores.masked_fill(~inside, -torch.inf).softmax(1)
        for row, family in zip(probs, families, strict=True):
            expected = torch.zeros(size, dtype=torch.float64)
            expected[: family.max_depth()] = family.log_probs().detach().double().exp()
            torch.testing.assert_close(row, expected)


def test_stacked_families_have_autograds_gradients():
    generator = torch.Generator().manual_seed(0)
    families = [
        (TruncatedPoissonStack, [ub.TruncatedPoisson(r).double() for r in (0.3, 4.0, 30.0)]),
        (ConwayMaxwellStack, [ub.TruncatedConwayMaxwell(5, c).double() for c in (0.5, 1, 4)]),
        (FiniteDepthStack, [ub.FiniteDepth(3).double() for _ in range(3)]),
    ]
    for kind, some in families:
        stack = kind(some)
        grad = torch.randn(3, 7, generator=generator, dtype=torch.float64)
        found = stack.backward(stack.values(), grad)
        assert found.shape == stack.values().shape
        torch.testing.assert_close(found, DepthStack.backward(stack, stack.values(), grad))
        assert bool((found != 0).all())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
        (
            Adam((0.8, 0.99), 1e-3, 0.2),
            lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.99), 1e-3, weight_decay=0.2),
        ),
        (SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            SGD(0.9, True, 0.2),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2),
        ),
    ],
    ids=["adam", "adam with options", "sgd", "sgd with options"],
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
        ours.update(value, grad.clone(), state, ours.pace(steps, active, lr, value.dtype))
    expected = torch.stack([torch.stack([p.detach() for p in row]) for row in lone])
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.9, 0.82)]))
@settings(max_examples=40, deadline=None)
def test_no_adam_step_is_longer_than_its_bound(seed, betas):
    """Also not after unkind gradients: quiet for long, then growing as the bound fears."""
    adam = Adam(betas)
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
        adam.update(value, grad.clone(), state, adam.pace(steps, always, lr, value.dtype))
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
    fit_population(together, (x, x), epochs=3, batch_size=BATCH)
    ub.fit(alone, x, x, epochs=3, batch_size=BATCH)
    assert_same(together[1], alone)
    with pytest.raises(ValueError, match="member 1 has likelihood"):
        Population([model(0), model(1, scale=2.0)], (x, x), batch_size=BATCH)
    with pytest.raises(ValueError, match="member 1 has layers"):
        Population([model(0), model(1, init=lambda _: None)], (x, x), batch_size=BATCH)


def test_an_ensemble_is_one_mixture():
    x, y = classes(0)
    models = [udn(s) for s in range(3)]
    fit_population(models, (x, y), epochs=2, batch_size=BATCH, lr=0.05)
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
        (batch_norm_layers(), ub.Categorical(2), {}),
        (ub.Dense(2, 6, 1), ub.Bernoulli(), {"patience": 3}),
        (ub.Dense(2, 6, 1), ub.Gaussian(), {"select": "log_score"}),
    ],
    ids=["dense", "shared head", "batch norm", "bernoulli", "regression"],
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
    population = Population(models, data, validation=validation, batch_size=BATCH, **options)
    population.run_epoch()  # the first call of each part runs outside of a graph

    def places():
        tensors = dict(population.state) | population.network.buffers() | population.best_buffers
        for index, block in enumerate(population.blocks):
            tensors |= {f"{index}.{name}": tensor for name, tensor in block.tensors()}
            tensors[f"{index}.grad"] = block.grad
        inner = ("_cursor", "sums", "taken", "_status", "_lr", "_movement")
        tensors |= {name: getattr(population, name) for name in inner}
        tensors["orders"] = population.shuffles.orders
        return {name: tensor.data_ptr() for name, tensor in tensors.items()}

    before = places()
    for part in (
        lambda: population._step(BATCH),
        lambda: score_epoch(population),
        population._look,
    ):
        population._cursor.zero_()
        with HostReads() as mode:
            part()
        assert mode.calls > 10
        assert mode.seen == []
    population.run_epoch()
    assert places() == before
    with HostReads() as mode:
        population._status.tolist()
        population._status.sum().item()
    assert mode.seen, "the mode would have noticed"


def test_all_heads_as_one_product_give_the_same(monkeypatch):
    """As on a GPU, where fewer kernels matter more than caches."""

    def train() -> list[ub.UDN]:
        models = [udn(s, ub.TruncatedPoisson(1.0 + s)) for s in range(3)]
        population = Population(
            models, classes(0), validation=held_out(0), batch_size=40, lr=0.02, depth_lr_ratio=8.0
        )
        for _ in range(4):
            population.run_epoch()
        population.finish()
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
    with pytest.raises(ValueError, match="at least one"):
        Population([], data)
    with pytest.raises(ValueError, match="twice"):
        Population([first, first], data)
    with pytest.raises(ValueError, match="member 1 has layers"):
        Population([first, udn(1, layers=ub.Dense(2, 7, 2))], data)
    with pytest.raises(ValueError, match="3 sets for 2 members"):
        Population([first, second], [data] * 3)
    with pytest.raises(ValueError, match="2 values of lr for 1 members"):
        Population([first], data, lr=[0.1, 0.2], batch_size=BATCH)
    with pytest.raises(ValueError, match="larger than the data"):
        Population([first], data, batch_size=ROWS + 1)
    with pytest.raises(ValueError, match="single class"):
        Population([first], (data[0], torch.zeros(ROWS)), batch_size=BATCH)
    with pytest.raises(ValueError, match="patience needs"):
        Population([first], data, patience=2, batch_size=BATCH)
    with pytest.raises(ValueError, match="betas"):
        Adam((0.95, 0.5))

    class Own(ub.FixedDepth):
        pass

    with pytest.raises(TypeError, match="Own has no stacked form"):
        Population([udn(0, Own(2))], data)
    with pytest.raises(ValueError, match="resume needs"):
        fit_population([first], data, resume=True)
    with pytest.raises(ValueError, match="does not exist"):
        fit_population([first], data, checkpoint="/nowhere/at/all")


def test_the_self_check_passes_here_and_can_fail(monkeypatch, capsys):
    monkeypatch.setattr(selfcheck, "_EPOCHS", 1)
    monkeypatch.setattr(selfcheck, "_time", lambda *arguments: None)
    assert selfcheck.main(["--device", "cpu"]) == 0
    assert "all checks passed" in capsys.readouterr().out
    monkeypatch.setattr(selfcheck, "_gap", lambda ones, others: 2.0)
    cpu = torch.device("cpu")
    assert not selfcheck._compare("two", lambda: selfcheck._shared(torch.float64), cpu)
    assert "FAIL two" in capsys.readouterr().out
