"""Exported files: they predict what we predict, from raw columns on, and are checked first."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_friedman1

import unbounded as ub
from unbounded import UDNClassifier, UDNRegressor
from unbounded.estimators.levels import EDGES, Levels
from unbounded.exporting import ExportError, columns, export
from unbounded.exporting.operators import OPERATORS
from unbounded.likelihoods import InputNoise
from unbounded.tables import Table, TableModel

try:
    import onnx
    import onnxruntime
except ImportError:
    onnx = onnxruntime = None
needs_onnx = pytest.mark.skipif(onnx is None, reason="needs the extra unbounded[export]")

SHORT = {"epochs": 2, "width": 8, "random_state": 0}
DEPTH = ub.TruncatedNormal(2.0, 0.6)
# torch tells of itself while it traces.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def run(path, feeds, names=None):
    """What onnxruntime makes of a file, by name."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [out.name for out in session.get_outputs()] if names is None else names
    return dict(zip(names, session.run(names, feeds), strict=True))


def noisy(model):
    """Weights of a network that has learnt something."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def networks():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(5, (6, 4), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True, True, True, False]] * 6)
    silu = ub.PreNormDense(3, 8, 1, activation="silu")
    yield "gelu", ub.UDN(ub.ResidualDense(3, 8, 3, activation="gelu"), ub.Categorical(3), DEPTH), x
    yield "bernoulli", ub.UDN(silu, ub.Bernoulli(), DEPTH), x
    noise = ub.Gaussian(InputNoise())
    yield "input noise", ub.UDN(ub.Dense(3, 8, 2, activation="tanh"), noise, DEPTH), x
    trunk = ub.TrunkDense(3, 8, 2, members=3)
    yield "labels of members", ub.UDN(trunk, ub.Members(ub.MultiLabel(2), 3), DEPTH), x
    yield "images", ub.UDN(ub.ResidualConv(1, 3, width=4), ub.Categorical(3), DEPTH), images
    layers = ub.TransformerLayers(5, 8, heads=2)
    yield "tokens", ub.UDN(layers, ub.Tokens(5), DEPTH), tokens
    layers = ub.TransformerLayers(5, 8, heads=2, positions="learnt", max_length=9, tied=True)
    yield "masked tokens", ub.UDN(layers, ub.Tokens(5), ub.FixedDepth(2)), (tokens, mask)


@needs_onnx
@pytest.mark.parametrize(
    ("name", "model", "x"), list(networks()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_networks(name, model, x, tmp_path):
    model, path = noisy(model), tmp_path / "model.onnx"
    done = export(model, path, x, quantiles=())
    assert done.difference < 1e-5
    parts = x if isinstance(x, tuple) else (x,)
    names = ["x"] if len(parts) == 1 else ["x0", "x1"]
    other = [torch.cat([part, part[:3]]) for part in parts]  # another size of the batch
    if name == "tokens":
        other = [torch.cat([other[0], other[0]], 1)]  # and of time
    found = run(path, dict(zip(names, (part.numpy() for part in other), strict=True)))
    expected = model.predict(tuple(other) if len(other) > 1 else other[0])
    if "mean" in found:
        np.testing.assert_allclose(found["mean"], expected.mean, atol=1e-5)
        np.testing.assert_allclose(found["sd"], expected.variance.sqrt(), atol=1e-5)
    else:
        np.testing.assert_allclose(found["probabilities"], expected.probs, atol=1e-5)
        answers = expected.tokens if hasattr(expected, "tokens") else expected.classes
        np.testing.assert_array_equal(found["prediction"], answers)


def test_a_frozen_depth_as_pt2(tmp_path):
    model = noisy(ub.UDN(ub.Dense(3, 8, 2), ub.Categorical(2), ub.TruncatedPoisson(2.0)))
    x = torch.randn(5, 3)
    frozen = model.freeze(depth=2)
    done = export(frozen, tmp_path / "two.pt2", x)
    assert done.format == "pt2"
    module = torch.export.load(tmp_path / "two.pt2").module()
    torch.testing.assert_close(module(x)["probabilities"], frozen(x)[0][0].softmax(-1))
    torch.testing.assert_close(module(x[:1])["probabilities"], frozen(x[:1])[0][0].softmax(-1))
    # Another depth would be another prediction.
    assert (module(x)["probabilities"] - model.predict(x).probs).abs().max() > 1e-3


@needs_onnx
def test_a_likelihood_of_ones_own_gives_outputs(tmp_path):
    class Laplace(ub.Likelihood):
        def log_prob(self, outputs, y):
            return -(outputs[..., 0] - y).abs()

    model = noisy(ub.UDN(ub.Dense(3, 8, 1), Laplace(), DEPTH))
    x = torch.randn(5, 3)
    export(model, tmp_path / "own.onnx", x)
    found = run(tmp_path / "own.onnx", {"x": x.numpy()})
    expected = model.predict(x)
    np.testing.assert_allclose(found["outputs"], expected.outputs.movedim(1, 0), atol=1e-5)
    np.testing.assert_allclose(found["depth_probs"], expected.depth_log_probs.exp(), atol=1e-6)


# Estimators


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(80, 5, random_state=0)


@needs_onnx
def test_a_regressor_with_bent_noise_in_units(friedman, tmp_path):
    X, y = friedman
    y = 1e6 + 100 * y  # an offset that single precision would blur
    options = {"n_members": 2, "depth": ub.FixedDepth(2), "likelihood": ub.Gaussian()}
    model = UDNRegressor(**SHORT, **options).fit(X, y)
    for member in model.members_:
        member.likelihood.noise.bend([([-1.0, 0.5], [-0.3, 0.4])])
    model.levels_ = [Levels((EDGES**2).tolist())]  # as if held-out rows had asked for them
    done = export(model, tmp_path / "m.onnx", quantiles=(0.1, 0.9))
    assert done.inputs == [{"name": "x", "kind": "float64", "expects": "rows of shape 5"}]
    found = run(tmp_path / "m.onnx", {"x": X})
    mean, sd = model.predict(X, return_std=True)
    unit = y.std()
    np.testing.assert_allclose(found["mean"] / unit, mean / unit, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["sd"] / unit, sd / unit, atol=1e-5)
    quantiles = model.predict_quantiles(X, [0.1, 0.9]).T
    np.testing.assert_allclose(found["quantiles"] / unit, quantiles / unit, rtol=0, atol=1e-5)
    X = X.copy()
    X[0, 2] = np.nan  # counts as the column's mean
    gone = run(tmp_path / "m.onnx", {"x": X[:1]}, ["mean"])["mean"]
    np.testing.assert_allclose(gone / unit, model.predict(X[:1]) / unit, rtol=0, atol=1e-5)


def test_several_targets_of_a_shared_trunk(friedman, tmp_path):
    X, y = friedman
    shared = {"n_members": 3, "ensemble": "shared", "depth": ub.FixedDepth(1)}
    model = UDNRegressor(**SHORT, **shared).fit(X, np.stack([y, y**2], 1))
    model.levels_ = [None, Levels((EDGES**2).tolist())]
    export(model, tmp_path / "m.pt2", quantiles=(0.5, 0.9))
    found = torch.export.load(tmp_path / "m.pt2").module()(torch.from_numpy(X))
    np.testing.assert_allclose(found["mean"], model.predict(X), rtol=1e-4)
    levels = model.predict_quantiles(X, [0.5, 0.9])
    np.testing.assert_allclose(found["quantiles"], np.moveaxis(levels, 0, 1), rtol=1e-3)


@needs_onnx
@pytest.mark.parametrize(
    "names", [["low", "high"], [3, 7], [False, True], [0.0, 1.0]], ids=lambda n: type(n[0]).__name__
)
def test_classes_of_every_type(friedman, tmp_path, names):
    X, y = friedman
    model = UDNClassifier(**SHORT, depth=ub.FixedDepth(1)).fit(
        X, np.array(names)[(y > 14).astype(int)]
    )
    export(model, tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", {"x": X})
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), atol=1e-5)
    assert found["prediction"].tolist() == model.predict(X).tolist()


@needs_onnx
def test_several_labels(friedman, tmp_path):
    X, y = friedman
    labels = np.stack([y > 14, X[:, 0] > 0.5, X[:, 1] > 0.2], 1).astype(int)
    model = UDNClassifier(**SHORT, depth=ub.FixedDepth(1)).fit(X, labels)
    export(model, tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", {"x": X})
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), atol=1e-5)
    assert (found["prediction"] == model.predict(X)).all()


# Tables


def make_table(rows=240):
    random = np.random.default_rng(0)
    seconds = random.integers(0, 900 * 86400, rows)
    frame = pd.DataFrame(
        {
            "size": random.normal(100, 20, rows),
            "heavy": np.exp(random.normal(0, 3, rows)),
            "town": random.choice(["Bonn", "Köln", "Ulm"], rows),
            "code": random.choice([f"z{k}" for k in range(50)], rows),
            "when": pd.to_datetime("2020-01-01") + pd.to_timedelta(seconds, unit="s"),
            "flag": random.choice(["yes", "no"], rows),
            "rooms": random.integers(1, 5, rows),
            "mean": random.normal(size=rows),  # called like an output
            "note": [f"note {k} {seconds[k]}" if k % 3 else None for k in range(rows)],
        }
    )
    frame["price"] = 2 * frame["size"] + 10 * frame["rooms"] + random.normal(0, 5, rows)
    frame.loc[::7, "size"] = np.nan
    frame.loc[::11, "town"] = None
    frame.loc[3::13, "when"] = pd.NaT
    frame.loc[::17, "flag"] = None
    return frame


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def priced(table):
    """A model of a table with every kind of column."""
    found = TableModel.fit(
        table,
        target="price",
        references=False,
        category=["rooms"],
        epochs=2,
        width=8,
        depth=ub.FixedDepth(2),
    )
    kinds = {column.kind for column in found.encoding.used}
    assert kinds == {"number", "boolean", "date", "category", "text"}
    assert any(e.means for e in found.encoding.encoders.values() if e.kind == "category")
    assert any(
        getattr(e, "scale", None) and e.scale.heavy for e in found.encoding.encoders.values()
    )
    return found


def test_the_encoding_as_tensors_is_the_encoding(priced, table):
    """Also for rows that training did not meet."""
    made = columns.Columns(priced.encoding)
    for frame in (table, columns.made_up_rows(priced.encoding, 100, seed=3)):
        chunk = next(iter(priced.open(frame).chunks())).frame
        given = columns.frame_columns(priced.encoding, made.inputs, chunk, as_codes=True)
        found = made({name: torch.from_numpy(value) for name, value in given.items()})
        expected = priced.encoding.transform_frame(chunk)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@needs_onnx
def test_a_table_from_raw_columns_to_predictions(priced, table, tmp_path):
    path = tmp_path / "m.onnx"
    done = export(priced, path, table)
    assert done.difference < 1e-5
    assert done.outputs == ["mean", "sd", "quantiles"]
    kinds = {one["name"]: one["kind"] for one in done.inputs}
    assert kinds["mean (input)"] == "number"
    random = np.random.default_rng(1)
    rows = table.iloc[random.permutation(len(table))[:50]].reset_index(drop=True)

    def text(column):
        return np.array([["" if v is None or v != v else str(v)] for v in column], dtype=object)

    def number(column):
        return column.to_numpy(np.float64)[:, None]

    seconds = (rows["when"] - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
    feeds = {
        **{name: number(rows[name]) for name in ("size", "heavy")},
        **{name: text(rows[name]) for name in ("town", "code", "rooms", "note")},
        "when": number(seconds),
        "flag": number(rows["flag"].map({"yes": 1.0, "no": 0.0})),
        "mean (input)": number(rows["mean"]),
    }
    found = run(path, {name: feeds[name] for name in kinds})
    expected = priced.predict(rows)
    unit = table["price"].std()
    for name, column in (("mean", "mean"), ("sd", "sd")):
        np.testing.assert_allclose(found[name] / unit, expected[column] / unit, atol=1e-5)
    ends = expected[["lower", "upper"]].to_numpy()
    np.testing.assert_allclose(found["quantiles"][:, [0, 2]] / unit, ends / unit, atol=2e-5)
    # Other writings of what is missing, of a number, and a level that nobody has seen.
    one = {name: value[:1].copy() for name, value in feeds.items()}
    one["town"][0, 0], one["rooms"][0, 0], one["code"][0, 0] = "NA", "3.0", "nowhere"
    frame = rows[:1].astype({"rooms": str}).assign(town=None, rooms="3", code="nowhere")
    frame["flag"] = rows["flag"][:1]
    alone = run(path, one, ["mean"])["mean"]
    np.testing.assert_allclose(alone / unit, priced.predict(frame)["mean"] / unit, atol=1e-5)
    about = json.loads({p.key: p.value for p in onnx.load(path).metadata_props}["unbounded"])
    assert about["target"] == "price"
    assert about["quantiles"] == [0.05, 0.5, 0.95]


def test_a_table_as_pt2_takes_codes(priced, table, tmp_path):
    done = export(priced, tmp_path / "m.pt2", quantiles=())
    by_name = {one["name"]: one for one in done.inputs}
    codes = by_name["town"]["codes"]
    assert codes["Ulm"] != codes[""]
    assert f"{codes['Ulm']} for 'Ulm'" in by_name["town"]["expects"]
    assert f"{codes['']} where it is missing" in by_name["town"]["expects"]
    program = torch.export.load(tmp_path / "m.pt2").module()
    chunk = next(iter(priced.open(table[:9]).chunks())).frame
    made = columns.Columns(priced.encoding)
    given = columns.frame_columns(priced.encoding, made.inputs, chunk, as_codes=True)
    assert {name: v.dtype.kind for name, v in given.items()}["town"] == "i"
    found = program({name: torch.from_numpy(value) for name, value in given.items()})
    np.testing.assert_allclose(found["mean"], priced.predict(table[:9])["mean"], rtol=1e-4)
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        assert any(name.endswith("unbounded.json") for name in archive.namelist())


@needs_onnx
def test_an_estimator_of_a_frame(table, tmp_path):
    X, y = table.drop(columns=["price", "note"]), np.where(table["price"] > 225, "dear", "cheap")
    model = UDNClassifier(**SHORT, depth=ub.FixedDepth(1)).fit(X, y)
    done = export(model, tmp_path / "m.onnx")
    assert [one["name"] for one in done.inputs] == [c.name for c in model.encoding_.used]
    assert done.difference < 1e-5
    found = run(
        tmp_path / "m.onnx",
        columns.frame_columns(
            model.encoding_,
            columns.Columns(model.encoding_).inputs,
            next(iter(Table(X).chunks())).frame,
            as_codes=False,
        ),
    )
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), atol=1e-5)
    assert found["prediction"].tolist() == model.predict(X).tolist()


# What cannot be


@needs_onnx
def test_a_file_that_predicts_something_else_is_not_kept(tmp_path, monkeypatch):
    model = noisy(ub.UDN(ub.Dense(3, 8, 2), ub.Categorical(2), ub.FixedDepth(2)))
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")

    def wrong(graph, node, args, options):
        return graph.node("Sigmoid", args[0])

    monkeypatch.setitem(OPERATORS, "aten.relu.default", wrong)
    with pytest.raises(ExportError, match=r"probabilities differs from our own by .*: nothing was"):
        export(model, path, torch.randn(5, 3))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@needs_onnx
def test_operations_without_a_translation_are_named(tmp_path):
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.special.i0(x)

    layers = ub.CustomLayers(lambda depth: Odd(), lambda depth: torch.nn.Linear(3, 2))
    model = ub.UDN(layers, ub.Categorical(2), ub.FixedDepth(1))
    with pytest.raises(
        ExportError, match=r"the operation aten.*i0.* has no translation to ONNX: export to pt2"
    ):
        export(model, tmp_path / "m.onnx", torch.randn(5, 3))
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_what_cannot_be_exported_is_told(tmp_path, monkeypatch):
    model = ub.UDN(ub.ResidualConv(1, 3, width=4), ub.Categorical(3), ub.FixedDepth(1))
    with pytest.raises(ExportError, match="onnx or pt2, got 'txt'"):
        export(model, tmp_path / "m.txt")
    with pytest.raises(ExportError, match="ResidualConv does not say what its inputs look like"):
        export(model, tmp_path / "m.onnx")
    with pytest.raises(ExportError, match="a TableModel, an estimator, a UDN"):
        export("model", tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="quantiles must be strictly between 0 and 1"):
        export(model, tmp_path / "m.onnx", torch.randn(4, 1, 8, 8), quantiles=[1.0])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        export(model, tmp_path / "nowhere" / "m.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(
        ExportError, match=r"ONNX needs the package onnxruntime: pip install 'unbounded\[export\]'"
    ):
        export(model, tmp_path / "m.onnx")
