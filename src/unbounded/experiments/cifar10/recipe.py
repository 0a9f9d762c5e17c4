"""How every model of the study is trained, and which models there are."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR

import unbounded as ub
from unbounded.baselines import Dropped, dun_of, plain
from unbounded.baselines.dropout import PLACES
from unbounded.data.cifar10 import CLASSES
from unbounded.data.images import Images
from unbounded.experiments.cifar10 import models
from unbounded.experiments.cifar10.presets import PAPER, SOME_ONLY, UDN_ONLY
from unbounded.layers import Whitened, whitening_filters
from unbounded.layers.convolutional import FORMS
from unbounded.likelihoods import SmoothedCategorical
from unbounded.priors import DepthPrior
from unbounded.training import (
    Augment,
    Callback,
    DepthRule,
    HeldOutAscent,
    ImageData,
    Muon,
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


_FULL = 8  # rows that a GPU likes best: batches are made of as many

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
        schedule: "fast" (a warm-up, then `decay` to zero) or "paper" (steps).
        epochs: passes over all ten classes.
        stretch: runs on some of the classes make so many times as many passes over their images.
        lr: the largest learning rate.
        warm_up: epochs in which the rate rises, in the fast schedule.
        decay: how it falls there, by a "cosine" or "linear".
        optimizer: "sgd" with momentum; "muon": orthogonal steps for the matrices of hidden layers,
            SGD for all else; or "adam", with a weight decay apart from the gradient.
        matrix_lr: the largest learning rate of these matrices.
        matrix_decay: their weight decay, apart from the gradient.
        smoothing: the share of each label that is spread over all classes in training.
        average: keep a moving average of the weights with this decay a step; 0: none.
        calibrate: after training, heads are divided by the temperature that fits held-out images
            best, if there are any.
        momentum: of SGD, and how long "adam" remembers gradients.
        nesterov: whether SGD looks ahead.
        weight_decay: of all weights, besides their prior.
        batch_size: images a step.
        equal_steps: runs on some of the classes have batches for their share of the images, so that
            an epoch has as many steps, and rates times the root of that share.
        prior_rate: of the rule "gradient": α of the prior on the depth, ℓ−1 ~ Poisson(α).
        layer_price: of the rule "ascent": what the prior on the depth, a geometric one, asks for a
            further layer, in nats.
        width: channels of the stem.
        block: "bottleneck", the paper's, or "basic", those of ResNet-18; see `ResidualConv`.
        init: of new blocks, see `ResidualConv`.
        crop: largest shift of a training image, in pixels.
        pad: what a shift uncovers.
        cutout: size of a square that is greyed out.
        flip: which images are mirrored: "random", or "alternating" by epochs.
        whitening: side of the patches of a fixed first convolution that makes them white; 0: none.
            A bare ODE has none: its state is the image.
        dropout: the share of channels that are left out at random in training, and in predictions
            by `--evaluate`; 0: none.
        dropout_in: before each "head", or behind the "blocks".
        ode_solver: of NODE and ANODE: "rk4", or a name of torchdiffeq.
        ode_steps: of that solver, if it does not adapt.
        ode_tolerance: of that solver, if it adapts, absolute and relative.
        ode_adjoint: their gradients by the adjoint ODE.
        deq_solver: of MDEQ: "repeat", or a name of torchdeq.
        deq_iterations: of that solver, at the most; of "repeat" exactly so many.
        deq_gradient: "phantom" or "implicit".
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
            learn from the same. The rule "settled" looks at them, and `calibrate`; nothing else.
            Of some of the classes, a like share.
        caution: of the rule "settled": how much nearer q(ℓ) stays to its reference for each nat of
            drift.
        depth_width: of that rule: the share of its reference's spread that q(ℓ) keeps where depths
            are worth the same.
        validation: training images that are scored in place of test images, to choose a recipe.
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
    equal_steps: bool = False
    decay: str = "cosine"
    optimizer: str = "sgd"
    matrix_lr: float = 0.02
    matrix_decay: float = 0.05
    smoothing: float = 0.0
    average: float = 0.0
    calibrate: bool = False
    prior_rate: float = 1.0
    layer_price: float = 10.0
    width: int = 64
    block: str = "bottleneck"
    init: str = "identity"
    crop: int = 4
    pad: str = "reflect"
    cutout: int = 10
    flip: str = "random"
    whitening: int = 0
    dropout: float = 0.0
    dropout_in: str = "head"
    ode_solver: str = "rk4"
    ode_steps: int = 4
    ode_tolerance: float = 1e-3
    ode_adjoint: bool = False
    deq_solver: str = "repeat"
    deq_iterations: int = 18
    deq_gradient: str = "phantom"
    speed: float = 0.125
    memory: int = 100
    search: float = 0.4
    search_concentration: float = 1.0
    concentration: float = 16.0
    equal_heads: bool = True
    equal_layers: bool = False
    held_out: int = 2000
    caution: float = 32.0
    depth_width: float = 0.5
    validation: int = 0
    images: int = 0

    @classmethod
    def named(cls, schedule: str, **changes: Any) -> "Recipe":
        """The recipe of a schedule, with changes."""
        return cls(**{"schedule": schedule, **(PAPER if schedule == "paper" else {}), **changes})

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name in ("smoothing", "average", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1, got {getattr(self, name):g}")
        if self.whitening and self.whitening % 2 == 0:
            raise ValueError(f"whitening must be odd, or 0, got {self.whitening}")
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

    def dropping(self, layers: ub.Layers) -> ub.Layers:
        """The layers, with a dropout if there is one."""
        return Dropped(layers, self.dropout, self.dropout_in) if self.dropout else layers

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
        return half_cosine(share) if self.decay == "cosine" else 1 - share

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
                few = f"held_out={self.held_out} leaves none of {len(train)} images to train on"
                raise ValueError(f"{few}: make it smaller, or 0")
            train, held_out = train.stratified_split(share, seed=0)
        flip = True if self.flip == "random" else self.flip
        augment = Augment(crop=self.crop, flip=flip, cutout=self.cutout, pad=self.pad)
        data = ImageData(train.x, train.y, augment=augment)
        looked_at = None if held_out is None else data.like(held_out.x, held_out.y)
        return Parts(data, looked_at, data.like(scored.x, scored.y), is_test)


class Parts(NamedTuple):
    """The images of a run."""

    train: ImageData
    held_out: ImageData | None  # of the training images, for the rule "settled"
    scored: ImageData
    is_test: bool  # whether the test images are scored


_CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "block": tuple(FORMS),
    "decay": ("cosine", "linear"),
    "optimizer": ("sgd", "muon", "adam"),
    "flip": ("random", "alternating"),
    "dropout_in": PLACES,
    "deq_gradient": ("phantom", "implicit"),
}


def ignored(model: str, some: bool = True) -> frozenset[str]:
    """Fields of the recipe that a model does not look at; `some`: on some of the classes."""
    found: frozenset[str] = frozenset() if model == "udn" else UDN_ONLY
    if not some:
        found |= SOME_ONLY
    others = {"ode_": "torchdiffeq", "deq_": "torchdeq"}
    names = [field.name for field in fields(Recipe)]
    for prefix, package in others.items():
        if models.PACKAGES.get(model) != package:
            found |= {name for name in names if name.startswith(prefix)}
    return found


def ignored_by(run: dict[str, Any]) -> frozenset[str]:
    """Fields that a run which is on record did not look at."""
    return ignored(run["model"], some=bool(run["classes"]))


@dataclass(frozen=True)
class CifarRun:
    """One model to train.

    Attributes:
        model: "udn", a depth as text, or another one of `models`.
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
        if models.canonical(self.model) != self.model:
            raise ValueError(f"the model {self.model!r} is {models.canonical(self.model)!r}")
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

    def share(self, recipe: Recipe) -> float:
        """The share of the classes, where batches and rates go by it; else 1."""
        return len(self.classes) / len(CLASSES) if self.classes and recipe.equal_steps else 1.0

    def batch_size(self, recipe: Recipe, rows: int) -> int:
        """Of so many images, those of a step."""
        share = self.share(recipe)
        part = max(1, round(recipe.batch_size * share / _FULL)) * _FULL
        return min(part if share < 1 else recipe.batch_size, rows)

    def epochs(self, recipe: Recipe) -> int:
        """How many passes it makes over its images."""
        return math.ceil(recipe.epochs * recipe.stretch) if self.classes else recipe.epochs

    def build(
        self, recipe: Recipe, channels: int, num_classes: int, data: ImageData | None = None
    ) -> ub.UDN:
        """The model before training.

        Args:
            recipe: how it will be trained.
            channels: of the images.
            num_classes: that it tells apart.
            data: the training images, for a whitening and sizes.
        """
        layers = self._layers(recipe, channels, num_classes, data)
        likelihood: ub.Categorical = ub.Categorical(num_classes)
        if recipe.smoothing:
            likelihood = SmoothedCategorical(num_classes, recipe.smoothing)
        if self.model in models.OTHERS:
            return plain(layers, likelihood, seed=self.seed)
        largest = models.dun_depth(self.model)
        if largest is not None:
            return dun_of(layers, likelihood, largest, seed=self.seed)
        depth: ub.DepthFamily = ub.TruncatedPoisson(self.lambda0)
        prior: DepthPrior = ub.PoissonDepth(recipe.prior_rate)
        if self.ascends:
            depth = ub.TruncatedConwayMaxwell(self.lambda0, recipe.search_concentration)
            prior = ub.GeometricDepth.priced(recipe.layer_price)
        elif self.settles:  # no prior has a part in where it goes
            depth = ub.TruncatedNormal(self.lambda0, max(1.0, self.lambda0 / 2))
        elif self.model != "udn":
            depth = ub.FixedDepth(int(self.model))
        return ub.UDN(layers, likelihood, depth, prior, seed=self.seed)

    def _layers(
        self, recipe: Recipe, channels: int, num_classes: int, data: ImageData | None
    ) -> ub.Layers:
        size = (32, 32) if data is None else (data.x.shape[1], data.x.shape[2])
        if not recipe.whitening or not models.takes_whitening(self.model):
            return recipe.dropping(models.layers(self.model, recipe, channels, num_classes, size))
        if data is None:
            raise ValueError("a whitening is measured on training images: give them")
        filters = whitening_filters(data.inputs(slice(5000)), recipe.whitening)
        layers = models.layers(self.model, recipe, len(filters), num_classes, size)
        return Whitened(recipe.dropping(layers), filters)

    def fitting(self, model: ub.UDN, recipe: Recipe, rows: int) -> dict[str, Any]:
        """What `fit` has to know of the recipe, to train on so many images."""
        batch_size = self.batch_size(recipe, rows)
        kind: type[torch.optim.Optimizer] = torch.optim.SGD
        own: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
        if recipe.optimizer == "adam":
            kind = torch.optim.AdamW
            own = {"betas": (recipe.momentum, 0.999)}
        if recipe.optimizer == "muon":
            kind = Muon
            ratio = recipe.matrix_lr / recipe.lr
            own |= {"matrix_ratio": ratio, "matrix_decay": recipe.matrix_decay}
        else:
            own["fused"] = True
        optimizer = ub.make_optimizer(
            model,
            kind,
            recipe.lr * math.sqrt(self.share(recipe)),
            depth_lr_ratio=1.0,
            weight_decay=recipe.weight_decay,
            **own,
        )
        sizes = {"steps_per_epoch": max(1, rows // batch_size), "epochs": self.epochs(recipe)}
        rule: DepthRule | None = None
        if self.ascends:
            # Every weight of a block but those of its normalisations can be scaled freely.
            rule = RateAscent(recipe.speed / 100, memory=recipe.memory, weight_cost=False)
        elif self.settles:
            rule = HeldOutAscent(caution=recipe.caution, floor=10.0, width=recipe.depth_width)
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
            "average": recipe.average or None,
            # The rate ends at zero: the last epoch is the best, and held-out images are few.
            "select": "last",
        }

    def callbacks(self, recipe: Recipe) -> list[Callback]:
        """What changes in mid-training."""
        if not self.ascends:
            return []
        return [Sharpen(math.ceil(recipe.search * self.epochs(recipe)), recipe.concentration)]
