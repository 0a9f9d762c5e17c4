"""What both estimators share: from a table to `unbounded.fit`, and from rows to predictions."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch.optim.lr_scheduler import LambdaLR

from unbounded.depth import DepthFamily
from unbounded.estimators.ensemble import average_by_depth, average_probs
from unbounded.estimators.rows import Array, Rows, Scaling, merge, split
from unbounded.frozen import Frozen
from unbounded.layers import Dense, Layers
from unbounded.likelihoods import Likelihood, Prediction
from unbounded.model import UDN
from unbounded.priors import DepthPrior, WeightPrior
from unbounded.training import History, fit, make_optimizer, step
from unbounded.steps.batches import batches

# Rows that go through the network at a time when predicting.
_PREDICTION_ROWS = 8192

# What "auto" means.
STEPS = 3000
"""Training steps that small and mid-size tables get at most."""
MIN_EPOCHS, MAX_EPOCHS = 20, 200
PATIENCE = 5
"""Training stops after a fifth of its epochs without a better validation score."""


class UDNEstimator(BaseEstimator):
    """The common part of `UDNClassifier` and `UDNRegressor`; their docstrings tell the arguments.

    A subclass turns targets into what the likelihood takes and predictions into what
    scikit-learn expects; all training goes through `_train`, all predicting through `_predictions`.
    """

    def __init__(
        self,
        *,
        layers: Layers | Callable[[int, int], Layers] | None = None,
        width: int = 64,
        depth: DepthFamily | None = None,
        depth_prior: DepthPrior | None = None,
        weight_prior: WeightPrior | None = None,
        likelihood: Likelihood | None = None,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 0.005,
        patience: int | Literal["auto"] | None = "auto",
        validation_fraction: float = 0.2,
        select: str = "log_score",
        refit: bool = True,
        standardize: bool = True,
        n_members: int = 1,
        random_state: Any = None,
        device: str | torch.device = "auto",
        verbose: int = 0,
    ):
        self.layers = layers
        self.width = width
        self.depth = depth
        self.depth_prior = depth_prior
        self.weight_prior = weight_prior
        self.likelihood = likelihood
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.select = select
        self.refit = refit
        self.standardize = standardize
        self.n_members = n_members
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    model_: UDN
    members_: list[UDN]
    history_: History
    n_features_in_: int

    @property
    def depth_probs_(self) -> NDArray[np.float64]:
        """q(1) … q(m), shape `(max_depth_,)`; of an ensemble the members' average."""
        check_is_fitted(self)
        return average_probs([_depth_probs(model) for model in self.members_])

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

    def _rebuild_targets(self, described: dict[str, Any]) -> None:
        """The inverse of `_describe_targets`."""
        raise NotImplementedError

    def _check_weights(self, sample_weight: Any, rows: int) -> NDArray[np.float64]:
        if sample_weight is None:
            return np.ones(rows)
        weights = np.asarray(
            sample_weight.to_numpy() if hasattr(sample_weight, "to_numpy") else sample_weight,
            dtype=np.float64,
        )
        if weights.ndim == 0:
            weights = np.full(rows, float(weights))
        if weights.shape != (rows,):
            raise ValueError(f"sample_weight must have shape ({rows},), got {weights.shape}")
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError("sample_weight must be finite and at least 0")
        if not (weights > 0).any():
            raise ValueError("sample_weight is zero in every row: there is nothing to learn from")
        return weights

    def _check_arguments(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in [0, 1), got {self.validation_fraction}"
            )
        if isinstance(self.n_members, bool) or not isinstance(self.n_members, Integral):
            raise ValueError(f"n_members must be an integer from 1, got {self.n_members!r}")
        if self.n_members < 1:
            raise ValueError(f"n_members must be an integer from 1, got {self.n_members!r}")
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value == "auto" or (value is None and name == "patience"):
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be 'auto' or an integer from 1, got {value!r}")

    def _train(self, x: Array, y: Array, weights: Array, size: int) -> None:
        """Find the best epoch on held-out rows, then train anew on all rows up to it.

        Args:
            x: `(rows, feature)`.
            y: classes `(rows,)` or numbers `(rows, target)`.
            weights: `(rows,)`.
            size: how many classes or targets there are.
        """
        self._check_arguments()
        rng = check_random_state(self.random_state)
        rows = merge(x, y, weights)
        classes = rows.y if rows.y.ndim == 1 else None
        training, held = split(len(rows.x), self.validation_fraction, classes, rng)
        seed = int(rng.randint(2**31 - 1))
        epochs = self._epochs(len(training))
        refit = self.refit and len(held) > 0
        run = self._run(rows.take(training), rows.take(held), size, seed, epochs, anneal=not refit)
        if not run.result.history.rows:
            raise KeyboardInterrupt  # before the end of the first epoch: there is nothing to keep
        first, stopped = run.result, run.result.stopped
        refit_history = None
        if refit and stopped != "interrupted":
            again = self._run(rows, None, size, seed, first.best_epoch, anneal=True)
            if again.result.stopped == "interrupted":
                stopped = "interrupted"  # half a training: what the held-out rows chose is better
            else:
                run, refit_history = again, again.result.history
        self._keep(run, len(x))
        self.history_ = first.history
        self.refit_history_ = refit_history
        self.best_epoch_ = first.best_epoch
        self.n_iter_ = len(first.history)
        self.stopped_ = stopped

    def _run(
        self, train: Rows, held: Rows | None, size: int, seed: int, epochs: int, anneal: bool
    ) -> "Run":
        """One training of new models, their scaling from the training rows."""
        scalings = self._scalings(train)
        models = [
            self._build(train.x.shape[1], size, one) for one in member_seeds(seed, self.n_members)
        ]
        validation = None
        patience = None
        if held is not None and len(held.x):
            validation = scalings.tensors(held, models[0])
            patience = max(1, epochs // PATIENCE) if self.patience == "auto" else self.patience
        x, y, weights = scalings.tensors(train, models[0])
        options: dict[str, Any] = {
            "validation": validation,
            "epochs": epochs,
            "batch_size": self._batch_size(len(train.x)),
            "lr": self.lr,
            "patience": patience,
            "select": self.select,
            "progress": bool(self.verbose),
        }
        if len(models) == 1:
            scheduler = (lambda optimizer: annealing(optimizer, epochs)) if anneal else None
            result: Any = fit(models[0], x, y, weights=weights, scheduler=scheduler, **options)
        else:
            from unbounded.engines import fit_population

            data = (x, y) if weights is None else (x, y, weights)
            if validation is not None and validation[2] is None:
                options["validation"] = validation[:2]
            schedule = (lambda epoch: annealing_factor(epoch, epochs)) if anneal else None
            result = EnsembleResult.of(fit_population(models, data, schedule=schedule, **options))
        return Run(models, scalings, result)

    def _keep(self, run: "Run", rows: int) -> None:
        self.members_ = [model.eval() for model in run.models]
        self.model_ = self.members_[0]
        self.input_scaling_ = run.scalings.inputs
        if run.scalings.targets is not None:
            self.target_scaling_ = run.scalings.targets
        self.n_rows_seen_ = rows
        self._optimizer: torch.optim.Optimizer | None = None

    def _epochs(self, rows: int) -> int:
        """As given, or as many as make `STEPS` steps, within bounds."""
        if self.epochs != "auto":
            return self.epochs
        steps = -(-rows // self._batch_size(rows))
        return min(max(-(-STEPS // steps), MIN_EPOCHS), MAX_EPOCHS)

    def _batch_size(self, rows: int) -> int:
        """As given, or a power of two that grows with the table; no more than there are rows."""
        if self.batch_size != "auto":
            return min(self.batch_size, rows)
        return min(auto_batch_size(rows), rows)

    def _scalings(self, train: Rows) -> "Scalings":
        inputs = (
            Scaling.of(train.x, train.weights)
            if self.standardize
            else Scaling.none(train.x.shape[1])
        )
        return Scalings(inputs, None)

    def _build(self, in_features: int, size: int, seed: int) -> UDN:
        likelihood = (
            self._default_likelihood(size)
            if self.likelihood is None
            else copy.deepcopy(self.likelihood)
        )
        model = UDN(
            self._layers(in_features, likelihood.num_outputs(size)),
            likelihood,
            # Copies: training moves λ, and the arguments stay as they were given.
            copy.deepcopy(self.depth),
            copy.deepcopy(self.depth_prior),
            copy.deepcopy(self.weight_prior),
            seed=seed,
        )
        return model.to(resolve_device(self.device))

    def _layers(self, in_features: int, out_features: int) -> Layers:
        if self.layers is None:
            return Dense(in_features, self.width, out_features, init="he")
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
            self._keep(Run([model], self._scalings(rows), None), 0)
            self.history_, self.refit_history_ = History(), None
            self.best_epoch_, self.n_iter_, self.stopped_ = 0, 0, "partial_fit"
        model = self.model_
        if self._optimizer is None:
            self._optimizer = make_optimizer(model, lr=self.lr)
        self.n_rows_seen_ += len(x)
        scalings = Scalings(self.input_scaling_, getattr(self, "target_scaling_", None))
        batch_size = self._batch_size(len(rows.x))
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
                step(
                    model,
                    self._optimizer,
                    batch.x,
                    batch.y,
                    self.n_rows_seen_,
                    weights=batch.weights,
                    at=" in partial_fit",
                )
        finally:
            model.eval()

    # Predicting

    def _predictions(self, X: Any) -> Iterator[Prediction]:
        """The mixture over depths (and members) for a few thousand rows at a time."""
        from unbounded.engine.ensemble import combine

        for predictions in self._member_predictions(X):
            yield predictions[0] if len(predictions) == 1 else combine(predictions)

    def _member_predictions(self, X: Any) -> Iterator[list[Prediction]]:
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
                one.likelihood.predict(output, one.depth_probs.log())
                for one, output in zip(frozen, outputs, strict=True)
            ]

    def _by_depth(self, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """What the members say at each of `depths_`, from `(its depths, rows, …)` of each."""
        return average_by_depth(
            values,
            [model.support()[0] for model in self.members_],
            [_depth_probs(model) for model in self.members_],
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


def annealing(optimizer: torch.optim.Optimizer, epochs: int) -> LambdaLR:
    """`annealing_factor` as a scheduler."""
    return LambdaLR(optimizer, lambda epoch: annealing_factor(epoch, epochs))


def annealing_factor(epoch: int, epochs: int) -> float:
    """The full rate for the first half of the epochs, then down to nothing in a line."""
    return min(1.0, 2 * (1 - epoch / epochs))


def member_seeds(seed: int, count: int) -> list[int]:
    """Seeds of an ensemble's members; the first is that of a lone model."""
    others = (np.random.SeedSequence([seed, k]).generate_state(1)[0] for k in range(1, count))
    return [seed, *(int(other >> 1) for other in others)]


def _depth_probs(model: UDN) -> NDArray[np.float64]:
    """q(1) … q(m) of one model, adding up to one."""
    first, _ = model.support()
    probs = model.depth_log_probs().detach().double().exp().cpu().numpy()
    return np.concatenate([np.zeros(first - 1), probs / probs.sum()])


def auto_batch_size(rows: int) -> int:
    """A power of two near the root of the number of rows, between 32 and 1024."""
    return int(np.clip(2 ** round(np.log2(max(rows, 1)) / 2), 32, 1024))


@dataclass
class Scalings:
    """How rows become tensors."""

    inputs: Scaling
    targets: Scaling | None  # none for classes

    def x(self, x: Array, model: UDN) -> torch.Tensor:
        """Inputs, `(rows, feature)`, in double precision or as integers."""
        scaled = torch.from_numpy(np.ascontiguousarray(self.inputs.apply(x)))
        return scaled.long() if model.layers.integer_inputs else scaled

    def tensors(
        self, rows: Rows, model: UDN
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Inputs, targets and weights, as `unbounded.fit` takes them."""
        y = rows.y if self.targets is None else self.targets.apply(rows.y)
        # No weights where every row counts once: the common case is spared a product.
        weights = None if (rows.weights == 1).all() else torch.from_numpy(rows.weights)
        return self.x(rows.x, model), torch.from_numpy(np.ascontiguousarray(y)), weights


@dataclass
class Run:
    """Trained models with what their rows were scaled by."""

    models: list[UDN]
    scalings: Scalings
    result: Any  # a FitResult or EnsembleResult; none of partial_fit


@dataclass
class EnsembleResult:
    """What a `FitResult` says, of several members."""

    history: History  # the first member's
    best_epoch: int  # the members' median
    stopped: str

    @classmethod
    def of(cls, results: Sequence[Any]) -> "EnsembleResult":
        """Of what `fit_population` returns."""
        if any(result.stopped == "diverged" for result in results):
            raise FloatingPointError(
                "the loss of a member is not finite: a lower lr or another initialisation helps"
            )
        interrupted = any(result.stopped == "interrupted" for result in results)
        return cls(
            results[0].history,
            int(np.median([result.best_epoch for result in results])),
            "interrupted" if interrupted else results[0].stopped,
        )
