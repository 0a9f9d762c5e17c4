"""How every model of the study is trained, and which models there are."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR

import unbounded as ub
from unbounded.data.images import Images
from unbounded.priors import DepthPrior
from unbounded.training import (
    Augment,
    Callback,
    DepthRule,
    HeldOutAscent,
    ImageData,
    RateAscent,
    Sharpen,
)
from unbounded.training.presets import half_cosine

SCHEDULES = ("fast", "paper")
RULES = ("settled", "ascent", "gradient")
"""How q(ℓ) is found; the first that was run is the UDN of the tables."""
LAMBDA0, PAPER_LAMBDA0 = 20.0, 5.0
STARTS = {"settled": 5.0, "ascent": LAMBDA0, "gradient": LAMBDA0}
"""Where each rule starts. From below 20, "ascent" ends with a lower bound."""
PAPER_RATES = ((5, 0.01), (195, 0.1), (100, 0.01), (100, 0.001))
"""Epochs at each learning rate, the paper's appendix; the last rate holds for what remains."""


_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: ({"True": True, "False": False}.__getitem__, "True or False"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a word"),
}
"""How the value of a field is read, and what it is called."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a model is trained with, the same for the UDN and for finite depths.

    Attributes:
        schedule: "fast" (a warm-up, then a cosine to zero) or "paper" (steps).
        epochs: passes over all ten classes.
        stretch: runs on some of the classes make so many times as many passes over their images.
        lr: the largest learning rate, of SGD with momentum.
        warm_up: epochs in which the rate rises, in the fast schedule.
        momentum: of SGD.
        nesterov: whether it looks ahead.
        weight_decay: of all weights, besides their prior.
        batch_size: images a step.
        prior_rate: of the rule "gradient": α of the prior on the depth, ℓ−1 ~ Poisson(α).
        layer_price: of the rule "ascent": what the prior on the depth, a geometric one, asks for a
            further layer, in nats.
        width: channels of the stem.
        init: of new blocks, see `ResidualConv`.
        crop: largest shift of a training image, in pixels.
        pad: what a shift uncovers.
        cutout: size of a square that is greyed out.
        speed: of the rule "ascent": largest change of log λ in a hundred steps.
        memory: of that rule: over how many steps the worth of a depth is averaged; a depth is young
            for five times as many.
        search: of that rule: the share of the epochs in which λ is looked for.
        search_concentration: of that rule: ν of the family in these; 1 is the Poisson.
        concentration: of that rule: ν of the narrower family around the mode thereafter, see
            `Sharpen`.
        equal_heads: with that rule and "settled", heads of rare depths learn as fast as others.
        equal_layers: with these, layers that only rare depths use learn as fast as others.
        held_out: how many training images no model learns from, whatever its rule, so that all
            learn from the same. The rule "settled" looks at them; nothing else depends on them.
            Of some of the classes, a like share.
        caution: of the rule "settled": how much nearer q(ℓ) stays to its reference for each nat of
            drift.
        validation: how many training images are held out and scored in place of the test
            images, to choose a recipe by.
        images: train on so many images only; for trials. All where it is 0.
    """

    schedule: str = "fast"
    epochs: int = 100
    stretch: float = 2.0
    lr: float = 0.2
    warm_up: int = 5
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    batch_size: int = 256
    prior_rate: float = 1.0
    layer_price: float = 10.0
    width: int = 64
    init: str = "identity"
    crop: int = 4
    pad: str = "reflect"
    cutout: int = 10
    speed: float = 0.125
    memory: int = 100
    search: float = 0.4
    search_concentration: float = 1.0
    concentration: float = 16.0
    equal_heads: bool = True
    equal_layers: bool = False
    held_out: int = 2000
    caution: float = 32.0
    validation: int = 0
    images: int = 0

    @classmethod
    def named(cls, schedule: str, **changes: Any) -> "Recipe":
        """The recipe of a schedule, with changes."""
        return cls(**{"schedule": schedule, **(_PAPER if schedule == "paper" else {}), **changes})

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {SCHEDULES}, got {self.schedule!r}")
        if self.epochs < 1 or self.batch_size < 2:
            raise ValueError(
                "epochs must be at least 1 and batch_size at least 2, got "
                f"{self.epochs} and {self.batch_size}"
            )
        if min(self.held_out, self.validation, self.images) < 0:
            raise ValueError(
                "held_out, validation and images must be at least 0, got "
                f"{self.held_out}, {self.validation} and {self.images}"
            )

    def config(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def changed(self, words: Sequence[str]) -> "Recipe":
        """The recipe with changes such as "lr=0.1", each in the kind of the field."""
        found: dict[str, Any] = {}
        for word in words:
            name, equals, text = word.partition("=")
            before = self.config().get(name)
            if not equals or before is None:
                known = list(self.config())
                raise ValueError(f"{word!r}: NAME=VALUE was expected, NAME of {known}")
            convert, kind = _KINDS[type(before)]
            try:
                found[name] = convert(text)
            except (ValueError, KeyError):
                raise ValueError(f"{word!r}: {kind} was expected") from None
        return replace(self, **found)

    def rate_at(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """The learning rate at a step, as a share of `lr`."""
        if self.schedule == "paper":
            ends = itertools.accumulate(length for length, _ in PAPER_RATES)
            epoch = step // steps_per_epoch
            rates = (rate for end, (_, rate) in zip(ends, PAPER_RATES, strict=True) if epoch < end)
            return next(rates, PAPER_RATES[-1][1]) / 0.1
        warm, total = self.warm_up * steps_per_epoch, epochs * steps_per_epoch
        if step < warm:
            return (step + 1) / warm
        share = min(1.0, (step - warm) / max(1, total - warm))
        return half_cosine(share)

    def data(self, train: Images, test: Images, classes: int) -> "Parts":
        """The images of a run, of which `classes` is how many there are in all."""
        if self.images:
            train = train.take(range(min(self.images, len(train))))
        scored, is_test = test, True
        if self.validation:
            count = len(train) - self.validation
            if count < 1:
                raise ValueError(f"{self.validation} of {len(train)} images cannot be held out")
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).numpy()
            train, scored, is_test = train.take(order[:count]), train.take(order[count:]), False
        held_out: Images | None = None
        if self.held_out:
            share = self.held_out * len(train.classes) / classes / len(train)
            if share >= 1:
                raise ValueError(
                    f"held_out={self.held_out} leaves none of {len(train)} images to train on: "
                    "make it smaller, or 0"
                )
            train, held_out = train.stratified_split(share, seed=0)
        augment = Augment(crop=self.crop, flip=True, cutout=self.cutout, pad=self.pad)
        data = ImageData(train.x, train.y, augment=augment)
        looked_at = None if held_out is None else data.like(held_out.x, held_out.y)
        return Parts(data, looked_at, data.like(scored.x, scored.y), is_test)


class Parts(NamedTuple):
    """The images of a run."""

    train: ImageData
    held_out: ImageData | None  # of the training images, for the rule "settled"
    scored: ImageData
    is_test: bool  # whether the test images are scored


_PAPER = {
    "epochs": 500,
    "stretch": 1.0,
    "lr": 0.1,
    "warm_up": 0,
    "nesterov": False,
    "weight_decay": 1e-4,
    "init": "default",
    "pad": "zero",
    "cutout": 0,
    "equal_heads": False,
    "held_out": 0,
}
EARLIER = {"held_out": 0}
"""Fields that came later, where what was done before them is not the default."""
UDN_ONLY = frozenset(
    {"prior_rate", "layer_price", "speed", "memory", "search", "search_concentration"}
    | {"concentration", "equal_heads", "equal_layers", "caution"}
)
"""Fields of the recipe that a network of fixed depth does not look at."""


@dataclass(frozen=True)
class CifarRun:
    """One model to train.

    Attributes:
        model: "udn", or a depth as text.
        seed: of weights, order and augmentation.
        classes: which images; all ten where it is empty.
        lambda0: λ at the start, of a UDN; see `STARTS`.
        rule: how q(ℓ) is found. "gradient" as in the paper: a truncated Poisson against a Poisson
            prior, λ moved by the optimiser at the weights' learning rate. "ascent": λ by
            `RateAscent` against a price for each layer, then `Sharpen`. "settled": a truncated
            normal, whose place starts from λ₀, by `HeldOutAscent`.
    """

    model: str
    seed: int
    classes: tuple[str, ...] = ()
    lambda0: float = LAMBDA0
    rule: str = "ascent"

    def __post_init__(self) -> None:
        if self.model != "udn" and not (self.model.isdecimal() and int(self.model) > 0):
            raise ValueError(f"a model is 'udn' or a depth of at least 1, got {self.model!r}")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {RULES}, got {self.rule!r}")

    @property
    def name(self) -> str:
        """For files: says everything."""
        of = "-".join(self.classes) or "all"
        how = f"-{self.rule}-lambda{self.lambda0:g}" if self.model == "udn" else ""
        return f"{self.model}{how}-{of}-seed{self.seed}"

    @property
    def ascends(self) -> bool:
        """Whether it is a UDN with the rule "ascent"."""
        return self.model == "udn" and self.rule == "ascent"

    @property
    def settles(self) -> bool:
        """Whether it is a UDN with the rule "settled", which needs held-out images."""
        return self.model == "udn" and self.rule == "settled"

    def epochs(self, recipe: Recipe) -> int:
        """How many passes it makes over its images."""
        return math.ceil(recipe.epochs * recipe.stretch) if self.classes else recipe.epochs

    def build(self, recipe: Recipe, channels: int, num_classes: int) -> ub.UDN:
        """The model before training."""
        depth: ub.DepthFamily = ub.TruncatedPoisson(self.lambda0)
        prior: DepthPrior = ub.PoissonDepth(recipe.prior_rate)
        if self.ascends:
            depth = ub.TruncatedConwayMaxwell(self.lambda0, recipe.search_concentration)
            prior = ub.GeometricDepth.priced(recipe.layer_price)
        elif self.settles:  # no prior has a part in where it goes
            depth = ub.TruncatedNormal(self.lambda0, max(1.0, self.lambda0 / 2))
        elif self.model != "udn":
            depth = ub.FixedDepth(int(self.model))
        layers = ub.ResidualConv(channels, num_classes, width=recipe.width, init=recipe.init)
        return ub.UDN(layers, ub.Categorical(num_classes), depth, prior, seed=self.seed)

    def fitting(self, model: ub.UDN, recipe: Recipe, rows: int) -> dict[str, Any]:
        """What `fit` has to know of the recipe, to train on so many images."""
        batch_size = min(recipe.batch_size, rows)
        optimizer = ub.make_optimizer(
            model,
            torch.optim.SGD,
            recipe.lr,
            depth_lr_ratio=1.0,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        sizes = {"steps_per_epoch": max(1, rows // batch_size), "epochs": self.epochs(recipe)}
        rule: DepthRule | None = None
        if self.ascends:
            # Every weight of a block but those of its normalisations can be scaled freely.
            rule = RateAscent(recipe.speed / 100, memory=recipe.memory, weight_cost=False)
        elif self.settles:
            rule = HeldOutAscent(caution=recipe.caution)
        return {
            "epochs": self.epochs(recipe),
            "batch_size": batch_size,
            "seed": self.seed,
            "optimizer": optimizer,
            "scheduler": LambdaLR(optimizer, partial(recipe.rate_at, **sizes)),
            "schedule_every": "step",
            "depth_rule": rule,
            "equal_heads": recipe.equal_heads and rule is not None,
            "equal_layers": recipe.equal_layers and rule is not None,
            # The rate ends at zero: the last epoch is the best, and held-out images are few.
            "select": "last",
        }

    def callbacks(self, recipe: Recipe) -> list[Callback]:
        """What changes in mid-training."""
        if not self.ascends:
            return []
        return [Sharpen(math.ceil(recipe.search * self.epochs(recipe)), recipe.concentration)]
