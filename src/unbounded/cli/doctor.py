"""`unbounded doctor`: what is installed, where it computes, and what is missing for what."""

import argparse
import os
import platform
from importlib import metadata
from typing import Any

from unbounded.cli import common
from unbounded.cli.common import Console

NAME = "doctor"
HELP = "show versions, device and missing extras"
DESCRIPTION = """\
Show what is installed: versions, the device that "auto" takes, threads and free memory, and which
extras are missing, what each is for and how to get it. Nothing is changed."""
EPILOG = """\
examples:
  unbounded doctor
  unbounded doctor --json | jq .device
"""

NEEDED = ("torch", "numpy", "safetensors", "scikit-learn", "tqdm")
EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tables": ("tables in files and frames, unbounded fit", ("pandas", "pyarrow")),
    "export": ("ONNX files, unbounded export", ("onnx", "onnxruntime")),
    "figures": ("figures of the studies", ("matplotlib",)),
    "images": ("folders of pictures", ("pillow",)),
    "tensorboard": ("training curves in TensorBoard", ("tensorboard",)),
    "lightning": ("UDNModule for Lightning's trainer", ("lightning",)),
    "accelerate": ("loops with Accelerate", ("accelerate",)),
    "mlflow": ("training curves in MLflow", ("mlflow-skinny",)),
    "wandb": ("training curves in Weights & Biases", ("wandb",)),
    "optuna": ("searches with early ends of trials", ("optuna",)),
    "rich": ("a progress bar by rich", ("rich",)),
    "cluster": ("Dask and Ray beside BatchPredictor", ("dask", "ray")),
    "baselines": ("more solvers for NODE, ANODE and MDEQ", ("torchdiffeq", "torchdeq")),
    "docs": ("the pages, make docs", ("sphinx", "myst-nb", "furo", "sphinx-copybutton")),
    "rivals": ("CatBoost and RealMLP, to compare with", ("catboost", "pytabkit")),
}
"""Of each extra what it is for, and its packages."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded doctor`."""
    common.add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Look, and tell."""
    console = Console(options)
    found = findings()
    versions, device = found["versions"], found["device"]
    console.say(common.columns_of_text([[f"  {name}", text] for name, text in versions.items()]))
    memory = device["free_memory"]
    room = "" if memory is None else f", {memory / 2**30:.1f} GiB of memory free"
    console.say(
        f"\n  device {device['name']} ({device['what']}), {device['threads']} threads{room}\n"
    )
    rows = [["  extra", "for", "packages"]]
    for name, one in found["extras"].items():
        packages = [f"{p} {v or 'is missing'}" for p, v in one["packages"].items()]
        rows.append([f"  {name}", one["for"], ", ".join(packages)])
    console.say(common.columns_of_text(rows))
    console.say("")
    for problem in found["problems"]:
        console.say(f"  {problem}")
    for step in found["next"]:
        console.say(f"  {step}")
    if not found["problems"] and not found["next"]:
        console.say("  nothing is missing")
    console.result(found)


def findings() -> dict[str, Any]:
    """All that is told, as plain data."""
    import torch

    from unbounded import __version__
    from unbounded.devices import free_memory, resolve_device

    device = resolve_device("auto")
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    extras: dict[str, Any] = {
        name: {"for": about, "packages": {package: _version(package) for package in packages}}
        for name, (about, packages) in EXTRAS.items()
    }
    missing = [name for name, one in extras.items() if None in one["packages"].values()]
    versions = {"unbounded": __version__, "Python": platform.python_version()}
    versions |= {name: _version(name) or "is missing" for name in NEEDED}
    return {
        "versions": versions,
        "system": platform.platform(),
        "device": {
            "name": str(device),
            "what": what,
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
            "cores": _cores(),
            "free_memory": free_memory(device),
        },
        "extras": extras,
        "problems": _problems(),
        "next": [f"pip install 'unbounded[{name}]' for {EXTRAS[name][0]}" for name in missing],
    }


def _problems() -> list[str]:
    """What is there and does harm."""
    import torch

    found = []
    if torch.version.cuda is not None and not torch.cuda.is_available():
        found.append(
            "this torch is made for CUDA, and no GPU can be used: look at the driver (nvidia-smi), "
            "or install torch for CPUs"
        )
    if torch.get_num_threads() > _cores():
        found.append(
            f"torch takes {torch.get_num_threads()} threads for {_cores()} cores, which wait for "
            f"each other: set OMP_NUM_THREADS={_cores()}"
        )
    return found


def _cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
