"""What the rows of the depth suite say: pure functions, from rows to verdicts.

For each problem and model the mean over seeds counts. One standard error is always that of the
best fixed depth's mean over seeds. With one seed there is none, and no verdict that needs it.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from unbounded.training import HeldOutAscent

Row = dict[str, Any]

WITHIN = 0.1  # of E[ℓ]: so far may other starts and lengths end from each other
LAYERS_ABOVE = 2  # how far the mode may be above the smallest depth that is enough
COST = 0.25  # of the search
_ROUNDING = 1e-9
_DEPTHS = ("depth_mean", "depth_mode")


@dataclass(frozen=True)
class Start:
    """The UDN from one start."""

    start: float
    score: float
    depth_mean: float
    depth_mode: float
    last_depth_mean: float


@dataclass(frozen=True)
class Pace:
    """Seconds an epoch of a network that trains alone, by its layers: a line for each kind.

    Measured by `python -m benchmarks.search`. Seconds of a population say little of this: networks
    that train as one computation share the time of the deepest.
    """

    fixed: tuple[float, float]  # with one head: without layers, and for each
    udn: tuple[float, float]  # with a head for each layer, and a look after every epoch
    resting: tuple[float, float]  # the same without a look

    def cost(self, udn: Sequence[Row], search: Sequence[Row]) -> float:
        """Seconds of a UDN over those of all fixed depths, one after the other."""
        passes: dict[int, float] = {}  # over all rows; fewer of networks that broke off
        for row in search:
            mine = row["layer_rows"] / row["depth"]
            passes[row["seed"]] = max(mine, passes.get(row["seed"], 0.0))
        passes = {seed: count for seed, count in passes.items() if count}
        depths = {row["depth"] for row in search}
        theirs = sum(self.fixed[0] + self.fixed[1] * depth for depth in depths)
        ours = []
        for row in udn:
            if row["seed"] in passes:
                times = _times(row)
                layers = row["layer_rows"] / (times * passes[row["seed"]])
                spared = _spared(row)
                ours += [
                    times * share * (line[0] + line[1] * layers)
                    for share, line in ((1 - spared, self.udn), (spared, self.resting))
                ]
        count = len({row["seed"] for row in udn} & passes.keys())
        return sum(ours) / count / theirs if count else math.inf


@dataclass(frozen=True)
class Verdict:
    """What was found on one problem; a verdict is None where its runs are missing.

    Attributes:
        problem: as its file describes it.
        best_depth: the fixed depth with the best mean test score, in hindsight.
        best_score: its score.
        error: the standard error of that.
        smallest: the smallest fixed depth within one standard error of the best.
        chosen_score: of the depth with the best validation score, seed by seed.
        chosen_depth: that depth, the mean over seeds.
        dun_score: of DUN.
        dun_mean: E[ℓ] of DUN.
        borrowed_score: each seed's score of the depth that is best on the test rows of the other
            seeds: what hindsight is worth on data that it has not seen.
        udn: the UDN from the usual start.
        starts: the UDN from each start.
        long_mean: E[ℓ] after the longest training.
        seconds: the UDN's over the search's, one network after the other where their pace is known,
            else of populations; None where these trained on different devices.
        arithmetic: the same for layers × rows.
        times: how many times the epochs of the fixed depths the UDN has trained.
        settled: the share of UDN runs whose rule came to rest.
        log_scores: mean test log scores (nats a row) of the best fixed depth, of the one that
            validation chooses, of DUN and of the UDN.
        regret: whether the UDN is within one standard error of the best.
        borrowed: whether the depth of `borrowed_score` is. It knows all but its own seed's test
            rows, so no method that chooses one depth can be expected to hold more often.
        as_chosen: whether it is as good as the depth that validation chooses.
        cheap: whether it costs at most a quarter of that search, both ways.
        parsimony: whether its mode is at most two above the smallest depth that is enough.
        start: whether all starts lead to one depth and score.
        length: whether a longer training leads to the same depth.
        last_start: whether E[ℓ] of the last epoch, not of the best one, is the same from all
            starts.
        last_length: the same for the longer training.
        longer: the verdict on the UDN that trains longer (of several lengths, the least), against
            the same fixed depths: what one network is worth that takes up more of the search's
            cost.
    """

    problem: Row
    best_depth: int
    best_score: float
    error: float | None
    smallest: int | None
    chosen_score: float
    chosen_depth: float
    dun_score: float | None
    dun_mean: float | None
    borrowed_score: float | None
    udn: Start
    starts: tuple[Start, ...]
    long_mean: float | None
    seconds: float | None
    arithmetic: float
    times: int
    settled: float
    log_scores: dict[str, float | None]
    regret: bool | None
    borrowed: bool | None
    as_chosen: bool
    cheap: bool | None
    parsimony: bool | None
    start: bool | None
    length: bool | None
    last_start: bool | None
    last_length: bool | None
    longer: "Verdict | None" = None

    @property
    def chosen(self) -> bool | None:
        """Whether the depth that validation chooses is within one standard error of the best."""
        if self.error is None:
            return None
        return within(self.chosen_score, self.best_score, self.error, _sign(self.problem["task"]))

    @property
    def loss(self) -> float:
        """How much worse the UDN is than the best fixed depth, in standard errors."""
        sign = _sign(self.problem["task"])
        worse = sign * (self.best_score - self.udn.score)
        if not self.error:
            return 0.0 if abs(worse) < _ROUNDING else math.copysign(math.inf, worse)
        return worse / self.error


def verdict(
    problem: Row, rows: Sequence[Row], start: float, pace: Pace | None = None
) -> Verdict | None:
    """The verdict on a problem; None if it has no fixed depths or no UDN from `start`.

    Args:
        problem: its description.
        rows: of all its runs.
        start: the first μ of the UDN that is compared.
        pace: of networks of this problem that train alone, if it was measured.
    """
    fixed = by(rows, "depth", lambda row: row["model"] == "fixed")
    usual = by(rows, "start", lambda row: row["model"] == "udn" and row["length"] == 1)
    longer = by(rows, "length", lambda row: row["model"] == "udn" and row["length"] > 1)
    dun = [row for row in rows if row["model"] == "dun"]
    if not fixed or start not in usual:
        return None
    sign = _sign(problem["task"])
    means = {depth: mean_score(mine, sign) for depth, mine in fixed.items()}
    best = max(means, key=lambda depth: (sign * means[depth], -depth))
    error = standard_error([row["test_score"] for row in fixed[best]])
    smallest = None
    if error is not None:
        enough = [d for d, m in means.items() if within(m, means[best], error, sign)]
        smallest = min(enough)
    borrowed = None if error is None else borrowed_score(fixed, sign)
    search = [row for mine in fixed.values() for row in mine]
    picks = chosen_by_validation(search, sign)
    chosen = mean_score(picks, sign)
    starts = tuple(_start(mu, mine, sign) for mu, mine in sorted(usual.items()))
    udn = next(one for one in starts if one.start == start)
    spent, longest = (longer[choose(longer)] if longer else [] for choose in (min, max))
    long_mean, long_last = (_mean(longest, name) for name in ("depth_mean", "last_depth_mean"))
    logs = {"best": fixed[best], "chosen": picks, "DUN": dun, "UDN": usual[start]}
    arithmetic = cost(usual[start], search, "layer_rows")
    devices = {row.get("device") for row in (*usual[start], *search)}
    if pace is not None:
        seconds: float | None = pace.cost(usual[start], search)
    else:
        seconds = cost(usual[start], search, "seconds") if len(devices) == 1 else None
    return Verdict(
        problem=problem,
        best_depth=best,
        best_score=means[best],
        error=error,
        smallest=smallest,
        chosen_score=chosen,
        chosen_depth=statistics.fmean(row["depth"] for row in picks),
        dun_score=mean_score(dun, sign) if dun else None,
        dun_mean=_mean(dun, "depth_mean"),
        borrowed_score=borrowed,
        udn=udn,
        starts=starts,
        long_mean=long_mean,
        seconds=seconds,
        arithmetic=arithmetic,
        times=max(_times(row) for row in usual[start]),
        settled=statistics.fmean(row.get("settled_epoch") is not None for row in usual[start]),
        log_scores={name: _mean(mine, "test_log_score") for name, mine in logs.items()},
        regret=None if error is None else within(udn.score, means[best], error, sign),
        borrowed=(
            None
            if error is None or borrowed is None
            else within(borrowed, means[best], error, sign)
        ),
        as_chosen=within(udn.score, chosen, 0.0, sign),
        cheap=None if seconds is None else max(seconds, arithmetic) <= COST,
        parsimony=None if smallest is None else udn.depth_mode <= smallest + LAYERS_ABOVE,
        start=same_ends(starts, error),
        length=None if long_mean is None else near([udn.depth_mean, long_mean]),
        last_start=near([s.last_depth_mean for s in starts]) if len(starts) > 1 else None,
        last_length=None if long_last is None else near([udn.last_depth_mean, long_last]),
        longer=verdict(problem, [*search, *dun, *_as_usual(spent, start)], start, pace),
    )


def _as_usual(rows: Sequence[Row], start: float) -> list[Row]:
    """Runs of another kind in place of the usual UDNs."""
    return [
        {**row, "model": "udn", "length": 1, "start": start, "times": row["length"]} for row in rows
    ]


def _spared(row: Row) -> float:
    """The share of the epochs after which q(ℓ) has rested and was not looked at."""
    settled, trace = row.get("settled_epoch"), row.get("depth_trace")
    if settled is None or not trace:
        return 0.0
    epochs = trace[-1][0]
    return (_irregular(epochs) - _irregular(settled)) / epochs


@cache
def _irregular(epochs: int) -> int:
    """After how many of these epochs a rule looks only if q(ℓ) does not rest."""
    rule = HeldOutAscent()
    return sum(not rule.is_regular(epoch) for epoch in range(1, epochs + 1))


def _times(row: Row) -> int:
    """How many times as long as the fixed depths a UDN has trained."""
    times: int = row["times"] if "times" in row else row["length"]
    return times


def by(rows: Iterable[Row], field: str, accept: Callable[[Row], bool]) -> dict[Any, list[Row]]:
    """The accepted rows, by a field."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        if accept(row):
            found.setdefault(row[field], []).append(row)
    return found


