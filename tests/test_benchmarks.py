"""The benchmarks run; how fast is for them to say."""

import argparse
import json
import sys
from pathlib import Path

import pytest

import unbounded as ub
from unbounded.cli import main

sys.path.insert(0, str(Path(__file__).parents[1]))
core = pytest.importorskip("benchmarks.core", reason="benchmarks/ is not part of an installation")
images = pytest.importorskip("benchmarks.images")
processes = pytest.importorskip("benchmarks.processes")
rows = pytest.importorskip("benchmarks.rows")
sequences = pytest.importorskip("benchmarks.sequences")
tables = pytest.importorskip("benchmarks.tables")


def once(candidates, *options, **more):
    """Call each, as the clock would, and claim a second for it."""
    for candidate in candidates:
        candidate()
    return [1.0] * len(candidates)


@pytest.mark.parametrize(
    "name", ["spiral_epoch", "step_ratio", "depth_scaling", "pre_norm_population"]
)
def test_figures(monkeypatch, name):
    monkeypatch.setattr(core, "best_times", once)
    figure = getattr(core, name)()
    assert figure.ours > 0
    assert figure.target


def test_the_rate_of_a_depth():
    for depth in (2, 10, 21):
        assert images.ub.TruncatedPoisson(images.rate_for(depth)).max_depth() == depth
    with pytest.raises(ValueError, match="no λ ends at depth 0"):
        images.rate_for(0)


def test_the_work_of_several_processes(capsys):
    processes.work(argparse.Namespace(steps=2, width=8, rows=32, depth=3, shard=False))
    found = json.loads(capsys.readouterr().out.removeprefix("RESULT "))
    assert found["wall"] > 0
    assert found["sent"] == 0  # to nobody


