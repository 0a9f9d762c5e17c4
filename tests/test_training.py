"""`step` and `fit`: what they promise, and what they refuse before training starts."""

import math
import sys

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import unbounded as ub
from helpers import classes, classifier, numbers, same, state
from unbounded.data import spiral
from unbounded.depth import FixedDepth, TruncatedPoisson
from unbounded.engines import Eager, Stacked
from unbounded.training import Callback, NonFiniteError, TensorBoard


def quick(model, x, y, **options):
    return ub.fit(model, x, y, **{"epochs": 3, "batch_size": 16, "progress": False, **options})


def test_fit_learns_and_the_history_is_a_table():
    x, y = classes(256)
    model = classifier(width=32)
    result = quick(model, x, y, epochs=60, lr=0.01, validation=classes(256, seed=1))
    history = result.history
    assert len(history) == 60
    assert history["elbo"][-1] > history["elbo"][0]
    assert result.best_score == max(history["val_accuracy"])
    assert result.best_score > 0.9
    row = history[-1]
    assert row["elbo"] == pytest.approx(
        row["expected_log_lik"] - row["depth_kl"] - row["weight_kl"]
    )
    assert row["step"] == 60 * 16
    assert set(history.to_pandas().columns) == set(history.columns)
    assert len(str(history).splitlines()) == 9
    with pytest.raises(KeyError, match="no column 'loss'"):
        history["loss"]


def test_history_to_csv(tmp_path):
    result = quick(classifier(), *classes(32))
    result.history.to_csv(tmp_path / "history.csv")
    frame = pandas.read_csv(tmp_path / "history.csv")
    assert frame["elbo"].tolist() == pytest.approx(result.history["elbo"])


def test_regression_learns_its_noise():
    x, y = numbers(512)
    model = ub.UDN(ub.Dense(3, 32, 1, init="he"), ub.Gaussian())
    result = quick(model, x, y, epochs=120, batch_size=64, lr=0.01, validation=numbers(256, seed=1))
    assert result.best_score == pytest.approx(min(result.history["val_rmse"]))
    assert result.best_score < 0.2
    assert 0.05 < model.likelihood.noise.log_scale.exp().item() < 0.2


def test_forms_of_data_give_the_same_model():
    x, y = classes(48)
    forms = [
        (x, y),
        (x.numpy(), y.numpy()),
        (x.double().numpy(), y.numpy().astype(np.int16)),
        (x.tolist(), y.tolist()),
        (pandas.DataFrame(x.numpy()), pandas.Series(y.numpy())),
    ]
    states = []
    for inputs, targets in forms:
        model = classifier()
        quick(model, inputs, targets)
        states.append(state(model))
    assert all(same(states[0], other) for other in states[1:])


def test_same_seed_same_model_other_seed_another():
    x, y = classes(48)
    states = []
    for seed in (7, 7, 8):
        model = classifier()
        torch.randn(3)  # the global generator plays no part
        quick(model, x, y, seed=seed)
        states.append(state(model))
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


def test_data_loaders():
    x, y = classes(48)
    model = classifier()
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    result = ub.fit(model, loader, validation=loader, epochs=2, progress=False)
    assert result.history[-1]["step"] == 6
    assert 0 <= result.best_score <= 1
    weighted = DataLoader(TensorDataset(x, y, torch.ones(48)), batch_size=16)
    other = classifier()
    ub.fit(other, weighted, validation=loader, epochs=2, progress=False)
    for name, value in state(model).items():
        torch.testing.assert_close(state(other)[name], value)


class Endless(IterableDataset):
    def __iter__(self):
        yield from zip(*classes(8), strict=True)


def test_a_loader_without_a_length_needs_num_data():
    loader = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ValueError, match="say num_data"):
        ub.fit(classifier(), loader, progress=False)
    result = ub.fit(classifier(), loader, num_data=8, epochs=1, progress=False)
    assert result.history[-1]["step"] == 2


