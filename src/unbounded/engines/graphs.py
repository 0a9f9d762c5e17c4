"""Steps as CUDA graphs: one for each support, captured when it is first needed."""

import copy
import time
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from unbounded import trees
from unbounded.engines import sharing
from unbounded.engines.base import TrainingTask, refuse
from unbounded.engines.capture import Runner
from unbounded.engines.eager import Eager
from unbounded.engines.member import Member
from unbounded.engines.optimizer_states import check_tensor
from unbounded.engines.states import check_family
from unbounded.files import FileError
from unbounded.parallel import Processes
from unbounded.steps.batches import Batch
from unbounded.steps.objective import Gradient
from unbounded.steps.step import pieces


class Graphs(Eager):
    """The forward and backward pass of a step as one CUDA graph; the host only gives orders.

    A graph is captured for each support (first and last depth) and batch shape, kept, and
    replayed whenever λ comes back to it. The host learns λ `lag` steps late, from a copy that
    travels beside the work, and so never waits for the device; in between q is exact but for its
    truncation, which is that of the λ last seen. The optimiser's step and the schedule stay
    outside of the graph: any of `torch.optim` works. So do the sums over several processes, which
    come after the backward pass, with the prior's part and the depth rule behind them.

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

    def start(self, task: TrainingTask) -> None:
        """Refuse what a graph cannot hold, and get ready to capture."""
        options = task.options
        if options.autocast is torch.float16:
            raise refuse(self, "autocast=torch.float16", "use torch.bfloat16, or Eager()")
        if options.drop_inactive:
            raise refuse(self, "drop_inactive=True", "it keeps all layers; use Eager()")
        for name in ("shard", "sync_batch_norm"):  # their messages are a part of the passes
            if task.processes.size > 1 and getattr(options, name):
                raise refuse(self, f"{name}=True with several processes", "use Eager()")
        if not all(model.layers.has_fixed_steps for model in task.models):
            raise refuse(self, "layers whose passes differ from each other", "use Eager()")
        super().start(task)
        for member in self.members:
            member.extra = _Captures(self, member)

    def begin_epoch(self, epoch: int) -> None:
        """A rule that moves λ between epochs has the host wait there: it need not lag behind."""
        super().begin_epoch(epoch)
        for member in self.members:
            if member.alive and member.judge is not None:
                member.extra.lagging.catch_up()

    def _advance(self, member: Member, batch: Batch, grow: bool) -> None:
        """Decide on the support, replay its graph, step the optimiser, send for λ."""
        captures: _Captures = member.extra
        model, processes, share = member.model, self.task.processes, 1.0
        if processes.size > 1:
            batch, share = sharing.own_part(model, member.data, batch, processes)
        if grow:
            support = captures.support = captures.lagging.support()
            self._grow(member, support, batch)
            rule = member.options.depth_rule
            if rule is not None and rule.reserve(model, support[1]):
                captures.forget()
        captures.check()
        entry = captures.run(batch, share)
        if entry is not captures.current or any(p.grad is not grad for p, grad in entry.grads):
            member.optimizer.zero_grad(set_to_none=True)
            for parameter, grad in entry.grads:
                parameter.grad = grad
            captures.current = entry
        entry.share_out()
        if member.options.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), member.options.clip, foreach=True)
        member.optimizer.step()
        captures.lagging.send()
        member.terms.add(entry.terms)
        if member.fresh is not None and entry.rows is not None:
            member.fresh.add(entry.rows.clone(), batch)

    def _release(self, member: Member) -> None:
        """Free the graphs."""
        super()._release(member)
        member.extra.release()


class _Captures:
    """The graphs of one model, and λ on its way to the host."""

    def __init__(self, engine: Graphs, member: Member):
        self.engine, self.member = engine, member
        model = member.model
        device = model.anchor.device
        self.runner = Runner(device, engine.graphs, engine.task.processes.size > 1)
        self.entries: dict[tuple[Any, ...], _Entry] = {}
        self.signatures: dict[tuple[int, int], list[Any]] = {}
        self.current: _Entry | None = None
        self.lagging = _Lagging(model.depth, engine.lag)
        self.support = (model.depth.first_depth(), model.depth.max_depth())
        compiles = engine.compiles
        if compiles is None:
            convolves = any(p.dim() == 4 for p in model.network.parameters())
            compiles = device.type == "cuda" and convolves
        self.compiled_before = model.network.compiles
        model.network.configure(compiles=compiles)

    def run(self, batch: Batch, share: float) -> "_Entry":
        """Replay the graph of this support and batch shape, or capture it."""
        entry, engine = self._entry(batch), self.engine
        if entry.runs < 2:
            entry.prepare()
        entry.fill(batch, share)
        started = time.perf_counter() if entry.runs < 2 else 0.0
        if entry.runs < 2 and engine.tunes:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                self.runner(entry.name, entry.function)
        else:
            self.runner(entry.name, entry.function)
        entry.runs += 1
        if entry.runs <= 2 and self.runner.captures:
            torch.cuda.synchronize(self.member.model.anchor.device)
            engine.capture_seconds += time.perf_counter() - started
        return entry

    def check(self) -> None:
        """Let go of the graphs if a module was hooked or replaced, or a parameter frozen."""
        found = self.member.model.network.signature(self.support[1], self.support[0])
        if self.signatures.setdefault(self.support, found) != found:
            self.forget()
            self.signatures[self.support] = found

    def forget(self) -> None:
        """Let go of all graphs: tensors have moved."""
        self.signatures.clear()
        self.runner.clear()
        self.entries.clear()
        self.current = None

    def release(self) -> None:
        """Leave the model as it was found."""
        self.member.model.network.configure(compiles=self.compiled_before)
        if self.entries:  # gradients lie where the graphs want them
            self.member.model.zero_grad(set_to_none=True)
        self.forget()

    def state(self) -> dict[str, Tensor]:
        """What is known of λ and what is under way, so that a resumed run sees the same."""
        return {str(index): sent for index, sent in enumerate(self.lagging.pending())}

    def check_state(self, tensors: dict[str, Tensor], num_layers: int, steps: int) -> None:
        """A FileError unless `load_state` can take these, of a model that took so many steps."""
        family, own = self.member.model.depth, self.lagging.pending()
        each_step = self.member.options.grow_every == "step"  # else all of an epoch are under way
        most = min(steps, self.engine.lag + 1) if each_step else steps
        fits = len(tensors) == most + 1 if each_step else 1 <= len(tensors) <= most + 1
        if not fits if own else tensors:
            raise FileError(f"extra: {len(tensors)} copies of λ do not fit {steps} steps")
        named = dict(family.named_parameters()) | dict(family.named_buffers())
        sizes = [tensor.numel() for tensor in named.values()]
        for index in range(len(tensors)):
            check_tensor(f"extra.{index}", tensors.get(str(index)), own[0])
            pieces = tensors[str(index)].split(sizes)
            check_family(
                family, dict(zip(named, pieces, strict=True)), num_layers, f"extra.{index}."
            )

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on from `state`."""
        pending = [tensors[str(index)] for index in range(len(tensors))]
        self.lagging = _Lagging(self.member.model.depth, self.engine.lag, pending)

    def _entry(self, batch: Batch) -> "_Entry":
        key = (*self.support, *trees.kind(batch), batch.y.shape)
        if key not in self.entries:
            processes = self.engine.task.processes
            self.entries[key] = _Entry(f"{key}", self.member, self.support, batch, processes)
        return self.entries[key]


