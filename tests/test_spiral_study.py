"""The spiral study and the check of the theorem, from the command to the files."""

import argparse
import json
import math
import os
import signal
import sys
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import unbounded as ub
from unbounded.baselines import (
    DUNLayers,
    bayes_accuracy,
    dun,
    dun_original,
    nearest_neighbours,
    rbf_svm,
)
from unbounded.data import spiral
from unbounded.experiments import STUDIES, StudyError, figures, records, theorem
from unbounded.experiments import spiral as study
from unbounded.experiments.spiral import figures as drawings
from unbounded.experiments.spiral import recipe, table
from unbounded.experiments.spiral import runs as training

TINY = [
    "--omegas",
    "1",
    "9",
    "--seeds",
    "2",
    "--epochs",
    "3",
    "--width",
    "4",
    "--device",
    "cpu",
    "--no-references",
]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    return parser.parse_args(words)


def run(out, *words: str) -> dict:
    return study.run(options(*TINY, "--out", str(out), *words))


def test_studies_are_where_the_registry_says():
    import importlib

    for name in ("spiral", "theorem"):
        module = importlib.import_module(STUDIES[name].module)
        assert callable(module.add_arguments)
        assert callable(module.run)


def test_the_study_from_end_to_end(tmp_path, capsys):
    words = [
        "--models",
        "udn",
        "udn-concentrated",
        "omega1-2",
        "dun10",
        "dun10-original",
        "--init",
        "default",
        "he",
        "--lr",
        "0.005",
        "0.01",
    ]
    results = run(tmp_path, *words)
    runs = results["runs"]
    assert len(runs) == 2 * 2 * 6 * 2 * 2  # initialisations, rates, models, speeds, seeds
    kinds = ("udn", "udn-concentrated", "omega1", "omega2", "dun10", "dun10-original")
    assert {r["model"] for r in runs} == set(kinds)
    assert all(0 <= r["test_accuracy"] <= 1 and r["stopped"] == ["epochs"] for r in runs)
    assert all(r["depth_mean"] == 2 for r in runs if r["model"] == "omega2")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["runs"] == runs
    assert written["configuration"]["lr"] == [0.005, 0.01]
    assert {"torch", "python", "device"} <= written["versions"].keys()
    assert set(written["seconds"]["training"]) == {
        f"{kind}-{init}"
        for kind in ("udn", "udn-concentrated", "omega", "dun10", "dun10-original")
        for init in ("default", "he")
    }
    assert not (tmp_path / "parts").exists()
    for path in tmp_path.glob("*.svg"):
        root = ElementTree.fromstring(path.read_text())
        assert root.tag.endswith("svg")
        assert "nan" not in path.read_text()
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert {"data.svg", "accuracy-he-lr0.01.svg", "depth-default-lr0.005.svg"} <= drawn
    assert "depth-concentrated-he-lr0.01.svg" in drawn
    page = (tmp_path / "table.md").read_text()
    assert "| UDN | 91.7 ± 1.1 |" in page
    assert "DUN-10 (UDN authors’ variant) | 90.5 ± 0.7 |" in page
    assert "as its own paper defines it" in page
    assert "results.json" in capsys.readouterr().out


def test_equal_seeds_give_equal_numbers_and_other_seeds_others(tmp_path):
    first = run(tmp_path / "a", "--models", "udn", "omega2")["runs"]
    again = run(tmp_path / "b", "--models", "udn", "omega2")["runs"]
    assert first == again
    chunked = run(tmp_path / "c", "--models", "udn", "omega2", "--chunk", "3")["runs"]
    for one, other in zip(first, chunked, strict=True):
        assert one["test_log_score"] == pytest.approx(other["test_log_score"], abs=1e-5)
    by_seed = [r["test_log_score"] for r in first if (r["model"], r["omega"]) == ("udn", 9.0)]
    assert by_seed[0] != by_seed[1]


def test_a_run_of_the_study_is_what_fit_does_with_one_model(tmp_path):
    row = run(tmp_path, "--models", "udn", "--init", "he")["runs"][3]
    assert (row["omega"], row["seed"]) == (9.0, 1)
    model = ub.UDN(ub.Dense(2, 4, 2, init="he"), ub.Categorical(2), seed=1)
    parts = [spiral(9.0, part=part, seed=1) for part in ("train", "validation", "test")]
    result = ub.fit(model, *parts[0], validation=parts[1], epochs=3)
    prediction = ub.predict(model, parts[2][0])
    accuracy = float((prediction.classes == parts[2][1]).float().mean())
    assert row["test_accuracy"] == pytest.approx(accuracy, abs=2e-3)
    assert row["depth_mean"] == pytest.approx(model.depth.mean(), abs=1e-3)
    assert row["best_epoch"] == [result.best_epoch]


