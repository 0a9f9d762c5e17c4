"""What the weights of all members cost: the KL of every layer and head, and its gradient."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from unbounded.engine.blocks import Block

if TYPE_CHECKING:
    from unbounded.model import UDN


class WeightCosts:
    """The weight priors of all members.

    Where every prior has a `precision` the KL is its half times ‖θ‖², up to a constant, and its
    gradient needs no autograd. Priors without one must be one object for all members.
    """

    def __init__(self, models: Sequence["UDN"], like: Tensor):
        self._priors = [m.weight_prior for m in models]
        precisions = [p.precision for p in self._priors]
        self._precisions: Tensor | None = None
        self._halves = like
        if all(p is not None for p in precisions):
            self._precisions = like.new_tensor([p for p in precisions if p is not None])
            self._halves = self._precisions / 2
        elif any(p is not self._priors[0] for p in self._priors):
            raise ValueError("members whose weight prior has no precision must share one prior")
        self._like = like

    def arrange(self, blocks: Sequence[Block]) -> None:
        """Take note of the blocks; called whenever they have new rows."""
        self._roles = {role: _Role(role, blocks) for role in ("hidden", "heads")}
        self._constants: dict[str, Tensor] = {}
        if self._precisions is None:
            return
        for name, role in self._roles.items():
            shapes = [block.shape for block in role.blocks for _ in block.depths]
            zeros = [[self._like.new_zeros(shape) for shape in one.shapes] for one in shapes]
            distinct = {id(p): p for p in self._priors}
            by_prior = {
                key: torch.stack([prior.kl(z).sum() for z in zeros])
                for key, prior in distinct.items()
            }
            constants = torch.stack([by_prior[id(p)] for p in self._priors], 1)  # (rows, members)
            if bool((constants != 0).any()):
                self._constants[name] = constants

    def kl(self) -> tuple[Tensor, Tensor]:
        """The KL of hidden layers and of heads, `(depth, members)`; a shared one `(1, members)`."""
        self._graphs: dict[str, tuple[Tensor, list[Tensor]]] = {}
        hidden, heads = (self._kl(name, role) for name, role in self._roles.items())
        return hidden, heads

    def backward(self, hidden: Tensor, heads: Tensor) -> None:
        """Add to the blocks' gradients, given ∂/∂KL, shaped like the KL."""
        for grad, (name, role) in zip((hidden, heads), self._roles.items(), strict=True):
            rows = role.to_rows(grad)
            if self._precisions is None:
                stacked, leaves = self._graphs[name]
                found = torch.autograd.grad(stacked, leaves, rows)
                for block, extra in zip(role.blocks, found, strict=True):
                    block.grad += extra
                continue
            rows = rows * self._precisions
            for block, share in zip(role.blocks, role.split(rows), strict=True):
                block.grad.addcmul_(block.value, share[..., None])
        self._graphs = {}

    def _kl(self, name: str, role: "_Role") -> Tensor:
        if self._precisions is not None:
            norms = [torch.linalg.vector_norm(b.value, dim=2) for b in role.blocks]
            rows = norms[0] if len(norms) == 1 else torch.cat(norms)
            rows = rows.square() * self._halves
            if name in self._constants:
                rows = rows + self._constants[name]
            return role.from_rows(rows)
        prior = self._priors[0]
        leaves, costs = [], []
        with torch.enable_grad():
            for block in role.blocks:
                leaf = block.value.detach().requires_grad_()
                leaves.append(leaf)
                for row in leaf.unbind(0):
                    named = block.shape.unpack(row)
                    costs.append(vmap(lambda *ps: prior.kl(ps).sum())(*named.values()))
            stacked = torch.stack(costs)
        self._graphs[name] = stacked, leaves
        return role.from_rows(stacked.detach())


class _Role:
    """The blocks of a role, and the way between their rows and the depths."""

    def __init__(self, role: str, blocks: Sequence[Block]):
        self.blocks = [block for block in blocks if block.role == role]
        depths = [depth for block in self.blocks for depth in block.depths]
        order = sorted(range(len(depths)), key=depths.__getitem__)
        self._order: Tensor | None = None
        if order != list(range(len(order))):
            device = self.blocks[0].value.device
            self._order = torch.tensor(order, device=device)
            self._back = torch.argsort(self._order)

    def from_rows(self, rows: Tensor) -> Tensor:
        """From the order of the blocks' rows to that of the depths, `(rows, members)`."""
        return rows if self._order is None else rows.index_select(0, self._order)

    def to_rows(self, values: Tensor) -> Tensor:
        """The way back."""
        return values if self._order is None else values.index_select(0, self._back)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows of each block."""
        return rows.split([len(block.depths) for block in self.blocks])
