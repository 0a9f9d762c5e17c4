"""Which rows of all blocks move in a step, and how far: few numbers, asked for all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unbounded.engine.blocks import Block
from unbounded.engine.optim import Optimizer


@dataclass
class _Group:
    """Blocks of the same members."""

    members: slice | None  # None for all
    blocks: list[Block]
    steps: Tensor  # (rows of all blocks, members); each block's own is a part of it
    columns: Tensor  # which column of `_choices` says whether a row is active, (rows,)
    rates: Tensor  # which of the rates is a row's, (rows,)


class Paces:
    """The optimiser's numbers for every row of every block.

    Made anew whenever blocks have new rows. The blocks' step counts become parts of one tensor
    for all blocks of the same members.

    Args:
        blocks: of all roles.
        has_head: whether a member has a head at a depth, `(members, depth)`.
        shares_head: whether all depths of a member have one head.
    """

    def __init__(self, blocks: Sequence[Block], has_head: Tensor, shares_head: bool):
        self._has_head = has_head
        count, depth = has_head.shape
        by_members: dict[tuple[int, int], list[Block]] = {}
        for block in blocks:
            by_members.setdefault((block.members.start, block.members.stop), []).append(block)
        self._groups: list[_Group] = []
        for (start, stop), some in by_members.items():
            columns: list[int] = []
            for block in some:
                always = block.role in ("depth", "likelihood")
                if always or (block.role == "heads" and shares_head):
                    columns += [2 * depth] * len(block.depths)
                else:
                    offset = -1 if block.role == "hidden" else depth - 1
                    columns += [level + offset for level in block.depths]
            rates = [int(block.role == "depth") for block in some for _ in block.depths]
            steps = torch.cat([block.steps for block in some])
            for block, own in zip(some, steps.split([len(b.depths) for b in some]), strict=True):
                block.steps = own
            device = has_head.device
            self._groups.append(
                _Group(
                    None if (start, stop) == (0, count) else slice(start, stop),
                    some,
                    steps,
                    torch.tensor(columns, device=device),
                    torch.tensor(rates, device=device),
                )
            )

    def __call__(
        self, optimizer: Optimizer, rates: Tensor, active: Tensor, takes: Tensor
    ) -> Iterator[tuple[Block, Sequence[Tensor], Tensor]]:
        """Each block with its pace for `Optimizer.update` and its active rows `(rows, members)`.

        Args:
            optimizer: whose pace it is.
            rates: of the weights and of λ, `(2, members)`.
            active: which depths are in their member's support, `(members, depth)`.
            takes: which members take this step, `(members,)`.
        """
        choices = torch.cat([active, active & self._has_head, takes[:, None]], 1).t()
        for group in self._groups:
            rows, lr = choices.index_select(0, group.columns), rates.index_select(0, group.rates)
            if group.members is not None:
                rows, lr = rows[:, group.members], lr[:, group.members]
            pace = optimizer.pace(group.steps, rows, lr, group.blocks[0].value.dtype)
            sizes = [len(block.depths) for block in group.blocks]
            parts = zip(pace.split(sizes, 1), rows.split(sizes), strict=True)
            for block, (part, moving) in zip(group.blocks, parts, strict=True):
                yield block, part.unbind(0), moving
