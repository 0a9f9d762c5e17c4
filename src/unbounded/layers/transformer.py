"""Transformer blocks over tokens, as deep as the data ask for."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbounded import trees
from unbounded.layers.base import Layers, all_plain
from unbounded.layers.dense import _size
from unbounded.layers.dropout import ChannelDropout

POSITIONS = ("rotary", "learnt", "none")
_BASE = 10_000.0  # of the wavelengths of rotary positions
_EPS = 1e-6


class KeyValues:
    """Keys and values of the tokens that one block has seen, `(batch, head, time, size)` each."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extended(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all tokens so far, the new ones last."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        self.keys, self.values = keys, values
        return keys, values


class SequenceContext(NamedTuple):
    """What every block of a pass needs besides its state, made once."""

    tokens: Tensor  # (batch, time)
    positions: Tensor  # (1 or batch, time)
    waves: tuple[Tensor, Tensor] | None  # cosines and sines of rotary positions
    sees: Tensor | None  # (1 or batch, 1, query, key); None: all, or all earlier ones
    is_causal: bool
    cache: KeyValues | None = None


class TransformerLayers(Layers):
    """Pre-norm transformer blocks: f_1 embeds tokens and is the first block, f_ℓ the ℓ-th.

    Inputs are tokens `(batch, time)`, or a tuple (tokens, mask, positions) or a dict with these
    names, of which all but the tokens may be missing. A mask `(batch, time)` says which tokens
    are there (True) and which are padding; one of `(batch, time, time)` says which query sees which
    key. Where there is a mask of the first kind positions count the tokens that are there, so
    padding on either side changes nothing. Each token sees itself in any case.

    The last maps of a block start at zero: a newborn block is the identity, and a birth changes
    no output of deeper depths. Heads are a normalisation and a linear map to `out_features`
    numbers a token. Heads of their own start at zero, so that all tokens are equally probable.

    What the prior counts: all linear maps and embeddings as they are. They have no biases. The
    scale of a normalisation is 1 + γ, and the prior is on γ, which starts at 0: a normalisation
    that does nothing costs nothing.

    Args:
        vocabulary: tokens are 0 … vocabulary−1.
        width: size of a token's hidden state.
        heads: of attention; the width is a multiple of twice their number.
        out_features: size of a head's output; the vocabulary by default.
        causal: whether a token sees only itself and earlier ones.
        positions: "rotary", "learnt" (added to the embedding) or "none".
        max_length: the longest sequence; needed for learnt positions, else a limit if given.
        expansion: inner size of the perceptron, as a multiple of the width.
        shares_head: one head for all depths.
        tied: the linear map of the heads is the embedding; depths that do not share their head
            keep normalisations of their own.
        dropout: the share of channels that training leaves out at random, of the embedding and of
            what attention and perceptrons add. A sequence has one mask for all its tokens.

    Example:
        >>> layers = TransformerLayers(65, 32)
        >>> model = UDN(layers, Tokens(65))
        >>> model(torch.zeros(2, 7, dtype=torch.long)).shape  # depth, batch, time, token
        torch.Size([4, 2, 7, 65])
    """

    integer_inputs = True
    reference = (3.0, 2.0)  # blocks are dear, and two of them do much already

    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        heads: int = 4,
        out_features: int | None = None,
        causal: bool = True,
        positions: str = "rotary",
        max_length: int | None = None,
        expansion: int = 4,
        shares_head: bool = False,
        tied: bool = False,
        dropout: float = 0.0,
    ):
        self.vocabulary = _size("vocabulary", vocabulary)
        self.width, self.heads = _size("width", width), _size("heads", heads)
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of twice the heads, {2 * self.heads}, got {width}"
            )
        self.out_features = (
            self.vocabulary if out_features is None else _size("out_features", out_features)
        )
        if positions not in POSITIONS:
            raise ValueError(f"positions must be one of {POSITIONS}, got {positions!r}")
        if positions == "learnt" and max_length is None:
            raise ValueError("learnt positions need max_length, the longest sequence")
        self.positions = positions
        self.max_length = None if max_length is None else _size("max_length", max_length)
        self.causal, self.expansion = bool(causal), _size("expansion", expansion)
        self.shares_head, self.tied = bool(shares_head), bool(tied)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout!r}")
        self.dropout = float(dropout)
        if self.tied and self.out_features != self.vocabulary:
            raise ValueError(
                f"tied heads give as many numbers as there are tokens, {self.vocabulary}, "
                f"got out_features {self.out_features}"
            )

    def hidden(self, depth: int) -> nn.Module:
        """Tokens, or `(batch, time, width)`, → `(batch, time, width)`."""
        block = Block(self.width, self.heads, self.expansion)
        layer: Block | FirstBlock = block
        if depth == 1:
            places = self.max_length if self.positions == "learnt" else None
            layer = FirstBlock(Embedding(self.vocabulary, self.width, places), block)
        if self.dropout:  # drawn last: weights are those of a network without
            layer.leave_out(self.dropout)
        return layer

    def head(self, depth: int) -> nn.Module:
        """`(batch, time, width)` → `(batch, time, out_features)`."""
        return TokenHead(self.width, self.out_features)

    def join(self, first: nn.Module, head: nn.Module) -> None:
        """Give a newborn head the embedding of layer 1, if it is tied."""
        if self.tied and isinstance(first, FirstBlock) and isinstance(head, TokenHead):
            head.linear.weight = first.embedding.tokens

    def context(self, x: trees.Tree) -> SequenceContext:
        """Positions, their waves and the mask; a ValueError if shapes do not fit."""
        return self.context_after(x, 0)

    def counts(self, x: trees.Tree) -> Tensor | None:
        """Which tokens are there, `(batch, time)`, by a mask of that shape."""
        mask = _parts(x)[1]
        return None if mask is None or mask.dim() != 2 else mask.bool()

    def context_after(
        self, x: trees.Tree, start: int, cache: KeyValues | None = None
    ) -> SequenceContext:
        """The same for tokens that follow `start` earlier ones, whose keys are in a cache.

        Without a mask alone: what was generated has no padding.
        """
        tokens, mask, positions = _parts(x)
        _check_shapes(tokens, mask, positions)
        tokens = _embeddable(tokens)
        time = tokens.shape[1]
        if self.max_length is not None and start + time > self.max_length:
            raise ValueError(
                f"sequences have {start + time} tokens, positions end at max_length = "
                f"{self.max_length}: cut them, or take more positions"
            )
        if positions is None:
            positions = torch.arange(start, start + time, device=tokens.device)[None]
            if mask is not None and mask.dim() == 2:
                positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        elif trees.are_integers(positions):
            positions = _embeddable(positions)
        waves = None
        if self.positions == "rotary":
            waves = _waves(positions, self.width // self.heads)
        sees = None
        if mask is not None:
            own = torch.eye(time, dtype=torch.bool, device=tokens.device)
            sees = (mask[:, None] if mask.dim() == 2 else mask).bool()
            if self.causal:
                sees = sees & torch.ones_like(own).tril()
            sees = (sees | own)[:, None]  # a token without any to see would be no number
        elif self.causal and start and time > 1:
            queries = torch.arange(start, start + time, device=tokens.device)[:, None]
            keys = torch.arange(start + time, device=tokens.device)
            sees = (keys <= queries)[None, None]
        is_causal = self.causal and sees is None and not start
        return SequenceContext(tokens, positions, waves, sees, is_causal, cache)

    def check_inputs(self, x: trees.Tree) -> None:
        """Integer tokens `(batch, time)` of the vocabulary, positions that there are."""
        tokens, mask, positions = _parts(x)
        _check_shapes(tokens, mask, positions)
        if not trees.are_integers(tokens):
            shown = f"{tuple(tokens.shape)} of {tokens.dtype}"
            raise ValueError(f"tokens must be integers of shape (rows, time), got {shown}")
        if not tokens.numel():
            return
        tokens = _embeddable(tokens)
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocabulary:
            raise ValueError(f"tokens must be in 0 … {self.vocabulary - 1}, got {low} … {high}")
        if positions is not None and positions.numel():
            whole = trees.are_integers(positions)
            if self.positions == "learnt" and not whole:
                raise ValueError(f"learnt positions are integers, got {positions.dtype}")
            positions = _embeddable(positions) if whole else positions
            if positions.is_complex() or not positions.isfinite().all():
                raise ValueError("positions must be finite numbers")
            low, high = int(positions.min()), int(positions.max())
            if low < 0 or (self.max_length is not None and high >= self.max_length):
                last = "" if self.max_length is None else f" and below {self.max_length}"
                raise ValueError(f"positions must be at least 0{last}, got {low} … {high}")

    def config(self) -> dict[str, Any]:
        """The arguments that rebuild this generator."""
        return {
            "vocabulary": self.vocabulary,
            "width": self.width,
            "heads": self.heads,
            "out_features": self.out_features,
            "causal": self.causal,
            "positions": self.positions,
            "max_length": self.max_length,
            "expansion": self.expansion,
            "shares_head": self.shares_head,
            "tied": self.tied,
            "dropout": self.dropout,
        }


class Norm(nn.Module):
    """Each token's state over its root mean square, times 1 + γ."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(width))

    def forward(self, input: Tensor) -> Tensor:
        """`(…, width)` → `(…, width)`."""
        return F.rms_norm(input, self.gamma.shape, 1 + self.gamma.to(input.dtype), _EPS)


class Embedding(nn.Module):
    """Vectors of tokens and, where positions are learnt, of positions."""

    def __init__(self, vocabulary: int, width: int, places: int | None):
        super().__init__()
        # With tied heads these are the rows that a normalised state is multiplied with.
        self.tokens = nn.Parameter(torch.randn(vocabulary, width) / math.sqrt(width))
        self.places: nn.Parameter | None = None
        if places is not None:
            self.places = nn.Parameter(torch.randn(places, width) / math.sqrt(width))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """`(batch, time)` → `(batch, time, width)`."""
        state = F.embedding(tokens, self.tokens)
        return state if self.places is None else state + F.embedding(positions, self.places)


class Block(nn.Module):
    """h + attention of its normalisation, then h + perceptron of its normalisation."""

    takes_context = True

    def __init__(self, width: int, heads: int, expansion: int):
        super().__init__()
        self.heads = heads
        self.drop1: nn.Module = nn.Identity()
        self.drop2: nn.Module = nn.Identity()
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.attend = _linear(width, 3 * width)
        self.out = _linear(width, width, zero=True)
        self.up = _linear(width, expansion * width)
        self.down = _linear(expansion * width, width, zero=True)

    def leave_out(self, share: float) -> None:
        """Drop channels of what attention and perceptron add."""
        self.drop1, self.drop2 = ChannelDropout(share, dim=-1), ChannelDropout(share, dim=-1)

    def forward(self, state: Tensor, context: SequenceContext) -> Tensor:
        """`(batch, time, width)` → `(batch, time, width)`."""
        state = state + self.drop1(self.out(self._attention(self.norm1(state), context)))
        return state + self.drop2(self.down(F.gelu(self.up(self.norm2(state)))))

    def _attention(self, state: Tensor, context: SequenceContext) -> Tensor:
        each = self.attend(state).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = each.unbind()  # (batch, head, time, size)
        if context.waves is not None:
            query, key = _turned(query, context.waves), _turned(key, context.waves)
        if context.cache is not None:
            key, value = context.cache.extended(key, value)
        found = F.scaled_dot_product_attention(
            query, key, value, attn_mask=context.sees, is_causal=context.is_causal
        )
        return found.transpose(1, 2).flatten(2)


class FirstBlock(nn.Module):
    """The embedding and the first block."""

    takes_context = True

    def __init__(self, embedding: Embedding, block: Block):
        super().__init__()
        self.embedding, self.block = embedding, block
        self.drop: nn.Module = nn.Identity()

    def leave_out(self, share: float) -> None:
        """Drop channels of the embedding, and those of the block."""
        self.block.leave_out(share)
        self.drop = ChannelDropout(share, dim=-1)

    def forward(self, input: Any, context: SequenceContext) -> Tensor:
        """What the context says of the tokens → `(batch, time, width)`."""
        embedded = self.drop(self.embedding(context.tokens, context.positions))
        state: Tensor = self.block(embedded, context)
        return state


class TokenHead(nn.Module):
    """A normalisation and a linear map."""

    def __init__(self, width: int, outputs: int):
        super().__init__()
        self.norm, self.linear = Norm(width), _linear(width, outputs, zero=True)

    def forward(self, input: Tensor) -> Tensor:
        """`(batch, time, width)` → `(batch, time, outputs)`."""
        found: Tensor = self.linear(self.norm(input))
        return found


class HeadsTogether:
    """Heads of many depths, of which some at a time are run as one product.

    If they are heads of ours to which nothing was done; else one after the other. To be made anew
    for each use: weights are copied.

    Args:
        heads: of each depth.
    """

    def __init__(self, heads: Sequence[nn.Module]):
        self.heads = heads
        self.scales: Tensor | None = None
        own = [head for head in heads if isinstance(head, TokenHead)]
        norms, linears = [head.norm for head in own], [head.linear for head in own]
        plain = len(own) == len(heads) and all_plain(own, TokenHead)
        plain = plain and all_plain(norms, Norm) and all_plain(linears, nn.Linear)
        if plain and len({linear.weight.shape for linear in linears}) == 1:
            self.scales = torch.stack([1 + norm.gamma for norm in norms])[:, None, None]
            self.maps = torch.stack([linear.weight for linear in linears]).mT

    def __call__(self, states: Sequence[Tensor], first: int = 0) -> Tensor:
        """`(batch, time, width)` of consecutive depths → `(depth, batch, time, outputs)`.

        Args:
            states: of the depths.
            first: place among the heads of that of the first state.
        """
        here = slice(first, first + len(states))
        if self.scales is None:
            heads = self.heads[here]
            return torch.stack([head(h) for head, h in zip(heads, states, strict=True)])
        each = torch.stack(list(states))
        normed = F.rms_norm(each, each.shape[-1:], None, _EPS) * self.scales[here].to(each.dtype)
        found = normed.flatten(1, 2) @ self.maps[here].to(each.dtype)
        return found.unflatten(1, each.shape[1:3])


def _linear(inputs: int, outputs: int, *, zero: bool = False) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias=False)
    if zero:
        nn.init.zeros_(linear.weight)
    else:
        nn.init.normal_(linear.weight, std=1 / math.sqrt(inputs))
    return linear


def _parts(x: trees.Tree) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens, mask and positions."""
    if isinstance(x, dict):
        unknown = sorted(set(x) - {"tokens", "mask", "positions"})
        if unknown or "tokens" not in x:
            raise ValueError(f"an input has the parts tokens, mask and positions, got {sorted(x)}")
        return x["tokens"], x.get("mask"), x.get("positions")
    if isinstance(x, tuple):
        if not 1 <= len(x) <= 3:
            raise ValueError(f"an input is (tokens, mask, positions), got {len(x)} parts")
        tokens, mask, positions = (*x, None, None)[:3]
        return tokens, mask, positions
    return x, None, None


def _check_shapes(tokens: Tensor, mask: Tensor | None, positions: Tensor | None) -> None:
    """By shapes alone, so that nothing is read from the device."""
    named = {"tokens": tokens, "the mask": mask, "positions": positions}
    for name, part in named.items():
        if not (isinstance(part, Tensor) or (part is None and name != "tokens")):
            raise ValueError(f"{name} must be a tensor, got {type(part).__name__}")
    if tokens.dim() != 2:
        raise ValueError(f"tokens must have shape (rows, time), got {tuple(tokens.shape)}")
    rows, time = tokens.shape
    if mask is not None and mask.shape not in ((rows, time), (rows, time, time)):
        raise ValueError(
            f"the mask must have shape {(rows, time)} or {(rows, time, time)}, "
            f"got {tuple(mask.shape)}"
        )
    if mask is not None and mask.is_floating_point():
        raise ValueError(f"the mask must be True or False for each token, got {mask.dtype}")
    if positions is not None and positions.shape != (rows, time):
        raise ValueError(f"positions must have shape {(rows, time)}, got {tuple(positions.shape)}")


def _embeddable(numbers: Tensor) -> Tensor:
    """Integers as an embedding takes them: no shorter ones, and none without a sign."""
    return numbers if numbers.dtype in (torch.int64, torch.int32) else numbers.long()


def _waves(positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which pairs of numbers are turned, `(batch, 1, time, size/2)` each."""
    powers = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    angles = positions[:, None, :, None].float() * _BASE**-powers
    return angles.cos(), angles.sin()


def _turned(states: Tensor, waves: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs (i, i + size/2) of queries or keys turned by the angles of their positions."""
    cos, sin = (wave.to(states.dtype) for wave in waves)
    one, other = states.chunk(2, -1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)
