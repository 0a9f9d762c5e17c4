"""Features that were built apart from each other, together."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import combined
import unbounded as ub
from test_processes import HERE, apart, variables
from unbounded.engines import Graphs, Stacked
from unbounded.training import RateAscent


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)
def test_tokens_in_two_processes(tmp_path):
    command = [sys.executable, str(HERE / "combined.py"), str(tmp_path), "tokens"]
    ended = subprocess.run(command, env=variables(2), timeout=240, text=True, capture_output=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = torch.load(tmp_path / "tokens.pt", weights_only=False)
    alone = combined.runs(tmp_path)
    for name, one in alone.items():
        assert apart(one, found[name], name) <= 1e-10
    for rank in range(2):
        told = json.loads((tmp_path / f"told.{rank}.json").read_text())
        assert "a Stream does not go with several processes" in told["stream"]
        for name in ("tied", "both"):
            assert "linear.weight of TokenHead is another layer's too" in told[name]
            assert told[name].endswith("whole: True")


def on_disk(folder, x, y, **options):
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return ub.DiskData.arrays(folder / "x.npy", folder / "y.npy", group_rows=4, **options)


def test_tokens_on_disk_count_as_in_memory(tmp_path):
    x, y = combined.rows(23)
    data = on_disk(tmp_path, x, y)
    options = {"batch_size": 23, "epochs": 2}
    from_disk = combined.fit(combined.model(), data, **options)
    assert apart(combined.fit(combined.model(), x, y, **options), from_disk) <= 1e-10
    assert data.bind(combined.model(), 100, None, many=True).batch_size < 100
    y[13] = -100
    with pytest.raises(ValueError, match=r"all targets of row 1 are ignored"):
        combined.fit(combined.model(), on_disk(tmp_path, x, y), **options)


def test_tokens_on_disk_go_on_where_they_were(tmp_path):
    data = on_disk(tmp_path, *combined.rows(23), epoch_rows=9)

    def train(epochs, **options):
        return combined.fit(combined.model(), data, epochs=epochs, average=0.9, **options)["state"]

    whole, path = train(4), tmp_path / "run.checkpoint"
    train(2, checkpoint=path)
    cut = train(4, checkpoint=path, resume=True)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_engines_take_tokens_and_disk_or_refuse_in_one_line(tmp_path):
    data = combined.rows(23)
    for given in (data, on_disk(tmp_path, *data)):
        eager, graphs = (
            combined.fit(combined.model(), given, engine=engine)["state"]
            for engine in (None, Graphs(lag=0))
        )
        assert apart(eager, graphs) <= 1e-10
        with pytest.raises(ValueError, match=r"^Stacked does not take a likelihood of tokens: .+$"):
            combined.fit(combined.model(), given, engine=Stacked())
    net = ub.UDN(ub.Dense(3, 6, 2), ub.Categorical(2), seed=3)
    rows = on_disk(tmp_path, np.ones((8, 3)), np.arange(8) % 2)
    with pytest.raises(ValueError, match=r"^Stacked [^\n]+$"):
        ub.fit([net], rows, engine=Stacked(), epochs=1, batch_size=4)


def test_padding_changes_no_score_and_perplexity_is_torchs():
    net = combined.model()
    x, y = combined.rows(9)
    mask = torch.ones_like(x).bool()
    padded = {"tokens": F.pad(x, (0, 3)), "mask": F.pad(mask, (0, 3), value=False)}
    monitor = {
        "plain": ({"tokens": x, "mask": mask}, y),
        "padded": (padded, F.pad(y, (0, 3), value=-100)),
    }
    row = combined.fit(net, x, y, monitor=monitor, epochs=1, batch_size=9)["rows"][-1]
    for name in ("perplexity", "log_score"):
        assert math.isclose(row[f"plain_{name}"], row[f"padded_{name}"], rel_tol=1e-12)
    log_probs = net.predict(x).log_probs.detach()
    nats = float(F.cross_entropy(log_probs.transpose(1, 2), y))
    assert math.isclose(row["plain_perplexity"], math.exp(nats), rel_tol=1e-10)


def test_a_rule_begins_anew_with_every_fit():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    options = {"validation": (x, y), "epochs": 2, "batch_size": 8, "progress": False}
    for rule, family in (
        (ub.HeldOutAscent(speed=0.5), lambda: ub.TruncatedNormal(2.0, 0.8, limit=5)),
        (RateAscent(speed=0.05, memory=4, youth=6), lambda: ub.TruncatedPoisson(1.5)),
    ):
        nets = [ub.UDN(ub.Dense(3, 6, 2), ub.Categorical(2), family(), seed=3) for _ in range(4)]
        for net in nets[:2]:
            ub.fit(net, x, y, depth_rule=rule, **options)
        assert apart(nets[0].state_dict(), nets[1].state_dict()) == 0
        if not rule.takes_many:
            continue
        ub.fit(nets[2:], x, y, depth_rule=rule, **options)
        assert math.isclose(nets[2].depth.mean(), nets[0].depth.mean(), rel_tol=1e-4)
