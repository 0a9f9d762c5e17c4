"""Tokens of a sequence: a softmax over a head's outputs at each of them."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unbounded import trees
from unbounded.likelihoods.base import Likelihood, Prediction

IGNORED = -100
"""A target that does not count, as in torch's `cross_entropy`."""
MIXES = ("token", "sequence")
SCORES = ("perplexity", "bits_per_character", "accuracy")


@dataclass(frozen=True)
class TokenPrediction(Prediction):
    """A mixture over depths for each token of a sequence."""

    @cached_property
    def log_probs(self) -> Tensor:
        """log Σ_ℓ q(ℓ) p(y_t = c; Ω_ℓ(x)): `(batch, time, token)`, without any target's help."""
        return self.mix(self.outputs.log_softmax(-1))

    @property
    def probs(self) -> Tensor:
        """The probabilities of tokens: `(batch, time, token)`."""
        return self.log_probs.softmax(-1)

    @property
    def tokens(self) -> Tensor:
        """The most probable token at each place: `(batch, time)`."""
        return self.log_probs.argmax(-1)

    def token_log_probs(self, y: Tensor) -> Tensor:
        """log p(y_t | …) of each target by the likelihood's mixture, 0 where it does not count.

        `(batch, time)`, with sums `log_prob(y)`. If sequences are mixed, each target is predicted
        with what its predecessors say of the depth: q(ℓ | y_<t) ∝ q(ℓ) Π_{s<t} p(y_s; Ω_ℓ).
        """
        likelihood = self.likelihood
        assert isinstance(likelihood, Tokens)
        by_depth = likelihood.token_log_prob(self.outputs, y)
        if likelihood.mix == "token":
            found = self.mix(by_depth)
        else:
            so_far = self.mix(by_depth.cumsum(-1))
            found = so_far.diff(dim=-1, prepend=torch.zeros_like(so_far[:, :1]))
        return torch.where(y == likelihood.ignored, 0.0, found)

    def log_prob(self, y: Tensor) -> Tensor:
        """The log-likelihood of each sequence by the likelihood's mixture: `(batch,)`."""
        assert isinstance(self.likelihood, Tokens)
        if self.likelihood.mix == "sequence":
            return super().log_prob(y)
        return self.token_log_probs(y).sum(-1)


