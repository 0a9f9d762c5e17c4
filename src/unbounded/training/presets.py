"""Named recipes: what a network is made of and how its depth is found if nobody says otherwise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from unbounded.depth import DepthFamily, TruncatedNormal, TruncatedPoisson
from unbounded.layers import Dense, Layers, PreNormDense, TableDense, TrunkDense
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.held_out import HeldOutAscent

_MOST_EMBEDDED = 256  # columns: of more, images say, waves cost time and say little
_WARM_UP, _LAST_RATE = 0.05, 0.01
_BETAS = 0.9, 0.95
_CLASSES = 1.0, 1.0  # place and spread of q from which classes of tables begin


@dataclass(frozen=True)
class Rates:
    """How fast weights learn, and forget."""

    lr: float = 0.005
    decay: float | None = None  # of AdamW; None for Adam as torch has it

    @property
    def optimizer(self) -> Callable[..., torch.optim.Optimizer] | None:
        """For `fit`; None for its own."""
        if self.decay is None:
            return None
        return partial(torch.optim.AdamW, betas=_BETAS, weight_decay=self.decay)


@dataclass(frozen=True)
class Preset:
    """A recipe for dense networks.

    Attributes:
        name: by which it is asked for.
        layers: (in_features, width, out_features) ↦ the layers; `TableDense` is told, besides,
            which columns to embed.
        family: q(ℓ; λ) before training; see `start`.
        rule: what moves λ where there are held-out rows; None for the optimiser.
        average: decay a step of the moving average of the weights; None for none.
        clip: the largest norm of a gradient; None for none.
        schedule: share of the training that is done ↦ a factor of the rate; None for a constant.
        numbers: rates where the targets are numbers.
        classes: rates where they are classes, which are soon learnt by heart.
        ramps: of `TableDense`, of each column, where the targets are numbers; 0 for none.
        balance: β of `BalancedGaussian`, noise that depends on the input, where the targets are
            numbers; None for a noise that is one number.
        class_family: in place of `family` where the targets are classes.
        class_rule: in place of `rule` where they are.
    """

    name: str
    layers: Callable[..., Layers]
    family: Callable[[], DepthFamily]
    rule: Callable[[], DepthRule] | None
    average: float | None
    clip: float | None
    schedule: Callable[[float], float] | None = None
    numbers: Rates = Rates()
    classes: Rates = Rates()
    ramps: int = 0
    balance: float | None = None
    class_family: Callable[[], DepthFamily] | None = None
    class_rule: Callable[[], DepthRule] | None = None

    def start(self, is_classes: bool = False) -> DepthFamily:
        """q(ℓ; λ) before training."""
        return ((is_classes and self.class_family) or self.family)()

    def built(
        self,
        in_features: int,
        width: int,
        out_features: int,
        members: int | None = None,
        **columns: Any,
    ) -> Layers:
        """The layers for a table.

        Args:
            in_features: columns.
            width: of hidden states.
            out_features: of the heads.
            members: how many share the layers of the preset "tables"; None for a lone network.
            columns: what `TableDense` is told of the columns.
        """
        if self.layers is not TableDense:
            return self.layers(in_features, width, out_features)
        if members is not None:
            return TrunkDense(in_features, width, out_features, members=members, **columns)
        return self.layers(in_features, width, out_features, **columns)

    def embeds(self, numbers: Sequence[int]) -> Sequence[int]:
        """Which of the columns with more than two values the first layer looks at closely."""
        is_taken = self.layers is TableDense and len(numbers) <= _MOST_EMBEDDED
        return numbers if is_taken else ()

    def fitting(
        self,
        family: DepthFamily,
        validates: bool,
        done: Callable[[int], float] | None = None,
        is_classes: bool = False,
    ) -> dict[str, Any]:
        """Options of `fit` for a family, which may be the user's own.

        Args:
            family: of the model.
            validates: whether there are held-out rows.
            done: epoch ↦ the share of the training that its middle is at, for a schedule.
            is_classes: whether the targets are classes.
        """
        found: dict[str, Any] = {"average": self.average, "clip": self.clip}
        if self.schedule is not None and done is not None:
            rate = self.schedule
            found["schedule"] = lambda epoch: rate(done(epoch))
        rule = (is_classes and self.class_rule) or self.rule
        if rule is not None and isinstance(family, TruncatedNormal):
            if validates:
                found["depth_rule"] = rule()
            else:
                found["depth_lr_ratio"] = 0.0  # nothing to judge by: q stays
        return found


def half_cosine(done: float, last: float = 0.0) -> float:
    """From 1 down to `last` along half a cosine, `done` from 0 to 1."""
    return last + (1 - last) * (1 + math.cos(math.pi * done)) / 2


def cosine(done: float) -> float:
    """Up in the first twentieth of the training, then down to a hundredth along half a cosine."""
    if done < _WARM_UP:
        return done / _WARM_UP
    return half_cosine((done - _WARM_UP) / (1 - _WARM_UP), _LAST_RATE)


def _for_numbers() -> DepthRule:
    """Of tables: layers are worth something there more often than not."""
    return _for_tables(price=1.0)


def _for_classes() -> DepthRule:
    """Of tables: one layer is mostly enough, and held-out rows tell where it is not.

    Where they tell nothing, as in most small tables, q stays at ρ.
    """
    return _for_tables(price=0.5, reference=_CLASSES)


def _for_tables(price: float, reference: tuple[float, float] | None = None) -> DepthRule:
    """Held-out rows are few in a small table, and errors large: little is lost for a depth, and a
    layer has to be worth more than elsewhere. Of a q that is no narrower than usual a few percent
    stay on a depth that is far worse than the next one."""
    rule = HeldOutAscent(price=price, floor=10.0, narrowest=0.25, reference=reference)
    rule.slack = 0.25
    return rule


def _plain(in_features: int, width: int, out_features: int) -> Layers:
    return Dense(in_features, width, out_features, init="he")


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "settled", PreNormDense, lambda: TruncatedNormal(4.0, 2.0), HeldOutAscent, 0.998, 1.0
        ),
        Preset(
            "tables",
            TableDense,
            lambda: TruncatedNormal(3.0, 2.0),
            _for_numbers,
            0.998,
            1.0,
            cosine,
            Rates(0.01, 0.02),
            Rates(0.005, 0.3),
            ramps=16,
            balance=1.0,
            class_family=lambda: TruncatedNormal(*_CLASSES),
            class_rule=_for_classes,
        ),
        Preset("paper", _plain, lambda: TruncatedPoisson(1.0), None, None, None),
    )
}
"""By name. "settled": depth follows held-out rows. "tables": likewise, with embeddings of columns,
decay of the weights and a rate that falls. "paper": a truncated Poisson moved by the gradient of 𝓛,
with plain layers (He's initialisation, without which deep ones do not learn)."""


def preset(name: str) -> Preset:
    """The preset of that name, or a ValueError that says which there are."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {name!r}")
    return PRESETS[name]
