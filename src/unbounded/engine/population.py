"""Many models of one architecture, trained in one step by batched operations.

Every member follows the mathematics of `unbounded.fit` as if it were alone: its own data, seed,
λ, support, learning rates and best epoch. Nothing is averaged or shared between members but the
kernels that they run in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from unbounded import elbo as elbo_
from unbounded import growth
from unbounded.elbo import ElboTerms
from unbounded.engine.blocks import Block, Shape, pack, unpack_into
from unbounded.engine.data import Shuffles, gather
from unbounded.engine.depths import NO_MASS, DepthStack, stack_of
from unbounded.engine.graphs import Runner
from unbounded.engine.networks import Extent, Templates, VmapStack, network_stack
from unbounded.engine.optim import Adam, Optimizer
from unbounded.priors import GaussianWeights
from unbounded.training.history import History
from unbounded.training.optimizers import DEPTH_LR_RATIO

if TYPE_CHECKING:
    from unbounded.model import UDN

Rates = float | Sequence[float]
Schedule = Callable[[int], float]

# λ may move this far (in softplus⁻¹) before the host looks at the depths again.
_MOVEMENT = 0.5
# How far beyond the allocated depth the device can tell the support's end.
_SIGHT = 8
# Rows times members that are scored at a time.
_SCORING = 1 << 21
_TERMS = ("elbo", "expected_log_lik", "depth_kl", "weight_kl")
_DEPTHS = ("depth_mean", "max_depth", "num_layers")


class OutgrownError(RuntimeError):
    """A member's support went beyond the allocated layers; nothing of that epoch can be used."""


@dataclass
class MemberResult:
    """How the training of one member ended."""

    history: History
    best_epoch: int
    """The epoch whose weights the model now has."""
    best_score: float | None
    """Its validation score, if there was a validation set."""
    stopped: str
    """Why it ended: "epochs", "patience", "interrupted" or "diverged"."""
    best_row: dict[str, float]
    """The row of the history at that epoch, kept even where the history is thinned out."""


