"""What the sequence study set out to reach, and whether its networks do."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
LITTLE = 0.05
"""The error up to which a task counts as learnt."""
BITS = 0.01
"""Bits a character that a UDN may be behind the best fixed depth, and that exits may lose."""
SHARE = 1 / 3
"""Of a search's seconds that a UDN may take."""
PACE, GENERATION, EXITS = 0.6, 0.7, 1.3
"""Tokens a second: of training and generation against a fixed network, of exits against none."""


@dataclass(frozen=True)
class Judged:
    """One problem: networks of fixed depths, and UDNs beside them.

    Attributes:
        rows: of the problem.
        fixed: the mean score of each fixed depth; less is better.
        seconds: that a search takes: of each depth once.
        udn: the rows of the UDNs.
    """

    rows: list[Row]
    fixed: dict[int, float]
    seconds: float
    udn: list[Row]

    @property
    def least(self) -> int | None:
        """The smallest depth that has learnt the task."""
        return min((d for d, score in self.fixed.items() if score <= LITTLE), default=None)

    @property
    def best(self) -> int | None:
        """The depth with the best score."""
        return min(self.fixed, key=self.fixed.__getitem__, default=None)

    @property
    def score(self) -> float:
        """The mean of the UDNs."""
        return statistics.fmean(map(score, self.udn))

    @property
    def modes(self) -> list[int]:
        """Of q(ℓ), by seed."""
        return [row["depth_mode"] for row in self.udn]

    @property
    def fits(self) -> bool:
        """Whether each mode is within 1 of the least depth that learns it, or of the best one."""
        wanted = [depth for depth in (self.least, self.best) if depth is not None]
        return all(min(abs(mode - depth) for depth in wanted) <= 1 for mode in self.modes)

    @property
    def cost(self) -> float:
        """Seconds of a UDN over those of a search, where the machine was the same; else NaN."""
        there = {row.get("device") for row in self.rows if row["model"] == "fixed"}
        same = [seconds(row) for row in self.udn if row.get("device") in there]
        return statistics.fmean(same) / self.seconds if same else math.nan


def score(row: Row) -> float:
    """Bits of text, errors of the rest: less is better."""
    found: float = row["bits"] if row["task"] == "text" else row["error"]
    return found


def seconds(row: Row) -> float:
    """Of training, as when the fixed depths were trained.

    `pace` is how much longer one of these took when it was trained again beside this network.
    """
    found: float = row["seconds"] / row.get("pace", 1.0)
    return found


def problems(rows: Sequence[Row]) -> list[str]:
    """Their names: hops, then words by group and length, then text by size."""
    order = {"hops": 0, "words": 1, "text": 2}
    found = {row["name"]: (order[row["task"]], row["group"], row["number"]) for row in rows}
    return sorted(found, key=found.__getitem__)


def by_depth(rows: Sequence[Row], model: str = "fixed") -> dict[int, list[Row]]:
    """Networks of fixed depths by depth, in order; "equal": those at equal parameters."""
    mine = [row for row in rows if row["model"] == model]
    depths = sorted({row["depth"] for row in mine})
    return {depth: [row for row in mine if row["depth"] == depth] for depth in depths}


def judged(rows: Sequence[Row], name: str) -> Judged:
    """The networks of one problem."""
    mine = [row for row in rows if row["name"] == name]
    fixed = by_depth(mine)
    return Judged(
        mine,
        {depth: statistics.fmean(map(score, of)) for depth, of in fixed.items()},
        sum(statistics.fmean(map(seconds, of)) for of in fixed.values()),
        [row for row in mine if row["model"] == "udn"],
    )


def verdicts(rows: Sequence[Row], timed: Row | None = None) -> list[tuple[str, str, bool | None]]:
    """(goal, what was found, whether it is reached), None where nothing is there to tell.

    Args:
        rows: of all networks.
        timed: what `python -m benchmarks.sequences` has written.
    """
    each = [judged(rows, name) for name in problems(rows)]
    hops = [one for one in each if one.rows[0]["task"] == "hops" and one.udn]
    whole = [one for one in each if one.rows[0]["task"] == "text" and one.fixed and one.udn]
    return [*_of_hops(hops), *(_of_text(whole[-1]) if whole else ()), *_timed(timed)]


