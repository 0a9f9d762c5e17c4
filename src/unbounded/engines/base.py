"""The contract of an engine: how the steps of one model or many are carried out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from unbounded.model import UDN
from unbounded.parallel import ALONE, Processes
from unbounded.steps.options import FitOptions

Row = dict[str, Any]
"""An epoch's row of the history, by column."""

TERMS = ("expected_log_lik", "depth_kl", "weight_kl")


VALIDATION = "val"
"""The name of the set that chooses the best epoch."""


class Birth(NamedTuple):
    """Hidden layers that were born before a step."""

    depths: range
    step: int


@dataclass(frozen=True)
class TrainingTask:
    """What an engine is to do.

    Attributes:
        models: to be trained.
        calls: what to call for the outputs of each: the model, or a compiled form of it.
        data: training data of each.
        sets: sets to score after an epoch by name, one for each model.
        batch_size: rows a step.
        seeds: of the shuffling.
        lr: learning rates of the weights.
        depth_lr_ratios: rates of λ, as multiples of these.
        options: all else.
        on_birth: to be called with a model's number and a `Birth`.
        processes: who share the rows of each batch.
    """

    models: Sequence[UDN]
    calls: Sequence[Callable[..., Tensor]]
    data: Sequence[Any]
    sets: dict[str, Sequence[Any]]
    batch_size: int
    seeds: Sequence[int]
    lr: Sequence[float]
    depth_lr_ratios: Sequence[float]
    options: FitOptions
    on_birth: Callable[[int, Birth], None]
    processes: Processes = ALONE

    @property
    def validates(self) -> bool:
        """Whether a best epoch is to be kept."""
        return VALIDATION in self.sets and self.options.select != "last"


class Engine(ABC):
    """Carries out the steps of a run of `fit`. Everything around them is the same for all engines.

    The order of calls: `start`, perhaps `load_state`; for every epoch `begin_epoch`, `step` until
    it says no, `end_epoch`, `keep_best`, perhaps `stop`, `state`; at last `finish`.
    """

    takes_processes: ClassVar[bool] = False
    """Whether it shares the rows with other processes."""
    capture_seconds: float = 0.0
    """How much of the run went into capturing and compiling."""

    @abstractmethod
    def start(self, task: TrainingTask) -> None:
        """Check that everything asked for can be done, and get ready."""

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Before an epoch, counted from 0: shuffle, set the learning rates."""

    @abstractmethod
    def step(self, grow: bool) -> bool:
        """One step of every model that still trains; False if the epoch has no further batch.

        Args:
            grow: whether to compute the supports before it.
        """

    @abstractmethod
    def end_epoch(self) -> list[Row | None]:
        """The columns of this epoch for each model, None for those that did not train.

        Nothing is under way after this: the models may be looked at.
        """

    @abstractmethod
    def keep_best(self, models: Sequence[int]) -> None:
        """The present weights of these models are their best so far."""

    @abstractmethod
    def stop(self, model: int) -> None:
        """This model takes no further steps."""

    @abstractmethod
    def failures(self) -> dict[int, str]:
        """Models whose loss is no longer a number, with what is known of it."""

    def outgrown(self) -> dict[int, str]:
        """Models that train no more since their next layers would not fit, with what to do."""
        return {}

    def revive(self, model: int) -> None:  # noqa: B027 (only of those that `outgrown` named)
        """Let a model of a checkpoint go on that had outgrown the memory there was."""

    @abstractmethod
    def finish(self, best: bool) -> None:
        """Give every model its best weights, or the last ones, and let go of everything."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What the next epoch depends on: plain data (JSON) and tensors."""

    @abstractmethod
    def load_state(
        self,
        plain: dict[str, Any],
        tensors: dict[str, Tensor],
        changed: frozenset[str] = frozenset(),
    ) -> None:
        """Go on from what `state` gave; nothing of it is trusted, all of it comes from a file.

        Args:
            plain: data of JSON.
            tensors: by name.
            changed: what differs from the run that wrote it and was accepted, in the words of
                `resume_despite`: in these the call has its way.

        Raises:
            FileError: if it is not of these models; then nothing was touched.
        """

    def go_on(self, model: int) -> None:
        """The opposite of `stop`."""
        raise NotImplementedError(f"{type(self).__name__} cannot go on with a model that stopped")

    def let_go(self) -> None:  # noqa: B027 (most engines touch nothing before the first epoch)
        """Before the first epoch, instead of `finish`: the models stay as they were found."""

    def show(self) -> None:  # noqa: B027 (most engines train the models themselves)
        """Before callbacks: the models have their present weights."""

    def step_schedulers(self, model: int, score: float) -> None:  # noqa: B027 (not all have any)
        """After an epoch: schedulers that go by epochs, or by a score."""

    def step_terms(self) -> list[Row | None]:
        """The number of each model's last step and its terms, None for who trains no more.

        A host read, for callbacks of single steps alone; it comes after every step or after none.
        """
        raise refuse(self, "callbacks with on_step_end", "it keeps no terms of single steps")

    def optimizer(self, model: int) -> Any:
        """The optimiser of a model, where it has one of its own."""
        return None


def set_words(name: str) -> str:
    """What a set is called in messages."""
    return "validation" if name == VALIDATION else name


def step_row(step: int, terms: Sequence[float]) -> Row:
    """What callbacks are told of a model's step."""
    return {"step": step, **dict(zip(TERMS, terms, strict=True))}


def refuse(engine: Engine, option: str, instead: str) -> ValueError:
    """One line that names the engine and the option that do not go together."""
    return ValueError(f"{type(engine).__name__} does not take {option}: {instead}")
