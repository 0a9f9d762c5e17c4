"""The nine UCI sets: the loader, the recipe, and the study."""

import http.server
import json
import math
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import integrate, stats

from helpers import same, serving, state
from unbounded import UDNRegressor, metrics
from unbounded.cli import main
from unbounded.data import uci
from unbounded.depth import TruncatedPoisson
from unbounded.experiments import pages
from unbounded.experiments.uci import estimator, figure, published, scores, study, table
from unbounded.experiments.uci import recipe as recipe_
from unbounded.experiments.uci.models import (
    ALONE,
    ENSEMBLES,
    LABELS,
    TABLES,
    build,
    single_models,
)
from unbounded.experiments.uci.published import Estimate
from unbounded.experiments.uci.recipe import Recipe, rounding, training_rows, validation_parts
from unbounded.experiments.uci.recipe import table as standardised
from unbounded.likelihoods import BalancedGaussian, Gaussian

TINY = Recipe(width=8, steps=30, scales=(0.3, 1.0), parts=2, lr=0.02)


def small_set(rows: int = 90, features: int = 3, splits: int = 4, seed: int = 0) -> uci.UCISet:
    """A made-up set in the form of the nine."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features)) * [1.0, 100.0, 0.01] + [0.0, 5.0, 3.0]
    y = 40 + 10 * x[:, 0] + draw.normal(size=rows)
    masks = np.zeros((splits, rows), dtype=bool)
    for mask in masks:
        mask[draw.permutation(rows)[: rows // 10]] = True
    gap = np.zeros((features, rows), dtype=bool)
    for column, mask in enumerate(gap):
        mask[np.argsort(x[:, column])[rows // 3 : 2 * rows // 3]] = True
    return uci.UCISet("yacht", x, y, masks, gap, uci.checksum(x, y, masks, gap))


def write_set(folder: Path, data: uci.UCISet, **changes) -> Path:
    arrays = {
        "X": data.x,
        "y": data.y,
        "test_masks": np.packbits(data.test_masks, axis=1),
        "gap_test_masks": np.packbits(data.gap_test_masks, axis=1),
    }
    path = folder / f"{data.name}.npz"
    np.savez_compressed(path, **(arrays | changes))
    return path


# From a folder


def test_a_set_from_a_folder(tmp_path, monkeypatch):
    data = small_set()
    write_set(tmp_path, data)
    found = uci.load("yacht", tmp_path)
    for name in ("x", "y", "test_masks", "gap_test_masks"):
        np.testing.assert_array_equal(getattr(found, name), getattr(data, name))
    assert found.checksum == data.checksum
    assert found.masks("gap").shape == (3, 90)
    with pytest.raises(ValueError, match="'standard' or 'gap', got 'both'"):
        found.masks("both")
    monkeypatch.setenv(uci.FOLDER, str(tmp_path))
    assert uci.load("yacht").checksum == data.checksum


def test_checksums_see_every_part():
    data = small_set()
    parts = [data.x, data.y, data.test_masks, data.gap_test_masks]
    known = {uci.checksum(*parts)}
    for index, part in enumerate(parts):
        changed = part.copy()
        changed.flat[7] = ~changed.flat[7] if part.dtype == bool else changed.flat[7] + 1e-9
        known.add(uci.checksum(*parts[:index], changed, *parts[index + 1 :]))
    assert len(known) == 5


def test_a_file_that_is_not_there_or_not_right(tmp_path):
    with pytest.raises(uci.DataError, match=r"yacht\.npz is not there; --data"):
        uci.load("yacht", tmp_path)
    with pytest.raises(uci.DataError, match="no set 'mars'; there are: yacht, boston"):
        uci.load("mars", tmp_path)
    data = small_set()
    path = write_set(tmp_path, data)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(uci.DataError, match="is not a set of this kind"):
        uci.load("yacht", tmp_path)
    write_set(tmp_path, data, y=data.y[:-1])
    with pytest.raises(uci.DataError, match=r"y \(rows,\), got \(90, 3\) and \(89,\)"):
        uci.load("yacht", tmp_path)
    write_set(tmp_path, data, test_masks=data.test_masks)
    with pytest.raises(uci.DataError, match=r"must be bytes of shape \(splits, 12\), got bool"):
        uci.load("yacht", tmp_path)


def test_names_are_checked_and_ordered():
    assert uci.names(["protein", "boston"]) == ["boston", "protein"]
    assert len(uci.names()) == 9
    with pytest.raises(uci.DataError, match="no set 'venus'"):
        uci.names(["boston", "venus"])


# From a server


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `files`; cuts the one named `broken` in the middle."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []
    broken = ""

    def do_GET(self):
        self.asked.append(self.path)
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.path == self.broken else content)

    def log_message(self, *words):
        pass


@contextmanager
def served(data: uci.UCISet):
    """A server on loopback with the text files of a set, and the entry that names it."""

    def lines(values) -> bytes:
        return "\n".join(str(value) for value in values).encode()

    # The target is the first column here, so that the index files matter.
    rows = [" ".join(repr(float(v)) for v in (y, *x)) for x, y in zip(data.x, data.y, strict=True)]
    files = {
        "/set/data.txt": lines(rows),
        "/set/index_features.txt": lines(range(1, data.x.shape[1] + 1)),
        "/set/index_target.txt": lines([0]),
    }
    for base, masks in (("set", data.test_masks), ("gap", data.gap_test_masks)):
        for index, mask in enumerate(masks):
            # As published: whole numbers written as floats.
            numbers = [f"{row:.18e}" for row in np.flatnonzero(mask)]
            files[f"/{base}/index_test_{index}.txt"] = lines(numbers)
    handler = type("Mine", (Handler,), {"files": files, "asked": []})
    with serving(handler) as base:
        source = uci.Source(f"{base}/set", f"{base}/gap")
        counts = len(data.test_masks), len(data.gap_test_masks)
        yield handler, uci.Entry(*counts, data.checksum, source)


def test_a_download_is_checked_and_kept(tmp_path, monkeypatch, no_folder):
    data = small_set()
    with served(data) as (handler, entry):
        monkeypatch.setitem(uci.SETS, "yacht", entry)
        found = uci.load("yacht", cache=tmp_path / "cache")
        asked = len(handler.asked)
        np.testing.assert_array_equal(found.x, data.x)
        np.testing.assert_array_equal(found.gap_test_masks, data.gap_test_masks)
        again = uci.load("yacht", cache=tmp_path / "cache")
        assert again.checksum == data.checksum
        assert len(handler.asked) == asked == 3 + 4 + 3  # the second time nothing is fetched
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["yacht.npz"]
    write_set(tmp_path / "cache", replace(data, y=data.y + 1))
    with pytest.raises(uci.DataError, match="has been changed: delete it"):
        uci.load("yacht", cache=tmp_path / "cache")


def test_another_checksum_leaves_nothing_behind(tmp_path, monkeypatch, no_folder):
    with served(small_set()) as (_, entry):
        monkeypatch.setitem(uci.SETS, "yacht", replace(entry, checksum="0" * 64))
        with pytest.raises(uci.DataError, match=r"checksum .* should be 0000.*--data"):
            uci.load("yacht", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("broken", ["/set/data.txt", "/gap/index_test_2.txt"])
def test_an_interrupted_download_leaves_nothing_behind(broken, tmp_path, monkeypatch, no_folder):
    with served(small_set()) as (handler, entry):
        handler.broken = broken
        monkeypatch.setitem(uci.SETS, "yacht", entry)
        with pytest.raises(uci.DataError, match=rf"{broken}.*--data"):
            uci.load("yacht", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_server_does_not_have(tmp_path, monkeypatch, no_folder):
    with served(small_set()) as (handler, entry):
        del handler.files["/set/index_test_1.txt"]
        monkeypatch.setitem(uci.SETS, "yacht", entry)
        with pytest.raises(uci.DataError, match=r"_test_1\.txt cannot be downloaded .*404.*--data"):
            uci.load("yacht", cache=tmp_path)
        handler.files["/set/index_test_1.txt"] = b"no numbers"
        with pytest.raises(uci.DataError, match="makes no sense"):
            uci.load("yacht", cache=tmp_path)
    with pytest.raises(uci.DataError, match="cannot be downloaded"):  # nobody is there any more
        uci.load("yacht", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_leaves_no_temporary_file(tmp_path, monkeypatch, no_folder):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    with served(small_set()) as (_, entry):
        monkeypatch.setitem(uci.SETS, "yacht", entry)
        monkeypatch.setattr(np, "savez_compressed", fail)
        with pytest.raises(OSError, match=r"cannot write .*yacht.npz: no space left"):
            uci.load("yacht", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


# The recipe


def test_validation_parts_are_disjoint_parts_of_the_training_rows():
    data = small_set(rows=203)
    for split, mask in enumerate(data.test_masks):
        rows = training_rows(mask)
        parts = validation_parts(rows, Recipe(), split)
        assert len(parts) == 3
        for train, held_out in parts:
            assert set(train) | set(held_out) == set(rows)
            assert not set(train) & set(held_out)
            assert len(held_out) == len(rows) // 5
        everything = np.concatenate([held_out for _, held_out in parts])
        assert len(set(everything)) == len(everything)
        again = validation_parts(rows, Recipe(), split)
        np.testing.assert_array_equal(again[1][1], parts[1][1])
    many = np.arange(5000)
    assert len(validation_parts(many, Recipe(), 0)) == 1


def test_standardisation_knows_the_training_rows_alone():
    data = small_set()
    rows, test = training_rows(data.test_masks[0]), np.flatnonzero(data.test_masks[0])
    data.x[rows, 2] = 7.0  # constant where it trains, not where it is tested
    found = standardised(data, rows, test)
    x, y = found.train
    assert x.dtype == y.dtype == torch.float32
    torch.testing.assert_close(x[:, :2].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, :2].std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)
    assert float(y.mean().abs()) < 1e-5
    assert abs(float(y.std(correction=0)) - 1) < 1e-5
    assert not x[:, 2].any()
    assert not found.x[:, 2].any()
    np.testing.assert_array_equal(found.y, data.y[test])
    expected = (data.x[test, 1] - data.x[rows, 1].mean()) / data.x[rows, 1].std()
    np.testing.assert_allclose(found.x[:, 1].numpy(), expected, rtol=1e-4, atol=1e-6)


def test_sizes_follow_from_the_number_of_rows():
    recipe = Recipe(steps=5000)
    assert [recipe.batch_size(n) for n in (20, 277, 927, 1439, 8611, 41157)] == [
        20,
        32,
        32,
        32,
        256,
        512,
    ]
    for rows in (277, 927, 8611, 41157):
        steps = recipe.epochs(rows) * math.ceil(rows / recipe.batch_size(rows))
        assert abs(steps - 5000) < 60
    with pytest.raises(ValueError, match="do not fit"):
        Recipe(parts=6, fraction=0.2)
    with pytest.raises(ValueError, match="positive"):
        Recipe(width=0)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_balanced_slopes_and_untouched_values(beta):
    torch.manual_seed(0)
    outputs = torch.randn(3, 7, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(7, 1, dtype=torch.float64)
    balanced = BalancedGaussian(beta).double()
    plain = Gaussian(balanced.noise)
    value, expected = balanced.log_prob(outputs, y), plain.log_prob(outputs, y)
    torch.testing.assert_close(value, expected)
    weights = balanced.noise.split(outputs)[1][..., 0].detach() ** (2 * beta)
    weights = weights / weights.mean(1, keepdim=True)
    (slope,) = torch.autograd.grad(value.sum(), outputs)
    (wanted,) = torch.autograd.grad((weights * expected).sum(), outputs)
    torch.testing.assert_close(slope, wanted)
    if beta == 1.0:  # least squares: the pull does not depend on σ but for a common factor
        means = outputs[..., 0].detach()
        pull = slope[..., 0] / (y[:, 0] - means)
        torch.testing.assert_close(pull, pull[:, :1].expand_as(pull))
    with pytest.raises(ValueError, match="between 0 and 1"):
        BalancedGaussian(1.5)


def test_members_of_a_population_do_not_meet():
    """A network's weights depend on its own rows, whoever is trained beside it."""
    rows = standardised(small_set(), np.arange(60), np.arange(60, 90))
    other = standardised(small_set(seed=1), np.arange(60), np.arange(60, 90))
    plan = study.UCISettings("standard", (0,), ("udn", "f2"), TINY, (0,))
    job = study.Job("udn", rows, 0.5, 3)
    (alone,) = study.train([job], plan)
    together = study.train([study.Job("f2", other, 0.1, 9), job], plan)[1]
    found, wanted = together.model.state_dict(), alone.model.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-3)


