"""The CIFAR-10 study with real training: a few hundred images, narrow blocks, on a CPU."""

import time

import numpy as np
import pytest
import torch

from unbounded.cli import main
from unbounded.data import cifar10 as data
from unbounded.data.images import Images
from unbounded.experiments import records
from unbounded.experiments.cifar10 import models
from unbounded.experiments.cifar10 import runs as training
from unbounded.experiments.cifar10.recipe import RULES, CifarRun, Recipe
from unbounded.files import load
from unbounded.layers.whitening import WhitenedLayer
from unbounded.training import trainer

SMALL = {
    "epochs": 4,
    "width": 8,
    "batch_size": 50,
    "memory": 2,
    "speed": 8.0,
    "lr": 0.05,
    "warm_up": 1,
    "held_out": 60,
}
DEER_CAR = ("deer", "automobile")
BETTER = {
    "optimizer": "muon",
    "smoothing": 0.1,
    "flip": "alternating",
    "whitening": 3,
    "average": 0.9,
    "decay": "linear",
    "calibrate": True,
}


def some_images(each: int, seed: int, size: int = 32) -> Images:
    """Classes that differ in colour, under much noise."""
    draw = np.random.default_rng(seed)
    y = np.tile(np.arange(10), each)
    colours = np.random.default_rng(0).uniform(60, 196, (10, 1, 1, 3))
    x = colours[y] + draw.normal(0, 30, (10 * each, size, size, 3))
    return Images(x.clip(0, 255).astype(np.uint8), y, data.CLASSES, data.ALIASES)


@pytest.fixture(scope="module")
def images():
    return data.CIFAR10(some_images(30, 1), some_images(20, 2))


def train(run, images, folder, recipe=None, **options):
    recipe = Recipe.named("fast", **(recipe or SMALL))
    options = {"resume": False, "progress": False} | options
    return training.train(run, recipe, images, device="cpu", folder=folder, **options)


def course(record):
    """What must not depend on where a run was cut."""
    left_out = {"seconds"}
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in record["curve"]]
    kept = ("test_accuracy", "test_log_score", "posterior", "accuracy_by_depth", "births")
    return rows, {key: record[key] for key in (*kept, "num_layers", "max_depth")}


@pytest.mark.parametrize(
    "run", [*(CifarRun("udn", 0, (), 2.0, rule) for rule in RULES), CifarRun("3", 0)]
)
def test_a_run_from_images_to_its_record(images, tmp_path, run):
    torch.manual_seed(99)  # a run's seed decides, and nothing else
    record = train(run, images, tmp_path)
    assert record == records.read_json(tmp_path / f"{run.name}.json")
    assert not list(tmp_path.glob("*.checkpoint"))
    assert record["run"]["rule"] == run.rule
    assert [row["epoch"] for row in record["curve"]] == [1, 2, 3, 4]
    assert all(np.isfinite(row["elbo"]) for row in record["curve"])
    assert record["curve"][-1]["lr"] == pytest.approx(0.0, abs=1e-3)
    assert sum(record["posterior"]) == pytest.approx(1.0)
    depths = np.arange(record["max_depth"], 0, -1)[: len(record["posterior"])][::-1]
    assert depths @ record["posterior"] == pytest.approx(record["depth_mean"])
    assert len(depths) == (record["max_depth"] if run.model == "udn" else 1)
    assert len(record["accuracy_by_depth"]) == len(depths)
    assert record["num_layers"] >= record["max_depth"]
    # Colours are easy: far more than one in ten, and the mixture is no worse than the depths are.
    assert record["test_accuracy"] > 0.3
    assert record["test_accuracy"] >= np.dot(record["posterior"], record["accuracy_by_depth"]) - 0.1
    assert record["curve"][-1]["test_accuracy"] == pytest.approx(record["test_accuracy"])
    assert course(train(run, images, tmp_path)) == course(record)


