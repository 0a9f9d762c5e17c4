"""`unbounded reproduce sequences`: a small run of each task, interruptions, and its errors."""

import argparse
import math
import re

import pytest
import torch

import unbounded as ub
from unbounded.data.sequences import Text, windows
from unbounded.experiments import StudyError, records, sequences
from unbounded.experiments.sequences import recipe, runs, table, verdicts

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


def test_files_are_kept_that_these_settings_would_make(tmp_path, monkeypatch, capsys):
    text, out, real, trained = tmp_path / "text.txt", tmp_path / "out", runs.train, []
    text.write_text("the cat sat on the mat. " * 40)

    def train(run, *arguments):
        trained.append(run.name)
        return real(run, *arguments)

    def again(*more):
        trained.clear()
        sequences.run(options(out, "--tasks", "hops", "text", "--data", str(text), *more))
        return set(trained)

    monkeypatch.setattr(runs, "train", train)
    whole = again()
    assert {"text-0.1-udn-0", "text-1-depth2-0", "hop-1-depth2-0"} < whole
    assert not (out / "parts").exists()
    assert again("--resume") == set()
    assert f"{len(whole)} of {len(whole)} networks are there already" in capsys.readouterr().out
    assert again("--resume", "--depths", "1-3") == {"hop-1-depth3-0"}
    assert again("--resume", "--text-reference", "2", "1") == {"text-0.1-udn-0", "text-1-udn-0"}
    assert "(text_reference), to be trained again: text-1-udn-0.json" in capsys.readouterr().out
    assert again("--resume", "--most", "9", "--text-reference", "2", "1") == {"hop-1-udn-0"}
    assert len(again("--text-reference", "2", "1")) == len(whole)  # all of them, without --resume
    # An earlier version's files do not say what text started from, that nothing was dropped, that
    # one end of the text was held out, nor that it was not bfloat16.
    for path in out.glob("*-0.json"):
        old = records.read_json(path)
        for name in ("text_reference", "text_narrowest", "text_dropout", "text_stretches", "bf16"):
            del old["configuration"][name]
        records.write_json(path, old)
    were = ("--resume", "--text-reference", "3", "2", "--text-dropout", "0")
    were += ("--text-narrowest", "0.5", "--text-stretches", "1")
    assert again(*were) == set()
    of_text = {name for name in whole if name.startswith("text")}
    assert again(*were[:-1], "3") == of_text
    assert again(*were[:-1], "3", "--text-dropout", "0.5") == of_text
    assert again("--resume", "--bf16") == whole


def test_the_page_says_which_settings_differ(tmp_path):
    words = ("--tasks", "hops")
    sequences.run(options(tmp_path, *words))
    assert "different settings" not in table.write(tmp_path)
    rest = ("--resume", "--depths", "1-3", "--text-steps", "7")
    sequences.run(options(tmp_path, *words, *rest))
    assert "different settings" not in table.write(tmp_path)  # none that these depend on
    other = records.read_json(tmp_path / "hop-1-udn-0.json")
    other["configuration"]["most"] = 7
    other["run"]["seed"] = 1
    records.write_json(tmp_path / "hop-1-udn-1.json", other)
    assert table.write(tmp_path).startswith(
        "**These networks are of runs with different settings: most.**"
    )


def test_text_has_a_reference_of_its_own():
    settings = recipe.Settings(text_reference=(5.0, 2.5), text_narrowest=1.25)
    for run in recipe.plan(settings):
        if run.depth is None:
            model = recipe.build(run, 9, settings)
            rule = recipe.fitting(run, 10, settings)["depth_rule"]
            is_text = run.problem.task == "text"
            assert rule.reference == ((5.0, 2.5) if is_text else None)
            assert rule.most == (settings.text_most if is_text else settings.most)
            assert rule.narrowest == (1.25 if is_text else 0.5)
            expected = ub.TruncatedNormal(*((5.0, 2.5) if is_text else model.layers.reference))
            assert model.depth.mean() == pytest.approx(expected.mean())


