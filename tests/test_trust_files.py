"""Model files that were replaced while they were read, damaged, or made up: refused in one line."""

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.torch
import torch
from benchmarks.attack.damaged import DamagedFiles
from benchmarks.attack.mutations import joined, split
from torch import nn

import unbounded as ub
from unbounded import estimators, files
from unbounded.cli import main
from unbounded.data import pickles
from unbounded.depth import FiniteDepth, FixedDepth, TruncatedConwayMaxwell, TruncatedPoisson
from unbounded.estimators import UDNClassifier, UDNRegressor
from unbounded.files import FileError
from unbounded.likelihoods import LearntNoise
from unbounded.tables import TableModel

DATA = Path(__file__).parent / "data"
TABLE = pd.DataFrame(
    {
        "x": [0.5, None],
        "town": ["Aa", "Zz"],
        "ok": ["yes", "no"],
        "day": ["2021-03-01", "2022-01-01"],
        "note": ["t", None],
        "street": ["s3", "s49"],
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plain model, estimators with siblings, a table model and its table."""
    folder = tmp_path_factory.mktemp("models")
    x = np.random.default_rng(0).normal(size=(24, 3))
    options = {"epochs": 1, "width": 4, "n_members": 2, "random_state": 0, "refit": False}
    ub.save(ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2)), folder / "plain.udn", extra={"a": [1]})
    UDNClassifier(**options).fit(x, np.where(x[:, 0] > 0, "yes", "no")).save(folder / "class.udn")
    UDNRegressor(**options).fit(x, x[:, :2]).save(folder / "number.udn")
    TableModel.load(DATA / "table-1.safetensors", "cpu").save(folder / "table.udn")
    TABLE.assign(kind=["mid", "low"]).to_csv(folder / "rows.csv", index=False)
    return folder


def changed(path: Path, out: Path, change, reseal: bool = True) -> Path:
    """A copy whose header (and tensors) were changed, with a digest that fits it or not."""
    tensors, metadata = split(path.read_bytes())
    header = json.loads(metadata["unbounded"])
    change(header, tensors)
    text = json.dumps(header)
    out.write_bytes(joined(tensors, {**metadata, "unbounded": text}, reseal=reseal))
    return out


# Opened once

_COUNTED: dict[str, int] = {}


def _count(event: str, arguments) -> None:
    if event == "open" and str(arguments[0]) in _COUNTED:
        _COUNTED[str(arguments[0])] += 1


sys.addaudithook(_count)  # stays for good, and counts only what is asked for


@pytest.fixture
def _no_other_way(monkeypatch):
    """Opens by safetensors itself, which no audit hook sees, are errors."""

    def refuse(*arguments, **options):
        raise AssertionError("a model file is read by its bytes")

    monkeypatch.setattr(safetensors, "safe_open", refuse)
    monkeypatch.setattr(safetensors.torch, "load_file", refuse)


@pytest.mark.usefixtures("_no_other_way")
@pytest.mark.parametrize("command", ["predict", "evaluate", "inspect", "report"])
def test_a_command_opens_the_model_once(folder, tmp_path, capsys, command):
    model, rows = str(folder / "table.udn"), str(folder / "rows.csv")
    arguments = {
        "predict": [rows],
        "evaluate": [rows],
        "inspect": [],
        "report": ["--out", str(tmp_path / "page.html")],
    }[command]
    _COUNTED[model] = 0
    assert main([command, model, *arguments]) == 0
    assert _COUNTED.pop(model) == 1


@pytest.mark.usefixtures("_no_other_way")
def test_loading_opens_a_file_once(folder):
    for path, load in (
        (folder / "plain.udn", ub.load),
        (folder / "class.udn", estimators.load),
        (folder / "class.udn", ub.files.load_all),
        (folder / "number.udn", UDNRegressor.load),
        (folder / "table.udn", TableModel.load),
        (folder / "plain.udn", files.read_header),
    ):
        _COUNTED[str(path)] = 0
        load(path)
        assert _COUNTED.pop(str(path)) == 1


def test_a_file_that_is_replaced_all_the_time_is_read_as_one_of_two(tmp_path):
    path, stop = tmp_path / "model.udn", threading.Event()
    kept = []
    for which, width in enumerate((3, 5)):
        model = ub.UDN(ub.Dense(2, width, 2), ub.Categorical(2), seed=which)
        nn.init.constant_(model.network.hidden["1"].weight, which)
        ub.save(model, tmp_path / f"{which}", extra={"which": which})
        kept.append((tmp_path / f"{which}").read_bytes())
    path.write_bytes(kept[0])

    def replace() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            (tmp_path / "new").write_bytes(kept[turn % 2])
            os.replace(tmp_path / "new", path)
            time.sleep(0.0002)  # lets the reader in

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = set()
        for _ in range(60):
            contents = files.read(path)
            model, which = ub.load(contents), contents.extra["which"]
            seen.add(which)
            again = ub.load(path)
            for one, number in ((model, which), (again, again.seed)):
                assert one.seed == number
                assert one.layers.width == (3, 5)[number]
                assert bool((one.network.hidden["1"].weight == number).all())
        assert seen == {0, 1}
    finally:
        stop.set()
        thread.join()


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(FileError, match="is a pipe or a device"):
            ub.load(path)


# Integrity


def test_the_digest_tells_damage(folder, tmp_path):
    path = folder / "plain.udn"
    other = tmp_path / "m.udn"
    for change in (
        lambda h, t: t["network.hidden.1.weight"].mul_(1.001),
        lambda h, t: h.update(seed=5),
        lambda h, t: h["extra"].update(a=[2]),
        lambda h, t: h.update(format="unbounded-model-1"),
    ):
        changed(path, other, change, reseal=False)
        with pytest.raises(FileError, match=r"m\.udn is damaged: .* do not fit its digest"):
            ub.load(other)
        with pytest.raises(FileError, match="digest"):
            files.read_header(other)
        changed(path, other, lambda h, t: None, reseal=False)
        ub.load(other)
    tensors, metadata = split(path.read_bytes())
    del metadata["digest"]
    other.write_bytes(joined(tensors, metadata, reseal=False))
    with pytest.raises(FileError, match="'unbounded-model-2' has a digest"):
        ub.load(other)


def test_the_digest_cannot_be_split_in_two_ways():
    one, two = torch.tensor([1.0]), torch.tensor([1.0, 1.0])
    found = {
        files.digest({"a": one, "b": one}, {}),
        files.digest({"a": two}, {}),
        files.digest({"a": two.reshape(1, 2)}, {}),
        files.digest({"a": two.view(torch.int32)}, {}),
        files.digest({}, {"a": "bc"}),
        files.digest({}, {"ab": "c"}),
        files.digest({}, {"a": "b", "c": ""}),
    }
    assert len(found) == 7
    assert files.digest({}, {"a": "b", "digest": "x"}) == files.digest({}, {"a": "b"})


def test_files_of_the_first_format_still_load(tmp_path):
    model = ub.load(DATA / "model-1.safetensors")
    probs = model.predict(torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, 1.0]])).probs
    expected = torch.tensor([[0.56029969, 0.43970031], [0.57971978, 0.42028025]])
    torch.testing.assert_close(probs, expected)
    assert files.read_header(DATA / "model-1.safetensors")["extra"] == {"note": [1, "ω"]}
    found = TableModel.load(DATA / "table-1.safetensors", "cpu").predict(TABLE)
    assert found["prediction"].tolist() == ["mid", "low"]
    np.testing.assert_allclose(found["p_dear"], [0.22541084, 0.25651178], rtol=1e-5)
    later = changed(
        DATA / "model-1.safetensors",
        tmp_path / "m",
        lambda h, t: h.update(format="unbounded-model-7", version="4.2"),
    )
    said = (
        r"'unbounded-model-7' \(unbounded 4\.2 wrote it\), this version reads 'unbounded-model-2'"
    )
    with pytest.raises(FileError, match=said):
        ub.load(later)


def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(folder, tmp_path):
    path = tmp_path / "m.udn"
    for value in (np.nan, np.inf):
        model = ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2))
        with torch.no_grad():
            model.network.heads["2"].bias[1] = value
        with pytest.raises(ValueError, match=r"cannot be saved.*network\.heads\.2\.bias"):
            ub.save(model, path)
        assert not path.exists()

    def spoil(header, tensors):
        tensors["network.heads.2.bias"][0] = np.nan

    with pytest.raises(FileError, match=r"network\.heads\.2\.bias holds 1 numbers"):
        ub.load(changed(folder / "plain.udn", path, spoil))


def test_masks_of_your_own_layers_may_be_infinite(tmp_path):
    class Masked(nn.Linear):
        def __init__(self, inputs):
            super().__init__(inputs, 4)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0, 0.0]))

    def layers():
        return ub.CustomLayers(
            lambda depth: Masked(3 if depth == 1 else 4), lambda depth: nn.Linear(4, 2)
        )

    ub.save(ub.UDN(layers(), ub.Categorical(2)), tmp_path / "m")
    loaded = ub.load(tmp_path / "m", layers=layers())
    assert loaded.network.hidden["1"].mask[1] == -torch.inf


# Files that ask for more than they hold


def _set(path: str, value):
    def change(header, tensors):
        *owners, key = path.split(".")
        for name in owners:
            header = header[name]
        header[key] = value

    return change


def _rate(value):
    return lambda h, t: t.update({"depth.raw_rate": torch.tensor(float(value))})


def _shape(name, *shape):
    return lambda h, t: t.update({name: torch.empty(shape)})


def _wide(header, tensors):
    """One layer whose successor would take gigabytes."""
    for name in list(tensors):
        if name.startswith("network."):
            del tensors[name]
    size = 50_000
    tensors["network.hidden.1.weight"] = torch.zeros(size, 1)
    tensors["network.hidden.1.bias"] = torch.zeros(size)
    tensors["network.heads.1.weight"] = torch.zeros(2, size)
    tensors["network.heads.1.bias"] = torch.zeros(2)
    header["layers"]["config"].update(in_features=1, width=size)
    header["num_layers"] = 1


MODELS = {
    "poisson": lambda: ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2)),
    "conway": lambda: ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2), TruncatedConwayMaxwell(2.0)),
    "normal": lambda: ub.UDN(
        ub.PreNormDense(3, 4, 2), ub.Categorical(2), ub.TruncatedNormal(2.0, 1.0)
    ),
    "table": lambda: ub.UDN(
        ub.TableDense(3, 4, 2, embedded=[0, 2]), ub.Categorical(2), FixedDepth(2)
    ),
    "limited": lambda: ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2), TruncatedPoisson(limit=4)),
    "fixed": lambda: ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2), FixedDepth(2)),
    "finite": lambda: ub.UDN(ub.Dense(3, 4, 2), ub.Categorical(2), FiniteDepth(2)),
    "noise": lambda: ub.UDN(ub.Dense(3, 4, 2), ub.Gaussian(LearntNoise(num_targets=2))),
    "images": lambda: ub.UDN(ub.ResidualConv(3, 2, width=2), ub.Categorical(2), FixedDepth(2)),
}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("poisson", _set("layers.config.width", 1e9), "layers.width should be a whole number"),
        ("poisson", _set("layers.config.width", 10**12), "hidden.1.weight has the shape"),
        ("poisson", _set("layers.config.in_features", 10**15), "hidden.1.weight has the shape"),
        ("poisson", _set("likelihood.config.num_classes", 3), "heads must give 3 numbers"),
        ("poisson", _rate(1e5), "depth.raw_rate is 100000, far beyond its 4 layers"),
        ("poisson", _rate(1e30), "far beyond its 4 layers"),
        ("poisson", _rate(30), "gives mass to 40 depths, it holds 4 layers"),
        ("poisson", _set("depth.config.quantile", 1.0), "depth.quantile should be a finite number"),
        ("poisson", _set("weight_prior.config.scale", 1e-300), "weight_prior.scale"),
        ("poisson", _shape("network.hidden.2.weight", 0, 10**6), r"has the shape \(0, 1000000\)"),
        ("poisson", _shape("depth.raw_rate", 0, 10**6), "depth.raw_rate is missing or not"),
        ("poisson", _shape("sibling.1.x", 3), "0 siblings and a tensor sibling.1.x"),
        ("poisson", _set("siblings", [{"num_layers": 4, "seed": 1}]), "holds 0 tensors"),
        ("poisson", lambda h, t: t.pop("network.heads.3.bias"), "lacks the tensor network.heads.3"),
        ("table", _set("layers.config.embedded", [0, 3]), "embedded must be columns from 0 to 2"),
        ("table", _set("layers.config.embedded", [0, "2"]), r"layers.embedded\[1\] should be"),
        ("table", _set("layers.config.embedded", [0]), "has the shape"),
        ("table", _set("layers.config.frequencies", 10**12), "has the shape"),
        ("table", _set("layers.config.steps", [[0, 1.0]]), "has the shape"),
        ("table", _set("layers.config.steps", [[3, 1.0]]), "a column from 0 to 2"),
        ("table", _set("layers.config.steps", [[0, 1.0, 2.0]]), r"layers.steps\[0\]"),
        ("table", _set("layers.config.height", 0.0), "layers.height should be"),
        ("table", _set("layers.config.embedding", 10**12), "has the shape"),
        ("limited", _rate(1e30), "far beyond its 4 layers"),
        ("conway", _set("depth.config.concentration", 1e-12), "depth.concentration should be"),
        ("conway", lambda h, t: t["depth.nu"].fill_(1e-12), "depth.nu should be"),
        ("normal", lambda h, t: t["depth.mu"].fill_(1e9), "depth.mu is 1e.09, far beyond its"),
        ("normal", lambda h, t: t.pop("depth.raw_spread"), "depth.raw_spread is missing"),
        ("normal", lambda h, t: t["depth.raw_spread"].fill_(300.0), "gives mass to"),
        ("fixed", _set("depth.config.depth", 10**6), "depth.depth = 1000000 and holds 2 layers"),
        ("finite", _set("depth.config.max_depth", 10**6), "max_depth = 1000000 and holds 2"),
        (
            "noise",
            _set("likelihood.config.noise.num_targets", 2 * 10**9),
            "log_scale has the shape",
        ),
        ("noise", lambda h, t: t["likelihood.noise.log_scale"].fill_(1e4), "scale of zero or bey"),
        ("images", _set("layers.config.stages", [1] * 99), "layers.stages should be a list of 0"),
        ("images", _set("layers.config.width", 10**9), "hidden.1.conv.weight has the shape"),
    ],
)
def test_a_model_is_built_only_of_what_is_there(name, change, said, tmp_path):
    ub.save(MODELS[name](), tmp_path / "whole")
    ub.load(tmp_path / "whole")
    path = changed(tmp_path / "whole", tmp_path / "m", change)
    start = time.perf_counter()
    with pytest.raises(FileError, match=said) as told:
        ub.load(path)
    assert str(told.value).startswith(str(path))
    assert time.perf_counter() - start < 5


def test_no_layer_is_born_that_the_file_does_not_hold(tmp_path):
    """λ of the first moment would ask for a second layer of 10 GB."""
    ub.save(MODELS["poisson"](), tmp_path / "whole")
    model = ub.load(changed(tmp_path / "whole", tmp_path / "m", _wide))
    assert model.network.num_layers == 1
    assert model.depth.max_depth() == 4  # the file's own: training would go on from there


def test_a_model_saved_right_after_lambda_moved_loads(tmp_path):
    model = MODELS["poisson"]()
    model.depth.raw_rate.data.fill_(2.0)
    assert model.depth.max_depth() > model.network.num_layers
    ub.save(model, tmp_path / "m")
    loaded = ub.load(tmp_path / "m")
    assert torch.equal(loaded(torch.ones(2, 3)), model.eval()(torch.ones(2, 3)))


E = "extra.estimator."
T = "extra.table."


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("class", _set(E + "classes.dtype", "<U500000000"), None),
        ("class", _set(E + "classes.dtype", "V8"), "classes.dtype should be one of numbers"),
        ("class", _set(E + "classes.values", ["yes", "no"]), "labels in order, each once"),
        ("class", _set(E + "classes.values", ["no", "no"]), "labels in order, each once"),
        ("class", _set(E + "classes.values", ["a", "b", "c"]), "classes.values should be a list"),
        ("class", _set(E + "classes.values", ["a", "\ud800"]), "text of whole characters"),
        ("class", _set(E + "n_features_in", 4), "first layer takes 3 numbers, a row has 4"),
        ("class", _set(E + "n_features_in", 2 * 10**9), "first layer takes 3"),
        ("class", _set(E + "input_scaling.scale", [1.0, 2.0]), "scale should be a list of 3 to 3"),
        ("class", _set(E + "input_scaling.scale", [1, 2, -1]), r"scale\[2\] should be a finite"),
        ("class", _set(E + "feature_names_in", ["a", "a", "b"]), "feature_names_in should be 3"),
        (
            "class",
            _set(E + "history", {"rows": [{}], "births": []}),
            r"rows\[0\]\.epoch is missing",
        ),
        ("class", _set(E + "arguments.plain.epochs", "many"), "plain.epochs should be"),
        ("class", _set(E + "arguments.plain.colour", 1), "plain.colour is not known"),
        ("class", _set(E + "kind", "UDNRegressor"), "class"),
        ("number", _set(E + "target_scaling.center", [0.0]), "center should be a list of 2 to 2"),
        ("number", _set(E + "single_target", True), "single_target is true, there are 2 targets"),
        ("table", _set(T + "encoding.missing", "NA"), "encoding.missing should be a list"),
        ("table", _set(T + "encoding.encoders.x.kind", "os"), "encoders.x.kind should be one of"),
        ("table", _set(T + "encoding.encoders.x.scale.spread", -1.0), "scale.spread should be"),
        (
            "table",
            _set(T + "encoding.encoders.town.levels", [1, 2, 3]),
            r"levels\[0\] should be a t",
        ),
        ("table", _set(T + "encoding.encoders.town.levels", ["a"] * 3), "holds something twice"),
        ("table", _set(T + "encoding.encoders.town.other", True), "one for each level and for the"),
        ("table", _set(T + "encoding.encoders.street.means", {"s1": [1.0]}), "one for the rest"),
        ("table", _set(T + "encoding.encoders.day.cycles", ["year"]), "table makes 16 numbers"),
        ("table", _set(T + "target.classes", ["low", "dear", "mid"]), "other classes than its mo"),
        ("table", _set(T + "target.task", "regression"), "does not fit the task regression"),
        ("table", _set(T + "info.rows", "many"), "info.rows should be a whole number"),
        ("table", _set(T + "info.held_out.by_depth", [0.5]), "held_out does not fit together"),
        ("table", _set(T + "version", [1]), "describes its table in version"),
    ],
)
def test_estimators_and_tables_are_read_field_by_field(name, change, said, folder, tmp_path):
    path = changed(folder / f"{name}.udn", tmp_path / "m", change)
    load = TableModel.load if name == "table" else estimators.load
    if said is None:  # no room is made for it
        assert load(path).classes_.dtype == "<U3"
        return
    with pytest.raises(FileError, match=said) as told:
        load(path)
    assert str(told.value).startswith(str(path))


def test_columns_with_a_hostile_format_of_dates(folder, tmp_path, capsys):
    def change(header, tensors):
        columns = header["extra"]["table"]["encoding"]["columns"]
        next(c for c in columns if c["kind"] == "date")["format"] = "%Y" * 9

    path = changed(folder / "table.udn", tmp_path / "m", change)
    assert main(["inspect", str(path)]) == 2
    said = capsys.readouterr().err
    assert "columns[3].format should be one of" in said
    assert "unexpected" not in said


def test_extra_of_your_own_passes_untouched(tmp_path, capsys):
    extra = {"estimator": "mine", "table": None, "deep": [[{"a": [None, 1.5, "ω"]}]]}
    ub.save(MODELS["poisson"](), tmp_path / "m", extra=extra)
    assert files.read_header(tmp_path / "m")["extra"] == extra
    ub.load(tmp_path / "m")
    assert main(["inspect", str(tmp_path / "m")]) == 0


# By the hundred


def test_mutated_files_are_refused_or_harmless(tmp_path):
    """`python -m benchmarks.attack files` is the long form."""
    attack = DamagedFiles(tmp_path, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert [fault for fault in map(attack.case, range(320)) if fault] == []
    assert attack.found["refused"] > 160
    assert attack.found["loaded"] > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # kB


# Pickles


@pytest.mark.parametrize(
    "content",
    [
        b"\x8e" + (2**32).to_bytes(8, "little"),  # bytes
        b"\x8d" + (2**33).to_bytes(8, "little"),  # text
        b"\x96" + (2**33).to_bytes(8, "little"),  # a byte array
        b"Nr\xff\xff\xff\xff.",  # a place in the memo
        b"Np4294967295\n.",
        b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N.",  # a frame
    ],
)
def test_a_small_pickle_cannot_order_gigabytes(content):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ValueError, pickles.pickle.UnpicklingError), match=r"expected|beyond"):
        pickles.read(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16  # kB


def test_lists_within_lists_are_not_written_out():
    content = b"\x80\x02]q\x00(" + b"K\x01" * 100 + b"e"
    for place in range(1, 6):
        content += b"0]q" + bytes([place]) + b"(" + (b"h" + bytes([place - 1])) * 100 + b"e"
    with pytest.raises(ValueError, match="a list of whole numbers"):
        pickles.array(pickles.read(content + b"."))


def test_a_table_model_without_facts_about_its_training_is_described(folder, tmp_path):
    path = changed(folder / "table.udn", tmp_path / "m", _set(T + "info", {}))
    assert TableModel.load(path).describe()["rows"] == {"train": 0, "held_out": 0}