def test_what_models_are_made_of():
    assert single_models(["udn-ensemble"]) == ["udn"]
    assert single_models(["udn-paced", "f2"]) == ["udn", "f2", "udn-slow"]
    assert single_models(["deep-ensemble", "dun"]) == ["f2", "f3", "f4", "f5", "f6", "dun"]
    assert build("f4", 3, 0.5, TINY, 0).support() == (4, 4)
    assert build("dun", 3, 0.5, TINY, 0).support() == (1, 10)
    assert build("udn", 3, 0.5, TINY, 0).weight_prior.config()["scale"] == 0.5
    with pytest.raises(ValueError, match="no network 'f9'"):
        build("f9", 3, 0.5, TINY, 0)
    assert set(ENSEMBLES) < set(LABELS)


# Scores


def mixture_of(count: int = 4, rows: int = 5, seed: int = 0) -> scores.Mixture:
    draw = np.random.default_rng(seed)
    return scores.Mixture(
        draw.dirichlet(np.ones(count)),
        draw.normal(20, 3, size=(count, rows)),
        draw.uniform(0.5, 2.0, size=(count, rows)),
    )


def test_the_noise_factor_is_found():
    draw = np.random.default_rng(0)
    held_out = []
    for size in (3000, 5000):
        mean, scale = draw.normal(size=size), draw.uniform(0.5, 2, size=size)
        y = mean + 1.7 * scale * draw.normal(size=size)
        one = scores.Mixture(np.ones(1), mean[None], scale[None])
        held_out.append(scores.HeldOut(one, y))
    factor, nll = scores.calibrate(held_out)
    assert abs(factor - 1.7) < 0.03
    parts = [(m.widened(factor), y) for m, y, _ in held_out]
    total = sum(scores.score(m, y)["nll"] * len(y) for m, y in parts) / 8000
    assert abs(nll - total) < 1e-9
    worse = sum(scores.score(m.widened(1.1), y)["nll"] * len(y) for m, y in parts) / 8000
    assert worse > nll
    broken = scores.Mixture(np.ones(1), np.full((1, 2), np.nan), np.ones((1, 2)))
    assert scores.calibrate([scores.HeldOut(broken, np.zeros(2))]) == (1.0, math.inf)


