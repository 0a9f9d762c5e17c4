"""Other people's tools, each with the real package: what `fit` does is what they show or do."""

import ast
import io
import json
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

import unbounded as ub
from helpers import classes as _classes
from unbounded import integrations
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.steps.optimizers import make_optimizer
from unbounded.training import Callback, HeldOutAscent, Logger, RateAscent, TensorBoard

TERMS = ("expected_log_lik", "depth_kl", "weight_kl")


classes = partial(_classes, features=2)


def extra(name, module=None):
    return pytest.importorskip(module or name, reason=f"needs the extra unbounded[{name}]")


def model(seed=0, **parts):
    """One whose prior pulls λ up, so that layers are born on the way."""
    parts = {"depth": ub.TruncatedPoisson(1.0), "depth_prior": ub.PoissonDepth(8.0), **parts}
    return ub.UDN(ub.Dense(2, 8, 2), ub.Categorical(2), seed=seed, **parts)


def with_noise():
    """Numbers with a learnt noise, and λ on its way up for all of the tests' epochs."""
    parts = ub.TruncatedPoisson(1.0), ub.PoissonDepth(1000.0)
    return ub.UDN(ub.Dense(2, 8, 1), ub.Gaussian(), *parts, seed=1)


GROWING = {"lr": 0.02, "depth_lr_ratio": 20.0}
QUICK = {"batch_size": 16, "progress": False, **GROWING}


def state_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same(one, other, atol=1e-6):
    assert list(one) == list(other)
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=atol, msg=name)


# Single steps -------------------------------------------------------------------------------------


class Steps(Callback):
    def __init__(self):
        self.rows, self.each, self.epochs = [], [], []

    def on_step_end(self, trainer, row):
        self.rows.append(dict(row))
        self.each.append(trainer.step_rows)

    def on_epoch_end(self, trainer, row):
        self.epochs.append((dict(row), trainer.rows))


@pytest.mark.parametrize("engine", [Eager, Stacked, partial(Graphs, lag=0)])
def test_steps_average_to_their_epoch(engine):
    x, y = classes(72)
    steps = Steps()
    ub.fit([model(0), model(1)], (x, y), epochs=2, engine=engine(), callbacks=[steps], **QUICK)
    assert [row["step"] for row in steps.rows] == list(range(1, 11))
    assert [row["epoch"] for row in steps.rows] == [1] * 5 + [2] * 5
    for epoch, (_, rows) in enumerate(steps.epochs):
        part = steps.each[5 * epoch : 5 * epoch + 5]
        for number in range(2):
            for term in TERMS:
                mean = sum(each[number][term] for each in part) / 5
                assert mean == pytest.approx(rows[number][term], rel=1e-5)
    first = steps.each[0][0]
    elbo = first["expected_log_lik"] - first["depth_kl"] - first["weight_kl"]
    assert first["elbo"] == pytest.approx(elbo)
    both = [each["elbo"] for each in steps.each[0]]
    assert steps.rows[0]["elbo"] == pytest.approx(sum(both) / 2)


def test_steps_end_where_a_model_has_no_further_batch():
    steps = Steps()
    data = [classes(32), classes(64)]
    ub.fit([model(0), model(1)], data, epochs=1, engine=Eager(), callbacks=[steps], **QUICK)
    assert [[row is not None for row in each] for each in steps.each] == [
        [True, True],
        [True, True],
        [False, True],
        [False, True],
    ]


def test_no_step_is_looked_at_where_nobody_asks(monkeypatch):
    asked = []
    usual = Eager.step_terms
    monkeypatch.setattr(Eager, "step_terms", lambda self: asked.append(1) or usual(self))

    class Bare:  # of no class of ours, and written before there were steps
        def on_fit_start(self, trainer): ...
        def on_birth(self, trainer, depths): ...
        def on_epoch_end(self, trainer, row): ...
        def on_fit_end(self, trainer): ...

    log = integrations.LogTo(Written())
    ub.fit(model(), *classes(32), epochs=1, callbacks=[Bare(), Callback(), log], **QUICK)
    assert not asked
    ub.fit(model(), *classes(32), epochs=1, callbacks=[Steps()], **QUICK)
    assert len(asked) == 2