def mean_score(rows: Sequence[Row], sign: int) -> float:
    """The mean test score; the worst there is if a run has none."""
    values = [row["test_score"] for row in rows]
    return -sign * math.inf if None in values else statistics.fmean(values)


def standard_error(values: Sequence[float | None]) -> float | None:
    """Of their mean; None for one value alone, and where one is missing."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or len(known) < len(values):
        return None
    return statistics.stdev(known) / math.sqrt(len(known))


def within(score: float, best: float, error: float, sign: int) -> bool:
    """Whether a score is at most `error` worse than the best; sign is 1 if higher is better."""
    return sign * (best - score) <= error + _ROUNDING * max(1.0, abs(best))


def chosen_by_validation(fixed: Sequence[Row], sign: int) -> list[Row]:
    """For each seed the run with the best validation score; the shallower one of equals."""

    def key(row: Row) -> tuple[float, int]:
        value = row["val_score"]
        return (-math.inf if value is None else sign * value), -row["depth"]

    return [max(mine, key=key) for _, mine in sorted(by(fixed, "seed", lambda _: True).items())]


def borrowed_score(fixed: dict[int, list[Row]], sign: int) -> float | None:
    """The mean over seeds of the depth with the best mean test score on all other seeds.

    None unless every depth has the same seeds, two at least.
    """
    scores = {depth: {row["seed"]: row["test_score"] for row in r} for depth, r in fixed.items()}
    seeds = set.union(*map(set, scores.values()))
    if len(seeds) < 2 or any(set(one) != seeds or None in one.values() for one in scores.values()):
        return None
    found = []
    for seed in seeds:
        others = {d: statistics.fmean(one[s] for s in seeds - {seed}) for d, one in scores.items()}
        best = max(others, key=lambda depth: (sign * others[depth], -depth))
        found.append(scores[best][seed])
    return statistics.fmean(found)


def cost(udn: Sequence[Row], search: Sequence[Row], field: str) -> float:
    """What a UDN costs over what all fixed depths cost, of the seeds that both have."""
    seeds = {row["seed"] for row in udn} & {row["seed"] for row in search}
    ours = sum(row[field] for row in udn if row["seed"] in seeds)
    theirs = sum(row[field] for row in search if row["seed"] in seeds)
    return ours / theirs if theirs else math.inf


def near(depths: Sequence[float]) -> bool:
    """Whether mean depths differ by at most a tenth of their mean."""
    return max(depths) - min(depths) <= WITHIN * statistics.fmean(depths) + _ROUNDING


def same_ends(starts: Sequence[Start], error: float | None) -> bool | None:
    """Whether all starts lead to one E[ℓ] and to one score; None for one start alone."""
    if len(starts) < 2 or error is None:
        return None
    scores = [one.score for one in starts]
    apart = max(scores) - min(scores)
    return near([one.depth_mean for one in starts]) and apart <= error + _ROUNDING


# Over the problems -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Criterion:
    """One thing to reach: on which share of the problems it must hold; the cost on average."""

    name: str
    field: str  # of `Verdict`
    goal: float
    about: str


CRITERIA = (
    Criterion("regret", "regret", 0.85, "not worse than the best fixed depth by more than 1 s.e."),
    Criterion("search", "as_chosen", 0.60, "at least as good as the depth that validation chooses"),
    Criterion("cost", "cheap", 0.0, "at most ¼ of that search's seconds and arithmetic"),
    Criterion("parsimony", "parsimony", 0.80, "mode at most 2 above the smallest depth in 1 s.e."),
    Criterion("start", "start", 0.80, "E[ℓ] within 10 % and score within 1 s.e. from every start"),
    Criterion("length", "length", 0.80, "E[ℓ] within 10 % after the longer training"),
)


def share(verdicts: Iterable[Verdict], field: str) -> tuple[int, int]:
    """On how many problems it holds, of how many that were judged."""
    judged = [getattr(one, field) for one in verdicts if getattr(one, field) is not None]
    return sum(judged), len(judged)


def costs(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """Seconds and arithmetic over the search's, on average over the problems that have them."""
    seconds = [one.seconds for one in verdicts if one.seconds is not None]
    return (
        statistics.fmean(seconds) if seconds else math.nan,
        statistics.fmean(one.arithmetic for one in verdicts),
    )


def reached(verdicts: Sequence[Verdict], criterion: Criterion) -> bool | None:
    """Whether it holds often enough, for the cost on average; None if no problem was judged."""
    held, judged = share(verdicts, criterion.field)
    if not judged:
        return None
    if criterion.field == "cheap":
        return max(costs(verdicts)) <= COST
    return held >= criterion.goal * judged - _ROUNDING


def _start(mu: float, rows: Sequence[Row], sign: int) -> Start:
    mean, mode = (statistics.fmean(row[name] for row in rows) for name in _DEPTHS)
    last = _mean(rows, "last_depth_mean")
    return Start(mu, mean_score(rows, sign), mean, mode, mean if last is None else last)


def _mean(rows: Sequence[Row], field: str) -> float | None:
    """None where there are no rows, or one has no such number."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return statistics.fmean(values) if values and len(values) == len(rows) else None


def _sign(task: str) -> int:
    """1 if a higher score is better."""
    return 1 if task == "classes" else -1
