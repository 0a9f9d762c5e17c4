"""Nothing lost in training: births, memory, extreme rates, interruptions."""

import contextlib
import functools
import importlib
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded import devices, growth, interrupts
from unbounded.cli import main
from unbounded.depth import TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.estimators import base
from unbounded.growth import TooDeepError
from unbounded.layers import CustomLayers
from unbounded.training import Callback, NonFiniteError, TrainingWarning, make_optimizer, step

# Births


def grown(seed: int) -> dict[str, torch.Tensor]:
    model = classifier(seed=seed, depth_prior=ub.PoissonDepth(30.0))
    ub.fit(
        model,
        *classes(32),
        epochs=1,
        batch_size=16,
        lr=0.1,
        depth_lr_ratio=8.0,
        progress=False,
    )
    return state(model)


def test_threads_give_the_weights_of_serial_runs():
    """Also while another thread draws from torch's own generator all the time."""
    expected = [grown(seed) for seed in range(40)]
    assert max(len(one) for one in expected) > len(state(classifier()))
    found: dict[int, dict[str, torch.Tensor]] = {}
    over = threading.Event()

    def draw():
        while not over.wait(0.0002):
            torch.randn(100)

    def fit(first: int) -> None:
        for seed in range(first, 40, 8):
            found[seed] = grown(seed)

    other = threading.Thread(target=draw)
    threads = [threading.Thread(target=fit, args=(first,)) for first in range(8)]
    other.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    other.join()
    assert [seed for seed in range(40) if not same(found[seed], expected[seed])] == []