@pytest.mark.usefixtures("_ctrl_c")
def test_interrupting_and_resuming_gives_the_same_numbers(tmp_path, monkeypatch):
    words = ["--models", "udn", "omega2"]
    expected = run(tmp_path / "whole", *words)["runs"]
    real = training.fit

    class Interrupt(ub.training.Callback):
        def on_epoch_end(self, trainer, row):
            if trainer.epoch == 2 and type(trainer.model.depth) is ub.FixedDepth:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training, "fit", partial(real, callbacks=[Interrupt()]))
    with pytest.raises(KeyboardInterrupt, match="go on with --resume"):
        run(tmp_path / "parts", *words)
    left = {path.name for path in (tmp_path / "parts" / "parts").iterdir()}
    assert "udn-default.json" in left
    assert "omega-default.safetensors" in left
    assert "omega-default.json" not in left

    epochs = []

    class Count(ub.training.Callback):
        def on_epoch_end(self, trainer, row):
            epochs.append(trainer.epoch)

    monkeypatch.setattr(training, "fit", partial(real, callbacks=[Count()]))
    with pytest.raises(StudyError, match="cannot resume: epochs"):
        run(tmp_path / "parts", *words, "--resume", "--epochs", "5")
    monkeypatch.setattr(training, "seconds_so_far", lambda path: 1000.0)
    resumed = run(tmp_path / "parts", *words, "--resume")
    assert resumed["runs"] == expected
    assert epochs == [3]  # the UDNs were done, the others had one epoch to go
    seconds = resumed["seconds"]["training"]
    assert seconds["omega-default"] >= 1000 > seconds["udn-default"], "those before count"


