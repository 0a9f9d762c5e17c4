"""The likelihood of all members: log p(y; Ω) and the scores, by the functions of one member."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from unbounded.engines.stacked.posterior import MakeBlock
from unbounded.layers.stacks import ParameterBlock, Shape, pack
from unbounded.likelihoods import Likelihood
from unbounded.model import UDN
from unbounded.steps.scoring import row_scores


class LikelihoodStack:
    """One likelihood, with parameters (if it has any) of each member's own."""

    def __init__(self, models: Sequence[UDN], make_block: MakeBlock):
        self.likelihood = models[0].likelihood
        self.block: ParameterBlock | None = None
        shape = Shape.of(self.likelihood)
        if shape.size:
            self.block = make_block("likelihood", shape, slice(0, len(models)))
            self.block.extend([1], [lambda member: pack(models[member].likelihood)])

    def log_lik(self, outputs: Tensor, y: Tensor, row: Tensor | None) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)): `(members, depth, batch, *event)` → `(members, depth, batch)`.

        Args:
            outputs: Ω_ℓ(x).
            y: targets, `(members, batch, …)`.
            row: the parameters, `(members, size)`, or None where there are none.
        """
        if self.block is None or row is None:
            # Rows are independent: those of all members are one long batch.
            members, depth, batch = outputs.shape[:3]
            flat = outputs.transpose(0, 1).flatten(1, 2)
            found = self.likelihood.log_lik(flat, y.flatten(0, 1))
            return found.view(depth, members, batch).transpose(0, 1)
        named = self.block.shape.unpack(row)
        found = vmap(self._with(Likelihood.log_lik))(named, outputs, y)
        return found

    def log_scores(self, outputs: Tensor, y: Tensor, source: str) -> Tensor:
        """The same for held-out rows, with the parameters in the block's tensor of that name."""
        row = self._row(source)
        named = {} if self.block is None or row is None else self.block.shape.unpack(row)

        def log_scores(likelihood: Likelihood, *arguments: Tensor) -> Tensor:
            return likelihood.log_scores(*arguments)

        found = vmap(self._with(log_scores))(named, outputs, y)
        return found

    def scores(self, outputs: Tensor, log_q: Tensor, y: Tensor, source: str) -> Tensor:
        """Score and log score of each row, `(members, 2, batch)`.

        Args:
            outputs: Ω_ℓ(x), `(members, depth, batch, *event)`.
            log_q: log q(ℓ), `(members, depth)`.
            y: targets, `(members, batch, …)`.
            source: which of the block's tensors holds the parameters.
        """
        row = self._row(source)
        named = {} if self.block is None or row is None else self.block.shape.unpack(row)

        def scores(likelihood: Likelihood, *arguments: Tensor) -> Tensor:
            return torch.stack(row_scores(likelihood, *arguments))

        found = vmap(self._with(scores))(named, outputs, log_q, y)
        return found

    def _row(self, source: str) -> Tensor | None:
        return None if self.block is None else getattr(self.block, source)[0]

    def _with(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A function of the likelihood as one of its parameters and the other arguments."""
        call = _Call(self.likelihood, function)

        def run(named: dict[str, Tensor], *arguments: Tensor) -> Tensor:
            tensors = {f"likelihood.{name}": tensor for name, tensor in named.items()}
            result: Tensor = functional_call(call, tensors, arguments)
            return result

        return run


class _Call(nn.Module):
    """A function of a likelihood, reached through `forward` for functional_call."""

    def __init__(self, likelihood: Likelihood, function: Callable[..., Tensor]):
        super().__init__()
        self.likelihood = likelihood
        self.function = function

    def forward(self, *arguments: Tensor) -> Tensor:
        """Call it, with whatever parameters the likelihood has now."""
        return self.function(self.likelihood, *arguments)
