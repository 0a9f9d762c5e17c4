"""Tokens in several processes: python combined.py FOLDER tokens, as several.py."""

import importlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import several
import unbounded as ub
from unbounded import parallel

V, TIME = 5, 6


def rows(count: int, seed: int = 0):
    """Sequences with unequal numbers of targets that count, at least one each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(V, (count, TIME), generator=generator)
    last = torch.randint(1, TIME, (count, 1), generator=generator)
    y, places = x.roll(1, 1), torch.arange(TIME)
    return x, y.masked_fill((places == 0) | (places > last), -100)


def model(**arguments):
    layers = ub.TransformerLayers(V, 8, heads=2, expansion=2, **arguments)
    found = ub.UDN(layers, ub.Tokens(V), ub.TruncatedNormal(2.0, 0.8, limit=4), seed=3).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in found.network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.2 * noise
    return found


def fit(net, x, y=None, **options):
    known = {"epochs": 2, "batch_size": 12, "lr": 0.02, "progress": False, "select": "last"}
    known |= {"validation": rows(11, seed=1)}
    result = ub.fit(net, x, y, **{**known, **options})
    history = [{**row, "seconds": 0} for row in result.history]
    return {"rows": history, "state": several.whole_state(net)}


def rule():
    return {"depth_rule": ub.HeldOutAscent(speed=0.5)}


def parts():
    x, y = rows(23)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[:, 0] = True
    return {"tokens": x, "mask": mask}, y


def loader():
    """Batches of six rows, of which each of two processes has every second one."""
    x, y = rows(22)
    sets, size = TensorDataset(x, y), parallel.current().size
    sampler = DistributedSampler(sets, size, parallel.rank(), shuffle=False) if size > 1 else None
    found = DataLoader(sets, 6 // size, sampler=sampler)
    return fit(model(), found, num_data=int((y != -100).sum()), micro_batches=2)


def disk(folder: Path):
    """All rows in a batch, so that it is the same whoever reads which group."""
    for name, (x, y) in {"t": rows(23), "v": rows(11, seed=1)}.items():
        if parallel.rank() == 0:
            np.save(folder / f"{name}x.npy", x)
            np.save(folder / f"{name}y.npy", y)
    parallel.current().gather(None)  # until they are there
    train, held_out = (
        ub.DiskData.arrays(folder / f"{name}x.npy", folder / f"{name}y.npy", group_rows=4)
        for name in "tv"
    )
    return fit(model(), train, batch_size=23, validation=held_out, **rule())


def loop(ignored: int):
    """A loop of one's own, in which the last rows may have nothing that counts."""
    net, (x, y) = model(), rows(16)
    y[16 - ignored :] = -100
    optimizer = ub.make_optimizer(net, lr=0.02)
    alone = parallel.current().size == 1
    here = slice(16) if alone else (slice(11), slice(11, 16))[parallel.rank()]
    for _ in range(3):
        number = float((y != -100).sum())
        info = ub.step(net, optimizer, x[here], y[here], number, clip=1.0, micro_batches=4)
    return {"loss": info.loss, "state": net.state_dict()}


def written():
    """A model in shards writes, also before it has ever been trained."""
    net, x = model(), rows(3)[0]
    parallel.shards.shard(net, parallel.current())
    first = ub.generate(net, x[:, :2], 3, temperature=0).log_probs.clone()
    found = fit(net, *rows(23), shard=True, epochs=1)
    later = [ub.generate(one, x[:, :2], 3, temperature=0) for one in (net, net.freeze())]
    return {"first": first, "later": [one.log_probs.clone() for one in later], **found}


def runs(folder: Path) -> dict:
    return {
        "rule": fit(model(), *rows(23), micro_batches=3, **rule()),
        "parts": fit(model(), *parts(), validation=parts(), micro_batches=2),
        "shards": fit(model(shares_head=True), *rows(23), shard=True, clip=0.1, **rule()),
        "loader": loader(),
        "disk": disk(folder),
        "loop": [loop(0), loop(5)],
        "written": written(),
    }


def refusals() -> dict[str, str]:
    """What does not go together; the model is left as it was."""
    told = {}
    for name, arguments in (("tied", {}), ("both", {"shares_head": True})):
        net = model(tied=True, **arguments)
        try:
            fit(net, *rows(23), shard=True)
        except ValueError as error:
            whole = not any(parallel.shards.is_sharded(p) for p in net.parameters())
            told[name] = f"{error}; whole: {whole}"
    try:
        fit(model(), ub.Stream(lambda generator: rows(4), 3, 500))
    except ValueError as error:
        told["stream"] = str(error)
    return told


def main(scenario: str, folder: Path) -> None:
    (folder / f"told.{parallel.rank()}.json").write_text(json.dumps(refusals()))
    found = runs(folder)
    if parallel.rank() == 0:
        torch.save(found, folder / f"{scenario}.pt")


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    several.main = main
    for name in ("_dynamo", "distributed.fsdp"):
        importlib.import_module(f"torch.{name}")  # once, before the processes part
    several.fork(Path(sys.argv[1]), sys.argv[2:])
