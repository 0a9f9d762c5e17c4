"""Ctrl-C and SIGTERM at random moments: is the best model kept, and nothing left half-written?

`python -m benchmarks.attack_signals [--runs N] [--seed S]` sends a signal to `unbounded fit` on a
small table and to `unbounded.fit` with a checkpoint, at random moments after the first epoch until
the end of the command, and counts. Each run is a fork of this process, so that none has to import
torch anew.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import unbounded as ub
from unbounded.cli import main as command_line
from unbounded.training.trainer import Trainer

_PATIENCE = 120.0  # seconds until a run counts as hanging


class Outcome(NamedTuple):
    """How one run ended."""

    what: str  # "command" or "library"
    signal: str
    delay: float  # seconds after the first epoch
    fault: str  # what is wrong; empty if all is kept


def attack(runs: int, seed: int = 0) -> list[Outcome]:
    """Send signals to `runs` commands and as many library runs; how each ended."""
    draw = random.Random(seed)
    found = []
    with tempfile.TemporaryDirectory() as place:
        table = _table(Path(place) / "table.csv")
        for what, work, check in (
            ("command", lambda folder: _command(table, folder), _check_command),
            ("library", _library, _check_library),
        ):
            usual = _run(work, Path(place) / what, None, 0.0)[1]
            for number in range(runs):
                delay = draw.uniform(0.0, 1.05 * usual)
                chosen = draw.choice((signal.SIGINT, signal.SIGTERM))
                folder = Path(place) / f"{what}-{number}"
                status, _ = _run(work, folder, chosen, delay)
                fault = check(folder, status, chosen)
                found.append(Outcome(what, chosen.name, delay, fault))
    return found


def _run(
    work: Callable[[Path], int], folder: Path, number: signal.Signals | None, delay: float
) -> tuple[int, float]:
    """Run in a process of its own; its exit status, and its seconds after the first epoch."""
    folder.mkdir()
    notes = folder.with_name(f"{folder.name}-notes")
    notes.mkdir()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(work, folder, notes)
    begun = _wait(lambda: (notes / "epoch").exists() or _ended(pid) is not None)
    start = time.monotonic()
    if not begun:
        os.kill(pid, signal.SIGKILL)
    if number is not None:
        _wait(lambda: _ended(pid) is not None, delay)
        if _ended(pid) is None:
            os.kill(pid, number)
    if not _wait(lambda: _ended(pid) is not None):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - start


def _child(work: Callable[[Path], int], folder: Path, notes: Path) -> None:
    """Never returns."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        words = os.open(notes / "words", os.O_CREAT | os.O_WRONLY)
        os.dup2(words, 1)
        os.dup2(words, 2)
        original = Trainer._epoch

        def epoch(self: Trainer, *arguments: object) -> bool:
            found = original(self, *arguments)  # type: ignore[arg-type]
            (notes / "epoch").touch()
            return found

        Trainer._epoch = epoch  # type: ignore[method-assign, assignment]
        status = work(folder)
    except BaseException as error:
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ended(pid: int) -> int | None:
    """Whether a process has ended, without taking its status from who asks for it later."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if found is None else found.si_pid


def _wait(condition: Callable[[], bool], seconds: float = _PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def _words(folder: Path) -> str:
    return (folder.with_name(f"{folder.name}-notes") / "words").read_text()


# The command


def _table(path: Path) -> Path:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    kinds = ["up" if row[0] * row[1] > 0 else "down" for row in x.tolist()]
    rows = [",".join(f"{v:.4f}" for v in row) for row in x.tolist()]
    lines = ["a,b,c,kind", *(f"{row},{kind}" for row, kind in zip(rows, kinds, strict=True))]
    path.write_text("\n".join([*lines, ""]))
    return path


def _command(table: Path, folder: Path) -> int:
    words = ["fit", str(table), "--target", "kind", "--out", str(folder / "m.udn")]
    return command_line([*words, "--epochs", "25", "--patience", "25", "--device", "cpu"])


def _check_command(folder: Path, status: int, number: signal.Signals) -> str:
    words = _words(folder)
    if "Traceback" in words:
        return words[words.index("Traceback") :].strip()
    done = f"page:  {folder / 'm.html'}" in words
    # A signal after the command's last words ends the process as signals do.
    if status not in ((0,) if number == signal.SIGINT else (143,)) and not done:
        return f"exit status {status}: {words[-200:].strip()}"
    left = {path.name for path in folder.iterdir()}
    if left != {"m.udn", "m.html"}:
        return f"it left {sorted(left)}"
    model = ub.TableModel.load(folder / "m.udn", "cpu")
    return "" if model.estimator.best_epoch_ >= 1 else "no best epoch"


# The library


def _library(folder: Path) -> int:
    x, y = _classes(0)
    model = ub.UDN(ub.Dense(2, 16, 2), ub.Categorical(2))
    options = {"validation": _classes(1), "epochs": 60, "batch_size": 16, "progress": False}
    result = ub.fit(model, x, y, checkpoint=folder / "run.ckpt", **options)
    # What the model has must be what the result says.
    held, targets = _classes(1)
    score = (model.predict(held).classes == targets).double().mean().item()
    found = {"stopped": result.stopped, "score": score, "best": result.best_score}
    text = json.dumps({**found, "epochs": len(result.history)})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run is over
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "result.json").write_text(text)
    return 0


def _classes(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def _check_library(folder: Path, status: int, number: signal.Signals) -> str:
    words = _words(folder)
    left = {path.name for path in folder.iterdir()}
    if left == {"run.ckpt"} and (status == -number or "KeyboardInterrupt" in words):
        return ""  # it came between the end of `fit` and the note of its result
    if status != 0 or left != {"run.ckpt", "result.json"}:
        return f"status {status}, it left {sorted(left)}: {words[-200:].strip()}"
    result = json.loads((folder / "result.json").read_text())
    if result["stopped"] not in ("interrupted", "epochs"):
        return f"it stopped by {result['stopped']}"
    if abs(result["score"] - result["best"]) > 1e-6:
        return f"the model scores {result['score']}, its best epoch {result['best']}"
    model = ub.UDN(ub.Dense(2, 16, 2), ub.Categorical(2))
    options = {"validation": _classes(1), "epochs": 60, "batch_size": 16, "progress": False}
    path = folder / "run.ckpt"
    again = ub.fit(model, *_classes(0), checkpoint=path, resume=True, **options)
    return "" if len(again.history) == 60 else f"resumed, it has {len(again.history)} epochs"


def main() -> int:
    """Attack, and print how often all was kept; the exit status is 1 after a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="of each kind (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = attack(options.runs, options.seed)
    for what in ("command", "library"):
        mine = [one for one in found if one.what == what]
        kept = sum(not one.fault for one in mine)
        print(f"{what}: best model kept in {kept} of {len(mine)} runs")
    for one in found:
        if one.fault:
            print(f"  {one.what}, {one.signal} after {one.delay:.3f} s: {one.fault}")
    return int(any(one.fault for one in found))


if __name__ == "__main__":
    sys.exit(main())