@pytest.fixture(scope="module")
def few():
    """Small ones, for models that take long."""
    return data.CIFAR10(some_images(8, 1, 8), some_images(4, 2, 8))


FEW = SMALL | {"epochs": 2, "batch_size": 20, "held_out": 10, "width": 4, "deq_iterations": 4}


@pytest.mark.parametrize("name", [*models.OTHERS, "dun4", "dun4-own"])
def test_every_kind_of_model_is_a_run(few, tmp_path, name):
    run = CifarRun(name, 0)
    record = train(run, few, tmp_path, FEW | {"ode_steps": 2})
    assert record == records.read_json(tmp_path / f"{name}-all-seed0.json")
    assert [row["epoch"] for row in record["curve"]] == [1, 2]
    assert all(np.isfinite(row["elbo"]) for row in record["curve"])
    assert sum(record["posterior"]) == pytest.approx(1.0)
    assert record["max_depth"] == (4 if name.startswith("dun") else 1)
    assert 0 <= record["test_accuracy"] <= 1
    assert 0 <= record["test_brier"] <= 2
    assert 0 <= record["test_aurc"] <= 1
    assert record["images_per_second"] > 0
    assert ("residual" in record) == (name == "mdeq")


@pytest.mark.parametrize("name", models.PACKAGES)
def test_other_solvers_are_a_choice(few, tmp_path, name):
    package = models.PACKAGES[name]
    pytest.importorskip(package, reason="it is of the extra 'baselines'")
    theirs = {"ode_solver": "dopri5", "ode_tolerance": 0.1, "deq_solver": "fixed_point_iter"}
    usual, other = Recipe(), Recipe(**theirs)
    assert (models.package(name, usual), models.package(name, other)) == (None, package)
    record = train(CifarRun(name, 0), few, tmp_path, FEW | theirs | {"epochs": 1})
    assert np.isfinite(record["curve"][-1]["elbo"])


def test_adam_is_a_choice(few, tmp_path):
    recipe = FEW | {"optimizer": "adam", "lr": 0.001, "ode_steps": 2}
    record = train(CifarRun("node", 0), few, tmp_path, recipe)
    elbos = [row["elbo"] for row in record["curve"]]
    assert elbos[-1] > elbos[0]


def test_parameters_and_work_are_counted(few, tmp_path):
    """Of Ω₁ by hand: a convolution 3×3 of 8×8 pixels, and a head."""
    record = train(CifarRun("1", 0), few, tmp_path, FEW)
    assert record["parameters"] == 4 * 27 + 2 * 4 + 4 * 10 + 10
    assert record["flops"] == 2 * (64 * 4 * 27 + 4 * 10)
    deeper = train(CifarRun("2", 0), few, tmp_path, FEW)
    assert deeper["flops"] > record["flops"]
    assert deeper["parameters"] > record["parameters"]


@pytest.mark.parametrize("name", ["udn", "resnet18"])
def test_a_better_recipe_is_for_every_model_and_resumes(few, tmp_path, name):
    run = CifarRun(name, 1, (), 2.0)
    recipe = FEW | BETTER | {"epochs": 3}
    whole = train(run, few, tmp_path / "whole", recipe, keep=tmp_path / "models")
    record = None
    while record is None:
        record = train(run, few, tmp_path / "cut", recipe, resume=True, minutes=0.0)
    assert course(record) == course(whole)
    assert whole["temperature"] == record["temperature"] != 1
    # What is kept is what was scored.
    built = run.build(
        Recipe.named("fast", **recipe), 3, 10, Recipe.named("fast", **recipe).data(*few, 10).train
    )
    found = load(tmp_path / "models" / f"{run.name}.udn", layers=built.layers)
    scored = Recipe.named("fast", **recipe).data(*few, 10).scored
    again = training.scores(found, scored, "test", None)
    assert again["test_log_score"] == pytest.approx(whole["test_log_score"], rel=1e-5)
    assert isinstance(found.network.hidden["1"], WhitenedLayer)


def test_a_temperature_changes_certainty_and_no_class(few, tmp_path):
    run = CifarRun("2", 0)
    plain = train(run, few, tmp_path / "plain", FEW)
    found = train(run, few, tmp_path / "calibrated", FEW | {"calibrate": True})
    assert plain["temperature"] == 1 != found["temperature"]
    assert found["accuracy_by_depth"] == plain["accuracy_by_depth"]
    assert found["test_log_score"] != plain["test_log_score"]
    none = train(run, few, tmp_path / "none", FEW | {"calibrate": True, "held_out": 0})
    assert none["temperature"] == 1


def test_the_state_of_a_bare_ode_is_the_image(few):
    recipe = Recipe.named("fast", **FEW, **BETTER)
    images = recipe.data(*few, 10).train
    bare, stem = (CifarRun(n, 0).build(recipe, 3, 10, images) for n in ("node", "node-stem"))
    assert not isinstance(bare.network.hidden["1"], WhitenedLayer)
    assert isinstance(stem.network.hidden["1"], WhitenedLayer)
    with pytest.raises(ValueError, match="measured on training images"):
        CifarRun("3", 0).build(recipe, 3, 10)


def test_our_rule_moves_then_rests_and_sharpens(images, tmp_path):
    record = train(
        CifarRun("udn", 0, (), 2.0), images, tmp_path, SMALL | {"epochs": 6, "search": 0.5}
    )
    depths = [row["depth_mean"] for row in record["curve"]]
    tops = [row["max_depth"] for row in record["curve"]]
    assert len(set(depths[:3])) > 1
    # The row of the third epoch is written before the family is sharpened.
    assert len(set(depths[3:])) == len(set(tops[3:])) == 1
    near = [q for q in record["posterior"] if q > 0.05]
    assert len(near) <= 3 < tops[2]


def test_every_model_learns_from_the_same_images(images):
    recipe = Recipe.named("fast", **SMALL)
    parts, again = (recipe.data(*images, 10) for _ in range(2))
    assert len(parts.held_out) == 60
    assert len(parts.train) + 60 == len(images.train)
    assert torch.equal(parts.held_out.x, again.held_out.x)
    assert torch.bincount(parts.held_out.y).tolist() == [6] * 10
    everything = np.concatenate([parts.train.x, parts.held_out.x]).reshape(300, -1)
    assert len(np.unique(everything, axis=0)) == 300
    assert parts.is_test
    assert len(parts.scored) == len(images.test)
    # Normalised alike, by what is learnt from.
    assert parts.held_out.mean == parts.scored.mean == parts.train.mean
    pair = recipe.data(*(part.only(*DEER_CAR) for part in images), 10)
    assert (len(pair.train), len(pair.held_out)) == (48, 12)
    both = Recipe.named("fast", **SMALL, validation=100).data(*images, 10)
    assert (len(both.train), len(both.held_out), len(both.scored)) == (140, 60, 100)
    assert not both.is_test
    assert Recipe.named("fast", **SMALL | {"held_out": 0}).data(*images, 10).held_out is None


def test_the_settled_rule_moves_by_held_out_images_and_keeps_the_last_epoch(images, tmp_path):
    run = CifarRun("udn", 0, (), 3.0, "settled")
    record = train(run, images, tmp_path)
    rows = record["curve"]
    assert len({row["depth_mean"] for row in rows}) > 1  # from the reference, where it begins
    assert all({"val_accuracy", "depth_settled"} <= set(row) for row in rows)
    assert record["depth_mean"] == rows[-1]["depth_mean"]
    # So is a network of fixed depth: one recipe for all.
    fixed = train(CifarRun("3", 0), images, tmp_path)
    assert all("val_accuracy" in row for row in fixed["curve"])
    assert fixed["test_accuracy"] == pytest.approx(fixed["curve"][-1]["test_accuracy"])


def test_a_pair_of_classes_makes_twice_the_passes(images, tmp_path):
    record = train(CifarRun("udn", 1, DEER_CAR, 2.0), images, tmp_path, SMALL | {"epochs": 2})
    assert len(record["curve"]) == 4
    assert record["test_accuracy"] > 0.5
    # Two classes: 40 test images, so accuracies are multiples of 1/40.
    assert 40 * record["test_accuracy"] == pytest.approx(round(40 * record["test_accuracy"]))


@pytest.mark.parametrize("rule", RULES)
def test_a_run_in_pieces_is_the_run_in_one(images, tmp_path, rule):
    run = CifarRun("udn", 3, (), 2.0, rule)
    whole = train(run, images, tmp_path / "whole")
    pieces = 0
    record = None
    while record is None:
        # No time at all: an epoch is made nevertheless, or it would never end.
        record = train(run, images, tmp_path / "cut", resume=True, minutes=0.0)
        pieces += 1
        assert (record is None) == (tmp_path / "cut" / f"{run.name}.checkpoint").exists()
    assert pieces == 4
    assert course(record) == course(whole)


def test_a_run_that_dies_goes_on(images, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SCORE_EVERY", 1)
    monkeypatch.setattr(trainer, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)  # the first epoch has one
    run = CifarRun("udn", 3, (), 2.0)
    whole = train(run, images, tmp_path / "whole")
    look = training._Looker.on_epoch_end

    def die(self, trainer, row):
        if trainer.epoch == 3:
            raise RuntimeError("out of power")
        look(self, trainer, row)

    with monkeypatch.context() as patch:
        patch.setattr(training._Looker, "on_epoch_end", die)
        with pytest.raises(RuntimeError, match="power"):
            train(run, images, tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / f"{run.name}.checkpoint").exists()
    assert course(train(run, images, tmp_path / "cut", resume=True)) == course(whole)


def test_it_stops_before_an_epoch_that_would_be_too_long(images, tmp_path, monkeypatch):
    clock = [1000.0]
    look = training._Looker.on_epoch_end

    def a_minute_later(self, trainer, row):
        clock[0] += 60
        look(self, trainer, row)

    monkeypatch.setattr(training._Looker, "on_epoch_end", a_minute_later)
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])
    run = CifarRun("2", 0)
    assert train(run, images, tmp_path, minutes=2.9) is None
    assert clock[0] == 1000 + 120  # a third minute does not fit
    assert train(run, images, tmp_path, resume=True, minutes=2.0)
    assert clock[0] == 1000 + 240


def test_from_the_command_to_tables_and_figures(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "load", lambda folder=None: images)
    words = ["reproduce", "cifar10", "--device", "cpu", "--out", str(tmp_path), "--seeds", "1"]
    words += ["--models", "udn,2,3", "--lambda0", "2", "--rules", "ascent,gradient"]
    words += ["--epochs", "1", "--set", "width=8", "batch_size=50", "memory=2", "lr=0.05"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "held_out=2000 leaves none of 300 images to train on" in said
    assert said.count("\n") == 1
    words += ["held_out=60"]
    started = time.perf_counter()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "6 of 6 runs" in said
    assert len(list((tmp_path / "runs").glob("*.json"))) == 6
    assert not list((tmp_path / "runs").glob("*.checkpoint"))
    for name in ("table.md", "posterior.svg", "evolution.svg", "accuracy_by_depth.svg"):
        assert (tmp_path / name).is_file()
    page = (tmp_path / "table.md").read_text()
    assert "UDN, λ by our rule (ascent), λ₀ = 2" in page
    record = records.read_json(tmp_path / "runs" / "2-all-seed0.json")
    assert f"{100 * record['test_accuracy']:.2f}" in page
    assert 0 < record["seconds"] < time.perf_counter() - started
