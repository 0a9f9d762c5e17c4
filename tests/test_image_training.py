"""Images as bytes: normalised, shifted, mirrored and cut as they should be; and `fit` on them."""

import numpy as np
import pytest
import torch

import unbounded as ub
from helpers import same, state
from unbounded.steps.batches import batches
from unbounded.steps.images import augmented, normalise
from unbounded.training import Augment, ImageData

FILL = torch.tensor([7, 8, 9], dtype=torch.uint8)


def pictures(rows=40, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (rows, size, size, 3), generator=generator, dtype=torch.uint8)
    return x, torch.arange(rows) % 4


def model_of(depth=None, **options):
    layers = ub.ResidualConv(3, 4, width=4, stages=(1, 1), init="he")
    depth = ub.TruncatedPoisson(1.5) if depth is None else depth
    return ub.UDN(layers, ub.Categorical(4), depth, **options)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def test_normalised_channels_have_mean_zero_and_deviation_one():
    x, y = pictures(200)
    x[..., 1] //= 2
    data = ImageData(x, y)
    inputs = data.inputs().double()
    assert inputs.shape == (200, 3, 8, 8)
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-5
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-4
    scaled = x.double() / 255
    assert data.mean == pytest.approx(scaled.mean((0, 1, 2)).tolist())
    assert data.std == pytest.approx(scaled.std((0, 1, 2), correction=0).tolist())
    other = data.like(x[:10], y[:10])
    assert torch.equal(other.inputs(), data.inputs(slice(0, 10)))
    assert other.augment is None


def test_channels_last_without_a_copy():
    x, _ = pictures(4)
    inputs = normalise(x, torch.ones(3), torch.zeros(3))
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(inputs, x.permute(0, 3, 1, 2).float())


@pytest.mark.parametrize("pad", ["reflect", "zero"])
def test_every_image_is_a_shift_or_a_mirror_image(pad):
    x, _ = pictures(60)
    crop, size = 2, 8
    found = augmented(x, Augment(crop=crop, pad=pad), draws(), FILL)
    seen = set()
    for image, result in zip(x, found, strict=True):
        both = {"as it is": image, "mirrored": image.flip(1)}
        matches = []
        for name, source in both.items():
            chw = source.permute(2, 0, 1)[None].float()
            if pad == "reflect":
                padded = torch.nn.functional.pad(chw, [crop] * 4, mode="reflect")[0]
            else:
                padded = FILL.float()[:, None, None].repeat(1, size + 2 * crop, size + 2 * crop)
                padded[:, crop:-crop, crop:-crop] = chw[0]
            for down in range(2 * crop + 1):
                for across in range(2 * crop + 1):
                    piece = padded[:, down : down + size, across : across + size]
                    if torch.equal(piece.permute(1, 2, 0).to(torch.uint8), result):
                        matches.append((name, down, across))
        assert len(matches) == 1
        seen.add(matches[0])
    assert {name for name, _, _ in seen} == {"as it is", "mirrored"}
    assert {down for _, down, _ in seen} == {across for *_, across in seen} == set(range(5))


def test_nothing_to_do_changes_nothing():
    x, _ = pictures()
    assert torch.equal(augmented(x, Augment(crop=0, flip=False), draws(), FILL), x)


def test_cutout_greys_a_square():
    x, _ = pictures(300)
    x = x.clamp(min=20)  # nothing else has the colour of the cut
    found = augmented(x, Augment(crop=0, flip=False, cutout=4), draws(), FILL)
    cut = (found == FILL).all(3)
    assert torch.equal(found[~cut], x[~cut])
    sizes = cut.sum((1, 2))
    assert int(sizes.max()) == 16  # a whole square; at an edge a part of one
    assert int(sizes.min()) >= 4
    for mask in cut:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        height = int(rows.max() - rows.min()) + 1
        width = int(columns.max() - columns.min()) + 1
        assert int(mask.sum()) == height * width


