"""Steps of `fit` as CUDA graphs: one for each support, captured when it is first needed."""

import copy
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unbounded import growth
from unbounded.engine.graphs import Runner
from unbounded.training.batches import Batch
from unbounded.training.engines import Done, Engine
from unbounded.training.gradients import Gradient
from unbounded.training.step import NonFiniteError

if TYPE_CHECKING:
    from unbounded.training.loop import Trainer


class Graphs(Engine):
    """The forward and backward pass of a step as one CUDA graph; the host only gives orders.

    A graph is captured for each support (first and last depth) and batch shape, kept, and
    replayed whenever λ comes back to it. The host learns λ `lag` steps late, from a copy that
    travels beside the work, and so never waits for the device; in between q is exact but for its
    truncation, which is that of the λ last seen. The optimiser's step and the schedule stay
    outside of the graph: any of `torch.optim` works.

    On a device without CUDA the same code runs without graphs, lag and all.

    Args:
        lag: by how many steps the support lags behind λ.
        compiles: compile the layers, one by one (`Network.configure`). By default where they are
            convolutional, on a CUDA device.
        graphs: capture graphs; by default on a CUDA device.
        tunes: let cuDNN time its convolutions and choose the fastest, when a shape is new. Two runs
            may then choose differently and differ by rounding.
    """

    def __init__(
        self,
        *,
        lag: int = 2,
        compiles: bool | None = None,
        graphs: bool | None = None,
        tunes: bool = False,
    ):
        if lag < 0:
            raise ValueError(f"lag must be at least 0, got {lag}")
        self.lag, self.compiles, self.graphs, self.tunes = lag, compiles, graphs, tunes
        self.capture_seconds = 0.0

    def start(self, trainer: "Trainer") -> None:
        """Bind to a run: refuse what a graph cannot hold."""
        super().start(trainer)
        model = trainer.model
        if trainer.scaler is not None:
            raise ValueError("Graphs runs in torch.bfloat16 or full precision, not torch.float16")
        if trainer.drop_inactive:
            raise ValueError("Graphs keeps the layers that leave the support: drop_inactive=False")
        model.depth.log_probs_up_to(model.depth.max_depth())  # can it at all?
        device = model.anchor.device
        self._runner = Runner(device, self.graphs)
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._current: _Entry | None = None
        self._lambda = _Lagging(model.depth, self.lag, trainer.lambdas)
        self._support = (model.depth.first_depth(), model.depth.max_depth())
        compiles = self.compiles
        if compiles is None:
            pools = any(p.dim() == 4 for p in model.network.parameters())
            compiles = device.type == "cuda" and pools
        self._compiled_before = model.network._compiles
        if compiles != model.network._compiles:
            model.network.configure(compiles=compiles)

    def step(self, batch: Batch, *, grow: bool) -> Done:
        """Decide on the support, replay its graph, step the optimiser, send for λ."""
        trainer, model = self.trainer, self.trainer.model
        births = range(0)
        if grow:
            self._support = self._lambda.support()
            change = growth.plan(model, support=self._support)
            if change.changes:
                growth.apply(change, model, trainer.optimizer)
                births = change.hidden
            rule = trainer.depth_rule
            if rule is not None and rule.reserve(model, self._support[1]):
                self._forget()
        entry = self._entry(batch)
        if entry.runs < 2:
            entry.prepare()
        entry.fill(batch)
        started = time.perf_counter() if entry.runs < 2 else 0.0
        if entry.runs < 2 and self.tunes:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                self._runner(entry.name, entry.function)
        else:
            self._runner(entry.name, entry.function)
        entry.runs += 1
        if entry.runs <= 2 and self._runner.captures:
            torch.cuda.synchronize(model.anchor.device)
            self.capture_seconds += time.perf_counter() - started
        if entry is not self._current or entry.runs <= 2:
            trainer.optimizer.zero_grad(set_to_none=True)
            for parameter, grad in entry.grads:
                parameter.grad = grad
            self._current = entry
        if trainer.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.clip, foreach=True)
        trainer.optimizer.step()
        self._lambda.send()
        return Done(entry.terms.clone().unbind(), births)

    def end_epoch(self) -> None:
        """Keep what a checkpoint needs of λ's way to the host."""
        self.trainer.lambdas = self._lambda.pending()

    def check(self, terms: list[float]) -> None:
        """The loss is looked at once an epoch, with the terms that are read then anyway."""
        if not all(math.isfinite(value) for value in terms):
            names = ("expected_log_lik", "depth_kl", "weight_kl")
            seen = ", ".join(f"{n} = {v}" for n, v in zip(names, terms, strict=True))
            raise NonFiniteError(
                f"the loss is not finite in epoch {self.trainer.epoch}: {seen}. A lower learning "
                "rate, gradient clipping or another initialisation usually helps."
            )

    def end(self) -> None:
        """Free the graphs."""
        network = self.trainer.model.network
        if network._compiles != self._compiled_before:
            network.configure(compiles=self._compiled_before)
        for parameter in self.trainer.model.parameters():
            parameter.grad = None
        self._forget()
        super().end()

    def _entry(self, batch: Batch) -> "_Entry":
        key = (*self._support, tuple(batch.x.shape), batch.x.dtype, batch.weights is None)
        if key not in self._entries:
            self._entries[key] = _Entry(f"{key}", self.trainer, self._support, batch)
        return self._entries[key]

    def _forget(self) -> None:
        self._runner.clear()
        self._entries.clear()
        self._current = None