def test_rounded_targets_admit_no_spikes():
    """Wine's notes are whole numbers: σ → 0 at them is no knowledge."""
    assert recipe_.rounding(np.array([3.0, 5.0, 4.0, 8.0, 4.0])) == pytest.approx(1 / 12**0.5)
    assert recipe_.rounding(np.array([0.95, 0.951, 0.97])) == pytest.approx(0.001 / 12**0.5)
    assert recipe_.rounding(np.full(4, 2.0)) == 0.0
    y = np.arange(6.0)
    spikes = scores.Mixture(np.ones(1), y[None], np.full((1, 6), 1e-6))
    least = recipe_.rounding(y)
    factor, nll = scores.calibrate([scores.HeldOut(spikes, y, least)])
    assert nll == pytest.approx(scores.score(spikes.widened(factor, least), y)["nll"])
    assert nll == pytest.approx(-stats.norm.logpdf(0, scale=least))
    assert scores.calibrate([scores.HeldOut(spikes, y)])[1] < nll - 10
    rows = standardised(small_set(), np.arange(60), np.arange(60, 90))
    assert rows.rounding == recipe_.rounding(small_set().y[:60])


def test_an_ensemble_is_the_mean_of_its_densities():
    ones = [mixture_of(seed=s, count=2 + s) for s in range(3)]
    both = scores.average(ones)
    y = np.array([17.0, 18.0, 20.0, 21.0, 25.0])

    def density(m: scores.Mixture) -> np.ndarray:
        return m.probs @ stats.norm.pdf(y, m.means, m.scales)

    np.testing.assert_allclose(density(both), np.mean([density(m) for m in ones], 0))
    np.testing.assert_allclose(both.probs.sum(), 1)


