"""Kept models looked at: corruptions, foreign images, early exits, ensembles."""

import gzip
import itertools

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode

import unbounded as ub
from unbounded import metrics
from unbounded.baselines import dropping
from unbounded.cli import main
from unbounded.data import cifar10 as data
from unbounded.data import foreign
from unbounded.data.corruptions import SEVERITIES, STRENGTHS, corrupted
from unbounded.data.images import Images
from unbounded.experiments import figures, records
from unbounded.experiments.cifar10 import evaluated, evaluation
from unbounded.experiments.cifar10.costs import flops_by_depth
from unbounded.experiments.cifar10.recipe import CifarRun, Recipe


def gradients(rows=6, size=16):
    """Images with edges, and room below and above."""
    draw = np.random.default_rng(0)
    return draw.integers(40, 216, (rows, size, size, 3)).astype(np.uint8)


# Corruptions


@pytest.mark.parametrize("kind", STRENGTHS)
def test_each_severity_is_worse_and_the_same_again(kind):
    x = gradients()
    far = []
    for severity in SEVERITIES:
        worse = corrupted(x, kind, severity)
        assert worse.shape == x.shape
        assert worse.dtype == np.uint8
        np.testing.assert_array_equal(worse, corrupted(x, kind, severity))
        far.append(np.abs(worse.astype(float) - x).mean())
    assert all(a < b for a, b in itertools.pairwise(far))


def test_what_corruptions_do():
    grey = np.full((2000, 8, 8, 3), 128, np.uint8)
    noise = corrupted(grey, "noise", 3).astype(float) / 255
    assert noise.std() == pytest.approx(0.08, rel=0.01)
    assert np.corrcoef(noise[0].ravel(), noise[1000].ravel())[0, 1] < 0.3  # not one for all pieces
    assert (corrupted(grey, "noise", 3, seed=1) != corrupted(grey, "noise", 3)).any()
    np.testing.assert_array_equal(corrupted(grey[:3], "blur", 5), grey[:3])
    point = np.zeros((1, 9, 9, 3), np.uint8)
    point[0, 4, 4] = 255
    blurred = corrupted(point, "blur", 4)[0, :, :, 0].astype(float)
    np.testing.assert_array_equal(blurred, blurred.T)
    assert blurred.sum() == pytest.approx(255, abs=8)  # rounded to bytes
    assert blurred[4, 5] / blurred[4, 4] == pytest.approx(np.exp(-0.5), abs=0.02)
    x = gradients()
    low = corrupted(x, "contrast", 5).astype(float)
    assert low.std((1, 2)) == pytest.approx(0.15 * x.std((1, 2)), rel=0.05)
    assert low.mean((1, 2)) == pytest.approx(x.mean((1, 2)), abs=0.5)
    for wrong in (("rain", 1), ("blur", 0), ("blur", 6)):
        with pytest.raises(ValueError, match="must be"):
            corrupted(x, *wrong)


# Foreign images


def test_foreign_images_from_everywhere(tmp_path):
    digits = foreign.read("digits", (32, 32))
    assert digits.shape == (1797, 32, 32, 3)
    assert (digits[:, :4, :4] == digits[:, :1, :1]).all()  # each pixel of 8 × 8 is 4 × 4
    x = gradients(5, 32)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", y=np.arange(5), x=x.transpose(0, 3, 1, 2))
    for name in ("a.npy", "b.npz"):
        np.testing.assert_array_equal(foreign.read(tmp_path / name, (32, 32)), x)
    assert foreign.read(tmp_path / "a.npy", (16, 16), most=2).shape == (2, 16, 16, 3)
    from scipy.io import savemat

    savemat(tmp_path / "c.mat", {"X": x.transpose(1, 2, 3, 0), "y": np.arange(5)})
    np.testing.assert_array_equal(foreign.read(tmp_path / "c.mat", (32, 32)), x)
    grey = x[..., 0]
    raw = bytes([0, 0, 8, 3]) + np.array(grey.shape, ">u4").tobytes() + grey.tobytes()
    (tmp_path / "images-idx3-ubyte").write_bytes(raw)
    (tmp_path / "images-idx3-ubyte.gz").write_bytes(gzip.compress(raw))
    for name in ("images-idx3-ubyte", "images-idx3-ubyte.gz"):
        found = foreign.read(tmp_path / name, (32, 32))
        np.testing.assert_array_equal(found, np.stack([grey] * 3, -1))
    wrong = {"short": raw[:-1], "long": raw + b"x", "kind": b"\0\0\x0d" + raw[3:], "none": b"\0\0"}
    for name, content in wrong.items():
        (tmp_path / f"{name}-ubyte").write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}-ubyte has no array of images"):
            foreign.read(tmp_path / f"{name}-ubyte", (32, 32))
    (tmp_path / "torn-ubyte.gz").write_bytes(gzip.compress(raw)[:-20])
    with pytest.raises(ValueError, match=r"torn-ubyte\.gz cannot be unpacked"):
        foreign.read(tmp_path / "torn-ubyte.gz", (32, 32))
    np.save(tmp_path / "bad.npy", np.zeros(3))
    (tmp_path / "bad.txt").write_text("words")
    for name in ("bad.npy", "bad.txt", "nowhere"):
        with pytest.raises(ValueError, match=name):
            foreign.read(tmp_path / name, (32, 32))


