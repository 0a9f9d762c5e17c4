"""All recipes side by side: what a folder of folders, one for each recipe, has to tell.

FOLDER/NAME/runs/*.json   the runs of one recipe, see `study`
FOLDER/NAME/about.json    what the runs ask ("asks"), what has to be known of them ("note"), whether
                          they shared a GPU ("shared") or are a "trial"; may be missing
FOLDER/table.md, *.svg    made from all of them
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unbounded.experiments import records
from unbounded.experiments.cifar10 import evaluated, figures, published, table
from unbounded.experiments.cifar10.models import OTHERS, fixed_depth, label
from unbounded.experiments.cifar10.plan import classes_label
from unbounded.experiments.cifar10.presets import EARLIER
from unbounded.experiments.cifar10.recipe import Recipe, ignored_by
from unbounded.experiments.cifar10.results import (
    Result,
    headline,
    read,
    select,
    settings,
    spread_of,
)
from unbounded.experiments.cifar10.study import MARK
from unbounded.experiments.pages import markdown_table, plus_minus, publish

_TRAIN_IMAGES = 50_000


class Part(NamedTuple):
    """The runs of one recipe."""

    name: str
    results: list[Result]
    found: list[dict[str, Any]]  # what was seen of its kept models
    about: Mapping[str, Any]

    @property
    def recipe(self) -> dict[str, Any]:
        """With fields that did not exist when it was run."""
        last: dict[str, Any] = self.results[-1]["recipe"]  # a UDN's, if there is one
        return {**Recipe().config(), **EARLIER, **last}

    @property
    def images(self) -> int:
        """How many of all ten classes are learned from."""
        recipe = self.recipe
        there: int = recipe["images"] or _TRAIN_IMAGES
        return there - int(recipe["validation"]) - int(recipe["held_out"])

    @property
    def is_trial(self) -> bool:
        """Whether its accuracies are not to be compared with others."""
        return bool(self.about.get("trial"))

    @property
    def has_other_blocks(self) -> bool:
        """Whether residual networks are not made of the paper's blocks."""
        return bool(self.recipe.get("block", "bottleneck") != "bottleneck")


def folders(folder: Path) -> list[Path]:
    """The folders of studies within a folder; quick looks mean nothing."""
    found = sorted(path.parent for path in folder.glob("*/runs") if any(path.glob("*.json")))
    return [path for path in found if not (path / MARK).is_file()]


def parts(folder: Path) -> list[Part]:
    """What is in these."""
    found = []
    for path in folders(folder):
        about = path / "about.json"
        told = records.read_json(about) if about.is_file() else {}
        found.append(Part(path.name, read(path), evaluated.read_found(path), told))
    return found


def write(folder: Path) -> str:
    """Write tables and figures of each recipe, then of all; returns the latter's tables."""
    for path in folders(folder):
        table.write(path)
    every = parts(folder)
    sets = {part.name: part.results for part in every if not part.is_trial}
    looks = {part.name: (part.found, part.results) for part in every if part.found}
    shared = [part.name for part in every if part.about.get("shared")]
    note = f"Hollow: runs that shared the GPU ({', '.join(shared)})" if shared else ""
    drawings: dict[str, tuple[Callable[..., None], tuple[float, float]]] = {
        "seconds.svg": (
            partial(figures.seconds, results=sets, shared=shared, note=note),
            (8.7, 5.0),
        ),
        "exits.svg": (partial(evaluated.exits, looks=looks), evaluated.SIZES["exits.svg"]),
        "reliability.svg": (
            partial(evaluated.reliability, looks=looks),
            evaluated.SIZES["reliability.svg"],
        ),
    }
    return publish(folder, markdown(every), drawings)


def markdown(every: Sequence[Part]) -> str:
    """Everything as one page of tables."""
    page = [brief(every), "### Table 2: ours by each recipe\n", accuracy_table(every)]
    page += ["### The recipes\n", recipes_table(every)]
    return "\n".join(page)


def brief(every: Sequence[Part]) -> str:
    """What matters most: Table 2 in short, in words, and what was seen of kept models."""
    page = ["### Table 2 in short: ours by the recipe that suits each model best\n"]
    page += [short_table(every), "### Where ours are better, and where not\n", words(every)]
    page += ["### Some of the classes\n", classes_table(every)]
    looked = evaluated.summary_table({part.name: part.found for part in every})
    page += ["### Ensembles, calibration, corrupted and foreign images\n", looked] if looked else []
    return "\n".join(page)


def best_runs(
    every: Sequence[Part], group: str = "published"
) -> dict[str, tuple[Part, table.Line]]:
    """Of each model that was run, the recipe with the highest mean accuracy; trials do not count.

    Args:
        every: all recipes.
        group: the rows of Table 2 ("published"), with the paper's blocks where a network is made of
            such; "further" networks, that Table 2 does not have; or networks of other "blocks".
    """
    found: dict[str, tuple[Part, table.Line]] = {}
    for part, line in _lines(every):
        if not line.runs or part.is_trial or _group(part, line) != group:
            continue
        before = found.get(line.model)
        if before is None or _accuracy(line) > _accuracy(before[1]):
            found[line.model] = part, line
    return found


