"""The CIFAR-10 study around its training: plan, folder, processes, tables and figures."""

import argparse
import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import unbounded as ub
from unbounded import interrupts
from unbounded.cli import main
from unbounded.data import cifar10 as data
from unbounded.data.images import Images
from unbounded.experiments import cifar10 as study
from unbounded.experiments import figures as drawing_tools
from unbounded.experiments import jobs, pages, records
from unbounded.experiments.cifar10 import figures, models, overview, plan, published, results, table
from unbounded.experiments.cifar10 import runs as training
from unbounded.experiments.cifar10.presets import PRESETS
from unbounded.experiments.cifar10.recipe import CifarRun, Recipe, ignored
from unbounded.experiments.cifar10.study import QUICK_IMAGES, first_of_each_class, result_line
from unbounded.training import HeldOutAscent

EASY, HARD = published.EASY, published.HARD
DOCS = Path(__file__).parents[1] / "docs" / "cifar10.md"


def result(
    run: CifarRun, accuracy: float = 0.94, depth: float = 6.0, recipe: Recipe | None = None
) -> dict:
    """What a run leaves behind, with numbers of our choice."""
    recipe = recipe or Recipe.named("fast")
    fixed = 1 if run.model in models.OTHERS else models.fixed_depth(run.model)
    last = math.ceil(depth) + 2 if fixed is None else fixed
    weights = [math.exp(-((ell - depth) ** 2) / 4) for ell in range(1, last + 1)]
    if fixed is not None:
        depth, weights = float(fixed), [0.0] * (last - 1) + [1.0]
    curve = [
        {
            "epoch": epoch,
            "seconds": 30.0 * epoch,
            "depth_mean": depth - 1 / epoch,
            "max_depth": last,
            "lr": 0.1,
            "elbo": -1e4 / epoch,
            "expected_log_lik": -9e3 / epoch,
            "depth_kl": 2.0,
            "weight_kl": 500.0,
        }
        | ({"test_accuracy": accuracy - 0.1 / epoch} if epoch % 2 else {})
        for epoch in range(1, 6)
    ]
    return records.plain(
        {
            "run": dataclasses.asdict(run),
            "recipe": recipe.config(),
            "versions": {"device": "a device", "torch": "2.0"},
            "test_accuracy": accuracy,
            "test_log_score": -0.2,
            "test_ece": 0.02,
            "posterior": [w / sum(weights) for w in weights],
            "accuracy_by_depth": [accuracy - 0.3 / ell for ell in range(1, last + 1)],
            "depth_mean": depth,
            "max_depth": last,
            "num_layers": last,
            "seconds": 180.0,
            "capture_seconds": 30.0,
            "parameters": 8_500_000,
            "flops": 1.2e9,
            "images_per_second": 45e3,
            "epoch_seconds": 30.0,
            "curve": curve,
            "births": [],
        }
    )


class Trainer:
    """In the place of `runs.train`: writes what a training would, and remembers the calls."""

    def __init__(self):
        self.calls: list[dict] = []
        self.before = lambda run: None  # what happens instead of training; True ends its time

    @property
    def names(self) -> list[str]:
        return [call["run"].name for call in self.calls]

    def __call__(
        self, run, recipe, images, *, device, folder, resume, progress, minutes=None, keep=None
    ):
        told = {"run": run, "recipe": recipe, "images": images, "device": device}
        self.calls.append(told | {"folder": folder, "resume": resume, "minutes": minutes})
        if self.before(run):
            (folder / f"{run.name}.checkpoint").write_bytes(b"half")
            return None
        found = result(run, recipe=recipe)
        records.write_json(folder / f"{run.name}.json", found)
        (folder / f"{run.name}.checkpoint").unlink(missing_ok=True)
        return found


