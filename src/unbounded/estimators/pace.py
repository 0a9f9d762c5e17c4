"""How much training a table gets: by a word, or by the clock."""

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from unbounded import parallel
from unbounded.training import preset
from unbounded.training.callbacks import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from unbounded.training.trainer import Trainer


class Quality(NamedTuple):
    """What a word for the quality stands for."""

    steps: float  # times the usual number of training steps
    members: int  # of the ensemble
    most: int  # networks where one after another fits into the time of a single one


QUALITIES = {
    "fast": Quality(0.3, 1, 1),
    "default": Quality(1.0, 1, 4),
    "best": Quality(1.5, 5, 5),
}


TRIAL = 8
"""A training that only tells whether another one is worth while is a so-maniest part of it."""

SHARING = 16
"""Members that share one network, where nobody says how many."""

_LITTLE = 0.2  # of the targets' standard deviation: what is left is not mostly noise


def quality(name: str) -> Quality:
    """The quality of that name, or a ValueError that says which there are."""
    if not isinstance(name, str) or name not in QUALITIES:
        raise ValueError(f"quality must be one of {sorted(QUALITIES)}, got {name!r}")
    return QUALITIES[name]


def heeds_overfitting(estimator: Any) -> bool:
    """Whether the training of an estimator ends early (`early_end`).

    Where the rate falls, and unless told otherwise; other trainings have a patience.
    """
    return estimator.patience == "auto" and preset(estimator.preset).schedule is not None


class Clock(Callback):
    """Ends training before a time is over, and says how much of it is done.

    Args:
        seconds: from now on; None for no limit.
        epochs: of the training, where the time is enough for them.
        most: of them, after which it ends wherever the rate is; None for all.
    """

    def __init__(self, seconds: float | None, epochs: int, most: int | None = None):
        self.seconds, self.epochs, self.most = seconds, epochs, most
        self.start = self._last = time.monotonic()
        self.is_over = False
        self._alone = parallel.current().size == 1

    def done(self, epoch: int) -> float:
        """Which share of the training the middle of an epoch is at, of epochs or of time.

        So a rate that falls has fallen when the time is over. Several processes go by epochs alone:
        their clocks differ, and their rates must not.
        """
        share = (epoch + 0.5) / self.epochs
        if self.seconds is not None and self._alone:
            share = max(share, (time.monotonic() - self.start) / self.seconds)
        return min(share, 1.0)

    def part(self, count: int) -> "Clock":
        """One for a part of such a training, from now on: epochs and seconds divided by `count`."""
        seconds = None if self.seconds is None else self.seconds / count
        return Clock(seconds, max(1, self.epochs // count))

    @property
    def left(self) -> float | None:
        """Seconds until the time is over, a moment at least; None for no limit."""
        if self.seconds is None:
            return None
        return max(self.start + self.seconds - time.monotonic(), 1e-3)

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """Stop where another epoch would take too long, or be one too many."""
        if self.most is not None and trainer.epoch >= self.most:
            trainer.stop()
        now = time.monotonic()
        took, self._last = now - self._last, now
        if self.seconds is not None and now - self.start + took > self.seconds:
            self.is_over = True
            trainer.stop()


class PastBest(Callback):
    """Ends the training of numbers that are full of noise once the best epoch is long ago.

    There it comes early, while the rate is high, and what is won back as the rate falls is less
    than what was lost. So training ends after three times the best epoch of every model, but not in
    its first three tenths. Where little is left of the targets an early epoch is the best by luck,
    and training goes on. Figures: docs/tables.md.

    Args:
        epochs: of the whole training.
        spread: standard deviation of the held-out targets.
    """

    def __init__(self, epochs: int, spread: float):
        self.epochs, self.earliest, self.little = epochs, 0.3 * epochs, _LITTLE * spread
        self.lowest = math.inf

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """Stop where it is."""
        self.lowest = min(self.lowest, row.get("val_rmse", math.inf))
        best = max((one.best.epoch for one in trainer.members if one.best), default=trainer.epoch)
        is_past = self.epochs > trainer.epoch >= max(self.earliest, 3 * best)
        if is_past and self.lowest > self.little:
            trainer.stop()


class Overfits(Callback):
    """Ends the training of classes once rows have been learnt by heart for long.

    A rate that falls wins back little of what is lost by then, and no epoch to come would be kept.
    So it ends where the held-out loss, in every epoch of a twentieth of the training and in three
    at least, is above its lowest by 15 % of that and by 2 nats in all rows. The first tenth of the
    training is left alone. Figures: docs/tables.md.

    Args:
        epochs: of the whole training.
        rows: that are held out.
    """

    def __init__(self, epochs: int, rows: int):
        self.earliest, self.length = math.ceil(epochs / 10), max(3, math.ceil(epochs / 20))
        self.rows, self.lowest, self.above = rows, math.inf, 0

    def on_epoch_end(self, trainer: "Trainer", row: Mapping[str, Any]) -> None:
        """Stop where it has been so for long."""
        loss = -row["val_log_score"]
        self.lowest = min(self.lowest, loss)
        much = max(0.15 * self.lowest, 2 / self.rows)
        self.above = self.above + 1 if loss > self.lowest + much else 0
        if self.above >= self.length and trainer.epoch > self.earliest:
            trainer.stop()


def early_end(targets: "Tensor", epochs: int) -> Callback:
    """What ends a training of so many epochs that is judged by these targets, `(rows, …)`."""
    if targets.is_floating_point():
        spread = float(targets.double().var(0, correction=0).mean().sqrt())
        return PastBest(epochs, spread)
    return Overfits(epochs, len(targets))