# Loggers ------------------------------------------------------------------------------------------


class Written:
    """What a run of Weights & Biases is to `LogTo`."""

    def __init__(self):
        self.rows = []

    def log(self, data, step):
        assert not self.rows or step >= self.rows[-1][0]
        self.rows.append((step, data))


def test_log_to_any_object():
    run, x, y = Written(), *classes(64)
    callbacks = [integrations.LogTo(run, every=2)]
    found = ub.fit(model(), x, y, validation=(x, y), epochs=3, callbacks=callbacks, **QUICK)
    by_step = [(step, data["steps/elbo"]) for step, data in run.rows if "steps/elbo" in data]
    assert [step for step, _ in by_step] == [2, 4, 6, 8, 10, 12]
    epochs = [(step, data) for step, data in run.rows if "epoch" in data]
    assert [step for step, _ in epochs] == [4, 8, 12]
    assert [data["elbo"] for _, data in epochs] == found.history["elbo"]
    assert [data["val_accuracy"] for _, data in epochs] == found.history["val_accuracy"]
    births = [data["births"] for _, data in run.rows if "births" in data]
    assert births == [birth["depth"] for birth in found.history.births]
    assert births
    with pytest.raises(ValueError, match="every must be at least 1"):
        integrations.LogTo(run, every=0)


def rows_in(path):
    """What a run of Weights & Biases has written: records in blocks of 32 KiB, each with a checksum
    (4 bytes), its length (2) and whether it is whole, a first, a middle or a last piece (1)."""
    from wandb.proto import wandb_internal_pb2 as proto

    data, block, at, piece, rows = path.read_bytes(), 32 * 1024, 7, b"", []
    while at + 7 <= len(data):
        if block - at % block < 7:  # no header fits into the rest of the block
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            items = proto.Record.FromString(piece).history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
            piece = b""
    return [row for row in rows if row]


def test_weights_and_biases(tmp_path, monkeypatch):
    """Offline, as without a network: a process of its own writes the run to a file."""
    wandb = extra("wandb")
    for name, value in {"WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    with wandb.init(mode="offline", project="unbounded") as run:
        log = integrations.LogTo(run, every=1)
        found = ub.fit(model(), *classes(32), epochs=2, callbacks=[log], **QUICK)
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = rows_in(written)
    assert [row["_step"] for row in rows] == [1, 2, 3, 4]  # all that was logged of a step is one
    assert all("steps/elbo" in row for row in rows)
    assert [row["elbo"] for row in rows[1::2]] == pytest.approx(found.history["elbo"])
    births = {birth["step"]: birth["depth"] for birth in found.history.births}
    assert births
    assert {row["_step"]: row["births"] for row in rows if "births" in row} == births


def track(monkeypatch, folder):
    """Have MLflow write to a folder, by the environment alone: its own state outlives a test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (folder / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "spirals")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = extra("mlflow")
    track(monkeypatch, tmp_path)
    found = ub.fit(
        model(), *classes(32), epochs=2, callbacks=[integrations.MLflow(every=1)], **QUICK
    )
    assert mlflow.active_run() is None  # it was begun here, and so it is ended here
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("spirals").experiment_id])
    history = client.get_metric_history(run.info.run_id, "elbo")
    assert [m.value for m in history] == pytest.approx(found.history["elbo"])
    assert [m.step for m in history] == [2, 4]
    steps = client.get_metric_history(run.info.run_id, "steps/elbo")
    assert [m.step for m in steps] == [1, 2, 3, 4]
    assert run.data.params["layers"] == "Dense"
    assert run.data.params["depth"] == "TruncatedPoisson"
    with mlflow.start_run() as outer:
        ub.fit(model(), *classes(32), epochs=1, callbacks=[integrations.MLflow()], **QUICK)
        assert mlflow.active_run().info.run_id == outer.info.run_id


def test_tensorboard_has_steps_and_births(tmp_path):
    extra("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ub.fit(model(), *classes(64), epochs=2, callbacks=[TensorBoard(tmp_path, every=3)], **QUICK)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.step for e in events.Scalars("elbo")] == [1, 2]  # over epochs
    assert [e.step for e in events.Scalars("steps/elbo")] == [3, 6]
    assert "births/text_summary" in events.Tags()["tensors"]
    assert issubclass(TensorBoard, Logger)


def test_rich_progress():
    rich = extra("rich", "rich.console")
    written = io.StringIO()
    console = rich.Console(file=written, force_terminal=True, width=200)
    x, y = classes(64)
    bar = integrations.RichProgress(2, console=console)
    found = ub.fit(model(), x, y, validation=(x, y), epochs=2, callbacks=[bar], **QUICK)
    text = written.getvalue()
    assert "2/2" in text
    assert f"elbo {found.history[-1]['elbo']:,.1f}" in text
    assert "E[ℓ]" in text


# Optuna -------------------------------------------------------------------------------------------


def test_a_study_of_width_and_rate_prunes():
    optuna = extra("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    x, y = classes(64)
    kept = []

    def objective(trial):
        width = trial.suggest_int("width", 4, 16)
        # The second trial cannot learn: it must be cut short.
        lr = trial.suggest_float("lr", 1e-7, 0.05, log=True)
        net = ub.UDN(ub.Dense(2, width, 2), ub.Categorical(2), seed=0)
        pruning = integrations.Pruning(trial)
        found = ub.fit(
            net, x, y, validation=(x, y), epochs=6, callbacks=[pruning], **{**QUICK, "lr": lr}
        )
        kept.append(trial.number)
        return max(found.history["val_log_score"])

    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=1)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", pruner=pruner, sampler=sampler)
    for lr in (0.02, 1e-7, 0.04):
        study.enqueue_trial({"lr": lr})
    study.optimize(objective, n_trials=3)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert kept == [0, 2]
    assert len(study.trials[0].intermediate_values) == 6
    assert len(study.trials[1].intermediate_values) < 6
    assert study.best_params["lr"] > 0.01
    pruning = integrations.Pruning(study.trials[0], "nothing")
    with pytest.raises(ValueError, match="the history has no column 'nothing'"):
        ub.fit(model(), x, y, epochs=1, callbacks=[pruning], **QUICK)


# Loops of others ----------------------------------------------------------------------------------


class Orders(Sampler):
    """Another order in each epoch, which depends on its number alone."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.size

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())


