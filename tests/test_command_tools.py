"""`unbounded doctor`, `unbounded completion` and `unbounded export`."""

import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest
import torch
from sklearn.datasets import make_friedman1

import unbounded as ub
from test_cli import fails, ok
from unbounded.cli import completion, doctor, main
from unbounded.cli.program import COMMANDS, build_parser
from unbounded.tables import TableModel

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_the_extras_are_those_of_the_package():
    known = PROJECT["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(known) - {"dev"}
    for name, (_, packages) in doctor.EXTRAS.items():
        declared = {text.split(">")[0].split("[")[0] for text in known[name]}
        assert set(packages) == declared
    assert {text.split(">")[0] for text in PROJECT["dependencies"]} == set(doctor.NEEDED)


def test_doctor_tells_what_is_there(capsys, monkeypatch):
    found = json.loads(ok(capsys, "doctor", "--json"))
    assert found["versions"]["torch"] == torch.__version__.split("+")[0] or found["versions"][
        "torch"
    ] == metadata.version("torch")
    assert found["device"]["threads"] == torch.get_num_threads()
    assert found["extras"]["tables"]["packages"]["pandas"] == pd.__version__
    assert not any("unbounded[tables]" in step for step in found["next"])
    usual = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda p: None if p == "pandas" else usual(p))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 999)
    words = ok(capsys, "doctor")
    assert "pandas is missing" in words
    assert "pip install 'unbounded[tables]' for tables in files and frames" in words
    assert "torch takes 999 threads" in words