def test_draws_depend_on_the_generator_alone():
    x, _ = pictures()
    first, again, other = (augmented(x, Augment(), draws(seed), FILL) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_epoch_has_full_batches_of_different_images():
    x, y = pictures(40)
    data = ImageData(x, y, augment=Augment(crop=0, flip=False))
    bound = batches(data, model_of(), what="training", batch_size=16, generator=draws())
    assert len(bound) == 2
    epochs = []
    for _ in range(2):
        rows = torch.cat([batch.x for batch in bound])
        assert rows.shape[0] == 32
        every = data.inputs()
        distance = (rows[:, None] - every).abs().amax((2, 3, 4))
        assert float(distance.min(1).values.max()) < 1e-3
        chosen = distance.argmin(1)
        assert len(set(chosen.tolist())) == 32
        epochs.append(chosen)
    assert not torch.equal(*epochs)


def test_without_a_generator_they_come_in_order_and_all():
    x, y = pictures(40)
    data = ImageData(x, y, augment=Augment())
    bound = batches(data, model_of(), what="test", batch_size=16)
    found = list(bound)
    assert len(found) == len(bound) == 3
    assert torch.equal(torch.cat([batch.x for batch in found]), data.inputs())
    assert torch.equal(torch.cat([batch.y for batch in found]), y)


def test_large_sets_come_in_pieces(monkeypatch):
    x, y = pictures(64)
    data = ImageData(x, y, augment=Augment())
    wholes = []
    for limit in (1 << 28, 8 * 8 * 3 * 20):  # the second has room for one batch of 16
        monkeypatch.setattr("unbounded.steps.images._CHUNK_BYTES", limit)
        bound = batches(data, model_of(), what="training", batch_size=16, generator=draws())
        wholes.append(torch.cat([batch.y for batch in bound]))
    assert torch.equal(*wholes)


def test_fit_on_images_is_fit_on_their_numbers():
    x, y = pictures(48)
    data = ImageData(x, y)  # no augmentation, and 48 is a multiple of 16
    options = {"epochs": 3, "batch_size": 16, "progress": False}
    images, numbers = model_of(), model_of()
    one = ub.fit(images, data, validation=data.like(x[:8], y[:8]), **options)
    inputs = data.inputs()
    two = ub.fit(numbers, inputs, y, validation=(inputs[:8], y[:8]), **options)
    assert same(state(images), state(numbers))
    assert one.history["val_accuracy"] == two.history["val_accuracy"]


def test_training_learns_and_can_be_cut_in_two(tmp_path):
    x, y = pictures(64)
    x[..., 0] = (y * 60).to(torch.uint8)[:, None, None]
    data = ImageData(x, y, augment=Augment(crop=1, cutout=2))
    options = {"batch_size": 16, "progress": False, "lr": 0.01}
    whole = model_of()
    result = ub.fit(whole, data, epochs=6, monitor={"train": data}, **options)
    assert result.history["train_accuracy"][-1] > 0.9
    path = tmp_path / "run.checkpoint"
    ub.fit(model_of(), data, epochs=3, checkpoint=path, **options)
    rest = model_of()
    ub.fit(rest, data, epochs=6, checkpoint=path, resume=True, **options)
    assert same(state(whole), state(rest))


def test_grey_images_and_arrays_are_welcome():
    x, y = pictures(16)
    data = ImageData(x[..., :1].numpy(), y.numpy().astype(np.int64))
    model = ub.UDN(ub.ResidualConv(1, 4, width=4, stages=(1, 1)), ub.Categorical(4))
    ub.fit(model, data, epochs=1, batch_size=8, progress=False)
    assert model.predict(data.inputs()).classes.shape == (16,)


def test_errors_say_what_was_expected():
    x, y = pictures(8)
    with pytest.raises(ValueError, match=r"bytes of shape .* got torch.float32 \(8, 8, 8, 3\)"):
        ImageData(x.float(), y)
    with pytest.raises(ValueError, match="8 images and 5 labels"):
        ImageData(x, y[:5])
    with pytest.raises(ValueError, match="no images"):
        ImageData(x[:0], y[:0])
    with pytest.raises(ValueError, match="each of the 3 channels, got 1"):
        ImageData(x, y, mean=[0.5])
    with pytest.raises(ValueError, match="std must be positive"):
        ImageData(x, y, mean=[0.5] * 3, std=[0.0] * 3)
    with pytest.raises(ValueError, match="pad must be"):
        Augment(pad="wrap")
    with pytest.raises(ValueError, match="crop and cutout"):
        Augment(crop=-1)
    with pytest.raises(ValueError, match="only 8 rows"):
        ub.fit(model_of(), ImageData(x, y), epochs=1, batch_size=16, progress=False)
    with pytest.raises(ValueError, match="class labels must be in 0 … 3"):
        ub.fit(model_of(), ImageData(x, y + 1), epochs=1, batch_size=4, progress=False)
