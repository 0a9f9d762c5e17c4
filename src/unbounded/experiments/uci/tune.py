"""Compare recipes by validation rows alone: `python -m unbounded.experiments.uci.tune`.

Trains variants of the UDN on parts of the training rows of some splits, as the study's own
selection does, and prints RMSE and NLL on the validation parts, relative to other networks. Test
rows are neither predicted nor scored; this is the place to try things out.

    python -m unbounded.experiments.uci.tune --data FOLDER --datasets yacht,wine --splits 4 \\
        --variants udn udn-slow concentration=3 concentration=3,rate=4,prior_rate=1

A variant is a name or says what it changes: concentration, rate, prior_rate, depth_lr_ratio. What
the study chooses on validation rows (the scale of the prior on the weights, the noise factor, here
also the best of the variants) is chosen on two thirds of them and scored on the last third, three
times in turn. With `--out` every candidate is written down as soon as it is trained, and not
trained again by the next call.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbounded import metrics
from unbounded.data import uci
from unbounded.experiments import listed, records
from unbounded.experiments.uci import scores, study
from unbounded.experiments.uci.models import FINITE, VARIANTS, Variant
from unbounded.experiments.uci.recipe import Recipe
from unbounded.experiments.uci.table import summary
from unbounded.printing import show

Row = dict[str, Any]
SELECT = ("nll", "rmse")
BEST = "best of the variants"
_FOLDS = 3


def variant(words: str) -> Variant:
    """A UDN from its name, or from words such as "concentration=3,rate=4"."""
    if words in VARIANTS:
        return VARIANTS[words]
    known = [field.name for field in fields(Variant)]
    changes = {}
    for part in words.split(","):
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(
                f"{words!r} is no variant: expected {', '.join(VARIANTS)}, or NAME=VALUE with "
                f"the names {', '.join(known)}"
            )
        changes[name] = float(value)
    return Variant(**changes)


def candidates(data: uci.UCISet, plan: study.UCISettings) -> list[Row]:
    """How every split, network and scale of the plan does on the validation parts."""
    return [
        {"set": data.name, "split": int(split), "model": name, "scale": scale, **scored(held_out)}
        for (split, name, scale), held_out in study.validate(data, plan).items()
    ]


def scored(held_out: Sequence[scores.HeldOut]) -> Row:
    """The scores of a candidate from what it predicts for the validation parts of a split.

    The row has, for each of three folds of the validation rows, `others`: the NLL, with the best
    noise factor, and the RMSE of the rows outside of it; and `squares` and `nll`: sums over its
    own `count` rows, with that factor. Beside them, averaged over the parts, E[ℓ], q(ℓ) and the
    RMSE of each depth alone.
    """
    size = max(len(one.predicted.probs) for one in held_out)
    probs = np.mean([_pad(one.predicted.probs, size, 0.0) for one in held_out], 0)
    alone = [_pad(_rmse(one.y - one.predicted.means), size, math.nan) for one in held_out]
    return {
        "folds": [_fold(held_out, fold) for fold in range(_FOLDS)],
        "depth_mean": float(probs @ np.arange(1, 1 + size)) if size > 1 else None,
        "probs": probs.tolist(),
        # None where not every part reaches that depth: JSON has no NaN.
        "rmse_of_depths": [float(v) if math.isfinite(v) else None for v in np.mean(alone, 0)],
    }


def _fold(held_out: Sequence[scores.HeldOut], fold: int) -> Row:
    others = [_rows(one, fold, inside=False) for one in held_out]
    factor, nll = scores.calibrate(others)
    rmse = float(_rmse(np.concatenate([_errors(one) for one in others])))
    if not math.isfinite(nll):  # it has diverged
        return {"others": {"nll": None, "rmse": None}}
    found: Row = {"others": {"nll": nll, "rmse": rmse}, "squares": 0.0, "nll": 0.0, "count": 0}
    for one in (_rows(one, fold, inside=True) for one in held_out):
        wide = one.predicted.widened(factor, one.least)
        found["squares"] += float(np.sum(_errors(one) ** 2))
        found["nll"] += len(one.y) * metrics.mixture_nll(one.y, wide.probs, wide.means, wide.scales)
        found["count"] += len(one.y)
    return found


def _rows(one: scores.HeldOut, fold: int, *, inside: bool) -> scores.HeldOut:
    """The rows of a fold, or all others."""
    rows = (np.arange(len(one.y)) % _FOLDS == fold) == inside
    probs, means, scales = one.predicted.probs, one.predicted.means, one.predicted.scales
    part = scores.Mixture(probs, means[:, rows], scales[:, rows])
    return scores.HeldOut(part, one.y[rows], one.least)


def _errors(one: scores.HeldOut) -> NDArray[np.float64]:
    """y − the mixture's mean, `(rows,)`."""
    return one.y - one.predicted.probs @ one.predicted.means


