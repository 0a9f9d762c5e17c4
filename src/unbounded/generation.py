"""Sequences written by a model, token by token, from the mixture over depths."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unbounded.exits import EarlyExit, RunningMixture
from unbounded.frozen import Frozen
from unbounded.layers.base import Layers, Stack
from unbounded.layers.dense import _size
from unbounded.layers.transformer import (
    HeadsTogether,
    KeyValues,
    SequenceContext,
    TransformerLayers,
)
from unbounded.likelihoods import Likelihood, Tokens
from unbounded.predictive import evaluating, without_gradients

if TYPE_CHECKING:
    from unbounded.model import UDN


_LEAST = -1e30
_SPOKEN = 0.25
"""Of q's mass, that must have spoken before `within` lets a token leave."""


@dataclass(frozen=True)
class Generated:
    """What was written.

    Attributes:
        tokens: prompt and continuation, `(batch, time)`.
        log_probs: log-probability of each new token under the mixture it was drawn from,
            before temperature and `top_k`, `(batch, new)`.
        depths: how many layers were run for each new token, `(new,)`.
    """

    tokens: Tensor
    log_probs: Tensor
    depths: Tensor


def generate(
    model: "UDN | Frozen",
    prompt: Tensor,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    sure: float | EarlyExit | None = None,
    within: float | None = None,
    generator: torch.Generator | None = None,
) -> Generated:
    """Continue sequences by `length` tokens, with a cache of keys and values for each layer.

    Each token comes from Σ_ℓ q(ℓ) p(y; Ω_ℓ), or, if the likelihood mixes by sequence, with
    q(ℓ | tokens so far) in place of q(ℓ).

    With `sure`, a token may leave early. Let S_ℓ(c) = Σ_{k≤ℓ} q(k) p(c; Ω_k). As soon as some token
    has S_ℓ(c) ≥ sure in every sequence of the batch, the deeper layers are left out: whatever they
    say, the mixture gives it at least that. The token is drawn from S_ℓ, normalised, which is
    within 1 − sure of the mixture in total variation; with temperature 0 and sure ≥ ½ it is the
    very one. The layers that were left out have no keys of that token. They are not guessed: its
    state waits, and is run through them, together with others that wait, when a later token comes
    so far. So what is written depends on `sure` only through the exits themselves.

    That bound is for the worst. With `within`, a token leaves as soon as deeper depths, if they
    differ from the mixture so far as much as the latest one does, change it by at most that much in
    total variation: (1 − Q_ℓ)·TV(p(·; Ω_ℓ), S_ℓ/Q_ℓ) ≤ within, Q_ℓ = Σ_{k≤ℓ} q(k), once a
    quarter of q's mass has spoken. This is an estimate, and leaves earlier.

    Args:
        model: with causal `TransformerLayers` and `Tokens`; or the same frozen.
        prompt: tokens to begin with, `(batch, time)`, at least one.
        length: how many to add.
        temperature: below 1 sharpens the mixture, 0 takes the most probable token.
        top_k: choose among so many most probable tokens.
        sure: probability from which on deeper layers are left out; None: all are run. An
            `EarlyExit` may ask the depths so far alone: they are then sure earlier, and what the
            deeper ones would have said is not bounded.
        within: total variation that deeper layers are left out for; None: as `sure` says.
        generator: of the draws; torch's default one by default.

    Raises:
        ValueError: if the prompt is no such tensor, or the sequence would outgrow the positions;
            or if tokens are to leave early where the likelihood mixes by sequence.
    """
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    length, top_k = _size("length", length), None if top_k is None else _size("top_k", top_k)
    if isinstance(sure, int | float):
        if not 0 < sure <= 1:
            raise ValueError(f"sure must be above 0 and at most 1, got {sure}")
        sure = EarlyExit(sure, bounded=True)
    elif sure is not None and not isinstance(sure, EarlyExit):
        raise ValueError(f"sure must be a number or an EarlyExit, got {sure!r}")
    if within is not None and not 0 < within <= 1:
        raise ValueError(f"within must be above 0 and at most 1, got {within}")
    gradless = torch.inference_mode() if isinstance(model, Frozen) else without_gradients(model)
    with evaluating(model), gradless:
        writer = _Writer(model, prompt, length, sure, within)
        new, log_probs, depths = prompt.to(writer.device, torch.long), [], []
        tokens = new
        for _ in range(length):
            mixture = writer.read(new)
            new = _drawn(mixture, temperature, top_k, generator)
            log_probs.append(mixture.gather(1, new))
            depths.append(writer.depth)
            writer.chose(new)
            tokens = torch.cat([tokens, new], 1)
        return Generated(tokens, torch.cat(log_probs, 1), torch.tensor(depths))


