"""A progress bar with the ELBO, the validation score, E[ℓ] and m."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from unbounded.printing import readable
from unbounded.training.history import Row


def epoch_text(row: Mapping[str, Any], score_name: str) -> str:
    """What a bar says of an epoch's row of the history."""
    parts = [f"elbo {row['elbo']:,.1f}"]
    name = f"val_{score_name}"
    if name in row:
        parts.append(f"val {score_name} {row[name]:.4g}")
    parts += [f"E[ℓ] {row['depth_mean']:.2f}", f"m {row['max_depth']}"]
    return ", ".join(parts)


class Progress:
    """A bar over epochs on standard error; silent if not shown."""

    def __init__(self, epochs: int, done: int, score_name: str, show: bool):
        self._score_name = score_name
        self._bar: Any = None
        self._last = 0.0
        self._pending = 0
        if show:
            from tqdm import tqdm

            self._bar = tqdm(
                total=epochs,
                initial=done,
                unit="epoch",
                file=sys.stderr,
                dynamic_ncols=True,
                smoothing=0.05,
            )

    def update(self, row: Row) -> None:
        """Count an epoch; the text is made anew at most ten times a second."""
        if self._bar is None:
            return
        self._pending += 1
        now = time.monotonic()
        if now - self._last < 0.1 and row["epoch"] < self._bar.total:
            return
        self._last = now
        text = epoch_text(row, self._score_name)
        self._bar.set_postfix_str(readable(text, sys.stderr), refresh=False)
        self._bar.update(self._pending)
        self._pending = 0

    def close(self) -> None:
        """Leave the last line standing."""
        if self._bar is not None:
            self._bar.update(self._pending)
            self._bar.close()