class Odd(nn.Module):
    """Draws in many ways; some of torch's functions take no generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        nn.init.orthogonal_(self.linear.weight)
        self.like = nn.Parameter(torch.rand_like(self.linear.weight))
        self.dropped = nn.Parameter(nn.functional.dropout(torch.ones(50)))
        self.gamma = nn.Parameter(torch.distributions.Gamma(2.0, 1.0).sample((5,)))
        self.order = nn.Parameter(torch.randperm(9).double())
        own = torch.Generator().manual_seed(7)
        self.own = nn.Parameter(torch.randn(5, generator=own))


@pytest.mark.parametrize(
    "layers",
    [
        ub.Dense(3, 8, 2, init="he"),
        ub.ResidualDense(3, 8, 2),
        ub.ResidualConv(3, 2, width=4),
        CustomLayers(lambda depth: Odd(), lambda depth: nn.Linear(3, 2)),
    ],
    ids=lambda layers: type(layers).__name__,
)
def test_a_birth_draws_the_numbers_of_a_seeded_generator_and_leaves_torch_s_alone(layers):
    model = classifier(seed=3)
    model.layers = layers
    for role, make in (("hidden", layers.hidden), ("heads", layers.head)):
        torch.manual_seed(growth.birth_seed(3, role, 2))
        expected = make(2).state_dict()
        torch.manual_seed(0)
        before = torch.get_rng_state()
        assert same(growth.create(model, role, 2).state_dict(), expected)
        assert torch.equal(torch.get_rng_state(), before)


def test_families_of_many_threads_have_tables_of_their_size(monkeypatch):
    """A thread that adds a smaller table meanwhile is not taken for ours."""
    from unbounded.depth import rates

    device = torch.device("cpu")
    monkeypatch.setattr(rates, "_VIEWS", {})
    monkeypatch.setattr(rates, "_TABLES", {})
    rates._counts(100, device)
    small = torch.arange(64, dtype=torch.float64)
    rates._TABLES[device].append((small, torch.lgamma(small + 1)))
    assert rates._counts(90, device)[0].shape == (90,)


# Memory

LITTLE = 2_000_000  # bytes


@pytest.fixture
def _little_memory(monkeypatch):
    """A machine with room for some dozen small layers; each that is born takes its part."""
    original, made = growth.create, []

    def create(*arguments):
        made.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(growth, "create", create)
    monkeypatch.setattr(
        devices, "free_memory", lambda device: max(0, LITTLE - len(made) * growth.MODULE_BYTES)
    )


def growing(engine, validation=None, models=1, **options):
    """Training whose λ goes up by 2 a step, or 200."""
    made = [classifier(seed=seed, depth_prior=ub.PoissonDepth(300.0)) for seed in range(models)]
    given = {"epochs": 30, "batch_size": 32, "lr": 0.001, "progress": False, **options}
    for model in made:
        model.depth.raw_rate.data.fill_(4.0)
    one = made[0] if models == 1 else made
    return made, ub.fit(one, *classes(32), validation=validation, engine=engine, **given)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("engine", [Eager, Graphs, Stacked])
@pytest.mark.parametrize("validates", [True, False])
def test_training_stops_before_memory_is_taken(engine, validates, tmp_path):
    path = tmp_path / "run.ckpt"
    held = classes(32, seed=1) if validates else None
    with pytest.warns(TrainingWarning, match=r"training stopped in epoch .*limit="):
        (model,), result = growing(engine(), held, depth_lr_ratio=2000.0, checkpoint=path)
    assert result.stopped == "memory"
    assert path.is_file()
    assert 2 < model.network.num_layers < 80  # it grew, and no further than there was room
    assert model.depth.max_depth() <= model.network.num_layers + (10 if validates else 0)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert math.isfinite(model.depth.mean())
    if validates:
        assert result.best_epoch == result.history.rows[result.best_epoch - 1]["epoch"]
        right = (model.predict(held[0]).classes == held[1]).double().mean().item()
        assert right == pytest.approx(result.best_score)


@pytest.mark.usefixtures("_little_memory")
def test_a_run_that_lacked_memory_goes_on_where_there_is_more(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    with pytest.warns(TrainingWarning, match="GiB"):
        _, short = growing(None, depth_lr_ratio=2000.0, checkpoint=path)
    monkeypatch.setattr(devices, "free_memory", lambda device: None)
    options = {"epochs": short.history[-1]["epoch"] + 4, "resume": True}
    _, result = growing(None, depth_lr_ratio=2000.0, checkpoint=path, **options)
    assert result.stopped == "epochs"


@pytest.mark.usefixtures("_little_memory")
def test_of_several_models_those_that_fit_go_on():
    models = [classifier(seed=seed, depth_prior=ub.PoissonDepth(300.0)) for seed in range(3)]
    with pytest.warns(TrainingWarning, match="of model 1 stopped"):
        results = ub.fit(
            models,
            *classes(32),
            epochs=6,
            batch_size=32,
            lr=0.001,
            depth_lr_ratio=[0.1, 50_000.0, 0.1],
            progress=False,
        )
    assert [result.stopped for result in results] == ["epochs", "memory", "epochs"]
    assert len(results[0].history) == 6


@pytest.mark.parametrize("engine", [Eager, Graphs, Stacked])
def test_a_jump_of_lambda_stops_at_once(engine):
    """A million layers at once are refused before any is made, however much memory there is."""
    start = time.perf_counter()
    with pytest.warns(TrainingWarning, match=r"asks for [\d,]+ layers"):
        (model,), result = growing(engine(), depth_lr_ratio=1e9)
    assert result.stopped == "memory"
    assert model.network.num_layers < 20
    assert time.perf_counter() - start < 5


def test_a_step_and_a_constructor_refuse_a_jump_too():
    with pytest.raises(TooDeepError, match=r"asks for 1,00\d,\d+ layers, 0 are there.*limit="):
        classifier(TruncatedPoisson(1e6))
    model = classifier().train()
    optimizer = make_optimizer(model)
    model.depth.raw_rate.data.fill_(1e6)
    before = state(model)
    with pytest.raises(MemoryError, match="no more than 10,000 come at once"):
        step(model, optimizer, *classes(8), 8)
    assert same(state(model), before)


def test_a_wide_network_counts_by_its_weights_and_rows(monkeypatch):
    model = ub.UDN(ub.Dense(3, 256, 2), ub.Categorical(2), TruncatedPoisson(1.0))
    layer = 256 * 256 + 256 + 256 * 2 + 2
    monkeypatch.setattr(devices, "free_memory", lambda device: 4 * 10 * layer)
    growth.check_room(model, 11, 4)  # seven times the weights
    with pytest.raises(TooDeepError):
        growth.check_room(model, 11, 4, growth.Room(copies=3))
    with pytest.raises(TooDeepError):
        growth.check_room(model, 11, 4, growth.Room(inputs=(1000, 3)))


def test_a_constructor_looks_at_the_size_of_its_layers(monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda device: 10_000_000)
    with pytest.raises(TooDeepError, match=r"asks for \d+ layers, 2 are there"):
        ub.UDN(ub.Dense(3, 512, 2), ub.Categorical(2), TruncatedPoisson(50.0))


def test_free_memory_is_known_here():
    free = devices.free_memory(torch.device("cpu"))
    if sys.platform.startswith("linux"):
        assert 2**20 < free < 2**50
    assert devices.free_memory(torch.device("meta")) is None


def test_free_memory_heeds_control_groups(tmp_path, monkeypatch):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    monkeypatch.setattr(devices, "_PROC", proc)
    monkeypatch.setattr(devices, "_CGROUPS", groups)
    cpu = torch.device("cpu")
    monkeypatch.setattr(sys, "platform", "linux")
    assert devices.free_memory(cpu) == 8000 * 1024
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    (groups / "a" / "memory.max").write_text("5000000\n")
    (groups / "a" / "memory.current").write_text("4000000\n")
    (groups / "a" / "memory.stat").write_text("anon 7\ninactive_file 500\n")
    assert devices.free_memory(cpu) == 1_000_500
    (proc / "self" / "cgroup").write_text("3:cpu:/\n4:memory:/c\n")
    (groups / "memory" / "c").mkdir(parents=True)
    (groups / "memory" / "c" / "memory.limit_in_bytes").write_text("3000000\n")
    (groups / "memory" / "c" / "memory.usage_in_bytes").write_text("1000000\n")
    assert devices.free_memory(cpu) == 2_000_000
    monkeypatch.setattr(sys, "platform", "darwin")
    assert devices.free_memory(cpu) is None


def test_a_depth_that_keeps_growing_is_told_at_each_doubling():
    with pytest.warns(TrainingWarning) as told:
        growing(None, depth_lr_ratio=60_000.0, epochs=5)
    said = [str(one.message) for one in told]
    assert all("keeps growing" in line and "limit=" in line for line in said)
    assert 1 <= len(said) <= 3


# Extreme numbers


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda family=family, rate=rate: family(rate)
            for family in (TruncatedPoisson, TruncatedConwayMaxwell)
            for rate in (1e-320, 1e9, 1e308, math.nan, math.inf)
        ),
        *(lambda nu=nu: TruncatedConwayMaxwell(1.0, nu) for nu in (1e-300, 1e308, math.nan)),
        *(lambda q=q: TruncatedPoisson(1.0, q) for q in (1 - 1e-17, 1.0, math.nan)),
        *(lambda scale=scale: ub.GaussianWeights(scale) for scale in (1e-320, 1e-170, 1e160)),
        *(lambda scale=scale: ub.GaussianWeights(1.0, scale) for scale in (1e-320, 1e160)),
        *(lambda rate=rate: ub.PoissonDepth(rate) for rate in (1e-320, 1e308, math.nan)),
        lambda: ub.GeometricDepth(1 - 1e-17),
    ],
)
def test_extreme_parameters_are_refused_in_one_line(make):
    with pytest.raises(ValueError, match=r"^\w+ must be .*got") as error:
        make()
    assert "\n" not in str(error.value)
    assert "domain" not in str(error.value)


@pytest.mark.parametrize("raw", [-1e30, -700.0, -100.0, 1e30])
@pytest.mark.parametrize("family", [TruncatedPoisson, TruncatedConwayMaxwell])
def test_lambda_is_held_within_bounds(raw, family):
    made = family(1.0)
    made.raw_rate.data.fill_(raw)
    start = time.perf_counter()
    assert made.max_depth() == 1 if raw < 0 else made.max_depth() > 10**7
    assert math.isfinite(math.log(made.rate))
    assert time.perf_counter() - start < 2
    made.withdraw(6)
    assert made.max_depth() == (1 if raw < 0 else 6)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_lambda_that_is_no_number_is_divergence_and_the_best_epoch_stays(value, several):
    class Spoil(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 3:
                trainer.model.depth.raw_rate.data.fill_(value)

    model = classifier()
    options = {"validation": classes(32, seed=1), "epochs": 5, "batch_size": 16, "progress": False}
    options |= {"callbacks": [Spoil()], "engine": Eager()}
    if several:
        result, other = ub.fit([model, classifier(seed=1)], *classes(32), **options)
        assert other.stopped == "epochs"
    else:
        with pytest.raises(NonFiniteError, match="TruncatedPoisson has") as error:
            ub.fit(model, *classes(32), **options)
        result = error.value.result
    assert result.stopped == "diverged"
    assert len(result.history) == 3
    assert math.isfinite(model.depth.rate)
    x, y = options["validation"]
    assert (model.predict(x).classes == y).double().mean().item() == pytest.approx(
        result.best_score
    )


def test_families_of_large_rates_count_as_unbounded():
    from unbounded.model import _check_family

    _check_family(TruncatedPoisson(1e4))
    _check_family(TruncatedConwayMaxwell(1e4))


def fail_after(monkeypatch, calls: int) -> None:
    """The loss of classifiers is no number after so many steps."""
    original, made = ub.Categorical.log_prob, []

    def log_prob(self, outputs, y):
        made.append(1)
        return original(self, outputs, y) * (math.nan if len(made) > calls else 1.0)

    monkeypatch.setattr(ub.Categorical, "log_prob", log_prob)


@pytest.mark.parametrize("calls", [30, 3])
@pytest.mark.parametrize("members", [1, 2])
def test_an_estimator_that_diverges_keeps_its_best_epoch(calls, members, monkeypatch):
    x, y = (part.numpy() for part in classes(120))
    fail_after(monkeypatch, calls)
    options = {"epochs": 10, "patience": None, "batch_size": 16, "random_state": 0, "width": 4}
    model = ub.UDNClassifier(**options, n_members=members)
    if calls < 6:  # before the first epoch's end
        with pytest.raises(NonFiniteError):
            model.fit(x, y)
        return
    with pytest.warns(TrainingWarning, match="training diverged, epoch .* kept: a lower lr"):
        model.fit(x, y)
    assert model.stopped_ == "diverged"
    assert 1 <= model.best_epoch_ <= model.n_iter_ < 10


# Interruptions


@pytest.fixture
def _signals():
    """SIGINT and SIGTERM as a program finds them."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Sending(ub.Categorical):
    """Sends signals in given calls of `log_prob`; below, four of them are an epoch."""

    def __init__(self, number, *at):
        super().__init__(2)
        self.number, self.at, self.calls = number, at, 0

    def log_prob(self, outputs, y):
        self.calls += 1
        if self.calls in self.at:
            os.kill(os.getpid(), self.number)
        return super().log_prob(outputs, y)


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_best_epoch_and_writes_a_checkpoint(number, tmp_path, capsys):
    path = tmp_path / "run.ckpt"
    options = {"validation": classes(32, seed=1), "batch_size": 8, "progress": False}
    options |= {"checkpoint": path, "seed": 5}

    def made(*at):
        return ub.UDN(ub.Dense(3, 8, 2), Sending(number, *at))

    whole = made()
    ub.fit(whole, *classes(32), epochs=6, **{**options, "checkpoint": None})
    first = made(10)  # in the middle of the third epoch
    result = ub.fit(first, *classes(32), epochs=6, **options)
    assert (result.stopped, len(result.history)) == ("interrupted", 3)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"{name}: finishing epoch 3 for the checkpoint; again" in capsys.readouterr().err
    again = made()
    result = ub.fit(again, *classes(32), epochs=6, resume=True, **options)
    assert result.stopped == "epochs"
    assert same(state(again), state(whole))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("_signals")