class Population:
    """R models trained side by side; `fit_population` is the loop around it.

    Main args:
        models: of one architecture and likelihood; each may have its own depth family, priors,
            seed and weights so far. They are read here and written by `finish`.
        data: (x, y) or (x, y, weights) for all members, or a list with one such tuple for each.
        validation: likewise; with it the best epoch of each member is kept.
        batch_size: rows a step.
        lr: rate of the weights, one for all or one for each member.
        depth_lr_ratio: rate of λ as a multiple of it, likewise.

    Other args:
        monitor: further sets to score, {"test": data}.
        optimizer: `Adam()` or `SGD(…)` of `unbounded.engine.optim`.
        schedule: epoch (from 0) ↦ factor of all rates.
        select: the best epoch by the likelihood's "score" or by the "log_score".
        patience: a member stops after this many epochs without a better validation score.
        clip: largest norm of each member's gradient.
        average: score and keep a moving average of each member's parameters, with this decay
            a step (shorter memory in the first steps).
        seeds: of each member's shuffling; the models' own by default.
        device: where to train; where the models are by default.
        graphs: run as CUDA graphs; by default on a CUDA device.
        spare: layers allocated beyond need, so that fewer births make new graphs.
    """

    def __init__(
        self,
        models: Sequence["UDN"],
        data: Any,
        *,
        validation: Any = None,
        monitor: Mapping[str, Any] | None = None,
        batch_size: int = 256,
        lr: Rates = 0.005,
        depth_lr_ratio: Rates = DEPTH_LR_RATIO,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        select: str = "score",
        patience: int | None = None,
        clip: float | None = None,
        average: float | None = None,
        seeds: Sequence[int] | None = None,
        device: str | torch.device | None = None,
        graphs: bool | None = None,
        spare: int | None = None,
    ):
        _check_models(models)
        if select not in ("score", "log_score"):
            raise ValueError(f"select must be 'score' or 'log_score', got {select!r}")
        if patience is not None and (patience < 1 or validation is None):
            raise ValueError(f"patience must be at least 1 and needs validation, got {patience}")
        if average is not None and not 0 < average < 1:
            raise ValueError(f"average must be strictly between 0 and 1, got {average}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        self.optimizer: Optimizer = Adam() if optimizer is None else optimizer
        self.schedule, self.select, self.patience = schedule, select, patience
        self.clip, self.average = clip, average
        # Members that can go deeper come first, so that a layer runs on a leading part of them.
        count = len(models)
        bounds = [stack_of(m.depth)([m.depth]).bounds()[0] for m in models]
        self.order = sorted(range(count), key=lambda r: (_descending(bounds[r]), _key(models[r])))
        self.models = [models[r] for r in self.order]
        self.bounds = [bounds[r] for r in self.order]
        self.firsts = [1 if m.network.shares_head else m.depth.first_depth() for m in self.models]
        like = models[0].anchor
        self.device = torch.device(like.device if device is None else device)
        self.dtype = like.dtype
        self._runner = Runner(self.device, graphs)
        self.spare = (1 if self._runner.captures else 0) if spare is None else spare
        self._load_data(data, validation, monitor or {}, batch_size, seeds)
        self._load_rates(lr, depth_lr_ratio)
        self._make_depths()
        self._make_state()
        self._make_network()
        self._reach(first=True)

    # Building -----------------------------------------------------------------------------

    def _load_data(
        self,
        data: Any,
        validation: Any,
        monitor: Mapping[str, Any],
        batch_size: int,
        seeds: Sequence[int] | None,
    ) -> None:
        def arranged(value: Any) -> Any:
            if isinstance(value, list) and len(value) == len(self.order):
                return [value[r] for r in self.order]
            return value

        if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
            raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
        self.batch_size = int(batch_size)
        self.data = gather(arranged(data), self.models, "training", self.batch_size, self.device)
        smallest = min(self.data.sizes)
        if smallest < 2:
            raise ValueError("training data: there is one row, at least two are needed")
        if self.batch_size > smallest:
            raise ValueError(
                f"batch_size is {batch_size}, a member has only {smallest} rows: "
                "it must not be larger than the data"
            )
        self.sets = {}
        if validation is not None:
            self.sets["val"] = gather(
                arranged(validation), self.models, "validation", self.batch_size, self.device
            )
        for name, extra in monitor.items():
            if name == "val":
                raise ValueError("monitor: the name 'val' is taken by the validation set")
            self.sets[name] = gather(
                arranged(extra), self.models, name, self.batch_size, self.device
            )
        if seeds is not None and len(seeds) != len(self.models):
            raise ValueError(f"there are {len(seeds)} seeds for {len(self.models)} members")
        own = [m.seed for m in self.models] if seeds is None else [seeds[r] for r in self.order]
        self.shuffles = Shuffles(own, self.data.sizes, self.device)
        self.num_data = self.data.counts.to(self.dtype)
        self.num_steps = -(-self.data.size // self.batch_size)

    def _load_rates(self, lr: Rates, ratio: Rates) -> None:
        rates = self._each("lr", lr)
        ratios = self._each("depth_lr_ratio", ratio)
        if not all(rate > 0 for rate in rates):
            raise ValueError(f"lr must be positive, got {min(rates)}")
        if not all(value >= 0 for value in ratios):
            raise ValueError(f"depth_lr_ratio must be at least 0, got {min(ratios)}")
        self.rates = torch.tensor(rates, dtype=torch.float64)
        self._depth_rates = self.rates * torch.tensor(ratios, dtype=torch.float64)
        # What the kernels read: the rates of this epoch, and how far λ may move before the next
        # look at the depths.
        self._factor = 1.0
        self.lr = self.rates.to(self.device)
        self.depth_lr = self._depth_rates.to(self.device)
        self.movement = torch.zeros_like(self.depth_lr)

    def _make_depths(self) -> None:
        """Stacked depth families over runs of members whose families go together."""
        self.depths: list[tuple[DepthStack, slice, Block | None]] = []
        self.blocks: list[Block] = []
        start = 0
        while start < len(self.models):
            kind = stack_of(self.models[start].depth)
            key = kind.key(self.models[start].depth)
            stop = start + 1
            while stop < len(self.models) and (
                stack_of(self.models[stop].depth) is kind
                and kind.key(self.models[stop].depth) == key
            ):
                stop += 1
            stack = kind([m.depth for m in self.models[start:stop]])
            members = slice(start, stop)
            block = None
            if stack.num_parameters:
                shape = Shape(("values",), (torch.Size([stack.num_parameters]),))
                block = self._empty("depth", shape, members)
                values = stack.values()
                block.extend([1], [lambda r, v=values, s=start: v[r - s]])  # type: ignore[misc]
                self.blocks.append(block)
            self.depths.append((stack, members, block))
            start = stop

    def _make_state(self) -> None:
        count, device = len(self.models), self.device

        def whole(value: int) -> Tensor:
            return torch.full((count,), value, dtype=torch.long, device=device)

        score = self.models[0].likelihood.score_name
        self.score_columns = []
        for name in self.sets:
            if score != "log_score":
                self.score_columns.append(f"{name}_{score}")
            self.score_columns.append(f"{name}_log_score")
        self.columns = [*_TERMS, *_DEPTHS, *self.score_columns]
        table = (count, len(self.columns))
        self.epoch = 0
        self.state: dict[str, Tensor] = {
            "alive": whole(1).bool(),  # still training
            "failed": whole(0),  # the step whose loss was no number, 0 for none
            "step": whole(0),
            "epochs": whole(0),  # epochs completed while alive
            "born": torch.tensor([m.network.num_layers for m in self.models], device=device),
            "births": torch.zeros(count, 0, dtype=torch.long, device=device),
            "outgrown": torch.zeros((), dtype=torch.bool, device=device),
            "best_epoch": whole(0),
            "best_born": whole(0),
            "best_key": torch.full((count, 2), -math.inf, dtype=torch.float64, device=device),
            "best_row": torch.zeros(table, dtype=torch.float64, device=device),
            "bad_epochs": whole(0),
            "row": torch.zeros(table, dtype=torch.float64, device=device),
        }
        self._cursor = torch.zeros((), dtype=torch.long, device=device)
        self._sums = torch.zeros(count, 3, dtype=torch.float64, device=device)
        self._taken = torch.zeros(count, dtype=torch.float64, device=device)
        self._status = torch.zeros(3, dtype=torch.float64, device=device)
        self.best_buffers: dict[str, Tensor] = {}
        self.num_alive = count  # how many members were still training at the last look
        self.recorded: list[int] = []
        self.table: list[np.ndarray] = []

    def _make_network(self) -> None:
        model = self.models[0]
        self.network = network_stack(model.layers)
        self.templates = Templates()
        self.likelihood = _Likelihood(model.likelihood)
        self._lik_block: Block | None = None
        shape = Shape.of(model.likelihood)
        if shape.size:
            self._lik_block = self._empty("likelihood", shape, slice(0, len(self.models)))
            self._lik_block.extend([1], [lambda r: pack(self.models[r].likelihood)])
            self.blocks.append(self._lik_block)
        priors = [m.weight_prior for m in self.models]
        self._inverse_variance: Tensor | None = None
        self._offset: Tensor | None = None
        gaussian = [p for p in priors if type(p) is GaussianWeights]
        if len(gaussian) == len(priors):
            self._inverse_variance = self._tensor([1 / p.scale**2 for p in gaussian])
            ratios = [
                1.0 if p.posterior_scale is None else (p.posterior_scale / p.scale) ** 2
                for p in gaussian
            ]
            if any(ratio != 1 for ratio in ratios):
                self._offset = self._tensor([(r - 1 - math.log(r)) / 2 for r in ratios])
        elif any(p is not priors[0] for p in priors):
            raise ValueError(
                "members with a weight prior of their own kind must share one object of it"
            )
        self.depth = 0

    def allocate(self, depth: int) -> None:
        """Have layers up to `depth` for every member that can go there."""
        made: dict[tuple[int, str, int], nn.Module] = {}

        def module(role: str, level: int, member: int) -> nn.Module | None:
            bound, model = self.bounds[member], self.models[member]
            if bound is not None and level > bound:
                return None
            if role == "heads" and level < self.firsts[member]:
                return None
            born = model.network.hidden if role == "hidden" else model.network.heads
            if str(level) in born:
                return born[str(level)]
            key = (model.seed, role, level)  # all that a layer's first weights depend on
            if key not in made:
                made[key] = growth.create(model, role, level)
            return made[key]

        shared = self.models[0].network.shares_head
        for role in ("hidden", "heads"):
            templates = getattr(self.templates, role)
            last = 1 if role == "heads" and shared else depth
            new: dict[Shape, list[int]] = {}
            for level in range(len(templates) + 1, last + 1):
                modules = [module(role, level, r) for r in range(len(self.models))]
                found = next((m for m in modules if m is not None), None)
                if found is None:  # no member has a head there
                    found = growth.create(self.models[0], role, level)
                shapes = {Shape.of(m) for m in modules if m is not None}
                if len(shapes) > 1:
                    raise ValueError(
                        f"the members' {role} at depth {level} differ: a population has one "
                        f"architecture, got {[s.shapes for s in shapes]}"
                    )
                templates[level] = _template(found, self.device)
                new.setdefault(Shape.of(found), []).append(level)
                if isinstance(self.network, VmapStack):
                    self.network.set_fixed(role, level, self._fixed(found, modules))
            for shape, levels in new.items():
                block = next((b for b in self.blocks if b.role == role and b.shape == shape), None)
                if block is None:
                    block = self._empty(role, shape, slice(0, len(self.models)))
                    self.blocks.append(block)
                block.extend(
                    levels,
                    [
                        lambda r, level=level, role=role: _pack(module(role, level, r))  # type: ignore[misc]
                        for level in levels
                    ],
                )
        self.depth = depth
        self._arrange()

    def _arrange(self) -> None:
        """Everything that depends on the allocated depth but is no state."""
        count, depth, device = len(self.models), self.depth, self.device
        self.extent = Extent(self.bounds, self.firsts, depth)
        self.network.allocate(self.extent, self.blocks, self.templates)
        births = self.state["births"]
        self.state["births"] = torch.cat(
            [births, births.new_zeros(count, depth - births.shape[1])], 1
        )
        levels = torch.arange(1, depth + 1)
        prior = torch.stack([m.depth_prior.log_prob(levels) for m in self.models])
        # Depths that a bounded prior leaves out have no mass under q either: any number will do.
        prior = prior.masked_fill(prior.isinf(), 0.0)
        self._log_prior = prior.to(device, self.dtype)
        self._levels = levels.to(device)
        firsts = torch.tensor(self.firsts, device=device)
        self._has_head = self._levels >= firsts[:, None]  # (members, depth)
        self._columns = {
            id(block): torch.tensor([d - 1 for d in block.depths], device=device)
            for block in self.blocks
        }
        self._rows = {role: self._row_order(role) for role in ("hidden", "heads")}
        for name, tensor in self.network.buffers().items():
            if self.sets and "val" in self.sets and name not in self.best_buffers:
                self.best_buffers[name] = tensor.clone()
        self._runner.clear()

    def _row_order(self, role: str) -> tuple[list[Block], Tensor | None]:
        """The blocks of a role, and where each depth's row is among theirs (None: in order)."""
        blocks = [b for b in self.blocks if b.role == role]
        depths = [depth for block in blocks for depth in block.depths]
        order = sorted(range(len(depths)), key=depths.__getitem__)
        if order == list(range(len(order))):
            return blocks, None
        return blocks, torch.tensor(order, device=self.device)

    def _fixed(self, template: nn.Module, modules: Sequence[nn.Module | None]) -> dict[str, Tensor]:
        """Buffers and untrained parameters of one depth, `(members, …)`."""

        def tensors(module: nn.Module) -> dict[str, Tensor]:
            frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
            return frozen | dict(module.named_buffers())

        default = tensors(template)
        each = [default if m is None else tensors(m) for m in modules]
        return {name: torch.stack([one[name].to(self.device) for one in each]) for name in default}

    def _empty(self, role: str, shape: Shape, members: slice) -> Block:
        like = torch.zeros(0, dtype=self.dtype, device=self.device)
        return Block.empty(
            role,
            shape,
            members,
            self.optimizer.slots,
            like,
            best="val" in self.sets,
            average=self.average is not None,
        )

    def _each(self, name: str, value: Rates) -> list[float]:
        if isinstance(value, int | float):
            return [float(value)] * len(self.models)
        if len(value) != len(self.models):
            raise ValueError(
                f"there are {len(value)} values of {name} for {len(self.models)} members"
            )
        return [float(value[r]) for r in self.order]

    def _tensor(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    # One epoch ----------------------------------------------------------------------------

    def run_epoch(self) -> None:
        """One pass of every member over its data, its scores, and the best epoch so far."""
        factor = 1.0 if self.schedule is None else float(self.schedule(self.epoch))
        if factor != self._factor:
            self.lr.copy_(self.rates * factor)
            self.depth_lr.copy_(self._depth_rates * factor)
            self._factor = factor
        self.shuffles.send()
        self._cursor.zero_()
        self._sums.zero_()
        self._taken.zero_()
        tail = self.data.size % self.batch_size
        stride = self._stride(factor)
        for done in range(self.num_steps):
            if done and done % stride == 0:
                self._reach()
            if done == self.num_steps - 1 and tail:
                self._runner("tail", lambda: self._step(tail))
            else:
                self._runner("step", lambda: self._step(self.batch_size))
        if not math.isfinite(self.optimizer.longest_step):
            self._reach()  # the last step may have moved λ to any place
        self._runner("score", self._score)
        self.epoch += 1
        self.shuffles.draw()  # while the device is busy
        self._reach()

    def record(self) -> None:
        """Copy this epoch's row of every member to the host, for the history."""
        self.recorded.append(self.epoch)
        self.table.append(self.state["row"].to("cpu", copy=True).numpy())

    def _stride(self, factor: float) -> int:
        """Steps between looks at the depths: at least one, at most an epoch."""
        fastest = float(self._depth_rates.max()) * factor * self.optimizer.longest_step
        if not fastest > 0:
            return self.num_steps
        return max(1, min(self.num_steps, int(_MOVEMENT / fastest) if fastest < 1e300 else 1))

    def _reach(self, first: bool = False) -> None:
        """Allocate what the members could reach before the next look: the one host read."""
        if self.schedule is None:
            factor = 1.0
        else:
            factor = max(float(self.schedule(e)) for e in (self.epoch, self.epoch + 1))
        stride = self._stride(factor)
        longest = self.optimizer.longest_step
        # The support of the step right after the look is known exactly; only the steps behind
        # it, and the scores after the last one, can see λ moved. Without a bound on a step the
        # scores leave out what is not there yet, as `fit` does.
        if math.isfinite(longest):
            self.movement.copy_(self._depth_rates * (factor * longest * stride))
        if not first:
            self._runner("look", self._look)
            reach, outgrown, alive = self._status.tolist()
            self.num_alive = int(alive)
            if outgrown:
                raise OutgrownError(
                    f"a member needed more than the {self.depth} layers allocated in epoch "
                    f"{self.epoch}: its λ moved further than the optimiser's bound"
                )
            if reach <= self.depth:
                return
        needed = 1
        for stack, members, block in self.depths:
            values = torch.zeros(0) if block is None else block.value[0].detach()
            needed = max(needed, stack.reach_exactly(values, self.movement[members]))
        born = max(m.network.num_layers for m in self.models) if first else 0
        if max(needed, born) > self.depth:
            ceiling = self._ceiling()
            self.allocate(max(born, min(needed + (0 if first else self.spare), ceiling)))

    def _ceiling(self) -> int:
        bounds = [b for b in self.bounds if b is not None]
        return max(bounds) if len(bounds) == len(self.bounds) else 1 << 62

    @torch.no_grad()
    def _look(self) -> None:
        reach = [
            stack.reach(self._values(block), self.movement[members], self.depth + _SIGHT).max()
            for stack, members, block in self.depths
        ]
        self._status[0] = torch.stack(reach).max()
        self._status[1] = self.state["outgrown"]
        self._status[2] = self.state["alive"].sum()

    def _values(self, block: Block | None, source: str = "value") -> Tensor:
        """λ of a run of members, `(members, numbers)`; empty where there is nothing to learn."""
        if block is None:
            return torch.zeros(0, device=self.device)
        rows: Tensor = getattr(block, source)[0]
        return rows

    def _max_depths(self, source: str = "value") -> Tensor:
        """m(q) of each member, `(members,)`."""
        size = self.depth + 1
        return torch.cat(
            [stack.max_depths(self._values(block, source), size) for stack, _, block in self.depths]
        )

    def _log_q(self, values: Sequence[Tensor], support: Tensor) -> Tensor:
        """log q(ℓ) over the support, `(members, depth)`, `NO_MASS` outside."""
        scores = torch.cat(
            [s.scores(v, self.depth) for (s, _, _), v in zip(self.depths, values, strict=True)]
        )
        return scores.masked_fill(~support, NO_MASS).log_softmax(1).to(self.dtype)

    # A step -------------------------------------------------------------------------------

    def _step(self, size: int) -> None:
        state = self.state
        x, y, weights, batch = self._batch(size)
        takes = state["alive"] & (batch > 0)
        last = self._max_depths()
        state["outgrown"] |= (takes & (last > self.depth)).any()
        support = self._levels <= last[:, None]  # (members, depth)
        state["step"] += takes
        newborn = support & takes[:, None] & (self._levels > state["born"][:, None])
        state["births"].add_(newborn * state["step"][:, None])
        state["born"].copy_(torch.where(takes, torch.maximum(state["born"], last), state["born"]))

        outputs = self.network.forward(x).detach().requires_grad_()
        depth_leaves = [
            self._values(block).detach().requires_grad_() for _, _, block in self.depths
        ]
        terms, leaves = self._terms(outputs, y, depth_leaves, support, weights, batch)
        losses = terms.loss(self.num_data)  # type: ignore[arg-type]
        takes = self._check(losses, takes)
        found = torch.autograd.grad(
            losses.sum(), [outputs, *depth_leaves, *leaves], allow_unused=True
        )
        active = support & takes[:, None]
        self.network.backward(_given(found[0], outputs), active.t())
        self._finish_grads(found, depth_leaves, leaves, takes)
        for block in self.blocks:
            rows = self._active_rows(block, active, takes)
            lr = self.depth_lr if block.role == "depth" else self.lr
            self.optimizer.update(
                block.value,
                block.grad,
                block.state,
                block.steps,
                rows,
                lr[block.members],
                decays=block.role != "depth",
            )
            if block.average is not None:
                self._move_average(block, rows)
        numbers = torch.stack([term.detach() for term in terms], 1).double()
        self._sums += torch.where(takes[:, None], numbers, 0.0)
        self._taken += takes
        self._cursor += size

    def _batch(self, size: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """The next `size` rows of each member: x, y, weights, and how many there really are."""
        places = self._cursor + torch.arange(size, device=self.device)
        orders = self.shuffles.orders.index_select(1, places)
        x, y, weights = self.data.take(orders.index_select(0, self.shuffles.which))
        if not self.data.ragged:
            return x, y, weights, torch.full_like(self.num_data, size)
        inside = (places < self.data.counts[:, None]).to(self.dtype)
        weights = inside if weights is None else weights * inside
        return x, y, weights, inside.sum(1)

    def _terms(
        self,
        outputs: Tensor,
        y: Tensor,
        values: Sequence[Tensor],
        support: Tensor,
        weights: Tensor | None,
        batch: Tensor,
    ) -> tuple[ElboTerms, list[Tensor]]:
        """The terms of each member's 𝓛(q), `(members,)`, and leaves for further gradients."""
        log_q = self._log_q(values, support)
        lik_leaf = None if self._lik_block is None else self._lik_block.value[0].detach()
        if lik_leaf is not None:
            lik_leaf.requires_grad_()
        log_lik = self._log_lik(outputs, y, lik_leaf)
        hidden_kl, head_kl, leaves = self._weight_kl()
        # The batch of b rows counts n/b times; b is less than the tensor's size if it is padded.
        scale = self.num_data * (outputs.shape[2] / batch.clamp(min=1))
        cumulative = self.models[0].cumulative_heads
        terms = ElboTerms(
            vmap(elbo_.expected_log_lik, in_dims=(0, 1, 0, None if weights is None else 0))(
                log_q,
                log_lik,
                scale,  # type: ignore[arg-type]
                weights,
            ),
            vmap(elbo_.depth_kl)(log_q, self._log_prior),
            vmap(lambda q, hidden, head: elbo_.weight_kl(q, hidden, head, cumulative))(
                log_q, hidden_kl, head_kl
            ),
        )
        return terms, [*([] if lik_leaf is None else [lik_leaf]), *leaves]

    def _log_lik(self, outputs: Tensor, y: Tensor, lik_leaf: Tensor | None) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)), `(depth, members, batch)`."""
        depth, members, batch = outputs.shape[:3]
        if lik_leaf is None:  # rows are independent: those of all members are one long batch
            flat = self.likelihood.likelihood.log_prob(
                outputs.reshape(depth, members * batch, *outputs.shape[3:]), y.flatten(0, 1)
            )
            return flat.view(depth, members, batch)
        assert self._lik_block is not None
        named = self._lik_block.shape.unpack(lik_leaf)
        result: Tensor = vmap(self.likelihood.log_prob, in_dims=(0, 1, 0), out_dims=1)(
            named, outputs, y
        )
        return result

    def _weight_kl(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The KL of hidden layers and heads, `(members, depth)`, and the leaves they hang on.

        With a Gaussian prior these are leaves themselves: the gradient of ‖θ_k‖²/(2s²) is
        θ_k/s² times theirs, which is q(ℓ ≥ k)/n, and needs no autograd.
        """
        if self._inverse_variance is not None:
            kls = []
            for role in ("hidden", "heads"):
                blocks, order = self._rows[role]
                norms = [torch.linalg.vector_norm(b.value, dim=2) for b in blocks]
                rows = norms[0] if len(norms) == 1 else torch.cat(norms)
                rows = rows.square() * (self._inverse_variance / 2)
                if self._offset is not None:
                    sizes = [b.shape.size for b in blocks for _ in b.depths]
                    rows = rows + self._sizes(role, sizes)[:, None] * self._offset
                rows = rows if order is None else rows.index_select(0, order)
                kls.append(rows.t().contiguous().requires_grad_())
            return kls[0], kls[1], kls
        prior = self.models[0].weight_prior
        leaves, kls = [], []
        for role in ("hidden", "heads"):
            blocks, order = self._rows[role]
            rows_: list[Tensor] = []
            for block in blocks:
                leaf = block.value.detach().requires_grad_()
                leaves.append(leaf)
                for row in leaf.unbind(0):
                    named = block.shape.unpack(row)
                    rows_.append(vmap(lambda *ps: prior.kl(ps).sum())(*named.values()))
            stacked = torch.stack(rows_)
            kls.append((stacked if order is None else stacked.index_select(0, order)).t())
        return kls[0], kls[1], leaves

    def _sizes(self, role: str, sizes: list[int]) -> Tensor:
        cache: dict[str, Tensor] = self.__dict__.setdefault("_size_cache", {})
        if role not in cache or cache[role].shape[0] != len(sizes):
            cache[role] = self._tensor(sizes)
        return cache[role]

    def _check(self, losses: Tensor, takes: Tensor) -> Tensor:
        """Members whose loss is no number stop here, before anything of theirs is moved."""
        state = self.state
        bad = takes & ~torch.isfinite(losses.detach())
        state["failed"].copy_(torch.where(bad, state["step"], state["failed"]))
        state["alive"] &= ~bad
        return takes & ~bad

    def _finish_grads(
        self,
        found: Sequence[Tensor | None],
        depth_leaves: Sequence[Tensor],
        leaves: Sequence[Tensor],
        takes: Tensor,
    ) -> None:
        """The rest of the gradients into the blocks: λ, the likelihood, the prior's share."""
        depth_grads = found[1 : 1 + len(depth_leaves)]
        for (_, _, block), grad in zip(self.depths, depth_grads, strict=True):
            if block is not None:
                block.grad[0].copy_(_given(grad, block.grad[0]))
        rest = list(zip(leaves, found[1 + len(depth_leaves) :], strict=True))
        if self._lik_block is not None:
            _, grad = rest.pop(0)
            self._lik_block.grad[0].copy_(_given(grad, self._lik_block.grad[0]))
        for role in ("hidden", "heads"):
            blocks, order = self._rows[role]
            if self._inverse_variance is None:
                for block in blocks:
                    _, grad = rest.pop(0)
                    if grad is not None:
                        block.grad += grad
                continue
            leaf, grad = rest.pop(0)
            share = _given(grad, leaf).t() * self._inverse_variance  # (depth, members)
            if order is not None:
                share = torch.empty_like(share).index_copy_(0, order, share)
            start = 0
            for block in blocks:
                rows = share[start : start + len(block.depths)]
                block.grad.addcmul_(block.value, rows[..., None])
                start += len(block.depths)
        for block in self.blocks:
            block.grad.masked_fill_(~takes[block.members, None], 0.0)
        if self.clip is not None:
            self._clip(self.clip)

    def _clip(self, largest: float) -> None:
        squares = torch.zeros_like(self.num_data)
        for block in self.blocks:
            squares[block.members] += block.grad.square().sum((0, 2))
        factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for block in self.blocks:
            block.grad.mul_(factor[block.members, None])

    def _active_rows(self, block: Block, active: Tensor, takes: Tensor) -> Tensor:
        """Which rows of a block move, `(rows, members)`."""
        if block.role in ("depth", "likelihood"):
            return takes[block.members][None]
        if block.role == "heads" and self.models[0].network.shares_head:
            return takes[None]
        whole = active if block.role == "hidden" else active & self._has_head
        return whole.index_select(1, self._columns[id(block)]).t()

    def _move_average(self, block: Block, rows: Tensor) -> None:
        assert self.average is not None
        assert block.average is not None
        # A short memory at first, so that the average does not linger at the first weights.
        decay = ((1 + block.steps) / (10 + block.steps)).clamp(max=self.average)
        share = torch.where(rows, 1 - decay, 0.0).to(block.value.dtype)
        block.average.lerp_(block.value, share[..., None])

    # Scores -------------------------------------------------------------------------------

    @torch.no_grad()
    def _score(self) -> None:
        """This epoch's row of the history, and the best epoch so far."""
        state = self.state
        alive = state["alive"]
        state["epochs"] += alive
        source = "value" if self.average is None else "average"
        values = [self._values(block, source) for _, _, block in self.depths]
        last = self._max_depths(source)
        log_q = self._log_q(values, self._levels <= last[:, None])
        mean_depth = (log_q.double().exp() * self._levels).sum(1)
        # As in `UDN.support`: depths that no step has reached yet are left out.
        usable = torch.minimum(last, state["born"])
        log_q = self._log_q(values, self._levels <= usable[:, None])
        terms = self._sums / self._taken.clamp(min=1)[:, None]
        elbo = terms[:, 0] - terms[:, 1] - terms[:, 2]
        row = [elbo, *terms.unbind(1), mean_depth, last.double(), state["born"].double()]
        key: list[Tensor] = []
        name_of_score = self.models[0].likelihood.score_name
        for name in self.sets:
            means = self._score_set(name, log_q, source)
            row.extend(means if name_of_score != "log_score" else means[1:])
            if name == "val":
                better = self.select == "log_score" or self.models[0].likelihood.higher_is_better
                first = means[1] if self.select == "log_score" else means[0]
                key = [first if better else -first, means[1]]
        state["row"].copy_(torch.stack(row, 1))
        if key:
            self._keep_best(torch.stack(key, 1), alive, source)

    def _score_set(self, name: str, log_q: Tensor, source: str) -> list[Tensor]:
        """The mean score (before `finish_score`) and the mean log score, `(members,)` each."""
        data = self.sets[name]
        totals = torch.zeros(len(self.models), 2, dtype=torch.float64, device=self.device)
        # Few large pieces for a GPU's many units, small ones for a CPU's caches.
        largest = _SCORING if self.device.type == "cuda" else _SCORING >> 7
        piece = max(256, min(8192, largest // len(self.models)))
        named = (
            {}
            if self._lik_block is None
            else self._lik_block.shape.unpack(getattr(self._lik_block, source)[0])
        )
        for start in range(0, data.size, piece):
            stop = min(start + piece, data.size)
            x, y = data.part(start, stop)
            outputs = self.network.evaluate(x, source)
            if data.ragged:
                each = vmap(self.likelihood.row_scores, in_dims=(0, 1, 0, 0))(
                    named, outputs, log_q, y
                )
                places = torch.arange(start, stop, device=self.device)
                inside = places < data.counts[:, None]
                totals += torch.where(inside[..., None], each, 0.0).sum(1)
            else:
                totals += vmap(self.likelihood.scores, in_dims=(0, 1, 0, 0))(
                    named, outputs, log_q, y
                )
        means = totals / data.counts[:, None]
        return list(means.unbind(1))

    def _keep_best(self, key: Tensor, alive: Tensor, source: str) -> None:
        state = self.state
        best = state["best_key"]
        better = (key[:, 0] > best[:, 0]) | ((key[:, 0] == best[:, 0]) & (key[:, 1] > best[:, 1]))
        better = (better | (state["best_epoch"] == 0)) & alive
        for name, now in (
            ("best_key", key),
            ("best_epoch", state["epochs"]),
            ("best_born", state["born"]),
            ("best_row", state["row"]),
        ):
            mask = better.view(-1, *[1] * (now.dim() - 1))
            state[name].copy_(torch.where(mask, now, state[name]))
        for block in self.blocks:
            assert block.best is not None
            mask = better[block.members, None]
            block.best.copy_(torch.where(mask, getattr(block, source), block.best))
        for name, tensor in self.network.buffers().items():
            mask = better.view(-1, *[1] * (tensor.dim() - 1))
            self.best_buffers[name].copy_(torch.where(mask, tensor, self.best_buffers[name]))
        state["bad_epochs"].copy_(torch.where(better, 0, state["bad_epochs"] + alive))
        if self.patience is not None:
            state["alive"] &= state["bad_epochs"] < self.patience

    # The end ------------------------------------------------------------------------------

    @torch.no_grad()
    def finish(self, stopped: str = "epochs") -> list[MemberResult]:
        """Write every member's best (or last) weights into its model; results in given order."""
        with_best = "val" in self.sets
        source = "best" if with_best else "value" if self.average is None else "average"
        host = {name: tensor.cpu() for name, tensor in self.state.items()}
        born = host["best_born" if with_best and self.epoch else "born"].tolist()
        if not self.epoch:
            source = "value"
        rows = [(block, getattr(block, source).cpu()) for block in self.blocks]
        buffers = self.best_buffers if with_best and self.epoch else self.network.buffers()
        buffers = {name: tensor.cpu() for name, tensor in buffers.items()}
        results: list[MemberResult | None] = [None] * len(self.models)
        for member, model in enumerate(self.models):
            growth.resize(model, max(born[member], 1))
            for block, values in rows:
                if block.members.start <= member < block.members.stop:
                    mine = values[:, member - block.members.start]
                    self._write(model, member, block, mine)
            self._write_buffers(model, member, buffers)
            results[self.order[member]] = self._result(member, host, stopped)
        return [result for result in results if result is not None]

    def _write(self, model: "UDN", member: int, block: Block, values: Tensor) -> None:
        if block.role == "depth":
            stack = next(s for s, _, b in self.depths if b is block)
            stack.write(model.depth, values[0])
        elif block.role == "likelihood":
            unpack_into(model.likelihood, values[0])
        else:
            container = model.network.hidden if block.role == "hidden" else model.network.heads
            for depth, row in zip(block.depths, values, strict=True):
                if str(depth) in container:
                    unpack_into(container[str(depth)], row)

    def _write_buffers(self, model: "UDN", member: int, buffers: dict[str, Tensor]) -> None:
        for name, tensor in buffers.items():
            role, depth, rest = name.split(".", 2)
            container = model.network.hidden if role == "hidden" else model.network.heads
            if depth in container:
                own = dict(container[depth].named_buffers())
                if rest in own:
                    own[rest].copy_(tensor[member])

    def _result(self, member: int, host: dict[str, Tensor], stopped: str) -> MemberResult:
        lasted = int(host["epochs"][member])
        names = self.columns
        finish = self._finisher()
        rows = [
            {"epoch": epoch, **finish(dict(zip(names, table[member].tolist(), strict=True)))}
            for epoch, table in zip(self.recorded, self.table, strict=True)
            if epoch <= lasted
        ]
        births = [
            {"step": int(step), "epoch": -(-int(step) // self._steps_of(member)), "depth": depth}
            for depth, step in enumerate(host["births"][member].tolist(), 1)
            if step
        ]
        if int(host["failed"][member]):
            why = "diverged"
        elif not bool(host["alive"][member]):
            why = "patience"
        else:
            why = stopped
        with_best = "val" in self.sets and int(host["best_epoch"][member]) > 0
        table = host["best_row" if with_best else "row"][member].tolist()
        best_row = finish(dict(zip(names, table, strict=True)))
        score = None
        if with_best:
            kind = self.models[0].likelihood.score_name
            score = best_row["val_log_score" if self.select == "log_score" else f"val_{kind}"]
        epoch = int(host["best_epoch"][member]) if with_best else lasted
        return MemberResult(History(rows, births), epoch, score, why, best_row)

    def _finisher(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        likelihood = self.models[0].likelihood
        suffix = f"_{likelihood.score_name}"

        def finish(row: dict[str, Any]) -> dict[str, Any]:
            for name in row:
                if name in ("max_depth", "num_layers"):
                    row[name] = int(row[name])
                elif name.endswith(suffix) and not name.endswith("_log_score"):
                    row[name] = likelihood.finish_score(row[name])
            return row

        return finish

    def _steps_of(self, member: int) -> int:
        return -(-self.data.sizes[member] // self.batch_size)


class _Likelihood(nn.Module):
    """Methods of a likelihood as functions of its parameters, for one member."""

    def __init__(self, likelihood: Any):
        super().__init__()
        self.likelihood = likelihood

    def forward(self, method: str, *arguments: Tensor) -> Tensor:
        """Call the method of that name, with whatever parameters the likelihood has now."""
        result: Tensor = getattr(self, method)(*arguments)
        return result

    def log_prob(self, named: dict[str, Tensor], outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y; Ω): `(depth, batch)`."""
        return self._with(named, "_log_prob", outputs, y)

    def scores(self, named: dict[str, Tensor], outputs: Tensor, log_q: Tensor, y: Tensor) -> Tensor:
        """The sums over the batch of score and log score: `(2,)`."""
        return self._with(named, "_scores", outputs, log_q, y)

    def row_scores(
        self, named: dict[str, Tensor], outputs: Tensor, log_q: Tensor, y: Tensor
    ) -> Tensor:
        """The same of each row by itself: `(batch, 2)`."""

        def one(output: Tensor, target: Tensor) -> Tensor:
            return self._with(named, "_scores", output[:, None], log_q, target[None])

        result: Tensor = vmap(one, in_dims=(1, 0))(outputs, y)
        return result

    def _with(self, named: dict[str, Tensor], method: str, *arguments: Tensor) -> Tensor:
        tensors = {f"likelihood.{name}": tensor for name, tensor in named.items()}
        result: Tensor = functional_call(self, tensors, (method, *arguments))
        return result

    def _log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.likelihood.log_prob(outputs, y)
        return result

    def _scores(self, outputs: Tensor, log_q: Tensor, y: Tensor) -> Tensor:
        prediction = self.likelihood.predict(outputs, log_q)
        rows = (self.likelihood.score(prediction, y), prediction.log_prob(y))
        return torch.stack([value.double().sum() for value in rows])


def _check_models(models: Sequence["UDN"]) -> None:
    if not models:
        raise ValueError("a population needs at least one model")
    first = models[0]
    for index, model in enumerate(models):
        for what, one, other in (
            ("layers", _description(model.layers), _description(first.layers)),
            ("likelihood", _description(model.likelihood), _description(first.likelihood)),
            ("dtype", model.anchor.dtype, first.anchor.dtype),
            ("cumulative_heads", model.cumulative_heads, first.cumulative_heads),
        ):
            if one != other:
                raise ValueError(
                    f"a population has one architecture: member {index} has {what} {one}, "
                    f"member 0 has {other}"
                )
    if len({id(model) for model in models}) < len(models):
        raise ValueError("a model is in the population twice: each member needs its own")


def _description(part: Any) -> Any:
    """What tells two architectures apart: kind and arguments, or the object where it has none."""
    try:
        return type(part).__name__, sorted(part.config().items(), key=str)
    except NotImplementedError:
        return type(part).__name__, id(part)


def _descending(bound: int | None) -> float:
    return -math.inf if bound is None else -bound


def _key(model: "UDN") -> str:
    return str(stack_of(model.depth).key(model.depth))


def _template(module: nn.Module, device: torch.device) -> nn.Module:
    import copy

    return copy.deepcopy(module).to(device)


def _pack(module: nn.Module | None) -> Tensor | None:
    return None if module is None else pack(module)


def _given(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad
