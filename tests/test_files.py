"""Model files: round trips, and files that are truncated, foreign or hostile."""

import json
import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import unbounded as ub
from helpers import classes, classifier, same, state
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedPoisson
from unbounded.files import FORMAT, FileError, read_header, read_tensors, write_tensors
from unbounded.likelihoods import FixedNoise, InputNoise, LearntNoise

MODELS = {
    "dense": lambda: ub.UDN(ub.Dense(3, 5, 2), ub.Categorical(2), TruncatedPoisson(2.7)),
    "residual": lambda: ub.UDN(ub.ResidualDense(3, 5, 1, init="default"), ub.Bernoulli()),
    "fixed": lambda: ub.UDN(ub.Dense(3, 5, 1), ub.Gaussian(FixedNoise(0.3)), FixedDepth(3)),
    "finite-shared": lambda: ub.UDN(
        ub.Dense(3, 5, 2, shares_head=True, activation="tanh"),
        ub.Gaussian(InputNoise()),
        FiniteDepth(4),
        ub.UniformDepth(4),
    ),
    "learnt-noise": lambda: ub.UDN(
        ub.Dense(3, 5, 2, init="he"),
        ub.Gaussian(LearntNoise(0.5, num_targets=2)),
        TruncatedPoisson(1.5, quantile=0.8, limit=9),
        ub.GeometricDepth(0.3),
        ub.GaussianWeights(2.0, 0.5),
        cumulative_heads=True,
        seed=12,
    ),
    "double": lambda: ub.UDN(ub.Dense(3, 5, 2), ub.Categorical(2)).double(),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_round_trip(make, tmp_path):
    model, path = make(), tmp_path / "model.udn"
    ub.save(model, path, extra={"note": "ω"})
    other = ub.load(path)
    assert same(state(model), state(other))
    assert read_header(path)["extra"] == {"note": "ω"}
    x = torch.randn(6, 3, dtype=model.anchor.dtype)
    assert torch.equal(model.eval()(x), other(x))
    for part in ("layers", "likelihood", "depth", "depth_prior", "weight_prior"):
        assert type(getattr(model, part)) is type(getattr(other, part))
        assert getattr(model, part).config() == getattr(other, part).config()
    assert (other.seed, other.cumulative_heads) == (model.seed, model.cumulative_heads)
    assert not other.training
    # ... and it goes on growing as the first one would
    if isinstance(model.depth, TruncatedPoisson) and model.depth.limit is None:
        for one in (model, other):
            one.depth.raw_rate.data.fill_(6.0)
            ub.growth.grow(one)
        assert same(state(model), state(other))


def test_a_trained_model_predicts_the_same(tmp_path):
    x, y = classes(64)
    model = classifier()
    ub.fit(model, x, y, epochs=15, batch_size=16, lr=0.05, depth_lr_ratio=3.0, progress=False)
    ub.save(model, tmp_path / "m")
    assert torch.equal(ub.load(tmp_path / "m").predict(x).probs, model.predict(x).probs)


def own_layers():
    return ub.CustomLayers(
        lambda d: nn.Sequential(nn.Linear(3 if d == 1 else 5, 5), nn.BatchNorm1d(5), nn.ReLU()),
        lambda d: nn.Linear(5, 2),
    )


def test_parts_of_the_user_s_own_are_passed_in(tmp_path):
    path = tmp_path / "own.udn"
    model = ub.UDN(own_layers(), ub.Categorical(2))
    ub.fit(model, *classes(64), epochs=2, batch_size=16, progress=False)
    ub.save(model, path)
    with pytest.raises(FileError, match=r"layers of the user's own \(CustomLayers\)"):
        ub.load(path)
    other = ub.load(path, layers=own_layers())
    assert same(state(model), state(other))  # running means of the batch norm included
    with pytest.raises(FileError, match="does not describe a model"):
        ub.load(path, layers=ub.Dense(3, 5, 2))


def test_a_callable_activation_is_the_user_s_own(tmp_path):
    layers = ub.Dense(3, 4, 2, activation=torch.sin)
    ub.save(ub.UDN(layers, ub.Categorical(2)), tmp_path / "m")
    with pytest.raises(FileError, match="pass it as load"):
        ub.load(tmp_path / "m")
    ub.load(tmp_path / "m", layers=layers)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.udn"
    ub.save(classifier(), path)
    return path


def test_truncated_at_any_length(saved):
    data = saved.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1):
        saved.write_bytes(data[:length])
        with pytest.raises(FileError, match="not a complete safetensors file"):
            ub.load(saved)


