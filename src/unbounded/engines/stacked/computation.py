"""The step of many members on the device: the body of Algorithm 1 for all of them at once.

Nothing here reads from the device, so that a CUDA graph can hold each of the public methods.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unbounded import elbo, growth
from unbounded.engines.base import TERMS, VALIDATION, TrainingTask
from unbounded.engines.stacked.costs import WeightCosts
from unbounded.engines.stacked.data import MemberData, MemberOrders
from unbounded.engines.stacked.likelihoods import LikelihoodStack
from unbounded.engines.stacked.networks import VmapStack
from unbounded.engines.stacked.optimizers import RowCoefficients, RowOptimizer
from unbounded.engines.stacked.posterior import DepthPosteriors
from unbounded.engines.stacked.rules import stacked_rule
from unbounded.engines.stacked.scores import score_set
from unbounded.layers.stacks import (
    BITS,
    Extent,
    NetworkStack,
    ParameterBlock,
    Shape,
    Templates,
    pack,
    untrained,
)
from unbounded.model import UDN, check_prior_mass
from unbounded.steps.objective import SMALLEST_USE
from unbounded.steps.scoring import ERRORS


class Computation:
    """Parameters, optimiser state and scores of all members, as tensors at fixed places.

    Args:
        models: sorted by `reach_order`.
        bounds: how deep each of them can ever get.
        task: whose options these are.
        optimizer: its arithmetic.
        data: training rows of each member.
        orders: in which they are taken.
        sets: rows to score.
        device: where all of it is.
    """

    def __init__(
        self,
        models: Sequence[UDN],
        bounds: Sequence[int | None],
        task: TrainingTask,
        optimizer: RowOptimizer,
        data: MemberData,
        orders: MemberOrders,
        sets: dict[str, MemberData],
        device: torch.device,
    ):
        self.models, self.bounds, self.options = models, bounds, task.options
        self.optimizer, self.data, self.orders, self.sets = optimizer, data, orders, sets
        self.validates, self.device = task.validates, device
        self.dtype = models[0].anchor.dtype
        count, layers = len(models), models[0].layers
        self.num_data = data.counts.to(self.dtype)
        self.blocks: list[ParameterBlock] = []
        self.depths = DepthPosteriors(models, self._new_block, device)
        self.likelihood = LikelihoodStack(models, self._new_block)
        self.rule = stacked_rule(
            task.options.depth_rule, sets, self.depths, self.likelihood.likelihood
        )
        self.costs = WeightCosts(models, torch.zeros((), dtype=self.dtype, device=device))
        hidden = [list(model.network.hidden.children()) for model in models]
        heads = [head for model in models for head in model.network.heads.children()]
        own = layers.stacked(hidden, heads)
        self.network: NetworkStack = VmapStack(layers) if own is None else own(layers)
        self.shares_head = layers.shares_head
        self.firsts = [1 if self.shares_head else m.depth.first_depth() for m in models]
        self.templates = Templates()
        self.depth = 0  # how many layers are allocated
        self.running = 0  # how many of them are run
        score = self.likelihood.likelihood.score_name
        names = [f"{name}_{kind}" for name in sets for kind in (score, "log_score")]
        self.columns = list(
            dict.fromkeys(
                ["step", *TERMS, "depth_mean", "max_depth", "num_layers", *names, "failed"]
                + (["depth_settled", *ERRORS] if self.rule is not None else [])
            )
        )

        def whole(value: int) -> Tensor:
            return torch.full((count,), value, dtype=torch.long, device=device)

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.state: dict[str, Tensor] = {
            "alive": whole(1).bool(),  # still training
            "failed": whole(0),  # the step whose loss was no number, 0 for none
            "step": whole(0),
            "born": torch.tensor([m.network.num_layers for m in models], device=device),
            "births": whole(0).view(count, 1)[:, :0],  # the step at which each depth was born
            "outgrown": torch.zeros((), dtype=torch.bool, device=device),
            "row": numbers(count, len(self.columns)),  # this epoch's row of the history
            "best_born": whole(0),
        }
        self.best_buffers: dict[str, Tensor] = {}
        self.better = torch.zeros(count, dtype=torch.bool, device=device)  # for `keep_best`
        self.rates = numbers(2, count)  # of the weights and of λ, in this epoch
        self.movement = numbers(count)  # how far λ may get before the next look
        self.status = numbers(2)  # the largest reach, and whether a member has outgrown its layers
        self.cursor = torch.zeros((), dtype=torch.long, device=device)
        self.sums, self.taken = numbers(count, 3), numbers(count)

    # Layers ---------------------------------------------------------------------------------

    def allocate(self, depth: int) -> None:
        """Have layers up to `depth` for every member that can go there.

        A layer's first weights depend on the seed and the depth alone, so that it may lie ready
        long before its member reaches it. It is born when it does.
        """
        made: dict[tuple[int, str, int], nn.Module] = {}
        for role in ("hidden", "heads"):
            templates = getattr(self.templates, role)
            last = 1 if role == "heads" and self.shares_head else depth
            for level in range(len(templates) + 1, last + 1):
                modules = [self._module(role, level, r, made) for r in range(len(self.models))]
                present = [m for m in modules if m is not None]
                found = present[0] if present else growth.create(self.models[0], role, level)
                shape = Shape.of(found)
                for other in present:
                    if Shape.of(other) != shape or type(other) is not type(found):
                        raise ValueError(
                            f"Stacked does not take models whose {role} at depth {level} differ: "
                            f"{type(found).__name__} {shape.shapes} and "
                            f"{type(other).__name__} {Shape.of(other).shapes}; use Eager()"
                        )
                templates[level] = copy.deepcopy(found).to(self.device)
                if isinstance(self.network, VmapStack):
                    self.network.set_fixed(role, level, self._fixed(found, modules))
                rows = [None if m is None else pack(m) for m in modules]
                self._block(role, shape).extend([level], [rows.__getitem__])
        self.depth = self.running = depth
        self._arrange()

    def run(self, levels: int) -> None:
        """Run the first `levels` of the allocated layers: nobody gets further for now."""
        self.running = levels
        self._arrange_running()

    def _module(
        self, role: str, level: int, member: int, made: dict[tuple[int, str, int], nn.Module]
    ) -> nn.Module | None:
        """A member's layer or head at a depth, born now if need be; None if it never has one."""
        bound, model = self.bounds[member], self.models[member]
        beyond = bound is not None and level > bound
        if beyond or (role == "heads" and level < self.firsts[member]):
            return None
        born = model.network.hidden if role == "hidden" else model.network.heads
        if str(level) in born:
            return born[str(level)]
        key = (model.seed, role, level)
        if key not in made:
            made[key] = growth.create(model, role, level)
        return made[key]

    def _arrange(self) -> None:
        """Everything that depends on the allocated depth but is no state."""
        depth, device = self.depth, self.device
        self._arrange_running()
        self.costs.arrange(self.blocks)
        if self.rule is not None:
            self.rule.allocate(depth)
        known = self.state["births"]
        more = known.new_zeros(len(self.models), depth - known.shape[1])
        self.state["births"] = torch.cat([known, more], 1)
        levels = torch.arange(1, depth + 1)
        prior = torch.stack([m.depth_prior.log_prob(levels) for m in self.models])
        for model, row, bound, first in zip(
            self.models, prior, self.bounds, self.firsts, strict=True
        ):
            check_prior_mass(model.depth_prior, row[:bound], first)
        # Depths that a bounded prior leaves out have no mass under q either: any number will do.
        self.log_prior = prior.masked_fill(prior.isinf(), 0.0).to(device, self.dtype)
        self.levels = levels.to(device)
        has_head = self.levels >= torch.tensor(self.firsts, device=device)[:, None]
        self.coefficients = RowCoefficients(self.blocks, has_head, self.shares_head)
        if self.validates:
            for name, tensor in self.network.buffers().items():
                self.best_buffers.setdefault(name, tensor.clone())

    def _arrange_running(self) -> None:
        """What depends on how many layers are run."""
        self.extent = Extent(self.bounds, self.firsts, self.depth, self.running)
        self.network.allocate(self.extent, self.blocks, self.templates)
        self._grad_bits: list[tuple[Tensor, slice]] = []
        for block in self.blocks:
            some = block.rows_up_to(self.running)
            block.grad[some:].zero_()  # nothing writes there from now on, but `_clip` reads
            self._grad_bits.append((block.grad[:some].view(BITS[self.dtype]), block.members))

    def _new_block(self, role: str, shape: Shape, rows: slice) -> ParameterBlock:
        block = ParameterBlock.empty(
            role,
            shape,
            rows,
            self.optimizer.slots,
            torch.zeros(0, dtype=self.dtype, device=self.device),
            best=self.validates,
            average=self.options.average is not None,
        )
        self.blocks.append(block)
        return block

    def _block(self, role: str, shape: Shape) -> ParameterBlock:
        for block in self.blocks:
            if block.role == role and block.shape == shape:
                return block
        return self._new_block(role, shape, slice(0, len(self.models)))

    def _fixed(self, found: nn.Module, modules: Sequence[nn.Module | None]) -> dict[str, Tensor]:
        """Buffers and untrained parameters of one depth, `(members, …)` each."""
        each = [untrained(found if m is None else m) for m in modules]
        return {name: torch.stack([t[name].to(self.device) for t in each]) for name in each[0]}

    # A step ---------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, size: int) -> None:
        """The next `size` rows of every member: terms, gradients, update."""
        x, y, weights, rows = self._batch(size)
        steps = self.state["alive"] & (rows > 0)
        support = self._grow(steps)
        leaves, block = self._leaves(), self.likelihood.block
        with torch.enable_grad():
            lambdas = [
                None if r.block is None else leaves[id(r.block)][0] for r in self.depths.runs
            ]
            log_q = self.depths.log_q(lambdas, support).to(self.dtype)
            noise = None if block is None else leaves[id(block)][0]
            log_lik = self.likelihood.log_lik(self.network.outputs(x), y, noise)
            hidden_kl, head_kl = self.costs.kl(leaves)
        cumulative = self.models[0].cumulative_heads and not self.shares_head
        found = elbo.evaluate(
            log_q,
            log_lik,
            self.log_prior,
            hidden_kl,
            head_kl,
            self.num_data,
            weights,
            cumulative,
            rows.clamp(min=1),
        )
        each = 1 / self.num_data[:, None]
        slopes = found.slopes(-each, each, each)
        slopes.backward(log_q, log_lik, hidden_kl, head_kl)
        terms = torch.stack(found.terms, 1)
        steps = self._check(terms, steps)
        active = support & steps[:, None]  # (members, depth)
        if self.rule is not None:
            self.rule.add(found.log_lik / self.num_data[:, None], active)
        self.network.collect(active)
        for own in self.blocks:
            leaf = leaves.get(id(own))
            if leaf is None or leaf.grad is None:
                continue
            if own.role in ("depth", "likelihood"):
                own.grad.copy_(leaf.grad)
            else:  # beside what the network found
                some = own.rows_up_to(self.running)
                own.grad[:some].add_(leaf.grad[:some])
        self.costs.add_gradients(slopes.hidden_kl, slopes.head_kl, self.running)
        self._equal_paces(slopes.hidden_kl / each, slopes.head_kl / each)
        self._drop_gradients(steps)
        if self.options.clip is not None:
            self._clip(self.options.clip)
        moving = self.coefficients(self.optimizer, self.rates, active, steps)
        for own, coefficients, places in moving:
            self._move(own, coefficients, places)
        self.sums += torch.where(steps[:, None], terms, 0.0)
        self.taken += steps
        self.cursor += size

    def _leaves(self) -> dict[int, Tensor]:
        """Values that autograd is to see, by the `id` of their block."""
        seen: tuple[str, ...] = ("depth", "likelihood")
        if self.costs.precisions is None:
            seen += ("hidden", "heads")
        return {
            id(block): block.value.detach().requires_grad_()
            for block in self.blocks
            if block.role in seen and block.shape.size
        }

    def _batch(self, size: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """The next `size` rows of each member: x, y, weights, and how many there really are."""
        places = self.cursor + torch.arange(size, device=self.device)
        orders = self.orders.orders.index_select(1, places)
        x, y, weights = self.data.take(orders.index_select(0, self.orders.which))
        if not self.data.ragged:
            return x, y, weights, torch.full_like(self.num_data, size)
        inside = (places < self.data.counts[:, None]).to(self.dtype)
        weights = inside if weights is None else weights * inside
        return x, y, weights, inside.sum(1)

    def _grow(self, steps: Tensor) -> Tensor:
        """The support of each member, `(members, depth)`; takes note of births."""
        state = self.state
        last = self.depths.ends(self.depths.rows(), self.depth + 1)
        state["outgrown"] |= (steps & (last > self.running)).any()
        support = self.levels <= last[:, None]
        state["step"] += steps
        newborn = support & steps[:, None] & (self.levels > state["born"][:, None])
        state["births"].add_(newborn * state["step"][:, None])
        state["born"].copy_(torch.where(steps, state["born"].maximum(last), state["born"]))
        return support

    def _check(self, terms: Tensor, steps: Tensor) -> Tensor:
        """Members whose loss is no number stop here, before anything of theirs is moved."""
        still = steps & torch.isfinite(terms.sum(1))
        bad, failed = steps ^ still, self.state["failed"]
        failed.copy_(torch.where(bad, self.state["step"], failed))
        self.state["alive"] ^= bad
        return still

    def _equal_paces(self, hidden: Tensor, heads: Tensor) -> None:
        """Divide the gradient of head ℓ by q(ℓ), that of layer k by q(ℓ≥k), or one of them."""
        wanted = {"hidden": self.options.equal_layers, "heads": self.options.equal_heads}
        for uses, (name, role) in zip((hidden, heads), self.costs.roles.items(), strict=True):
            if wanted[name]:
                rows = role.to_rows(1 / uses.clamp(min=SMALLEST_USE))
                for block, factor in zip(role.blocks, rows, strict=True):
                    block.grad.mul_(factor[..., None])

    def _drop_gradients(self, steps: Tensor) -> None:
        """A member whose loss is no number has gradients that are none either: zeros instead."""
        # −1 has all bits set, 0 none. Ten times as fast as a masked fill, whose mask changes
        # along the wrong axis.
        keeps = steps[:, None].to(BITS[self.dtype]).neg_()
        for bits, rows in self._grad_bits:
            bits.bitwise_and_(keeps[rows])

    def _clip(self, largest: float) -> None:
        squares = torch.zeros_like(self.num_data)
        for block in self.blocks:
            if block.role == "depth" and self.rule is not None:
                continue  # that of λ is nobody's then
            squares[block.members] += block.grad.square().sum((0, 2))
        factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for block in self.blocks:
            block.grad.mul_(factor[block.members, None])

    def _move(self, block: ParameterBlock, coefficients: Sequence[Tensor], places: Tensor) -> None:
        """Move the active rows `(rows, members)` of a block, which are among the running ones."""
        some = slice(block.rows_up_to(self.running))
        value, grad = block.value[some], block.grad[some]
        state, coefficients = ([t[some] for t in ts] for ts in (block.state, coefficients))
        self.optimizer.update(value, grad, state, coefficients, block.role != "depth")
        if block.average is not None:
            assert self.options.average is not None
            # A short memory at first, as `engines.averages.short_memory` has it.
            steps = block.steps[some]
            decay = ((1 + steps) / (10 + steps)).clamp(max=self.options.average)
            share = torch.where(places[some], 1 - decay, 0.0).to(self.dtype)
            block.average[some].lerp_(value, share[..., None])

    # Looks ----------------------------------------------------------------------------------

    @torch.no_grad()
    def look(self) -> None:
        """How deep those who train can get until the next look, into `status`."""
        # A few depths further than what is allocated, to tell by how much it is exceeded.
        reach = self.depths.reach(self.movement, self.depth + 8)
        if self.source != "value":  # what is scored may lag behind, but has its layers
            scored = self.depths.ends(self.depths.rows(self.source), self.depth)
            reach = reach.maximum(scored.clamp(max=self.depth))
        self.status[0] = torch.where(self.state["alive"], reach, 0).max()
        self.status[1] = self.state["outgrown"]

    @torch.no_grad()
    def score(self) -> None:
        """This epoch's row of the history of every member, into `state["row"]`."""
        state, source = self.state, self.source
        lambdas = self.depths.rows(source)
        last = self.depths.ends(lambdas, self.depth + 1)
        q = self.depths.log_q(lambdas, self.levels <= last[:, None]).exp()
        # As in `UDN.support`: depths that no step has reached yet are left out.
        usable = self.levels <= last.minimum(state["born"])[:, None]
        log_q = self.depths.log_q(lambdas, usable).to(self.dtype)
        terms = self.sums / self.taken.clamp(min=1)[:, None]
        named = dict(zip(TERMS, terms.unbind(1), strict=True))
        named |= {
            "step": state["step"].double(),
            "depth_mean": (q * self.levels).sum(1),
            "max_depth": last.double(),
            "num_layers": state["born"].double(),
            "failed": state["failed"].double(),
        }
        for name, data in self.sets.items():
            rule = self.rule if name == VALIDATION else None
            means, errors = score_set(self, data, log_q, rule)
            named[f"{name}_{self.likelihood.likelihood.score_name}"] = means[:, 0]
            named[f"{name}_log_score"] = means[:, 1]
            if rule is not None:
                named |= dict(zip(ERRORS, errors.unbind(1), strict=True))
        if self.rule is not None:
            self.rule.see(log_q, state["alive"])
            named["depth_settled"] = self.rule.rule.rests
        state["row"].copy_(torch.stack([named[column] for column in self.columns], 1))

    @property
    def source(self) -> str:
        """Which of the blocks' tensors is scored and kept."""
        return "value" if self.options.average is None else "average"

    def settle(self) -> None:
        """Let the rule move λ, before an epoch."""
        assert self.rule is not None
        self.rule.settle(self.state["alive"])

    @torch.no_grad()
    def keep_best(self) -> None:
        """The present weights of the members in `better` are their best so far."""
        pairs = [(self.state["best_born"], self.state["born"])]
        pairs += [(self.best_buffers[name], now) for name, now in self.network.buffers().items()]
        for kept, now in pairs:
            kept.copy_(torch.where(self.better.view(-1, *[1] * (now.dim() - 1)), now, kept))
        for block in self.blocks:
            assert block.best is not None
            mask = self.better[block.members, None]
            block.best.copy_(torch.where(mask, getattr(block, self.source), block.best))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that outlives an epoch, by name."""
        found = {f"state.{name}": tensor for name, tensor in self.state.items()}
        for index, block in enumerate(self.blocks):
            found |= {f"block{index}.{name}": tensor for name, tensor in block.tensors()}
        found |= {f"buffer.{name}": t for name, t in self.network.buffers().items()}
        found |= {f"best_buffer.{name}": t for name, t in self.best_buffers.items()}
        if self.rule is not None:
            found |= {f"rule.{name}": tensor for name, tensor in self.rule.rule.state().items()}
        return found