def _group(part: Part, line: table.Line) -> str:
    if part.has_other_blocks and line.model not in OTHERS:
        return "blocks"
    if line.known:
        return "published"
    return "" if line.model == "udn" else "further"  # a UDN by another rule than the main one


def short_table(every: Sequence[Part]) -> str:
    """A line for each row of Table 2, for further networks, and for those of other blocks."""
    best = best_runs(every)
    rows = []
    for row in published.TABLE:
        cells = [row.label, plus_minus(row.mean, row.deviation, 1)]
        if row.model in best:
            difference = _signed(_accuracy(best[row.model][1]) - row.mean)
            rows.append([*cells, *_short_cells(*best[row.model], difference)])
        else:
            rows.append([*cells, *["–"] * 6])
    for model, (part, line) in best_runs(every, "further").items():
        rows.append([label(model), "–", *_short_cells(part, line, "–")])
    for model, (part, line) in best_runs(every, "blocks").items():
        name = f"{label(model)}, {part.recipe['block']} blocks"
        rows.append([name, "–", *_short_cells(part, line, "–")])
    head = ["model", "published", "ours", "difference", "recipe", "epochs", "images", "seeds"]
    note = "\nOf several recipes this is the one with the highest test accuracy"
    return markdown_table(head, rows) + f"{note}; `table.md` of `results/cifar10` has all.\n"


def _short_cells(part: Part, line: table.Line, difference: str) -> list[str]:
    cells = [plus_minus(*spread_of(line.runs, "test_accuracy", 0.01), 2), difference]
    cells += [_with_rule(part.name, line), f"{part.recipe['epochs']}"]
    return [*cells, f"{part.images:,}", f"{len(line.runs)}"]


def accuracy_table(every: Sequence[Part]) -> str:
    """A line for each row of Table 2 and each recipe by which it was run."""
    head = ["model", "published", "recipe", "epochs", "images", "ours", "seeds"]
    found: dict[str, list[tuple[Part, table.Line]]] = {}
    best = {part.name: table.best_of(table.lines(part.results)) for part in every}
    for part, line in _lines(every):
        found.setdefault(line.model, []).append((part, line))
    rows, models = [], list[table.Line]()
    for group in found.values():
        known = next((line.known for _, line in group if line.known), None)
        cells = [known.label if known else label(group[0][1].model)]
        cells.append(plus_minus(known.mean, known.deviation, 1) if known else "–")
        ran = [(part, line) for part, line in group if line.runs]
        for part, line in ran:
            models.append(line)
            how = [_recipe_cell(part, line), f"{part.recipe['epochs']}", f"{part.images:,}"]
            shown = [table.accuracy_cell(line.runs, best[part.name]), str(len(line.runs))]
            shown += [*table.score_cells(line.runs), *table.cost_cells(line.runs)]
            rows.append([*cells, *how, *shown])
            cells = ["", ""]
        if not ran:
            rows.append([*cells, *["–"] * (len(head) + len(table.SCORES) + len(table.COSTS) - 2)])
    note = f"\nBold: the best of a recipe. {table.EXPLAINED}\n"
    text = markdown_table([*head, *table.SCORES, *table.COSTS], rows)
    return text + note + table.reasons(models)


def words(every: Sequence[Part]) -> str:
    """In plain words: ours beside the published, and the UDN beside others, recipe by recipe."""
    best = best_runs(every)
    sides: dict[str, list[str]] = {"above": [], "within a deviation": [], "below": []}
    for row in published.TABLE:
        if row.model in best:
            part, line = best[row.model]
            gap = _accuracy(line) - row.mean
            side = "above" if gap > row.deviation else "below" if gap < -row.deviation else ""
            told = f", {part.recipe['epochs']} epochs" if side == "below" else ""
            shown = f"{label(row.model)} ({_signed(gap)}, {part.name}{told})"
            sides[side or "within a deviation"].append(shown)
    text = "Beside the published figures, each model by the recipe that suits it best:\n\n"
    for side, names in sides.items():
        text += f"- {side}: {', '.join(names)}\n" if names else ""
    missing = [label(row.model) for row in published.TABLE if row.model not in best]
    text += f"- not run: {', '.join(missing)}\n" if missing else ""
    each = [line for part in every if not part.is_trial for line in _beside(part)]
    if each:
        text += "\nThe UDN beside the best of the others, by the same recipe (± standard error):"
        text += "\n\n" + "".join(f"- {line}\n" for line in each)
    return text


