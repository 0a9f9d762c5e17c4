"""A depth rule for all members of a stack: what it sees of them, and where it puts λ."""

import torch
from torch import Tensor

from unbounded.depth import TruncatedNormal
from unbounded.engines.base import VALIDATION
from unbounded.engines.held_out import check_rule
from unbounded.engines.stacked.data import MemberData
from unbounded.engines.stacked.posterior import DepthPosteriors
from unbounded.likelihoods import Likelihood
from unbounded.steps.depth_rules import DepthRule
from unbounded.steps.held_out import HeldOutAscent


class StackedRule:
    """Held-out rows of every member for a rule that goes by them.

    Args:
        rule: whose tensors get an axis of members.
        data: held-out rows of each member.
        depths: the posteriors that it moves.
        likelihood: of all members.
    """

    def __init__(
        self,
        rule: HeldOutAscent,
        data: MemberData,
        depths: DepthPosteriors,
        likelihood: Likelihood,
    ):
        self.rule, self.depths, self.device = rule, depths, data.x.device
        self.dtype = data.x.dtype
        self.members, self.rows = len(data.sizes), data.size
        self.weights = data.part(0, data.size)[2]  # (members, rows), or None
        self.guess = _guesses(data, likelihood)
        self.by_depth = torch.zeros(0)  # log p(y_i; Ω_ℓ(x_i)), (members, depth, rows)
        self._regular = torch.ones((), dtype=torch.bool, device=self.device)

    def expect(self, epoch: int) -> None:
        """The next look comes after so many epochs: not all may be due."""
        self._regular.fill_(self.rule.is_regular(epoch))

    def allocate(self, depth: int) -> None:
        """Room for so many depths."""
        self.rule.make_room(self.members, depth, self.device, self.rows)
        shape = self.members, depth, self.rows
        self.by_depth = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def add(self, log_lik: Tensor, active: Tensor) -> None:
        """A step's mean log-likelihoods `(members, depth)` of the active depths, shaped alike."""
        self.rule.add(torch.where(active, log_lik, 0.0), active.any(1))

    def keep(self, start: int, log_lik: Tensor) -> None:
        """What the depths make of some held-out rows, `(members, depth, rows)`."""
        self.by_depth[:, :, start : start + log_lik.shape[2]] = log_lik

    def see(self, log_q: Tensor, alive: Tensor) -> None:
        """Show all held-out rows of the epoch, with log q(ℓ) `(members, depth)`."""
        due = alive & self.rule.due(self._regular)
        before = {name: tensor.clone() for name, tensor in self.rule.state().items()}
        self.rule.see(self.by_depth, log_q, self.guess, self.weights)
        for name, now in self.rule.state().items():  # the others are left alone
            now.copy_(torch.where(due.view(-1, *[1] * (now.dim() - 1)), now, before[name]))

    @torch.no_grad()
    def settle(self, alive: Tensor) -> None:
        """Move λ of the members that train, `(members,)`, by what was seen last."""
        for run in self.depths.runs:
            assert run.block is not None
            assert isinstance(run.family, TruncatedNormal)  # see `HeldOutAscent.check`
            row = run.block.value[0]
            weights = None if self.weights is None else self.weights[run.members]
            depth = self.by_depth.shape[1]
            place, spread = self.rule.moved(
                run.family, run.numbers(row), run.members, depth, weights
            )
            for name, value in run.family.numbers_of(place, spread).items():
                own = run.block.shape.unpack(row)[name]
                own.copy_(torch.where(alive[run.members], value, own.double()))
                if run.block.average is not None:  # of what comes, not of what was before
                    average = run.block.shape.unpack(run.block.average[0])[name]
                    starts = self.rule.starts[run.members] & alive[run.members]
                    average.copy_(torch.where(starts, own, average))


def stacked_rule(
    rule: DepthRule | None,
    sets: dict[str, MemberData],
    depths: DepthPosteriors,
    likelihood: Likelihood,
) -> StackedRule | None:
    """The rule for all members, if there is one; others than these are refused before."""
    if not isinstance(rule, HeldOutAscent):
        return None
    check_rule(rule, sets)
    return StackedRule(rule, sets[VALIDATION], depths, likelihood)


def _guesses(data: MemberData, likelihood: Likelihood) -> Tensor | None:
    """log p₀(y_i) of each member's held-out rows, `(members, rows)`; 0 where there is no row."""
    found = [likelihood.guess(y[:size]) for y, size in zip(data.y, data.set_sizes, strict=True)]
    if any(guess is None for guess in found):
        return None
    padded = torch.zeros(len(found), data.size, dtype=torch.float64, device=data.x.device)
    for row, guess in zip(padded, found, strict=True):
        assert guess is not None
        row[: len(guess)] = guess
    return padded[data.which]