def _rmse(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis."""
    return np.asarray(np.sqrt(np.mean(errors**2, -1)))


def _pad(values: NDArray[np.float64], size: int, fill: float) -> NDArray[np.float64]:
    return np.pad(values, (0, size - len(values)), constant_values=fill)


def score(rows: Sequence[Row], by: str = "nll") -> dict[str, float]:
    """RMSE and NLL over the validation rows of one split, the candidate chosen `by` other rows.

    Both are infinite if all candidates have diverged.
    """
    total = {"squares": 0.0, "nll": 0.0, "count": 0}
    for fold in range(_FOLDS):
        folds = [row["folds"][fold] for row in rows]
        sound = [one for one in folds if one["others"][by] is not None]
        if not sound:
            return {"rmse": math.inf, "nll": math.inf}
        best = min(sound, key=lambda one: one["others"][by])
        for key in total:
            total[key] += best[key]
    count = total["count"]
    return {"rmse": math.sqrt(total["squares"] / count), "nll": total["nll"] / count}


def compare(
    rows: Sequence[Row], models: Sequence[str], variants: Sequence[str], by: str = "nll"
) -> str:
    """Set by set, each variant's RMSE divided by that of the models, and its NLL less theirs.

    Theirs is the mean over the models in the same split. Where there are several variants there
    is a line for the best of them, chosen like the scale. ± is the standard error over the splits,
    which share rows: a guide, not a test.
    """
    lines = [_line("set", "splits", "variant", "RMSE, ratio", "NLL, difference", "E[ℓ]")]
    for name in dict.fromkeys(row["set"] for row in rows):
        found: dict[tuple[int, str], list[Row]] = {}
        for row in (row for row in rows if row["set"] == name):
            found.setdefault((row["split"], row["model"]), []).append(row)
        groups = {one: [one] for one in variants}
        groups |= {BEST: list(variants)} if len(variants) > 1 else {}
        for label, group in groups.items():
            splits = {split for split, _ in found}
            complete = sorted(s for s in splits if all((s, m) in found for m in [*models, *group]))
            if not complete:
                continue
            ratios, differences = [], []
            for split in complete:
                theirs = [score(found[split, model], by) for model in models]
                mine = score([row for one in group for row in found[split, one]], by)
                ratios.append(mine["rmse"] * len(theirs) / sum(one["rmse"] for one in theirs))
                differences.append(mine["nll"] - sum(o["nll"] for o in theirs) / len(theirs))
            depths = [r["depth_mean"] for s in complete for r in found[s, group[0]]]
            mean = f"{sum(depths) / len(depths):.2f}" if label != BEST else ""
            shown = _mean(ratios), _mean(differences), mean
            lines.append(_line(name, str(len(complete)), label, *shown))
    return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    return "{:10} {:>6}  {:40} {:>15}  {:>15}  {:>5}".format(*cells).rstrip()


def _mean(values: Sequence[float]) -> str:
    mean, error = summary(values)
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def run(
    data: uci.UCISet, plan: study.UCISettings, kept: list[Row], path: Path | None = None
) -> None:
    """Train what is missing, model by model, and add it to `kept` and to the file."""
    for name in plan.singles:
        mine = [row for row in kept if (row["set"], row["model"]) == (data.name, name)]
        there = {(row["split"], row["scale"]) for row in mine}
        for scales, missing in _missing(plan, there).items():
            start = time.perf_counter()
            recipe = replace(plan.recipe, scales=scales)
            kept += candidates(data, replace(plan, splits=missing, models=[name], recipe=recipe))
            if path is not None:
                records.write_json(path, {"recipe": _fixed(plan.recipe), "rows": kept})
            words = f"{data.name}, {name}: {time.perf_counter() - start:.0f} s"
            show(words, file=sys.stderr)


def _missing(
    plan: study.UCISettings, there: set[tuple[int, float]]
) -> dict[tuple[float, ...], list[int]]:
    """The scales that are not trained yet → the splits that lack them."""
    found: dict[tuple[float, ...], list[int]] = {}
    for split in plan.splits:
        scales = tuple(scale for scale in plan.recipe.scales if (split, scale) not in there)
        if scales:
            found.setdefault(scales, []).append(split)
    return found


def _fixed(recipe: Recipe) -> dict[str, Any]:
    """What all rows of a file have in common."""
    return {k: v for k, v in recipe.config().items() if k != "scales"}


def main(arguments: list[str] | None = None) -> int:
    """Train and compare; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help=f"folder with NAME.npz of each set; else ${uci.FOLDER}")
    add("--datasets", default="yacht", help=f"of {','.join(uci.SETS)}")
    add("--splits", default="4", help="how many, or their numbers: 4 or 0,5,9")
    add("--variants", nargs="+", default=[*VARIANTS], metavar="WORDS", help="UDNs to compare")
    add("--models", default=",".join(FINITE), help="with the mean of these: f2 … f6, udn, dun")
    add("--scales", help="candidates for the scale of the prior on the weights")
    add("--steps", type=int, default=Recipe.steps, help="Adam steps of each network")
    add("--select", choices=SELECT, default="nll", help="what is chosen by")
    add("--out", type=Path, help="a file that keeps all candidates")
    add("--device", default="cpu")
    options = parser.parse_args(arguments)
    models = listed(options.models)
    try:
        recipe = replace(Recipe(), steps=options.steps)
        if options.scales:
            recipe = replace(recipe, scales=tuple(map(float, listed(options.scales))))
        numbers = splits(options.splits)
        variants = {words: variant(words) for words in options.variants}
        known = [*FINITE, *VARIANTS, "dun"]
        if not models or not set(models) <= set(known):
            raise ValueError(f"--models must be of {', '.join(known)}")
        names = uci.names(listed(options.datasets))
    except (ValueError, uci.DataError) as error:
        parser.error(str(error))
    rest = (0,), options.device, None, {**VARIANTS, **variants}
    plan = study.UCISettings("standard", numbers, [*models, *variants], recipe, *rest)
    kept: list[Row] = []
    if options.out is not None and options.out.is_file():
        document = records.read_json(options.out)
        if document["recipe"] != _fixed(recipe):
            parser.error(f"{options.out} was made with another recipe: {document['recipe']}")
        kept = document["rows"]
    for name in names:
        data = uci.load(name, options.data)
        run(data, plan, kept, options.out)
        mine = [row for row in kept if row["set"] == name and row["split"] in numbers]
        shown = [row for row in mine if row["scale"] in recipe.scales]
        show(compare(shown, models, list(variants), options.select))
    return 0


def splits(words: str) -> list[int]:
    """ "4" is the first four; "0,5,9" are these."""
    numbers = [int(word) for word in listed(words)]
    if not numbers or min(numbers) < 0:
        raise ValueError(f"--splits must be a number, or numbers with commas, got {words!r}")
    return numbers if "," in words else list(range(numbers[0]))


if __name__ == "__main__":
    sys.exit(main())