def test_weights_count_rows():
    """Integer weights are repeated rows."""
    x, y = classes(12)
    weights = torch.tensor([0.0, 1, 2] * 4)
    repeated = torch.repeat_interleave(torch.arange(12), weights.long())
    model = classifier().double()
    one = model.elbo(x.double(), y, 12, weights.double())
    other = model.elbo(x[repeated].double(), y[repeated], 12)
    # 12 rows that count 12 times in all, whichever way
    torch.testing.assert_close(one.expected_log_lik, other.expected_log_lik)


def test_validation_rows_count_as_often_as_their_weights_say():
    x, y = classes(30)
    weights = torch.arange(30) % 3
    repeated = torch.repeat_interleave(torch.arange(30), weights)
    result = quick(
        classifier(),
        x,
        y,
        validation=(x, y, weights.double()),
        monitor={"repeated": (x[repeated], y[repeated])},
    )
    for name in ("accuracy", "log_score"):
        values = (result.history[f"val_{name}"], result.history[f"repeated_{name}"])
        assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_best_epoch_is_restored_with_its_depth():
    """The model afterwards is the one of the best epoch, layers born later are gone."""
    x, y = classes(64)
    seen = {}

    class Watch(Callback):
        def on_epoch_end(self, trainer, row):
            seen[row["epoch"]] = (state(trainer.model), row)

    # A prior that wants depth whatever the data say, and labels that nothing can predict.
    model = classifier(TruncatedPoisson(1.0), depth_prior=ub.PoissonDepth(1e8))
    x_val, y_val = classes(64, seed=2)
    result = quick(
        model,
        x,
        y,
        epochs=25,
        lr=0.05,
        depth_lr_ratio=2.0,
        validation=(x_val, y_val.roll(1)),
        callbacks=[Watch()],
    )
    assert result.history[-1]["num_layers"] > result.history[result.best_epoch - 1]["num_layers"]
    best = max(seen, key=lambda e: (seen[e][1]["val_accuracy"], seen[e][1]["val_log_score"]))
    assert result.best_epoch == best
    assert same(state(model), seen[best][0])


@pytest.mark.parametrize("engine", [Eager(), Stacked()], ids=lambda e: type(e).__name__)
def test_the_last_epoch_is_kept_where_it_is_wanted(engine):
    x, y = classes(64)
    wrong = classes(64, seed=2)[0], 1 - classes(64, seed=2)[1]  # the more is learnt, the worse
    options = {"epochs": 8, "lr": 0.05, "engine": engine}
    models = {name: classifier(TruncatedPoisson(1.0, limit=4)) for name in ("last", "score", "no")}
    (last,) = quick([models["last"]], x, y, validation=wrong, select="last", **options)
    (best,) = quick([models["score"]], x, y, validation=wrong, **options)
    quick([models["no"]], x, y, **options)
    assert best.best_epoch < 8
    assert last.best_epoch == 8
    assert (last.best_score, last.best_row) == (None, last.history[-1])
    assert "val_accuracy" in last.history[-1]
    assert same(state(models["last"]), state(models["no"]))


def test_births_are_recorded():
    model = classifier(TruncatedPoisson(1.0))
    births = []

    class Watch(Callback):
        def on_birth(self, trainer, depths):
            births.extend(depths)

    result = quick(model, *classes(64), epochs=40, lr=0.05, depth_lr_ratio=3.0, callbacks=[Watch()])
    assert result.history.births
    assert [b["depth"] for b in result.history.births] == births
    assert births == list(range(5, 5 + len(births)))
    assert model.network.num_layers == 4 + len(births)


