"""Tables that nobody means well with, through every command: it works, or one line says why."""

import contextlib
import gzip
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attack import fixtures

_CELLS = [
    *["", " ", "NA", "nan", "-", "none", "null", "?", "0", "1", "-1", "1.5", "1e308", "1e400"],
    *["-inf", "inf", "1_000", "1,5", "0x10", "007", "1E5", "٣", "−4", "9" * 30, "1e-320", "5%"],
    *["2021-02-30", "3/4/2021", "0001-01-01", "9999-12-31T23:59:59.999999999Z", "today"],
    *["true", "yes", "True", "=1+1", "@x", "+1", "a,b", 'say "hi"', "line\nbreak", "\r", "\x00"],
    *["\x1b[31mred", "\u202eback", "e\u0301", "\ufeff", "𝕏" * 9, "x" * 5000, "<script>", "{", "\\"],
    *["Rome", "Oslo", "'", '"', ";", "|", "\t", "#", "\u2028"],
]
_NAMES = ["a", "b", "city", "day", "y", "key", "<50k", "", " a", "A", "p_no", "mean", "y\n", "\x1b"]
_ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32", "cp1252"]


def table(random: np.random.Generator) -> tuple[str, bytes]:
    """A hostile table: an ending and its bytes."""
    kind = random.integers(10)
    if kind < 5:
        ending, data = ".csv", _texts(random)
    elif kind < 7:
        ending, data = ".csv", _damaged(random, fixtures.frame().to_csv(index=False).encode())
    elif kind < 9:
        ending, data = ".parquet", _parquet(random)
    else:
        ending, data = ".csv", random.bytes(int(random.integers(0, 3000)))
    if random.random() < 0.15:
        ending, data = ending + ".gz", gzip.compress(data)
        if random.random() < 0.5:
            data = _damaged(random, data)
    return ending, data


def _texts(random: np.random.Generator) -> bytes:
    """Cells and names of the kind that break readers; often with the right names."""
    width = int(random.integers(1, 8))
    names = [str(name) for name in random.choice(_NAMES, width)]
    if random.random() < 0.7:
        names = ["a", "b", "city", "day", "y", *names[: int(random.integers(0, 2))]]
    few = [str(cell) for cell in random.choice(_CELLS, 3)]
    rows = int(random.choice([0, 1, 2, 9, 40]))
    lines = [names]
    for _ in range(rows):
        row = [few[int(random.integers(3))] for _ in names]
        if random.random() < 0.5:
            row = [f"{random.normal():.4g}" for _ in names]
        if random.random() < 0.1:
            row = [str(cell) for cell in random.choice(_CELLS, len(names))]
        if random.random() < 0.02:
            row = row[:-1] if random.random() < 0.5 else [*row, "more"]
        lines.append(row)
    mark = str(random.choice([",", ",", ",", ";", "\t", "|"]))
    end = str(random.choice(["\n", "\n", "\r\n", "\r"]))
    quote = random.random() < 0.7
    text = end.join(mark.join(_quoted(cell, mark) if quote else cell for cell in r) for r in lines)
    text = end * int(random.integers(0, 2)) + text + end * int(random.integers(0, 3))
    encoding = str(random.choice(_ENCODINGS)) if random.random() < 0.2 else "utf-8"
    return text.encode(encoding, "replace")


