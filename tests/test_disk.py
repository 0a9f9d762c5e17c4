"""Data that stay on disk: every row once a pass, whoever reads it, in bounded memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unbounded as ub
from unbounded.parallel import Processes
from unbounded.steps.disk import DiskData, deal
from unbounded.steps.disk_files import ArrayGroups, Piece

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet as pq  # noqa: E402

CLASSES = 2


def model(seed: int = 1, features: int = 3, **options):
    return ub.UDN(
        ub.Dense(features, 6, CLASSES),
        ub.Categorical(CLASSES),
        ub.TruncatedPoisson(1.5),
        seed=seed,
        **options,
    )


def rows(count: int, seed: int = 0):
    x = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


def written(folder: Path, count: int = 100, group: int = 12, weights: bool = False) -> Path:
    """A Parquet file in which the first column numbers the rows."""
    x, y = rows(count)
    columns = {"a": np.arange(count, dtype=np.float32), "b": x[:, 1], "c": x[:, 2], "y": y}
    if weights:
        columns["w"] = np.linspace(0.5, 2, count)
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


NET = model(features=1).double()


class Part(Processes):
    """One of several processes, as far as rows go."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


class Numbers(ArrayGroups):
    """Groups of any sizes; the inputs are the numbers of the rows."""

    def __init__(self, sizes):
        self.sizes, self.row_bytes = sizes, 8
        self.starts = np.cumsum([0, *sizes]).tolist()
        self.reads = []

    def read(self, group):
        self.reads.append(group)
        return Piece(*self._both(group), None)

    def targets(self, group):
        return self._both(group)[1], None

    def _both(self, group):
        found = np.arange(self.starts[group], self.starts[group + 1], dtype=np.float64)
        return found[:, None], found.astype(np.int64) % 2


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    window=st.integers(1, 5),
    batch=st.integers(1, 12),
    size=st.integers(1, 4),
    epoch_rows=st.none() | st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_every_row_comes_once_a_pass(sizes, window, batch, size, epoch_rows, seed):
    """Over all processes together, whatever the groups, windows, batches and epochs are."""
    total = sum(sizes)
    batch = min(max(batch, size), total)  # `fit` refuses fewer rows than processes
    size = min(size, batch)
    steps = -(-total // batch)
    everyone = []
    for rank in range(size):
        data = DiskData(Numbers(sizes), window=window, epoch_rows=epoch_rows)
        generator = torch.Generator().manual_seed(seed)
        found = data.bind(NET, batch, generator, Part(rank, size))
        seen = []
        while len(seen) < 2 * steps:
            epoch = list(found)
            assert len(epoch) == len(found)
            seen += epoch
        everyone.append(seen[: 2 * steps])
    shared = len(sizes) >= size
    for part in (slice(0, steps), slice(steps, 2 * steps)):
        given_rows = []
        for seen in everyone if shared else everyone[:1]:
            own = [b for b in seen[part] if getattr(b, "share", 1.0) > 0]
            given_rows += [int(v) for b in own for v in b.x[:, 0]]
        assert sorted(given_rows) == list(range(total))
    for step in range(2 * steps) if shared and size > 1 else ():
        shares = [seen[step].share for seen in everyone]
        counts = [len(seen[step].y) if seen[step].share else 0 for seen in everyone]
        assert sum(shares) == pytest.approx(1)
        assert shares == pytest.approx([count / sum(counts) for count in counts])
        assert sum(counts) <= batch + size


def test_a_window_is_shuffled_and_no_more_is_in_memory():
    data = DiskData(Numbers([10] * 8), window=2)
    found = data.bind(model(features=1), 10, torch.Generator().manual_seed(0))
    first, second = ([b.x[:, 0].long().tolist() for b in found] for _ in range(2))
    assert first != second, "another order each pass"
    groups = [{row // 10 for batch in first[k : k + 2] for row in batch} for k in range(0, 8, 2)]
    assert [len(two) for two in groups] == [2, 2, 2, 2]
    assert first[0] != sorted(first[0])
    assert {row // 10 for row in first[0]} == groups[0], "rows of both groups in one batch"
    assert sorted(data.groups.reads[:8]) == sorted(data.groups.reads[8:16]) == list(range(8))
    in_order = data.bind(model(features=1), 7, None)
    assert [int(v) for b in in_order for v in b.x[:, 0]] == list(range(80))


def test_groups_are_dealt_evenly():
    dealt = deal(list(range(7)), [5, 5, 5, 5, 5, 5, 5], 3)
    assert [len(groups) for groups in dealt] == [3, 2, 2]
    assert sorted(g for groups in dealt for g in groups) == list(range(7))


def test_arrays_and_parquet_and_memory_give_the_same_model(tmp_path):
    """One window that holds everything, one batch a pass: nothing is left to the shuffle."""
    x, y = rows(60)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "many").mkdir()
    for number, start in enumerate(range(0, 60, 25)):
        np.save(tmp_path / "many" / f"{number}.npy", x[start : start + 25])
    table = pa.table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y})
    (tmp_path / "folder").mkdir()
    pq.write_table(table[:33], tmp_path / "folder" / "1.parquet", row_group_size=10)
    pq.write_table(table[33:], tmp_path / "folder" / "2.parquet", row_group_size=10)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    sources = {
        "memory": (x, y),
        "files": DiskData.arrays(tmp_path / "x.npy", tmp_path / "y.npy", group_rows=7),
        "maps": DiskData.arrays(mapped, np.load(tmp_path / "y.npy", mmap_mode="r")),
        "many": DiskData.arrays(tmp_path / "many", tmp_path / "y.npy", group_rows=7),
        "parquet": DiskData.parquet(tmp_path / "folder", "y"),
    }
    scores = {}
    for name, data in sources.items():
        net = model().double()
        options = {"epochs": 4, "batch_size": 60, "validation": data, "progress": False}
        result = ub.fit(net, data, **options)
        scores[name] = [row["val_log_score"] for row in result.history]
    for name, found in scores.items():
        assert found == pytest.approx(scores["memory"], rel=1e-6), name


def test_training_goes_on_in_the_same_pass(tmp_path):
    """Epochs that are parts of a pass, validation and weights: cut in two it is the same run."""
    path = written(tmp_path, weights=True)

    def run(epochs, **options):
        data = DiskData.parquet(path, "y", weights="w", window=3, epoch_rows=32)
        train, held = data.split(0.2, seed=4)
        net = model()
        result = ub.fit(
            net, train, validation=held, epochs=epochs, batch_size=8, progress=False, **options
        )
        return net.state_dict(), result

    whole, result = run(7)
    assert result.history[-1]["step"] == 7 * 4
    file = tmp_path / "run.checkpoint"
    run(3, checkpoint=file)
    cut, _ = run(7, checkpoint=file, resume=True)
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    os.rename(path, tmp_path / "old.parquet")
    written(tmp_path, count=104, weights=True)
    with pytest.raises(ub.FileError, match=r"data\.rows was 80, is 83|data\..* was"):
        run(8, checkpoint=file, resume=True)


def test_a_split_is_by_rows_and_whole(tmp_path):
    data = DiskData.parquet(written(tmp_path), "y", columns=["a"])
    parts = data.split(0.25, seed=1)
    net = model(features=1)
    train, held = ([int(v) for b in p.bind(net, 9, None) for v in b.x[:, 0]] for p in parts)
    assert sorted(train + held) == list(range(100))
    assert len(held) == len(parts[1]) == 25
    again = data.split(0.25, seed=1)[1]
    assert [int(v) for b in again.bind(net, 9, None) for v in b.x[:, 0]] == held


def test_several_models_and_held_out_rows_from_disk(tmp_path):
    train, held = DiskData.parquet(written(tmp_path), "y", columns=["b", "c"]).split(0.3)
    nets = [
        ub.UDN(ub.Dense(2, 5, 2), ub.Categorical(2), ub.TruncatedNormal(2, 1), seed=s)
        for s in (1, 2)
    ]
    options = {"epochs": 2, "batch_size": 16, "depth_rule": ub.HeldOutAscent()}
    results = ub.fit(nets, train, validation=held, **options, progress=False)
    assert [len(result.history) for result in results] == [2, 2]


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("b", None, r"the column 'b' has missing values \(.*rows.parquet, row group 8\)"),
        ("b", float("nan"), r"row group 8: inputs must be finite, got 1 NaN"),
        ("y", 7, "row group 8: .*7"),
        ("a", "text", r"the column 'a' of .*rows.parquet holds string, not numbers: leave it out"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, column, value, told):
    path = written(tmp_path)
    table = pq.read_table(path).to_pylist()
    table[99][column] = value
    if isinstance(value, str):
        table = [{**row, column: str(row[column])} for row in table]
    pq.write_table(pa.Table.from_pylist(table), path, row_group_size=12)
    with pytest.raises(ValueError, match=told):
        ub.fit(model(), DiskData.parquet(path, "y"), epochs=1, batch_size=20, progress=False)


def test_wrong_sources_are_refused_in_a_line(tmp_path):
    x, y = rows(20)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y[:-1])
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npy").write_text("no array")
    for call, told in (
        (lambda: DiskData.arrays(tmp_path / "x.npy", tmp_path / "y.npy"), "20 rows of inputs, 19"),
        (lambda: DiskData.arrays(tmp_path / "no.npy", y), "there is no file"),
        (lambda: DiskData.arrays(tmp_path / "empty", y), r"holds no \.npy files"),
        (lambda: DiskData.arrays(tmp_path / "text.npy", y), r"is no \.npy file"),
        (lambda: DiskData.arrays([1, 2], y), "paths of .npy files"),
        (lambda: DiskData.parquet(tmp_path / "empty", "y"), r"holds no \.parquet files"),
        (lambda: DiskData.parquet(tmp_path / "text.npy", "y"), "cannot be read as Parquet"),
        (lambda: DiskData.parquet(written(tmp_path), "z"), "has no column 'z'"),
        (lambda: DiskData.arrays(x, y, window=0), "window must be at least 1"),
        (lambda: DiskData.arrays(x, y).split(1.0), "fraction must be between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=told):
            call()


def test_memory_holds_a_window_and_no_more(tmp_path):
    """256 MiB of inputs, of which 8 MiB at a time are in memory."""
    script = """
import resource, sys, numpy as np, torch, unbounded as ub
folder = sys.argv[1]
np.lib.format.open_memmap(f"{folder}/x.npy", "w+", np.float32, (1 << 18, 256))
np.save(f"{folder}/y.npy", np.arange(1 << 18) % 2)
net = ub.UDN(ub.Dense(256, 2, 2), ub.Categorical(2), seed=0)
data = ub.DiskData.arrays(f"{folder}/x.npy", f"{folder}/y.npy", group_rows=2048, window=4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(len(b.y) for b in data.bind(net, 8192, torch.Generator().manual_seed(0)))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    told = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    count, more = map(int, told.stdout.split())
    assert count == 1 << 18
    assert more < 80 << 10, f"{more >> 10} MiB more for a window of 8 MiB"