def test_growth_per_epoch_is_an_option():
    """λ crosses into a larger support within the epoch; the birth waits for the next one."""
    for every, born in (("step", True), ("epoch", False)):
        model = classifier(TruncatedPoisson(1.3))
        layers = model.network.num_layers
        assert model.depth.max_depth() == layers
        optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=1e-9, depth_lr_ratio=0.0)
        seen = []

        class Push(Callback):
            def on_birth(self, trainer, depths, seen=seen):
                seen.append(trainer.step)

        class Rate(torch.optim.lr_scheduler.LRScheduler):
            def get_lr(self, model=model):
                model.depth.raw_rate.data += 0.5  # stands for λ's own movement
                return [group["lr"] for group in self.optimizer.param_groups]

        ub.fit(
            model,
            *classes(64),
            epochs=1,
            batch_size=16,
            optimizer=optimizer,
            scheduler=Rate,
            schedule_every="step",
            grow_every=every,
            callbacks=[Push()],
            progress=False,
        )
        assert (len(seen) > 1) == born


def test_early_stopping():
    result = quick(
        classifier(), *classes(32), epochs=500, lr=1e-9, patience=4, validation=classes(32)
    )
    assert result.stopped == "patience"
    assert len(result.history) < 20


def test_callback_can_stop():
    class Stop(Callback):
        def on_epoch_end(self, trainer, row):
            trainer.stop()

    result = quick(classifier(), *classes(32), callbacks=[Stop()])
    assert result.stopped == "callback"
    assert len(result.history) == 1


def test_ctrl_c_keeps_the_best_model():
    class Interrupt(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 5:
                raise KeyboardInterrupt

    model = classifier()
    result = quick(
        model,
        *classes(64),
        epochs=50,
        lr=0.05,
        validation=classes(64, seed=1),
        callbacks=[Interrupt()],
    )
    assert result.stopped == "interrupted"
    assert len(result.history) == 5
    right = (model.predict(classes(64, seed=1)[0]).classes == classes(64, seed=1)[1]).double()
    assert right.mean().item() == pytest.approx(result.best_score)


def test_ctrl_c_in_the_middle_of_an_epoch_restores_the_best():
    """Also if the best epoch is the last complete one: what came after it is undone."""
    x, y = classes(64)
    kept = {}

    class Interrupting:
        def __init__(self):
            self.epochs = 0

        def __iter__(self):
            self.epochs += 1
            for start in range(0, 64, 16):
                if self.epochs == 2 and start == 32:
                    raise KeyboardInterrupt
                yield x[start : start + 16], y[start : start + 16]

        def __len__(self):
            return 64

    class Watch(Callback):
        def on_epoch_end(self, trainer, row):
            kept[row["epoch"]] = state(trainer.model)

    class Rows(IterableDataset):
        source = Interrupting()

        def __iter__(self):
            return iter(self.source)

    model = classifier()
    loader = DataLoader(Rows(), batch_size=None)
    result = ub.fit(
        model, loader, num_data=64, validation=(x, y), epochs=9, callbacks=[Watch()], progress=False
    )
    assert result.stopped == "interrupted"
    assert result.best_epoch == 1
    assert same(state(model), kept[1])


def test_clipping_bounds_the_gradient():
    model = classifier().train()
    x, y = classes(16)
    optimizer = ub.make_optimizer(model, torch.optim.SGD, lr=0.1)
    ub.step(model, optimizer, 100 * x, y, 16, clip=1e-3)
    norm = math.sqrt(sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None))
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_mixed_precision_trains_in_full_precision_weights():
    x, y = classes(128)
    model = classifier(width=16)
    result = quick(model, x, y, epochs=40, lr=0.01, autocast=torch.bfloat16, validation=(x, y))
    assert result.best_score > 0.85
    assert all(p.dtype == torch.float32 for p in model.parameters())
    reference = classifier(width=16)
    quick(reference, x, y, epochs=1)
    mixed = classifier(width=16)
    quick(mixed, x, y, epochs=1, autocast=torch.bfloat16)
    assert not same(state(reference), state(mixed))