class Tokens(Likelihood):
    """p(y; Ω) = Π_t softmax(Ω_t)_{y_t}, over those tokens of a sequence that count.

    Heads give `(depth, batch, time, token)`, targets are `(batch, time)`; those that are −100 do
    not count. n counts tokens: 𝓛 is in nats for all tokens of the data, the loss −𝓛/n in nats a
    token, and a batch of b counted tokens stands for n/b times as many.

    The predictive mixture over depths is one of these:

        by token      log p(y) = Σ_t log Σ_ℓ q(ℓ) p(y_t; Ω_ℓt)
        by sequence   log p(y) = log Σ_ℓ q(ℓ) Π_t p(y_t; Ω_ℓt)

    By token each is predicted by the same q(ℓ), as an ensemble would. By sequence one depth
    explains a whole sequence, as in the model itself: what comes first in it says which. Training
    is the same for both, since 𝓛 has no mixture in it.

    Args:
        vocabulary: tokens are 0 … vocabulary−1.
        mix: "token" or "sequence".
        score: what the best epoch is chosen by: "perplexity", exp of the nats a token;
            "bits_per_character", bits a token where tokens are characters; or "accuracy".
    """

    unit = "tokens"
    output_axes = 2

    def __init__(self, vocabulary: int, *, mix: str = "token", score: str = "perplexity"):
        super().__init__()
        if int(vocabulary) != vocabulary or vocabulary < 2:
            raise ValueError(f"vocabulary must be an integer of at least 2, got {vocabulary!r}")
        if mix not in MIXES:
            raise ValueError(f"mix must be one of {MIXES}, got {mix!r}")
        if score not in SCORES:
            raise ValueError(f"score must be one of {SCORES}, got {score!r}")
        self.vocabulary, self.mix, self.score_name = int(vocabulary), mix, score
        self.higher_is_better, self.mixes_rows = score == "accuracy", mix == "sequence"
        self.has_verdicts = mix == "token"  # of sequences all depths say what a token tells of them
        self.ignored = IGNORED

    def token_log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y_t; Ω_ℓt), 0 where it does not count: `(depth, batch, time)`."""
        self.check_outputs(outputs, y)
        counts = y != self.ignored
        if y.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check_range(y[counts])
        index = torch.where(counts, y, 0).expand(outputs.shape[0], -1, -1)[..., None]
        # A log_softmax would keep a second tensor as large as the outputs.
        found = outputs.gather(-1, index)[..., 0] - outputs.logsumexp(-1)
        return torch.where(counts, found, 0.0)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`(depth, batch, time, token)` and `(batch, time)` → `(depth, batch)`: sums over time."""
        return self.token_log_prob(outputs, y).sum(-1)

    def observations(self, y: Tensor) -> Tensor:
        """How many tokens of each row count, `(batch,)`, in double precision."""
        return (y != self.ignored).sum(-1).double()

    def guess(self, y: Tensor) -> Tensor:
        """The tokens' frequencies, with one more of each: `(batch,)`, sums over time."""
        counts = y != self.ignored
        seen = y[counts].bincount(minlength=self.vocabulary).double() + 1
        each = (seen / seen.sum()).log()[y.clamp(min=0)]
        return torch.where(counts, each, 0.0).sum(-1)

    def check_targets(self, y: Tensor) -> Tensor:
        """Integers in 0 … V−1, or −100, some of which count: `(rows, time)`."""
        if y.dim() != 2 or not trees.are_integers(y):
            raise ValueError(
                f"token targets must be integers of shape (rows, time), got {tuple(y.shape)} of "
                f"{str(y.dtype).removeprefix('torch.')}"
            )
        if not y.shape[1]:
            raise ValueError("token targets are of sequences without any token")
        y = y.long()
        counted = y[y != self.ignored]
        if y.numel() and not counted.numel():
            raise ValueError(f"all targets are ignored ({self.ignored}): none is left to count")
        self._check_range(counted)
        return y

    def _check_range(self, counted: Tensor) -> None:
        if counted.numel():
            low, high = int(counted.min()), int(counted.max())
            if low < 0 or high >= self.vocabulary:
                raise ValueError(
                    f"token targets must be in 0 … {self.vocabulary - 1}, or {self.ignored} for "
                    f"those that do not count, got {low} … {high}"
                )

    def check_training_targets(self, y: Tensor) -> None:
        """Every row must have a target that counts: else a batch could be without."""
        empty = (y == self.ignored).all(-1).nonzero()
        if len(empty):
            others = f", and of {len(empty) - 1} more" if len(empty) > 1 else ""
            raise ValueError(
                f"all targets of row {int(empty[0, 0])} are ignored ({self.ignored}){others}: "
                "leave such rows out"
            )

    def check_outputs(self, outputs: Tensor, y: Tensor | None = None) -> None:
        """Heads must give one number for each token at each place."""
        if outputs.dim() != 4 or outputs.shape[3] != self.vocabulary:
            raise ValueError(
                f"heads must give {self.vocabulary} numbers a token, (time, {self.vocabulary}) a "
                f"row, got {tuple(outputs.shape[2:])}"
            )
        if y is not None and outputs.shape[1:3] != y.shape:
            raise ValueError(
                f"outputs are of {tuple(outputs.shape[1:3])} (rows, time), targets of "
                f"{tuple(y.shape)}: there must be a target, or {self.ignored}, for each token"
            )

    def predict(self, outputs: Tensor, depth_log_probs: Tensor) -> TokenPrediction:
        """The mixture over depths."""
        return TokenPrediction(self, outputs, depth_log_probs)

    @property
    def described(self) -> str:
        """What errors call it."""
        return f"Tokens(mix={self.mix!r})"

    def verdict(self, probs: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """The token at each place, `(batch, time)`, and the probability of the least sure one."""
        highest = probs.max(-1)
        return highest.indices, highest.values.amin(-1)

    def score(self, prediction: Prediction, y: Tensor) -> Tensor:
        """The mean over the tokens of each row: nats, or whether it is right: `(batch,)`."""
        assert isinstance(prediction, TokenPrediction)
        total = self.observations(y).clamp(min=1)
        if self.score_name == "accuracy":
            return ((prediction.tokens == y) & (y != self.ignored)).sum(-1) / total
        found: Tensor = -prediction.log_prob(y) / total
        return found

    def finish_score(self, mean: float) -> float:
        """From nats a token to a perplexity or bits."""
        if self.score_name == "perplexity":
            return math.exp(min(mean, 700.0))
        return mean / math.log(2) if self.score_name == "bits_per_character" else mean

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this likelihood."""
        return {"vocabulary": self.vocabulary, "mix": self.mix, "score": self.score_name}
