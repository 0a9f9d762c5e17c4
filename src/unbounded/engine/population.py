"""Many models of one architecture, trained in one step by batched operations.

Every member follows the mathematics of `unbounded.fit` as if it were alone: its own data, seed,
λ, support, learning rates and best epoch. Nothing is averaged or shared between members but the
kernels that they run in.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from unbounded import elbo as elbo_
from unbounded.engine import births, members
from unbounded.engine.blocks import BITS, Block, Shape, pack
from unbounded.engine.checks import check_models, check_options
from unbounded.engine.costs import WeightCosts
from unbounded.engine.data import Rows, Shuffles, gather
from unbounded.engine.graphs import Runner
from unbounded.engine.likelihoods import LikelihoodStack
from unbounded.engine.networks import VmapStack, network_stack
from unbounded.engine.optim import Adam, Optimizer
from unbounded.engine.paces import Paces
from unbounded.engine.posterior import DepthPosteriors, reach_order
from unbounded.engine.scores import score_epoch
from unbounded.engine.stacks import Extent, Templates
from unbounded.training.optimizers import DEPTH_LR_RATIO

if TYPE_CHECKING:
    from unbounded.model import UDN

Rates = float | Sequence[float]
Schedule = Callable[[int], float]

# λ may move this far (in softplus⁻¹) before the host looks at the depths again.
_MOVEMENT = 0.5
# How far beyond the allocated depth the device can tell the support's end.
_SIGHT = 8
_TERMS = ("elbo", "expected_log_lik", "depth_kl", "weight_kl")
_COLUMNS = (*_TERMS, "depth_mean", "max_depth", "num_layers")


class OutgrownError(RuntimeError):
    """A member's support went beyond the allocated layers; nothing of that epoch can be used."""


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
        depth_schedule: epoch ↦ a further factor of λ's rate; 0 holds λ still.
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
        depth_schedule: Schedule | None = None,
        select: str = "score",
        patience: int | None = None,
        clip: float | None = None,
        average: float | None = None,
        seeds: Sequence[int] | None = None,
        device: str | torch.device | None = None,
        graphs: bool | None = None,
        spare: int | None = None,
    ):
        check_models(models)
        check_options(select, patience, clip, average, validation)
        self.optimizer: Optimizer = Adam() if optimizer is None else optimizer
        self.schedule, self.depth_schedule = schedule, depth_schedule
        self.select, self.patience = select, patience
        self.clip, self.average = clip, average
        self.order, self.bounds = reach_order(models)
        self.models = [models[index] for index in self.order]
        like = models[0].anchor
        self.device = torch.device(like.device if device is None else device)
        self.dtype = like.dtype
        self._runner = Runner(self.device, graphs)
        self.spare = int(self._runner.captures) if spare is None else spare
        self._load_data(data, validation, monitor or {}, batch_size, seeds)
        self._load_rates(lr, depth_lr_ratio)
        self._build()
        self._reach(first=True)

    def _load_data(
        self,
        data: Any,
        validation: Any,
        monitor: Mapping[str, Any],
        batch_size: int,
        seeds: Sequence[int] | None,
    ) -> None:
        if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
            raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
        self.batch_size = int(batch_size)

        def rows(value: Any, what: str) -> Rows:
            if isinstance(value, list) and len(value) == len(self.order):
                value = [value[index] for index in self.order]
            return gather(value, self.models, what, self.device)

        self.data = rows(data, "training")
        smallest = min(self.data.sizes)
        if smallest < 2:
            raise ValueError("training data: there is one row, at least two are needed")
        if self.batch_size > smallest:
            raise ValueError(
                f"batch_size is {batch_size}, a member has only {smallest} rows: "
                "it must not be larger than the data"
            )
        for y, size in zip(self.data.y, self.data.set_sizes, strict=True):
            self.models[0].likelihood.check_training_targets(y[:size])
        self.sets: dict[str, Rows] = {}
        if validation is not None:
            self.sets["val"] = rows(validation, "validation")
        for name, extra in monitor.items():
            if name == "val":
                raise ValueError("monitor: the name 'val' is taken by the validation set")
            self.sets[name] = rows(extra, name)
        if seeds is not None and len(seeds) != len(self.models):
            raise ValueError(f"there are {len(seeds)} seeds for {len(self.models)} members")
        own = [m.seed for m in self.models] if seeds is None else [seeds[i] for i in self.order]
        self.shuffles = Shuffles(own, self.data.sizes, self.device)
        self.num_data = self.data.counts.to(self.dtype)
        self._each_row = 1 / self.num_data
        self.num_steps = -(-self.data.size // self.batch_size)

    def _load_rates(self, lr: Rates, ratio: Rates) -> None:
        rates, ratios = self._each("lr", lr), self._each("depth_lr_ratio", ratio)
        if not all(rate > 0 for rate in rates):
            raise ValueError(f"lr must be positive, got {min(rates)}")
        if not all(value >= 0 for value in ratios):
            raise ValueError(f"depth_lr_ratio must be at least 0, got {min(ratios)}")
        self.rates = torch.tensor(rates, dtype=torch.float64)
        self.depth_rates = self.rates * torch.tensor(ratios, dtype=torch.float64)
        # What the kernels read: the rates of this epoch, and how far λ may move before the next
        # look at the depths.
        self._factors = (1.0, 1.0)  # of the weights' rates and of λ's
        self._lr = torch.stack([self.rates, self.depth_rates]).to(self.device)
        self._movement = torch.zeros_like(self._lr[0])
        self._most = 0.0  # the longest way of λ over its rate, as `_movement` has it

    def _build(self) -> None:
        """The stacked parts, and the state of every member."""
        count, device = len(self.models), self.device
        self.blocks: list[Block] = []
        self.depths = DepthPosteriors(self.models, self._new_block, device)
        self.likelihood = LikelihoodStack(self.models, self._new_block)
        self.costs = WeightCosts(self.models, torch.zeros((), dtype=self.dtype, device=device))
        self.network = network_stack(self.models[0].layers)
        self.shares_head = self.models[0].network.shares_head
        self.firsts = [1 if self.shares_head else m.depth.first_depth() for m in self.models]
        self.templates = Templates()
        self.depth = 0  # how many layers are allocated
        score = self.likelihood.likelihood.score_name
        names = [f"{name}_{kind}" for name in self.sets for kind in (score, "log_score")]
        self.columns = list(dict.fromkeys([*_COLUMNS, *names]))
        self.epoch = 0
        self.num_alive = count  # how many members were still training at the last look
        self.recorded: list[int] = []  # the epochs in the table
        self.table: list[Tensor] = []  # (members, columns) each, on the host

        def whole(value: int) -> Tensor:
            return torch.full((count,), value, dtype=torch.long, device=device)

        def table() -> Tensor:
            return torch.zeros(count, len(self.columns), dtype=torch.float64, device=device)

        self.state: dict[str, Tensor] = {
            "alive": whole(1).bool(),  # still training
            "failed": whole(0),  # the step whose loss was no number, 0 for none
            "step": whole(0),
            "epochs": whole(0),  # epochs completed while alive
            "born": torch.tensor([m.network.num_layers for m in self.models], device=device),
            "births": whole(0).view(count, 1)[:, :0],  # the step at which each depth was born
            "outgrown": torch.zeros((), dtype=torch.bool, device=device),
            "row": table(),  # this epoch's row of the history
            "best_epoch": whole(0),
            "best_born": whole(0),
            "best_key": torch.zeros(count, 2, dtype=torch.float64, device=device),
            "best_row": table(),
            "bad_epochs": whole(0),
        }
        self.best_buffers: dict[str, Tensor] = {}
        self._cursor = torch.zeros((), dtype=torch.long, device=device)
        self.sums = torch.zeros(count, 3, dtype=torch.float64, device=device)
        self.taken = torch.zeros(count, dtype=torch.float64, device=device)
        self._status = torch.zeros(3, dtype=torch.float64, device=device)

    def allocate(self, depth: int) -> None:
        """Have layers up to `depth` for every member that can go there.

        A layer's first weights depend on the seed and the depth alone, so that it may lie ready
        long before its member reaches it. It is born when it does.
        """
        made: dict[tuple[int, str, int], nn.Module] = {}

        def module(role: str, level: int, member: int) -> nn.Module | None:
            bound, model = self.bounds[member], self.models[member]
            beyond = bound is not None and level > bound
            if beyond or (role == "heads" and level < self.firsts[member]):
                return None
            born = model.network.hidden if role == "hidden" else model.network.heads
            if str(level) in born:
                return born[str(level)]
            key = (model.seed, role, level)
            if key not in made:
                made[key] = births.create(model, role, level)
            return made[key]

        for role in ("hidden", "heads"):
            templates = getattr(self.templates, role)
            last = 1 if role == "heads" and self.shares_head else depth
            for level in range(len(templates) + 1, last + 1):
                modules = [module(role, level, member) for member in range(len(self.models))]
                present = [m for m in modules if m is not None]
                found = present[0] if present else births.create(self.models[0], role, level)
                shape = Shape.of(found)
                for other in present:
                    if Shape.of(other) != shape:
                        raise ValueError(
                            f"the members' {role} at depth {level} differ in shape: "
                            f"{shape.shapes} and {Shape.of(other).shapes}"
                        )
                templates[level] = copy.deepcopy(found).to(self.device)
                if isinstance(self.network, VmapStack):
                    self.network.set_fixed(role, level, self._fixed(found, modules))
                rows = [None if m is None else pack(m) for m in modules]
                self._block(role, shape).extend([level], [rows.__getitem__])
        self.depth = depth
        self._arrange()

    def _arrange(self) -> None:
        """Everything that depends on the allocated depth but is no state."""
        depth, device = self.depth, self.device
        self.extent = Extent(self.bounds, self.firsts, depth)
        self.network.allocate(self.extent, self.blocks, self.templates)
        self.costs.arrange(self.blocks)
        known = self.state["births"]
        more = known.new_zeros(len(self.models), depth - known.shape[1])
        self.state["births"] = torch.cat([known, more], 1)
        levels = torch.arange(1, depth + 1)
        prior = torch.stack([m.depth_prior.log_prob(levels) for m in self.models])
        # Depths that a bounded prior leaves out have no mass under q either: any number will do.
        self._log_prior = prior.masked_fill(prior.isinf(), 0.0).to(device, self.dtype).t()
        self.levels = levels.to(device)
        firsts = torch.tensor(self.firsts, device=device)
        has_head = self.levels >= firsts[:, None]  # (members, depth)
        self._paces = Paces(self.blocks, has_head, self.shares_head)
        bits = BITS[self.dtype]
        self._grad_bits = [(block.grad.view(bits), block.members) for block in self.blocks]
        if "val" in self.sets:
            for name, tensor in self.network.buffers().items():
                self.best_buffers.setdefault(name, tensor.clone())
        self._runner.clear()

    def _new_block(self, role: str, shape: Shape, rows: slice) -> Block:
        block = Block.empty(
            role,
            shape,
            rows,
            self.optimizer.slots,
            torch.zeros(0, dtype=self.dtype, device=self.device),
            best="val" in self.sets,
            average=self.average is not None,
        )
        self.blocks.append(block)
        return block

    def _block(self, role: str, shape: Shape) -> Block:
        for block in self.blocks:
            if block.role == role and block.shape == shape:
                return block
        return self._new_block(role, shape, slice(0, len(self.models)))

    def _fixed(self, found: nn.Module, modules: Sequence[nn.Module | None]) -> dict[str, Tensor]:
        """Buffers and untrained parameters of one depth, `(members, …)` each."""

        def tensors(module: nn.Module) -> dict[str, Tensor]:
            frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
            return frozen | dict(module.named_buffers())

        each = [tensors(found if m is None else m) for m in modules]
        return {name: torch.stack([t[name].to(self.device) for t in each]) for name in each[0]}

    def _each(self, name: str, value: Rates) -> list[float]:
        count = len(self.models)
        if isinstance(value, int | float):
            return [float(value)] * count
        if len(value) != count:
            raise ValueError(f"there are {len(value)} values of {name} for {count} members")
        return [float(value[index]) for index in self.order]

    # An epoch -----------------------------------------------------------------------------

    def run_epoch(self) -> None:
        """One pass of every member over its data, its scores, and the best epoch so far."""
        factors = self._factors_of(self.epoch)
        if factors != self._factors:
            self._lr[0].copy_(self.rates * factors[0])
            self._lr[1].copy_(self.depth_rates * factors[1])
            self._factors = factors
        self.shuffles.send()
        self._cursor.zero_()
        self.sums.zero_()
        self.taken.zero_()
        tail = self.data.size % self.batch_size
        stride = self._stride(factors[1])
        for done in range(self.num_steps):
            if done and done % stride == 0:
                self._reach()
            if tail and done == self.num_steps - 1:
                self._runner("tail", lambda: self._step(tail))
            else:
                self._runner("step", lambda: self._step(self.batch_size))
        if not math.isfinite(self.optimizer.longest_step):
            self._reach()  # the last step may have taken λ anywhere
        self._runner("score", lambda: score_epoch(self))
        self.epoch += 1
        self.shuffles.draw()  # while the device is busy
        self._reach()

    def record(self) -> None:
        """Copy this epoch's row of every member to the host, for the history."""
        self.recorded.append(self.epoch)
        self.table.append(self.state["row"].to("cpu", copy=True))

    def finish(self, stopped: str = "epochs") -> list[members.MemberResult]:
        """Write every member's best (or last) weights into its model; results as models given."""
        members.write_models(self)
        return members.results(self, stopped)

    @property
    def captured(self) -> int:
        """How many CUDA graphs were captured so far."""
        return self._runner.captured

    def _factors_of(self, epoch: int) -> tuple[float, float]:
        """What multiplies the rates of the weights and of λ."""
        factor = 1.0 if self.schedule is None else float(self.schedule(epoch))
        further = 1.0 if self.depth_schedule is None else float(self.depth_schedule(epoch))
        return factor, factor * further

    def _stride(self, factor: float) -> int:
        """Steps between looks at the depths: at least one, at most an epoch."""
        longest = float(self.depth_rates.max()) * factor
        longest = longest * self.optimizer.longest_step if longest > 0 else 0.0
        if longest * self.num_steps <= _MOVEMENT:
            return self.num_steps
        return max(1, int(_MOVEMENT / longest))

    def _reach(self, first: bool = False) -> None:
        """Allocate what the members can reach until the next look: the one host read."""
        longest = self.optimizer.longest_step
        if math.isfinite(longest):
            factor = max(self._factors_of(e)[1] for e in (self.epoch, self.epoch + 1))
            most = factor * longest * self._stride(factor)
            if most != self._most:
                self._movement.copy_(self.depth_rates * most)
                self._most = most
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
        needed = self.depths.reach_exactly(self._movement)
        if first:
            needed = max(needed, *(m.network.num_layers for m in self.models), 1)
        bounds = [math.inf if bound is None else bound for bound in self.bounds]
        ceiling = max(max(bounds), needed)
        self.allocate(int(min(needed + self.spare, ceiling)))

    @torch.no_grad()
    def _look(self) -> None:
        self._status[0] = self.depths.reach(self._movement, self.depth + _SIGHT)
        self._status[1] = self.state["outgrown"]
        self._status[2] = self.state["alive"].sum()

    # A step -------------------------------------------------------------------------------

    @torch.no_grad()
    def _step(self, size: int) -> None:
        """The body of the paper's Algorithm 1, for every member."""
        x, y, weights, batch = self._batch(size)
        takes = self.state["alive"] & (batch > 0)
        values = self.depths.values()
        support = self._grow(values, takes)
        outputs = self.network.forward(x)
        log_lik = self.likelihood.log_prob(outputs, y)
        log_q = self.depths.log_q(values, support)
        slopes = self._slopes(log_q.to(self.dtype).t(), log_lik, weights, batch)
        takes = self._check(slopes.terms, takes)
        active = support & takes[:, None]  # (members, depth)
        self.network.backward(self.likelihood.backward(slopes.log_lik), active.t())
        self.costs.backward(slopes.hidden_kl, slopes.head_kl)
        self.depths.backward(log_q, slopes.log_q.t().double())
        self._drop_gradients(takes)
        if self.clip is not None:
            self._clip(self.clip)
        for block, pace, rows in self._paces(self.optimizer, self._lr, active, takes):
            self._move(block, pace, rows)
        self.sums += torch.where(takes, slopes.terms, 0.0).t()
        self.taken += takes
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

    def _grow(self, values: Sequence[Tensor], takes: Tensor) -> Tensor:
        """The support of each member, `(members, depth)`; takes note of births."""
        state = self.state
        last = self.depths.max_depths(values, self.depth + 1)
        state["outgrown"] |= (takes & (last > self.depth)).any()
        support = self.levels <= last[:, None]
        state["step"] += takes
        newborn = support & takes[:, None] & (self.levels > state["born"][:, None])
        state["births"].add_(newborn * state["step"][:, None])
        state["born"].copy_(torch.where(takes, state["born"].maximum(last), state["born"]))
        return support

    def _slopes(
        self, log_q: Tensor, log_lik: Tensor, weights: Tensor | None, batch: Tensor
    ) -> "Slopes":
        """The terms of each member's 𝓛(q) and the loss's slopes in what they are made of.

        The functions of `unbounded.elbo` go over depths along the first axis and do not mind
        members along a last one.
        """
        hidden_kl, head_kl = self.costs.kl()
        depth = log_q.shape[0]
        cumulative = self.models[0].cumulative_heads and not self.shares_head
        # The batch of b rows counts n/b times; b is less than the tensor's size if it is padded.
        share = batch.clamp(min=1).reciprocal()
        counted = log_lik if weights is None else log_lik * weights
        sums = elbo_.sums(
            log_q,
            counted.transpose(1, 2),
            self._log_prior,
            hidden_kl,
            head_kl.expand(depth, -1),  # a shared head is part of every depth's cost
            self.num_data * (share * log_lik.shape[2]),  # type: ignore[arg-type]
            None,
            cumulative,
        )
        hidden, heads = elbo_.shares(sums.q, depth, head_kl.shape[0], cumulative)
        column = (sums.q * -share)[..., None]
        return Slopes(
            torch.stack(sums[1:]).mul_(sums.q).sum(1),
            column if weights is None else column * weights,
            sums.log_q_gradient(-1, 1, 1) * self._each_row,
            hidden * self._each_row,
            (heads if heads.dim() > 1 else heads[:, None]) * self._each_row,
        )

    def _check(self, terms: Tensor, takes: Tensor) -> Tensor:
        """Members whose loss is no number stop here, before anything of theirs is moved."""
        still = takes & torch.isfinite(terms.sum(0))
        bad, failed = takes ^ still, self.state["failed"]
        failed.copy_(torch.where(bad, self.state["step"], failed))
        self.state["alive"] ^= bad
        return still

    def _drop_gradients(self, takes: Tensor) -> None:
        """A member whose loss is no number has gradients that are none either: zeros instead."""
        # −1 has all bits set, 0 none. Ten times as fast as a masked fill, whose mask changes
        # along the wrong axis.
        keeps = takes[:, None].to(BITS[self.dtype]).neg_()
        for bits, rows in self._grad_bits:
            bits.bitwise_and_(keeps[rows])

    def _clip(self, largest: float) -> None:
        squares = torch.zeros_like(self.num_data)
        for block in self.blocks:
            squares[block.members] += block.grad.square().sum((0, 2))
        factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for block in self.blocks:
            block.grad.mul_(factor[block.members, None])

    def _move(self, block: Block, pace: Sequence[Tensor], rows: Tensor) -> None:
        """Move the active rows `(rows, members)` of a block."""
        decays = block.role != "depth"
        self.optimizer.update(block.value, block.grad, block.state, pace, decays)
        if block.average is not None:
            assert self.average is not None
            # A short memory at first, so that the average does not linger at the first weights.
            decay = ((1 + block.steps) / (10 + block.steps)).clamp(max=self.average)
            share = torch.where(rows, 1 - decay, 0.0).to(self.dtype)
            block.average.lerp_(block.value, share[..., None])


class Slopes(NamedTuple):
    """The terms of 𝓛(q) and the slopes of the loss −𝓛(q)/n."""

    terms: Tensor  # expected log-likelihood, depth KL and weight KL, (3, members)
    log_lik: Tensor  # in log p(y_i; Ω_ℓ(x_i)), broadcastable to (depth, members, batch)
    log_q: Tensor  # in log q(ℓ), (depth, members)
    hidden_kl: Tensor  # in the KL of hidden layers, (depth, members)
    head_kl: Tensor  # in the KL of heads, (depth, members) or (1, members)