def some_images(each: int) -> Images:
    y = np.tile(np.arange(10), each)
    x = np.zeros((10 * each, 32, 32, 3), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(10 * each) % 256
    return Images(x, y, data.CLASSES, data.ALIASES)


@pytest.fixture
def trainer(monkeypatch):
    found = Trainer()
    images = data.CIFAR10(some_images(60), some_images(30))
    monkeypatch.setattr(training, "train", found)
    monkeypatch.setattr(data, "load", lambda folder=None: images)
    return found


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    return parser.parse_args(words)


def reproduce(out: Path, *words: str) -> int:
    return main(["reproduce", "cifar10", "--device", "cpu", "--out", str(out), *words])


def files(out: Path) -> set[str]:
    return {path.stem for path in (out / "runs").glob("*.json")}


# The plan


def test_the_whole_study_is_the_papers():
    runs = plan.plan()
    assert len(runs) == len(set(runs)) == 3 * (4 + 2)
    assert {run.seed for run in runs[:6]} == {0}  # a table of one seed comes first
    assert {run.model for run in runs if run.classes == ()} == {"udn", "5", "10", "20"}
    for pair in (EASY, HARD):
        assert {run.model for run in runs if run.classes == pair} == {"udn"}
    assert {(run.lambda0, run.rule) for run in runs} == {(20.0, "ascent")}


def test_starts_and_rules_are_for_udns_on_all_classes():
    runs = plan.plan(lambda0=(1.0, 20.0, 40.0), rules=("gradient", "ascent"), seeds=(0,))
    full = [run for run in runs if run.model == "udn" and run.classes == ()]
    assert {(run.lambda0, run.rule) for run in full} == {
        (start, rule) for start in (1.0, 20.0, 40.0) for rule in ("gradient", "ascent")
    }
    pairs = [run for run in runs if run.classes]
    assert [(run.classes, run.lambda0, run.rule) for run in pairs] == [
        (EASY, 20.0, "gradient"),
        (HARD, 20.0, "gradient"),
    ]
    assert sum(run.model == "10" for run in runs) == 1  # fixed depths have no λ
    without = plan.plan(lambda0=(2.0, 9.0), seeds=(0,))
    assert {run.lambda0 for run in without if run.classes} == {2.0}


def test_each_rule_starts_where_it_usually_does():
    runs = plan.plan(("udn",), (0,), None, None, ("settled", "ascent"))
    assert [(run.classes, run.lambda0, run.rule) for run in runs] == [
        ((), 5.0, "settled"),
        ((), 20.0, "ascent"),
        (EASY, 5.0, "settled"),
        (HARD, 5.0, "settled"),
    ]
    starts = (1.0, 5.0, 20.0, 40.0)
    runs = plan.plan(("udn", "30"), (0,), (("ship", "frog"), ()), starts, ("settled",))
    assert [run.lambda0 for run in runs if run.model == "udn"] == [*starts, *starts]
    made = study.make_study(options("--rules", "settled", "--models", "udn,5,10,20,30"))
    assert {run.lambda0 for run in made.runs if run.model == "udn"} == {5.0}
    assert made.recipe.held_out == 2000


def test_named_classes_are_for_every_model():
    runs = plan.plan(("udn", "5"), (7,), (EASY, ()), (1.0, 5.0))
    assert [(run.model, run.classes, run.lambda0) for run in runs] == [
        ("udn", EASY, 1.0),
        ("udn", EASY, 5.0),
        ("5", EASY, 20.0),
        ("udn", (), 1.0),
        ("udn", (), 5.0),
        ("5", (), 20.0),
    ]
    assert len({run.name for run in runs}) == len(runs)


def test_words_of_the_options():
    assert plan.models_of("udn,5, 10 05 omega10 Ω8") == ("udn", "5", "10", "8")
    assert plan.models_of("resnet18 dun30-own,mdeq") == ("resnet18", "dun30-own", "mdeq")
    assert plan.seeds_of("3") == (0, 1, 2)
    assert plan.seeds_of("0,4") == (0, 4)
    assert plan.seeds_of("4,") == (4,)
    assert plan.lambdas_of("1,2.5") == (1.0, 2.5)
    assert plan.rules_of("gradient,ascent") == ("gradient", "ascent")
    assert plan.classes_of(None) is None
    # However they are written, the paper's pairs are the same runs.
    assert plan.classes_of(["car,deer", "dog+cat", "all"]) == (EASY, HARD, ())
    assert plan.classes_of([",".join(reversed(data.CLASSES))]) == ((),)
    assert plan.classes_of(["ship,cat,dog"]) == (("ship", "cat", "dog"),)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "udn,resnet"], "there is no 'resnet'; there are udn, depths (5, 10, …"),
        (["--models", "dun0"], "there is no 'dun0'"),
        (["--recipe", "best", "--schedule", "paper"], "two recipes: give one of them"),
        (["--set", "smoothing=1.0"], "smoothing must be from 0 to below 1"),
        (["--set", "whitening=2"], "whitening must be odd, or 0, got 2"),
        (
            ["--set", "optimizer=lion"],
            "optimizer must be one of ('sgd', 'muon', 'adam'), got 'lion'",
        ),
        (["--models", "0"], "there is no '0'"),
        (["--models", ","], "--models: at least one is needed"),
        (["--seeds", "0"], "--seeds: at least one is needed"),
        (["--seeds", "1,x"], "a count or a list of whole numbers, got '1,x'"),
        (["--lambda0", "0"], "positive numbers were expected, got '0'"),
        (["--lambda0", "inf"], "positive numbers were expected, got 'inf'"),
        (["--rules", "descent"], "there is no 'descent'; there are: settled, ascent"),
        (["--classes", "deer,cow"], "there is no 'cow'; there are: all, airplane"),
        (["--classes", "deer"], "at least two different ones make a group, got 'deer'"),
        (["--classes", "car,automobile"], "at least two different ones"),
        (["--epochs", "0"], "epochs must be at least 1"),
        (["--rules", "settled", "--set", "held_out=0"], "looks at held-out images: --set held_out"),
        (["--rules", "settled", "--schedule", "paper"], "looks at held-out images: --set held_out"),
        (["--set", "held_out=-1"], "held_out, validation and images must be at least 0, got -1"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--minutes", "0"], "--minutes must be positive, got 0"),
        (["--resume", "--again"], "give one of them"),
        (["--device", "abacus"], "'abacus' cannot be used"),
    ],
)
def test_options_that_cannot_be(tmp_path, trainer, capsys, words, said):
    assert reproduce(tmp_path / "out", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("unbounded: error: ")
    assert said in error
    assert error.count("\n") == 1
    assert "mistake in unbounded" not in error
    assert not trainer.calls
    assert not (tmp_path / "out").exists()


# The folder


def test_from_the_command_to_the_files(tmp_path, trainer, capsys):
    assert reproduce(tmp_path, "--models", "udn,5", "--seeds", "2", "--epochs", "7") == 0
    said = capsys.readouterr().out
    names = [run.name for run in plan.plan(("udn", "5"), (0, 1))]
    assert trainer.names == names
    assert files(tmp_path) == set(names)
    for call in trainer.calls:
        assert call["recipe"] == Recipe.named("fast", epochs=7)
        assert (call["device"], call["minutes"]) == ("cpu", None)
        assert [len(part) for part in call["images"]] == [600, 300]
    assert f"{names[0]}: 94.00%, E[ℓ] 6.00, 3.0 minutes" in said
    assert f"8 of 8 runs are in {tmp_path}" in said
    assert (tmp_path / "table.md").read_text() in said
    for name in figures.NAMES:
        ElementTree.parse(tmp_path / name)
    assert "QUICK" not in said


def test_resume_keeps_what_is_there(tmp_path, trainer, capsys):
    words = ("--models", "5,10", "--classes", "all", "--seeds", "1")
    assert reproduce(tmp_path, *words) == 0
    assert reproduce(tmp_path, *words, "--models", "5,10,20", "--resume") == 0
    assert trainer.names == [f"{depth}-all-seed0" for depth in ("5", "10", "20")]
    assert "2 of 3 runs are kept" in capsys.readouterr().out
    # Neither kept nor lost without a word.
    assert reproduce(tmp_path, *words) == 2
    said = capsys.readouterr().err
    assert "has 2 of the 2 runs already" in said
    assert "--resume keeps them" in said
    assert len(trainer.calls) == 3
    assert reproduce(tmp_path, "--models", "5", "--classes", "all", "--seeds", "1", "--again") == 0
    assert trainer.names[3:] == ["5-all-seed0"]
    assert not trainer.calls[-1]["resume"]
    assert files(tmp_path) == {"5-all-seed0", "10-all-seed0", "20-all-seed0"}


def test_a_checkpoint_is_gone_on_from(tmp_path, trainer, capsys):
    words = ("--models", "5", "--classes", "all", "--seeds", "1")
    trainer.before = lambda run: True
    assert reproduce(tmp_path, *words, "--minutes", "3") == 0
    assert "its checkpoint is kept" in capsys.readouterr().out
    trainer.before = lambda run: False
    assert reproduce(tmp_path, *words) == 2  # it would be lost
    assert "--resume" in capsys.readouterr().err
    assert reproduce(tmp_path, *words, "--resume") == 0
    assert [call["resume"] for call in trainer.calls] == [True, True]
    assert files(tmp_path) == {"5-all-seed0"}


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path, trainer, capsys):
    words = ("--models", "5", "--classes", "all", "--seeds", "1", "--minutes", "3")
    trainer.before = lambda run: True
    assert reproduce(tmp_path, *words, "--epochs", "7") == 0
    assert reproduce(tmp_path, *words, "--epochs", "9", "--resume") == 2
    said = capsys.readouterr().err
    assert "5-all-seed0.checkpoint has another recipe: epochs was 7, now 9" in said
    trainer.before = lambda run: pytest.fail("there") if checkpoint.exists() else None
    checkpoint = tmp_path / "runs" / "5-all-seed0.checkpoint"
    assert reproduce(tmp_path, *words, "--epochs", "9", "--again") == 0
    assert len(trainer.calls) == 2


def test_a_trial_is_no_run_of_the_study(tmp_path, capsys):
    trial = result(CifarRun("5", 0))
    trial["validation_accuracy"] = trial.pop("test_accuracy")
    assert "of validation images, E[ℓ]" in result_line(CifarRun("5", 0), trial)
    records.write_json(tmp_path / "runs" / "5-all-seed0.json", trial)
    assert reproduce(tmp_path, "--no-train") == 2
    assert "5-all-seed0.json has no test accuracy: it is a trial" in capsys.readouterr().err


def test_another_recipe_is_refused_and_named(tmp_path, trainer, capsys):
    words = ("--models", "5", "--classes", "all", "--seeds", "1")
    assert reproduce(tmp_path, *words, "--epochs", "7") == 0
    capsys.readouterr()
    # Also for runs that are not there yet: a table compares like with like.
    for others in (("--resume",), ("--models", "10")):
        assert reproduce(tmp_path, *words, "--epochs", "9", *others) == 2
        said = capsys.readouterr().err
        assert "5-all-seed0.json has another recipe: epochs was 7, now 9" in said
    assert len(trainer.calls) == 1
    assert reproduce(tmp_path, *words, "--epochs", "9", "--again") == 0
    assert records.read_json(tmp_path / "runs" / "5-all-seed0.json")["recipe"]["epochs"] == 9


def test_runs_from_before_images_were_held_out(tmp_path, trainer, capsys):
    """They learnt from all images, which the default now does not."""
    words = ("--models", "5", "--classes", "all", "--seeds", "1")
    assert reproduce(tmp_path, *words, "--set", "held_out=0") == 0
    for path in (tmp_path / "recipe.json", tmp_path / "runs" / "5-all-seed0.json"):
        found = records.read_json(path)
        del found.get("recipe", found)["held_out"]
        records.write_json(path, found)
    assert reproduce(tmp_path, *words, "--resume") == 2
    assert "another recipe: held_out was 0, now 2000" in capsys.readouterr().err
    assert reproduce(tmp_path, *words, "--resume", "--set", "held_out=0") == 0


def test_minutes_are_for_all_runs_together(tmp_path, trainer, capsys, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def two_minutes(run):
        clock[0] += 120
        return run.model == "20"

    trainer.before = two_minutes
    words = ("--models", "5,10,20,30", "--classes", "all", "--seeds", "1")
    assert reproduce(tmp_path, *words, "--minutes", "5") == 0
    assert [call["minutes"] for call in trainer.calls] == pytest.approx([5.0, 3.0, 1.0])
    said = capsys.readouterr().out
    assert "20-all-seed0: out of time, its checkpoint is kept" in said
    assert "2 of 4 runs" in said
    assert "go on with --resume" in said
    assert (tmp_path / "table.md").is_file()
    clock[0] = 5000.0
    trainer.before = lambda run: clock.__setitem__(0, clock[0] + 400)
    assert reproduce(tmp_path, *words, "--minutes", "5", "--resume") == 0
    assert trainer.names[3:] == ["20-all-seed0"]  # it ended late: no other is begun


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_says_what_is_kept(tmp_path, trainer, capsys, number):
    def interrupt(run):
        if run.model == "10":
            os.kill(os.getpid(), number)
            time.sleep(5)  # never to its end

    before = signal.getsignal(number)
    trainer.before = interrupt
    words = ("--models", "5,10,20", "--classes", "all", "--seeds", "1")
    assert reproduce(tmp_path, *words) == 128 + number
    said = capsys.readouterr().err
    assert said == (f"unbounded: interrupted: 1 of 3 runs are in {tmp_path}; go on with --resume\n")
    assert signal.getsignal(number) is before
    trainer.before = lambda run: None
    assert reproduce(tmp_path, *words, "--resume") == 0
    assert trainer.names == [f"{d}-all-seed0" for d in ("5", "10", "10", "20")]


def test_a_quick_look_is_loud_and_keeps_to_itself(tmp_path, trainer, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "cifar10", "--quick", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "THESE NUMBERS MEAN NOTHING" in said.err
    assert [len(part) for part in trainer.calls[0]["images"]] == [500, 200]
    assert trainer.calls[0]["recipe"].epochs == 2
    assert {run.model for run in (c["run"] for c in trainer.calls)} == {"udn", "5"}
    assert (tmp_path / study.QUICK_OUT / "table.md").read_text().startswith("**QUICK LOOK")
    for name in figures.NAMES:
        drawing = (tmp_path / study.QUICK_OUT / name).read_text()
        assert "QUICK LOOK" in drawing
    assert not (tmp_path / study.OUT).exists()
    # Neither into the study's folder nor the study into this one.
    assert main(["reproduce", "cifar10", "--device", "cpu", "--out", str(study.QUICK_OUT)]) == 2
    assert "has runs of a quick look; name another folder" in capsys.readouterr().err
    real = ["reproduce", "cifar10", "--device", "cpu", "--models", "5", "--seeds", "1"]
    assert main(real) == 0
    standard = study.OUT / study.STANDARD
    assert main([*real, "--quick", "--out", str(standard), "--resume"]) == 2
    assert "has runs of the study; name another folder" in capsys.readouterr().err


def test_the_first_lambda_is_the_schedule_s_own(tmp_path, trainer):
    words = ("--models", "udn", "--classes", "all", "--seeds", "1")
    for name, more, expected in (
        ("fast", (), 20.0),
        ("paper", ("--schedule", "paper"), 5.0),
        ("said", ("--schedule", "paper", "--lambda0", "3"), 3.0),
    ):
        assert reproduce(tmp_path / name, *words, *more) == 0
        assert trainer.calls[-1]["run"].lambda0 == expected


def test_what_a_fixed_depth_does_not_use_does_not_keep_it_out(tmp_path, trainer, capsys):
    words = ("--classes", "all", "--seeds", "1", "--resume")
    assert reproduce(tmp_path, *words, "--models", "5", "--set", "layer_price=3") == 0
    assert reproduce(tmp_path, *words, "--models", "udn,5", "--set", "layer_price=4") == 0
    assert trainer.names == ["5-all-seed0", "udn-ascent-lambda20-all-seed0"]
    assert reproduce(tmp_path, *words, "--models", "udn,5", "--set", "layer_price=5") == 2
    assert "layer_price was 4.0, now 5.0" in capsys.readouterr().err
    assert reproduce(tmp_path, *words, "--models", "5", "--set", "lr=0.3") == 2
    assert "lr was 0.2, now 0.3" in capsys.readouterr().err


def test_few_images_of_each_class():
    images = some_images(9)
    found = first_of_each_class(images, 40)
    assert len(found) == 40
    assert set(found.counts().values()) == {4}
    np.testing.assert_array_equal(found.x, images.x[:40])
    assert QUICK_IMAGES["train"] % 10 == QUICK_IMAGES["test"] % 10 == 0


def test_tables_without_training(tmp_path, trainer, capsys):
    assert reproduce(tmp_path / "none", "--no-train") == 2
    assert "has no results of a run" in capsys.readouterr().err
    run = CifarRun("udn", 3)
    records.write_json(tmp_path / "runs" / f"{run.name}.json", result(run, 0.9123))
    assert reproduce(tmp_path, "--no-train") == 0
    assert "91.23" in capsys.readouterr().out
    assert not trainer.calls


# Several at once


def script(folder: Path, name: str, text: str) -> list[str]:
    path = folder / f"{name}.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_as_many_at_once_as_asked_for(tmp_path):
    """Each waits until it has seen another, and counts how many there are."""
    text = """
import os, pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.on").touch()
most, end = 0, time.monotonic() + 20
while most < 2 and time.monotonic() < end:
    most = max(most, len(list(folder.glob("*.on"))))
    time.sleep(0.01)
time.sleep(0.2)
most = max(most, len(list(folder.glob("*.on"))))
(folder / f"{name}.on").rename(folder / f"{name}.off")
print("saw", most)
"""
    command = script(tmp_path, "count", text)
    names = ["a", "b", "c", "d"]
    told: list[str] = []
    statuses = jobs.run_jobs(
        names,
        lambda name: [*command, str(tmp_path), name],
        2,
        tmp_path / "logs",
        started=lambda name, log: told.append(f"{name} {log.name}"),
        ended=lambda name, status: told.append(f"{name} {status}"),
    )
    assert statuses == dict.fromkeys(names, 0)
    for name in names:
        assert (tmp_path / "logs" / f"{name}.log").read_text() == "saw 2\n"
        assert told.index(f"{name} {name}.log") < told.index(f"{name} 0")


def test_one_that_fails_does_not_hold_up_the_others(tmp_path):
    text = "import sys; print('words', file=sys.stderr); sys.exit(3 if sys.argv[1] == 'b' else 0)"
    command = script(tmp_path, "fail", text)
    statuses = jobs.run_jobs(["a", "b", "c"], lambda name: [*command, name], 1, tmp_path / "logs")
    assert statuses == {"a": 0, "b": 3, "c": 0}
    assert (tmp_path / "logs" / "b.log").read_text() == "words\n"
    jobs.run_jobs(["b"], lambda name: [*command, "again"], 1, tmp_path / "logs")
    assert (tmp_path / "logs" / "b.log").read_text() == "words\nwords\n"  # a log goes on
    with pytest.raises(ValueError, match="at least 1, got 0"):
        jobs.run_jobs(["a"], lambda name: command, 0, tmp_path)


def test_no_more_are_begun_when_the_time_is_over(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(jobs.time, "monotonic", lambda: clock[0])

    def ended(name, status):
        clock[0] += 100

    command = script(tmp_path, "nothing", "")
    statuses = jobs.run_jobs(
        ["a", "b", "c"], lambda name: command, 1, tmp_path / "logs", minutes=2, ended=ended
    )
    assert statuses == {"a": 0, "b": 0}


_CHILD = """
import pathlib, sys, time
from unbounded.experiments.jobs import stop_with_parent
from unbounded.interrupts import taken
note = pathlib.Path(sys.argv[1])
with taken():
    stop_with_parent()
    try:
        note.write_text("running")
        time.sleep(60)
    except KeyboardInterrupt:
        note.write_text("stopped")
"""
_PARENT = """
import pathlib, sys
from unbounded.experiments.jobs import run_jobs
from unbounded.interrupts import taken
child, folder = sys.argv[1], pathlib.Path(sys.argv[2])
with taken():
    run_jobs(
        ["a", "b", "c"],
        lambda name: [sys.executable, child, str(folder / name)],
        2,
        folder / "logs",
    )
"""


def test_a_request_to_end_counts_where_ctrl_c_does_not():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.taken(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_the_others_end_too(tmp_path, number):
    """Ctrl-C, a request to end, or a sudden death: what runs saves itself, no more are begun."""
    child = script(tmp_path, "child", _CHILD)[1]
    parent = subprocess.Popen(
        [*script(tmp_path, "parent", _PARENT), child, str(tmp_path)], stderr=subprocess.PIPE
    )
    notes = [tmp_path / "a", tmp_path / "b"]
    try:
        _wait_for(lambda: all(note.is_file() and note.read_text() for note in notes))
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=120)
    finally:
        parent.kill()
    _wait_for(lambda: all(note.read_text() == "stopped" for note in notes))
    assert not (tmp_path / "c").exists()
    if number != signal.SIGKILL:
        assert b"KeyboardInterrupt" in errors


def _wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--quick", "--jobs", "3"),
        ("--classes", "car,deer", "all", "--classes", "cat,dog", "--models", "udn,10"),
        ("--lambda0", "1,5", "--rules", "gradient,ascent", "--seeds", "4,", "--again"),
        ("--schedule", "paper", "--epochs", "3", "--data", "a folder", "--resume"),
        ("--rules", "settled,gradient", "--classes", "ship,frog", "--set", "held_out=50"),
        ("--models", "resnet18", "omega8,dun5-own", "--recipe", "fast", "--keep"),
    ],
)
def test_a_process_gets_the_same_study(tmp_path, words):
    """What `child` writes is read as the same recipe and folder, and has the run in its plan."""
    ours = options("--out", str(tmp_path), *words)
    made = study.make_study(ours)
    for run in made.runs:
        command = study.child(ours, tmp_path, run.name, "cpu", 1.8e9 + 0.25)
        assert command[:4] == [sys.executable, "-m", "unbounded.experiments", "cifar10"]
        theirs = options(*command[4:])
        again = study.make_study(theirs)
        assert (again.recipe, again.folder, again.quick) == (made.recipe, tmp_path, made.quick)
        assert [r for r in again.runs if r.name == theirs.one] == [run]
        assert (theirs.device, theirs.until, theirs.data) == ("cpu", 1.8e9 + 0.25, ours.data)
        assert (theirs.again, theirs.keep) == (ours.again, ours.keep)


def test_one_run_alone_for_a_process(tmp_path, trainer, monkeypatch, capsys):
    monkeypatch.setattr(study, "stop_with_parent", lambda: None)
    (tmp_path / "runs").mkdir()
    words = ("--models", "5,10", "--classes", "all", "--seeds", "2")
    assert reproduce(tmp_path, *words, "--one", "10-all-seed1") == 0
    assert files(tmp_path) == {"10-all-seed1"}
    assert not (tmp_path / "table.md").exists()  # the parent's work
    # It began later than its parent: what is left is counted by the clock of both.
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    assert reproduce(tmp_path, *words, "--one", "5-all-seed0", "--until", "1090") == 0
    assert reproduce(tmp_path, *words, "--one", "5-all-seed1", "--until", "900") == 0
    assert [call["minutes"] for call in trainer.calls] == pytest.approx([None, 1.5, 0.01], abs=1e-4)


def test_jobs_from_the_command_to_the_files(tmp_path, trainer, monkeypatch, capsys):
    text = "import shutil, sys; print('trained'); sys.exit(shutil.copy(*sys.argv[1:]) == 0)"
    command = script(tmp_path, "copy", text)
    out = tmp_path / "out"

    def child(options, folder, name, device, until):
        run = next(run for run in study.make_study(options).runs if run.name == name)
        records.write_json(tmp_path / f"{name}.json", result(run))
        there = tmp_path / ("missing" if run.model == "10" and bad else f"{name}.json")
        return [*command, str(there), str(folder / "runs" / f"{name}.json")]

    monkeypatch.setattr(study, "child", child)
    bad = True
    words = ("--models", "udn,5,10", "--classes", "all", "--seeds", "1", "--jobs", "2")
    assert reproduce(out, *words) == 2
    said = capsys.readouterr()
    assert "1 of 3 runs failed: 10-all-seed0; their output is in" in said.err
    assert "5-all-seed0: 94.00%" in said.out
    assert "FileNotFoundError" in (out / "logs" / "10-all-seed0.log").read_text()
    assert (out / "table.md").is_file()  # of those that did not
    bad = False
    assert reproduce(out, *words, "--resume") == 0
    assert "2 of 3 runs are kept" in capsys.readouterr().out
    assert len(files(out)) == 3
    assert not trainer.calls


# Tables


def study_of(*pairs: tuple[CifarRun, float, float]) -> list[dict]:
    return [result(run, accuracy, depth) for run, accuracy, depth in pairs]


def cells(text: str, first: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    assert len(lines) == 1, lines
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_accuracy_beside_the_published():
    accuracies = [0.941, 0.947, 0.944]
    depths = [10.0, 11.0, 12.0]
    runs = study_of(
        *[
            (CifarRun("udn", s), a, d)
            for s, (a, d) in enumerate(zip(accuracies, depths, strict=True))
        ],
        (CifarRun("5", 0), 0.92, 5),
        (CifarRun("7", 0), 0.93, 7),
        (CifarRun("udn", 0, EASY), 0.99, 2),
    )
    text = table.accuracy_table(runs)
    deviation = statistics.stdev([100 * a for a in accuracies])
    ours = cells(text, "UDN")
    assert ours[1:5] == ["94.4 ± 0.2", "the paper", f"**94.40 ± {deviation:.2f}**", "3"]
    assert ours[5:9] == ["−0.200 ± 0.000", "0.020 ± 0.000", "11.00 ± 1.00", "12–14"]
    assert ours[9:] == ["8.50", "1.20", "180", "45,000"]
    assert cells(text, "Ω₅")[1:5] == ["91.7 ± 0.2", "the paper", "92.00", "1"]
    assert cells(text, "Ω₇")[1:4] == ["–", "–", "93.00"]
    assert cells(text, "Ω₃₀")[1:4] == ["93.9 ± 0.1", "the paper", "–"]
    assert cells(text, "MDEQ")[1:4] == ["93.8 ± 0.3", "Bai et al. 2020", "–"]
    for row in published.TABLE:
        assert text.count(f"{row.mean} ± {row.deviation}") >= 1


def test_the_udn_of_the_tables_is_of_one_kind():
    kinds = [(20.0, "gradient"), (1.0, "ascent"), (9.0, "ascent")]
    runs = study_of(*[(CifarRun("udn", 0, (), start, rule), 0.9, 4) for start, rule in kinds])
    found = results.headline(runs)
    assert [(r["run"]["lambda0"], r["run"]["rule"]) for r in found] == [(1.0, "ascent")]
    usual = study_of((CifarRun("udn", 0), 0.93, 4))
    assert results.headline([*runs, *usual]) == usual
    runs += study_of((CifarRun("udn", 0), 0.93, 4), (CifarRun("udn", 1), 0.94, 4))
    assert [r["test_accuracy"] for r in results.headline(runs)] == [0.93, 0.94]
    many = study_of(*[(CifarRun("udn", seed, (), 9.0), 0.95, 4) for seed in range(3)])
    assert results.headline([*runs, *many])[-3:] == many  # where most seeds are
    text = table.accuracy_table(runs)
    assert cells(text, "UDN, λ by our rule (ascent), λ₀ = 20")[3].strip("*") == "93.50 ± 0.71"
    other = cells(text, "UDN, λ by the paper's rule (gradient), λ₀ = 20")
    assert (other[1], other[3]) == ("–", "90.00")
    assert not results.headline(runs, EASY)


def test_the_settled_rule_in_tables_and_figures():
    runs = study_of(
        *[(CifarRun("udn", 0, (), start, "settled"), 0.9, 4) for start in (1.0, 5.0)],
        (CifarRun("udn", 0, (), 5.0), 0.91, 7),
        (CifarRun("udn", 0, ("ship", "frog"), 5.0, "settled"), 0.99, 3),
        (CifarRun("10", 0, ("ship", "frog")), 0.98, 10),
        (CifarRun("10", 0), 0.93, 10),
    )
    page = table.markdown(runs)
    assert cells(page, "UDN, settled, λ₀ = 5")[3] == "90.00"
    assert cells(page, "UDN, λ by our rule (ascent), λ₀ = 5")[3] == "91.00"
    assert "| λ₀ | E[ℓ], settled | accuracy, % | seeds | E[ℓ], ours |" in page
    assert "All with settled and λ₀ = 5" in page
    assert cells(table.classes_table(runs), "ship + frog")[2] == "99.00"
    assert "Some of the classes: accuracy of every model" in page
    pairs = table.fixed_table(runs)
    assert cells(pairs, "ship + frog")[1:] == ["98.00", "99.00", "3.00"]
    assert table.fixed_table(runs[:4]) == ""
    figure = drawing(figures.evolution, runs)
    assert [len(axes.lines) for axes in figure.axes] == [0, 1, 2]
    figure = drawing(figures.evolution, runs[:2])
    assert [axes.get_title() for axes in figure.axes][1] == "settled on held-out images"


def test_easy_hard_and_all():
    runs = study_of(
        (CifarRun("udn", 0, EASY), 0.99, 2.5),
        (CifarRun("udn", 1, EASY), 0.98, 3.5),
        (CifarRun("udn", 0), 0.94, 9),
        (CifarRun("udn", 0, ("ship", "frog")), 0.97, 4),
    )
    text = table.classes_table(runs)
    assert cells(text, "deer")[1:] == [
        "99",
        "98.50 ± 0.71",
        "99.00, 98.00",
        "3.00 ± 0.71",
        "2.50, 3.50",
        "5–6",
    ]
    assert cells(text, "cat")[1:3] == ["88", "not run"]
    assert cells(text, "all ten")[1:3] == ["94", "94.00"]
    assert cells(text, "ship + frog")[1:3] == ["–", "97.00"]


def test_depth_from_each_start():
    ends = {("ascent", 1.0): [8.0, 10.0], ("ascent", 20.0): [10.0], ("gradient", 20.0): [20.0]}
    runs = study_of(
        *[
            (CifarRun("udn", seed, (), start, rule), 0.94, depth)
            for (rule, start), depths in ends.items()
            for seed, depth in enumerate(depths)
        ]
    )
    text = table.starts_table(runs)
    assert cells(text, "1 |")[1:] == ["9.00 ± 1.41", "94.00 ± 0.00", "2", "–", "–", "–"]
    assert cells(text, "20")[1:] == ["10.00", "94.00", "1", "20.00", "94.00", "1"]
    # Of the means over seeds: (10 − 9) / 9.5.
    assert cells(text, "(max")[1] == "10.5%"
    assert cells(text, "(max")[4] == "one λ₀ alone"
    assert "was not run" in table.starts_table(study_of((CifarRun("5", 0), 0.9, 5)))
    assert results.relative_range([8.0, 12.0, 10.0]) == pytest.approx(0.4)


def test_what_was_reached_can_be_no():
    paper, fixed, above = (
        "UDN as good as the paper's 94.4",
        "UDN as good as the best of 2",
        "not above",
    )
    starts, order, hard_claim = "within 25%", "E[ℓ] grows", "88 on cat + dog"

    def missed(accuracy=(0.944, 0.944), hard_depth=6.0, five=0.93, hard=0.88, other=10.0):
        found = table.verdicts(
            study_of(
                (CifarRun("udn", 0), accuracy[0], 9),
                (CifarRun("udn", 1), accuracy[1], 9),
                (CifarRun("udn", 0, (), 1.0), 0.9, other),
                (CifarRun("udn", 0, EASY), 0.99, 3),
                (CifarRun("udn", 0, HARD), hard, hard_depth),
                (CifarRun("5", 0), five, 5),
                (CifarRun("10", 0), 0.92, 10),
            )
        )
        assert len(found) == 7
        assert "E[ℓ] from λ₀ = 1, 20 within 25% of each other" in found
        return [claim for claim, good in found.items() if not good]

    def are(found, *parts):
        return len(found) == len(parts) and all(p in f for p, f in zip(parts, found, strict=True))

    assert missed() == []
    assert are(missed(accuracy=(0.94, 0.94)), paper)
    assert are(missed(five=0.95), fixed, above)
    # Within a standard deviation is as good, but the mean is lower all the same.
    assert are(missed(accuracy=(0.945, 0.955), five=0.951), above)
    assert missed(accuracy=(0.945, 0.955), five=0.95) == []
    assert are(missed(hard_depth=2.9), order)
    assert are(missed(hard_depth=9.1), order)
    assert are(missed(hard=0.874), hard_claim)
    # (max − min) / mean of 9 and 11.5: 24.4 %; of 9 and 11.7: 26.1 %.
    assert missed(other=11.5) == []
    assert are(missed(other=11.7), starts)
    assert not table.verdicts(study_of((CifarRun("5", 0), 0.9, 5)))


def test_into_a_page(tmp_path, capsys):
    run = CifarRun("udn", 0)
    records.write_json(tmp_path / "runs" / f"{run.name}.json", result(run, 0.9321))
    page = tmp_path / "page.md"
    page.write_text(DOCS.read_text())
    assert table.main([str(tmp_path), "--into", str(page)]) == 0
    assert "93.21" in page.read_text()
    assert page.read_text().startswith(DOCS.read_text().split(pages.BEGIN)[0])
    assert (tmp_path / "table.md").read_text() in page.read_text()


# All recipes


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """Two recipes, and a quick look that means nothing."""
    root = tmp_path_factory.mktemp("recipes")
    fast = Recipe(epochs=40, held_out=3000)
    made = {
        "fast": [
            result(CifarRun(model, seed), accuracy + 0.002 * seed, 8, fast)
            for model, accuracy in (("10", 0.94), ("udn", 0.95))
            for seed in (0, 1)
        ],
        "standard": [result(CifarRun("10", 0), 0.945), result(CifarRun("node", 0), 0.5)],
        "quick": [result(CifarRun("30", 0), 0.99)],
        "trial": [result(CifarRun("mdeq", 0), 0.99)],
        "basic": [result(CifarRun(m, 0), 0.99) for m in ("10", "resnet18")],
    }
    for run in made["basic"]:
        run["recipe"]["block"] = "basic"
    for name, runs in made.items():
        for run in runs:
            file = CifarRun(**{**run["run"], "classes": tuple(run["run"]["classes"])}).name
            records.write_json(root / name / "runs" / f"{file}.json", run)
    records.write_json(root / "fast" / "about.json", {"asks": "how fast?", "shared": True})
    records.write_json(root / "trial" / "about.json", {"trial": True})
    records.write_json(root / "quick" / "quick.json", {"train": 1, "test": 1, "epochs": 1})
    with pytest.MonkeyPatch.context() as patch:
        # Painted, but not written out, which takes most of the time.
        patch.setattr(drawing_tools, "render", lambda paint, size: paint(Figure()) or "<svg/>")
        into = root / "page.md"
        into.write_text(f"{pages.BEGIN}\n{pages.END}\n")
        assert main(["reproduce", "cifar10", "--no-train", "--out", str(root)]) == 0
        page = (root / "table.md").read_text()
        assert table.main([str(root), "--into", str(into)]) == 0
    return root, made, page


def test_all_recipes_side_by_side(recipes):
    root, _made, page = recipes
    brief = (root / "page.md").read_text()
    assert "Table 2 in short" in brief
    assert "ours by each recipe" not in brief
    assert (root / "table.md").read_text() == page
    assert (root / "fast" / "table.md").is_file()
    assert {path.name for path in root.glob("*.svg")} == {"seconds.svg"}
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines()]
    short, basic, start = (i for i, row in enumerate(rows) if row[0].startswith("Ω₁₀"))
    assert rows[basic][:5] == ["Ω₁₀, basic blocks", "–", "99.00", "–", "basic"]
    assert rows[short][1:] == ["94.0 ± 0.2", "94.50", "+0.50", "standard", "100", "48,000", "1"]
    assert rows[short + 1][2:] == ["–"] * 6
    deviation = statistics.stdev([94.0, 94.2])
    ten = ["94.0 ± 0.2", "fast", "40", "47,000", f"94.10 ± {deviation:.2f}", "2"]
    assert rows[start][1:3] == ["94.0 ± 0.2", "basic (basic blocks)"]
    assert rows[start + 1][2:7] == ten[1:]
    assert rows[start + 2][:7] == ["", "", "standard", "100", "48,000", "**94.50**", "1"]
    long = page.split("by each recipe")[1]
    assert cells(long, "UDN |")[2:6] == ["fast (rule ascent)", "40", "47,000", "**95.10 ± 0.14**"]
    assert set(cells(long, "Ω₃₀")[2:]) == {"–"}  # quick looks do not count
    printed = [row.label for row in published.TABLE]
    assert [row[0] for row in rows if row[0] in printed] == 2 * printed
    assert "| `fast` | how fast? | epochs 40, held_out 3000 |" in page


def test_the_recipe_of_a_folder_is_what_its_models_look_at():
    """A field that a model does not look at is as it was by default when it ran, and no news."""
    before = Recipe(ode_solver="dopri5", deq_iterations=7, caution=1.0)
    runs = [result(CifarRun("5", 0), 0.9, 5, before)]
    assert "ode_solver" not in results.settings(runs)
    row = overview.recipes_table([overview.Part("own", runs, [], {})]).splitlines()[-1]
    assert [c.strip() for c in row.split("|")][3] == "nothing"
    runs += [result(CifarRun("node", 0), 0.5, 1, Recipe(ode_steps=2)), result(CifarRun("udn", 0))]
    found = results.settings(runs)
    assert (found["ode_solver"], found["ode_steps"], found["caution"]) == ("rk4", 2, 32.0)
    assert "deq_iterations" not in found
    row = overview.recipes_table([overview.Part("own", runs, [], {})]).splitlines()[-1]
    assert [c.strip() for c in row.split("|")][3] == "ode_steps 2"


def test_networks_that_table_2_does_not_have_come_after_it():
    short = Recipe(epochs=30)
    runs = [result(CifarRun(m, 0), 0.9, 8, short) for m in ("dun30", "mdeq", "node-stem", "udn")]
    page = overview.short_table([overview.Part("settled", runs, [], {})])
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines()]
    printed = [row.label for row in published.TABLE]
    names = [row[0] for row in rows if len(row) == 8][2:]
    assert names == [*printed, "NODE on a stem", "DUN₃₀, one head"]
    assert rows[-4][1:] == ["–", "90.00", "–", "settled", "30", "48,000", "1"]
    assert cells(page, "MDEQ")[1:6] == ["93.8 ± 0.3", "90.00", "−3.80", "settled", "30"]


def test_where_ours_are_better_in_words(recipes):
    _, _, page = recipes
    assert "- above: Ω₁₀ (+0.50, standard), ResNet-18 (+6.10, basic), UDN (+0.70, fast)" in page
    assert "- below: NODE (−3.70, standard, 100 epochs)" in page
    assert "- not run: Ω₅, Ω₈, Ω₁₅, Ω₂₀, Ω₃₀, ANODE, MDEQ\n" in page
    error = math.sqrt(2 * 0.02 / 2)  # both have a variance of 0.02 over two seeds
    expected = f"UDN 95.10, Ω₁₀ 94.10: +1.00 ± {error:.2f}, the UDN is better"
    assert f"- fast, 1 fixed depth: {expected}" in page
    assert "- standard" not in page.split("The UDN beside")[1].split("###")[0]  # it has no UDN


def test_all_recipes_in_one_figure(recipes):
    _, made, _ = recipes
    sets = {name: made[name] for name in ("fast", "standard")}
    figure = Figure()
    figures.seconds(figure, sets, shared=["fast"])
    assert entries(figure) == ["Ω₁₀", "NODE", "UDN", "fast", "standard"]
    upper, lower = figure.axes  # NODE is far below
    assert lower.get_ylim()[0] < 50 < lower.get_ylim()[1] < upper.get_ylim()[0]
    assert {line.get_marker() for line in upper.lines} == {"o", "s"}
    hollow = [line.get_markerfacecolor() == "none" for line in upper.lines]
    assert hollow == [True, True, False, False]


def test_each_recipe_has_its_folder():
    folder = study._folder
    assert folder(options()) == Path("results/cifar10/standard")
    assert folder(options("--recipe", "best")) == Path("results/cifar10/best")
    assert folder(options("--schedule", "paper")) == Path("results/cifar10/paper")
    assert folder(options("--recipe", "best", "--out", "x")) == Path("x")
    assert folder(options("--no-train")) == Path("results/cifar10")
    assert folder(options("--quick")) == Path("results/cifar10-quick")


# Figures


def words_of(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()).strip() for element in found]


def drawing(paint, runs):
    figure = Figure()
    paint(figure, runs)
    return figure


def notes(figure) -> str:
    return figure.get_supxlabel()


def entries(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines_of(axes, colour: str) -> list:
    return [line for line in axes.lines if line.get_color() == colour]


def test_posteriors_of_each_group_and_seed():
    runs = study_of(
        *[(CifarRun("udn", seed, EASY), 0.99, 2) for seed in range(3)],
        *[(CifarRun("udn", seed), 0.94, 8) for seed in range(2)],
    )
    figure = drawing(figures.posterior, runs)
    (axes,) = figure.axes
    assert len(lines_of(axes, figures.BLUE)) == 3
    assert len(lines_of(axes, figures.GREEN)) == 2
    assert not lines_of(axes, figures.ORANGE)
    assert notes(figure) == "no runs of cat + dog"
    assert entries(figure)[1].endswith("94.0 %, E[ℓ] 8.0")
    line = lines_of(axes, figures.BLUE)[0]
    assert list(line.get_xdata()) == list(range(1, len(runs[0]["posterior"]) + 1))
    assert list(line.get_ydata()) == runs[0]["posterior"]


def test_evolution_of_both_rules():
    runs = study_of(
        *[(CifarRun("udn", 0, (), start, "ascent"), 0.94, 8) for start in (1.0, 5.0, 20.0)],
        (CifarRun("udn", 0, EASY), 0.99, 2),
    )
    figure = drawing(figures.evolution, runs)
    assert [len(axes.lines) for axes in figure.axes] == [0, 3]
    assert notes(figure) == "no runs with the paper's rule (gradient)"
    assert entries(figure) == ["λ₀ = 1", "λ₀ = 5", "λ₀ = 20"]
    more = study_of((CifarRun("udn", 0, (), 5.0, "gradient"), 0.94, 12))
    figure = drawing(figures.evolution, runs + more)
    assert not notes(figure)
    assert [len(axes.lines) for axes in figure.axes] == [1, 3]
    (line,) = figure.axes[0].lines
    assert line.get_ydata()[-1] == more[0]["curve"][-1]["depth_mean"]
    low, high = figure.axes[0].get_ylim()
    assert low == 0
    assert high > max(row["depth_mean"] for run in runs + more for row in run["curve"])


def test_accuracy_and_weight_of_each_depth():
    runs = study_of((CifarRun("udn", 4), 0.94, 8), (CifarRun("udn", 7), 0.95, 9))
    figure = drawing(figures.depths, runs)
    upper, lower = figure.axes
    assert [bar.get_height() for bar in lower.patches] == runs[0]["posterior"]
    assert upper.lines[1].get_ydata()[0] == pytest.approx(94)
    assert entries(figure) == ["each depth alone", "the mixture\n94.00 %"]
    assert "seed 4" in figure.get_suptitle()


def test_curves_over_epochs():
    runs = study_of(
        (CifarRun("5", 0), 0.92, 5), (CifarRun("udn", 0), 0.94, 8), (CifarRun("udn", 1), 0.93, 8)
    )
    figure = drawing(figures.curves, runs)
    for axes in figure.axes:
        assert len(lines_of(axes, figures.ORANGE)) == 2  # a line for each seed
    line = lines_of(figure.axes[0], figures.ORANGE)[0]
    # Epochs without a test accuracy are passed over.
    assert list(line.get_xdata()) == [1, 3, 5]
    assert line.get_ydata()[-1] == pytest.approx(92)
    assert entries(figure) == ["Ω₅", "UDN"]
    for run in runs:
        run["curve"] = [{k: v for k, v in r.items() if k != "test_accuracy"} for r in run["curve"]]
    with pytest.raises(figures.NothingToDraw, match="scored while it was trained"):
        drawing(figures.curves, runs)


def test_accuracy_against_seconds():
    runs = study_of(
        (CifarRun("5", 0), 0.92, 5),
        (CifarRun("mdeq", 0), 0.91, 1),
        (CifarRun("udn", 0), 0.94, 8),
        (CifarRun("udn", 0, EASY), 0.99, 2),
    )
    runs[1]["seconds"] = 4000.0
    figure = drawing(figures.seconds, runs)
    (axes,) = figure.axes
    assert entries(figure) == ["Ω₅", "MDEQ", "UDN"]
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines]
    assert points == [(180.0, 92.0), (4000.0, 91.0), (180.0, 94.0)]


def test_other_kinds_of_networks_stand_beside_the_published():
    names = ["mdeq", "node-stem", "node", "resnet18", "dun30-own", "dun30", "8"]
    runs = study_of(*[(CifarRun(name, 0), 0.9, 5) for name in names])
    text = table.accuracy_table(runs)
    first = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][2:]
    kept = ["Ω₈", "ResNet-18", "NODE", "NODE on a stem", "MDEQ", "DUN₃₀, one head", "UDN"]
    places = [next(i for i, cell in enumerate(first) if cell.startswith(one)) for one in kept]
    assert places == sorted(places)
    assert cells(text, "NODE |")[1:4] == ["53.7 ± 0.2", "Dupont et al. 2019", "**90.00**"]
    assert cells(text, "NODE on a stem")[1:3] == ["–", "–"]
    assert cells(text, "DUN₃₀, own heads")[7] == "5.00"  # it infers a depth
    assert cells(text, "MDEQ")[7:9] == ["–", "–"]
    assert "- NODE: the bare form, 172,358 weights" in text
    assert "- ANODE" not in text  # it was not run
    # Another kind is no fixed depth.
    both = study_of((CifarRun("udn", 0), 0.94, 8), (CifarRun("5", 0), 0.93, 5))
    assert table.verdicts([*both, *runs[:4]]) == table.verdicts(both)