class _Writer:
    """Layers with their caches, and the states that wait in front of them."""

    def __init__(
        self,
        model: "UDN | Frozen",
        prompt: Tensor,
        length: int,
        exit: EarlyExit | None = None,
        within: float | None = None,
    ):
        layers: Layers = model.layers
        likelihood: Likelihood = model.likelihood
        if not isinstance(layers, TransformerLayers) or not layers.causal:
            raise ValueError("generate needs causal TransformerLayers")
        if not isinstance(likelihood, Tokens):
            raise ValueError(f"generate needs Tokens, got {type(likelihood).__name__}")
        if layers.out_features != layers.vocabulary:
            raise ValueError(
                f"generate reads what it writes: the layers take {layers.vocabulary} tokens and "
                f"give {layers.out_features}"
            )
        if not isinstance(prompt, Tensor) or prompt.dim() != 2 or not prompt.shape[1]:
            found = tuple(prompt.shape) if isinstance(prompt, Tensor) else type(prompt).__name__
            raise ValueError(
                f"the prompt must be a tensor of tokens (batch, time), one at least, got {found}"
            )
        layers.check_inputs(prompt)
        total = prompt.shape[1] + length - 1  # the last token is not read
        if layers.max_length is not None and total > layers.max_length:
            raise ValueError(
                f"prompt and continuation have {total + 1} tokens, positions end at max_length = "
                f"{layers.max_length}"
            )
        self.layers, self.likelihood = layers, likelihood
        stack, log_q = _modules(model)
        self.hidden, self.first = stack.hidden, stack.first
        self.heads = HeadsTogether(list(stack.heads) * (len(log_q) if len(stack.heads) == 1 else 1))
        self.by_sequence = likelihood.mix == "sequence"
        if self.by_sequence and (exit is not None or within is not None):
            raise ValueError(
                "sure and within are for tokens mixed by token: by Tokens(mix='sequence') every "
                "depth must say what a token tells of it"
            )
        self.exit, self.within = exit, within
        self.asked = self._asked(log_q)
        self.device = log_q.device
        # (depth, batch): by sequence each has a posterior of its own.
        self.log_q = log_q[:, None].repeat(1, prompt.shape[0])
        self.caches = [KeyValues() for _ in self.hidden]
        self.waiting: list[Tensor | None] = [None] * len(self.hidden)
        self.read_so_far = 0
        self.depth = 0  # of the latest pass
        self._last = log_q  # log-probabilities by depth in it, (depth, batch, token)

    def _asked(self, log_q: Tensor) -> list[bool]:
        """After which layers a token may leave: elsewhere nobody need ask."""
        found = [False] * len(self.hidden)
        spoken = log_q.double().exp().cumsum(0).tolist()
        for place, mass in enumerate(spoken[:-1]):
            by_exit = self.exit is not None and (not self.exit.bounded or mass >= self.exit.level)
            found[self.first - 1 + place] = by_exit or (self.within is not None and mass >= _SPOKEN)
        return found

    def read(self, tokens: Tensor) -> Tensor:
        """Take new tokens `(batch, time)`; the log-mixture for the one after: `(batch, token)`."""
        start, self.read_so_far = self.read_so_far, self.read_so_far + tokens.shape[1]
        recent = tokens.shape[1] if self.by_sequence else 1
        state: Tensor | None = None
        states: list[Tensor] = []  # of depths whose heads are yet to be run
        contexts: dict[int, SequenceContext] = {}  # by how many tokens a layer gets
        mixture = RunningMixture()
        for index, layer in enumerate(self.hidden):
            given: Any = tokens if index == 0 else self._with_waiting(index, state)
            # Those before the tokens that this layer gets are in its cache.
            count = tokens.shape[1] if index == 0 else given.shape[1]
            if count not in contexts:
                at = start if index == 0 else self.read_so_far - count
                contexts[count] = self.layers.context_after(self._places(tokens, count), at)
            state = layer(given, contexts[count]._replace(cache=self.caches[index]))
            self.depth = index + 1
            if self.depth < self.first:
                continue
            assert state is not None
            states.append(state[:, -recent:])
            if self.asked[index]:
                self._add(mixture, states, tokens)
                states = []
                if self._is_sure(mixture):
                    self._wait(index + 1, state)
                    break
        if states:
            self._add(mixture, states, tokens)
        return mixture.log_probs[:, 0].log_softmax(-1)

    def _add(self, mixture: RunningMixture, states: list[Tensor], tokens: Tensor) -> None:
        """The latest depths into the mixture, by their states `(batch, time, width)`."""
        place = self.depth - self.first + 1 - len(states)
        scores = self.heads(states, place).float().log_softmax(-1)
        if scores.shape[2] > 1:  # what the prompt says of each depth
            targets = tokens[None, :, 1:, None].expand(len(scores), -1, -1, 1)
            self.log_q = self.log_q + scores[:, :, :-1].gather(-1, targets)[..., 0].sum(-1)
        self._last = scores[:, :, -1]
        log_q = self.log_q[place : place + len(states)]
        mass = log_q.logsumexp(0)[:, None]
        # Depths may have no mass at all: −∞ − (−∞) is no number.
        each = (log_q[..., None] + self._last).logsumexp(0) - mass.clamp(min=_LEAST)
        mixture.add(mass[..., None], each[:, None])

    def chose(self, tokens: Tensor) -> None:
        """By sequence: what the new tokens `(batch, 1)` say of the depth."""
        if self.by_sequence:
            said = self._last.gather(-1, tokens.expand(len(self._last), -1, -1))[..., 0]
            self.log_q = (self.log_q + said).log_softmax(0)

    def _is_sure(self, mixture: RunningMixture) -> bool:
        """Whether all sequences may leave out the deeper layers."""
        leaves = torch.zeros((), dtype=torch.bool, device=self.device)
        if self.exit is not None:
            leaves = self.exit.is_sure(mixture, self.likelihood)
        if self.within is not None:
            assert mixture.log_mass is not None
            latest, rest = self._last[-1].exp(), 1 - mixture.log_mass[:, 0, 0].exp()
            apart = (latest - mixture.log_probs[:, 0].exp()).abs().sum(-1) / 2
            leaves = leaves | (rest * apart <= self.within)
        return bool(leaves.all())

    def _places(self, tokens: Tensor, count: int) -> Tensor:
        """Something of the shape `(batch, count)`, for a context: tokens are layer 1's alone."""
        return tokens if count == tokens.shape[1] else tokens[:, :1].expand(-1, count)

    def _with_waiting(self, index: int, state: Tensor | None) -> Tensor:
        """States that wait before a layer and the new ones behind them."""
        assert state is not None
        earlier, self.waiting[index] = self.waiting[index], None
        return state if earlier is None else torch.cat([earlier, state], 1)

    def _wait(self, index: int, state: Tensor) -> None:
        """States that have come to a layer which is left out, some of which waited before it."""
        earlier = self.waiting[index]
        self.waiting[index] = state if earlier is None else torch.cat([earlier, state], 1)


def _modules(model: "UDN | Frozen") -> tuple[Stack, Tensor]:
    """The layers and heads of a pass, and log q(ℓ)."""
    if isinstance(model, Frozen):
        return model.stack(), model.depth_probs.log()
    first, last = model.support()
    return model.network.stack(last, first), model.depth_log_probs()


def _drawn(
    log_probs: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """A token of each row, `(batch, 1)`."""
    if temperature == 0:
        return log_probs.argmax(-1, keepdim=True)
    # From the best on, in double precision: so a temperature can be as low as one likes.
    scores = (log_probs - log_probs.amax(-1, keepdim=True)).double() / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        best, places = scores.topk(top_k)  # so many, where several are equal too
        scores = torch.full_like(scores, -torch.inf).scatter(-1, places, best)
    probs = scores.softmax(-1).to(log_probs.dtype)
    device = probs.device if generator is None else generator.device
    return torch.multinomial(probs.to(device), 1, generator=generator).to(log_probs.device)