class _Entry:
    """A step's forward and backward pass on tensors at fixed places."""

    def __init__(
        self,
        name: str,
        member: Member,
        support: tuple[int, int],
        batch: Batch,
        processes: Processes,
    ):
        self.name, self.member, self.support, self.processes = name, member, support, processes
        self.runs = 0
        self.gradient: Gradient
        self.share: Tensor | float = 1.0  # of the rows of all processes, that are here
        if processes.size > 1:
            anchor = member.model.anchor
            dtype = torch.promote_types(anchor.dtype, torch.float32)
            self.share = torch.ones((), dtype=dtype, device=anchor.device)
        self.x, self.y = trees.mapped(torch.empty_like, batch.x), torch.empty_like(batch.y)
        self.weights = None if batch.weights is None else torch.empty_like(batch.weights)
        self.terms = torch.zeros(0)
        self.rows: Tensor | None = None  # log-likelihoods, (depth, rows), where a rule asks
        self.grads: list[tuple[nn.Parameter, Tensor]] = []
        self._kept: list[Any] = []

    def fill(self, batch: Batch, share: float) -> None:
        """Put a batch where the graph will look for it, and which part of all rows it is."""
        if isinstance(self.share, Tensor):
            self.share.fill_(share)
        for place, part in zip(trees.leaves(self.x), trees.leaves(batch.x), strict=True):
            place.copy_(part)
        self.y.copy_(batch.y)
        if self.weights is not None and batch.weights is not None:
            self.weights.copy_(batch.weights)

    def prepare(self) -> None:
        """Have the caches filled: what they keep must not be made inside of a graph.

        They know one support at a time, and λ may have been elsewhere since the last run.
        """
        model, (first, last) = self.member.model, self.support
        model.network.active(last, first, cumulative_heads=model.cumulative_heads)
        model.depth_log_prior(model.posterior_over(first, last))

    def function(self) -> None:
        """Terms, gradients and, with a rule, the new λ; of several processes what the rows give."""
        member, model = self.member, self.member.model
        options = member.options
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = None
        gradient = Gradient(
            model,
            float(member.data.num_data),
            options,
            call=member.call,
            support=self.support,
            processes=self.processes,
            apart=True,
        )
        batch = (self.x, self.y, self.weights)
        for x, y, weights, share in pieces(batch, options.micro_batches, model.likelihood):
            gradient.add(x, y, weights, share * self.share)
        self.gradient = gradient
        if self.processes.size > 1:
            gradient.prepare()
        else:
            self._finish()
        self.grads = [(p, p.grad) for p in parameters if p.grad is not None]
        # Tensors from outside that the graph reads must outlive it, caches above all.
        self._kept = [model.network._known, *_tensors(model), *_tensors(model.depth)]

    def share_out(self) -> None:
        """Behind the graph: sums over several processes, and what goes by them."""
        if self.processes.size > 1:
            self.gradient.share()
            self._finish()

    def _finish(self) -> None:
        gradient, rule = self.gradient, self.member.options.depth_rule
        gradient.finish()
        if rule is not None:
            rule.move(gradient)
            self.rows = gradient.rows_log_lik
        self.terms = torch.stack(gradient.terms)


def _tensors(module: nn.Module) -> list[Any]:
    """Tensors and tuples of tensors that a module keeps besides its parameters and buffers."""
    return [value for value in vars(module).values() if isinstance(value, Tensor | tuple)]


class _Lagging:
    """A copy of the depth family on the host, `lag` steps behind the one on the device."""

    def __init__(self, family: nn.Module, lag: int, pending: list[Tensor] | None = None):
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

    def catch_up(self) -> None:
        """Know λ as it is now; as many copies stay under way, so that checkpoints agree."""
        values = [p.detach().cpu().clone() for p in self.parameters]
        self._show(values)
        self._sent = deque((values, None) for _ in self._sent)

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
