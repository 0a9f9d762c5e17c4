"""Checkpoints: what differs from the run that wrote one is named, and no file does harm."""

import json
import random
from functools import partial, reduce
from operator import getitem

import pytest
import torch
from benchmarks.attack import checkpoints as mutations
from benchmarks.attack.checkpoints import data, equal, everything, model
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import unbounded as ub
from helpers import same, state
from unbounded.engines import Eager, Graphs, Stacked
from unbounded.files import FileError, read_tensors, write_tensors
from unbounded.training import Callback, fingerprint
from unbounded.training.checkpoint import seconds_so_far

USUAL = {"x": data(), "batch_size": 12, "lr": 0.05, "progress": False, "validation": data(9)}
PLAIN: list[bytes] = []


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


def resume(path, models=None, **options):
    """Resume `USUAL` with other options: the model and the result."""
    found = model() if models is None else models
    options = {**USUAL, "epochs": 4, "checkpoint": path, "resume": True, **options}
    return found, ub.fit(found, **options)


def begin(path, models=None, **options):
    ub.fit(
        model() if models is None else models, **{**USUAL, "epochs": 2, **options}, checkpoint=path
    )


x, y = data()
DIFFERENT = {
    "data": {"x": data(1)},
    "data, half": {"x": data(0, 12)},
    "data, flipped": {"x": (x, 1 - y)},
    "weights": {"x": (x, y, torch.ones(len(x)))},
    "validation": {"validation": data(8)},
    "validation, none": {"validation": None},
    "monitor": {"monitor": {"test": data(5)}},
    "select": {"select": "log_score"},
    "patience": {"patience": 3},
    "batch_size": {"batch_size": 8},
    "lr": {"lr": 0.01},
    "depth_lr_ratio": {"depth_lr_ratio": 2.0},
    "seed": {"seed": 5},
    "optimizer": {"optimizer": partial(torch.optim.Adam, betas=(0.8, 0.99))},
    "scheduler": {"scheduler": partial(lr_scheduler.StepLR, step_size=2)},
    "schedule": {"schedule": lambda epoch: 0.9**epoch},
    "depth_schedule": {"depth_schedule": lambda epoch: 1.0},
    "clip": {"clip": 1.0},
    "average": {"average": 0.9},
    "equal_heads": {"equal_heads": True},
    "grow_every": {"grow_every": "epoch"},
    "history_every": {"history_every": 2},
    "micro_batches": {"micro_batches": 2},
    "drop_inactive": {"drop_inactive": True},
    "layers": {"models": model(layers=ub.Dense(2, 4, 2, activation="tanh"))},
    "depth": {"models": model(ub.TruncatedPoisson(1.0, quantile=0.9))},
    "depth_prior": {"models": model(prior=ub.PoissonDepth(5.0))},
    "model_seed": {"models": model(seed=4), "seed": 3},
    "dtype": {"models": model().double()},
    "engine": {"engine": Graphs()},
    "models": {"models": [model(), model(seed=4)], "engine": Eager()},
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_named_and_nothing_is_touched(path, case):
    begin(path)
    options = dict(DIFFERENT[case])
    run = options.pop("models", None) or model(), {**USUAL, **options}
    before = everything(run)
    field = case.split(",")[0]
    with pytest.raises(
        FileError, match=rf"it is of another run: .*\b{field}\S* was .+, is"
    ) as error:
        resume(path, run[0], **options)
    assert str(error.value).startswith(f"{path}: ")
    assert equal(before, everything(run))
    if field not in ("dtype", "engine", "models"):
        assert f"'{field}'" in str(error.value)


def test_all_that_differs_is_in_one_line(path):
    begin(path)
    with pytest.raises(FileError) as error:
        resume(path, lr=0.01, batch_size=8, select="log_score", resume_despite="select")
    words = str(error.value)
    assert "lr was 0.05, is 0.01" in words
    assert "batch_size was 12, is 8" in words
    assert "select was" not in words
    assert "resume_despite=['batch_size', 'lr', 'select']" in words
    with pytest.raises(ValueError, match="'rate' is nothing that can be accepted; what can: data"):
        resume(path, resume_despite=["rate"])


def test_the_same_run_and_more_epochs_are_welcome(path):
    """Frames, arrays and copies of the same numbers are the same data; λ comes from the file."""
    begin(path)
    resumed, _ = resume(path, model(ub.TruncatedPoisson(3.0)), x=(x.clone(), y.clone()))
    whole = model()
    ub.fit(whole, **USUAL, epochs=4)
    assert same(state(whole), state(resumed))


class Rates(Callback):
    def __init__(self):
        self.seen = []

    def on_epoch_end(self, trainer, row):
        self.seen.append(round(row["lr"], 9))


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (None, [0.02, 0.02]),
        (partial(lr_scheduler.StepLR, step_size=1, gamma=0.5), [0.005, 0.0025]),
        (partial(lr_scheduler.CosineAnnealingLR, T_max=4), [0.01, 0.002928932]),
        (partial(lr_scheduler.ReduceLROnPlateau, patience=99), [0.02, 0.02]),
        (lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)), [0.02 / 3, 0.005]),
    ],
    ids=["none", "step", "cosine", "plateau", "lambda"],
)
def test_an_accepted_rate_takes_effect(path, scheduler, expected):
    begin(path, scheduler=scheduler)
    rates = Rates()
    resume(path, lr=0.02, scheduler=scheduler, callbacks=[rates], resume_despite=["lr"])
    assert rates.seen == pytest.approx(expected, abs=1e-8)
    # What was written has the new rate: it is the rule from now on.
    resume(path, lr=0.02, scheduler=scheduler, epochs=5)
    with pytest.raises(FileError, match=r"lr was 0.02, is 0.05"):
        resume(path, scheduler=scheduler, epochs=6)