def _quoted(cell: str, mark: str) -> str:
    if any(c in cell for c in (mark, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _parquet(random: np.random.Generator) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    rows = int(random.choice([0, 1, 5, 40]))

    def column() -> Any:
        kind = random.integers(9)
        if kind == 0:
            return pa.array(random.integers(-(2**63), 2**63 - 1, rows))
        if kind == 1:
            return pa.array([None] * rows, pa.null())
        if kind == 2:
            return pa.array([random.bytes(4) for _ in range(rows)], pa.binary())
        if kind == 3:
            return pa.array([[1, 2], None][: min(rows, 2)] * (rows // 2 + 1), pa.list_(pa.int8()))[
                :rows
            ]
        if kind == 4:
            return pa.array(random.integers(-(2**62), 2**62, rows), pa.timestamp("ns", "UTC"))
        if kind == 5:
            return pa.array([str(c) for c in random.choice(_CELLS, rows)]).dictionary_encode()
        if kind == 6:
            return pa.array(random.choice([0.0, np.nan, np.inf, -1e308], rows))
        if kind == 7:
            return pa.array([bool(b) for b in random.integers(0, 2, rows)])
        return pa.array([str(c) for c in random.choice(_CELLS, rows)])

    names = ["a", "b", "city", "day", "y"]
    if random.random() < 0.3:
        names = [str(name) for name in random.choice(_NAMES, 5)]
    real = pa.Table.from_pandas(fixtures.frame(), preserve_index=False).slice(0, rows)
    rows = real.num_rows
    columns = [
        real.column(name) if name in real.column_names and random.random() < 0.5 else column()
        for name in names
    ]
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns, names=names), sink)
    data = sink.getvalue()
    return _damaged(random, data) if random.random() < 0.4 else data


def _damaged(random: np.random.Generator, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        if not found:
            break
        at, kind = int(random.integers(len(found))), random.integers(4)
        if kind == 0:
            found[at] = int(random.integers(256))
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            del found[at : at + int(random.integers(1, 30))]
        else:
            found[at:at] = random.bytes(int(random.integers(1, 9)))
    return bytes(found)


class Hostile:
    """Commands on hostile tables."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.models = []
        for kind in ("number", "classes"):
            path = folder / f"{kind}.udn"
            fixtures.table_model(kind).save(path)
            self.models.append(path)

    def case(self, number: int) -> str:
        """One table, one command."""
        random = np.random.default_rng([self.seed, number])
        ending, data = table(random)
        place = self.folder / f"hostile-{number}"
        place.mkdir()
        path = place / f"table{ending}"
        path.write_bytes(data)
        command, outputs = self._command(random, path)
        before = set(place.iterdir())
        status, words = run_command(command)
        after = set(place.iterdir()) - before
        fault = ""
        if "Traceback" in words or "unexpected" in words or status not in (0, 2):
            fault = f"exit {status}: {words[-300:]}"
        elif status == 0 and not all(p.exists() for p in outputs):
            fault = "exit 0 without its files"
        elif status != 0 and after:
            fault = f"exit {status}, and {sorted(p.name for p in after)} was written"
        elif after - set(outputs):
            fault = f"left {sorted(p.name for p in after - set(outputs))}"
        elif status == 2 and len(words.strip().splitlines()) > 20:
            fault = "the error is no single line"
        if fault:
            return f"{' '.join(command)}: {fault}"
        shutil.rmtree(place)
        return ""

    def _command(self, random: np.random.Generator, path: Path) -> tuple[list[str], list[Path]]:
        model = self.models[int(random.integers(2))]
        kind = random.integers(10)
        if kind < 3:
            target = str(random.choice(["y", "y", "a", "city", "day"]))
            out = path.with_name("out.udn")
            short = ["--epochs", "1", "--width", "4", "--no-references", "--device", "cpu"]
            command = ["fit", str(path), "--target", target, "--out", str(out), *short]
            if random.random() < 0.3:
                command += ["--task", str(random.choice(["classification", "regression"]))]
            if random.random() < 0.7:
                return [*command, "--no-report"], [out]
            return command, [out, out.with_suffix(".html")]
        if kind < 7:
            out = path.with_name("out" + str(random.choice([".csv", ".jsonl", ".parquet", ".tsv"])))
            command = ["predict", str(model), str(path), "--out", str(out)]
            if random.random() < 0.5:
                command += ["--keep", str(random.choice(["city", "day", "key", "y"]))]
            return command, [out]
        if kind == 7:
            return ["evaluate", str(model), str(path), "--json"], []
        if kind == 8:
            out = path.with_name("out.html")
            return ["report", str(model), str(path), "--out", str(out)], [out]
        return ["inspect", str(path)], []


def run_command(command: list[str]) -> tuple[int, str]:
    """Exit status and all words of a command, in this process."""
    from unbounded.cli import main

    words = io.StringIO()
    os.environ.pop("UNBOUNDED_TRACEBACK", None)
    with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
        try:
            status = main(command)
        except SystemExit as end:
            status = int(end.code or 0)
    return status, words.getvalue()