@settings(max_examples=150)
@given(st.integers(0, 10**9), st.binary(min_size=1, max_size=6))
def test_damaged_anywhere(tmp_path_factory, position, junk):
    """A file with bytes overwritten loads or gives a FileError, nothing else."""
    path = tmp_path_factory.mktemp("damaged") / "m"
    ub.save(classifier(), path)
    data = bytearray(path.read_bytes())
    position %= len(data) - len(junk)
    data[position : position + len(junk)] = junk
    path.write_bytes(bytes(data))
    message = str(path)
    try:
        ub.load(path)
    except FileError as error:
        message = str(error)
    assert str(path) in message


def test_foreign_files(tmp_path):
    path = tmp_path / "x"
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(FileError, match="not one of this library"):
        ub.load(path)
    path.write_bytes(b"PK\x03\x04 some zip")
    with pytest.raises(FileError):
        ub.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        ub.load(tmp_path / "missing")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ub.load(tmp_path)


class Trap:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_pickles_are_not_read(tmp_path):
    trap, path = tmp_path / "sprung", tmp_path / "model.udn"
    path.write_bytes(pickle.dumps(Trap(trap)))
    with pytest.raises(FileError):
        ub.load(path)
    torch.save({"x": Trap(trap)}, path)
    with pytest.raises(FileError):
        ub.load(path)
    assert not trap.exists()


def rewritten(path, change):
    """The file at `path` with its header changed."""
    tensors, metadata = read_tensors(path)
    header = json.loads(metadata["unbounded"])
    change(header)
    write_tensors(path, tensors, {"unbounded": json.dumps(header)})


def test_a_tensor_s_name_cannot_order_layers(tmp_path):
    path = tmp_path / "m.udn"
    ub.save(classifier(), path)
    tensors, metadata = read_tensors(path)
    tensors["network.hidden.1000000000.weight"] = torch.zeros(1)
    write_tensors(path, tensors, metadata)
    with pytest.raises(FileError, match="claims 4 layers and names layer 1000000000"):
        ub.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(format="unbounded-model-99"), f"this version reads '{FORMAT}'"),
        (lambda h: h.update(num_layers=10**12), "claims 1000000000000 layers"),
        (lambda h: h.update(num_layers=-1), "num_layers should be a whole number"),
        (lambda h: h.update(num_layers="4"), "num_layers should be a whole number"),
        (lambda h: h.update(num_layers=2), "does not describe a model"),
        (lambda h: h["layers"]["config"].update(width=10**10), "hidden.1.weight has the shape"),
        (lambda h: h["layers"]["config"].update(out_features=7), "does not describe"),
        (lambda h: h["layers"].update(kind="os.system"), "of the user's own"),
        (lambda h: h["depth"].update(kind="__import__('os').abort()"), "of the user's own"),
        (lambda h: h["layers"]["config"].update(surprise=1), "does not describe"),
        (lambda h: h["layers"]["config"].update(activation="eval"), "does not describe"),
        (lambda h: h["depth"]["config"].update(quantile=2.0), "does not describe"),
        (lambda h: h.update(dtype="object"), "dtype should be one of"),
        (lambda h: h.pop("likelihood"), "does not describe"),
        (lambda h: h.update(layers=None), "does not describe"),
        (lambda h: h.update(seed=-3), "does not describe"),
    ],
)
def test_hostile_headers(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(FileError, match=message):
        ub.load(saved)


def test_header_that_is_no_json(saved):
    tensors, _ = read_tensors(saved)
    for text in ("{", "[1]", '"x"', "[" * 100_000):
        write_tensors(saved, tensors, {"unbounded": text})
        with pytest.raises(FileError, match="damaged header"):
            ub.load(saved)


def test_saving_where_it_cannot_be(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ub.save(classifier(), tmp_path / "no" / "model.udn")
    with pytest.raises(IsADirectoryError):
        ub.save(classifier(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("depth", ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2), ub.TruncatedNormal(2.0, 1.0))),
        ("layers", ub.UDN(ub.Dense(2, 5, 2), ub.Categorical(2))),
    ],
)
def test_siblings_that_differ_are_refused(tmp_path, part, other):
    model = ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2))
    with pytest.raises(ValueError, match=f"another {part}"):
        ub.save(model, tmp_path / "m.udn", siblings=[other])
    assert not list(tmp_path.iterdir())