def _beside(part: Part) -> list[str]:
    """The UDN of a recipe beside the best fixed depth, and beside the best of other kinds."""
    main = headline(part.results)
    if not main:
        return []
    groups: dict[str, list[table.Line]] = {"fixed depth": [], "other kind": []}
    for line in table.lines(part.results):
        if line.runs and line.model != "udn":
            kind = "other kind" if fixed_depth(line.model) is None else "fixed depth"
            groups[kind].append(line)
    found = []
    for kind, others in groups.items():
        if not others:
            continue
        best = max(others, key=lambda line: spread_of(line.runs, "test_accuracy").mean)
        ours, theirs = (spread_of(r, "test_accuracy", 0.01) for r in (main, best.runs))
        gap = ours.mean - theirs.mean
        counted = [(ours.deviation, len(main)), (theirs.deviation, len(best.runs))]
        error: float | None = None
        if all(deviation is not None for deviation, _ in counted):
            error = math.sqrt(sum((deviation or 0.0) ** 2 / n for deviation, n in counted))
        shown = _signed(gap) if error is None else f"{_signed(gap)} ± {error:.2f}"
        if error is None:
            verdict = "one seed tells little"
        elif abs(gap) <= 2 * error:
            verdict = "no difference that these seeds could tell"
        else:
            verdict = "the UDN is better" if gap > 0 else "the UDN is worse"
        count = f"{len(others)} {kind}" + ("s" if len(others) > 1 else "")
        found.append(
            f"{part.name}, {count}: UDN {ours.mean:.2f}, {label(best.model)} {theirs.mean:.2f}: "
            f"{shown}, {verdict}"
        )
    return found


def classes_table(every: Sequence[Part]) -> str:
    """The UDN on some of the classes, and on all, of the recipes that have both."""
    rows = []
    for part in every:
        own = [tuple(r["run"]["classes"]) for r in select(part.results, "udn")]
        for group in dict.fromkeys(sorted(own, key=lambda g: (not g, *g))):
            if not any(own):
                continue
            runs = headline(part.results, group)
            known = published.ACCURACY.get(group)
            depth = spread_of(runs, "depth_mean")
            accuracy = spread_of(runs, "test_accuracy", 0.01)
            cells = [part.name, classes_label(group), "–" if known is None else f"{known:.0f}"]
            cells += [plus_minus(*accuracy, 2), plus_minus(*depth, 2), str(len(runs))]
            rows.append(cells)
    head = ["recipe", "classes", "accuracy, paper", "accuracy, ours", "E[ℓ]", "seeds"]
    return markdown_table(head, rows) if rows else "The UDN was run on all ten classes alone.\n"


def recipes_table(every: Sequence[Part]) -> str:
    """What was run by each recipe, what differs from the standard one, where it ran."""
    usual = Recipe().config()
    rows = []
    for part in every:
        recipe = settings(part.results)
        unseen = frozenset.intersection(*(ignored_by(r["run"]) for r in part.results))
        earlier = EARLIER.keys() - recipe.keys() - unseen
        recipe |= {key: value for key, value in EARLIER.items() if key in earlier}
        ours = {key: value for key, value in recipe.items() if usual.get(key) != value}
        changed = ", ".join(f"{k} {_plain(v)}" for k, v in ours.items()) or "nothing"
        names = dict.fromkeys(label(r["run"]["model"]) for r in part.results)
        devices = dict.fromkeys(r["versions"].get("device", "?") for r in part.results)
        minutes = sum(r["seconds"] for r in part.results) / 60
        cells = [f"`{part.name}`", str(part.about.get("asks", "–")), changed, ", ".join(names)]
        cells += [f"{len(part.results)}", f"{minutes:.0f}", ", ".join(devices)]
        rows.append([*cells, str(part.about.get("note", "–"))])
    head = ["folder", "asks", "other than standard", "models", "runs", "minutes", "on", "note"]
    return markdown_table(head, rows)


def _accuracy(line: table.Line) -> float:
    """Its mean in percent; 94.39999… is 94.4."""
    return round(spread_of(line.runs, "test_accuracy", 0.01).mean, 6)


def _lines(every: Sequence[Part]) -> list[tuple[Part, table.Line]]:
    """Line by line of Table 2, each recipe by recipe; what is not in Table 2 in its place."""
    each = [(part, line) for part in every for line in table.lines(part.results)]
    return sorted(each, key=lambda pair: table.order(pair[1].model))


def _recipe_cell(part: Part, line: table.Line) -> str:
    other = part.has_other_blocks and line.model not in OTHERS
    told = [f"{part.recipe['block']} blocks"] if other else []
    return _with_rule(part.name, line, told)


def _with_rule(name: str, line: table.Line, told: Sequence[str] = ()) -> str:
    """The name of a recipe, and of a UDN how q(ℓ) is found."""
    rule = [f"rule {line.runs[0]['run']['rule']}"] if line.model == "udn" else []
    every = [*told, *rule]
    return f"{name} ({', '.join(every)})" if every else name


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