def test_scores_of_an_ensemble_against_integration():
    both = scores.average([mixture_of(seed=1), mixture_of(seed=2)])
    y = np.array([17.0, 18.0, 20.0, 21.0, 25.0])
    found = scores.score(both, y)

    def cdf(t: float, row: int) -> float:
        return float(both.probs @ stats.norm.cdf(t, both.means[:, row], both.scales[:, row]))

    def pdf(t: float, row: int) -> float:
        return float(both.probs @ stats.norm.pdf(t, both.means[:, row], both.scales[:, row]))

    crps, nll, means = [], [], []
    for row, target in enumerate(y):
        below = integrate.quad(lambda t, r=row: cdf(t, r) ** 2, -40, target, limit=400)[0]
        above = integrate.quad(lambda t, r=row: (1 - cdf(t, r)) ** 2, target, 80, limit=400)[0]
        crps.append(below + above)
        nll.append(-math.log(pdf(target, row)))
        means.append(integrate.quad(lambda t, r=row: t * pdf(t, r), -40, 80, limit=400)[0])
    assert abs(found["crps"] - np.mean(crps)) < 1e-6
    assert abs(found["nll"] - np.mean(nll)) < 1e-9
    assert abs(found["rmse"] - np.sqrt(np.mean((y - means) ** 2))) < 1e-6
    assert found["width"]["0.5"] < found["width"]["0.9"] < found["width"]["0.95"]


def test_units_are_those_of_the_targets():
    """The density of the targets integrates to one over their own axis, whatever the scaling."""
    data = small_set()
    rows = standardised(data, np.arange(60), np.arange(60, 90))
    model = build("udn", 3, 0.5, TINY, 0)
    found = scores.mixture(model, rows)
    grid = np.linspace(-400, 500, 200_001)
    row = scores.Mixture(
        found.probs,
        np.repeat(found.means[:, :1], len(grid), 1),
        np.repeat(found.scales[:, :1], len(grid), 1),
    )
    density = row.probs @ stats.norm.pdf(grid, row.means, row.scales)
    assert abs(np.trapezoid(density, grid) - 1) < 1e-6
    prediction = model.predict(rows.x)
    y = torch.from_numpy((rows.y - rows.center) / rows.scale).float()[:, None]
    standard = -float(prediction.log_prob(y).mean().detach())
    assert abs(scores.score(found, rows.y)["nll"] - (standard + math.log(rows.scale))) < 1e-4
    mean = prediction.mean[:, 0].detach().double().numpy() * rows.scale + rows.center
    np.testing.assert_allclose(found.probs @ found.means, mean, rtol=1e-5)


