"""Which epoch is kept."""

from dataclasses import dataclass

from unbounded.engines.base import Row

_ANOTHER_DEPTH = 0.05  # of 1 + E[ℓ]: from then on it is another one


@dataclass
class BestEpoch:
    """The epoch that is kept so far."""

    epoch: int
    key: tuple[float, float]  # (chosen score, log score), both so that larger is better
    row: Row
    highest: tuple[float, float]  # of all keys so far; see `has_moved_on`


def has_moved_on(row: Row, key: tuple[float, float], best: BestEpoch, slack: float = 1.0) -> bool:
    """Whether a rule has found another depth since the best epoch, at no loss that is for sure.

    Early epochs, at which q is still wide, would win by luck otherwise, and q(ℓ) with them. A loss
    is one from the highest score so far: from one kept epoch to the next it would add up.

    Args:
        row: of this epoch; it has errors of its scores if a rule goes by held-out rows.
        key: its scores.
        best: the best epoch so far.
        slack: standard errors from which on a loss is for sure.
    """
    if "val_error" not in row:
        return False
    errors = slack * row["val_error"], slack * row["val_log_error"]
    if any(now < then - error for now, then, error in zip(key, best.highest, errors, strict=True)):
        return False
    found = row["depth_mean"]
    return bool(abs(found - best.row["depth_mean"]) > _ANOTHER_DEPTH * (1 + found))
