"""The engine for many models: when to look at depths, what to copy to the host, what to refuse."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unbounded import growth
from unbounded.engines.base import (
    VALIDATION,
    Birth,
    Engine,
    Row,
    TrainingTask,
    refuse,
    set_words,
    step_row,
)
from unbounded.engines.capture import Runner
from unbounded.engines.stacked.alike import check_models
from unbounded.engines.stacked.computation import Computation
from unbounded.engines.stacked.data import MemberData, MemberOrders, gather
from unbounded.engines.stacked.optimizers import row_optimizer
from unbounded.engines.stacked.posterior import reach_order
from unbounded.engines.stacked.states import (
    check_orders,
    check_stack,
    check_tensors,
    load_tensors,
    write_block,
    write_buffers,
)
from unbounded.files import under
from unbounded.layers.base import is_plain
from unbounded.layers.stacks import untrained
from unbounded.model import UDN
from unbounded.steps.batches import check_training_rows
from unbounded.steps.optimizers import optimizer_kind
from unbounded.steps.scoring import ERRORS, finished
from unbounded.steps.step import NonFiniteError

# λ may move this far (in softplus⁻¹) before the host looks at the depths again.
_MOVEMENT = 0.5
_WHOLE = ("step", "max_depth", "num_layers", "depth_settled")


class OutgrownError(NonFiniteError):
    """A support went beyond the allocated layers: λ made a step that no optimiser here makes."""


class Stacked(Engine):
    """Many models of one architecture, trained in one step by batched operations.

    Every model follows the mathematics of `Eager` as if it were alone: its own data, seed, λ,
    support, learning rates and best epoch. Nothing is averaged or shared between models but the
    kernels that they run in. Models of one architecture may differ in depth family, priors, seed
    and weights so far. Their modules are read at the start and written at the end.

    Args:
        device: where to train; where the models are by default.
        graphs: run as CUDA graphs; by default on a CUDA device.
        spare: layers allocated beyond need, so that fewer births make new graphs; by default one
            with graphs.
    """

    def __init__(
        self,
        *,
        device: str | torch.device | None = None,
        graphs: bool | None = None,
        spare: int | None = None,
    ):
        self.device, self.graphs, self.spare = device, graphs, spare

    def start(self, task: TrainingTask) -> None:
        """Refuse what cannot be batched; stack all models."""
        check_models(task.models)
        self._refuse(task)
        self.task = task
        self.order, bounds = reach_order(task.models)
        models = [task.models[index] for index in self.order]
        device = models[0].anchor.device if self.device is None else torch.device(self.device)
        self._runner = Runner(device, self.graphs)
        self._spare = int(self._runner.captures) if self.spare is None else self.spare
        data = self._gathered("training", task.data, models, device)
        for y, size in zip(data.y, data.set_sizes, strict=True):
            check_training_rows(models[0], y[:size], size, task.batch_size)
        sets = {
            name: self._gathered(set_words(name), each, models, device)
            for name, each in task.sets.items()
        }
        seeds = [task.seeds[index] for index in self.order]
        orders = MemberOrders(seeds, data.sizes, device)
        optimizer = row_optimizer(*optimizer_kind(task.options.optimizer))
        self.work = Computation(models, bounds, task, optimizer, data, orders, sets, device)
        self._rates = torch.tensor([task.lr[i] for i in self.order], dtype=torch.float64)
        ratios = [task.depth_lr_ratios[i] for i in self.order]
        self._depth_rates = self._rates * torch.tensor(ratios, dtype=torch.float64)
        if self.work.rule is not None:  # λ is not the optimiser's to move
            self._depth_rates.zero_()
        self.num_steps = -(-data.size // task.batch_size)
        self._alive = [True] * len(models)  # by the place in the stack, as of the last epoch
        self._born = [model.network.num_layers for model in models]
        self._failures: dict[int, str] = {}
        self._outgrown: dict[int, str] = {}
        self.epoch = 0
        self._unsure = True  # whether more or fewer layers should run than do
        self._reach(first=True)

    def begin_epoch(self, epoch: int) -> None:
        """The epoch's learning rates, and each member's order of its rows."""
        self.epoch, work = epoch, self.work
        self._factors = self.task.options.factors(epoch)
        work.rates[0].copy_(self._rates * self._factors[0])
        work.rates[1].copy_(self._depth_rates * self._factors[1])
        work.orders.send()
        if work.rule is not None:
            self._runner("settle", work.settle)
            self._unsure = True
        if self._unsure:
            self._reach()
        for tensor in (work.cursor, work.sums, work.taken):
            tensor.zero_()
        self._told = torch.zeros(work.sums.shape, dtype=work.sums.dtype)
        self._done, self._stride = 0, self._steps_between_looks(self._factors[1])

    def step(self, grow: bool) -> bool:
        """One step of all members; its support is always computed anew."""
        if self._done == self.num_steps:
            return False
        if self._done and self._done % self._stride == 0:
            self._reach()
        if not any(self._alive):
            return False
        tail = self.work.data.size % self.task.batch_size
        self._done += 1
        if tail and self._done == self.num_steps:
            self._runner("tail", lambda: self.work.step(tail))
        else:
            self._runner("step", lambda: self.work.step(self.task.batch_size))
        return True

    def step_terms(self) -> list[Row | None]:
        """By what the sums of the epoch have grown since they were last looked at."""
        sums, steps = self.work.sums.to("cpu", copy=True), self.work.state["step"].tolist()
        terms, self._told = (sums - self._told).tolist(), sums
        rows = zip(steps, terms, self._alive, strict=True)
        return self._in_given_order([step_row(s, t) if alive else None for s, t, alive in rows])

    def end_epoch(self) -> list[Row | None]:
        """Scores of all members, with one host read for all."""
        trained = list(self._alive)  # some may have no room for a further epoch
        work = self.work
        surely = math.isfinite(work.optimizer.longest_step) and work.depths.looks_ahead
        if not surely or work.source != "value":
            self._reach()  # the last step may have taken the scored λ anywhere
        if work.rule is not None:
            work.rule.expect(self.epoch + 1)
        self._runner("score", work.score)
        self.work.orders.draw()  # while the device is busy
        self.epoch += 1
        self._reach()
        table = self.work.state["row"].tolist()
        return self._in_given_order(
            [self._row(place, row) if trained[place] else None for place, row in enumerate(table)]
        )

    def keep_best(self, models: Sequence[int]) -> None:
        """Copies on the device."""
        chosen = torch.zeros(len(self.order), dtype=torch.bool)
        chosen[[self.order.index(model) for model in models]] = True
        self.work.better.copy_(chosen)
        self._runner("keep", self.work.keep_best)

    def stop(self, model: int) -> None:
        """Its rows are no longer moved."""
        place = self.order.index(model)
        self._alive[place] = False
        self.work.state["alive"][place] = False

    def failures(self) -> dict[int, str]:
        """By the step at which the loss was no number."""
        return self._failures

    def outgrown(self) -> dict[int, str]:
        """By what the check of memory said."""
        return self._outgrown

    def revive(self, model: int) -> None:
        """Perhaps there is more memory now."""
        self.go_on(model)
        self._outgrown.pop(model, None)

    def finish(self, best: bool) -> None:
        """Write every member's best (or last) weights into its model."""
        self._write_models(best and bool((self.work.state["best_born"] > 0).any()))
        self._runner.clear()

    def show(self) -> None:
        """Write every member's present weights into its model."""
        self._write_models(False)

    def _write_models(self, with_best: bool) -> None:
        work = self.work
        source = "best" if with_best else work.source
        born = work.state["best_born" if with_best else "born"].tolist()
        values = [(block, getattr(block, source).cpu()) for block in work.blocks]
        buffers = work.best_buffers if with_best else work.network.buffers()
        buffers = {name: tensor.cpu() for name, tensor in buffers.items()}
        for place, model in enumerate(work.models):
            if with_best and not born[place]:
                continue  # it never came to the end of an epoch: as it was
            growth.resize(model, born[place])
            for block, rows in values:
                if block.members.start <= place < block.members.stop:
                    write_block(model, block, rows[:, place - block.members.start])
            write_buffers(model, place, buffers)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All tensors of the computation, and the orders of rows."""
        work = self.work
        tensors = work.tensors()
        del tensors["state.row"]  # made anew in every epoch, of the sets that there are then
        tensors |= {f"orders.{name}": tensor for name, tensor in work.orders.state().items()}
        plain = {
            "depth": work.depth,
            "drawn": work.orders.drawn,
            "alive": self._alive,
            "born": self._born,
            "failures": sorted(self._failures.items()),
        }
        return plain, tensors

    def load_state(
        self,
        plain: dict[str, Any],
        tensors: dict[str, Tensor],
        changed: frozenset[str] = frozenset(),
    ) -> None:
        """Allocate what was allocated, copy what was saved. No model is touched before the end."""
        work, own = self.work, check_stack(self.work, plain, tensors)
        continues = check_orders(work, own["drawn"], tensors, changed)
        if own["depth"] > work.depth:
            self._allocate(own["depth"])
        load_tensors(work, check_tensors(work, own, tensors, changed), changed)
        if continues:
            work.orders.load(under(tensors, "orders."), own["drawn"] and "data" not in changed)
        self._run(work.depth)
        self._unsure = True
        self._alive, self._born = own["alive"], own["born"]
        self._failures = dict(own["failures"])

    def go_on(self, model: int) -> None:
        """Its rows are moved again."""
        place = self.order.index(model)
        self._alive[place] = self._unsure = True
        self.work.state["alive"][place] = True

    @property
    def captured(self) -> int:
        """How many CUDA graphs were captured so far."""
        return self._runner.captured

    # The rest -------------------------------------------------------------------------------

    def _refuse(self, task: TrainingTask) -> None:
        options, rule = task.options, task.options.depth_rule
        for name, used in (
            ("autocast", options.autocast is not None),
            (f"the depth_rule {type(rule).__name__}", rule is not None and not rule.takes_many),
            ("drop_inactive", options.drop_inactive),
            ("grow_every='epoch'", options.grow_every == "epoch"),
            ("micro_batches", options.micro_batches > 1),
            ("scheduler (schedule works)", options.scheduler is not None),
            ("an optimiser that is built already", hasattr(options.optimizer, "param_groups")),
        ):
            if used:
                raise refuse(self, name, "use Eager()")
        if any(model is not call for model, call in zip(task.models, task.calls, strict=True)):
            raise refuse(self, "torch.compile(model)", "use Eager()")
        shares = task.models[0].network.shares_head or task.models[0].cumulative_heads
        if options.equal_heads and shares:
            raise ValueError("equal_heads needs heads that are used at one depth each")
        if task.models[0].anchor.dtype.itemsize < 4:
            raise refuse(self, "models in half precision", "use Eager()")
        for number, model in enumerate(task.models):
            self._refuse_model(number, model, task.models[0])
            if rule is not None:
                rule.check(model)

    def _refuse_model(self, number: int, model: UDN, first: UDN) -> None:
        """What modules may have that a batched computation would not see."""
        if type(model).forward is not UDN.forward:
            raise refuse(self, f"a forward of {type(model).__name__}'s own", "use Eager()")
        for name, module in model.named_modules():
            parameters = [p for p in module._parameters.values() if p is not None]
            hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)
            parametrised = nn.utils.parametrize.is_parametrized(module)
            if hooked or parametrised or not is_plain(module, type(module)):
                place = name.removeprefix("network.") or "itself"
                raise refuse(self, f"hooks, as model {number} has at {place}", "use Eager()")
        containers = (model.network.hidden._modules, model.network.heads._modules)
        modules = [m for container in containers for m in container.values() if m is not None]
        uses = [id(p) for module in modules for p in module.parameters()]
        if len(set(uses)) < len(uses):
            raise refuse(self, "modules that stand at several depths", "use Eager()")
        mine, others = (untrained(m.likelihood) for m in (model, first))
        if any(not torch.equal(tensor, others[name]) for name, tensor in mine.items()):
            raise refuse(self, "likelihoods with different constants", "use Eager()")

    def _gathered(
        self, what: str, each: Sequence[Any], models: Sequence[UDN], device: torch.device
    ) -> MemberData:
        return gather([each[index] for index in self.order], models, what, device)

    def _in_given_order(self, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = [None] * len(values)
        for value, index in zip(values, self.order, strict=True):
            found[index] = value
        return found

    def _row(self, place: int, values: list[float]) -> Row | None:
        """One member's row, with what it says of births and failures taken out."""
        row: Row = dict(zip(self.work.columns, values, strict=True))
        for name in _WHOLE:
            if name in row:
                row[name] = int(row[name])
        if failed := int(row.pop("failed")):
            self._alive[place] = False
            self._failures[self.order[place]] = (
                f"the loss is not finite at step {failed}. A lower learning rate, gradient "
                "clipping or another initialisation usually helps"
            )
            return None
        likelihood = self.work.likelihood.likelihood
        if ERRORS[0] in row:
            mean = row[f"{VALIDATION}_{likelihood.score_name}"]
            errors = finished(likelihood, mean, *(row[name] for name in ERRORS))
            row |= dict(zip(ERRORS, errors, strict=True))
        if likelihood.score_name != "log_score":
            for name in self.task.sets:
                column = f"{name}_{likelihood.score_name}"
                row[column] = likelihood.finish_score(row[column])
        if row["num_layers"] > self._born[place]:
            steps = self.work.state["births"][place].tolist()
            for depth in range(self._born[place] + 1, row["num_layers"] + 1):
                birth = Birth(range(depth, depth + 1), int(steps[depth - 1]))
                self.task.on_birth(self.order[place], birth)
            self._born[place] = row["num_layers"]
        rate = float(self._rates[place]) * self._factors[0]
        scores = {name: row.pop(name) for name in list(row) if name not in _FIRST}
        return {**row, "lr": rate, **scores}

    def _steps_between_looks(self, factor: float) -> int:
        """At least one, at most an epoch."""
        if not self.work.depths.looks_ahead:
            return 1
        longest = float(self._depth_rates.max()) * factor
        longest = longest * self.work.optimizer.longest_step if longest > 0 else 0.0
        if longest * self.num_steps <= _MOVEMENT:
            return self.num_steps
        return max(1, int(_MOVEMENT / longest))

    def _reach(self, first: bool = False) -> None:
        """Allocate and run what the members can reach until the next look: a host read."""
        work, longest = self.work, self.work.optimizer.longest_step
        if math.isfinite(longest) and work.depths.looks_ahead:
            factor = max(self.task.options.factors(e)[1] for e in (self.epoch, self.epoch + 1))
            work.movement.copy_(
                self._depth_rates * (factor * longest * self._steps_between_looks(factor))
            )
        if not first:
            self._unsure = False
            self._runner("look", work.look)
            furthest, outgrown = map(int, work.status.tolist())
            if outgrown:
                raise OutgrownError(
                    f"a model needed more than {work.running} layers in epoch {self.epoch}: its λ "
                    "moved further than the optimiser can, as from a checkpoint that was changed"
                )
            if furthest <= work.depth:
                self._run(furthest)
                return
        reach = work.depths.reach_exactly(work.movement)
        least = work.depth
        if first:
            born = [max(1, model.network.num_layers) for model in work.models]
            reach = [max(pair) for pair in zip(reach, born, strict=True)]
            least = max(born)
        depth = self._depth_with_room(reach, least)
        if depth > work.depth:
            self._allocate(depth)
        else:  # those who wanted more train no more
            self._unsure = True
            self._run(depth)

    def _run(self, reach: int) -> None:
        """Run more layers if `reach` needs them, fewer if it needs half of them at most."""
        work, levels = self.work, self.work.running
        if reach > levels:
            levels = min(work.depth, self._with_spare(reach))
        elif 0 < reach <= levels // 2:
            levels = min(levels, reach + max(2, -(-reach // 4)))
        if levels != work.running:
            work.run(levels)
            self._runner.clear()  # tensors have moved

    def _depth_for(self, reach: Sequence[int]) -> int:
        """How many layers to allocate for the members that train, if each gets so far."""
        needed = max((r for r, alive in zip(reach, self._alive, strict=True) if alive), default=0)
        return self._with_spare(needed)

    def _with_spare(self, needed: int) -> int:
        bounds = [math.inf if bound is None else bound for bound in self.work.bounds]
        # A new graph takes seconds: the deeper, the more layers ahead.
        spare = self._spare * max(1, needed // 8)
        return int(min(needed + spare, max(max(bounds), needed)))

    def _room(self) -> growth.Room:
        work = self.work
        copies = 1 + work.optimizer.slots + work.validates + (self.task.options.average is not None)
        inputs = (self.task.batch_size, *work.data.x.shape[2:])
        return growth.Room(copies, inputs, len(work.models))

    def _depth_with_room(self, reach: Sequence[int], least: int) -> int:
        """`_depth_for`, at least `least`. Members without room, deepest first, train no more."""
        work, room = self.work, self._room()
        while True:
            depth = max(least, self._depth_for(reach))
            try:
                growth.check_room(work.models[0], depth, work.depth, room)
            except growth.TooDeepError as error:
                alive = [place for place, alive in enumerate(self._alive) if alive]
                if not alive:  # not even what is there already
                    raise
                deepest = max(alive, key=reach.__getitem__)
                self.stop(self.order[deepest])
                self._outgrown[self.order[deepest]] = str(error)
            else:
                return depth

    def _allocate(self, depth: int) -> None:
        self.work.allocate(depth)
        self._runner.clear()  # tensors have moved


_FIRST = ("step", "expected_log_lik", "depth_kl", "weight_kl", *_WHOLE, "depth_mean")