def loader(x, y, shuffled=False):
    data = TensorDataset(x, y)
    return DataLoader(data, 16, sampler=Orders(len(x)) if shuffled else None)


def trainer(folder, epochs, **options):
    pl = extra("lightning", "lightning.pytorch")
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        **{**quiet, "enable_checkpointing": False, **options},
    )


lightly = pytest.mark.filterwarnings("ignore")  # its own warnings are many


@lightly
@pytest.mark.parametrize("rule", [None, HeldOutAscent], ids=["gradient", "held-out"])
def test_lightning_trains_as_fit_does(tmp_path, rule):
    run = trainer(tmp_path, 3, num_sanity_val_steps=0)
    x, y = classes(64)
    make = {} if rule is None else {"depth": ub.TruncatedNormal(place=3, spread=1)}
    ours, theirs = model(**make), model(**make)
    options = {} if rule is None else {"depth_rule": rule()}
    found = ub.fit(
        ours,
        loader(x, y),
        validation=(x, y),
        select="last",
        epochs=3,
        **QUICK,
        **options,
    )
    options = {} if rule is None else {"depth_rule": rule()}
    module = integrations.UDNModule(theirs, **GROWING, **options)
    run.fit(module, loader(x, y), loader(x, y))
    assert_same(state_of(ours), state_of(theirs))
    assert found.history.births or rule
    logged = run.logged_metrics
    assert float(logged["val_accuracy"]) == pytest.approx(found.history["val_accuracy"][-1])
    assert float(logged["val_log_score"]) == pytest.approx(
        found.history["val_log_score"][-1], rel=1e-5
    )
    assert int(logged["num_layers"]) == theirs.network.num_layers


