"""A fitted model as a plain finite module, for export and for use elsewhere."""

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unbounded import growth, trees
from unbounded.layers.base import Layers, Stack, plainly
from unbounded.likelihoods import Likelihood

if TYPE_CHECKING:
    from unbounded.model import UDN


class Frozen(nn.Module):
    """The layers and heads with mass and q(ℓ) as constants: nothing left that could grow.

    `forward(x)` gives Ω_ℓ(x) `(depth, batch, *event)` and q(ℓ) `(depth,)`, both tensors and with
    static control flow, so that `torch.export`, `torch.compile` and friends take it whole.
    """

    def __init__(
        self,
        hidden: list[nn.Module],
        heads: list[nn.Module],
        depth_probs: Tensor,
        first_depth: int,
        likelihood: Likelihood,
        layers: Layers,
    ):
        super().__init__()
        self.hidden = nn.ModuleList(hidden)
        self.heads = nn.ModuleList(heads)
        self.first_depth = first_depth
        self.likelihood = likelihood
        self.layers = layers
        self.depth_probs: Tensor
        self.register_buffer("depth_probs", depth_probs)

    @classmethod
    def of(cls, model: "UDN") -> "Frozen":
        """A frozen copy: later training of `model` does not reach it."""
        first, last = model.support()
        stack = model.network.stack(last, first)
        if model.network.placement.is_whole:
            # Together, so that what layers and heads share stays shared.
            hidden, heads = copy.deepcopy((list(stack.hidden), list(stack.heads)))
        else:
            depths = (1,) if model.network.shares_head else range(first, last + 1)
            hidden = [growth.whole_copy(model, "hidden", d) for d in range(1, last + 1)]
            heads = [growth.whole_copy(model, "heads", depth) for depth in depths]
        if model.network.shares_head:
            heads = heads * (last - first + 1)
        frozen = cls(
            hidden,
            heads,
            model.depth_log_probs().detach().exp().clone(),
            first,
            copy.deepcopy(model.likelihood),
            model.layers,
        )
        return frozen.eval().requires_grad_(False)

    def forward(self, x: trees.Tree) -> tuple[Tensor, Tensor]:
        """Ω_ℓ(x), `(depth, batch, *event)`, and q(ℓ), `(depth,)`."""
        stack = self.stack()._replace(context=self.layers.context(x))
        states = stack.states(x)[self.first_depth - 1 :]
        pairs = zip(self.heads, states, strict=True)
        outputs = [head(state, *stack.given(head)) for head, state in pairs]
        return torch.stack(outputs), self.depth_probs

    def stack(self) -> Stack:
        """The modules of a pass."""
        return Stack(list(self.hidden), list(self.heads), self.first_depth, plainly)
