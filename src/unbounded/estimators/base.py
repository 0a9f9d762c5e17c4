"""What both estimators share: from a table to `unbounded.fit`, and from rows to predictions."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from unbounded import interrupts
from unbounded.depth import DepthFamily, TruncatedNormal
from unbounded.estimators.auto import (
    annealing_factor,
    choose_batch_size,
    choose_epochs,
    choose_patience,
)
from unbounded.estimators.ensemble import (
    TrainedModels,
    Training,
    average_by_depth,
    average_probs,
    depth_probs,
    member_seeds,
    warn,
)
from unbounded.estimators.rows import Array, Scaling, Scalings, WeightedRows, merge, split
from unbounded.frozen import Frozen
from unbounded.growth import TooDeepError
from unbounded.layers import Layers
from unbounded.likelihoods import Likelihood, Prediction
from unbounded.model import UDN
from unbounded.predictive import combine
from unbounded.priors import DepthPrior, WeightPrior
from unbounded.steps.batches import batches
from unbounded.training import History, NonFiniteError, make_optimizer, preset, step

# Rows that go through the network at a time when predicting.
_PREDICTION_ROWS = 8192


@dataclass(kw_only=True, eq=False, repr=False)
class UDNEstimator(BaseEstimator):
    """The common part of `UDNClassifier` and `UDNRegressor`.

    A subclass turns targets into what the likelihood takes and predictions into what
    scikit-learn expects; all training goes through `_train`, all predicting through `_predictions`.
    Dataclasses write the constructors, so that every argument is declared once; the docstring of
    each subclass gets the rest of this text.

    Thin over `unbounded.fit`. Equal rows are merged into one that counts as often (so that a
    `sample_weight` of 2 and a row that is there twice are the same, to the last bit) and put
    into an order of their own; a share is held out to find the best epoch. Ctrl-C and SIGTERM
    end training and keep the best model so far.

    Main arguments of both estimators:
        preset: "settled" (depth follows held-out rows; docs/depth.md) or "paper" (a truncated
            Poisson whose λ follows the gradient of 𝓛, plain layers).
        width: size of every hidden state.
        epochs: passes over the training rows at most. "auto": 3000 steps, in 20 to 200 epochs.
        batch_size: rows a step. "auto": a power of two near √rows, from 32 to 1024.
        lr: rate of the weights, with Adam. In the preset "paper" λ learns at a tenth of it.
        validation_fraction: share of the rows (of each class alike) that is held out to find the
            best epoch. Tables too small to spare 8 rows for that are trained to the end.
        refit: once the best epoch is known, train anew on all rows up to it, with a rate that
            falls to nothing in the second half. False keeps the weights of the best epoch.
        n_members: train this many models at once from different seeds and
            average their predictions: a deep ensemble.
        random_state: a number makes everything reproducible, bit for bit on a CPU.
        device: "auto" (a GPU if there is one), or what `torch.device` takes.
        verbose: 1 shows a progress bar on standard error.

    Other arguments of both:
        layers: a `Layers` of the core in place of dense ones, or a callable
            (in_features, out_features) -> `Layers`.
        depth: the family q(ℓ; λ); the preset's by default. A rule for held-out rows moves a
            `TruncatedNormal`, the optimiser any other.
        depth_prior: p(ℓ); ℓ−1 ~ Poisson(0.5) by default.
        weight_prior: p(θ); N(0, 1) by default.
        likelihood: p(y; Ω); by default `Categorical`, or `Gaussian` with learnt noise.
        patience: stop after this many epochs without a better held-out score. "auto": a fifth of
            the epochs. None: never.
        select: the best epoch by "log_score" or by "score" (accuracy or RMSE).
        standardize: bring every input column to mean 0 and standard deviation 1.

    Attributes:
        model_: the `UDN`, in evaluation mode; the first one of an ensemble.
        members_: all of them.
        depth_probs_: q(1) … q(m), `(max_depth_,)`.
        depth_mean_: E[ℓ].
        max_depth_: m, the largest depth with mass.
        depths_: the depths of `predict_by_depth`: 1 … m, or the one depth of a `FixedDepth`.
        history_: one row an epoch, from the training with held-out rows.
        refit_history_: the same of the training on all rows; None if there was none.
        best_epoch_: the epoch that the held-out rows chose.
        n_iter_: epochs of that first training.
        stopped_: why it ended: "epochs", "patience", "interrupted" (Ctrl-C or SIGTERM), "diverged"
            (the best epoch before is kept) or "memory" (the next layers would not fit).
        n_features_in_, feature_names_in_: of the table.
    """

    layers: Layers | Callable[[int, int], Layers] | None = None
    preset: str = "settled"
    width: int = 64
    depth: DepthFamily | None = None
    depth_prior: DepthPrior | None = None
    weight_prior: WeightPrior | None = None
    likelihood: Likelihood | None = None
    epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"
    lr: float = 0.005
    patience: int | Literal["auto"] | None = "auto"
    validation_fraction: float = 0.2
    select: str = "log_score"
    refit: bool = True
    standardize: bool = True
    n_members: int = 1
    random_state: Any = None
    device: str | torch.device = "auto"
    verbose: int = 0
    _needed: ClassVar[tuple[str, str, str]]  # of a prediction: attribute, what it is, from what

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if UDNEstimator in cls.__bases__ and cls.__doc__ and UDNEstimator.__doc__:
            _, mark, shared = inspect.cleandoc(UDNEstimator.__doc__).partition("Thin over")
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{mark}{shared}\n"

    @property
    def depth_probs_(self) -> NDArray[np.float64]:
        """q(1) … q(m), shape `(max_depth_,)`; of an ensemble the members' average."""
        check_is_fitted(self)
        return average_probs([depth_probs(model) for model in self.members_])

    @property
    def max_depth_(self) -> int:
        """m, the largest depth with mass."""
        return len(self.depth_probs_)

    @property
    def depth_mean_(self) -> float:
        """E[ℓ] under q."""
        probs = self.depth_probs_
        return float(probs @ np.arange(1, len(probs) + 1))

    @property
    def depths_(self) -> NDArray[np.int64]:
        """The depths of `predict_by_depth`: 1 … m, or the one depth of a `FixedDepth`."""
        check_is_fitted(self)
        supports = [model.support() for model in self.members_]
        return np.arange(min(s[0] for s in supports), max(s[1] for s in supports) + 1)

    def save(self, path: str | Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the fitted estimator to one safetensors file: data only, no pickle.

        Args:
            path: the file; replaced if it is there.
            extra: plain data (JSON) of your own to travel in the header.
        """
        from unbounded.estimators import files

        files.save(self, path, extra=extra)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Read what `save` wrote.

        Args:
            path: the file.
            options: `device`, and parts of your own (`layers`, `likelihood`, `depth`, …) where the
                model was fitted with ones that a file cannot carry.
        """
        from unbounded.estimators import files

        found = files.load(path, **options)
        if not isinstance(found, cls):
            raise ValueError(f"{path} holds a {type(found).__name__}, not a {cls.__name__}")
        return found

    # Training

    def _default_likelihood(self, size: int) -> Likelihood:
        raise NotImplementedError

    def _describe_targets(self) -> dict[str, Any]:
        """What `save` must know of the targets, as plain data."""
        raise NotImplementedError

    def _rebuild_targets(self, described: dict[str, Any], where: str) -> None:
        """The inverse of `_describe_targets`, once the models are there; a FileError if it fails.

        Args:
            described: plain data of a file.
            where: what errors call it.
        """
        raise NotImplementedError

    def _check_arguments(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in [0, 1), got {self.validation_fraction}"
            )
        preset(self.preset)
        auto = ("auto",)
        others = {"epochs": auto, "batch_size": auto, "patience": (*auto, None), "n_members": ()}
        for name, allowed in others.items():
            value = getattr(self, name)
            if value in allowed:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                either = "'auto' or " if allowed else ""
                raise ValueError(f"{name} must be {either}an integer from 1, got {value!r}")

    def _train(self, x: Array, y: Array, weights: Array, size: int) -> None:
        """Find the best epoch on held-out rows, then train anew on all rows up to it.

        y are classes `(rows,)` or numbers `(rows, target)`, `size` how many of them there are.
        """
        self._check_arguments()
        rng = check_random_state(self.random_state)
        rows = merge(x, y, weights)
        classes = rows.y if rows.y.ndim == 1 else None
        training, held = split(len(rows.x), self.validation_fraction, classes, rng)
        seed = int(rng.randint(2**31 - 1))
        epochs = choose_epochs(self.epochs, self.batch_size, len(training))
        refit = self.refit and len(held) > 0
        self.refit_history_ = None
        # From here on a request to end loses nothing: both trainings heed it.
        with interrupts.deferred():
            parts = rows.take(training), rows.take(held)
            run = self._run(*parts, size, seed, epochs, anneal=not refit)
            first = run.training
            if not first.history.rows and first.stopped == "memory":
                raise TooDeepError(
                    "the layers of the first epoch do not fit into memory: give the depth family "
                    "a limit=, or a lower rate"
                )
            if not first.history.rows:
                raise KeyboardInterrupt  # before the first epoch's end: there is nothing to keep
            if refit and first.stopped in ("epochs", "patience"):
                try:
                    again = self._run(rows, None, size, seed, first.best_epoch, True, run.models)
                    ended = again.training.stopped
                except KeyboardInterrupt:
                    ended = "interrupted"
                except TooDeepError as error:
                    ended = "memory"
                    warn(f"training on all rows lacked memory, that before it is kept: {error}")
                except NonFiniteError as error:
                    ended = "diverged"
                    warn(f"training on all rows diverged, that before it is kept: {error}")
                if ended == "epochs":
                    run, self.refit_history_ = again, again.training.history
                else:
                    # Half a training: what the held-out rows chose is better.
                    first = first._replace(stopped=ended)
            with interrupts.shielded():
                self._keep(run._replace(training=first), len(x))

    def _run(
        self,
        train: WeightedRows,
        held: WeightedRows | None,
        size: int,
        seed: int,
        epochs: int,
        anneal: bool,
        found: Sequence[UDN] = (),
    ) -> TrainedModels:
        """One training of new models, their scaling from the training rows.

        Where held-out rows have found the depth, the models that have it are `found`.
        """
        scalings = self._scalings(train)
        models = [
            self._build(train.x.shape[1], size, one) for one in member_seeds(seed, self.n_members)
        ]
        for model, before in zip(models, found, strict=False):
            if isinstance(model.depth, TruncatedNormal):
                model.depth.load_state_dict(before.depth.state_dict())
        validation = patience = None
        if held is not None and len(held.x):
            validation = scalings.tensors(held, models[0])
            patience = choose_patience(self.patience, epochs)
        options: dict[str, Any] = {
            "validation": validation,
            "epochs": epochs,
            "batch_size": choose_batch_size(self.batch_size, len(train.x)),
            "lr": self.lr,
            "patience": patience,
            "select": self.select,
            "progress": bool(self.verbose),
            "schedule": partial(annealing_factor, epochs=epochs) if anneal else None,
            **preset(self.preset).fitting(models[0].depth, validation is not None),
        }
        data = scalings.tensors(train, models[0])
        return TrainedModels(models, scalings, Training.by_fit(models, data, **options))

    def _keep(self, run: TrainedModels, rows: int) -> None:
        self.members_ = [model.eval() for model in run.models]
        self.model_ = self.members_[0]
        self.input_scaling_ = run.scalings.inputs
        if run.scalings.targets is not None:
            self.target_scaling_ = run.scalings.targets
        self.n_rows_seen_ = rows
        self.history_, self.best_epoch_, self.stopped_ = run.training
        self.n_iter_ = len(self.history_)
        self._optimizer: torch.optim.Optimizer | None = None

    def _scalings(self, train: WeightedRows) -> Scalings:
        return Scalings(Scaling.of(train.x, train.weights, self.standardize), None)

    def _build(self, in_features: int, size: int, seed: int) -> UDN:
        likelihood = copy.deepcopy(self.likelihood)
        if likelihood is None:
            likelihood = self._default_likelihood(size)
        model = UDN(
            self._layers(in_features, likelihood.num_outputs(size)),
            likelihood,
            # Copies: training moves λ, and the arguments stay as they were given.
            preset(self.preset).family() if self.depth is None else copy.deepcopy(self.depth),
            copy.deepcopy(self.depth_prior),
            copy.deepcopy(self.weight_prior),
            seed=seed,
        )
        return model.to(resolve_device(self.device))

    def _layers(self, in_features: int, out_features: int) -> Layers:
        if self.layers is None:
            return preset(self.preset).layers(in_features, self.width, out_features)
        if isinstance(self.layers, Layers):
            return self.layers
        if not callable(self.layers):
            raise ValueError(
                "layers must be a Layers or a callable (in_features, out_features) -> Layers, "
                f"got {type(self.layers).__name__}"
            )
        return self.layers(in_features, out_features)

    def _train_further(self, x: Array, y: Array, weights: Array, size: int) -> None:
        """One pass over new rows from where the model stands, for `partial_fit`."""
        if self.n_members != 1:
            raise ValueError(f"partial_fit trains one model: n_members is {self.n_members}, not 1")
        rows = merge(x, y, weights)
        if not self.__sklearn_is_fitted__():
            self._check_arguments()
            rng = check_random_state(self.random_state)
            model = self._build(rows.x.shape[1], size, int(rng.randint(2**31 - 1)))
            none = Training(History(), 0, "partial_fit")
            self._keep(TrainedModels([model], self._scalings(rows), none), 0)
            self.refit_history_ = None
        model = self.model_
        if self._optimizer is None:
            self._optimizer = make_optimizer(model, lr=self.lr)
        self.n_rows_seen_ += len(x)
        scalings = Scalings(self.input_scaling_, getattr(self, "target_scaling_", None))
        batch_size = choose_batch_size(self.batch_size, len(rows.x))
        order = torch.Generator().manual_seed(self.n_rows_seen_)
        model.train()
        try:
            for batch in batches(
                scalings.tensors(rows, model),
                model,
                what="training",
                batch_size=batch_size,
                generator=order,
            ):
                given = (batch.x, batch.y, self.n_rows_seen_)
                step(model, self._optimizer, *given, weights=batch.weights, at=" in partial_fit")
        finally:
            model.eval()

    def _validate(self, X: Any, y: Any, reset: bool, min_rows: int, **options: Any) -> Any:
        """X and y as scikit-learn's `validate_data` gives them, in single or double precision."""
        precisions = [np.float64, np.float32]
        options = {"dtype": precisions, "ensure_min_samples": min_rows, **options}
        return validate_data(self, X, y, reset=reset, **options)

    # Predicting

    def _predictions(self, X: Any) -> Iterator[Any]:
        """The mixture over depths (and members) for a few thousand rows at a time."""
        for predictions in self._member_predictions(X):
            yield predictions[0] if len(predictions) == 1 else combine(predictions)

    def _member_predictions(self, X: Any) -> Iterator[list[Any]]:
        """The mixtures of the members for a few thousand rows at a time.

        In double precision: a row's prediction then does not depend, to more digits than anybody
        looks at, on the rows it is predicted together with.
        """
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        frozen: list[Frozen] = [model.freeze().double() for model in self.members_]
        scalings = Scalings(self.input_scaling_, None)
        device = self.model_.anchor.device
        for start in range(0, len(x), _PREDICTION_ROWS):
            piece = scalings.x(x[start : start + _PREDICTION_ROWS], self.model_).to(device)
            with torch.inference_mode():  # closed before the yield: it must not leak to the caller
                outputs = [one(piece)[0] for one in frozen]
            yield [
                self._checked(one.likelihood.predict(output, one.depth_probs.log()))
                for one, output in zip(frozen, outputs, strict=True)
            ]

    def _checked(self, prediction: Prediction) -> Prediction:
        attribute, what, such = self._needed
        if hasattr(prediction, attribute):
            return prediction
        raise TypeError(
            f"{type(prediction.likelihood).__name__} predicts no {what}: {type(self).__name__} "
            f"needs a likelihood such as {such}"
        )

    def _by_depth(self, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """What the members say at each of `depths_`, from `(its depths, rows, …)` of each."""
        return average_by_depth(
            values,
            [model.support()[0] for model in self.members_],
            [depth_probs(model) for model in self.members_],
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state and state["model_"].anchor.is_cuda:
            # A pickle made beside a GPU opens on machines without one.
            members = [copy.deepcopy(model).cpu() for model in state["members_"]]
            state = {**state, "members_": members, "model_": members[0], "_optimizer": None}
        return state


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is the GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)
