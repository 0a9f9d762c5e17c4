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
    static control flow, so that `torch.export`, `torch.compile`, `torch.jit.trace` and friends take
    it whole.
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
    def of(cls, model: "UDN", depth: int | None = None, min_mass: float | None = None) -> "Frozen":
        """A frozen copy: later training of `model` does not reach it; see `UDN.freeze`."""
        first, last, probs = _depths(model, depth, min_mass)
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
            probs,
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

    def __prepare_scriptable__(self) -> nn.Module:
        # `torch.jit.script` compiles source, and generators of layers are any Python.
        raise TypeError(
            "torch.jit.script cannot read layers written in any Python: torch.jit.trace(frozen, "
            "(x,)) gives the same TorchScript, for batches of any size"
        )

    def stack(self) -> Stack:
        """The modules of a pass."""
        return Stack(list(self.hidden), list(self.heads), self.first_depth, plainly)


def _depths(model: "UDN", depth: int | None, min_mass: float | None) -> tuple[int, int, Tensor]:
    """The first and last depth to keep, and what they are mixed by, `(depth,)`."""
    first, last = model.support()
    probs = model.depth_log_probs().detach().exp().clone()
    if depth is not None:
        if min_mass is not None:
            raise ValueError("freeze takes depth or min_mass, not both")
        network = model.network
        born = network.num_layers
        if isinstance(depth, bool) or int(depth) != depth or not 1 <= depth <= born:
            raise ValueError(
                f"depth must be one of the layers that are born, 1 … {born}, got {depth!r}"
            )
        if not network.shares_head and str(depth) not in network.heads:
            has = ", ".join(network.heads)
            raise ValueError(f"depth {depth} has no head: q(ℓ) has mass on others ({has})")
        return int(depth), int(depth), probs.new_ones(1)
    if min_mass is None:
        return first, last, probs
    if not 0 <= min_mass <= 1:
        raise ValueError(f"min_mass must be from 0 to 1, got {min_mass}")
    kept = (probs >= min_mass).nonzero()[:, 0]
    if not len(kept):
        raise ValueError(
            f"no depth has a mass of {min_mass:g}: the largest is {float(probs.max()):.3g}, of "
            f"depth {first + int(probs.argmax())}"
        )
    low, high = int(kept[0]), int(kept[-1])
    # A depth between two that stay keeps its head, and counts for nothing.
    probs = torch.where(probs >= min_mass, probs, 0.0)[low : high + 1]
    return first + low, first + high, probs / probs.sum()