@lightly
@pytest.mark.parametrize("kind", ["gradient", "rule"])
def test_lightning_resumes_as_if_never_cut(tmp_path, kind):
    trainer(tmp_path, 1)
    x, y = classes(64)

    def made():
        rule = RateAscent(speed=0.2, memory=2, youth=2)
        options = {} if kind == "gradient" else {"depth_rule": rule}
        return integrations.UDNModule(
            with_noise(),
            optimizer=partial(torch.optim.AdamW, amsgrad=True),
            scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
            **GROWING,
            **options,
        )

    target = y[:, None].float()
    whole, cut, again = made(), made(), made()
    run = trainer(tmp_path, 6)
    run.fit(whole, loader(x, target, True))
    first = trainer(tmp_path, 3)
    first.fit(cut, loader(x, target, True))
    path = tmp_path / "cut.ckpt"
    first.save_checkpoint(path)
    born = again.udn.network.num_layers
    second = trainer(tmp_path, 6)
    second.fit(again, loader(x, target, True), ckpt_path=path)
    assert second.global_step == run.global_step == 24
    layers = [m.udn.network.num_layers for m in (cut, whole)]
    assert born < layers[0] < layers[1]  # layers were born before the cut and after it
    assert_same(state_of(whole.udn), state_of(again.udn))
    ours, theirs = (t.optimizers[0] for t in (run, second))
    mine = dict(whole.udn.named_parameters())
    for name, parameter in again.udn.named_parameters():
        for key, value in ours.state[mine[name]].items():
            torch.testing.assert_close(theirs.state[parameter][key], value, atol=1e-6, rtol=0)
    assert len(theirs.state) == len(list(again.udn.parameters())) - (kind == "rule")


@lightly
def test_lightning_refuses_what_would_train_something_else(tmp_path):
    run = trainer(tmp_path, 1, precision="bf16-mixed")
    with pytest.raises(ValueError, match=r"autocast=torch\.bfloat16"):
        run.fit(integrations.UDNModule(model()), loader(*classes(32)))
    with pytest.raises(TypeError, match="momentum"):
        integrations.UDNModule(model(), momentum=1.0)
    with pytest.raises(ValueError, match="schedule_every"):
        integrations.UDNModule(model(), schedule_every="day")


@pytest.mark.filterwarnings("ignore")
def test_accelerate_grows_saves_and_goes_on(tmp_path):
    accelerate = extra("accelerate")
    x, y = classes(64)

    def prepared(net):
        accelerator = accelerate.Accelerator(cpu=True)
        optimizer = make_optimizer(net, **GROWING)
        batches = DataLoader(TensorDataset(x, y), 16)
        return accelerator, *integrations.prepare(accelerator, net, optimizer, batches)

    def train(net, optimizer, batches, epochs):
        for _ in range(epochs):
            for one, other in batches:
                ub.step(net.train(), optimizer, one, other, num_data=64)

    y = y[:, None].float()
    plain = with_noise()
    ub.fit(plain, DataLoader(TensorDataset(x, y), 16), epochs=9, select="last", **QUICK)
    accelerator, net, optimizer, batches = prepared(with_noise())
    train(net, optimizer, batches, 6)
    accelerator.save_state(tmp_path / "state")
    half = net.network.num_layers
    train(net, optimizer, batches, 3)
    assert_same(state_of(plain), state_of(net))  # the loop is `fit`
    accelerator, again, optimizer, batches = prepared(with_noise())
    assert again.network.num_layers < half < net.network.num_layers
    accelerator.load_state(tmp_path / "state")
    assert again.network.num_layers == half
    train(again, optimizer, batches, 3)
    assert_same(state_of(net), state_of(again))
    for options, words in (
        ({"mixed_precision": "bf16"}, r"autocast=torch\.bfloat16"),
        ({"gradient_accumulation_steps": 2}, "micro_batches"),
    ):
        accelerate.state.AcceleratorState._reset_state(True)
        other = accelerate.Accelerator(cpu=True, **options)
        with pytest.raises(ValueError, match=words):
            integrations.prepare(other, with_noise(), make_optimizer(with_noise()))
    accelerate.state.AcceleratorState._reset_state(True)


# States by name -----------------------------------------------------------------------------------