# The study


def test_no_test_row_reaches_a_model_or_a_choice():
    """Poisoned test rows: the same choices, the same weights, bit for bit."""
    clean = small_set()
    poisoned = replace(clean, x=clean.x.copy(), y=clean.y.copy())
    poisoned.x[clean.test_masks[1]] = np.nan
    poisoned.y[clean.test_masks[1]] = 1e30
    plan = study.UCISettings("standard", (1,), tuple(LABELS), TINY, (0, 1))

    def everything(data: uci.UCISet):
        choices = study.choose(data, plan, say=lambda words: None)
        mask = data.test_masks[1]
        tables = {1: standardised(data, training_rows(mask), np.flatnonzero(mask))}
        jobs = study.final_jobs(plan, tables, choices)
        return choices, list(jobs), study.train(list(jobs.values()), plan)

    choices, keys, networks = everything(clean)
    others, other_keys, other_networks = everything(poisoned)
    assert choices == others
    assert keys == other_keys
    assert len(networks) >= 8
    for one, other in zip(networks, other_networks, strict=True):
        assert same(state(one.model), state(other.model))
    # The check can fail: a poisoned training row is seen.
    poisoned.y[training_rows(clean.test_masks[1])[0]] += 1
    assert study.choose(poisoned, plan, say=lambda words: None) != choices


def test_the_estimator_is_that_of_the_library_and_sees_no_test_row():
    clean = small_set()
    test = clean.test_masks[1]
    poisoned = replace(clean, x=clean.x.copy(), y=clean.y.copy())
    poisoned.x[test], poisoned.y[test] = np.nan, 1e30
    plan = study.UCISettings("standard", (1,), ("f2", TABLES), TINY, (0,), quality="fast")
    assert plan.networks == ["f2"]
    assert plan.singles == ["f2"]
    model = estimator.fit(clean, plan, 1, 5)
    other = estimator.fit(poisoned, plan, 1, 5)
    alone = UDNRegressor(random_state=5, quality="fast", device="cpu")
    alone.fit(clean.x[~test], clean.y[~test])
    assert same(state(model.model_), state(other.model_))
    assert same(state(model.model_), state(alone.model_))
    row = estimator.score(clean, plan, 1, model)
    x, y = clean.x[test], clean.y[test]
    assert row["rmse"] == pytest.approx(metrics.rmse(y, model.predict(x)))
    low, high = model.predict_quantiles(x, [0.05, 0.95])
    assert row["coverage"]["0.9"] == metrics.coverage(y, low, high)
    assert row["width"]["0.9"] == pytest.approx(np.mean(high - low))
    probs = model.depth_probs_[model.depths_ - 1]
    means, scales = model.predict_by_depth(x, return_std=True)
    least = np.maximum(scales, rounding(clean.y[~test]))
    assert row["nll"] == pytest.approx(metrics.mixture_nll(y, probs, means, least))


def test_processes_fit_what_one_would():
    plan = study.UCISettings("standard", (0, 1), (TABLES,), TINY, (0,), quality="fast")
    said = []
    alone = study.run_set(small_set(), plan, said.append)["rows"]
    assert sum("RMSE" in words for words in said) == 2
    together = study.run_set(small_set(), replace(plan, processes=2), lambda words: None)["rows"]
    assert [row["split"] for row in together] == [0, 1]
    assert together == alone


def test_the_better_candidate_is_chosen():
    """The scale with the least calibrated NLL on the validation parts, for each split alone."""
    data = small_set()
    recipe = replace(TINY, steps=300, scales=(0.01, 1.0))
    plan = study.UCISettings("standard", (0, 2), ("f2",), recipe, (0,))
    choices = study.choose(data, plan, say=lambda words: None)
    for choice in choices.values():
        assert choice.nll == min(choice.candidates.values()) == choice.candidates["1"]
        assert choice.scale == 1.0  # with 0.01 the network is pressed flat
    assert set(choices) == {(0, "f2"), (2, "f2")}
    low, high = study.Choice(1, 1, 0.1, {}), study.Choice(1, 1, 0.2, {})
    finite = {f"f{k}": high for k in range(2, 7)} | {"f5": low}
    by_split = {(4, name): choice for name, choice in finite.items()}
    assert study.base_of("deep-ensemble", 4, by_split) == "f5"
    assert study.base_of("f3", 4, by_split) == "f3"
    for usual, slow, name in ((low, high, "udn"), (high, low, "udn-slow"), (low, low, "udn")):
        by_split = {(4, "udn"): usual, (4, "udn-slow"): slow}
        assert study.base_of("udn-paced", 4, by_split) == name