def test_text_alone_is_trained_with_dropout():
    settings = recipe.Settings(text_dropout=0.25)
    for run in recipe.plan(settings):
        is_text = run.problem.task == "text"
        assert recipe.build(run, 9, settings).layers.dropout == (0.25 if is_text else 0.0)
    assert "text_dropout" in recipe.matters("text", "fixed")
    assert "text_dropout" not in recipe.matters("hops", "udn")


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
        (("--text-reference", "3", "0"), "--text-reference: spread must be"),
        (("--text-reference", "3", "1e-9"), "--text-reference: spread must be"),
        (("--text-reference", "1e9", "1"), "--text-reference: place must be"),
        (("--seeds", "9" * 23), "--seeds: 9+ is too large"),
        (("--seeds", "0-999999999"), "or too many numbers"),
        (("--data", str(tmp_path / "none.txt")), "there is no text file"),
        (("--tasks", "text"), "needs --data FILE"),
    ):
        with pytest.raises(StudyError, match=expected):
            sequences.run(options(tmp_path / "out", *words))
    short = tmp_path / "short.txt"
    short.write_text("abcd")
    with pytest.raises(StudyError, match="too few for windows"):
        sequences.run(options(tmp_path / "out", "--data", str(short)))
    assert not (tmp_path / "out").exists()  # before anything is trained
    assert "text: skipped" in capsys.readouterr().out


def test_parts_of_a_text_do_not_overlap():
    text = Text(torch.arange(10_000), "".join(map(chr, range(10_000))))
    whole, few, ends = (
        recipe.text_parts(text, share, 16, stretches)
        for share, stretches in ((1.0, 5), (0.01, 5), (1.0, 1))
    )
    sizes = [{name: len(part) for name, part in parts.items()} for parts in (whole, few, ends)]
    assert sizes[0] == sizes[2] == {"train": 9000, "validation": 500, "test": 500}
    assert sizes[1]["train"] == 5 * 33  # ten windows and one character, evenly
    for parts in (whole, few, ends):
        found = torch.cat(list(parts.values()))
        assert len(found.unique()) == len(found)
    # Each stretch trains on its first nine tenths, or on the last of these.
    train, test = whole["train"].view(5, -1), whole["test"].view(5, -1)
    starts = torch.arange(0, 10_000, 2000)[:, None]
    assert torch.equal(train, starts + torch.arange(1800))
    assert torch.equal(test, starts + torch.arange(1900, 2000))
    assert torch.equal(few["train"].view(5, -1), train[:, -33:])
    assert torch.equal(ends["test"], torch.arange(9500, 10_000))


