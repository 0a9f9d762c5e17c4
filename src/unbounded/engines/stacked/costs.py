"""What the weights of all members cost: the KL of every layer and head, and its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from unbounded.layers.stacks import ParameterBlock
from unbounded.model import UDN


class WeightCosts:
    """The weight priors of all members.

    Where every prior has a `precision` the KL is its half times ‖θ‖², up to a constant, and its
    gradient needs no autograd. Priors without one must be one object for all members.
    """

    def __init__(self, models: Sequence[UDN], like: Tensor):
        self._priors = [m.weight_prior for m in models]
        precisions = [p.precision for p in self._priors]
        self.precisions: Tensor | None = None
        if all(p is not None for p in precisions):
            self.precisions = like.new_tensor([p for p in precisions if p is not None])
        elif any(p is not self._priors[0] for p in self._priors):
            raise ValueError("members whose weight prior has no precision must share one prior")
        self._like = like

    def arrange(self, blocks: Sequence[ParameterBlock]) -> None:
        """Take note of the blocks; called whenever they have new rows."""
        self.roles = {role: _Role(role, blocks) for role in ("hidden", "heads")}
        self._constants: dict[str, Tensor] = {}
        if self.precisions is None:
            return
        for name, role in self.roles.items():
            sizes = [block.shape.size for block in role.blocks for _ in block.depths]
            by_prior = {
                id(prior): [prior.constant(size) for size in sizes] for prior in self._priors
            }
            constants = self._like.new_tensor([by_prior[id(p)] for p in self._priors])
            if bool((constants != 0).any()):
                self._constants[name] = constants

    def kl(self, leaves: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """The KL of hidden layers and of heads, `(members, depth)`; a shared one `(members, 1)`.

        Args:
            leaves: the blocks' values by `id`, for autograd where a prior has no precision.
        """
        hidden, heads = (self._kl(name, role, leaves) for name, role in self.roles.items())
        return hidden, heads

    def add_gradients(self, hidden: Tensor, heads: Tensor, running: int) -> None:
        """Add to the blocks' gradients, given ∂/∂KL, shaped like the KL; the closed form.

        Layers beyond the first `running` are left alone.
        """
        if self.precisions is None:
            return
        for grad, role in zip((hidden, heads), self.roles.values(), strict=True):
            rows = role.to_rows(grad * self.precisions[:, None])
            for block, share in zip(role.blocks, rows, strict=True):
                some = slice(block.rows_up_to(running))
                block.grad[some].addcmul_(block.value[some], share[some, :, None])

    def _kl(self, name: str, role: "_Role", leaves: dict[int, Tensor]) -> Tensor:
        if self.precisions is not None:
            with torch.no_grad():
                norms = [torch.linalg.vector_norm(b.value, dim=2).t() for b in role.blocks]
                rows = norms[0] if len(norms) == 1 else torch.cat(norms, 1)
                rows = rows.square() * (self.precisions / 2)[:, None]
                if name in self._constants:
                    rows = rows + self._constants[name]
                return role.from_rows(rows)
        prior = self._priors[0]
        costs = [
            vmap(lambda *ps: prior.kl(ps).sum())(*block.shape.unpack(row).values())
            for block in role.blocks
            for row in leaves[id(block)].unbind(0)
        ]
        return role.from_rows(torch.stack(costs, 1))


class _Role:
    """The blocks of a role, and the way between their rows and the depths."""

    def __init__(self, role: str, blocks: Sequence[ParameterBlock]):
        self.blocks = [block for block in blocks if block.role == role]
        depths = [depth for block in self.blocks for depth in block.depths]
        order = sorted(range(len(depths)), key=depths.__getitem__)
        self._order: Tensor | None = None
        if order != list(range(len(order))):
            device = self.blocks[0].value.device
            self._order = torch.tensor(order, device=device)
            self._back = torch.argsort(self._order)

    def from_rows(self, rows: Tensor) -> Tensor:
        """From the order of the blocks' rows to that of the depths, `(members, rows)`."""
        return rows if self._order is None else rows.index_select(1, self._order)

    def to_rows(self, values: Tensor) -> Sequence[Tensor]:
        """Of values `(members, depth)` those of each block's rows, `(rows, members)` each."""
        rows = values if self._order is None else values.index_select(1, self._back)
        return rows.t().split([len(block.depths) for block in self.blocks])