def test_a_network_that_diverges_is_not_chosen():
    data = small_set()
    plan = study.UCISettings("standard", (0,), ("f2",), TINY, (0,))
    real = study.train

    def diverging(jobs, plan, **options):
        found = real(jobs, plan, **options)
        return [
            replace(one, diverged=job.scale == 0.3) for one, job in zip(found, jobs, strict=True)
        ]

    study.train, kept = diverging, study.train
    try:
        choice = study.choose(data, plan, say=lambda words: None)[0, "f2"]
    finally:
        study.train = kept
    assert choice.scale == 1.0
    assert math.isinf(choice.candidates["0.3"])


def reproduce(*arguments: str) -> int:
    return main(["reproduce", "uci", *arguments])


def test_the_command(tmp_path, capsys, monkeypatch):
    data = small_set()
    write_set(tmp_path, data)
    out = tmp_path / "out"
    common = ["--data", str(tmp_path), "--out", str(out), "--datasets", "yacht", "--quick"]
    common += ["--splits", "2", "--steps", "20", "--width", "6", "--seeds", "0,1"]
    assert reproduce(*common) == 0
    said = capsys.readouterr().out
    assert "| yacht | 2 |" in said
    assert said.startswith("quick: yacht; 2 splits; 20 steps of width 6")
    found = json.loads((out / "yacht.json").read_text())
    assert found["configuration"]["data"] == data.checksum
    assert found["configuration"]["recipe"]["steps"] == 20
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["seconds"]) == {"selection", "training", "scoring"}
    assert len(found["rows"]) == 2 * (len(LABELS) - len(ALONE))
    for row in found["rows"]:
        assert all(math.isfinite(row[k]) for k in ("rmse", "nll", "crps", "depth_mean"))
        assert row["diverged"] == 0
    by_model = {row["model"]: row for row in found["rows"] if row["split"] == 0}
    assert by_model["f4"]["depth_mean"] == pytest.approx(4)
    assert by_model["udn-ensemble"]["rmse"] != by_model["udn"]["rmse"]
    assert by_model["deep-ensemble"]["network"] in ("f2", "f3", "f4", "f5", "f6")
    # λ hardly moves in 20 steps: the network that was chosen shows.
    paced = by_model["udn-paced"]
    start = {"udn": 3.0, "udn-slow": 4.0}[paced["network"]]
    assert paced["depth_mean"] == pytest.approx(TruncatedPoisson(start).mean(), abs=0.3)
    if paced["network"] == "udn":
        assert {**paced, "model": "udn"} == by_model["udn"]
    ElementTree.fromstring((out / "figure.svg").read_text())
    before = (out / "table.md").read_text()
    # What is there is kept if it was run in the same way, and only then.
    monkeypatch.setattr("unbounded.experiments.uci.run_set", None)
    assert reproduce(*common, "--resume") == 0
    assert "yacht: kept from" in capsys.readouterr().out
    assert reproduce(*common, "--resume", "--width", "7") == 2
    assert "was made with other settings" in capsys.readouterr().out
    (out / "table.md").unlink()
    assert table.main([str(out)]) == 0
    assert (out / "table.md").read_text() == before


def resumed_study(tmp_path):
    """The results' file of a small study of one set, and the words that begin it or go on."""
    write_set(tmp_path, small_set())
    path = tmp_path / "out" / "yacht.json"
    common = ["--data", str(tmp_path), "--out", str(path.parent), "--datasets", "yacht", "--quick"]
    common += ["--splits", "2", "--steps", "20", "--width", "6", "--resume"]
    return path, common


def test_models_are_added_to_results_that_are_there(tmp_path, capsys):
    """`--resume` trains what is missing alone, and leaves the rest as it was."""
    path, common = resumed_study(tmp_path)
    assert reproduce(*common, "--models", "f3,udn") == 0
    before = json.loads(path.read_text())
    assert reproduce(*common, "--models", "f2,udn") == 0
    assert "yacht: 4 networks on parts" in capsys.readouterr().out
    after = json.loads(path.read_text())
    assert after["configuration"]["models"] == ["udn", "f2", "f3"]
    found = [(row["split"], row["model"]) for row in after["rows"]]
    assert found == [(split, name) for split in (0, 1) for name in ("udn", "f2", "f3")]
    assert [row for row in after["rows"] if row["model"] != "f2"] == before["rows"]
    assert [later["models"] for later in after["added"]] == [["f2"]]
    assert after["seconds"] == before["seconds"]
    assert reproduce(*common, "--models", "udn,f2,f3") == 0
    assert "yacht: kept from" in capsys.readouterr().out
    assert json.loads(path.read_text()) == after