def test_some_windows_are_from_all_over():
    tokens = torch.arange(301)
    found, targets = windows(tokens, 3, 5)
    assert (found[:, 0] // 3).tolist() == [0, 25, 50, 74, 99]
    assert torch.equal(targets, found + 1)
    assert torch.equal(windows(tokens, 3, 1000)[0], windows(tokens, 3)[0])


def test_a_short_text_has_fewer_stretches():
    text = Text(torch.arange(1000), "".join(map(chr, range(1000))))
    parts = recipe.text_parts(text, 1.0, 16, 20)
    assert torch.equal(parts["train"], torch.arange(900))


def test_what_matters_most_comes_first():
    settings = recipe.Settings()
    found = recipe.plan(settings)
    assert len({run.name for run in found}) == len(found)
    names = {problem.name for problem in recipe.problems(settings)}
    first = found[: len(names) + 3]
    assert {run.problem.name for run in first} == names
    assert all(run.depth is None for run in first)
    assert [run.name for run in first[:2]] == ["text-1-udn-0", "text-1-udn-1"]
    assert {run.problem.task for run in first if run.seed} == {"text"}
    stages = [
        [name for name in (run.name for run in found) if re.fullmatch(pattern, name)]
        for pattern in (r"hop-\d+-depth[78]-0", r"word-.*-depth\d-0", r"hop-\d+-udn-1")
    ]
    assert [len(stage) for stage in stages] == [10, 48, 5]
    places = [[run.name for run in found].index(name) for stage in stages for name in stage]
    assert places == sorted(places)
    assert [run.depth for run in found if run.name.startswith("text-0.1")] == [None, None]
    sizes = {}
    for run in found:
        if run.model == "equal" and run.seed == 0:
            model = recipe.build(run, 65, settings)
            sizes[run.depth] = sum(p.numel() for p in model.network.hidden.parameters())
    usual = recipe.build(recipe.Run(found[0].problem, settings.equal_to, 0), 65, settings)
    expected = sum(p.numel() for p in usual.network.hidden.parameters())
    assert set(sizes) == set(settings.equal)
    assert all(0.9 < size / expected < 1.1 for size in sizes.values())


def row(k, depth, error, seconds=1.0, mode=None):
    return {"name": f"hop-{k}", "task": "hops", "group": "", "number": k, "seed": 0} | {
        "model": "udn" if depth is None else "fixed",
        "depth": depth,
        "error": error,
        "seconds": seconds,
        "depth_mode": mode,
    }


def test_verdicts():
    def found(modes, errors=(0.0, 0.0), least=(2, 4)):
        rows = [
            row(k, depth, 0.4 if depth < least else 0.01 / depth)
            for k, least in zip((1, 4), least, strict=True)
            for depth in range(1, 7)
        ]
        for k, mode, error in zip((1, 4), modes, errors, strict=True):
            rows.append(row(k, None, error, 2.0, mode))
        return [holds for _, _, holds in verdicts.verdicts(rows)][:3]

    assert found((2, 4)) == [True, True, True]
    assert found((3, 3)) == [True, True, True]
    assert found((5, 5)) == [True, True, True]  # depth 6 is the best, if by little
    assert found((4, 4)) == [True, False, True]
    assert found((3, 4), (0.01, 0.2)) == [False, True, None]  # the UDN has learnt one of them
    assert found((3, 5), (0.0, 0.3), (2, 9)) == [True, True, None]  # nobody learns 4 hops
    assert found((3, 5), least=(9, 9)) == [None, None, True]
    assert found((7, 5)) == [True, True, False]
    for rows, words in (([], "not trained"), ([row(1, None, 0.5, 1.0, 3)], "no UDN has learnt it")):
        assert verdicts.verdicts(rows)[2][1:] == (words, None)
    one = verdicts.judged([row(1, None, 0.0, 2.0, 3), row(1, 1, 0.4), row(1, 2, 0.0, 3.0)], "hop-1")
    assert (one.least, one.best, one.cost) == (2, 2, 0.5)
    busy = row(1, None, 0.0, 3.0, 3) | {"pace": 1.5}  # the machine had more to do
    assert verdicts.judged([busy, row(1, 1, 0.4), row(1, 2, 0.0, 3.0)], "hop-1").cost == 0.5


def test_verdicts_of_what_was_timed():
    timed = {
        "versions": {"device": "cpu"},
        "training": {"tokens_a_second_ratio": 0.7, "depth": 5},
        "generation": [{"against_finite": 0.6, "exits": {"0.1": 1.4, "0.2": 1.6}}],
        "exits": {
            "lost": {"0.1": {"bits": 0.002, "layers": 5}, "0.2": {"bits": 0.02, "layers": 4}}
        },
    }
    assert [holds for _, _, holds in verdicts.verdicts([], timed)][-3:] == [True, False, True]
    assert [holds for _, _, holds in verdicts.verdicts([])][-3:] == [None, None, None]
    assert [found.split("on ")[1] for _, found, _ in verdicts.verdicts([], timed)[-3:]] == [
        "cpu"
    ] * 3
    timed["training"]["device"] = "a GPU"  # that was timed elsewhere
    found = [found for _, found, _ in verdicts.verdicts([], timed)[-3:]]
    assert found[0] == "0.70 at depth 5, on a GPU"
    assert found[1] == "0.60 in one sequence, on cpu"


def test_letters_that_hardly_repeat_are_told(tmp_path):
    words = "--tasks", "hops", "--hop-length", "2", "--rows", "2", "--letters", "50"
    with pytest.raises(StudyError, match="2 letters out of 50 hardly repeat any"):
        sequences.run(options(tmp_path, *words))


def test_seconds_of_two_machines_are_not_compared():
    def row(model, device, seconds, **more):
        return {"model": model, "device": device, "seconds": seconds, "error": 0.0, **more}

    fixed = [row("fixed", "gpu", 10.0, depth=d) for d in (1, 2)]
    udn = [row("udn", "gpu", 5.0), row("udn", "cpu", 4000.0)]
    assert verdicts.Judged(fixed + udn, {1: 0.0, 2: 0.0}, 20.0, udn).cost == 0.25
    assert math.isnan(verdicts.Judged(fixed + udn[1:], {1: 0.0}, 20.0, udn[1:]).cost)
