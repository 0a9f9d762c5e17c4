"""The rows of the table: each attack with the number of its cases."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.attack import pool

SECONDS, BYTES = 5.0, 1 << 30
"""What a file may take to be read or refused, at most."""


class Row(NamedTuple):
    """A line of the table."""

    name: str
    cases: int
    broken: int
    faults: list[str]


class Plan(NamedTuple):
    """Which cases to run."""

    scale: float = 1.0
    numbers: tuple[int, ...] = ()

    def of(self, count: int) -> Sequence[int]:
        """Those of an attack that has so many."""
        return self.numbers or range(max(round(count * self.scale), 1))


Attack = Callable[[Path, int, Plan, int], list[Row]]


def _row(name: str, outcomes: list[pool.Outcome], faults: list[str]) -> Row:
    return Row(name, len(outcomes), len(faults), faults[:20])


def _faults(outcomes: list[pool.Outcome]) -> list[str]:
    return [f"case {one.case}: {one.fault}" for one in outcomes if one.fault]


def _too_much(outcomes: list[pool.Outcome]) -> list[str]:
    return [
        f"case {one.case}: {one.seconds:.1f} s, {one.peak >> 20} MiB"
        for one in outcomes
        if one.seconds > SECONDS or one.peak > BYTES
    ]


def files(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """Mutated model files."""
    from benchmarks.attack.damaged import DamagedFiles

    attack = DamagedFiles(folder, seed)
    found = pool.run(attack.case, plan.of(20_000), workers)
    other = [one for one in found if one.fault.startswith("other numbers")]
    raw = [one for one in found if one.fault and one not in other]
    return [
        _row("mutated model files: raw error or “unexpected”", found, _faults(raw)),
        _row("mutated model files: other numbers", found, _faults(other)),
        _row("mutated model files: more than 1 GiB or 5 s", found, _too_much(found)),
    ]


def checkpoints(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """Mutated checkpoints."""
    from benchmarks.attack.damaged import DamagedCheckpoints

    attack = DamagedCheckpoints(folder, seed)
    found = pool.run(attack.case, plan.of(5_000), workers)
    return [
        _row("mutated checkpoints: raw error, or a model touched", found, _faults(found)),
        _row("mutated checkpoints: more than 1 GiB or 5 s", found, _too_much(found)),
    ]


def replaced(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """Reads of a file that is replaced every 2 ms."""
    from benchmarks.attack.replaced import Replaced

    with Replaced(folder) as attack:
        found = pool.run(attack.case, plan.of(10_000), workers)
    return [_row("reads of a file that is replaced: mixed or failed", found, _faults(found))]


def killed(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """SIGKILL at random moments."""
    from benchmarks.attack.killed import Killed

    found = pool.run(Killed(folder, seed).case, plan.of(200), workers)
    return [_row("SIGKILL at random moments: not resumed bit for bit", found, _faults(found))]


def interrupted(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """Ctrl-C and SIGTERM at random moments."""
    from benchmarks.attack.interrupted import Interrupted

    found = pool.run(Interrupted(folder, seed).case, plan.of(100), workers)
    return [_row("Ctrl-C and SIGTERM: best model not kept", found, _faults(found))]


def tables(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """Hostile tables through every command."""
    from benchmarks.attack.hostile import Hostile

    found = pool.run(Hostile(folder, seed).case, plan.of(10_000), workers)
    return [
        _row("hostile tables: traceback or half-written file", found, _faults(found)),
    ]


def roundtrip(folder: Path, seed: int, plan: Plan, workers: int) -> list[Row]:
    """Keys, labels and numbers through every format."""
    from benchmarks.attack import roundtrip as properties

    rows = []
    for name, tried, fault in properties.run(len(plan.of(400)), seed):
        rows.append(Row(f"round trip of {name}", tried, int(bool(fault)), [fault] * bool(fault)))
    return rows


ROWS: dict[str, Attack] = {
    "files": files,
    "checkpoints": checkpoints,
    "replaced": replaced,
    "killed": killed,
    "interrupted": interrupted,
    "tables": tables,
    "roundtrip": roundtrip,
}