def test_an_accepted_scheduler_goes_on_or_begins_anew(path):
    options = {"scheduler": partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)}
    begin(path, **options)
    same_kind = partial(lr_scheduler.StepLR, step_size=1, gamma=0.1)
    other = partial(lr_scheduler.LinearLR, start_factor=0.5, total_iters=2)
    for scheduler, expected in ((same_kind, [0.0125, 0.00125]), (other, [0.025, 0.0375])):
        begin(path, **options)
        rates = Rates()
        resume(path, scheduler=scheduler, callbacks=[rates], resume_despite="scheduler")
        assert rates.seen == pytest.approx(expected)


@pytest.mark.parametrize("many", [False, True])
def test_accepted_options_take_effect(path, many):
    def models():
        return [model(), model(seed=4)] if many else model()

    begin(path, models())
    changes = {
        "x": data(1, 18),
        "lr": 0.01,
        "optimizer": partial(torch.optim.Adam, betas=(0.7, 0.9)),
        "batch_size": 9,
        "seed": 8,
    }
    words = ["data", *(name for name in changes if name != "x")]
    _, result = resume(path, models(), **changes, resume_despite=words)
    result = result[0] if many else result
    assert result.history[-1]["step"] == 2 * 2 + 2 * 2
    assert result.history[-1]["lr"] == 0.01
    if not many:
        assert {group["betas"] for group in result.optimizer.param_groups} == {(0.7, 0.9)}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "change", [{"validation": None}, {"select": "log_score"}, {"validation": data(7)}]
)
def test_later_training_is_kept_when_the_judge_changes(path, many, change):
    """The old best epoch is no longer compared with, and not restored."""

    def models():
        return [model(), model(seed=4)] if many else model()

    begin(path, models())
    for number in range(1 + many):  # no later epoch could be better
        best = ["members", number, "best"]
        change_key = partial(reduce, getitem, best)
        rewrite(path, lambda header, find=change_key: find(header).update(key=[1e9, 1e9]))
    _, untouched = resume(path, models())
    _, result = resume(path, models(), epochs=5, **change, resume_despite=list(change))
    pairs = zip(result, untouched, strict=True) if many else [(result, untouched)]
    for one, other in pairs:
        assert other.best_epoch <= 2
        assert one.best_epoch > 4
    # Should no epoch follow, the last weights are kept.
    begin(path, models())
    found, result = resume(path, models(), epochs=2, **change, resume_despite=list(change))
    last = models()
    ub.fit(last, **{**USUAL, "validation": None}, epochs=2)
    one, other = (found[0], last[0]) if many else (found, last)
    assert same(state(one), state(other))


@pytest.mark.parametrize("engine", [Eager, Stacked])
def test_more_patience_goes_on_with_models_that_stopped(path, engine):
    options = {"patience": 1, "lr": 1e-9, "engine": engine()}
    begin(path, [model()], **options, epochs=9)
    _, (result,) = resume(path, [model()], **{**options, "epochs": 12})
    assert (result.stopped, result.history[-1]["epoch"]) == ("patience", 2)
    options = {**options, "patience": None, "epochs": 6}
    _, (result,) = resume(path, [model()], **options, resume_despite="patience")
    assert (result.stopped, result.history[-1]["epoch"]) == ("epochs", 6)


@pytest.mark.parametrize("many", [False, True])
def test_an_argument_that_is_new_had_its_default(path, many):
    def models(dropout=0.0):
        layers = [ub.TransformerLayers(5, 8, heads=2, dropout=dropout)]
        if many:
            layers.append(ub.TransformerLayers(5, 8, heads=2, causal=False, dropout=dropout))
        return [ub.UDN(one, ub.Tokens(5), ub.TruncatedNormal(2.0)) for one in layers]

    def older(header):
        found = header["fingerprint"]
        for layers in found["layers"] if many else [found["layers"]]:
            del layers["dropout"]
        del found["depth_rule"]["most"]

    tokens = torch.randint(5, (6, 4))
    options = {"x": (tokens, tokens), "validation": (tokens, tokens), "batch_size": 3}
    options["depth_rule"] = ub.HeldOutAscent()
    begin(path, models(), **options)
    rewrite(path, older)
    with pytest.raises(FileError, match=r"dropout was 0\.0, is 0\.5"):
        resume(path, models(0.5), **options)
    _, results = resume(path, models(), **options)
    assert [len(result.history) for result in results] == [4] * (1 + many)


