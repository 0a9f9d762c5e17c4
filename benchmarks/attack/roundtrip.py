"""Keys, labels and numbers through every format: they come out as they went in."""

import csv
import datetime
import decimal
import gzip
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.attack import fixtures
from benchmarks.attack.hostile import run_command
from unbounded.tables import TableModel

# What a text file can hold: no NUL, no half of a surrogate pair.
_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
_ODD = st.sampled_from(
    ["NA", "none", "-", "007", "1E5", "1.10", "nan", "", " x ", '"', "=1", "a,b"]
)
TEXTS = st.one_of(_ODD, st.text(_CHARACTERS, max_size=12))
OUTPUTS = [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz"]


def keys_of_text(folder: Path, keys: list[str], ending: str, out: str) -> None:
    """Texts of a CSV, TSV or Parquet file through `predict --keep`."""
    table = _write_texts(folder / f"in{ending}", keys)
    found = _kept(folder, table, out)
    assert found == keys, (found, keys)


def keys_of_arrow(folder: Path, keys: Any, out: str) -> None:
    """A typed column of a Parquet file through `predict --keep`."""
    import pyarrow as pa
    from pyarrow import parquet

    frame = fixtures.frame().iloc[: len(keys)].drop(columns="y")
    table = pa.Table.from_pandas(frame, preserve_index=False).append_column("key", keys)
    parquet.write_table(table, folder / "in.parquet")
    path = _predicted(folder, folder / "in.parquet", out)
    if out == ".parquet":
        found = parquet.read_table(path).column("key").combine_chunks()
        assert found.type == keys.type, (found.type, keys.type)
        assert found.equals(keys), (found, keys)
        return
    found = [_read(text, keys.type) for text in _column(path, "key")]
    values = keys.to_pylist()
    if not out.startswith(".jsonl"):  # an empty field is all that CSV has for a missing text
        values = ["" if value is None else value for value in values]
    assert found == values, (found, values)


def numbers(folder: Path, rows: int, out: str, kind: str) -> None:
    """What is predicted, read back from a file, is what the library predicts."""
    frame = fixtures.frame(kind, rows, 5).drop(columns="y")
    frame.to_csv(folder / "in.csv", index=False)
    model = TableModel.load(_models()[kind], "cpu")
    path = _predicted(folder, folder / "in.csv", out, kind, keep=False)
    for name, column in model.predict(folder / "in.csv").items():
        found = _column(path, str(name))
        values = column.tolist()
        assert (found if isinstance(values[0], str) else [float(v) for v in found]) == values


def labels(folder: Path, names: list[str], ending: str) -> None:
    """Classes are named as they are written, and no two of them fall together."""
    names = sorted(set(names))
    y = [names[row % len(names)] for row in range(10 * len(names))]
    table = _write_labels(folder / f"in{ending}", y)
    short = {"epochs": 1, "width": 4, "references": False, "task": "classification"}
    model = TableModel.fit(table, "y", held_out=0.0, device="cpu", **short)
    assert sorted(model.target.classes) == names, (model.target.classes, names)
    assert set(model.predict(table)["prediction"]) <= set(names)


def _properties() -> list[tuple[str, Any, Callable[..., None]]]:
    import pyarrow as pa

    integers = st.integers(-(2**63), 2**63 - 1)
    ends = st.sampled_from(OUTPUTS)

    def typed(values: Any, kind: Any) -> Any:
        some = st.lists(st.one_of(st.none(), values), min_size=1, max_size=9)
        return st.tuples(some.map(lambda v: pa.array(v, kind)), ends)

    texts = st.lists(TEXTS, min_size=1, max_size=9)
    times = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
    cents = st.decimals(places=2, min_value=-(10**15), max_value=10**15)
    clear = st.text(_CHARACTERS, min_size=1, max_size=9).map(str.strip)
    names = st.one_of(st.sampled_from(["007", "7", "1E5", "100000", "1.10", "1.1"]), clear)
    several = st.lists(names.filter(_is_value), min_size=2, max_size=6, unique=True)
    big = st.integers(2**53, 2**62).map(lambda n: [str(n), str(n + 1), str(n + 2)])
    inputs = st.sampled_from([".csv", ".tsv", ".parquet", ".csv.gz"])
    whole = st.tuples(st.integers(1, 40), ends, st.sampled_from(["number", "classes"]))
    return [
        ("keys: texts", st.tuples(texts, inputs, ends), keys_of_text),
        ("keys: int64", typed(integers, pa.int64()), keys_of_arrow),
        ("keys: uint64", typed(st.integers(0, 2**64 - 1), pa.uint64()), keys_of_arrow),
        ("keys: times", typed(times, pa.timestamp("us")), keys_of_arrow),
        ("keys: decimals", typed(cents, pa.decimal128(20, 2)), keys_of_arrow),
        ("keys: texts in Parquet", typed(TEXTS, pa.string()), keys_of_arrow),
        ("numbers", whole, numbers),
        ("labels", st.tuples(st.one_of(several, big), inputs), labels),
    ]


def run(examples: int, number: int) -> list[tuple[str, int, str]]:
    """(property, examples tried, fault in words or "") for each."""
    results = []
    for name, strategy, check in _properties():
        fewer = max(examples // 5, 1) if check is labels else examples  # each trains a network
        results.append((name, *_examine(strategy, check, fewer, number)))
    return results


def _examine(
    strategy: Any, check: Callable[..., None], examples: int, number: int
) -> tuple[int, str]:
    tried = 0

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def holds(values: Any) -> None:
        nonlocal tried
        tried += 1
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder), *values)

    try:
        holds()
    except Exception as error:
        return tried, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return tried, ""


