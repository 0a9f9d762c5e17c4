"""What is written is exact, where it is written is safe, and what is printed harms no terminal."""

import csv
import datetime
import decimal
import errno
import gzip
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import unbounded as ub
from helpers import classes, classifier
from unbounded import atomic, printing
from unbounded.cli import main, outputs
from unbounded.cli.predict import _sink
from unbounded.tables import Table, TableModel
from unbounded.tables.reading import TableError
from unbounded.tables.writing import Sink

QUICK = ["--epochs", "2", "--width", "4", "--no-references"]
EVIL = "rot\x1b[31m\x9b\u202e"
KEYS = ["NA", "none", "-", "007", "1E5", "1.10", " a ", "  ", "", '"q"', "a\nb", "a\r\nb", "=1"]
KEYS += ["é,;"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small table of classes with hostile names, and a model of it."""
    folder = tmp_path_factory.mktemp("writing")
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": random.normal(size=60), f"town{EVIL}": random.choice(["a", EVIL], 60)}
    )
    frame["y"] = np.where(frame["x"] > 0, f"{EVIL}é", "=blue")
    frame.to_csv(folder / "t.csv", index=False)
    arguments = ["fit", str(folder / "t.csv"), "--target", "y", *QUICK, "--no-report", "--quiet"]
    assert main([*arguments, "--out", str(folder / "m.udn")]) == 0
    frame = frame.drop(columns="y").head(len(KEYS))
    frame.insert(0, "key", KEYS)
    frame.to_csv(folder / "new.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    return folder


def run(*arguments) -> int:
    return main([str(a) for a in arguments])


def refused(capsys, *arguments) -> str:
    """The one line of an error."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"unbounded: error: [^\n]*\n", err), err
    return err


def read_back(path: Path) -> tuple[list[str], list[list]]:
    """Names and rows of a table of any kind, by other programs' readers."""
    kind = path.name.split(".")[1]
    if kind == "parquet":
        table = parquet.read_table(path)
        return table.column_names, [list(row.values()) for row in table.to_pylist()]
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        if kind == "jsonl":
            rows = [json.loads(line) for line in file]
            return list(rows[0]), [list(row.values()) for row in rows]
        names, *rows = csv.reader(file, delimiter="\t" if kind == "tsv" else ",")
        return names, rows


def written(folder, kind: str, columns: dict) -> tuple[list[str], list[list]]:
    path = Path(folder) / f"out.{kind}"
    if kind == "parquet":
        sink = Sink(path, kind)
        sink.write(columns)
        sink.close()
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            Sink(file, kind).write(columns)
    return read_back(path)


# Exact values

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6
) | st.sampled_from(KEYS)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(TEXTS, TEXTS, FLOATS), min_size=1, max_size=5),
    st.lists(TEXTS.filter(bool), min_size=2, max_size=2, unique=True).filter(
        lambda n: "m" not in n
    ),
)
@example([(" \t", "\ufeff", 5e-324), ("'", '""', 2.7e-12)], ["\ufeffname", "100%s"])
@example([("\r", "\n", 0.1 + 0.2), ("\x1b", "\x85", -0.0)], [" a ", 'b"\n'])
def test_texts_names_and_numbers_come_back_from_every_format(rows, names):
    one, two, numbers = zip(*rows, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.csv"
        with source.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(
                [["a", "b"], *((row[0], row[1]) for row in rows)]
            )
        pieces = [raw for _, raw in Table(source).chunks_with(["b", "a"])]
        kept = [array for raw in pieces for array in (raw["a"], raw["b"])]
        columns = dict(zip([*names, "m"], [*kept, np.array(numbers)], strict=True))
        for kind in ("csv", "tsv", "jsonl", "parquet"):
            found, back = written(folder, kind, columns)
            assert found == [*names, "m"]
            assert [tuple(row[:2]) for row in back] == list(zip(one, two, strict=True))
            got = np.array([float(row[2]) for row in back])
            assert got.tobytes() == np.array(numbers).tobytes()


def test_blanks_around_fields_belong_to_them_unless_they_stand_before_quotes(tmp_path):
    (tmp_path / "a.csv").write_text("k,x\n  a,1\nb  , 2\n   ,3\n,4\n")
    ((_, raw),) = Table(tmp_path / "a.csv").chunks_with(["k", "x"])
    assert raw["k"].to_pylist() == ["  a", "b  ", "   ", ""]
    assert raw["x"].to_pylist() == ["1", " 2", "3", "4"]
    (tmp_path / "b.csv").write_text('k, x\n  a, "1,5"\nb  , 2\n')
    (((_, frame), raw),) = Table(tmp_path / "b.csv").chunks_with(["k", "x"])
    assert raw["x"].to_pylist() == ["1,5", "2"]
    assert frame["k"].tolist() == ["a", "b"]


def arrow_columns() -> dict:
    """Two rows and a gap of each kind that must not lose anything."""
    big = decimal.Decimal("12345678901234567890.1234567890")
    nested = pyarrow.list_(pyarrow.struct([("a", pyarrow.int8())]))
    return {
        "int": pyarrow.array([2**53 + 1, None, -(2**63)]),
        "uint": pyarrow.array([2**64 - 1, None, 0], pyarrow.uint64()),
        "decimal": pyarrow.array([big, None, decimal.Decimal("1.10")], pyarrow.decimal128(38, 10)),
        "zoned": pyarrow.array([1, None, 10**18 + 1], pyarrow.timestamp("ns", "Europe/Rome")),
        "naive": pyarrow.array([-1, None, 10**15 + 1], pyarrow.timestamp("us")),
        "date": pyarrow.array([datetime.date(2021, 3, 4), None, datetime.date(1, 1, 1)]),
        "time": pyarrow.array([1, None, 86399999999999], pyarrow.time64("ns")),
        "span": pyarrow.array([1_500_000_001, None, -1], pyarrow.duration("ns")),
        "level": pyarrow.array(["NA", None, "-"]).dictionary_encode(),
        "float": pyarrow.array([0.1, None, 5.0], pyarrow.float32()),
        "flag": pyarrow.array([True, None, False]),
        "text": pyarrow.array(["007", None, ""], pyarrow.large_string()),
        "bytes": pyarrow.array([b"\x00\xff", None, b""]),
        "nested": pyarrow.array([[{"a": 1}], None, []], nested),
    }


def test_arrow_values_stay_what_they_were(tmp_path):
    table = pyarrow.table(arrow_columns())
    parquet.write_table(table, tmp_path / "in.parquet")
    source = Table(tmp_path / "in.parquet")
    raw = [kept for _, kept in source.chunks_with(table.column_names, rows=2)]
    sink = Sink(tmp_path / "out.parquet", "parquet")
    for kept in raw:
        sink.write(kept)
    sink.close()
    back = parquet.read_table(tmp_path / "out.parquet")
    assert back.schema.types == table.schema.types
    assert back.equals(table.cast(back.schema))
    plain = {name: values for name, values in arrow_columns().items() if name != "nested"}
    expected = {
        "int": [2**53 + 1, None, -(2**63)],
        "uint": [2**64 - 1, None, 0],
        "decimal": ["12345678901234567890.1234567890", None, "1.1000000000"],
        "zoned": ["1970-01-01T00:00:00.000000001Z", None, "2001-09-09T01:46:40.000000001Z"],
        "naive": ["1969-12-31T23:59:59.999999", None, "2001-09-09T01:46:40.000001"],
        "date": ["2021-03-04", None, "0001-01-01"],
        "time": ["00:00:00.000000001", None, "23:59:59.999999999"],
        "span": ["PT1.500000001S", None, "-PT0.000000001S"],
        "level": ["NA", None, "-"],
        "float": [float(np.float32(0.1)), None, 5.0],
        "flag": [True, None, False],
        "text": ["007", None, ""],
        "bytes": ["AP8=", None, ""],
    }
    names, rows = written(tmp_path, "jsonl", plain)
    assert dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) == expected
    names, rows = written(tmp_path, "csv", plain)
    texts = [["" if v is None else str(v) for v in values] for values in expected.values()]
    assert dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) == dict(
        zip(expected, texts, strict=True)
    )
    with pytest.raises(TableError, match=r"--keep nested: .*only go into a Parquet file"):
        written(tmp_path, "csv", {"nested": table["nested"].chunk(0)})


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "jsonl", "parquet"])
def test_kept_keys_travel_through_predict(files, tmp_path, capsys, ending):
    town = f"town{EVIL}"
    out = tmp_path / f"p.{ending}"
    base = ("predict", files / "m.udn", files / "new.csv", "--keep", "key", "--keep", town)
    assert run(*base, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["columns"][:2] == ["key", town]
    names, rows = read_back(out)
    assert names[:3] == ["key", town, "prediction"]
    assert [row[0] for row in rows] == KEYS
    model = TableModel.load(files / "m.udn", "cpu")
    expected = model.predict(files / "new.csv")
    assert [row[2] for row in rows] == expected["prediction"].tolist()
    probability = [float(row[3]) for row in rows]
    assert probability == expected.iloc[:, 1].tolist()  # to the last bit


def test_formulas_are_escaped_for_spreadsheets_if_asked(files, tmp_path, capsys):
    cells = ["=1+1", "+1", "-2.5e3", "-x", "@a", "\tb", " =c", "a=b", "\rd", "+"]
    expected = ["'=1+1", "+1", "-2.5e3", "'-x", "'@a", "'\tb", "' =c", "a=b", "'\rd", "'+"]
    with (tmp_path / "s.csv").open("w", newline="") as file:
        sink = Sink(file, "csv", spreadsheet=True)
        sink.write({"=name": np.array(cells, dtype=object), "n": -np.ones(len(cells))})
    names, rows = read_back(tmp_path / "s.csv")
    assert names == ["'=name", "n"]
    assert [row[0] for row in rows] == expected
    assert {row[1] for row in rows} == {"-1.0"}
    base = ("predict", files / "m.udn", files / "new.csv", "--keep", "key")
    assert run(*base, "--spreadsheet", "--out", tmp_path / "p.csv", "--quiet") == 0
    _, rows = read_back(tmp_path / "p.csv")
    assert [row[0] for row in rows] == [{"-": "'-", "=1": "'=1"}.get(key, key) for key in KEYS]
    assert run(*base, "--out", tmp_path / "plain.csv", "--quiet") == 0
    assert [row[0] for row in read_back(tmp_path / "plain.csv")[1]] == KEYS
    said = refused(capsys, *base, "--spreadsheet", "--out", tmp_path / "p.parquet")
    assert "--spreadsheet is for CSV and TSV, not for Parquet" in said


# Terminals


class Stream(io.TextIOWrapper):
    """A standard stream of a given encoding, perhaps a terminal."""

    def __init__(self, encoding: str, terminal: bool = False):
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode("utf-8")


RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_every_command_prints_to_any_terminal(files, tmp_path, monkeypatch, encoding):
    """Names with escapes are shown escaped; JSON stays JSON and gives the names as they are."""
    out = tmp_path / "m.udn"
    fit = ("fit", files / "t.csv", "--target", "y", *QUICK, "--out", out)
    for command in (
        fit,
        ("inspect", out),
        ("evaluate", out, files / "t.csv", "--out", tmp_path / "e.html"),
        ("report", out, "--out", tmp_path / "r.html"),
        ("predict", out, files / "new.csv", "--keep", "key"),
        ("predict", out, files / f"{EVIL}.csv"),
        ("fit", files / "t.csv", "--target", EVIL, "--out", out),
        ("fit", files / "t.csv", "--target", "y", "--out", out, f"--{EVIL}"),
        ("fit", "--help"),
    ):
        for more in ([], ["--json"]):
            if "--help" in command and more:
                continue
            streams = Stream(encoding, terminal=True), Stream(encoding)
            monkeypatch.setattr(sys, "stdout", streams[0])
            monkeypatch.setattr(sys, "stderr", streams[1])
            try:
                status = run(*command, *more)
            except SystemExit as end:
                status = end.code
            streams[0].flush()
            said, err = (s.buffer.getvalue().decode(encoding) for s in streams)
            assert "Unicode" not in err
            assert not RAW.search(said + err), (command, said, err)
            if EVIL in " ".join(map(str, command)):
                assert status == 2
                assert "\\x1b" in err
                continue
            assert status == 0, err
            if more and command[0] != "predict":
                found = json.loads(said)
                if command == fit:
                    assert found["classes"] == ["=blue", f"{EVIL}é"]
            elif more:
                assert [json.loads(line)["key"] for line in said.splitlines()] == KEYS


def test_words_keep_a_readable_form():
    stream = Stream("ascii")
    printing.show("q(ℓ) – 1 … 2 ≥ é \x1b[31m \u2066\udc80\ttab", stream)
    assert stream.text() == "q(l) - 1 ... 2 >= \\xe9 \\x1b[31m \\u2066\\udc80\ttab\n"
    stream = Stream("utf-8")
    printing.show("ℓ \x9b\udc80", stream)
    assert stream.text() == "ℓ \\x9b\\udc80\n"
    assert printing.one_line("a\nb\t\r") == "a\\nb\\t\\r"


def test_predictions_on_a_pipe_are_bytes_as_they_are(files, monkeypatch):
    stream = Stream("ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run("predict", files / "m.udn", files / "new.csv", "--keep", "key") == 0
    _, *rows = csv.reader(io.StringIO(stream.text(), newline=""))
    assert [row[0] for row in rows] == KEYS
    assert EVIL in stream.text()


# Where it is written


def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to("there/real")
    atomic.write_text(atomic.check_target(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    dangling = tmp_path / "dangling"
    dangling.symlink_to("there/made")
    atomic.write_text(atomic.check_target(dangling), "made")
    assert dangling.is_symlink()
    assert (tmp_path / "there" / "made").read_text() == "made"
    assert {p.name for p in (tmp_path / "there").iterdir()} == {"real", "made"}
    (tmp_path / "nowhere").symlink_to("none/file")
    with pytest.raises(FileNotFoundError, match=r"cannot write .*none does not exist"):
        atomic.check_target(tmp_path / "nowhere")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for write in (atomic.check_target, lambda path: atomic.write_text(path, "x")):
        with pytest.raises(OSError, match=r"cannot write .*loop: too many"):
            write(loop)
    assert loop.is_symlink()


def test_a_fifo_is_fed_and_stays(files, tmp_path):
    fifo, found = tmp_path / "fifo.csv", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    assert run("predict", files / "m.udn", files / "new.csv", "--out", fifo, "--quiet") == 0
    reader.join(10)
    assert found[0].startswith(b"prediction,p_")
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert {p.name for p in tmp_path.iterdir()} == {"fifo.csv"}


@pytest.fixture
def devices(tmp_path):
    """A null and a full device that nobody else uses: whoever replaces them breaks no machine."""
    found = [tmp_path / "null", tmp_path / "full"]
    try:
        for path, number in zip(found, (3, 7), strict=True):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, number))
        found[0].write_text("x")
    except OSError:
        if os.geteuid() == 0:
            pytest.skip("no devices can be made here, and root could harm the real ones")
        return [Path("/dev/null"), Path("/dev/full")]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="devices of Linux")
def test_devices_are_written_to_and_stay(files, capsys, devices):
    null, full = devices
    base = ("predict", files / "m.udn", files / "new.csv", "--out")
    assert run(*base, null, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == len(KEYS)
    said = refused(capsys, *base, full)
    assert said == f"unbounded: error: cannot write {full}: no space left on device\n"
    fit = ("fit", files / "t.csv", "--target", "y", *QUICK, "--out", null, "--json")
    assert run(*fit) == 0
    assert json.loads(capsys.readouterr().out)["report"] is None  # no page beside a device
    for path in devices:
        assert stat.S_ISCHR(os.stat(path).st_mode)


@pytest.mark.skipif(not Path("/proc/self/fd/1").exists(), reason="there is no such name here")
def test_standard_output_by_its_name(files, tmp_path, capfd):
    link = tmp_path / "stdout"  # as /dev/stdout is one
    link.symlink_to("/proc/self/fd/1")
    base = ("predict", files / "m.udn", files / "new.csv", "--out", link)
    assert run(*base) == 0
    out, err = capfd.readouterr()
    assert out.startswith("prediction,p_")
    assert "rows predicted" not in out
    assert "rows predicted" in err
    assert os.readlink(link) == "/proc/self/fd/1"
    assert run(*base, "--json") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "with --json" in err


def test_a_stream_without_a_buffer_that_writes_less_than_it_is_given(files, capfd, monkeypatch):
    """As standard output is with PYTHONUNBUFFERED=1."""

    class Short(io.RawIOBase):
        def __init__(self):
            self.found = b""

        def writable(self):
            return True

        def write(self, data):
            self.found += bytes(data[:7])
            return min(len(data), 7)

    short = Short()
    words = io.TextIOWrapper(short, encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", words)
    assert run("predict", files / "m.udn", files / "new.csv") == 0
    assert short.found.count(b"\n") == len(KEYS) + 1
    words.detach()


def test_only_files_of_ours_are_replaced(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, new = files / "m.udn", files / "new.csv"
    commands = {
        "notes.html": ("report", model, "--out", "notes.html"),
        "scores.html": ("evaluate", model, files / "t.csv", "--out", "scores.html"),
        "notes.udn": ("fit", files / "t.csv", "--target", "y", *QUICK, "--out", "notes.udn"),
        "list.csv": ("predict", model, new, "--out", "list.csv"),
        "list.parquet": ("predict", model, new, "--out", "list.parquet"),
        "list.jsonl": ("predict", model, new, "--out", "list.jsonl"),
        "list.tsv.gz": ("predict", model, new, "--out", "list.tsv.gz"),
    }
    for name, command in commands.items():
        Path(name).write_text("<!DOCTYPE html>\nmy, own\nnotes\n")
        said = refused(capsys, *command)
        assert f"cannot write {name}" in said
        assert "--force" in said
        assert Path(name).read_text() == "<!DOCTYPE html>\nmy, own\nnotes\n"
        Path(name).chmod(0o640)
        assert run(*command, "--force", "--quiet") == 0
        assert run(*command, "--json", "--quiet") == 0  # now it is ours
        json.loads(capsys.readouterr().out)
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o640
    Path("empty.html").touch()
    assert run("report", model, "--out", "empty.html", "--quiet") == 0
    old = "<!DOCTYPE html>\n<html>" + "x" * 9000 + "<footer>Written by unbounded 1.0. </footer>"
    Path("old.html").write_text(old)
    assert run("report", model, "--out", "old.html", "--quiet") == 0
    assert b'<meta name="generator" content="unbounded ' in Path("old.html").read_bytes()
    # The page that `fit` would write beside the model is asked for as well.
    Path("mine.html").write_text("mine")
    fit = ("fit", files / "t.csv", "--target", "y", *QUICK, "--out", "mine.udn")
    assert "cannot write mine.html" in refused(capsys, *fit)
    assert not Path("mine.udn").exists()


def test_libraries_replace_regular_files_without_asking(files, tmp_path):
    model = TableModel.load(files / "m.udn", "cpu")
    path = tmp_path / "file"
    path.write_text("something else")
    model.save(path)
    assert TableModel.load(path, "cpu").target.name == "y"
    model.report(path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(IsADirectoryError):
        model.save(tmp_path)


def test_one_name_for_model_and_page_is_refused(files, tmp_path, capsys):
    (tmp_path / "page.html").symlink_to("m.udn")
    fit = ("fit", files / "t.csv", "--target", "y", "--out", tmp_path / "m.udn")
    said = refused(capsys, *fit, "--report", tmp_path / "page.html")
    assert "cannot both be" in said


# Disks that are full or closed, and what killed processes leave


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX")
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, ending):
    import resource

    path = tmp_path / f"out.{ending}"
    path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    numbers = np.random.default_rng(0).normal(size=5000)

    def write() -> None:
        with _sink(path, False, False) as sink:
            sink.write({"x": numbers})

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        with pytest.raises(OSError, match="cannot write") as caught:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(path) in str(caught.value)
    assert caught.value.errno == errno.EFBIG
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_closed_folder_is_noticed_before_the_work(files, tmp_path, capsys, monkeypatch):
    def closed(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system", "/somewhere/tmp1234")

    monkeypatch.setattr(tempfile, "TemporaryFile", closed)
    monkeypatch.setattr("unbounded.tables.prepare", None)
    fit = ("fit", files / "t.csv", "--target", "y", "--out", tmp_path / "m.udn")
    said = refused(capsys, *fit)
    assert said == f"unbounded: error: cannot write {tmp_path}/m.udn: read-only file system\n"
    assert "read-only" in refused(capsys, "demo", "--out", tmp_path / "d.html")
    assert "read-only" in refused(capsys, "reproduce", "theorem", "--out", tmp_path / "study")
    model = classifier()
    with pytest.raises(OSError, match=r"cannot write .*run.ckpt: read-only"):
        ub.fit(model, *classes(), epochs=1, checkpoint=tmp_path / "run.ckpt")


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    path = tmp_path / "file"
    code = (
        "import os, runpy, signal, sys; from types import SimpleNamespace\n"
        "atomic = SimpleNamespace(**runpy.run_path(sys.argv[2]))\n"  # without torch, that is
        "with atomic.replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path), atomic.__file__], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    mine = f".file.{os.getpid()}-{left.name.split('-')[1]}-00000000"
    other = f".file.{left.name.split('.')[2].split('-')[0]}-ffffff-00000000"
    kept = [mine, other, ".file.notes", ".file2.99999999-000000-00000000", ".file.1-2-3"]
    for name in kept:
        (tmp_path / name).write_text("not to be touched")
    atomic.write_text(path, "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"file", *kept}
    # Of another machine, or of a number that runs again: after a day.
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(tmp_path / other, (long_ago, long_ago))
    atomic.write_text(path, "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"file", *kept} - {other}


def test_long_names_can_be_written(tmp_path):
    path = tmp_path / ("é" * 120 + ".csv")
    atomic.write_text(path, "text")
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_ours_is_told_from_damaged_files(tmp_path):
    path = tmp_path / "file"
    for kind in (outputs.MODEL, outputs.PAGE, outputs.PREDICTIONS):
        for content in (b"\x1f\x8bxx", b"PAR1", b"{", b"{}", b"[1]", b"\xff" * 300, b"mean,sd\n"):
            path.write_bytes(content)
            assert not outputs._is_ours(path, kind)


def test_a_study_replaces_nothing_but_results_of_studies(tmp_path, capsys):
    def theorem(*more) -> tuple:
        return ("reproduce", "theorem", "--largest", "3", "--out", tmp_path, *more)

    (tmp_path / "theorem.json").write_text('{"mine": 1}')
    assert "theorem.json is no file of a study's" in refused(capsys, *theorem())
    assert (tmp_path / "theorem.json").read_text() == '{"mine": 1}'
    (tmp_path / "theorem.json").write_text('{"study": "theorem"}')
    assert run(*theorem()) == 0
    assert run(*theorem()) == 0
    capsys.readouterr()
    spiral = tmp_path / "spiral"
    (spiral / "parts").mkdir(parents=True)
    (spiral / "parts" / "list.txt").write_text("mine")
    said = refused(capsys, "reproduce", "spiral", "--quick", "--out", spiral)
    assert "parts is no folder of a study's" in said
    assert (spiral / "parts" / "list.txt").read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device here")
def test_a_full_disk_behind_standard_output_is_told(files, monkeypatch, capsys):
    for command in (("inspect", files / "m.udn"), ("predict", files / "m.udn", files / "new.csv")):
        full = open("/dev/full", "w")  # noqa: SIM115, what could not be written fails again
        monkeypatch.setattr(sys, "stdout", full)
        assert run(*command) == 2
        said = capsys.readouterr().err
        assert said == "unbounded: error: cannot write standard output: no space left on device\n"
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
