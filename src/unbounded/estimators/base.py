"""What both estimators share: from a table to `unbounded.fit`, and from rows to predictions."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils import check_random_state

from unbounded import interrupts
from unbounded.depth import DepthFamily, TruncatedNormal
from unbounded.estimators.auto import (
    CLASSES,
    NUMBERS,
    annealing_factor,
    choose_batch_size,
    choose_epochs,
    choose_patience,
)
from unbounded.estimators.building import (
    build,
    check_arguments,
    check_members,
    evaluation_rows,
    made_with,
    shown,
    threads,
)
from unbounded.estimators.calibration import HeldOutPredictions, calibrate, forget_judges
from unbounded.estimators.encoded import KnownTable, encode_again, fit_encoding, known
from unbounded.estimators.ensemble import (
    TrainedModels,
    Training,
    check_begun,
    member_seeds,
    warn,
)
from unbounded.estimators.frames import RawTable
from unbounded.estimators.further import Learner
from unbounded.estimators.nested import NestedParameters, as_classes
from unbounded.estimators.pace import SHARING, TRIAL, Clock, early_end, heeds_overfitting, quality
from unbounded.estimators.predicting import Predictor
from unbounded.estimators.rows import (
    Array,
    Scaling,
    Scalings,
    WeightedRows,
    is_classes,
    merge,
)
from unbounded.estimators.saving import Savable
from unbounded.estimators.shares import Shares, divide, met
from unbounded.estimators.thresholds import can_decide, decided
from unbounded.estimators.trainings import on_all_rows, with_others
from unbounded.layers import Layers
from unbounded.likelihoods import Likelihood
from unbounded.model import UDN
from unbounded.priors import DepthPrior, WeightPrior
from unbounded.training import preset
from unbounded.training.callbacks import Callback


@dataclass(kw_only=True, eq=False, repr=False)
class UDNEstimator(Predictor, Savable, NestedParameters):
    """The common part of `UDNClassifier` and `UDNRegressor`.

    A subclass turns targets into what the likelihood takes and predictions into what
    scikit-learn expects; all training goes through `_train`, all predicting through `_predictions`.
    Dataclasses write the constructors, so that every argument is declared once; the docstring of
    each subclass gets the rest of this text.

    Thin over `unbounded.fit`. Equal rows are merged into one that counts as often (a weight of 2
    is a row that is there twice, to the last bit); a share is held out to find the best epoch.
    Ctrl-C and SIGTERM end training and keep the best model so far.

    Main arguments of both estimators:
        preset: "tables" (embeddings of the columns, a rate that falls, depth by held-out rows;
            docs/tables.md), "settled" (depth by held-out rows; docs/depth.md) or "paper" (a
            truncated Poisson whose λ follows the gradient of 𝓛, plain layers).
        width: size of every hidden state.
        epochs: passes over the training rows at most. "auto": 10 to 200, for 1.3 steps a row, but
            600 to 18000; for classes 10 to 120, for one a row, but 700 to 6000.
        batch_size: rows a step. "auto": a power of two near 2√rows, from 32 to 1024.
        lr: rate of the weights. "auto": the preset's. In the preset "paper" λ learns at a
            tenth of it.
        validation_fraction: share of the rows (of each class alike) that is held out to find the
            best epoch; 8 of them at least, or a third of a table of fewer than 24.
        refit: once the best epoch is known, train anew on all rows up to it, with a rate that
            falls to nothing in the second half. False keeps the weights of the best epoch.
        calibrate: bring the noise, or the certainty of classes, to what held-out rows show, by one
            factor. Not after a refit, which leaves no such rows.
        least_squares: after training, add what is found in closed form, where held-out rows show a
            gain: what heads, single columns and nearness to rows of the table can still explain of
            numbers (`unbounded.estimators.closing`), what nearness says of classes
            (`unbounded.estimators.class_nearness`). Not without `calibrate`: noise and certainty
            would be those of before. The model then may hold up to 9,000 rows, scaled.
        quality: "fast" (a third of the steps), "default", or "best" (half as many steps again, and
            five members).
        time_limit: seconds that `fit` may take, about: training ends after the last epoch that
            fits in, the rate having fallen by then. None for no limit.
        n_members: train this many models at once from different seeds and
            average their predictions. "auto": as `quality` says, or 16 that share a network; up to
            four where the best epoch comes early: of classes each with other held-out rows, of
            numbers shorter trainings, if held-out rows gain by them (docs/tables.md).
        ensemble: what members are: "deep", networks of their own (a deep ensemble), or "shared",
            one network whose matrices all members share, with small factors and heads of their
            own and one q(ℓ) (docs/tables.md).
        random_state: a number makes everything reproducible, bit for bit on a CPU.
        device: "auto" (a GPU if there is one), or what `torch.device` takes.
        verbose: 1 shows a progress bar on standard error.

    Other arguments of both:
        layers: a `Layers` in place of dense ones, or (in_features, out_features) -> `Layers`.
        depth: the family q(ℓ; λ); the preset's by default. A rule for held-out rows moves a
            `TruncatedNormal`, the optimiser any other.
        depth_prior: p(ℓ); ℓ−1 ~ Poisson(0.5) by default.
        weight_prior: p(θ); N(0, 1) by default.
        likelihood: p(y; Ω); by default `Categorical`, or `Gaussian` with learnt noise.
        patience: stop after this many epochs without a better held-out score. "auto": a fifth of
            the epochs; where the preset's rate falls, classes end once they have been learnt by
            heart for long, and numbers at three times the best epoch (docs/tables.md). None: never.
        select: the best epoch by "log_score" or by "score" (accuracy or RMSE). "auto": by score
            for numbers, whose noise is calibrated afterwards, by log score for classes.
        standardize: bring inputs to mean 0 and standard deviation 1 (or the encoding does that).
        categorical_features: columns that are categories whatever they hold, as in scikit-learn's
            HistGradientBoosting: names, indices or a mask; "from_dtype": those of a frame's
            categorical types; None: none. Texts are told from their values in any case.
        warm_start: a further `fit` trains on from the models there are, with their depth, scaling
            and encoding, rather than from new ones. Rows that were held out stay held out.

    Tables: X is an array or a pandas or polars frame. Finite numbers are taken as they are. Where
    there are texts, categories, dates or missing values, all columns are encoded as `unbounded
    fit` does: numbers scaled robustly, gaps filled and marked, categories as indicators (with
    means of the target for many levels), dates with their cycles, free text by the words that
    tell of the target; what says nothing, such as identifiers, is left out.
    `encoding_.listing()` tells what was made of each column. A category that training did not meet
    counts as an unknown one. That needs the extra `unbounded[tables]`.

    Attributes:
        model_: the `UDN`, in evaluation mode; the first one of an ensemble.
        members_: all of them; what is told of the training is of the first.
        depth_probs_: q(1) … q(m), `(max_depth_,)`.
        depth_mean_: E[ℓ].
        max_depth_: m, the largest depth with mass.
        depths_: the depths of `predict_by_depth`: 1 … m, or the one depth of a `FixedDepth`.
        history_: one row an epoch, from the training with held-out rows.
        refit_history_: the same of the training on all rows, or None.
        best_epoch_: the epoch that the held-out rows chose.
        n_iter_: epochs of that first training.
        stopped_: why it ended: "epochs", "patience", "time", "interrupted" (Ctrl-C or SIGTERM),
            "diverged" (the best epoch is kept) or "memory" (the next layers would not fit).
        encoding_: the `unbounded.tables.Encoding` of the columns; None for plain numbers.
        n_features_in_, feature_names_in_: of the table.
    """

    layers: Layers | Callable[[int, int], Layers] | None = None
    preset: str = "tables"
    width: int = 128
    depth: DepthFamily | None = None
    depth_prior: DepthPrior | None = None
    weight_prior: WeightPrior | None = None
    likelihood: Likelihood | None = None
    epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"
    lr: float | Literal["auto"] = "auto"
    patience: int | Literal["auto"] | None = "auto"
    validation_fraction: float = 0.15
    select: str = "auto"
    refit: bool = False
    calibrate: bool = True
    least_squares: bool = True
    standardize: bool = True
    quality: str = "default"
    time_limit: float | None = None
    n_members: int | Literal["auto"] = "auto"
    ensemble: str = "deep"
    categorical_features: Any = "from_dtype"
    warm_start: bool = False
    random_state: Any = None
    device: str | torch.device = "auto"
    verbose: int = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if UDNEstimator in cls.__bases__ and cls.__doc__ and UDNEstimator.__doc__:
            _, mark, shared = inspect.cleandoc(UDNEstimator.__doc__).partition("Thin over")
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{mark}{shared}\n"

    # Training

    def _default_likelihood(self, size: int) -> Likelihood:
        raise NotImplementedError

    @property
    def _count(self) -> int:
        """How many networks there are."""
        if self.ensemble == "shared":
            return 1
        return quality(self.quality).members if self.n_members == "auto" else self.n_members

    @property
    def _sharing(self) -> int:
        """How many members share a network, where they do."""
        return SHARING if self.n_members == "auto" else self.n_members

    def _goes_on(self) -> bool:
        """Whether `fit` trains on from the models there are."""
        return self.warm_start and self.__sklearn_is_fitted__()

    def _train(self, x: Any, y: Array, weights: Array, size: int, eval_set: Any = None) -> None:
        """Find the best epoch on held-out rows, then train anew on all rows up to it.

        y are classes `(rows,)`, labels `(rows, label)` of 0 and 1 as integers, or numbers
        `(rows, target)`, `size` how many of them there are. An `eval_set` takes the place of
        held-out rows, and is never learnt from.
        """
        check_arguments(self)
        if self._goes_on():
            if getattr(self, "_apart", False):  # others have learnt the rows that judge the first
                self.members_ = self.members_[:1]
            check_members(self)
        rng = check_random_state(self.random_state)
        rows = merge(*self._encoded(WeightedRows(x, y, weights), size, rng))
        before = getattr(self, "_shares", None) if self._goes_on() else None
        evaluation = None if eval_set is None else evaluation_rows(self, eval_set)
        fraction = self.validation_fraction if evaluation is None else 0.0
        division = divide(rows, fraction, before, rng)
        training, held, heavy, shares = division
        seed = int(rng.randint(2**31 - 1))
        times = quality(self.quality).steps
        steps = CLASSES if is_classes(y) else NUMBERS
        epochs = choose_epochs(self.epochs, self.batch_size, len(training), steps, times)
        refit = self.refit and len(held) > 0
        clock = Clock(self.time_limit, epochs)
        self.refit_history_ = None
        # From here on a request to end loses nothing: both trainings heed it.
        with interrupts.deferred():
            parts = rows.take(training), evaluation or rows.take(held)
            heavy_rows = rows.take(heavy)
            if not (refit or is_classes(y)):  # nobody will divide them again
                rows = rows.take(slice(0))
            run = self._run(*parts, size, seed, clock, anneal=not refit)
            first = run.training
            check_begun(first)
            if refit and first.stopped in ("epochs", "patience"):  # not if the time is over
                again, ended = on_all_rows(self, run, rows, seed, size, clock)
                if again is not None:
                    run, self.refit_history_ = again, again.training.history
                else:
                    first = first._replace(stopped=ended)
            # A refit has learnt from all rows.
            held_out = parts[1] if self.refit_history_ is None else None
            run = run._replace(training=first, learnt=parts[0], held=held_out)
            run = run._replace(heavy=heavy_rows)
            runs = with_others(self, run, rows, division, seed, size, clock)
            self._finish(runs, len(y), evaluation is None)
            self._shares: Shares | None = shares

    def _run(
        self,
        train: WeightedRows,
        held: WeightedRows | None,
        size: int,
        seed: int,
        clock: Clock,
        anneal: bool,
        found: Sequence[UDN] = (),
        like: TrainedModels | None = None,
    ) -> TrainedModels:
        """One training of new models, their scaling from the training rows.

        Where held-out rows have found the depth, the models that have it are `found`: there it
        rests. Whether thresholds help, short trainings without and with them tell, if held-out rows
        are many. A further network is to be built, and sees its rows, `like` those before.
        """
        columns: dict[str, Any] | None = None
        validates = held is not None and len(held.x) > 0
        if like is not None and like.columns is not None:
            scalings, columns = like.scalings, like.columns
            models = [build(self, train.x, size, seed, columns, validates)]
        elif self._goes_on():
            scalings = self._scalings_before()
            models = copy.deepcopy(self.members_)
            forget_judges(models)
        else:
            scalings = self._scalings(train)
            columns = shown(self, train, scalings.inputs)
            if found and not getattr(found[0].layers, "steps", True):
                columns["steps"] = []  # held-out rows have decided before
            elif columns.get("steps") and held is not None and can_decide(len(held.x), clock):

                def tried(some: dict[str, Any]) -> TrainedModels:
                    lone = [build(self, train.x, size, seed, some, validates)]
                    short = self._by_recipe(lone, train, held, scalings, clock.part(TRIAL), True)
                    return TrainedModels(lone, scalings, short)

                columns, cut = decided(columns, tried)
                if cut is not None:
                    return cut
                clock = Clock(clock.left, clock.epochs)
            seeds = member_seeds(seed, self._count)
            models = [build(self, train.x, size, one, columns, validates) for one in seeds]
        for model, before in zip(models, found, strict=False):
            if isinstance(model.depth, TruncatedNormal):
                model.depth.load_state_dict(before.depth.state_dict())
        training = self._by_recipe(models, train, held, scalings, clock, anneal, not found)
        return TrainedModels(models, scalings, training, columns)

    def _by_recipe(
        self,
        models: list[UDN],
        train: WeightedRows,
        held: WeightedRows | None,
        scalings: Scalings,
        clock: Clock,
        anneal: bool,
        infers: bool = True,
    ) -> Training:
        """Train models by the recipe; depth rests unless it is to be inferred."""
        recipe, epochs = preset(self.preset), clock.epochs
        of_classes = is_classes(train.y)
        rates = recipe.classes if of_classes else recipe.numbers
        by_kind = "log_score" if of_classes else "score"
        validation = patience = None
        callbacks: list[Callback] = [clock]
        if held is not None and len(held.x):
            validation = scalings.tensors(held, models[0], models[0].anchor.dtype)
            if not heeds_overfitting(self):
                patience = choose_patience(self.patience, epochs)
            elif infers or of_classes:  # short trainings of numbers come to rest
                callbacks.append(early_end(validation[1], epochs))
        options: dict[str, Any] = {
            "validation": validation,
            "epochs": epochs,
            "batch_size": choose_batch_size(self.batch_size, len(train.x)),
            "lr": rates.lr if self.lr == "auto" else self.lr,
            "optimizer": rates.optimizer,
            "patience": patience,
            "select": by_kind if self.select == "auto" else self.select,
            "progress": bool(self.verbose),
            "schedule": partial(annealing_factor, epochs=epochs) if anneal else None,
            "callbacks": callbacks,
            **recipe.fitting(
                models[0].depth, infers and validation is not None, clock.done, as_classes(self)
            ),
        }
        data = scalings.tensors(train, models[0], models[0].anchor.dtype)
        with threads(self, models[0], options["batch_size"]):
            training = Training.by_fit(models, data, **options)
        if clock.is_over:
            training = training._replace(stopped="time")
        elif training.stopped == "callback":
            training = training._replace(stopped="patience")
        return training

    def _finish(self, runs: Sequence[TrainedModels], rows: int, own: bool) -> None:
        """Keep what was trained on so many rows, with what held-out rows, maybe its own, say."""
        with interrupts.shielded():
            seen = None
            for models, scalings, _, _, learnt, held, heavy in runs:
                if held is not None and len(held.x):
                    seen = HeldOutPredictions(models, scalings, held, learnt, heavy)
                    if self.least_squares and self.calibrate and not self._goes_on():
                        seen.improve(partial(self._close, models, scalings, learnt, held, own))
                    if self.calibrate:
                        calibrate(seen)
            members = [model for run in runs for model in run.models]
            self._keep(runs[0]._replace(models=members), rows)
            self._judge(seen)
        if self.stopped_ == "interrupted":
            of = f" of the first of {len(members)} networks" if self._apart else ""
            warn(f"fit was interrupted: epoch {self.best_epoch_} of {self.n_iter_} is kept{of}")

    def _close(
        self, models: Any, scalings: Scalings, learnt: Any, held: Any, own: bool, before: Any
    ) -> Any:
        """Improve trained models by what is known in closed form (`HeldOutPredictions.improve`)."""

    def _judge(self, held: HeldOutPredictions | None) -> None:
        """Take from held-out rows, if there are any, what predictions need to know of them."""

    def _keep(self, run: TrainedModels, rows: int) -> None:
        self.members_ = [model.eval() for model in run.models]
        self.model_ = self.members_[0]
        self.input_scaling_ = run.scalings.inputs
        if run.scalings.targets is not None:
            self.target_scaling_ = run.scalings.targets
        self.n_rows_seen_ = rows
        self.history_, self.best_epoch_, self.stopped_ = run.training
        self.n_iter_ = len(self.history_)
        self._optimizers: list[Learner] | None = None
        self._made_with = made_with(self)
        self._apart = len(self.members_) > self._count  # others came after the first

    def _encoded(self, rows: WeightedRows, size: int, rng: np.random.RandomState) -> WeightedRows:
        """Rows as numbers; a table that has to be encoded is, by what is learnt from it."""
        if isinstance(rows.x, RawTable):
            self.encoding_, rows = fit_encoding(rows, size, int(rng.randint(2**31 - 1)))
        elif isinstance(rows.x, KnownTable):
            seed = int(rng.randint(2**31 - 1))
            rows = encode_again(self, rows, met(self, rows.x.x, rows.y), size, seed)
        elif not self._goes_on():
            self.encoding_ = None
        return rows

    def _further(self, X: Any, x: Array, y: Array, weights: Array, size: int) -> Any:
        """Rows X, encoded as x, for `partial_fit`: where `fit` has met them, it must not show."""
        table = known(self, X, x)
        if not isinstance(table, KnownTable) or getattr(self, "_shares", None) is None:
            return x
        rows = WeightedRows(table, y, weights)
        return self._encoded(rows, size, check_random_state(self.random_state)).x

    def _check(self, X: Any, y: Any, reset: bool = True, min_rows: int = 2) -> tuple[Any, Array]:
        raise NotImplementedError

    def _coded(self, y: Array) -> Array:
        """Further targets as `_train` takes them, an error if they do not fit those before."""
        raise NotImplementedError

    def _scalings(self, train: WeightedRows) -> Scalings:
        standardize = self.standardize and self.encoding_ is None
        return Scalings(Scaling.of(train.x, train.weights, standardize), None)

    def _scalings_before(self) -> Scalings:
        """Those of the models there are."""
        return Scalings(self.input_scaling_, getattr(self, "target_scaling_", None))

    # scikit-learn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state and state["model_"].anchor.is_cuda:
            # A pickle made beside a GPU opens on machines without one.
            members = [copy.deepcopy(model).cpu() for model in state["members_"]]
            state = {**state, "members_": members, "model_": members[0], "_optimizers": None}
        return state
