"""The row "catboost": CatBoost with its defaults on the study's splits, for reference.

CatBoost predicts a number. A density is made of it in three ways, and each split has the one with
the least NLL on the validation parts of its training rows, where networks have theirs chosen too:

- "constant": one scale for all rows, found on the validation parts,
- "uncertainty": mean and scale of CatBoost's own loss for them, `RMSEWithUncertainty`,
- "both": the mean of the usual loss and the scales of the other.

All scales have a factor found on the same parts, and none is less than the rounding of the targets,
as those of the networks. What is chosen is then fitted again on all training rows. The RMSE is that
of the usual loss whatever was chosen, and the NLL of "constant" is kept beside that of the choice:
scales that are fitted too closely can do well on validation rows and badly on a few others.

Targets are standardised, as they are for networks: it leaves the usual loss as it is, and the other
one needs it on targets that hardly vary.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.data.uci import Floats, UCISet
from unbounded.experiments.uci import scores
from unbounded.experiments.uci.models import CATBOOST
from unbounded.experiments.uci.recipe import Rows, rounding, training_rows, validation_parts

if TYPE_CHECKING:
    from unbounded.experiments.uci.study import UCISettings

DENSITIES = ("constant", "uncertainty", "both")


def missing() -> str | None:
    """Why CatBoost cannot be run here; None if it can."""
    try:
        import catboost  # noqa: F401
    except ImportError as error:
        return f"{error} (pip install 'unbounded[rivals]')"
    return None


def versions() -> dict[str, str]:
    """What the results depend on."""
    import catboost

    return {CATBOOST: str(catboost.__version__)}


@dataclass(frozen=True)
class Boosting:
    """One model of CatBoost, and the units of its targets."""

    model: Any
    center: float
    scale: float

    @classmethod
    def fit(cls, data: UCISet, rows: Rows, loss: str, seed: int) -> "Boosting":
        """With CatBoost's defaults for a loss, on one thread."""
        from catboost import CatBoostRegressor

        y = data.y[rows]
        center, scale = float(y.mean()), float(y.std()) or 1.0
        model = CatBoostRegressor(
            loss_function=loss,
            random_seed=seed,
            thread_count=1,
            verbose=0,
            allow_writing_files=False,
        )
        return cls(model.fit(data.x[rows], (y - center) / scale), center, scale)

    def predict(self, x: Floats) -> tuple[Floats, Floats | None]:
        """Means and, of the loss that has them, standard deviations of rows, `(rows,)` each."""
        found = np.asarray(self.model.predict(x), np.float64)
        if found.ndim == 1:
            return found * self.scale + self.center, None
        return found[:, 0] * self.scale + self.center, np.sqrt(found[:, 1]) * self.scale


@dataclass(frozen=True)
class Pair:
    """Models of both losses on the same rows; the second where its scales are needed."""

    usual: Boosting
    uncertain: Boosting | None

    @classmethod
    def fit(cls, data: UCISet, rows: Rows, seed: int, *, with_scales: bool = True) -> "Pair":
        """Both on the same rows."""
        usual = Boosting.fit(data, rows, "RMSE", seed)
        loss = "RMSEWithUncertainty"
        return cls(usual, Boosting.fit(data, rows, loss, seed) if with_scales else None)

    def densities(self, x: Floats, constant: float) -> dict[str, scores.Mixture]:
        """The densities of rows that there are models for; `constant` is the scale of one."""
        mean, _ = self.usual.predict(x)
        found = {"constant": _normal(mean, np.full_like(mean, constant))}
        if self.uncertain is not None:
            own, scales = self.uncertain.predict(x)
            assert scales is not None
            found |= {"uncertainty": _normal(own, scales), "both": _normal(mean, scales)}
        return found


@dataclass(frozen=True)
class Boosted:
    """What a split has: the models on all training rows, and what was chosen before."""

    models: Pair
    density: str  # of `DENSITIES`
    constant: float  # the scale of "constant", before the factor
    factors: dict[str, float]  # density → what all its scales are multiplied by
    candidates: dict[str, float]  # density → NLL on the validation parts


def fit(data: UCISet, plan: "UCISettings", split: int, seed: int) -> Boosted:
    """Choose a density on parts of the training rows of a split, then fit on all of them."""
    rows = training_rows(data.masks(plan.kind)[split])
    parts = validation_parts(rows, plan.recipe, split)
    pairs = [Pair.fit(data, train, seed) for train, _ in parts]
    errors = [
        data.y[held] - pair.usual.predict(data.x[held])[0]
        for pair, (_, held) in zip(pairs, parts, strict=True)
    ]
    constant = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
    held_out: dict[str, list[scores.HeldOut]] = {name: [] for name in DENSITIES}
    for pair, (train, held) in zip(pairs, parts, strict=True):
        least = rounding(data.y[train])
        for name, found in pair.densities(data.x[held], constant).items():
            held_out[name].append(scores.HeldOut(found, data.y[held], least))
    fits = {name: scores.calibrate(held_out[name]) for name in DENSITIES}
    best = min(fits, key=lambda name: fits[name][1])
    models = Pair.fit(data, rows, seed, with_scales=best != "constant")
    factors, candidates = ({name: f[i] for name, f in fits.items()} for i in (0, 1))
    return Boosted(models, best, constant, factors, candidates)


def score(data: UCISet, plan: "UCISettings", split: int, model: Boosted) -> dict[str, Any]:
    """Its scores on the test rows: a row of the results, as the networks of the study have them."""
    test = data.masks(plan.kind)[split]
    x, y = data.x[test], data.y[test]
    least = rounding(data.y[~test])
    found = {
        name: predicted.widened(model.factors[name], least)
        for name, predicted in model.models.densities(x, model.constant).items()
    }
    constant = scores.score(found["constant"], y)
    return {
        "model": CATBOOST,
        "split": int(split),
        **scores.score(found[model.density], y),
        "rmse": constant["rmse"],
        "nll_constant": constant["nll"],
        "density": model.density,
        "noise_factor": model.factors[model.density],
        "validation_nll": model.candidates[model.density],
        "candidates": model.candidates,
    }


def _normal(means: Floats, scales: Floats) -> scores.Mixture:
    """A Gaussian for each row: a mixture of one component."""
    return scores.Mixture(np.ones(1), means[None], scales[None])
