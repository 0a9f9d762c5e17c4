"""Compare recipes by validation rows alone: `python -m unbounded.experiments.uci.tune`.

Trains variants of the UDN, and finite networks beside them, on parts of the training rows of some
splits, as the study's own selection does, and prints RMSE and NLL on the validation parts. Test
rows are neither predicted nor scored; this is the place to try things out.

    python -m unbounded.experiments.uci.tune --data FOLDER --datasets yacht,wine --splits 4 \\
        --variants "udn" "concentration=3" "concentration=3,rate=4,prior_rate=1"

A variant names what it changes: concentration, rate, prior_rate, depth_lr_ratio. With `--out` every
candidate is written down as soon as it is trained, and not trained again by the next call.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from unbounded.data import uci
from unbounded.experiments import records
from unbounded.experiments.uci import scores, study
from unbounded.experiments.uci.models import FINITE, VARIANTS, Variant
from unbounded.experiments.uci.recipe import Recipe

Row = dict[str, Any]
SELECT = ("nll", "rmse")


def variant(words: str) -> Variant:
    """A UDN from its name, or from words such as "concentration=3,rate=4".

    Raises:
        ValueError: if it is neither.
    """
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


def candidates(data: uci.UCISet, plan: study.Plan) -> list[Row]:
    """Scores on the validation parts of every split, network and scale of the plan.

    Each row has the RMSE and the NLL over the rows of all parts of a split, the latter with the
    noise factor that is best there; and, averaged over the parts, E[ℓ], q(ℓ) and the RMSE of each
    depth alone. Finite networks have one depth, and None for E[ℓ].
    """
    found = []
    for (split, name, scale), held_out in study.validate(data, plan).items():
        factor, nll = scores.calibrate(held_out)
        depths = np.arange(1, 1 + max(len(one.predicted.probs) for one in held_out))
        alone = [_errors(one.y - one.predicted.means, len(depths)) for one in held_out]
        probs = np.mean([_pad(one.predicted.probs, len(depths), 0.0) for one in held_out], 0)
        mixed = [one.y - one.predicted.probs @ one.predicted.means for one in held_out]
        found.append(
            {
                "set": data.name,
                "split": int(split),
                "model": name,
                "scale": scale,
                "rmse": float(np.sqrt(np.mean(np.concatenate(mixed) ** 2))),
                "nll": nll,
                "factor": factor,
                "depth_mean": float(probs @ depths) if len(depths) > 1 else None,
                "probs": probs.tolist(),
                # None where not every part reaches that depth: JSON has no NaN.
                "rmse_of_depths": [v if math.isfinite(v) else None for v in np.mean(alone, 0)],
            }
        )
    return found


def _errors(errors: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """RMSE of each component `(component, rows)`; NaN where there is none."""
    return _pad(np.sqrt(np.mean(errors**2, 1)), size, math.nan)


def _pad(values: np.ndarray[Any, Any], size: int, fill: float) -> np.ndarray[Any, Any]:
    return np.pad(values, (0, size - len(values)), constant_values=fill)


def selected(rows: Sequence[Row], by: str = "nll") -> list[Row]:
    """Of each set, split and model the candidate that is best by `by`, "nll" or "rmse"."""
    best: dict[tuple[str, int, str], Row] = {}
    for row in rows:
        key = row["set"], row["split"], row["model"]
        value = row[by] if math.isfinite(row[by]) else math.inf
        if key not in best or value < best[key][by]:
            best[key] = row
    return list(best.values())


def compare(rows: Sequence[Row], by: str = "nll") -> str:
    """Set by set, the RMSE divided by that of the finite networks, and the NLL less theirs.

    Theirs is the mean over f2 … f6 in the same split. ± is the standard error over the splits,
    which share rows: a guide, not a test.
    """
    chosen = selected(rows, by)
    head = ("set", "splits", "model", "RMSE / finite", "NLL − finite", "E[ℓ]")
    lines = ["{:10} {:>6}  {:36} {:>15}  {:>15}  {:>5}".format(*head)]
    for name in dict.fromkeys(row["set"] for row in chosen):
        mine = [row for row in chosen if row["set"] == name]
        finite = _finite(mine)
        for model in dict.fromkeys(row["model"] for row in mine):
            these = [row for row in mine if row["model"] == model]
            pairs = [(r, finite[r["split"]]) for r in these if r["split"] in finite]
            if model in FINITE or not pairs:
                continue
            ratio = _summary([r["rmse"] / f["rmse"] for r, f in pairs])
            difference = _summary([r["nll"] - f["nll"] for r, f in pairs])
            depths = [r["depth_mean"] for r, _ in pairs]
            lines.append(
                f"{name:10} {len(pairs):6}  {model:36} {ratio:>15}  {difference:>15}  "
                f"{sum(depths) / len(depths):5.2f}"
            )
    return "\n".join(lines) + "\n"


def _finite(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """The mean RMSE and NLL of f2 … f6, for each split that has all of them."""
    found = {}
    for split in {row["split"] for row in rows}:
        each = [row for row in rows if row["split"] == split and row["model"] in FINITE]
        if len(each) == len(FINITE):
            found[split] = {k: sum(row[k] for row in each) / len(each) for k in ("rmse", "nll")}
    return found


def _summary(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return f"{mean:.3f} ± {error:.3f}"


def run(data: uci.UCISet, plan: study.Plan, kept: list[Row], path: Path | None = None) -> None:
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
            print(words, file=sys.stderr, flush=True)


def _missing(plan: study.Plan, there: set[tuple[int, float]]) -> dict[tuple[float, ...], list[int]]:
    """Scales that are still to be trained → the splits of which that is so."""
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
    add("--variants", nargs="+", default=["udn"], metavar="WORDS", help="UDNs to compare")
    add("--models", default=",".join(FINITE), help="what is trained beside them")
    add("--scales", help="candidates for the scale of the prior on the weights")
    add("--steps", type=int, default=Recipe.steps, help="Adam steps of each network")
    add("--select", choices=SELECT, default="nll", help="by what a scale is chosen")
    add("--out", type=Path, help="a file that keeps all candidates")
    add("--device", default="cpu")
    options = parser.parse_args(arguments)
    recipe = replace(Recipe(), steps=options.steps)
    if options.scales:
        recipe = replace(recipe, scales=tuple(map(float, _list(options.scales))))
    try:
        variants: Mapping[str, Variant] = {words: variant(words) for words in options.variants}
    except ValueError as error:
        parser.error(str(error))
    models = [*_list(options.models), *variants]
    kept: list[Row] = []
    if options.out is not None and options.out.is_file():
        document = records.read_json(options.out)
        if document["recipe"] != _fixed(recipe):
            parser.error(f"{options.out} was made with another recipe: {document['recipe']}")
        kept = document["rows"]
    for name in uci.names(_list(options.datasets)):
        data = uci.load(name, options.data)
        plan = study.Plan(
            "standard", splits(options.splits), models, recipe, (0,), options.device, None, variants
        )
        run(data, plan, kept, options.out)
        wanted = [r for r in kept if r["model"] in models and r["split"] in plan.splits]
        print(compare([r for r in wanted if r["set"] == name], options.select), flush=True)
    return 0


def splits(words: str) -> list[int]:
    """ "4" is the first four; "0,5,9" are these."""
    numbers = [int(word) for word in _list(words)]
    return numbers if "," in words else list(range(numbers[0]))


def _list(words: str) -> list[str]:
    return [word for word in words.replace(",", " ").split() if word]


if __name__ == "__main__":
    sys.exit(main())