def _of_hops(hops: Sequence[Judged]) -> list[tuple[str, str, bool | None]]:
    learnt = [one for one in hops if one.least is not None]
    late = [one for one in learnt if one.score > LITTLE]
    apart = [one for one in learnt if not one.fits]
    own = [one for one in hops if one.score <= LITTLE]  # depth without success says nothing
    means = [statistics.fmean(one.modes) for one in own]
    rises = all(a <= b for a, b in itertools.pairwise(means))
    nobody = "no fixed depth has it" if any(one.fixed for one in hops) else "not trained"
    return [
        (
            f"k-hop: error at most {LITTLE:.0%} wherever a fixed depth has it",
            f"fixed depths at k = {_numbers(learnt)}, "
            + (f"the UDN not at k = {_numbers(late)}" if late else "and the UDN")
            if learnt
            else nobody,
            not late if learnt else None,
        ),
        (
            "k-hop: mode within 1 of the smallest such depth, or of the best",
            (f"not at k = {_numbers(apart)}" if apart else f"at k = {_numbers(learnt)}")
            if learnt
            else nobody,
            not apart if learnt else None,
        ),
        (
            "k-hop: depth rises with k",
            f"modes {', '.join(f'{mean:g}' for mean in means)} at k = {_numbers(own)}"
            if own
            else ("no UDN has learnt it" if hops else nobody),
            rises if len(means) > 1 else None,
        ),
    ]


def _numbers(some: Sequence[Judged]) -> str:
    return ", ".join(f"{one.rows[0]['number']:g}" for one in some)


def _of_text(text: Judged) -> list[tuple[str, str, bool | None]]:
    assert text.best is not None
    gap = text.score - text.fixed[text.best]
    return [
        (
            f"text: within {BITS:g} bits of the best fixed depth",
            f"{text.score:.4f}, depth {text.best} has {text.fixed[text.best]:.4f}: {gap:+.4f}",
            gap <= BITS,
        ),
        (
            "text: in at most a third of the search's seconds",
            f"{text.cost:.2f} of those of depths {min(text.fixed)} to {max(text.fixed)}",
            text.cost <= SHARE,
        ),
    ]


def _timed(timed: Row | None) -> list[tuple[str, str, bool | None]]:
    pace = written = exits = None
    found = ["not measured"] * 3
    if timed is not None:
        pace = timed["training"]["tokens_a_second_ratio"]
        where = f", on {timed['versions']['device']}"
        there = timed["training"].get("device")  # if that was timed elsewhere
        found[0] = f"{pace:.2f} at depth {timed['training']['depth']}"
        found[0] += f", on {there}" if there else where
        written = timed["generation"][0]["against_finite"]
        found[1] = f"{written:.2f} in one sequence{where}"
        lost = timed.get("exits", {}).get("lost", {})
        gains = timed["generation"][0]["exits"]
        least = [level for level, one in lost.items() if one["bits"] <= BITS]
        if least:
            # By layers, not by speed: of several timings the fastest would be a lucky one.
            level = min(least, key=lambda level: lost[level]["layers"])
            exits = gains[level]
            found[2] = f"{exits:.2f} within {level}, {lost[level]['bits']:+.4f} bits{where}"
    return [
        (
            f"text: training at {PACE:.0%} of the tokens a second of the fixed network as deep",
            found[0],
            None if pace is None else pace >= PACE,
        ),
        (
            f"generation: {GENERATION:g} of the frozen finite network's tokens a second",
            found[1],
            None if written is None else written >= GENERATION,
        ),
        (
            f"generation: exits {EXITS:g} times as fast at {BITS:g} bits lost",
            found[2],
            None if exits is None else exits >= EXITS,
        ),
    ]
