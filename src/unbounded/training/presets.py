"""Named recipes: what a network is made of and how its depth is found if nobody says otherwise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unbounded.depth import DepthFamily, TruncatedNormal, TruncatedPoisson
from unbounded.layers import Dense, Layers, PreNormDense
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.held_out import HeldOutAscent


@dataclass(frozen=True)
class Preset:
    """A recipe for dense networks.

    Attributes:
        name: by which it is asked for.
        layers: (in_features, width, out_features) ↦ the layers.
        family: q(ℓ; λ) before training.
        rule: what moves λ where there are held-out rows; None for the optimiser.
        average: decay a step of the moving average of the weights; None for none.
        clip: the largest norm of a gradient; None for none.
    """

    name: str
    layers: Callable[[int, int, int], Layers]
    family: Callable[[], DepthFamily]
    rule: Callable[[], DepthRule] | None
    average: float | None
    clip: float | None

    def fitting(self, family: DepthFamily, validates: bool) -> dict[str, Any]:
        """Options of `fit` for a family, which may be the user's own.

        Args:
            family: of the model.
            validates: whether there are held-out rows.
        """
        found: dict[str, Any] = {"average": self.average, "clip": self.clip}
        if self.rule is not None and isinstance(family, TruncatedNormal):
            if validates:
                found["depth_rule"] = self.rule()
            else:
                found["depth_lr_ratio"] = 0.0  # nothing to judge by: q stays
        return found


def _plain(in_features: int, width: int, out_features: int) -> Layers:
    return Dense(in_features, width, out_features, init="he")


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "settled", PreNormDense, lambda: TruncatedNormal(4.0, 2.0), HeldOutAscent, 0.998, 1.0
        ),
        Preset("paper", _plain, lambda: TruncatedPoisson(1.0), None, None, None),
    )
}
"""By name. "settled": depth follows held-out rows. "paper": a truncated Poisson moved by the
gradient of 𝓛, with plain layers (He's initialisation, without which deep ones do not learn)."""


def preset(name: str) -> Preset:
    """The preset of that name, or a ValueError that says which there are."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {name!r}")
    return PRESETS[name]