_MODELS: dict[str, Path] = {}


def _models() -> dict[str, Path]:
    if not _MODELS:
        folder = Path(tempfile.mkdtemp())
        for kind in ("number", "classes"):
            _MODELS[kind] = folder / f"{kind}.udn"
            fixtures.table_model(kind).save(_MODELS[kind])
    return _MODELS


def _predicted(
    folder: Path, table: Path, out: str, kind: str = "number", keep: bool = True
) -> Path:
    path = folder / f"out{out}"
    command = ["predict", str(_models()[kind]), str(table), "--out", str(path)]
    status, words = run_command([*command, *(["--keep", "key"] if keep else [])])
    assert status == 0, words
    return path


def _kept(folder: Path, table: Path, out: str) -> list[Any]:
    return _column(_predicted(folder, table, out), "key")


def _column(path: Path, name: str) -> list[Any]:
    """A column of a file that was written, by other readers than the library's."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        found: list[Any] = parquet.read_table(path).column(name).to_pylist()
        return found
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        if ".jsonl" in path.suffixes:
            text = file.read()
            lines = [line for line in text.split("\n") if line]
            return [json.loads(line, parse_float=decimal.Decimal)[name] for line in lines]
        rows = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        return [row[name] for row in rows]


def _write_texts(path: Path, keys: list[str]) -> Path:
    frame = fixtures.frame().iloc[: len(keys)].drop(columns="y").astype(str)
    return _write(path, frame.assign(key=keys))


def _write_labels(path: Path, y: list[str]) -> Path:
    import pandas as pd

    a = [math.sin(row) for row in range(len(y))]
    return _write(path, pd.DataFrame({"a": a, "y": y}))


def _write(path: Path, frame: Any) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
        return path
    mark = "\t" if path.suffix == ".tsv" else ","
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=mark, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(frame.columns)
        writer.writerows(frame.itertuples(index=False, name=None))
    return path


def _read(written: Any, kind: Any) -> Any:
    """A value of a text file as a column of this type has it."""
    import pyarrow as pa

    if written is None or written == "":
        return written
    if pa.types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(written)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(str(written))
    return int(written) if pa.types.is_integer(kind) else written


def _is_value(text: str) -> bool:
    from unbounded.tables.reading import MISSING

    return bool(text) and text.strip() == text and text not in MISSING