def test_pieces_of_photographs():
    pytest.importorskip("PIL", reason="Pillow is of the extra 'images'")
    found = foreign.read("photographs", (32, 32), most=6)
    assert found.shape == (6, 32, 32, 3)
    assert len({piece.tobytes() for piece in found}) == 6
    np.testing.assert_array_equal(found, foreign.read("photographs", (32, 32), most=6))


def test_auroc_by_counting():
    inside, outside = np.array([0.9, 0.6, 0.6]), np.array([0.5, 0.6])
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert evaluation.auroc(inside, outside) == pytest.approx(np.mean(pairs))


# Early exits


def test_rows_stop_at_the_first_sure_depth():
    """Two rows by hand: one is sure at once, the other at the end."""
    by_depth = torch.tensor(
        [[[0.95, 0.05], [0.6, 0.4]], [[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.1], [0.05, 0.95]]]
    ).double()
    q = torch.tensor([0.5, 0.25, 0.25]).double()
    predicted = evaluation.Predicted(by_depth.log(), q.log())
    np.testing.assert_allclose(predicted.mixture(), np.tensordot(q, by_depth, 1))
    labels, work = np.array([0, 1]), [10.0, 20.0, 30.0]
    low, high, never = evaluation.early_exits(
        labels, predicted, ub.Categorical(2), 4, work, (0.5, 0.9, 1.0)
    )
    assert (low["layers"], low["flops"], low["accuracy"]) == (4.0, 10.0, 0.5)
    assert (high["layers"], high["flops"], high["accuracy"]) == (5.0, 20.0, 1.0)
    assert (never["layers"], never["flops"]) == (6.0, 30.0)
    assert never["log_score"] == pytest.approx(metrics.log_score(labels, predicted.mixture()))
    alone = evaluation.each_depth(labels, predicted, 4, work)
    # Of the second row the first two depths together still say (0.3 + 0.05, 0.2 + 0.2) / 0.75.
    assert [point["accuracy"] for point in alone] == [0.5, 1.0, 1.0]
    assert [(point["layers"], point["flops"]) for point in alone] == [(4, 10), (5, 20), (6, 30)]


def test_work_up_to_each_depth():
    layers = ub.ResidualConv(3, 4, width=4, stages=(1, 1))
    model = ub.UDN(layers, ub.Categorical(4), ub.TruncatedPoisson(2.0)).eval()
    x = torch.randn(2, 3, 16, 16)
    work = flops_by_depth(model, x)
    assert len(work) == model.depth.max_depth()
    assert all(a < b for a, b in itertools.pairwise(work))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert work[-1] == counter.get_total_flops() / 2
    assert work[0] == 2 * (256 * 4 * 27 + 4 * 4)
    fixed = ub.UDN(layers, ub.Categorical(4), ub.FixedDepth(3)).eval()
    assert len(flops_by_depth(fixed, x)) == 1


# From the command