class _Entry:
    """A step's forward and backward pass on tensors at fixed places."""

    def __init__(self, name: str, trainer: "Trainer", support: tuple[int, int], batch: Batch):
        self.name, self.trainer, self.support = name, trainer, support
        self.runs = 0
        self.x, self.y = torch.empty_like(batch.x), torch.empty_like(batch.y)
        self.weights = None if batch.weights is None else torch.empty_like(batch.weights)
        self.terms = torch.zeros(0)
        self.grads: list[tuple[nn.Parameter, Tensor]] = []
        self._kept: list[Any] = []

    def fill(self, batch: Batch) -> None:
        """Put a batch where the graph will look for it."""
        self.x.copy_(batch.x)
        self.y.copy_(batch.y)
        if self.weights is not None and batch.weights is not None:
            self.weights.copy_(batch.weights)

    def prepare(self) -> None:
        """Have the caches filled: what they keep must not be made inside of a graph.

        They know one support at a time, and λ may have been elsewhere since the last run.
        """
        model, (first, last) = self.trainer.model, self.support
        model.network.active(last, first)
        model.depth_log_prior(model.posterior_over(first, last))

    def function(self) -> None:
        """Terms, gradients and, with a rule, the new λ."""
        trainer, model = self.trainer, self.trainer.model
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = None
        gradient = Gradient(
            model,
            self.x,
            self.y,
            float(trainer.data.num_data),
            self.weights,
            autocast=trainer.autocast,
            posterior=model.posterior_over(*self.support),
            equal_heads=trainer.equal_heads,
            equal_layers=trainer.equal_layers,
        )
        gradient.backward()
        if trainer.depth_rule is not None:
            trainer.depth_rule.move(gradient)
        self.terms = torch.stack([term.detach() for term in gradient.terms])
        self.grads = [(p, p.grad) for p in parameters if p.grad is not None]
        # Tensors from outside that the graph reads must outlive it, caches above all.
        self._kept = [gradient.active, *_tensors(model), *_tensors(model.depth)]


def _tensors(module: nn.Module) -> list[Any]:
    """Tensors and tuples of tensors that a module keeps besides its parameters and buffers."""
    return [value for value in vars(module).values() if isinstance(value, Tensor | tuple)]


class _Lagging:
    """A copy of the depth family on the host, `lag` steps behind the one on the device."""

    def __init__(self, family: nn.Module, lag: int, pending: list[Tensor] | None):
        self.lag = lag
        self.parameters = [*family.parameters(), *family.buffers()]
        self.shadow = copy.deepcopy(family).cpu()
        self.shadows = [*self.shadow.parameters(), *self.shadow.buffers()]
        self._cuda = bool(self.parameters) and self.parameters[0].is_cuda
        self._sent: deque[tuple[list[Tensor], torch.cuda.Event | None]] = deque()
        sizes = [p.numel() for p in self.parameters]
        for index, flat in enumerate(pending or ()):  # of a checkpoint
            pieces = flat.cpu().split(sizes)
            values = [v.view(p.shape) for v, p in zip(pieces, self.shadows, strict=True)]
            if index == 0:
                self._show(values)
            else:
                self._sent.append((values, None))

    def send(self) -> None:
        """Have λ as it is now copied to the host, whenever the device comes to it."""
        if not self.parameters:
            return
        with torch.no_grad():
            if not self._cuda:
                self._sent.append(([p.detach().clone() for p in self.parameters], None))
                return
            values = [torch.empty(p.shape, dtype=p.dtype, pin_memory=True) for p in self.parameters]
            for value, parameter in zip(values, self.parameters, strict=True):
                value.copy_(parameter.detach(), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._sent.append((values, event))

    def support(self) -> tuple[int, int]:
        """First and last depth by λ as it was `lag` steps ago."""
        while len(self._sent) > self.lag:
            values, event = self._sent.popleft()
            if event is not None:
                event.synchronize()
            self._show(values)
        return self.shadow.first_depth(), self.shadow.max_depth()  # type: ignore[operator]

    @torch.no_grad()
    def _show(self, values: list[Tensor]) -> None:
        for shadow, value in zip(self.shadows, values, strict=True):
            shadow.copy_(value)

    def pending(self) -> list[Tensor]:
        """What is under way, flat: so that a resumed run sees the same λ at the same step."""
        found = []
        for values, event in self._sent:
            if event is not None:
                event.synchronize()
            found.append(torch.cat([value.reshape(-1) for value in values]).clone())
        if self.parameters:  # what the shadow has now comes first
            found.insert(0, torch.cat([s.detach().reshape(-1) for s in self.shadows]).clone())
        return found
