"""The likelihood of all members: log p(y; Ω), its gradient, and the scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from unbounded.engine.blocks import Block, Shape, pack
from unbounded.engine.posterior import MakeBlock

if TYPE_CHECKING:
    from unbounded.model import UDN


class LikelihoodStack:
    """One likelihood, with parameters (if it has any) of each member's own."""

    def __init__(self, models: Sequence["UDN"], make_block: MakeBlock):
        self.likelihood = models[0].likelihood
        self._call = _Call(self.likelihood)
        self.block: Block | None = None
        shape = Shape.of(self.likelihood)
        if shape.size:
            self.block = make_block("likelihood", shape, slice(0, len(models)))
            self.block.extend([1], [lambda member: pack(models[member].likelihood)])

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)): `(depth, members, batch, *event)` → `(depth, members, batch)`.

        Keeps what `backward` needs.
        """
        depth, members, batch = outputs.shape[:3]
        self._slope: Tensor | None = None
        self._graph: tuple[Tensor, list[Tensor]] | None = None
        if self.block is None:
            # Rows are independent: those of all members are one long batch.
            flat = outputs.reshape(depth, members * batch, *outputs.shape[3:])
            targets = y.flatten(0, 1)
            found = self.likelihood.log_prob_and_slope(flat, targets)
            if found is not None:
                log_lik, slope = found
                self._slope = slope.unflatten(1, (members, batch))
                return log_lik.view(depth, members, batch)
            leaf = flat.detach().requires_grad_()
            with torch.enable_grad():
                log_lik = self.likelihood.log_prob(leaf, targets).view(depth, members, batch)
            self._graph = log_lik, [leaf]
            return log_lik.detach()
        leaves = [outputs.detach().requires_grad_(), self.block.value[0].detach().requires_grad_()]
        with torch.enable_grad():
            named = self.block.shape.unpack(leaves[1])
            log_lik = vmap(self._log_prob, in_dims=(0, 1, 0), out_dims=1)(named, leaves[0], y)
        self._graph = log_lik, leaves
        return log_lik.detach()

    def backward(self, grad: Tensor) -> Tensor:
        """From ∂/∂log p, broadcastable to it, to ∂/∂Ω; parameters' go into the block."""
        if self._slope is not None:
            extra = self._slope.dim() - grad.dim()
            return self._slope.mul_(grad.view(*grad.shape, *[1] * extra))
        assert self._graph is not None
        log_lik, leaves = self._graph
        grad = grad.expand_as(log_lik)
        found = torch.autograd.grad(log_lik, leaves, grad)
        if self.block is not None:
            self.block.grad[0].copy_(found[1])
            return found[0]
        return found[0].unflatten(1, grad.shape[1:])

    def scores(self, outputs: Tensor, log_q: Tensor, y: Tensor, source: str) -> Tensor:
        """Score and log score of each row, `(members, 2, batch)`.

        Args:
            outputs: Ω_ℓ(x), `(depth, members, batch, *event)`.
            log_q: log q(ℓ), `(members, depth)`.
            y: targets, `(members, batch, …)`.
            source: which of the block's tensors holds the parameters.
        """
        named = {}
        if self.block is not None:
            named = self.block.shape.unpack(getattr(self.block, source)[0])
        result: Tensor = vmap(self._scores, in_dims=(0, 1, 0, 0))(named, outputs, log_q, y)
        return result

    def _log_prob(self, named: dict[str, Tensor], outputs: Tensor, y: Tensor) -> Tensor:
        return self._with(named, "log_prob", outputs, y)

    def _scores(
        self, named: dict[str, Tensor], outputs: Tensor, log_q: Tensor, y: Tensor
    ) -> Tensor:
        return self._with(named, "scores", outputs, log_q, y)

    def _with(self, named: dict[str, Tensor], method: str, *arguments: Tensor) -> Tensor:
        tensors = {f"likelihood.{name}": tensor for name, tensor in named.items()}
        result: Tensor = functional_call(self._call, tensors, (method, *arguments))
        return result


class _Call(nn.Module):
    """What is asked of one member's likelihood, reached through `forward` for functional_call."""

    def __init__(self, likelihood: nn.Module):
        super().__init__()
        self.likelihood = likelihood

    def forward(self, method: str, *arguments: Tensor) -> Tensor:
        """Call the method of that name, with whatever parameters the likelihood has now."""
        result: Tensor = getattr(self, method)(*arguments)
        return result

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y_i; Ω_ℓ(x_i)): `(depth, batch)`."""
        result: Tensor = self.likelihood.log_prob(outputs, y)  # type: ignore[operator]
        return result

    def scores(self, outputs: Tensor, log_q: Tensor, y: Tensor) -> Tensor:
        """Score and log score of each row: `(2, batch)`."""
        prediction = self.likelihood.predict(outputs, log_q)  # type: ignore[operator]
        log_prob = prediction.log_prob(y)
        score = self.likelihood.score(prediction, y)  # type: ignore[operator]
        return torch.stack([score.to(log_prob.dtype), log_prob])