def test_a_second_signal_ends_at_once_and_leaves_the_checkpoint(tmp_path):
    path = tmp_path / "run.ckpt"
    model = ub.UDN(ub.Dense(3, 8, 2), Sending(signal.SIGTERM, 9, 11))
    options = {"validation": classes(32, seed=1), "batch_size": 8, "progress": False}
    notes = {}

    class Watch(Callback):
        def on_epoch_end(self, trainer, row):
            notes[row["epoch"]] = path.read_bytes()

    result = ub.fit(
        model,
        *classes(32),
        epochs=6,
        callbacks=[Watch()],
        checkpoint=path,
        checkpoint_every=1,
        **options,
    )
    assert (result.stopped, len(result.history)) == ("interrupted", 2)
    assert path.read_bytes() == notes[2]


@pytest.mark.usefixtures("_signals")
def test_handlers_of_others_and_other_threads_stay_as_they_are():
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    model = ub.UDN(ub.Dense(3, 8, 2), Sending(signal.SIGTERM, 3))
    result = ub.fit(model, *classes(32), epochs=2, batch_size=8, progress=False)
    assert (result.stopped, seen) == ("epochs", [signal.SIGTERM])
    assert signal.getsignal(signal.SIGTERM) is mine
    found = []

    def inside():
        with interrupts.taken(), interrupts.deferred() as request, interrupts.shielded():
            found.append(request.is_set())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.usefixtures("_signals")