def test_models_are_run_again_and_others_stay(tmp_path):
    path, common = resumed_study(tmp_path)
    assert reproduce(*common, "--models", "f3,udn") == 0
    assert reproduce(*common, "--models", "f2") == 0
    before = json.loads(path.read_text())
    before["rows"][1]["rmse"] = before["rows"][2]["rmse"] = -1.0  # f2 and f3 of the first split
    path.write_text(json.dumps(before))
    assert reproduce(*common, "--again", "--models", "f2") == 0
    after = json.loads(path.read_text())
    assert after["configuration"] == before["configuration"]
    assert [later["models"] for later in after["added"]] == [["f2"]]
    changed = [old != new for old, new in zip(before["rows"], after["rows"], strict=True)]
    assert changed == [False, True, False, False, False, False]
    assert after["rows"][1]["rmse"] > 0
    assert reproduce(*common, "--again", "--models", "udn,f2,f3") == 0
    whole = json.loads(path.read_text())
    assert "added" not in whole
    assert whole["rows"][2]["rmse"] > 0


def test_gap_splits_and_an_estimate(tmp_path, capsys):
    write_set(tmp_path, small_set())
    common = ["--data", str(tmp_path), "--datasets", "yacht", "--splits", "gap"]
    common += ["--models", "udn", "--steps", "20", "--width", "6"]
    assert reproduce(*common, "--estimate") == 0
    assert "yacht: about" in capsys.readouterr().out
    assert reproduce(*common, "--out", str(tmp_path / "gap")) == 0
    found = json.loads((tmp_path / "gap" / "yacht.json").read_text())
    assert [row["split"] for row in found["rows"]] == [0, 1, 2]
    assert found["configuration"]["kind"] == "gap"
    text = (tmp_path / "gap" / "table.md").read_text()
    assert "PBP" not in text  # published figures are of the standard splits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--datasets", "mars"], "there is no set 'mars'"),
        (["--models", "udn,gp"], "there is no model 'gp'"),
        (["--splits", "some"], "--splits must be standard, gap or a number, got 'some'"),
        (["--splits", "0"], "--splits must be standard, gap or a number, got '0'"),
        (["--seeds", "0"], "at least 2 different numbers, got [0]"),
        (["--seeds", "0,0"], "at least 2 different numbers"),
        (["--seeds", "a"], "invalid literal"),
        (["--device", "abacus"], "abacus"),
        (["--width", "-3"], "width and steps must be positive"),
        (["--data", "nowhere"], "nowhere/yacht.npz is not there; --data"),
    ],
)
def test_mistakes_cost_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reproduce(*arguments) == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 1
    assert "unexpected" not in complaint
    assert not list(tmp_path.rglob("*.json"))


# Tables and figure


def result_of(values: dict[str, list[float]], nll: float = 0.0) -> dict:
    rows = [
        {
            "model": model,
            "split": split,
            "rmse": value,
            "nll": nll,
            "crps": value,
            "depth_mean": 2.5,
            "coverage": {"0.5": 0.5},
            "width": {"0.5": 1.0},
        }
        for model, column in values.items()
        for split, value in enumerate(column)
    ]
    return {
        "rows": rows,
        "configuration": {"kind": "standard"},
        "seconds": {"training": 1.0},
        "versions": {"device": "cpu"},
    }


def test_means_and_standard_errors():
    assert table.summary([1.0, 2.0, 6.0]).mean == pytest.approx(3.0)
    assert table.summary([1.0, 2.0, 6.0]).error == pytest.approx(stats.sem([1.0, 2.0, 6.0]))
    assert math.isnan(table.summary([4.0]).error)
    assert table.not_worse(Estimate(1.05, 0.1), Estimate(1.0, 0.0))
    assert not table.not_worse(Estimate(1.05, 0.04), Estimate(1.0, 10.0))
    assert not table.not_worse(Estimate(1.05, math.nan), Estimate(1.0, 0.0))


