"""Studies in several processes: python studied.py FOLDER, in each of them."""

import json
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import torch

import several
from test_cifar10_study import Trainer, some_images
from test_uci import small_set, write_set
from unbounded import cli, parallel
from unbounded.data import cifar10 as images
from unbounded.experiments import figures
from unbounded.experiments.cifar10 import runs as image_runs
from unbounded.experiments.sequences import runs as sequence_runs

STUDIES = {
    "spiral": "--omegas 1 9 --seeds 2 --epochs 3 --width 4 --no-references --models udn omega2 "
    "--chunk 2",
    "uci": "--datasets yacht --splits 2 --models f2,deep-ensemble --quick --steps 20 --width 8 "
    "--seeds 0,1 --chunk 2",
    "depth": "--quick --problems sklearn-iris --no-long --seeds 0 --depths 1 2 --table-steps 20",
    "sequences": "--quick --tasks hops --depths 1 2 --width 8 --heads 1 --rows 8 --steps 4",
    "cifar10": "--quick --models udn,5,10",
}

REPLACED = ((figures, "render"), (image_runs, "train"), (images, "load"))
"""What `prepare` puts something else in the place of."""


def study(name: str, folder: Path, *more: str) -> tuple[int, str, str]:
    """Exit status and words of a study, whose files are then in FOLDER/NAME."""
    words = ["reproduce", name, *STUDIES[name].split(), "--device", "cpu", *more]
    words += ["--data", str(folder / "data")] if name == "uci" else []
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = cli.main([*words, "--out", str(folder / name)])
    return status, out.getvalue(), err.getvalue()


def prepare(folder: Path) -> Trainer:
    """Made-up sets and pictures, and who pretends to train on these; figures are left empty."""
    if parallel.rank() == 0:
        (folder / "data").mkdir(parents=True)
        write_set(folder / "data", small_set())
    parallel.current().gather(None)  # until it is there
    found = Trainer()
    figures.render = lambda *arguments: "<svg/>"
    image_runs.train = found
    images.load = lambda folder=None: images.CIFAR10(some_images(60), some_images(30))
    return found


def main(scenario: str, folder: Path) -> None:
    trainer = prepare(folder)
    told = {name: study(name, folder) for name in STUDIES}
    told["images"] = trainer.names
    told["jobs"] = study("depth", folder, "--jobs", "2")
    # Whoever comes to a network fails at it: all end, and what is done stays.
    again, real = folder / "again", sequence_runs.train

    def fails(run, *arguments):
        if run.depth == 2:
            raise OSError("the disk is gone")
        return real(run, *arguments)

    sequence_runs.train = fails
    told["failed"] = study("sequences", again)
    sequence_runs.train = real
    told["resumed"] = study("sequences", again, "--resume")
    (folder / f"told.{parallel.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    several.main = main
    several.fork(Path(sys.argv[1]), ["studies"])