def some_images(each: int, seed: int) -> Images:
    draw = np.random.default_rng(seed)
    y = np.tile(np.arange(10), each)
    colours = np.random.default_rng(0).uniform(60, 196, (10, 1, 1, 3))
    x = colours[y] + draw.normal(0, 30, (10 * each, 8, 8, 3))
    return Images(x.clip(0, 255).astype(np.uint8), y, data.CLASSES, data.ALIASES)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with two kept UDNs and a network of depth 2."""
    folder = tmp_path_factory.mktemp("study")
    images = data.CIFAR10(some_images(8, 1), some_images(4, 2))
    words = ["reproduce", "cifar10", "--device", "cpu", "--out", str(folder)]
    train = ["--models", "udn", "omega2", "--seeds", "2", "--lambda0", "2", "--classes", "all"]
    train += ["--epochs", "2", "--keep", "--set", "width=4", "batch_size=20", "lr=0.05"]
    train += ["held_out=10", "whitening=3", "smoothing=0.1", "warm_up=1", "search=0.9"]
    train += ["dropout=0.4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", lambda folder=None: images)
        assert main([*words, *train]) == 0
        assert main([*words, "--evaluate", "--ood", "digits", "--passes", "3"]) == 0
    return folder, images, words


def test_kept_models_are_scored(study):
    folder, _images, _ = study
    found = records.read_json(folder / "evaluation.json")["evaluated"]
    assert [one["members"] for one in found] == [1, 1, 1, 1, 2, 2, 1, 1, 1, 1]
    assert [one.get("passes") for one in found] == [None] * 6 + [3] * 4
    for one in found[:4]:
        record = records.read_json(folder / "runs" / f"{one['name']}.json")
        assert one["scores"]["clean"]["accuracy"] == pytest.approx(record["test_accuracy"])
        assert one["scores"]["clean"]["brier"] == pytest.approx(record["test_brier"], abs=1e-5)
        assert set(one["scores"]) == {
            "clean",
            *(f"{kind}-{severity}" for kind in STRENGTHS for severity in SEVERITIES),
        }
        assert 0 <= one["ood"]["digits"] <= 1
        assert ("exits" in one) == (one["run"]["model"] == "udn")
    udn = next(one for one in found if "exits" in one)
    last = udn["exits"][-1]
    assert last["accuracy"] == pytest.approx(udn["scores"]["clean"]["accuracy"])
    depth = records.read_json(folder / "runs" / f"{udn['name']}.json")["max_depth"]
    assert last["layers"] == pytest.approx(depth)
    assert udn["alone"][-1]["flops"] == pytest.approx(last["flops"])


def test_an_ensemble_is_the_mixture_of_its_members(study):
    folder, images, _ = study
    found = records.read_json(folder / "evaluation.json")["evaluated"]
    ensemble = next(one for one in found if one["name"] == "2-all-ensemble")
    archives = [np.load(folder / "evaluation" / f"2-all-seed{seed}.npz") for seed in (0, 1)]
    mixed = np.mean([archive["clean"] for archive in archives], axis=0, dtype=float)
    labels = images.test.y
    assert ensemble["scores"]["clean"]["log_score"] == pytest.approx(
        metrics.log_score(labels, mixed), rel=1e-6
    )
    names = ("2-all-seed0", "2-all-seed1")
    members = [one for one in found if one["name"] in names]
    worst = min(one["scores"]["clean"]["log_score"] for one in members)
    assert ensemble["scores"]["clean"]["log_score"] > worst  # by Jensen's inequality


def test_dropout_in_predictions_is_the_mean_over_passes(study):
    folder, images, _ = study
    found = records.read_json(folder / "evaluation.json")["evaluated"]
    record = records.read_json(folder / "runs" / "2-all-seed0.json")
    run, recipe = CifarRun("2", 0), Recipe(**record["recipe"])
    parts = recipe.data(*images, 10)
    built = run.build(recipe, 3, 10, parts.train)
    model = ub.load(folder / "models" / "2-all-seed0.udn", layers=built.layers)
    x = parts.scored.inputs()
    with dropping(model):
        passes = np.stack([model.predict(x).probs.numpy() for _ in range(3)])
    assert (passes[0] != passes[1]).any()
    dropped = next(one for one in found if one["name"] == "2-all-seed0-dropout")
    expected = metrics.log_score(images.test.y, passes.mean(0))
    assert dropped["scores"]["clean"]["log_score"] == pytest.approx(expected, rel=1e-5)
    plain = next(one for one in found if one["name"] == "2-all-seed0")
    assert plain["scores"]["clean"]["log_score"] == pytest.approx(record["test_log_score"])


def test_tables_and_figures_of_an_evaluation(study):
    folder, _, _ = study
    page = (folder / "evaluation.md").read_text()
    assert "| 2 × Ω₂ | all ten classes | several |" in page
    assert "| Ω₂, 3 passes of dropout | all ten classes | seed 1 |" in page
    assert "AUROC, digits" in page
    assert "stops when so sure" in page
    found = records.read_json(folder / "evaluation.json")["evaluated"]
    assert (folder / "exits.svg").is_file()
    assert (folder / "reliability.svg").is_file()
    figure = Figure()
    runs = evaluated.read(folder)
    evaluated.exits(figure, {"": (found, runs)})
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "UDN, ascent from 2,\nrows stop"
    assert labels[-1] == "Ω, fixed depth"
    early = figure.axes[0].lines[0]
    udn = next(one for one in found if "exits" in one)
    assert list(early.get_xdata()) == [point["layers"] for point in udn["exits"]]
    with pytest.raises(evaluated.NothingToDraw, match="infers a depth"):
        evaluated.exits(Figure(), {"": ([one for one in found if "exits" not in one], [])})


def test_an_evaluation_is_told_again_without_training(study, monkeypatch):
    folder, _, words = study
    painted = []
    monkeypatch.setattr(figures, "render", lambda paint, size: painted.append(paint) or "<svg/>")
    kept = {path: path.read_text() for path in folder.glob("*.svg")}
    pages = {name: (folder / name).read_text() for name in ("evaluation.md", "table.md")}
    for name in pages:
        (folder / name).write_text("something else")
    assert main([*words, "--no-train"]) == 0
    for name, text in pages.items():
        assert (folder / name).read_text() == text
    assert len(painted) == len(kept)
    for path, text in kept.items():  # for the tests after this one
        path.write_text(text)


def test_a_fixed_depth_with_as_much_work(study):
    folder, _, _ = study
    runs = [r for r in evaluated.read(folder) if r["run"]["model"] == "2"][:1]
    assert evaluated.at_equal_work(runs, runs[0]["flops"]) is None  # one is no line
    deep = {**runs[0], "run": {**runs[0]["run"], "model": "4"}, "test_accuracy": 0.9}
    deep |= {"flops": 3 * runs[0]["flops"]}
    both = [*runs, deep]
    middle = evaluated.at_equal_work(both, 2 * runs[0]["flops"])
    assert middle == pytest.approx((runs[0]["test_accuracy"] + 0.9) / 2)
    assert evaluated.at_equal_work(both, 3.1 * runs[0]["flops"]) is None


def test_what_was_looked_at_is_kept(study, monkeypatch, capsys):
    folder, images, words = study
    monkeypatch.setattr(data, "load", lambda folder=None: images)
    monkeypatch.setattr(evaluation.Evaluation, "_look", lambda *_: pytest.fail("again"))
    assert main([*words, "--evaluate", "--passes", "3"]) == 0
    looked = []

    def look(self, name):
        looked.append(name)
        return records.read_json(folder / "evaluation" / f"{name}.json")

    monkeypatch.setattr(evaluation.Evaluation, "_look", look)
    for more in (("--ood", "nowhere", "--passes", "3"), ("--passes", "4")):
        looked.clear()
        assert main([*words, "--evaluate", *more]) == 0
        assert len(looked) == 4  # of another set nothing is known yet, nor of more passes
    assert main([*words, "--evaluate", "--passes", "0"]) == 2


def test_an_evaluation_without_models_is_told(tmp_path, monkeypatch, capsys):
    images = data.CIFAR10(some_images(2, 1), some_images(2, 2))
    monkeypatch.setattr(data, "load", lambda folder=None: images)
    words = ["reproduce", "cifar10", "--device", "cpu", "--out", str(tmp_path), "--evaluate"]
    assert main(words) == 2
    assert "has no kept models: train with --keep" in capsys.readouterr().err
    assert CifarRun("2", 0).name == "2-all-seed0"