def test_an_optimizer_takes_a_state_by_names():
    """Heads of shallower depths may be born after deeper ones: position says nothing."""
    x, y = torch.randn(16, 2), torch.randn(16, 1)
    grown = with_noise()
    optimizer = make_optimizer(grown, lr=0.01)
    with torch.no_grad():
        grown.depth.raw_rate.fill_(4.0)
    ub.step(grown.train(), optimizer, x, y, num_data=16)
    other = with_noise()
    other.load_state_dict(grown.state_dict())
    again = make_optimizer(other, lr=0.01)
    for group in again.param_groups:
        group["params"].reverse()
        group["param_names"].reverse()
    again.load_state_dict(optimizer.state_dict())
    mine = dict(grown.named_parameters())
    for group in again.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            assert parameter is other.get_parameter(name)
            for key, value in optimizer.state[mine[name]].items():
                assert torch.equal(again.state[parameter][key], value), (name, key)
    ub.step(other.train(), again, x, y, num_data=16)
    with pytest.raises(ValueError, match=r"network\.\w+\.\d+\.\S+ is in one of the optimiser"):
        make_optimizer(with_noise()).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    ("name", "package", "arguments"),
    [
        ("MLflow", "mlflow", ()),
        ("RichProgress", "rich.progress", (1,)),
        ("Pruning", "optuna", (None,)),
    ],
)
def test_what_is_missing_is_told(monkeypatch, name, package, arguments):
    monkeypatch.setitem(sys.modules, package, None)
    made = getattr(integrations, name)
    with pytest.raises(ImportError, match=rf"pip install 'unbounded\[{package.split('.')[0]}\]'"):
        made(*arguments)


def test_names_are_there_and_import_nothing_until_used():
    assert set(integrations._LAZY) <= set(dir(integrations))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = integrations.Nothing
    # Only what is asked for is imported: the package's own file has nothing of others.
    tree = ast.parse(Path(integrations.__file__).read_text(encoding="utf-8"))
    modules = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert modules
    assert all(name == "typing" or name.startswith("unbounded.training.") for name in modules)


# Compilers and the page about all of this ---------------------------------------------------------


def check_compiled(backend, layers):
    x, y = classes(32)
    plain, model = (
        ub.UDN(layers(2, 4, 2), ub.Categorical(2), ub.FixedDepth(2), seed=0) for _ in range(2)
    )
    compiled = torch.compile(model, backend=backend)
    torch._dynamo.utils.counters.clear()
    options = {"epochs": 2, "batch_size": 16, "progress": False, "validation": (x, y)}
    one, other = ub.fit(plain, x, y, **options), ub.fit(compiled, x, y, **options)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert other.history["elbo"] == pytest.approx(one.history["elbo"], rel=1e-5)
    assert_same(state_of(plain), state_of(model), 1e-5)
    outputs, q = torch.compile(model.freeze(), backend=backend)(x)
    expected, log_q = plain.freeze()(x)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(q, log_q)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("layers", [ub.Dense, ub.ResidualDense, ub.PreNormDense])
def test_a_compiled_model_is_the_plain_one(layers):
    """Traced, with gradients by ahead-of-time autograd; no code of a machine is made."""
    check_compiled("aot_eager", layers)


@pytest.mark.usefixtures("compiler")
@pytest.mark.skipif("CI" not in os.environ, reason="half a minute of a C++ compiler; set CI=1")
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs a C++ compiler")
def test_a_model_that_is_compiled_to_the_end():
    check_compiled("inductor", ub.ResidualDense)


DOCS = Path(__file__).parents[1] / "docs"


def blocks_of(page):
    """(what all examples of a page go on from, one of them) pairs."""
    text = (DOCS / page).read_text(encoding="utf-8")
    first, *blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    return [(first, block) for block in blocks]


BLOCKS = blocks_of("integrations.md") + blocks_of("api/integrations.md")


def packages_of(block):
    """What a block says must be installed."""
    return re.findall(r"^# pip install 'unbounded\[(\w+)\]'$", block, re.MULTILINE)


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_pages_run(number, tmp_path, monkeypatch):
    for name in packages_of(BLOCKS[number][1]):
        extra(name)
    monkeypatch.chdir(tmp_path)
    track(monkeypatch, tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    namespace = {}
    for block in BLOCKS[number]:
        exec(compile(block, f"docs, example {number}", "exec"), namespace)


def test_every_extra_has_an_example():
    named = {name for _, block in BLOCKS for name in packages_of(block)}
    assert named == {"accelerate", "lightning", "mlflow", "optuna", "rich", "tensorboard", "wandb"}
