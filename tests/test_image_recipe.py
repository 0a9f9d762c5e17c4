"""Parts of a better recipe for images: smoothing, flips, whitening, Muon, averaged weights."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unbounded as ub
from unbounded.baselines import BareODE, ResNet18, plain
from unbounded.engines import Graphs
from unbounded.engines.averages import renew_norms
from unbounded.layers import Whitened, whitening_filters
from unbounded.likelihoods import SmoothedCategorical
from unbounded.steps.muon import orthogonal
from unbounded.training import Augment, ImageData, Muon


def pictures(rows=40, size=8, seed=0):
    """Smooth images of four classes: neighbouring pixels and channels are alike."""
    draw = np.random.default_rng(seed)
    y = np.arange(rows) % 4
    x = draw.normal(0, 1, (rows, size, size, 3)).cumsum(1).cumsum(2)
    x = x + x.mean(3, keepdims=True) + 6 * np.eye(4)[y][:, None, None, :3]
    return (128 + 12 * x).clip(0, 255).astype(np.uint8), y


# Smoothed labels


def test_smoothing_is_that_of_torch_in_training_alone():
    outputs = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(7) % 5
    smooth, plain_one = SmoothedCategorical(5, 0.2), ub.Categorical(5)
    for depth in range(3):
        expected = -F.cross_entropy(outputs[depth], y, label_smoothing=0.2, reduction="none")
        torch.testing.assert_close(smooth.log_lik(outputs, y)[depth], expected)
    assert torch.equal(smooth.log_scores(outputs, y), plain_one.log_lik(outputs, y))
    log_q = torch.full((3,), 1 / 3).log()
    ours, theirs = (one.predict(outputs, log_q) for one in (smooth, plain_one))
    assert torch.equal(ours.log_prob_by_depth(y), theirs.log_prob_by_depth(y))
    assert torch.equal(ours.log_prob(y), theirs.log_prob(y))
    none = SmoothedCategorical(5, 0.0)
    torch.testing.assert_close(none.log_lik(outputs, y), plain_one.log_lik(outputs, y))
    for wrong in (-0.1, 1.0):
        with pytest.raises(ValueError, match="smoothing must be from 0"):
            SmoothedCategorical(5, wrong)


def test_a_smoothed_model_goes_through_a_file(tmp_path):
    model = ub.UDN(ub.Dense(2, 4, 3), SmoothedCategorical(3, 0.1))
    ub.save(model, tmp_path / "model.udn")
    found = ub.load(tmp_path / "model.udn")
    assert found.likelihood.config() == {"num_classes": 3, "smoothing": 0.1}


# Alternating flips


def epochs_of(flip, count, seed=0, start=0):
    """Which images of which epoch are mirrored, `(epoch, rows)`, by an image that has a side."""
    x = np.zeros((64, 4, 4, 3), np.uint8)
    x[:, :, 0] = np.arange(64)[:, None, None] + 100  # a left edge that names the image
    data = ImageData(x, np.arange(64) % 4, augment=Augment(crop=0, flip=flip), mean=[0.0] * 3)
    model = plain(ResNet18(3, 4, width=2, blocks=(1,)), ub.Categorical(4))
    batches = data.bind(model, 16, torch.Generator().manual_seed(seed))
    found = np.zeros((count, 64), int)
    for epoch in range(count):
        batches.begin_epoch(start + epoch)
        for batch in batches:
            left, right = (batch.x[:, 0, 0, k] * data.std[0] * 255 for k in (0, 3))
            edge = (left + right).round().int().numpy() - 100
            found[epoch, edge] = 1 + (right > left).numpy()
    assert (found > 0).all()
    return found == 2


def test_every_image_is_seen_both_ways_in_two_epochs():
    seen = epochs_of("alternating", 4)
    assert (seen[0] != seen[1]).all()
    assert (seen[0] == seen[2]).all()
    assert (seen[1] == seen[3]).all()
    assert 16 < seen[0].sum() < 48  # at random at first
    assert (epochs_of("alternating", 1, seed=1)[0] != seen[0]).any()
    # A run that goes on in the second epoch sees what it would have seen.
    assert (epochs_of("alternating", 1, start=1)[0] == seen[1]).all()
    random = epochs_of(True, 2)
    assert 8 < (random[0] == random[1]).sum() < 56
    assert not epochs_of(False, 1).any()
    with pytest.raises(ValueError, match="flip must be True, False or 'alternating'"):
        Augment(flip="sometimes")


# Whitening


def test_whitened_patches_have_the_identity_as_covariance():
    x, y = pictures(60)
    images = ImageData(x, y).inputs()
    filters = whitening_filters(images, 3, floor=0.0)
    assert filters.shape == (27, 3, 3, 3)
    patches = F.conv2d(images, filters).transpose(0, 1).reshape(27, -1).double()
    torch.testing.assert_close(
        patches @ patches.T / patches.shape[1], torch.eye(27).double(), atol=2e-3, rtol=0
    )
    before = F.unfold(images, 3).transpose(0, 1).reshape(27, -1)
    assert (before @ before.T / before.shape[1] - torch.eye(27)).abs().max() > 0.5
    norms = whitening_filters(images, 3).flatten(1).norm(dim=1)
    assert (norms.diff() > 0).all()  # the widest axis first
    with pytest.raises(ValueError, match="size must be odd"):
        whitening_filters(images, 2)


@pytest.mark.parametrize("kind", ["udn", "whole"])
def test_layers_behind_a_whitening(kind, tmp_path):
    x, y = pictures()
    images = ImageData(x, y).inputs()
    filters = whitening_filters(images, 3)

    def build(layers):
        if kind == "udn":
            return ub.UDN(layers, ub.Categorical(4), ub.TruncatedPoisson(2.0), seed=1)
        return plain(layers, ub.Categorical(4), seed=1)

    def inner():
        if kind == "udn":
            return ub.ResidualConv(27, 4, width=4, stages=(1, 1), init="he")
        return ResNet18(27, 4, width=4, blocks=(1, 1))

    model, bare = build(Whitened(inner(), filters)), build(inner())
    for one in (model, bare):
        one.eval()
        with torch.no_grad():
            for head in one.network.heads.values():
                head.weight.fill_(0.1)
    torch.testing.assert_close(model(images), bare(F.conv2d(images, filters, padding=1)))
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in bare.parameters())
    before = model.network.hidden["1"].filters.clone()
    ub.fit(model, ImageData(x, y), epochs=2, batch_size=20, lr=0.01)
    assert torch.equal(model.network.hidden["1"].filters, before)
    ub.save(model, tmp_path / "model.udn")
    found = ub.load(tmp_path / "model.udn", layers=Whitened(inner(), torch.zeros_like(filters)))
    torch.testing.assert_close(found(images), model.eval()(images))


# Muon


@pytest.mark.parametrize("shape", [(12, 12), (8, 30), (30, 8), (3, 5, 16, 9)])
def test_an_update_is_orthogonal_and_keeps_its_directions(shape):
    draw = torch.Generator().manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64, generator=draw)
    found = orthogonal(matrices)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    # The singular vectors stay: between them the update is diagonal.
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    between = u.mT @ found @ v.mT
    assert (between - torch.diag_embed(between.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-8
    assert torch.equal(orthogonal(torch.zeros(4, 6)), torch.zeros(4, 6))


def parameters(*shapes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    found = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    for parameter in found:
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    return found


def test_a_step_of_matrices():
    """lr · ratio · √(rows/columns) times an orthogonal matrix, and decay apart from it."""
    (weight,) = parameters((20, 2, 2, 2))
    before = weight.detach().clone()
    muon = Muon([weight], 0.5, matrix_ratio=0.1, matrix_decay=0.3, momentum=0.9)
    muon.step()
    moved = (weight.detach() - before * (1 - 0.05 * 0.3)).reshape(20, 8)
    values = torch.linalg.svdvals(moved) / (0.05 * (20 / 8) ** 0.5)
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert (moved * weight.grad.reshape(20, 8)).sum() < 0  # downhill
    muon.param_groups[0]["lr"] = 0.0
    before = weight.detach().clone()
    muon.step()
    assert torch.equal(weight, before)  # a schedule moves both rates


def test_matrices_of_one_shape_go_together_as_they_would_alone():
    together = parameters((6, 3, 2, 2), (6, 3, 2, 2), (4, 6))
    alone = parameters((6, 3, 2, 2), (6, 3, 2, 2), (4, 6))
    muon = Muon(together, 0.1)
    several = [Muon([p], 0.1) for p in alone]
    for _ in range(3):
        muon.step()
        for one in several:
            one.step()
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("nesterov", [True, False])
def test_all_else_goes_by_sgd(nesterov):
    ours, theirs = parameters((5,), (3, 4)), parameters((5,), (3, 4))
    options = {"lr": 0.1, "momentum": 0.8, "nesterov": nesterov, "weight_decay": 0.1}
    muon = Muon([{"params": ours, "role": "heads"}], **options)
    sgd = torch.optim.SGD(theirs, **options)
    for _ in range(3):
        muon.step()
        sgd.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_muon_grows_with_a_model_and_resumes_bit_for_bit(tmp_path):
    x, y = pictures()
    data = ImageData(x, y, augment=Augment(crop=1, flip="alternating"))

    def fitted(epochs, **options):
        layers = ub.ResidualConv(3, 4, width=4, stages=(1, 1))
        priors = ub.PoissonDepth(20.0), ub.GaussianWeights(100.0)  # draw λ upwards
        likelihood = SmoothedCategorical(4, 0.1)
        model = ub.UDN(layers, likelihood, ub.TruncatedPoisson(1.0), *priors, seed=2)
        born = model.network.num_layers
        optimizer = ub.make_optimizer(model, Muon, 0.1, depth_lr_ratio=20.0, matrix_ratio=0.2)
        result = ub.fit(
            model,
            data,
            batch_size=10,
            epochs=epochs,
            optimizer=optimizer,
            average=0.9,
            seed=3,
            **options,
        )
        return model, result.history, born

    model, history, born = fitted(4)
    assert model.network.num_layers > born
    assert history[-1]["expected_log_lik"] > history[0]["expected_log_lik"]
    path = tmp_path / "run.checkpoint"
    fitted(3, checkpoint=path)  # an odd number: flips go on from there
    resumed, course, _ = fitted(4, checkpoint=path, resume=True)
    assert [r["elbo"] for r in course] == [r["elbo"] for r in history]
    for (key, one), other in zip(
        model.state_dict().items(), resumed.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), key


def test_wrong_numbers_of_muon():
    for name, value in (("lr", -1.0), ("matrix_ratio", -1.0), ("iterations", 0)):
        with pytest.raises(ValueError, match=name):
            Muon(parameters((2, 2)), **{name: value})


# Averaged weights


def test_normalisations_are_renewed_for_other_weights():
    x, y = pictures()
    inputs = ImageData(x, y).inputs()
    model = plain(ResNet18(3, 4, width=4, blocks=(1, 1)), ub.Categorical(4)).eval()
    stem = model.network.hidden["1"][0]
    renew_norms(model, inputs.split(20))
    assert not model.training
    assert stem.norm.momentum == 0.1
    with torch.no_grad():
        halves = [stem.conv(half) for half in inputs.split(20)]
        means = torch.stack([half.mean((0, 2, 3)) for half in halves]).mean(0)
        spreads = torch.stack([half.var((0, 2, 3)) for half in halves]).mean(0)
    torch.testing.assert_close(stem.norm.running_mean, means)
    torch.testing.assert_close(stem.norm.running_var, spreads)


# Engines


def test_graphs_refuse_what_has_no_fixed_steps():
    pytest.importorskip("torchdiffeq", reason="torchdiffeq is of the extra 'baselines'")
    x, y = pictures()
    model = plain(BareODE(3, 4, size=(8, 8), filters=4), ub.Categorical(4))
    with pytest.raises(ValueError, match=r"Graphs.*passes differ.*Eager"):
        ub.fit(model, ImageData(x, y), epochs=1, engine=Graphs(graphs=False))
    filters = whitening_filters(ImageData(x, y).inputs(), 1)
    assert not Whitened(BareODE(3, 4, size=(8, 8), filters=4), filters).has_fixed_steps
