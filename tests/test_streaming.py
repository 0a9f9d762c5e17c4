"""Tables that are learnt from on disk, and models as functions of a batch."""

import pickle
import shutil
import sys
import tempfile
import time
from collections import namedtuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

import unbounded as ub
from unbounded import UDNRegressor, cli
from unbounded.estimators import disk
from unbounded.estimators.disk import RowsOnDisk, fit_from_disk
from unbounded.estimators.rows import WeightedRows
from unbounded.tables import BatchPredictor, Table, TableError, TableModel, prepare, workers
from unbounded.tables.streaming import Split
from unbounded.training import TrainingWarning

QUICK = {"epochs": 2, "width": 8, "references": False, "device": "cpu"}


def frame(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "n": np.arange(rows) * 2.0,
            "a": random.normal(size=rows),
            "town": random.choice(["Ulm", "Bonn", "Kiel"], rows),
        }
    )
    found["y"] = found.a * (found.town == "Ulm") + 0.1 * random.normal(size=rows)
    found["kind"] = np.where(found.y > 0, "up", "down")
    found.loc[::9, "a"] = np.nan
    found.loc[5::40, "y"] = np.nan
    return found


@pytest.fixture
def folder(tmp_path):
    """A table in three files."""
    place = tmp_path / "years"
    (place / "_temporary").mkdir(parents=True)
    (place / "_temporary" / "half.parquet").write_bytes(b"not yet whole")
    for number, start in enumerate(range(0, 240, 80)):
        part = frame().iloc[start : start + 80]
        part.to_parquet(place / f"{number}.parquet", index=False, row_group_size=32)
    return place


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 200_000),
    share=st.floats(0, 0.9),
    most=st.none() | st.integers(1, 100_000),
    seed=st.integers(0, 2**31),
    pieces=st.lists(st.integers(1, 70_000), min_size=1, max_size=6),
)
def test_a_split_is_exact_however_it_is_asked_for(rows, share, most, seed, pieces):
    split = Split.of(rows, share, most, seed)
    assert sum(split.counts) == rows
    assert min(split.counts) >= 0
    whole = split.dealer().deal(rows)
    assert np.bincount(whole, minlength=5).tolist() == list(split.counts)
    dealer, parts, left = split.dealer(), [], rows
    while left:
        parts.append(dealer.deal(min(left, pieces[len(parts) % len(pieces)])))
        left -= len(parts[-1])
    assert np.array_equal(np.concatenate(parts), whole)


def test_every_row_is_encoded_once_for_one_purpose(folder, temporary):
    options = {"held_out": 0.2, "stream": True, "drop": ["kind"], "keep": ["n"]}
    data = prepare(Table(folder), "y", **options)
    known = frame().dropna(subset="y")
    place = data.encoding.slices["n"].start
    scale = data.encoding.encoders["n"].scale
    spooled = np.load(data.on_disk.x), np.load(data.on_disk.y)
    seen = []
    for x, y in (spooled, data.on_disk.validation, data.held_out):
        numbers = np.rint((x[:, place] * scale.sd + scale.mean) * scale.spread + scale.centre)
        assert np.allclose(y, known.set_index("n").y[numbers])
        seen += numbers.tolist()
    assert sorted(seen) == known.n.tolist()
    assert data.num_rows == len(known)
    assert len(data.held_out.y) == round(0.2 * len(known))
    assert data.bounds == (known.y.min(), known.y.max())
    assert len(list(temporary.glob("unbounded-*"))) == 1
    del data
    assert not list(temporary.glob("unbounded-*")), "the files go with the rows"


def test_no_row_on_disk_sees_its_own_target(temporary):
    random = np.random.default_rng(0)
    table = pd.DataFrame({"c": random.integers(0, 300, 900), "y": random.normal(size=900)})
    found = prepare(Table(table), "y", stream=True, category=["c"])
    x, y = np.load(found.on_disk.x), np.load(found.on_disk.y)
    means = [name.endswith("(mean of target 1)") for name in found.encoding.feature_names]
    assert np.array_equal(x, found.train.x)  # all are of the sample
    assert abs(np.corrcoef(x[:, means].ravel(), y)[0, 1]) < 0.2