def test_rows_by_exported_files(monkeypatch, capsys, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra unbounded[export]")
    exported = pytest.importorskip("benchmarks.exported")
    made = exported.calls(tmp_path, epochs=1, width=4, depth=ub.FixedDepth(1))
    assert len(made) == 4
    for ours, theirs in made.values():
        ours(), theirs()
    monkeypatch.setattr(exported, "calls", lambda folder: made)
    monkeypatch.setattr(exported, "best_times", lambda candidates, rounds: [2.0, 1.0] * 4)
    assert exported.main() == 0
    assert capsys.readouterr().out.count("    2.0\n") == 4
    monkeypatch.setattr(exported, "best_times", lambda candidates, rounds: [1.9, 1.0] * 4)
    assert exported.main() == 1


def test_sequences(monkeypatch, tmp_path, capsys):
    """All figures of a small model on a text."""
    text, path = tmp_path / "text.txt", tmp_path / "model.udn"
    text.write_text("the cat sat on the mat. " * 300)
    layers = ub.TransformerLayers(11, 8, heads=1)
    ub.save(ub.UDN(layers, ub.Tokens(11), ub.TruncatedNormal(2.0, 0.5)), path)
    monkeypatch.setattr(sequences, "best_times", once)
    monkeypatch.setattr(sequences, "STEPS", 1)
    monkeypatch.setattr(sequences, "WITHIN", (0.1,))
    words = [str(path), "--data", str(text), "--rows", "1", "--json", str(tmp_path / "b.json")]
    monkeypatch.setattr(sys, "argv", ["sequences", *words])
    assert sequences.main() == 0
    found = json.loads((tmp_path / "b.json").read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert found["training"]["tokens_a_second_ratio"] == 1.0
    assert found["generation"][0]["exits"] == {"0.1": 1.0}
    assert found["exits"]["characters"] == 128
    assert found["exits"]["lost"]["0.1"]["layers"] <= found["exits"]["layers"]


def test_rows_one_at_a_time(monkeypatch, capsys):
    made = rows.calls(rounds=2, epochs=1, width=8)
    monkeypatch.setattr(rows, "calls", lambda: made)
    monkeypatch.setattr(rows, "best_times", once)
    assert rows.main() == 0
    assert "UDNClassifier.predict_proba" in capsys.readouterr().out


def _fitted(which, split, model, rmse, **more):
    return {"set": which, "split": split, "model": model, "rows": 10, "rmse": rmse, **more}


def test_tables_compare_splits_that_all_models_have():
    found = [
        _fitted("made", 0, "CatBoost", 4.0, cpu_seconds=1.0),
        _fitted("made", 1, "CatBoost", 100.0, cpu_seconds=1.0),
        _fitted("made", 0, "UDN", 2.0, cpu_seconds=3.0, depth_mean=2.5),
        _fitted("uci-yacht", 0, "UDN", 1.0, cpu_seconds=3.0, depth_mean=1.5),
    ]
    text = tables.table(found)
    assert text.index("| UDN | CatBoost |")  # ours first, whoever was fitted first
    assert text.index("| uci-yacht | 10 | 1 | **1** | – | 1.5 |") < text.index(
        "| made | 10 | 1 | **2** | 4 | 2.5 |"
    )
    assert "| UDN ÷ model, geometric mean | | | 1.000 | 0.500 | |" in text


def test_tables_compare_with_the_depth_that_a_search_takes():
    """Held-out rows take depth 1 on the first split and 2 on the second; in hindsight 2 is best."""
    errors = {"UDN": (2.0, 2.0), "depth 1": (3.0, 3.0), "depth 2": (1.0, 2.0)}
    held = {"UDN": (1.0, 1.0), "depth 1": (0.5, 2.0), "depth 2": (1.5, 1.5)}
    found = [
        _fitted("made", split, model, errors[model][split], held_out=held[model][split])
        for split in range(2)
        for model in errors
    ]
    text = tables.table(found)
    assert "| made | 2 | 3 | **1.5** | +0.5, ± 0.5 | 2.5 | -0.5, ± 0.5 |" in text
    assert "As good as the best depth in hindsight: 1 of 1 sets" in text
    assert "held-out rows choose: 1 of 1 sets with several splits; 0.800 times its error." in text
    # A set that lacks a depth goes by those that it has; one split counts for no ratio.
    other = [
        _fitted("other", 0, "UDN", 9.0, held_out=1.0),
        _fitted("other", 0, "depth 1", 1.0, held_out=1.0),
    ]
    text = tables.table([*found, *other])
    assert "| other | 9 | **1** | – | +8, one split | 1 | +8, one split |" in text
    assert "held-out rows choose: 1 of 1 sets with several splits; 0.800 times its error." in text
    for row in found:
        row.pop("held_out")
    assert "| +0.5, ± 0.5 | – | – |" in tables.table(found)


def test_rows_of_other_commits_are_made_anew_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(tables, "commit", lambda: "1234567")
    asked = argparse.Namespace(again=["UDN"], sets=["made"])
    assert tables._is_old(_fitted("made", 0, "UDN", 1.0), asked)
    assert tables._is_old(_fitted("made", 0, "UDN", 1.0, commit="0000000"), asked)
    assert not tables._is_old(_fitted("made", 0, "UDN", 1.0, commit="1234567"), asked)
    assert not tables._is_old(_fitted("made", 0, "CatBoost", 1.0), asked)
    assert not tables._is_old(_fitted("other", 0, "UDN", 1.0), asked)


def test_the_seconds_of_a_search(monkeypatch, capsys, tmp_path):
    search = pytest.importorskip("benchmarks.search")
    words = "depth --quick --problems sklearn-iris --seeds 0-1 --depths 1 2 --table-steps 10"
    assert main(["reproduce", *words.split(), "--out", str(tmp_path)]) == 0
    monkeypatch.setattr(
        search, "milliseconds", lambda one, epochs: 2.0 + one.members[0].row["max_depth"]
    )
    monkeypatch.setattr(sys, "argv", ["search", str(tmp_path), "--rounds", "1"])
    search.main()
    assert "resting   2.00 +  1.00 ℓ ms an epoch; of the search: " in capsys.readouterr().out
    found = json.loads((tmp_path / "seconds.json").read_text())["problems"]["sklearn-iris"]
    assert found["fixed"] == found["udn"] == [2.0, 1.0]
    one, _ = (tmp_path / "table.md").read_text().split("## Problems")
    runs = json.loads((tmp_path / "sklearn-iris.json").read_text())["runs"]
    passes = next(r["layer_rows"] for r in runs if r["model"] == "fixed" and r["depth"] == 1)
    mine = [r for r in runs if r["model"] == "udn" and r["start"] == 4 and r["length"] == 1]
    layers = sum(r["layer_rows"] for r in mine) / len(mine) / passes
    assert f"| {(2 + layers) / (3 + 4):.2f} and " in one
