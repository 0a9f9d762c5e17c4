"""The row "realmlp": RealMLP-TD with its defaults on the study's splits, for reference.

It predicts a number. It holds out a fifth of the rows that it is given, to choose its epoch by;
which rows these are is decided here, so that their errors are known. Their root mean square is the
scale of all rows, and none is less than the rounding of the targets.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unbounded.data.uci import Floats, UCISet
from unbounded.experiments.uci import scores
from unbounded.experiments.uci.models import REALMLP
from unbounded.experiments.uci.recipe import rounding, training_rows

if TYPE_CHECKING:
    from unbounded.experiments.uci.study import UCISettings

_HELD = 0.2  # its own default


def missing() -> str | None:
    """Why it cannot be run here; None if it can."""
    try:
        import pytabkit  # noqa: F401
    except ImportError as error:
        return f"{error} (pip install 'unbounded[rivals]')"
    return None


def versions() -> dict[str, str]:
    """What the results depend on."""
    from importlib.metadata import version

    return {"pytabkit": version("pytabkit")}


@dataclass(frozen=True)
class Fitted:
    """A model of a split, and the scale of its errors."""

    model: Any
    scale: float

    def predict(self, x: Floats) -> Floats:
        """Means of rows, `(rows,)`."""
        return np.asarray(self.model.predict(_seen(x)), np.float64).ravel()


def _seen(x: Floats) -> Any:
    return x.astype(np.float32)


def fit(data: UCISet, plan: "UCISettings", split: int, seed: int) -> Fitted:
    """Fit on the training rows of a split, with one thread."""
    from pytabkit import RealMLP_TD_Regressor

    rows = np.random.default_rng(seed).permutation(training_rows(data.masks(plan.kind)[split]))
    count = int(_HELD * len(rows))
    held, learnt = np.sort(rows[:count]), np.sort(rows[count:])
    model = RealMLP_TD_Regressor(n_threads=1, device="cpu", random_state=seed, verbosity=0)
    model.fit(_seen(data.x[learnt]), data.y[learnt], X_val=_seen(data.x[held]), y_val=data.y[held])
    found = Fitted(model, 0.0)
    errors = data.y[held] - found.predict(data.x[held])
    return Fitted(model, max(float(np.sqrt(np.mean(errors**2))), rounding(data.y[rows])))


def score(data: UCISet, plan: "UCISettings", split: int, model: Fitted) -> dict[str, Any]:
    """Its scores on the test rows: a row of the results, as the networks of the study have them."""
    test = data.masks(plan.kind)[split]
    means = model.predict(data.x[test])
    normal = scores.Mixture(np.ones(1), means[None], np.full_like(means, model.scale)[None])
    return {"model": REALMLP, "split": int(split), **scores.score(normal, data.y[test])}