@pytest.mark.parametrize(("target", "drop"), [("y", "kind"), ("kind", "y")])
def test_a_model_from_disk_is_a_model(folder, temporary, tmp_path, monkeypatch, target, drop):
    monkeypatch.setattr(sys.modules["unbounded.tables.prepare"], "STREAM_CELLS", 100)
    model = TableModel.fit(folder, target, drop=[drop], **QUICK)
    assert model.info["rows"] + model.info["held_out_rows"] == frame()[target].notna().sum()
    assert model.estimator.n_iter_ == 2
    model.save(tmp_path / "m.udn")
    again = TableModel.load(tmp_path / "m.udn")
    predicted = model.predict(folder)
    assert len(predicted) == 240
    pd.testing.assert_frame_equal(predicted, again.predict(frame()))
    assert not list(temporary.glob("unbounded-*"))
    assert model.describe()["scores"]["unbounded"]


def test_the_clock_ends_training_from_disk_within_a_pass(temporary, monkeypatch):
    monkeypatch.setattr(disk, "EPOCH_ROWS", 40)
    options = {**QUICK, "epochs": 100_000, "time_limit": 1.0}
    begun = time.monotonic()
    model = TableModel.fit(frame(), "kind", drop=["y"], stream=True, **options)
    assert model.estimator.stopped_ == "time"
    assert time.monotonic() - begun < 60
    rows = model.estimator.history_
    assert rows[0]["step"] < 240 / 32, "an epoch is a part of a pass"


def test_what_does_not_go_from_disk_is_told(folder, temporary, monkeypatch):
    with pytest.raises(ValueError, match="refit needs all rows in memory"):
        TableModel.fit(frame(), "y", stream=True, refit=True, **QUICK)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10, 5, 5))
    with pytest.raises(TableError, match=r"needs .* GiB in .*: set TMPDIR to a larger place"):
        prepare(Table(folder), "y", stream=True)
    pq.write_table(pa.table({"n": ["text"]}), folder / "4.parquet")
    with pytest.raises(TableError, match=r"the column '\w+' is .* in .*0.parquet and .* in .*4.p"):
        Table(folder)


def test_the_command_line_takes_folders(folder, temporary, tmp_path, capsys):
    out = tmp_path / "m.udn"
    fitted = ["fit", folder, "--target", "y", "--drop", "kind", "--out", out, "--stream"]
    fitted += ["--epochs", "1", "--width", "8", "--no-references", "--no-report", "--device", "cpu"]
    assert cli.main([str(word) for word in fitted]) == 0
    said = capsys.readouterr().out
    assert "from disk: " in said
    assert "scales and categories by" in said
    predicted = ["predict", out, folder, "--out", tmp_path / "p.parquet", "--keep", "n"]
    assert cli.main([str(word) for word in predicted]) == 0
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 240


# Models as functions of a batch


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    found = {}
    for name, target, drop in (("number", "y", "kind"), ("class", "kind", "y")):
        model = TableModel.fit(frame(), target, drop=[drop, "n"], **QUICK)
        model.save(place / f"{name}.udn")
        found[name] = place / f"{name}.udn", model
    return found


@pytest.mark.parametrize("kind", ["number", "class"])
def test_a_batch_gives_what_predict_gives(models, kind):
    path, model = models[kind]
    rows = frame(seed=3).set_index("n")
    wanted = model.predict(rows, parts=True)
    predictor = pickle.loads(pickle.dumps(BatchPredictor(path, parts=True, keep="town")))
    assert len(pickle.dumps(predictor)) < 1000
    found = predictor(rows)
    pd.testing.assert_frame_equal(found.drop(columns="town"), wanted)
    assert found.town.equals(rows.town)
    by_name = predictor({name: rows[name].to_numpy() for name in rows})
    assert list(by_name) == list(found)
    table = predictor(pa.Table.from_pandas(rows))
    assert table.column_names == list(found)
    for name in wanted:
        assert isinstance(by_name[name], np.ndarray)
        assert by_name[name].tolist() == wanted[name].tolist() == table[name].to_pylist()


def test_no_rows_and_schemas(models):
    for path, _ in models.values():
        predictor = BatchPredictor(path, keep=["town"])
        rows = frame()
        empty = predictor(rows.iloc[:0])
        whole = predictor(rows)
        assert list(empty) == list(whole) == list(predictor.meta(rows))
        assert empty.dtypes.equals(whole.dtypes)
        plain = BatchPredictor(path)
        pieces = list(plain.for_spark(iter([rows.iloc[:9], rows.iloc[9:], rows.iloc[:0]])))
        pd.testing.assert_frame_equal(pd.concat(pieces), plain(rows))
        words = [one.rsplit(" ", 1) for one in plain.spark_schema().split(", ")]
        assert [name.strip("`") for name, _ in words] == list(plain(rows))
        assert {word for _, word in words} <= {"double", "string"}