def test_the_words_of_interruptions():
    with interrupts.taken():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.latest() == signal.SIGTERM
        with interrupts.deferred() as request:
            assert not request.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            assert request.is_set()
            with interrupts.deferred() as inner:
                assert inner is request
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), signal.SIGINT)
            with interrupts.shielded():
                os.kill(os.getpid(), signal.SIGTERM)
            assert (request.name, request.exit_status) == ("SIGTERM", 143)
        with interrupts.deferred() as request:
            with pytest.raises(KeyboardInterrupt), interrupts.at_once():
                os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert request.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    x, y = classes(120)
    path = tmp_path_factory.mktemp("table") / "table.csv"
    rows = [f"{a:.4f},{b:.4f},{k}" for (a, b, _), k in zip(x.tolist(), y.tolist(), strict=True)]
    path.write_text("\n".join(["a,b,kind", *rows, ""]))
    return path


# Where a signal comes: module, what is called there, in which call, whether a model is kept.
MOMENTS = {
    "reading": ("unbounded.tables.prepare", "Encoding.fit", 1, False),
    "first epoch": ("unbounded.training.trainer", "Trainer._epoch", 1, False),
    "third epoch": ("unbounded.training.trainer", "Trainer._epoch", 3, True),
    "last epoch": ("unbounded.training.trainer", "Trainer._epoch", 6, True),
    "building": ("unbounded.estimators.base", "build", 2, True),
    "refit": ("unbounded.training.trainer", "Trainer._epoch", 8, True),
    "saving": ("unbounded.tables.model", "TableModel.save", 1, True),
    "scoring": ("unbounded.tables.model", "ScoreCollector.add", 1, True),
    "references": ("unbounded.tables.references", "compare", 1, True),
    "page": ("unbounded.tables.model", "TableModel.report", 1, True),
}


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        *((moment, (signal.SIGINT, signal.SIGTERM)[k % 2]) for k, moment in enumerate(MOMENTS)),
        ("third epoch", signal.SIGTERM),
    ],
)
def test_a_signal_at_any_moment_of_the_command(
    moment, number, table, tmp_path, capsys, monkeypatch
):
    module, name, call, kept = MOMENTS[moment]
    target = f"{module}.{name}"
    owner, _, attribute = target.rpartition(".")
    original = _attribute(target)
    calls = [0]

    def sending(*arguments, **options):
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    monkeypatch.setattr(_attribute(owner), attribute, sending)
    out = tmp_path / "m.udn"
    words = ["fit", str(table), "--target", "kind", "--out", str(out), "--width", "4"]
    words += ["--refit"] if moment in ("building", "refit") else []
    status = main([*words, "--epochs", "6", "--patience", "9"])
    errors = capsys.readouterr().err
    assert calls[0] >= call
    assert "Traceback" not in errors
    expected = 130 if number == signal.SIGINT else 143
    assert status == (0 if kept and number == signal.SIGINT else expected)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"m.udn", "m.html"} if kept else set())
    if kept:
        described = ub.TableModel.load(out).describe()["training"]
        ended = moment in ("third epoch", "last epoch", "building", "refit")
        assert described["stopped"] == ("interrupted" if ended else "epochs")
    else:
        assert errors == "unbounded: interrupted: nothing was written\n"


