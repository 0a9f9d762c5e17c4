"""`unbounded reproduce sequences`: a small run of each task, interruptions, and its errors."""

import argparse

import pytest
import torch

from unbounded.data.sequences import Text
from unbounded.experiments import StudyError, records, sequences
from unbounded.experiments.sequences import recipe, runs, table

SMALL = (
    "--quick --depths 1 2 --text-depths 1 2 --width 8 --heads 1 --rows 8 --steps 4 "
    "--word-steps 4 --text-steps 4 --device cpu"
)


def options(folder, *words):
    parser = argparse.ArgumentParser()
    sequences.add_arguments(parser)
    return parser.parse_args([*SMALL.split(), "--out", str(folder), *words])


@pytest.fixture(autouse=True)
def without_data(monkeypatch):
    monkeypatch.delenv("UNBOUNDED_DATA", raising=False)


def test_a_small_run_of_each_task(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 40)
    rows = sequences.run(options(tmp_path / "out", "--data", str(text)))
    names = {"hop-1", "word-S3-6", "text-0.1", "text-1"}
    assert {row["name"] for row in rows} == names
    assert len(rows) == 3 * len(names) - 2 + 1  # one share alone is searched, once at equal size
    page = (tmp_path / "out" / "table.md").read_text()
    assert "1-hop induction" in page
    assert "word problem of S3" in page
    assert page in capsys.readouterr().out
    for name in ("hops.svg", "words.svg", "text.svg", "data.svg"):
        assert (tmp_path / "out" / name).exists()
    one = records.read_json(tmp_path / "out" / "hop-1-udn-0.json")
    assert one["study"] == "sequences"
    assert one["run"]["needed"] == 2
    assert 0 <= one["run"]["error"] <= 1
    assert abs(sum(one["run"]["depth_probs"]) - 1) < 1e-3
    assert not (tmp_path / "out" / "parts").exists()
    of_text = records.read_json(tmp_path / "out" / "text-1-depth2-0.json")["run"]
    assert of_text["bits"] > 0
    assert of_text["depth_mean"] == 2
    assert table.write(tmp_path / "out") == page  # again, from the files


def test_it_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    words = ("--tasks", "hops")
    whole = sequences.run(options(tmp_path / "whole", *words))
    train, done = runs.train, []

    def interrupted(*arguments):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(train(*arguments))
        return done[-1]

    monkeypatch.setattr(runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt, match="--resume"):
        sequences.run(options(tmp_path / "cut", *words))
    monkeypatch.setattr(runs, "train", train)
    rows = sequences.run(options(tmp_path / "cut", *words, "--resume"))

    def without_time(found):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in found]

    assert without_time(rows) == without_time(whole)


def test_a_network_goes_on_from_its_checkpoint(tmp_path):
    settings = recipe.settings_of(options(tmp_path))
    run = next(run for run in recipe.plan(settings) if run.problem.task == "hops")
    place = runs.Place("cpu", tmp_path, resume=True)
    assert run.name == "hop-1-udn-0"
    row = runs.train(run, settings, place)
    assert not list(tmp_path.glob("*.safetensors"))
    assert row["tokens"] == 4 * 8 * (16 + 1)


def test_errors_are_one_line(tmp_path, capsys):
    for words, expected in (
        (("--tasks", "images"), "--tasks must be among"),
        (("--depths", "0"), "--depths must be numbers of at least 1"),
        (("--width", "7"), "--width must be a multiple"),
        (("--lr", "2"), "--lr must be between"),
        (("--minutes", "0"), "--minutes must be positive"),
        (("--data", str(tmp_path / "none.txt")), "there is no text file"),
        (("--tasks", "text"), "needs --data FILE"),
    ):
        with pytest.raises(StudyError, match=expected):
            sequences.run(options(tmp_path / "out", *words))
    short = tmp_path / "short.txt"
    short.write_text("abcd")
    with pytest.raises(StudyError, match="too few for windows"):
        sequences.run(options(tmp_path / "out", "--tasks", "text", "--data", str(short)))
    assert "text: skipped" in capsys.readouterr().out


def test_parts_of_a_text_do_not_overlap():
    text = Text(torch.arange(1000), "".join(map(chr, range(1000))))
    whole, few = (recipe.text_parts(text, share, 16) for share in (1.0, 0.01))
    assert len(whole["train"]) == 900
    assert len(few["train"]) == 161
    for parts in (whole, few):
        found = torch.cat([parts["train"], parts["validation"], parts["test"]])
        assert len(found.unique()) == len(found)