def test_the_file_is_read_once_a_process_and_again_when_it_changes(models, tmp_path, monkeypatch):
    (first, _), (second, _) = models.values()
    path = tmp_path / "m.udn"
    path.write_bytes(first.read_bytes())
    read = []
    load = TableModel.load
    monkeypatch.setattr(TableModel, "load", lambda *a, **k: read.append(a) or load(*a, **k))
    for _ in range(3):
        assert "mean" in BatchPredictor(path)(frame())
    assert len(read) == 1
    path.write_bytes(second.read_bytes())
    assert "prediction" in BatchPredictor(path)(frame())
    assert len(read) == 2
    workers._models.clear()


def test_wrong_batches_are_told(models):
    path, _ = models["number"]
    predictor = BatchPredictor(path)
    with pytest.raises(TableError, match="lacks the column 'a'"):
        predictor(frame().drop(columns="a"))
    with pytest.raises(TableError, match="got a value of type list"):
        predictor([1, 2])
    with pytest.raises(TableError, match="the batch has no column 'id'"):
        BatchPredictor(path, keep=["id"])(frame())
    with pytest.raises(ValueError, match="interval must be between"):
        BatchPredictor(path, interval=2)


def test_dask(models):
    frames = pytest.importorskip("dask.dataframe", reason="needs unbounded[cluster]")
    path, model = models["class"]
    predictor = BatchPredictor(path)
    parts = frames.from_pandas(frame(), npartitions=4)
    found = parts.map_partitions(predictor, meta=predictor.meta(parts))
    assert found.compute(scheduler="threads").reset_index(drop=True).equals(model.predict(frame()))


@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_ray(models):
    ray = pytest.importorskip("ray", reason="needs unbounded[cluster]")
    data = pytest.importorskip("ray.data", reason="needs unbounded[cluster]")
    path, model = models["number"]
    wanted = model.predict(frame())
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        rows = data.from_pandas(frame())
        found = rows.map_batches(BatchPredictor(path, keep=["n"]), batch_size=100).to_pandas()
    finally:
        ray.shutdown()
    found = found.sort_values("n").reset_index(drop=True)
    assert np.allclose(found["mean"], wanted["mean"])
    assert np.allclose(found["upper"], wanted["upper"])


@pytest.mark.filterwarnings("ignore")  # of Spark's own
def test_spark(models, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    path, model = models["class"]
    wanted = model.predict(frame())
    options = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
    session = sql.SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
    try:
        rows = session.createDataFrame(frame().drop(columns="y"))
        predictor = BatchPredictor(path, keep=["n"])
        found = rows.mapInPandas(predictor.for_spark, predictor.spark_schema(rows)).toPandas()
    finally:
        session.stop()
    found = found.sort_values("n").reset_index(drop=True)
    assert found["prediction"].tolist() == wanted["prediction"].tolist()
    assert np.allclose(found["p_up"], wanted["p_up"])


class Interrupting(ub.Gaussian):
    """Ctrl-C during the given call of `log_prob`."""

    calls = 0

    def log_prob(self, outputs, y):
        self.calls += 1
        if self.calls == 12:
            raise KeyboardInterrupt
        return super().log_prob(outputs, y)


def test_an_interruption_is_told_as_in_memory(tmp_path):
    x = np.random.default_rng(0).standard_normal((80, 2))
    y = x[:, :1] + 0.1
    np.save(tmp_path / "x.npy", x[:64])
    np.save(tmp_path / "y.npy", y[:64, 0])
    parts = [WeightedRows(x[k], y[k], np.ones(len(x[k]))) for k in (slice(64), slice(64, 80))]
    rows = RowsOnDisk.of(parts[0], tmp_path / "x.npy", tmp_path / "y.npy", 64)
    options = {"epochs": 9, "width": 8, "batch_size": 16, "random_state": 0}
    model = UDNRegressor(**options, likelihood=Interrupting())
    model._single_target, model._num_targets = True, 1
    with pytest.warns(TrainingWarning, match=r"interrupted: epoch \d of \d is kept"):
        fit_from_disk(model, rows, parts[1], 1)
    assert model.stopped_ == "interrupted"
    assert 1 <= model.best_epoch_ <= model.n_iter_ < 9
    assert len(model.conformal_scores_) == 16