def test_a_missing_package_is_told_before_training(tmp_path, trainer, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdeq", None)
    theirs = ("--models", "5", "mdeq", "--set", "deq_solver=anderson")
    assert reproduce(tmp_path / "out", *theirs) == 2
    assert "pip install 'unbounded[baselines]'" in capsys.readouterr().err
    assert not trainer.calls


def test_fields_of_other_models_do_not_keep_a_run_out():
    assert "ode_tolerance" in ignored("udn")
    assert "ode_tolerance" not in ignored("node")
    assert "deq_gradient" in ignored("node")
    assert "deq_gradient" not in ignored("mdeq")
    assert "concentration" in ignored("mdeq")
    assert "concentration" not in ignored("udn")
    assert "lr" not in ignored("resnet18")


def test_presets_change_the_recipe():
    for name, preset in PRESETS.items():
        made = study.make_study(options("--recipe", name, "--models", "udn", "5"))
        assert made.recipe == Recipe.named("fast", **preset)
        assert made.recipe.optimizer == "muon"
    made = study.make_study(options("--recipe", "best", "--set", "smoothing=0.2"))
    assert {run.rule for run in made.runs if run.model == "udn"} == {"settled"}
    paper = study.make_study(options("--recipe", "best", "--rules", "gradient"))
    assert {run.rule for run in paper.runs if run.model == "udn"} == {"gradient"}
    assert (made.recipe.smoothing, made.recipe.epochs) == (0.2, PRESETS["best"]["epochs"])


def test_figures_without_runs_are_left_out_with_a_note(tmp_path):
    records.write_json(tmp_path / "runs" / "5-all-seed0.json", result(CifarRun("5", 0)))
    stale = tmp_path / "posterior.svg"
    stale.write_text("of runs that are gone")
    text = table.write(tmp_path)
    assert not stale.exists()
    assert {p.name for p in tmp_path.glob("*.svg")} == {"curves.svg", "seconds.svg"}
    for name in ("posterior.svg", "evolution.svg", "accuracy_by_depth.svg"):
        assert f"- {name}: " in text
    assert "no curve of UDN" in words_of((tmp_path / "curves.svg").read_text())


def test_the_results_file_is_plain(tmp_path):
    """What the tests make up is what JSON holds."""
    made = result(CifarRun("udn", 0, EASY))
    assert json.loads(json.dumps(made)) == made
    assert made["run"]["classes"] == list(EASY)


def test_changes_of_the_recipe_by_words():
    recipe = Recipe().changed(["concentration=4", "nesterov=False", "epochs=7", "pad=zero"])
    assert (recipe.concentration, recipe.nesterov, recipe.epochs) == (4.0, False, 7)
    assert recipe.pad == "zero"
    assert Recipe().changed([]) == Recipe()
    for word, said in (
        ("depth=3", "NAME of"),
        ("lr", "NAME=VALUE"),
        ("lr=fast", "a number was expected"),
        ("epochs=1.5", "a whole number"),
        ("nesterov=1", "True or False"),
        ("epochs=0", "epochs must be at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            Recipe().changed([word])


def test_family_and_prior_follow_the_rule():
    recipe = Recipe(width=4, layer_price=7.0, prior_rate=2.0)
    paper = CifarRun("udn", 0, (), 5.0, "gradient").build(recipe, 3, 10)
    assert type(paper.depth) is ub.TruncatedPoisson
    assert paper.depth_prior.config() == {"rate": 2.0}
    ours = CifarRun("udn", 0, (), 5.0).build(recipe, 3, 10)
    assert isinstance(ours.depth, ub.TruncatedConwayMaxwell)
    assert ours.depth.concentration == 1  # it begins as a Poisson
    wider = dataclasses.replace(recipe, search_concentration=0.3)
    assert CifarRun("udn", 0).build(wider, 3, 10).depth.concentration == 0.3
    assert ours.depth.rate == pytest.approx(5)
    log_prior = ours.depth_prior.log_prob(torch.arange(1, 5))
    assert log_prior.diff().tolist() == pytest.approx([-7.0] * 3)
    for start, spread in ((1.0, 1.0), (20.0, 10.0)):
        run = CifarRun("udn", 0, (), start, "settled")
        settled = run.build(recipe, 3, 10)
        assert isinstance(settled.depth, ub.TruncatedNormal)
        assert (settled.depth.place, settled.depth.spread) == pytest.approx((start, spread))
        fitting = run.fitting(settled, recipe, 100)
        assert isinstance(fitting["depth_rule"], HeldOutAscent)
        assert fitting["equal_heads"]
        assert not run.callbacks(recipe)
    assert type(CifarRun("3", 0).build(recipe, 3, 10).depth) is ub.FixedDepth
    assert (
        CifarRun("3", 0).callbacks(recipe)
        == CifarRun("udn", 0, rule="gradient").callbacks(recipe)
        == []
    )


def test_pairs_of_classes_make_more_passes_and_sharpen_in_proportion():
    recipe = Recipe(epochs=50, stretch=3.0, search=0.5, concentration=9.0)
    for run, epochs in ((CifarRun("udn", 0), 50), (CifarRun("udn", 0, ("cat", "dog")), 150)):
        assert run.epochs(recipe) == epochs
        (sharpen,) = run.callbacks(recipe)
        assert (sharpen.epoch, sharpen.concentration) == (epochs // 2, 9.0)


def test_steps_of_some_classes_are_as_many():
    """Batches go with the share of the images, rates with its root; of all classes nothing does."""
    recipe = Recipe(batch_size=512, equal_steps=True, lr=0.2)
    pair, whole = CifarRun("5", 0, ("cat", "dog")), CifarRun("5", 0)
    assert pair.batch_size(recipe, 9600) == 104
    assert whole.batch_size(recipe, 48_000) == 512
    assert pytest.approx(48_000 // 512, rel=0.02) == 9600 // 104
    assert pair.batch_size(Recipe(batch_size=512), 9600) == 512
    assert pair.batch_size(recipe, 50) == 50
    assert pair.batch_size(Recipe(batch_size=16, equal_steps=True), 9600) == 8
    for run, factor in ((pair, 0.2**0.5), (whole, 1.0)):
        model = run.build(recipe, 3, 2)
        optimizer = run.fitting(model, recipe, 9600)["optimizer"]
        assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.2 * factor)


def test_runs_on_all_classes_do_not_look_at_what_is_for_some(tmp_path, trainer, capsys):
    words = ("--models", "5", "--classes", "all", "--seeds", "1")
    assert reproduce(tmp_path, *words) == 0
    assert reproduce(tmp_path, *words, "--set", "equal_steps=True", "--resume") == 0
    trainer.before = lambda run: True  # an unfinished one no more than a finished one
    cut = ("--models", "10", "--classes", "all", "--seeds", "1", "--minutes", "3")
    assert reproduce(tmp_path, *cut) == 0
    assert reproduce(tmp_path, *cut, "--set", "equal_steps=True", "--resume") == 0
    trainer.before = lambda run: False
    some = ("--models", "5", "--classes", "cat,dog", "--seeds", "1")
    assert reproduce(tmp_path, *some) == 0
    assert reproduce(tmp_path, *some, "--set", "equal_steps=True", "--resume") == 2
    assert "equal_steps was False, now True" in capsys.readouterr().err