def test_schedules_per_step_and_per_epoch():
    for every, expected in (("step", 0.005 * 0.5**8), ("epoch", 0.005 * 0.5**2)):
        result = quick(
            classifier(),
            *classes(64),
            epochs=2,
            scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
            schedule_every=every,
        )
        assert result.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_plateau_schedule_sees_the_validation_score():
    result = quick(
        classifier(),
        *classes(64),
        epochs=6,
        lr=1e-6,
        validation=classes(64),
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, "max", 0.1, patience=1),
    )
    assert result.optimizer.param_groups[0]["lr"] <= 1e-7


def test_progress_bar_says_what_matters(capfd):
    quick(classifier(), *classes(64), epochs=2, validation=classes(64), progress=True)
    text = capfd.readouterr().err
    for part in ("elbo", "val accuracy", "E[ℓ]", "m 4", "2/2"):
        assert part in text


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    quick(classifier(), *classes(64), callbacks=[TensorBoard(tmp_path)])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.step for e in events.Scalars("elbo")] == [1, 2, 3]


def test_tensorboard_missing_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"unbounded\[tensorboard\]"):
        TensorBoard(tmp_path)


def test_non_finite_loss_names_step_and_term():
    x, y = classes(64)
    model = classifier()

    class Break(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 2:
                trainer.model.network.heads["1"].weight.data.fill_(math.inf)

    with pytest.raises(NonFiniteError, match=r"at step 9 \(epoch 3\): .*expected_log_lik = "):
        quick(model, x, y, epochs=5, validation=(x, y), callbacks=[Break()])
    assert all(torch.isfinite(p).all() for p in model.parameters())  # the best epoch is back


def test_training_after_predicting(tmp_path):
    """What is remembered while predicting in inference mode can be trained with afterwards."""
    x, y = classes(32)
    ub.save(classifier(), tmp_path / "m")
    for use in (lambda m: m.predict(x), lambda m: m.elbo(x, y, 32)):
        model = ub.load(tmp_path / "m")
        with torch.inference_mode():
            use(model)
        model.elbo(x, y, 32).loss(32).backward()
        assert all(p.grad is not None for p in model.parameters())
        quick(model, x, y)


def test_double_and_single_agree():
    x, y = classes(64)
    single, double = classifier(), classifier().double()
    quick(single, x, y)
    quick(double, x.double(), y)
    for name, value in state(single).items():
        torch.testing.assert_close(value.double(), state(double)[name], rtol=1e-3, atol=1e-4)


def test_the_default_is_torch_s_adam():
    """Bit for bit, over births and departures of layers."""
    x, y = classes(64)
    models = [classifier(TruncatedPoisson(1.0)).train() for _ in range(2)]
    ours = ub.make_optimizer(models[0], lr=0.02, depth_lr_ratio=2.0)
    plain = torch.optim.Adam(ub.training.param_groups(models[1], 0.02, 2.0), lr=0.02, fused=True)
    assert type(ours) is torch.optim.Adam
    for index in range(60):
        if index in (30, 45):
            for model in models:
                model.depth.raw_rate.data.fill_(3.0 if index == 45 else -1.0)
        infos = [ub.step(m, o, x, y, 64) for m, o in zip(models, (ours, plain), strict=True)]
        assert infos[0].loss == infos[1].loss
    assert models[0].network.num_layers > 4
    assert same(state(models[0]), state(models[1]))


def test_expected_depth_follows_the_data():
    """A short version of the paper's claim: harder spirals hold deeper posteriors."""
    depths = []
    for omega in (1.0, 8.0):
        model = ub.UDN(ub.Dense(2, 32, 2, init="he"), ub.Categorical(2))
        ub.fit(
            model,
            *spiral(omega, 512),
            epochs=120,
            batch_size=128,
            lr=0.01,
            depth_lr_ratio=1.0,
            progress=False,
        )
        depths.append(model.depth.mean())
    assert depths[1] > depths[0] + 0.5


X, Y = classes(20)
BAD = {
    "nan": (lambda: (X.clone().index_fill_(0, torch.tensor([3]), math.nan), Y), "NaN or infinite"),
    "infinite": (lambda: (X / 0, Y), "NaN or infinite values, the first at index"),
    "labels-out-of-range": (lambda: (X, Y + 1), "must be in 0 … 1, got 1 … 2"),
    "rows-differ": (lambda: (X, Y[:-1]), "inputs have 20 rows, targets 19"),
    "flat": (lambda: (X[:, 0], Y), r"must have shape \(rows, features\), got \(20,\)"),
    "features": (lambda: (X[:, :2], Y), r"layer 1 could not take .* shape \(2, 2\)"),
    "empty": (lambda: (X[:0], Y[:0]), "there are no rows"),
    "one-class": (lambda: (X, torch.ones_like(Y)), "hold a single class"),
    "one-row": (lambda: (X[:1], Y[:1]), "there is one row"),
    "text": (lambda: (np.array([["a"] * 3] * 20), Y), "must be numbers"),
    "targets-2d": (lambda: (X, torch.zeros(20, 2)), "must have shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused_before_training(name):
    make, message = BAD[name]
    model = classifier()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        ub.fit(model, *make(), batch_size=1, progress=False)
    assert same(before, state(model))


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("one-class", "one-row")])
def test_bad_validation_data_is_refused_before_training(name):
    make, message = BAD[name]
    model = classifier()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        ub.fit(model, X, Y, validation=make(), batch_size=10, progress=False)
    assert same(before, state(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 21}, "batch_size is 21, there are only 20 rows"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"batch_size": 2.5}, "batch_size must be an integer of at least 1"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"depth_lr_ratio": -1.0}, "depth_lr_ratio must be at least 0"),
        ({"patience": 3}, "patience needs a validation set"),
        ({"patience": 0, "validation": (X, Y)}, "patience must be at least 1"),
        ({"patience": 3, "validation": (X, Y), "select": "last"}, "waits for a better epoch"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"select": "loss"}, "select must be one of"),
        ({"grow_every": "day"}, "grow_every must be one of"),
        ({"schedule_every": "day"}, "schedule_every must be one of"),
        ({"autocast": torch.float64}, "autocast must be"),
        ({"weights": torch.ones(3)}, r"weights must have shape \(20,\), got \(3,\)"),
        ({"weights": -torch.ones(20)}, "weights must be finite and at least 0"),
        ({"weights": torch.zeros(20)}, "weights must not all be 0"),
        ({"monitor": {"val": (X, Y)}}, "the name 'val' is taken"),
        ({"resume": True}, "resume needs the path"),
        ({"checkpoint": "/nowhere/at/all.ckpt"}, "does not exist"),
        ({"validation": X}, "validation data must be"),
    ],
)
def test_bad_arguments_are_refused_before_training(options, message):
    model = classifier()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        ub.fit(model, X, Y, **{"batch_size": 10, "epochs": 1, "progress": False, **options})
    assert same(before, state(model))


def test_heads_that_do_not_fit_the_likelihood():
    model = ub.UDN(ub.Dense(3, 4, 5), ub.Categorical(2))
    with pytest.raises(ValueError, match="heads must give 2 numbers a row"):
        quick(model, X, Y)


def test_integer_inputs_for_an_embedding():
    layers = ub.CustomLayers(
        lambda d: nn.Sequential(nn.Embedding(10, 4), nn.Flatten()) if d == 1 else nn.Linear(8, 8),
        lambda d: nn.Linear(8, 2),
        integer_inputs=True,
    )
    x = torch.randint(0, 10, (40, 2))
    result = quick(ub.UDN(layers, ub.Categorical(2)), x, (x[:, 0] > 4).long())
    assert len(result.history) == 3


def test_fixed_depth_trains_like_any_network():
    x, y = classes(256)
    model = classifier(FixedDepth(3), width=32)
    result = quick(model, x, y, epochs=60, lr=0.01, validation=(x, y))
    assert result.best_score > 0.9
    assert result.history["depth_mean"] == [3.0] * 60
