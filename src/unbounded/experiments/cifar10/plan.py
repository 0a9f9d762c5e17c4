"""Which runs make the study: pure functions from the options to a list.

The paper trains fixed depths on all ten classes alone (Table 2), UDNs on these and on two pairs of
classes (its figure of posteriors), and UDNs from several λ₀ on all ten (its figure of the
evolution). Without `--classes` that is what is run. With it, every model is run on every group.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from unbounded.data.cifar10 import ALIASES, CLASSES
from unbounded.experiments import listed
from unbounded.experiments.cifar10.models import canonical
from unbounded.experiments.cifar10.published import EASY, HARD
from unbounded.experiments.cifar10.recipe import RULES, STARTS, CifarRun

STUDY: tuple[tuple[str, ...], ...] = ((), EASY, HARD)
"""The groups of the whole study; () is all ten classes."""
MODELS = ("udn", "5", "10", "20")
SEEDS = (0, 1, 2)
T = TypeVar("T")


def plan(
    models: Sequence[str] = MODELS,
    seeds: Sequence[int] = SEEDS,
    classes: Sequence[tuple[str, ...]] | None = None,
    lambda0: Sequence[float] | None = None,
    rules: Sequence[str] = ("ascent",),
) -> list[CifarRun]:
    """The runs, one seed after the other, so that the first ones already make a table.

    Groups of classes are for every model; without any, as in the paper, the pairs are for the UDN
    with one λ₀ and one rule alone. Without any λ₀ each rule starts where it usually does.
    """
    found = []
    for seed in seeds:
        for group in STUDY if classes is None else classes:
            everything = classes is not None or group == ()
            for model in models:
                if model == "udn":
                    ways = rules if everything else rules[:1]
                    starts = {way: _starts(way, lambda0, everything) for way in ways}
                    found += [CifarRun(model, seed, group, s, w) for w in ways for s in starts[w]]
                elif everything:
                    found.append(CifarRun(model, seed, group))
    return found


def _starts(rule: str, lambda0: Sequence[float] | None, everything: bool) -> Sequence[float]:
    """Where the UDN starts with a rule: everywhere it was asked to, or in one place."""
    usual = STARTS[rule]
    if lambda0 is None:
        return (usual,)
    return lambda0 if everything else (usual if usual in lambda0 else lambda0[0],)


def models_of(words: str) -> tuple[str, ...]:
    """ "udn,5,omega10 resnet18" ↦ the names of models."""
    try:
        return _once("--models", map(canonical, listed(words)))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith("--") else f"--models: {text}") from None


def seeds_of(words: str) -> tuple[int, ...]:
    """ "3" ↦ 0, 1, 2; "0,4" ↦ 0, 4; "4," ↦ 4."""
    names = listed(words)
    if not names or not all(name.isdecimal() and name.isascii() for name in names):
        raise ValueError(f"--seeds: a count or a list of whole numbers, got {words!r}")
    if len(names) > 1 or "," in words:
        return _once("--seeds", map(int, names))
    return _once("--seeds", range(int(names[0])))


def lambdas_of(words: str) -> tuple[float, ...]:
    """ "1,5" ↦ 1.0, 5.0."""
    try:
        values = [float(word) for word in listed(words)]
    except ValueError:
        values = [float("nan")]
    if not all(0 < value < float("inf") for value in values):
        raise ValueError(f"--lambda0: positive numbers were expected, got {words!r}")
    return _once("--lambda0", values)


def rules_of(words: str) -> tuple[str, ...]:
    """ "ascent,gradient" ↦ the names of rules."""
    names = listed(words)
    for name in names:
        if name not in RULES:
            raise ValueError(f"--rules: there is no {name!r}; there are: {', '.join(RULES)}")
    return _once("--rules", names)


def classes_of(words: Iterable[str] | None) -> tuple[tuple[str, ...], ...] | None:
    """["deer,car", "all"] ↦ (("deer", "automobile"), ()); None stays None.

    The paper's pairs come in the paper's order, however they were written, so that they are the
    same runs.
    """
    return None if words is None else _once("--classes", map(_group, words))


def classes_label(classes: Sequence[str]) -> str:
    """A group of classes for people."""
    return " + ".join(classes) or "all ten classes"


def _group(word: str) -> tuple[str, ...]:
    if word == "all":
        return ()
    names = [ALIASES.get(n, n) for n in listed(word.replace("+", ","))]
    for name in names:
        if name not in CLASSES:
            known = ", ".join(CLASSES)
            raise ValueError(f"--classes: there is no {name!r}; there are: all, {known}")
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise ValueError(f"--classes: at least two different ones make a group, got {word!r}")
    if set(names) == set(CLASSES):
        return ()
    return next((pair for pair in (EASY, HARD) if set(pair) == set(names)), tuple(names))


def _once(option: str, values: Iterable[T]) -> tuple[T, ...]:
    """Without repetitions, in their order; at least one."""
    found = tuple(dict.fromkeys(values))
    if not found:
        raise ValueError(f"{option}: at least one is needed")
    return found
