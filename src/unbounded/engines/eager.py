"""The plain engine: one operation after another, one model after another."""

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from unbounded import growth, trees
from unbounded.engines import held_out, sharing
from unbounded.engines.averages import MovingAverage
from unbounded.engines.base import (
    TERMS,
    VALIDATION,
    Birth,
    Engine,
    Row,
    TrainingTask,
    set_words,
    step_row,
)
from unbounded.engines.member import Member
from unbounded.engines.states import check_member, load_member, load_model, save_member
from unbounded.files import FileError, under
from unbounded.model import UDN
from unbounded.parallel import batch_norm
from unbounded.schema import anything, list_of, real, record
from unbounded.steps.batches import (
    Batch,
    LoaderBatches,
    batches,
    check_processes,
    check_shapes,
    training_batches,
)
from unbounded.steps.images import ImageBatches
from unbounded.steps.optimizers import make_optimizer, optimizer_kind
from unbounded.steps.scoring import SetScores
from unbounded.steps.step import step_with
from unbounded.steps.streams import StreamBatches

# Rows scored at a time. Large, since no gradients are kept; small enough for hidden states.
_SCORING_ROWS = 8192


class Eager(Engine):
    """One operation after another, as written, with λ read by the host before each step.

    Takes any modules, any of `torch.optim`, any data, and every option of `fit`. Several models
    take their steps in turn.
    """

    takes_processes = True
    members: list[Member]

    def start(self, task: TrainingTask) -> None:
        """A member for each model."""
        self.task = task
        self.members = [self._member(number) for number in range(len(task.models))]

    def begin_epoch(self, epoch: int) -> None:
        """New orders of the rows, and the learning rates of the epoch."""
        self.epoch = epoch
        for member in self.members:
            if not member.alive:
                continue
            member.terms.clear()
            if member.fresh is not None:
                member.fresh.clear()
            if member.judge is not None:
                weights = held_out.weights(member.model, member.scores, member.fresh)
                member.judge.settle(member.model, weights)
            if isinstance(member.data, LoaderBatches | ImageBatches):
                member.data.begin_epoch(epoch)
            member.iterator = iter(member.data)
            if not member.model.training:
                member.model.train()
            options = member.options
            if options.schedule is not None or options.depth_schedule is not None:
                factor, depth_factor = options.factors(epoch)
                for group, base in zip(
                    member.optimizer.param_groups, member.base_rates, strict=True
                ):
                    group["lr"] = base * (depth_factor if group.get("role") == "depth" else factor)

    def step(self, grow: bool) -> bool:
        """The next batch of each model."""
        more = False
        for member in self.members:
            batch = next(member.iterator, None) if member.alive else None
            if batch is None:
                continue
            more = True
            member.steps += 1
            try:
                self._advance(member, batch, grow)
            except growth.TooDeepError as error:
                self._outgrow(member, str(error))
                continue
            except FloatingPointError as error:  # of the loss, or of λ
                self._fail(member, str(error))
                continue
            if member.average is not None:
                member.average.update()
            scheduler = member.scheduler
            if member.options.schedule_every == "step" and isinstance(scheduler, LRScheduler):
                scheduler.step()
        return more

    def step_terms(self) -> list[Row | None]:
        """By what the step has noted for the epoch's row."""
        return [
            step_row(m.steps, m.terms.all()[-1].tolist()) if m.alive and m.terms else None
            for m in self.members
        ]

    def end_epoch(self) -> list[Row | None]:
        """Means of the terms, the depth, and the scores of each model: one host read each."""
        if self.task.processes.size > 1:
            for member in self.members:  # what normalisations have noted of their own rows
                found = [b for b in member.model.network.buffers() if b.is_floating_point()]
                self.task.processes.mean(*found)
        return [self._row(member) if member.alive else None for member in self.members]

    def keep_best(self, models: Sequence[int]) -> None:
        """Copies of their states."""
        for number in models:
            member = self.members[number]
            with self._averaged(member):
                state = {k: v.detach().clone() for k, v in member.model.state_dict().items()}
            member.best = member.model.network.num_layers, state

    def outgrown(self) -> dict[int, str]:
        """By what the check of memory said."""
        return {m.number: m.too_deep for m in self.members if m.too_deep is not None}

    def revive(self, model: int) -> None:
        """Perhaps there is more memory now."""
        self.members[model].alive, self.members[model].too_deep = True, None

    def stop(self, model: int) -> None:
        """It keeps its optimiser, but takes no further batch."""
        self.members[model].alive = False

    def failures(self) -> dict[int, str]:
        """By what their steps raised."""
        return {m.number: m.failure for m in self.members if m.failure is not None}

    def finish(self, best: bool) -> None:
        """The best states into the models."""
        for member in self.members:
            self._release(member)
            if best and member.best is not None:
                num_layers, state = member.best
                growth.resize(member.model, num_layers, member.optimizer)
                load_model(member.model, state)
            elif member.average is not None:
                member.average.notice()
                with torch.no_grad():
                    for name, parameter in member.model.named_parameters():
                        parameter.copy_(member.average.values[name])

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Model, optimiser and best epoch of every member."""
        plain: list[dict[str, Any]] = []
        tensors: dict[str, Tensor] = {}
        for member in self.members:
            described, own = save_member(member)
            plain.append(described)
            tensors |= {f"{member.number}.{name}": tensor for name, tensor in own.items()}
        return {"capture_seconds": self.capture_seconds, "members": plain}, tensors

    def load_state(
        self,
        plain: dict[str, Any],
        tensors: dict[str, Tensor],
        changed: frozenset[str] = frozenset(),
    ) -> None:
        """Put every member where it was; all are checked before the first is touched."""
        count = len(self.members)
        described = record(
            {
                "capture_seconds": real(0),
                "members": list_of(anything, least=count, most=count),
            }
        )(plain, "state")
        parts = [under(tensors, f"{member.number}.") for member in self.members]
        if sum(len(part) for part in parts) != len(tensors):
            raise FileError(f"there are tensors of more than the {count} models")
        states = list(zip(self.members, described["members"], parts, strict=True))
        for member, own, part in states:
            where = f"state.members[{member.number}]"
            check_member(member, own, part, changed, where=where, alone=count == 1)
        self.capture_seconds = described["capture_seconds"]
        for member, own, part in states:
            load_member(member, own, part, changed)

    def go_on(self, model: int) -> None:
        """It takes batches again."""
        self.members[model].alive = True

    def let_go(self) -> None:
        """The models and a given optimiser stay as they were found."""
        for member in self.members:
            self._release(member)
            for group, before in zip(member.optimizer.param_groups, member.found, strict=True):
                for key in group.keys() - before.keys() - {"params", "param_names"}:
                    del group[key]
                group.update(before)

    def optimizer(self, model: int) -> torch.optim.Optimizer:
        """The one that trains this model."""
        return self.members[model].optimizer

    def step_schedulers(self, model: int, score: float) -> None:
        """After an epoch: schedulers that go by epochs, or by a score."""
        member = self.members[model]
        if isinstance(member.scheduler, ReduceLROnPlateau):
            member.scheduler.step(score)
        elif member.scheduler is not None and member.options.schedule_every == "epoch":
            member.scheduler.step()

    # What other engines do differently ------------------------------------------------------

    def _advance(self, member: Member, batch: Batch, grow: bool) -> None:
        """One step of one model."""
        processes, share = self.task.processes, 1.0
        if processes.size > 1:
            batch, share = sharing.own_part(member.model, member.data, batch, processes)
        if grow:
            self._grow(member, None, batch)
        with processes.telling():
            info = step_with(
                member.options,
                member.call,  # type: ignore[arg-type]
                member.optimizer,
                batch,
                float(member.data.num_data),
                False,
                member.scaler,
                f" at step {member.steps} (epoch {self.epoch + 1})",
                processes,
                share,
            )
        member.terms.add(torch.stack(info.terms))
        if member.fresh is not None:
            member.fresh.add(info.log_lik, batch)

    def _grow(self, member: Member, support: tuple[int, int] | None, batch: Batch) -> None:
        """Create what the support needs, if there is room, and tell whom it concerns."""
        drop, model = member.options.drop_inactive, member.model
        change = growth.plan(model, drop_inactive=drop, support=support)
        if change.changes:
            rows, *rest = trees.extent(batch.x)
            rows = -(-rows // member.options.micro_batches)
            kept = self.task.validates + (member.average is not None)
            room = growth.Room.in_training(member.optimizer, (rows, *rest), kept)
            self._check_room(model, change.hidden.stop - 1, room)
            growth.apply(change, member.model, member.optimizer)
            sharing.synchronise(self.task, model)
        # Walking over all parameters takes longer than a small layer: not in each step.
        key = (self.epoch, model.network.num_layers)
        if member.average is not None and (change.changes or member.average.noticed != key):
            member.average.notice()
            member.average.noticed = key
        if change.hidden:
            self.task.on_birth(member.number, Birth(change.hidden, member.steps))

    def _check_room(self, model: UDN, last: int, room: growth.Room = growth.Room()) -> None:  # noqa: B008
        """A `TooDeepError` in all processes unless the layers have room in each."""
        processes = self.task.processes
        if model.anchor.device.type == "cpu":
            room = room._replace(members=room.members * processes.local_size)
        with processes.agreeing(growth.TooDeepError):
            growth.check_room(model, last, model.network.num_layers, room)

    def _release(self, member: Member) -> None:
        """Before a model goes back to its owner."""
        self.task.processes.release(member.model)
        batch_norm.release(member.model.network)

    # The rest -------------------------------------------------------------------------------

    def _member(self, number: int) -> Member:
        task = self.task
        model, options = task.models[number], task.options
        if len(task.models) > 1 and options.depth_rule is not None:
            options = replace(options, depth_rule=copy.deepcopy(options.depth_rule))
        if options.equal_heads and (model.network.shares_head or model.cumulative_heads):
            raise ValueError("equal_heads needs heads that are used at one depth each")
        if options.depth_rule is not None:
            options.depth_rule.reserve(model, model.depth.max_depth())
        generator = torch.Generator().manual_seed(task.seeds[number])
        data = training_batches(
            model,
            task.data[number],
            task.batch_size,
            generator,
            options.num_data,
            task.processes,
        )
        sets = {
            name: batches(
                each[number], model, what=set_words(name), batch_size=_SCORING_ROWS, many=True
            )
            for name, each in task.sets.items()
        }
        held_out.check_rule(options.depth_rule, sets, data)
        check_processes(task.processes, task.batch_size, {"training": data, **sets})
        if model.network.placement.is_whole:  # else all processes would have to come this far
            check_shapes(model, [data, *sets.values()])
        sharing.shard(self, task, number)
        sharing.synchronise(task, model)
        optimizer = self._build_optimizer(number)
        found = [
            {k: v for k, v in group.items() if k not in ("params", "param_names")}
            for group in optimizer.param_groups
        ]
        scheduler = options.scheduler
        if scheduler is not None and not isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
            scheduler = scheduler(optimizer)
        if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError(
                "the scheduler is that of another optimiser: give what makes one of the optimiser"
            )
        if options.schedule_every == "step" and isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau looks at a score: it goes with schedule_every='epoch'"
            )
        scaler = None
        if options.autocast is torch.float16:
            scaler = torch.amp.GradScaler(model.anchor.device.type)
        return Member(
            number,
            model,
            task.calls[number],
            options,
            data,
            SetScores(sets, task.processes),
            optimizer,
            scheduler,
            scaler,
            None if options.average is None else MovingAverage(model, options.average),
            [
                # A scheduler has moved them already, and keeps where it began.
                float(group["lr"] if scheduler is None else group.get("initial_lr", group["lr"]))
                for group in optimizer.param_groups
            ],
            found,
            held_out.FreshRows(data) if isinstance(data, StreamBatches) else None,
        )

    def _build_optimizer(self, number: int) -> torch.optim.Optimizer:
        task, given = self.task, self.task.options.optimizer
        if hasattr(given, "param_groups"):
            if len(task.models) > 1:
                raise ValueError(
                    "one optimiser cannot train several models: give its class, or a partial of it"
                )
            return given
        kind, arguments = optimizer_kind(given)
        return make_optimizer(
            task.models[number],
            kind,
            task.lr[number],
            depth_lr_ratio=task.depth_lr_ratios[number],
            **arguments,
        )

    def _averaged(self, member: Member) -> Any:
        return nullcontext() if member.average is None else member.average.applied()

    def _fail(self, member: Member, why: str) -> None:
        member.alive, member.failure = False, why

    def _outgrow(self, member: Member, why: str) -> None:
        member.alive, member.too_deep = False, why

    def _row(self, member: Member) -> Row | None:
        if not member.terms:
            raise ValueError("the loader gave no batches")
        # One host read for all the terms of the epoch.
        terms = member.terms.all().double().mean(0).tolist()
        if not all(math.isfinite(term) for term in terms):
            seen = ", ".join(f"{n} = {v}" for n, v in zip(TERMS, terms, strict=True))
            self._fail(
                member,
                f"the loss is not finite in epoch {self.epoch + 1}: {seen}. A lower learning "
                "rate, gradient clipping or another initialisation usually helps.",
            )
            return None
        model = member.model
        try:  # the last step may have taken λ anywhere
            born = model.network.num_layers
            if model.depth.max_depth() > born + growth.LARGEST_BIRTH:
                self._check_room(model, model.depth.max_depth())
        except FloatingPointError as error:
            self._fail(member, f"{error}, in epoch {self.epoch + 1}")
            return None
        except growth.TooDeepError as error:
            self._outgrow(member, str(error))
            return None
        row: Row = dict(zip(TERMS, terms, strict=True))
        rule = member.judge
        if rule is not None and member.fresh is not None and VALIDATION not in self.task.sets:
            member.fresh.look(rule, model)  # by the q that they were seen with, no average
        with self._averaged(member):
            row["depth_mean"] = model.depth.mean()
            row["max_depth"] = model.depth.max_depth()
            row["num_layers"] = model.network.num_layers
            row["lr"] = float(member.optimizer.param_groups[0]["lr"])
            if member.scores.sets:
                keep = None if rule is None else VALIDATION
                row |= member.scores(model, member.options.autocast, keep)
            if rule is not None:
                if rule.is_due(self.epoch + 1):
                    held_out.look(rule, model, member.scores)
                row |= rule.columns()
        return {"step": member.steps, **row}