def test_references_go_on_where_they_were_interrupted(tmp_path, monkeypatch):
    settings = recipe.Settings(models=(), omegas=(1.0, 9.0), seeds=2)
    asked = []

    def rows(run):
        asked.append((run.omega, run.seed))
        return [{"model": "rbf-svm", "omega": run.omega, "seed": run.seed, "test_accuracy": 0.5}]

    monkeypatch.setattr(training, "_reference_rows", rows)
    expected = training.references(settings, tmp_path / "whole.json", False)
    assert [row["model"] for row in expected] == ["rbf-svm"] * 4 + ["bayes"] * 2
    real, written = records.write_json, []

    def interrupted(path, value):
        if written:
            raise KeyboardInterrupt
        written.append(path)
        real(path, value)

    path = tmp_path / "parts.json"
    monkeypatch.setattr(records, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.references(settings, path, False)
    monkeypatch.setattr(records, "write_json", real)
    asked.clear()
    assert training.references(settings, path, True) == expected
    assert set(asked) == {(1.0, 1), (9.0, 0), (9.0, 1)}


def test_what_is_offered_to_all(tmp_path):
    plain = run(tmp_path / "a", "--models", "udn", "omega2")["runs"]
    words = ["--members", "2", "--average", "0.9", "--schedule", "cosine"]
    helped = run(tmp_path / "b", "--models", "udn", "omega2", *words)["runs"]
    for before, after in zip(plain, helped, strict=True):
        assert before["test_log_score"] != after["test_log_score"]
        assert len(after["best_epoch"]) == 2
    assert (
        "For every network: average 0.9, members 2, schedule cosine"
        in (tmp_path / "b" / "table.md").read_text()
    )


def test_an_ensemble_averages_probabilities(tmp_path):
    settings = recipe.settings_of(options(*TINY, "--models", "omega1", "--members", "2"))
    one = recipe.groups(settings)[0].runs[0]
    models = [recipe.build(one, settings, member) for member in range(2)]
    assert [m.seed for m in models] == [0, 1000]
    x, y = one.data("test")
    with torch.no_grad():  # untrained networks of one hidden layer: make them disagree
        models[1].network.heads["1"].weight.mul_(-3)
    mean = sum(ub.predict(m, x).probs for m in models) / 2
    assert float((mean.argmax(1) != ub.predict(models[0], x).classes).float().mean()) > 0.1
    best = {"val_accuracy": 0.5}
    result = ub.training.FitResult(ub.training.History(), 1, 0.5, best, "epochs", 0.0, None)
    row = training._score(one, models, [result, result], (x, y))
    assert row["test_accuracy"] == pytest.approx(float((mean.argmax(1) == y).float().mean()))


def test_names_and_settings():
    settings = recipe.settings_of(options("--models", "omega2-4", "udn", "omega3"))
    assert settings.models == ("omega2", "omega3", "omega4", "udn")
    assert settings.omegas == (0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
    assert (settings.seeds, settings.epochs, settings.lr, settings.width) == (5, 4000, (0.005,), 32)
    quick = recipe.settings_of(options("--quick"))
    assert quick.epochs < 1000
    assert len(quick.omegas) <= 4
    assert recipe.settings_of(options("--quick", "--epochs", "7")).epochs == 7
    for word in ("omega0", "omega4-2", "dun", "omega"):
        with pytest.raises(ValueError, match=f"there is no '{word}'"):
            recipe.settings_of(options("--models", word))
    with pytest.raises(ValueError, match="--seeds must be at least 1"):
        recipe.settings_of(options("--seeds", "0"))


def test_what_cannot_be_done_costs_one_line(capsys, tmp_path):
    """From the command line and without it, exit status 2."""
    from unbounded.cli import main
    from unbounded.experiments.__main__ import main as without

    words = ["spiral", "--seeds", "0", "--out", str(tmp_path)]
    assert main(["reproduce", *words]) == 2
    line = "error: --seeds must be at least 1, got 0\n"
    assert capsys.readouterr().err == f"unbounded: {line}"
    assert without(words) == 2
    assert capsys.readouterr().err == line
    with pytest.raises(SystemExit):
        without(["everything"])
    assert "spiral" in capsys.readouterr().err


def test_each_name_is_the_model_it_says():
    words = ["--concentrated-rate", "6", "--concentration", "3", "--rate", "2"]
    settings = recipe.settings_of(options(*words))

    def model(name: str) -> ub.UDN:
        return recipe.build(recipe.SpiralRun(name, "he", 0.005, 1.0, 7), settings)

    assert model("omega3").depth.depth == 3
    assert model("udn").depth.rate == pytest.approx(2)
    concentrated = model("udn-concentrated").depth
    assert (round(concentrated.rate, 4), concentrated.concentration) == (6, 3)
    assert model("dun10").depth.max_depth() == 10
    assert type(model("dun10").layers) is ub.Dense
    assert type(model("dun10-original").layers) is DUNLayers
    assert all(model(n).layers.init == "he" for n in ("udn", "omega3", "dun10", "dun10-original"))
    assert model("udn").seed == 7


def test_residual_networks_and_odes(tmp_path):
    words = ["--models", "node", "resnet2-3", "anode", "omega1", "--epochs", "2"]
    results = run(tmp_path, *words)
    names = ["node", "resnet2", "resnet3", "anode", "omega1"]
    assert list(results["configuration"]["models"]) == names
    assert set(results["seconds"]["training"]) == {
        f"{kind}-default" for kind in ("node", "resnet", "anode", "omega")
    }
    page = (tmp_path / "table.md").read_text()
    rows = [line.split(" | ")[0].strip("| ") for line in page.splitlines() if line[:2] == "| "]
    shown = ["Ω₁", "ResNet-like, 2 layers", "ResNet-like, 3 layers", "NODE", "ANODE"]
    assert rows[2:] == shown
    settings = recipe.settings_of(options(*TINY))
    made = {n: recipe.build(recipe.SpiralRun(n, "he", 0.005, 1.0, 7), settings) for n in names}
    assert made["resnet3"].support() == (3, 3)
    assert type(made["resnet3"].layers) is ub.ResidualDense
    x = torch.randn(5, 2)
    flow = {name: made[name].network.stack(1, 1).hidden[0] for name in ("node", "anode")}
    assert [flow[name](x).shape[1] for name in flow] == [2, 2 + recipe.AUGMENTED]
    for name in ("node", "resnet3"):
        with pytest.raises(StudyError, match=f"{name} has layers of its own: not with settled"):
            recipe.settings_of(options("--models", name, "--init", "settled"))


def test_our_recipe_is_the_preset_for_all_models(tmp_path):
    settings = recipe.settings_of(options(*TINY, "--init", "settled", "--models", "udn"))
    made = {
        name: recipe.build(recipe.SpiralRun(name, "settled", 0.005, 9.0, 1), settings)
        for name in ("udn", "omega3", "dun10")
    }
    assert {type(model.layers) for model in made.values()} == {ub.PreNormDense}
    assert isinstance(made["udn"].depth, ub.TruncatedNormal)
    assert made["omega3"].support() == (3, 3)
    assert made["dun10"].support() == (1, 10)
    fits = {
        name: recipe.fitting(recipe.SpiralRun(name, "settled", 0.005, 9.0, 1), settings)
        for name in made
    }
    for found in fits.values():
        assert found["average"] == recipe.SETTLED.average
        assert found["clip"] == recipe.SETTLED.clip
        assert found["schedule"] is None
    assert isinstance(fits["udn"]["depth_rule"], ub.HeldOutAscent)
    assert "depth_rule" not in fits["omega3"]
    found = run(tmp_path, "--init", "settled", "--models", "udn", "omega3")
    assert {row["init"] for row in found["runs"]} == {"settled"}
    assert "our recipe, rate" in (tmp_path / "table.md").read_text()
    with pytest.raises(StudyError, match="udn-concentrated has layers and a q"):
        run(tmp_path, "--init", "settled", "--models", "udn-concentrated")


def test_populations_hold_one_architecture_each():
    settings = recipe.settings_of(options("--seeds", "2"))
    groups = recipe.groups(settings)
    assert [g.name for g in groups] == ["udn-default", "omega-default", "dun10-default"]
    assert [len(g.runs) for g in groups] == [34, 340, 34]
    for group in groups:
        first, last = (recipe.build(r, settings) for r in (group.runs[0], group.runs[-1]))
        assert first.layers.config() == last.layers.config()


def test_summary_is_the_mean_over_speeds_then_over_seeds():
    accuracies = {(0.0, 0): 0.9, (1.0, 0): 0.7, (0.0, 1): 1.0, (1.0, 1): 0.8}
    runs = [
        {"model": "udn", "init": "he", "lr": 0.1, "omega": o, "seed": s, "test_accuracy": a}
        for (o, s), a in accuracies.items()
    ]
    (row,) = table.summary(runs, [])
    assert row["mean"] == pytest.approx(85.0)
    assert row["sd"] == pytest.approx(np.std([80, 90], ddof=1), abs=1e-3)
    runs[0]["stopped"] = ["diverged"]
    assert table.summary(runs, [])[0]["stopped"] == ["diverged"]


def test_identity_layers_hand_on_what_they_are_given():
    layers = ub.Dense(2, 32, 2, init=recipe.identity)
    torch.manual_seed(0)
    state = torch.rand(50, 32)
    handed_on = layers.hidden(5)(state)
    assert torch.corrcoef(torch.stack([state.flatten(), handed_on.flatten()]))[0, 1] > 0.8
    assert layers.hidden(1).weight.shape == (32, 2)


def test_dun_as_its_own_paper_defines_it():
    model = dun_original(2, 8, 2, ub.Categorical(2), blocks=3)
    x = torch.randn(40, 2)
    model.train()
    outputs = model(x)
    assert outputs.shape == (4, 40, 2)  # stops before the first block, or after 1, 2, 3
    head = model.network.heads["1"]
    torch.testing.assert_close(outputs[0], head(model.network.hidden["1"](x)))
    state = model.network.hidden["1"](x)
    block = model.network.hidden["2"]
    normed = torch.nn.functional.batch_norm(block.linear(state).relu(), None, None, training=True)
    torch.testing.assert_close(outputs[1], head(state + normed), rtol=1e-4, atol=1e-4)
    assert DUNLayers(2, 8, 2, init="he").config()["init"] == "he"
    theirs = dun(2, 8, 2, ub.Categorical(2), max_depth=3)
    assert theirs.network.shares_head
    assert theirs.depth.max_depth() == 3


def test_the_limit_agrees_with_samples_classified_by_their_density():
    omega, noise = 9.0, 0.08  # enough noise for the branches to overlap
    x, y = spiral(omega, 4000, seed=5, noise=noise)
    t = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    u = t.sqrt()
    angle = omega * u * math.pi / 2
    curve = torch.stack([u * angle.cos(), u * angle.sin()], 1)

    def density(points):
        return torch.exp(-(torch.cdist(points, curve) ** 2) / (2 * noise**2)).mean(1)

    guess = (density(x.double()) > density(-x.double())).long()
    accuracy = float((guess == y).double().mean())
    assert 0.7 < accuracy < 0.99
    assert bayes_accuracy(omega, noise) == pytest.approx(accuracy, abs=0.015)  # 2.5 s.e.
    assert bayes_accuracy(30) < bayes_accuracy(20) < bayes_accuracy(2) <= 1
    assert bayes_accuracy(0) > 0.999
    with pytest.raises(ValueError, match="apart"):
        bayes_accuracy(1, points=50)


def test_references_choose_on_the_validation_part():
    train, validation, test = (spiral(4, 300, part=p) for p in ("train", "validation", "test"))
    assert nearest_neighbours(train, validation, test)["test_accuracy"] > 0.97
    chosen = rbf_svm(train, validation, test, penalties=(100.0,), widths=(1e-6, 30.0))
    assert chosen["gamma"] == 30.0
    assert chosen["test_accuracy"] > 0.97


def test_theorem_figure_and_checks(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    theorem.add_arguments(parser)
    result = theorem.run(parser.parse_args(["--out", str(tmp_path)]))
    assert len(result["figure"]["slack"]) == 70
    assert result["figure"]["smallest"] >= 0
    assert result["sweep"]["violations"] == 0
    assert max(row["rate"] for row in result["rates"]) == 1e5
    for row in result["rates"]:
        assert all(row[claim] for claim in theorem._CLAIMS), row
    assert "NO" not in capsys.readouterr().out
    ElementTree.fromstring((tmp_path / "truncated-poisson.svg").read_text())
    assert json.loads((tmp_path / "theorem.json").read_text())["rates"] == result["rates"]


def test_the_checks_of_the_theorem_can_fail(monkeypatch):
    monkeypatch.setattr(theorem, "poisson_quantile", lambda rate, quantile: int(2 * rate + 9))
    row = theorem.check(50.0)
    assert not row["bounds_hold"]
    assert not row["is_the_quantile"]
    assert theorem.sweep(20)["violations"] > 0
    assert "NO" in theorem.table([row])


def rows(model: str, accuracies: dict[tuple[float, int], float]) -> list[dict]:
    return [
        {"model": model, "omega": o, "seed": s, "test_accuracy": a, "depth_mean": 10 * a}
        for (o, s), a in accuracies.items()
    ]


def test_figures_are_drawn_where_the_numbers_are():
    given = rows("udn", {(0.0, 0): 1.0, (0.0, 1): 0.8, (9.0, 0): 0.7, (9.0, 1): 0.7})
    given += rows("omega3", {(0.0, 0): 0.6})
    limit = [{"model": "bayes", "omega": 0.0, "seed": None, "test_accuracy": 0.99}]
    figure = Figure()
    drawings.accuracy(figure, given, limit, {"omega3": "Ω₃", "udn": "UDN"}, "as ever")
    (axes,) = figure.axes
    fixed, udn, best = axes.lines
    assert list(udn.get_xdata()) == [0, 9]
    assert list(udn.get_ydata()) == pytest.approx([90, 70])
    assert fixed.get_ydata()[0] == pytest.approx(60)
    assert math.isnan(fixed.get_ydata()[1])
    assert (best.get_ydata()[0], best.get_linestyle()) == (99, "--")
    band = axes.collections[1].get_paths()[0].vertices[:, 1]
    sd = np.std([100, 80], ddof=1)
    assert (band.min(), band.max()) == pytest.approx((70, 90 + sd))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["Ω₃", "UDN", "limit"]
    figure = Figure()
    drawings.depth(figure, given[:4], "UDN", "as ever")
    (axes,) = figure.axes
    assert list(axes.lines[-1].get_ydata()) == [10, 8, 7, 7]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "9"]


def test_equal_numbers_give_equal_files(monkeypatch):
    def draw():
        return figures.render(lambda figure: drawings.data(figure, [0.0, 9.0]))

    text = draw()
    assert text == draw()
    assert "<dc:date>" not in text
    words = [element.text for element in ElementTree.fromstring(text).iter() if element.text]
    assert "ω = 9" in words


def test_what_to_install_where_matplotlib_is_missing(tmp_path, monkeypatch, capsys):
    """The numbers and the table are there all the same."""
    from unbounded.cli import main

    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    words = ["reproduce", "spiral", *TINY, "--models", "omega1", "--out", str(tmp_path)]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "pip install 'unbounded[figures]'" in error
    assert error.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {"results.json", "table.md"}
    monkeypatch.undo()
    assert table.main([str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.svg"))) == 2


def test_records_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a" / "b.json"
    records.write_json(path, {"x": 1, "rows": [{"a": 1}, {"a": (2, 3)}]})
    assert records.read_json(path) == {"x": 1, "rows": [{"a": 1}, {"a": [2, 3]}]}
    with pytest.raises(TypeError):
        records.write_json(path, {"x": object()})
    assert records.read_json(path)["x"] == 1
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_the_record_says_how_our_recipe_differs_from_the_settings():
    made = recipe.Settings(init=("settled",), models=("omega2",))
    run = next(run for group in recipe.groups(made) for run in group.runs)
    used, said = recipe.fitting(run, made), recipe.settled(made)["settled"]
    assert (used["average"], used["clip"]) == (said["average"], said["clip"])
    assert used["schedule"] is recipe.SCHEDULES[made.schedule](made.epochs) is None
    assert recipe.settled(recipe.Settings(models=("udn",))) == {}