def _attribute(path: str):
    """What a dotted name stands for."""
    words = path.split(".")
    for cut in range(len(words), 0, -1):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(".".join(words[:cut]))
            return functools.reduce(getattr, words[cut:], found)
    raise LookupError(path)


@pytest.mark.parametrize("calls", [25, 3])
def test_the_command_says_that_training_diverged(calls, table, tmp_path, capsys, monkeypatch):
    out = tmp_path / "m.udn"
    fail_after(monkeypatch, calls)
    words = ["fit", str(table), "--target", "kind", "--out", str(out), "--no-references", "-q"]
    status = main([*words, "--epochs", "9", "--no-report", "--batch-size", "16", "--patience", "9"])
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    if calls < 6:
        assert status == 2
        assert "training diverged, there is nothing to keep: lower --lr" in errors[0]
        assert not out.exists()
    else:
        assert status == 0
        assert "warning: training diverged, epoch" in errors[0]
        assert ub.TableModel.load(out).describe()["training"]["stopped"] == "diverged"


def test_the_command_keeps_the_best_model_where_memory_ends(table, tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(
        devices, "free_memory", lambda device: 0 if asked.append(1) or len(asked) > 2 else 2**40
    )
    original = base.build

    def build(*arguments):
        model = original(*arguments)
        model.depth_prior = ub.PoissonDepth(300.0)
        with torch.no_grad():
            model.depth.raw_rate.fill_(3.0)
        asked.clear()  # the next births are those of training
        return model

    monkeypatch.setattr(base, "build", build)
    out = tmp_path / "m.udn"
    words = ["fit", str(table), "--target", "kind", "--out", str(out), "--no-references", "-q"]
    words += ["--epochs", "40", "--patience", "40", "--width", "4", "--lr", "0.3", "--no-report"]
    words += ["--preset", "paper"]
    assert main(words) == 0
    errors = capsys.readouterr().err
    assert "warning: training stopped in epoch" in errors
    assert "limit=" in errors
    monkeypatch.undo()
    assert ub.TableModel.load(out).describe()["training"]["stopped"] == "memory"
