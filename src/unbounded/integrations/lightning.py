"""A module for Lightning's trainer that grows while it trains."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from unbounded.engines.held_out import FreshRows
from unbounded.integrations.extras import imported
from unbounded.likelihoods import Prediction
from unbounded.model import UDN
from unbounded.predictive import evaluating, predict, without_gradients
from unbounded.steps import held_out_rows as over
from unbounded.steps.batches import Batch
from unbounded.steps.optimizers import make_optimizer, optimizer_kind
from unbounded.steps.options import DEPTH_LR_RATIO, StepOptions
from unbounded.steps.scoring import row_scores, row_weights
from unbounded.steps.step import step, uncompiled

_Module: Any = imported("lightning.pytorch", "lightning").LightningModule
_KEY = "unbounded.depth_rule"


class UDNModule(_Module):
    """A UDN for `lightning.Trainer`: births, states of new layers, checkpoints (extra `lightning`).

    Each batch takes `unbounded.step`, whose objective and growth are those of `fit`. Logged are
    elbo, its terms, depth_mean and num_layers; of validation data val_log_score and the
    likelihood's score, such as val_accuracy. Lightning's own checkpoints hold all; a run that is
    resumed from one goes on as if it had not been cut, if its batches do.

    Args:
        model: the model.
        num_data: n; the length of the training data set by default.
        optimizer: a `torch.optim` class, or a partial of one; Adam by default.
        lr: learning rate of the weights.
        depth_lr_ratio: rate of λ, as a multiple of it.
        scheduler: what makes a scheduler of the optimiser.
        schedule_every: when it steps, "epoch" or "step".
        options: the fields of `StepOptions`: clip, autocast, depth_rule, …; in place of the
            trainer's gradient_clip_val, precision and accumulate_grad_batches.

    Example:
        >>> module = UDNModule(UDN(Dense(2, 32, 2), Categorical(2)))
        >>> lightning.Trainer(max_epochs=10).fit(module, loader)
    """

    def __init__(
        self,
        model: UDN,
        num_data: int | None = None,
        *,
        optimizer: Any = None,
        lr: float = 0.005,
        depth_lr_ratio: float = DEPTH_LR_RATIO,
        scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
        schedule_every: str = "epoch",
        **options: Any,
    ):
        super().__init__()
        if schedule_every not in ("epoch", "step"):
            raise ValueError(f"schedule_every must be 'epoch' or 'step', got {schedule_every!r}")
        self.automatic_optimization = False  # a step of ours is gradient, growth and depth rule
        self.model, self.num_data = model, num_data
        self._optimizer, self._rates = optimizer_kind(optimizer), (lr, depth_lr_ratio)
        self._scheduler, self._schedule_every = scheduler, schedule_every
        self.options = StepOptions(**options)
        self._given = options
        self._rows, self._sums = FreshRows(), over.zeros(2, 5)

    @property
    def udn(self) -> UDN:
        """The model, inside of `torch.compile` or not."""
        return uncompiled(self.model)

    def forward(self, x: Any) -> Prediction:
        """The mixture over depths for inputs `(batch, …)`."""
        return predict(self.udn, x)

    # Hooks of the trainer, in the order in which it calls them -------------------------------

    def setup(self, stage: str) -> None:
        """Refuse what would train something else than `fit` does."""
        if stage != "fit":
            return
        if self.trainer.world_size > 1:
            raise ValueError(
                "Lightning's strategies for several processes know no layer that is born later: "
                "use devices=1, or unbounded.fit under torchrun"
            )
        if "mixed" in str(self.trainer.precision):
            raise ValueError(
                f"precision={self.trainer.precision!r} would take the objective along: use "
                "precision='32-true' and UDNModule(..., autocast=torch.bfloat16)"
            )
        rule = self.options.depth_rule
        if rule is not None:
            rule.begin()
            rule.reserve(self.udn, self.udn.depth.max_depth())

    def configure_optimizers(self) -> Any:
        """The library's groups; of a checkpoint the layers are there already."""
        kind, arguments = self._optimizer
        lr, ratio = self._rates
        optimizer = make_optimizer(self.udn, kind, lr, depth_lr_ratio=ratio, **arguments)
        if self._scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self._scheduler(optimizer)}

    def on_train_start(self) -> None:
        """n, where it was not said."""
        if self.num_data is None:
            if self.udn.likelihood.unit != "rows":
                raise ValueError(f"say num_data: how many {self.udn.likelihood.unit} there are")
            try:
                self.num_data = len(self.trainer.train_dataloader.dataset)
            except (AttributeError, TypeError):
                raise ValueError("the data set has no length: say num_data") from None

    def on_train_epoch_start(self) -> None:
        """λ moves by what the last epoch's held-out rows have shown, where a rule does so."""
        rule = self.options.depth_rule
        if rule is not None and rule.needs_held_out:
            rule.settle(self.udn, self._rows.weights)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One step of dynamic variational inference."""
        x, y, *weights = batch
        assert self.num_data is not None
        info = step(
            self.model,
            self.optimizers(),
            x,
            y,
            self.num_data,
            weights=weights[0] if weights else None,
            **self._given,
        )
        named = {name: term.float() for name, term in info.terms._asdict().items()}
        depth = {"depth_mean": self.udn.depth.mean(), "num_layers": self.udn.network.num_layers}
        found = {"elbo": -info.loss * self.num_data, **named, **depth}
        self.log_dict(found, on_step=True, on_epoch=False, batch_size=len(y))
        if self._scheduler is not None and self._schedule_every == "step":
            self.lr_schedulers().step()

    def on_validation_epoch_start(self) -> None:
        """No rows yet."""
        self._rows.clear()
        self._sums = over.zeros(2, 5)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Scores of the mixture, as `fit` computes them."""
        x, y, *given = batch
        weights, model = given[0] if given else None, self.udn
        with evaluating(model), without_gradients(model):
            outputs, log_q = model(x), model.depth_log_probs()
            rows = torch.stack(row_scores(model.likelihood, outputs, log_q, y))
            self._sums = (
                self._sums + over.sums(rows, row_weights(model.likelihood, y, weights)).cpu()
            )
            rule = self.options.depth_rule
            if rule is not None and rule.needs_held_out and not self.trainer.sanity_checking:
                self._rows.add(model.likelihood.log_scores(outputs, y), Batch(x, y, weights))

    def on_validation_epoch_end(self) -> None:
        """Log the scores, and show the rule its rows."""
        likelihood, rule = self.udn.likelihood, self.options.depth_rule
        mean, log_mean = over.mean_and_error(self._sums)[0].tolist()
        found = {"val_log_score": log_mean}
        if likelihood.score_name != "log_score":
            found[f"val_{likelihood.score_name}"] = likelihood.finish_score(mean)
        self.log_dict(found, prog_bar=True)
        if rule is not None and rule.needs_held_out and not self.trainer.sanity_checking:
            self._rows.look(rule, self.udn)

    def predict_step(self, batch: Any, batch_idx: int) -> Prediction:
        """The mixture over depths for a batch of inputs, or of inputs and targets."""
        return self(batch[0] if isinstance(batch, list | tuple) else batch)

    def on_train_epoch_end(self) -> None:
        """Schedulers that go by epochs."""
        if self._scheduler is not None and self._schedule_every == "epoch":
            self.lr_schedulers().step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What the depth rule has seen; all else is in the states of model and optimiser."""
        rule = self.options.depth_rule
        if rule is not None:
            seen: dict[str, Tensor] = dict(rule.state())
            if self._rows.weights is not None:
                seen["held_out_weights"] = self._rows.weights
            checkpoint[_KEY] = seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put it back."""
        rule = self.options.depth_rule
        if rule is None:
            return
        state = dict(checkpoint.get(_KEY, {}))
        self._rows.weights = state.pop("held_out_weights", None)
        if state.keys() != rule.state().keys():
            raise ValueError("the checkpoint was written without this depth_rule: states differ")
        rule.check_state(state)
        rule.load_state(self.udn, state)