def test_verdicts():
    finite = {f"f{k}": [0.7, 0.8] for k in range(2, 7)} | {"f3": [0.5, 0.6]}
    near = result_of({"udn": [0.55, 0.65], "udn-ensemble": [9.0, 9.0], **finite}, nll=1.2)
    found = table.verdicts({"yacht": near})
    # 0.60 ± 0.05 against f3's 0.55, an average of 0.71, 0.67 of MC dropout, 3.01 of boosting.
    assert found["UDN as good as the best of f2…f6, RMSE"]["yacht"]
    assert found["UDN better than their average, RMSE"]["yacht"]
    assert found["best UDN variant as good as the best published, RMSE"]["yacht"]
    assert found["best UDN variant as good as gradient boosting, RMSE"]["yacht"]
    assert not found["UDN better than their average, NLL"]["yacht"]  # equal is not better
    assert not found["best UDN variant as good as the best published, NLL"]["yacht"]
    far = result_of({"udn": [0.61, 0.61], **finite})
    assert not table.verdicts({"yacht": far})["UDN as good as the best of f2…f6, RMSE"]["yacht"]
    paced = near | {"rows": near["rows"] + result_of({"udn-paced": [0.1, 0.9]})["rows"]}
    found = table.verdicts({"yacht": paced})
    assert not found["UDN better than their average, NLL"]["yacht"]
    assert found["UDN, λ's pace chosen better than their average, NLL"]["yacht"]
    assert "| set | E[ℓ] | the paper says | UDN, λ's pace chosen: E[ℓ] |" in table.markdown(
        {"yacht": paced}
    )
    text = table.markdown({"yacht": near})
    assert "| UDN as good as the best of f2…f6, RMSE | 1 of 1 | – |" in text
    assert "| yacht | 2 | 0.600 ± 0.050 |" in text
    assert "**0.550 ± 0.050**" in text


def test_the_time_of_models_that_were_added_counts():
    one = result_of({"udn": [1.0]})
    assert "| all |  |  | 1 |" in table.markdown({"yacht": one})
    note = {"versions": {"device": "tpu"}, "seconds": {"training": 2.0}}
    more = one | {"added": [note, {"seconds": {"training": 4.0}}]}
    text = table.markdown({"yacht": more})
    assert "| all |  |  | 7 |" in text
    assert "| yacht | cpu, tpu | 7 | 7 |" in text


def test_a_model_that_only_some_sets_have_is_shown_for_these():
    finite = {f"f{k}": [0.7, 0.8] for k in range(2, 7)}
    both = result_of({"udn": [0.5, 0.6], TABLES: [0.4, 0.5], **finite})
    text = table.markdown({"yacht": both, "boston": result_of({"udn": [0.5, 0.6], **finite})})
    assert "| boston | 2.50 ± 0.00 | below 2 | – |" in text
    assert "| yacht | 2.50 ± 0.00 | below 2 | 2.50 ± 0.00 |" in text
    assert "| boston | 50.0% (1) | – |" in text
    assert "| UDNRegressor better than their average, RMSE | 1 of 1 | – |" in text


def test_published_figures_are_of_the_nine_sets():
    for column in (*published.RMSE.values(), *published.NLL.values(), published.BOOSTING):
        assert set(column) <= set(uci.SETS)
        assert all(math.isfinite(value.mean) for value in column.values())
    assert published.RMSE["DUN"]["protein"] == Estimate(3.40, 0.03)
    assert published.NLL["Deep Ensembles"]["naval"] == Estimate(-5.63, 0.01)
    assert published.BOOSTING["yacht"].mean == 3.01
    assert "naval" not in published.RMSE["Deep Ensembles"]  # printed as 0.00


def test_the_figure_has_a_dot_for_every_model():
    row = {model: Estimate(1.0 + 0.1 * i, 0.05) for i, model in enumerate(LABELS)}
    errors = {"yacht": row, "naval": row | {"f6": Estimate(9.0, math.nan)}}
    depths = {name: {"udn": Estimate(2.5, 0.2)} for name in errors}
    drawn = Figure()
    figure.draw(drawn, errors, depths)
    upper, lower = drawn.axes
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(LABELS.values())
    assert len(upper.containers) == 2 * len(LABELS) - 1  # f6 is beyond, at the edge
    high = [line for line in upper.lines if line.get_marker() == "^" and len(line.get_xdata()) == 1]
    assert [float(line.get_ydata()[0]) for line in high if line.get_color() == "#0b5a8c"] == [1.7]
    dots = [container.lines[0] for container in lower.containers]
    assert [float(dot.get_ydata()[0]) for dot in dots] == [2.5, 2.5]
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, True]
    figure.draw(Figure(), {"yacht": {"udn": row["udn"]}}, {"yacht": {}})


def test_results_go_between_the_marks_of_a_page():
    page = f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n"
    once = pages.insert(page, "new\n")
    assert once == f"before\n{pages.BEGIN}\nnew\n{pages.END}\nafter\n"
    assert pages.insert(once, "new\n") == once
    for wrong in ("no marks", f"{pages.END} {pages.BEGIN}", page + page):
        with pytest.raises(ValueError, match="must have one"):
            pages.insert(wrong, "new\n")


def test_an_empty_folder_has_no_table(tmp_path):
    with pytest.raises(FileNotFoundError, match="no results"):
        table.write(tmp_path)
