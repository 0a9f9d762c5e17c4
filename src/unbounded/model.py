"""The unbounded-depth network: layers, depth family, priors and likelihood in one module."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from unbounded import elbo as elbo_
from unbounded import growth, trees
from unbounded.depth import (
    DepthFamily,
    TruncatedConwayMaxwell,
    TruncatedNormal,
    TruncatedPoisson,
    check_unbounded,
)
from unbounded.elbo import ElboTerms
from unbounded.layers import Layers
from unbounded.likelihoods import Likelihood, Prediction
from unbounded.network import Active, Network
from unbounded.priors import DepthPrior, GaussianWeights, PoissonDepth, WeightPrior

if TYPE_CHECKING:
    from unbounded.exits import EarlyExit, EarlyPrediction
    from unbounded.frozen import Frozen
    from unbounded.generation import Generated


class DepthPosterior(NamedTuple):
    """q(ℓ) at one moment."""

    first: int  # the first depth with mass
    last: int  # the last depth with mass whose layer is born
    log_q: Tensor  # log q(first) … log q(last), `(depth,)`


class UDN(nn.Module):
    """An unbounded-depth neural network (the paper's section 2) with its variational posterior.

    Holds no optimiser, no loop and no device; `unbounded.fit` trains it.

    Args:
        layers: ℓ ↦ hidden layer and head.
        likelihood: p(y; Ω_ℓ(x)).
        depth: q(ℓ; λ); a truncated Poisson from λ = 1 by default.
        depth_prior: p(ℓ); ℓ−1 ~ Poisson(0.5) by default, as on the paper's spirals.
        weight_prior: p(θ); standard Gaussian by default.
        cumulative_heads: count every head up to ℓ in the weights' term (the paper's text)
            rather than head ℓ alone (the authors' code, and a smaller cost).
        seed: of the first weights; a layer's depend on this and its depth alone.

    Example:
        >>> model = UDN(Dense(2, 32, 2), Categorical(2))
        >>> model(torch.zeros(5, 2)).shape  # depth, batch, class
        torch.Size([4, 5, 2])
    """

    def __init__(
        self,
        layers: Layers,
        likelihood: Likelihood,
        depth: DepthFamily | None = None,
        depth_prior: DepthPrior | None = None,
        weight_prior: WeightPrior | None = None,
        *,
        cumulative_heads: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        self.layers = layers
        self.likelihood = likelihood
        self.depth = TruncatedPoisson() if depth is None else depth
        self.depth_prior = PoissonDepth() if depth_prior is None else depth_prior
        self.weight_prior = GaussianWeights() if weight_prior is None else weight_prior
        self.cumulative_heads = cumulative_heads
        self.seed = int(seed)
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        _check_family(self.depth)
        _check_support(self.depth, self.depth_prior)
        self.network = Network(layers)
        self.anchor: Tensor
        # Moves with .to(...), so that layers born later know where the model lives.
        self.register_buffer("anchor", torch.zeros(()), persistent=False)
        self._log_prior: Tensor | None = None
        self._cached_prior: DepthPrior | None = None
        growth.grow(self)

    def forward(self, x: trees.Tree, support: tuple[int, int] | None = None) -> Tensor:
        """Ω_ℓ(x) for every depth with mass: `(depth, batch, *event)`; creates nothing.

        Args:
            x: inputs, `(batch, …)`; or a tuple or dict of such parts, if the layers take that.
            support: first and last depth, given by a training step; else λ is asked.
        """
        first, last = self.support() if support is None else support
        outputs: Tensor = self.network(x, last, first, support is not None)
        if outputs.element_size() < 4:  # probabilities and sums over rows need more
            return outputs.float()
        return outputs

    def support(self) -> tuple[int, int]:
        """The first and last depth with mass, among the layers that are born."""
        last = min(self.depth.max_depth(), self.network.num_layers)
        return min(self.depth.first_depth(), last), last

    def posterior(self) -> "DepthPosterior":
        """q(ℓ) over `support()`.

        Right after a step that moved λ, q may reach beyond the layers that are born. Until the
        next step creates them, the rest of q is renormalised: predicting never grows anything.
        """
        first, last = self.support()
        log_q = self.depth.log_probs()
        if last < log_q.shape[0]:
            log_q = log_q[first - 1 : last].log_softmax(0)
        elif first > 1:
            log_q = log_q[first - 1 :]
        return DepthPosterior(first, last, log_q)

    def posterior_over(self, first: int, last: int) -> "DepthPosterior":
        """q(ℓ) with its support held at first … last, without asking the device for λ."""
        return DepthPosterior(first, last, self.depth.log_probs_up_to(last)[first - 1 :])

    def depth_log_probs(self) -> Tensor:
        """log q(ℓ) over `support()`, shape `(depth,)`; see `posterior`."""
        return self.posterior().log_q

    def elbo(
        self, x: trees.Tree, y: Tensor, num_data: float, weights: Tensor | None = None
    ) -> ElboTerms:
        """The terms of 𝓛(q), estimated from a batch (the paper's final equation of 3.1).

        Args:
            x: inputs, `(batch, …)`.
            y: targets in the form that the likelihood takes, `(batch, …)`.
            num_data: n, the size of the data set that the batch comes from; of tokens the
                likelihood counts tokens (`Likelihood.unit`).
            weights: how often each row counts, `(batch,)`.
        """
        return self.elbo_of_outputs(self(x), y, num_data, weights)

    def elbo_of_outputs(
        self, outputs: Tensor, y: Tensor, num_data: float, weights: Tensor | None = None
    ) -> ElboTerms:
        """The same from outputs Ω_ℓ(x) over the support, `(depth, batch, *event)`."""
        posterior = self.posterior()
        hidden_kl, head_kl = self.weight_kl(posterior.first, posterior.last)
        return elbo_.elbo_terms(
            posterior.log_q,
            self.likelihood.log_lik(outputs, y),
            self.depth_log_prior(posterior),
            hidden_kl,
            head_kl,
            num_data,
            weights,
            self.cumulative_heads,
            self.likelihood.total(y),
        )

    def weight_kl(
        self, first: int, last: int, active: Active | None = None
    ) -> tuple[Tensor, Tensor]:
        """KL of the layers 1 … last, `(last,)`, and of the heads first … last, `(depth,)`."""
        if active is None:
            active = self.network.active(last, first, cumulative_heads=self.cumulative_heads)
        costs = self.network.placement.kl(self.weight_prior, active.parameters)
        total = active.by_module(costs)
        return total[:last], total[last:]

    @overload
    def predict(self, x: trees.Tree) -> Prediction: ...

    @overload
    def predict(self, x: trees.Tree, *, exit: "float | EarlyExit") -> "EarlyPrediction": ...

    def predict(
        self, x: trees.Tree, *, exit: "float | EarlyExit | None" = None
    ) -> "Prediction | EarlyPrediction":
        """The mixture over depths for one batch, without gradients and in evaluation mode.

        Args:
            x: inputs, `(batch, …)`.
            exit: let each row leave at the first depth where it is that sure, such as 0.99; the
                depths of the rows are returned with their probabilities (`unbounded.EarlyExit`).
        """
        from unbounded.predictive import predict

        return predict(self, x) if exit is None else predict(self, x, exit=exit)

    def generate(self, prompt: Tensor, length: int, **options: Any) -> "Generated":
        """Sequences continued by `length` tokens, from the mixture over depths.

        Args:
            prompt: tokens to begin with, `(batch, time)`.
            length: how many to add.
            options: temperature, top_k, sure, within, generator; see `unbounded.generate`.
        """
        from unbounded.generation import generate

        return generate(self, prompt, length, **options)

    def freeze(self, *, depth: int | None = None, min_mass: float | None = None) -> "Frozen":
        """A plain finite `nn.Module`: the layers and heads with mass, and q(ℓ) as constants.

        Args:
            depth: of this depth alone, whatever mass it has.
            min_mass: of the depths whose q(ℓ) is at least this, renormalised; layers behind the
                last of them are left out.
        """
        from unbounded.frozen import Frozen

        return Frozen.of(self, depth, min_mass)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Have the layers that the state is of, then load it: a grown model's state fits too."""
        last = deepest_layer(state, prefix)
        # Layers without parameters leave no trace: those stay as they are.
        if last and last != self.network.num_layers:
            growth.resize(self, last)
        super()._load_from_state_dict(state, prefix, *rest)

    def extra_repr(self) -> str:
        """What `print(model)` adds."""
        return f"depth_prior={self.depth_prior}, seed={self.seed}"

    def depth_log_prior(self, posterior: "DepthPosterior") -> Tensor:
        """log p(ℓ) over the support of q, `(depth,)`; remembered until the support changes."""
        first, last, like = posterior
        cached = self._log_prior
        stale = (
            cached is None or cached.shape[0] != last or self._cached_prior is not self.depth_prior
        )
        if cached is None or stale or cached.device != like.device or cached.dtype != like.dtype:
            with torch.inference_mode(False):  # kept beyond a caller's inference mode
                depths = torch.arange(1, last + 1, device=like.device)
                cached = self.depth_prior.log_prob(depths).to(like.dtype)
                check_prior_mass(self.depth_prior, cached, first)
                self._log_prior, self._cached_prior = cached, self.depth_prior
        return cached[first - 1 :] if first > 1 else cached


def deepest_layer(state: Iterable[str], prefix: str = "") -> int:
    """The largest depth whose hidden layer a state names, 0 if it names none."""
    start = f"{prefix}network.hidden."
    depths = (key.removeprefix(start).split(".")[0] for key in state if key.startswith(start))
    return max((int(depth) for depth in depths if depth.isdecimal()), default=0)


def check_prior_mass(prior: DepthPrior, log_prior: Tensor, first: int) -> None:
    """A ValueError if a depth of the support has no mass under the prior; a host read.

    Args:
        prior: p(ℓ).
        log_prior: log p(1), …, log p(last).
        first: the first depth of the support.
    """
    missing = (~torch.isfinite(log_prior[first - 1 :])).nonzero()
    if len(missing):
        raise ValueError(
            f"{type(prior).__name__} gives depth {first + int(missing[0, 0])} no mass, q(ℓ) has "
            "some: the ELBO would be minus infinity. Give every depth of the support some mass"
        )


# Of the first two Theorem 1 has shown it, also for those λ from which an ascent would take long.
_CHECKED_FAMILIES: set[type[DepthFamily]] = {
    TruncatedPoisson,
    TruncatedConwayMaxwell,
    TruncatedNormal,
}


def _check_family(family: DepthFamily) -> None:
    """Condition (2) of Definition 1, once for each class of families."""
    if family.is_unbounded and family.bound is None and type(family) not in _CHECKED_FAMILIES:
        check_unbounded(family)
        _CHECKED_FAMILIES.add(type(family))


def _check_support(depth: DepthFamily, prior: DepthPrior) -> None:
    if prior.max_depth is None:
        return
    if depth.is_unbounded or depth.max_depth() > prior.max_depth:
        reach = "every depth" if depth.is_unbounded else f"depth {depth.max_depth()}"
        raise ValueError(
            f"{type(depth).__name__} reaches {reach}, {type(prior).__name__} has no mass beyond "
            f"depth {prior.max_depth}: the ELBO would be minus infinity"
        )