def complete(script, *words):
    """What bash offers for the last of these words."""
    listed = " ".join(f"'{word}'" for word in words)
    run = f"{script}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _unbounded"
    run += "; echo ${COMPREPLY[@]}"
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    done = subprocess.run([shell, "-c", run], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_and_values(capsys):
    script = ok(capsys, "completion", "bash")
    names = [command.NAME for command in COMMANDS]
    assert complete(script, "unbounded", "") == [*names, "--help", "--version"]
    assert complete(script, "unbounded", "ev") == ["evaluate"]
    assert complete(script, "unbounded", "export", "m.udn", "--to", "") == ["onnx", "pt2"]
    assert complete(script, "unbounded", "export", "--qu") == ["--quantiles", "--quiet"]
    assert complete(script, "unbounded", "completion", "z") == ["zsh"]
    assert "spiral" in complete(script, "unbounded", "reproduce", "")
    assert complete(script, "unbounded", "fit", "tra") == []  # files, by the shell itself


def test_every_option_is_in_every_script():
    found = completion.commands(build_parser())
    assert [command.name for command in found] == [command.NAME for command in COMMANDS]
    for name, write in completion.SHELLS.items():
        script = write(found)
        for command in found:
            assert command.name in script
            for option in command.options:
                for flag in option.flags:
                    shown = (
                        flag
                        if name != "fish"
                        else f"-{'l' if flag[1] == '-' else 's'} {flag.lstrip('-')}"
                    )
                    assert shown in script, (name, command.name, flag)
        shell = shutil.which(name)
        if shell:  # no shell runs it here: it is read alone
            subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_words_that_are_nearly_commands(capsys):
    assert "there is no command 'ft': did you mean 'fit'? (see unbounded --help)" in fails(
        capsys, "ft"
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    X, y = make_friedman1(60, 5, random_state=0)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(target=y)
    path = tmp_path_factory.mktemp("export") / "m.udn"
    fixed = {"epochs": 1, "width": 4, "depth": ub.FixedDepth(1)}
    TableModel.fit(frame, target="target", references=False, **fixed).save(path)
    frame.to_csv(path.with_suffix(".csv"), index=False)
    return path


def test_export_writes_and_tells(model, tmp_path, capsys):
    copy, out = tmp_path / "m.udn", tmp_path / "m.pt2"
    copy.write_bytes(model.read_bytes())
    given = ("export", copy, "--to", "pt2", "--quantiles", "0.1,0.9")
    found = json.loads(ok(capsys, *given, "--table", model.with_suffix(".csv"), "--json"))
    assert found["out"] == str(out)
    assert found["outputs"] == ["mean", "sd", "quantiles"]
    assert found["difference"] < 1e-5
    assert found["rows"] == 60
    assert [one["name"] for one in found["inputs"]] == list("abcde")
    # Its own file is replaced, another one is not.
    words = ok(capsys, *given[:4], "--quantiles", "none")
    assert "outputs: mean, sd\n" in words
    out.write_text("notes")
    assert "is not an exported model that unbounded wrote; --force" in fails(capsys, *given)
    assert out.read_text() == "notes"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_export_to_onnx(model, tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs the extra unbounded[export]")
    out = tmp_path / "m.bin"
    given = ("export", model, "--to", "onnx", "--quantiles", "none", "--out", out)
    assert "onnx file" in ok(capsys, *given)
    ok(capsys, *given)  # it is ours
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install 'unbounded[export]'" in fails(capsys, *given)


def test_export_of_networks(tmp_path, capsys):
    net = tmp_path / "net.udn"
    ub.save(ub.UDN(ub.ResidualConv(1, 2, width=4), ub.Categorical(2), ub.FixedDepth(1)), net)
    out = tmp_path / "net.pt2"
    assert "--shape" in fails(capsys, "export", net, "--out", out)
    ok(capsys, "export", net, "--shape", "1,8,8", "--out", out)
    x = torch.randn(2, 1, 8, 8)
    found = torch.export.load(out).module()(x)
    torch.testing.assert_close(found["probabilities"], ub.load(net).predict(x).probs)
    assert "--table is for models of tables" in fails(
        capsys, "export", net, "--table", net, "--out", out
    )


def test_export_arguments_that_cannot_work(model, tmp_path, capsys):
    out = tmp_path / "m.pt2"
    said = fails(capsys, "export", model, "--out", out, "--quantiles", "0,0.5")
    assert "numbers between 0 and 1 were expected" in said
    assert "--shape is for networks alone" in fails(
        capsys, "export", model, "--shape", "3", "--out", out
    )
    assert "exported to onnx or pt2, got 'xyz'" in fails(
        capsys, "export", model, "--out", tmp_path / "m.xyz"
    )
    assert not list(tmp_path.iterdir())


def test_predictions_under_the_name_of_something_else(model, tmp_path, capsys):
    for name in ("p.xlsx", "p.udn", "p.json.gz"):
        said = fails(capsys, "predict", model, model.with_suffix(".csv"), "--out", tmp_path / name)
        assert "end --out with .csv, .tsv, .jsonl or .parquet" in said
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_told(capsys, monkeypatch):
    def broken(options):
        raise ImportError("pictures need Pillow: pip install 'unbounded[images]'")

    monkeypatch.setattr(doctor, "run", broken)
    said = fails(capsys, "doctor")
    assert said.endswith("unbounded doctor tells which packages are missing and how to get them\n")


def test_a_study_as_json(tmp_path, capsys):
    found = json.loads(ok(capsys, "reproduce", "theorem", "--out", tmp_path / "t", "--json"))
    assert found["study"] == "theorem"
    assert found["files"]
    assert all((tmp_path / "t" / name).is_file() for name in found["files"])


def test_every_command_tells_it_as_json(capsys):
    found = {command.name: command for command in completion.commands(build_parser())}
    assert set(found) >= {"fit", "predict", "evaluate", "inspect", "report", "export", "demo"}
    for name, command in found.items():
        flags = {flag for option in command.options for flag in option.flags}
        if name != "reproduce":  # a study adds its own, see below
            assert "--json" in flags, name
    script = json.loads(ok(capsys, "completion", "fish", "--json"))["script"]
    assert script == ok(capsys, "completion", "fish").removesuffix("\n")


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        (("inspect", "hous.udn"), "there is no file hous.udn: did you mean 'house.udn'?"),
        (("inspect", "1.udn"), "unbounded fit TABLE --target COLUMN --out FILE writes one"),
        (("fit", "none/x.csv", "--target", "y", "--out", "m"), "there is no folder none either"),
        (("fit", "t.csv", "--target", "prise", "--out", "m"), "did you mean 'price'?"),
        (("fit", "t.csv", "--target", "price", "--out", "a b/m"), "mkdir -p 'a b'"),
        (("inspect", "house.udn"), "give the whole file that unbounded fit wrote (--out)"),
        (("predict", "t.csv", "house.udn"), "it seems to be a table: give the model first"),
        (("fit", "t.csv", "--target", "pri", "--out", "m"), "did you mean 'price'?"),
        (("fit", "t.csv", "--target", "brightness", "--out", "m"), "there are 'a', 'price'"),
        (("fit", "t.csv", "--target", "a", "--held-out", "20", "--out", "m"), "(0.9 for 90 %)"),
        (("fit", "t.csv", "--target", "a", "--out", "t.csv"), "name another file"),
        (("fit", "x.bin", "--target", "a", "--out", "m"), "a spreadsheet can be saved as CSV"),
        (("fit", "house.udn", "--target", "a", "--out", "m"), "names of its columns, then a line"),
        (("fit", "two.csv", "--target", "a", "--out", "m"), "change the header"),
        (
            ("fit", "t.csv", "--target", "a", "--out", "m", "--device", "gpu"),
            'cannot be used: there is "cpu", "cuda", "cuda:1" and so on, or "auto"',
        ),
        (
            ("fit", "t.csv", "--target", "a", "--out", "m", "--epochs-max", "3"),
            "unbounded fit has no option '--epochs-max': did you mean '--epochs'?",
        ),
        (("fit", "t.csv", "--traget", "a", "--out", "m"), "did you mean '--target'?"),
        (
            ("fit", "t.csv", "--target", "a", "--out", "m", "--learning-rate=0.1"),
            "has no option '--learning-rate=0.1': did you mean '--lr'?",
        ),
        (("fit", "t.csv", "--out", "m"), "required: --target"),
        (("doctor", "more"), "takes no further argument 'more' (see unbounded doctor --help)"),
        (("reproduce",), "say which study: cifar10, depth,"),
        (("reproduce", "--json", "spiral"), "come after its name: unbounded reproduce NAME --json"),
        (("export", "house.udn"), "say --to onnx or --to pt2, or the file"),
        (("export", "house.udn", "--to", "pt2", "--out", "m.onnx"), "change one of the two"),
        (
            ("fit", "t.csv", "--target", "price", "--out", "m", "--device", "cuda:99"),
            "--device cpu works everywhere, unbounded doctor tells what there is",
        ),
        (("reproduce", "spirall"), "there is no study 'spirall': did you mean 'spiral'?"),
        (("fit", "t.csv", "--target", "price", "--drop", "price", "--out", "m"), "leave it out"),
    ],
)
def test_errors_name_the_next_step(arguments, step, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,price\n1,2\n")
    Path("house.udn").write_text("")
    Path("two.csv").write_text("a,a\n1,2\n")
    Path("x.bin").write_bytes(b"a\x00\x00")
    assert step in fails(capsys, *arguments)


def test_without_a_command_it_shows_what_there_is(capsys):
    words = ok(capsys)
    assert words == build_parser().format_help()
    for command in COMMANDS:  # each on one line with what it does
        assert re.search(rf"^ +{command.NAME} +{re.escape(command.HELP)}$", words, re.MULTILINE)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_is_for_terminals_alone(monkeypatch):
    def said(file):
        monkeypatch.setattr(sys, "stderr", file)
        assert main(["ft"]) == 2
        return file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain = said(io.StringIO())
    assert "\x1b" not in plain
    coloured = said(Terminal())
    assert coloured.startswith("unbounded: \x1b[1;31merror:\x1b[0m there is no command 'ft'")
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert said(Terminal()) == plain
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert said(Terminal()) == plain