def test_nothing_is_hashed_without_a_checkpoint(monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(fingerprint, "_array", fail)
    ub.fit(model(), **USUAL, epochs=1)


def test_digests_are_of_the_numbers(monkeypatch):
    """However they lie in memory, and in however small pieces they are read."""
    values = torch.arange(600, dtype=torch.float64).reshape(20, 30)
    whole = fingerprint._array(values)
    assert fingerprint._array(values.numpy()) == whole
    assert fingerprint._array(values.t().contiguous().t()) == whole
    monkeypatch.setattr(fingerprint, "_PIECE", 128)
    assert fingerprint._array(values) == whole
    assert fingerprint._array(values.t().contiguous().t()) == whole
    values[19, 29] += 1e-9
    assert fingerprint._array(values)["digest"] != whole["digest"]
    assert fingerprint._array(torch.zeros(0, 3))["shape"] == [0, 3]


def test_loaders_are_told_apart_as_far_as_can_be_known(path):
    def loader(*rows):
        return DataLoader(TensorDataset(*data(*rows)), batch_size=12)

    begin(path, x=loader(0))
    resume(path, x=loader(0))
    with pytest.raises(FileError, match=r"data.tensors\[0\].digest was"):
        resume(path, x=loader(1), epochs=5)
    with pytest.raises(FileError, match=r"data.batches was 2, is 1"):
        resume(path, x=loader(0, 12), epochs=5)


def closing(rate):
    return lambda epoch: rate / (1 + epoch)


def test_functions_are_compared_by_name_numbers_and_what_they_close_over():
    same_twice = [closing(0.5), closing(0.5)]
    assert fingerprint.describe(same_twice[0]) == fingerprint.describe(same_twice[1])
    different = [
        closing(0.4),
        partial(closing, rate=0.5),
        partial(closing, rate=0.4),
        closing,
        lambda epoch: 0.9**epoch,
        lambda epoch: 0.8**epoch,
    ]
    seen = [json.dumps(fingerprint.describe(one)) for one in [same_twice[0], *different]]
    assert len(set(seen)) == len(seen)


def test_a_checkpoint_of_an_earlier_version_says_so(path):
    write_tensors(path, {}, {"unbounded": json.dumps({"format": "unbounded-checkpoint-2"})})
    for read in (partial(resume, path), partial(seconds_so_far, path)):
        with pytest.raises(FileError, match="written by an earlier version of unbounded"):
            read()


def rewrite(path, change):
    """The same file with another header, and a right digest."""
    tensors, metadata = read_tensors(path)
    header = json.loads(metadata["unbounded"])
    change(header)
    write_tensors(path, tensors, {"unbounded": json.dumps(header)})


def test_another_version_of_torch_is_a_warning(path):
    begin(path)
    rewrite(path, lambda header: header["versions"].update(torch="1.2"))
    with pytest.warns(UserWarning, match=r"with torch 1.2, this is \S+: .* not bit for bit"):
        resume(path)


def test_seconds_so_far_of_a_changed_header(path):
    begin(path)
    for value in ("long", -1, None, float("nan")):
        rewrite(path, lambda header, value=value: header.update(seconds=value))
        with pytest.raises(FileError, match="the field seconds should be a finite number") as error:
            seconds_so_far(path)
        assert str(error.value).startswith(str(path))


class Picky(lr_scheduler.StepLR):
    """A scheduler of somebody's own, which refuses a state when it is half loaded."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if state.get("refuse"):
            raise KeyError("refuse")


def test_a_scheduler_of_ones_own_that_refuses_leaves_all_as_it_was(path):
    options = {"scheduler": partial(Picky, step_size=1)}
    begin(path, **options)
    scheduler = ["state", "members", 0, "scheduler", "state"]
    rewrite(path, lambda header: reduce(getitem, scheduler, header).update(refuse=1))
    one = model()
    before = state(one)
    with pytest.raises(FileError, match=r"scheduler\.state was refused"):
        resume(path, one, **options)
    assert same(before, state(one))


@pytest.mark.filterwarnings("ignore:.*was written with torch")
@pytest.mark.parametrize("name", mutations.RUNS)
def test_changed_files_are_refused_in_one_line_or_do_no_harm(tmp_path, name):
    """A run of every kind; `python -m benchmarks.attack checkpoints` is the long form."""
    rng = random.Random(name)
    torch.manual_seed(0)
    mutations.write(name, tmp_path / "whole")
    assert mutations.attempt(name, tmp_path / "whole") == "resumed"
    mutations.write(name, tmp_path / "whole")
    outcomes = []
    for _ in range(16):
        words = mutations.mutate(tmp_path / "whole", tmp_path / "changed", rng)
        try:
            outcomes.append(mutations.attempt(name, tmp_path / "changed"))
        except Exception as error:
            raise AssertionError(words) from error
    assert outcomes.count("refused") > 8
