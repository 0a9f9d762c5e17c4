"""Sequences whose needed depth is known or can be argued about, and text as characters.

Tasks are functions of a generator, as a `Stream` takes them: every batch is fresh.
"""

import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from unbounded.data.downloads import DataError
from unbounded.likelihoods.tokens import IGNORED

GROUPS = ("S3", "A5", "Z60")
_LARGEST = 1 << 30  # bytes of a text


@dataclass(frozen=True)
class Hops:
    """k-hop induction (Sanford, Hsu and Telgarsky, 2024) on random letters.

    From each place go back to the last earlier occurrence of its letter and on to the letter
    behind that; do this `hops` times and name the letter where you are. Places from which there is
    no such way do not count. One hop is an induction head, of two layers; each doubling of the
    hops needs a layer more: about 2 + log₂ hops.

    Many hops are hard to learn alone. As theirs, our sequences may be mixed: each begins with a
    token that says how many hops it asks for, one of `asked`.

    Args:
        hops: k.
        length: letters of a sequence.
        letters: how many there are.
        rows: sequences of a batch.
        device: where targets are computed. Inputs are drawn on the host, alike for all devices.
        mixed: whether sequences ask for fewer hops too, and say so first.
    """

    hops: int = 1
    length: int = 64
    letters: int = 8
    rows: int = 64
    device: str = "cpu"
    mixed: bool = False

    def __post_init__(self) -> None:
        _check_sizes(self, hops=1, length=2, letters=2, rows=1)

    @property
    def asked(self) -> tuple[int, ...]:
        """How many hops sequences ask for: k and, where they are mixed, powers of two below it."""
        fewer = range((self.hops - 1).bit_length() if self.mixed else 0)
        return (*(1 << power for power in fewer), self.hops)

    @property
    def vocabulary(self) -> int:
        """Of inputs and targets: the letters and, where sequences are mixed, what they ask for."""
        return self.letters + (len(self.asked) if self.mixed else 0)

    @property
    def time(self) -> int:
        """Tokens of a sequence."""
        return self.length + self.mixed

    @property
    def needed(self) -> int:
        """The depth that is enough: 2 + ⌊log₂ k⌋."""
        return 1 + self.hops.bit_length()

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens and targets, `(rows, time)` each."""
        return self._drawn(generator, len(self.asked))

    def hardest(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The same, where all sequences ask for k hops."""
        return self._drawn(generator, 1)

    def _drawn(self, generator: torch.Generator, last: int) -> tuple[Tensor, Tensor]:
        """Sequences that ask for one of so many numbers of hops, the greatest ones."""
        x = torch.randint(self.letters, (self.rows, self.length), generator=generator)
        if self.mixed:
            asks = len(self.asked) - 1 - torch.randint(last, (self.rows, 1), generator=generator)
            x = torch.cat([self.letters + asks, x], 1)
        x = x.to(self.device, non_blocking=True)
        return x, self.targets(x)

    def targets(self, x: Tensor) -> Tensor:
        """The letter behind as many hops as a sequence asks for, −100 where there is none."""
        asks, x = x[:, : self.mixed] - self.letters, x[:, self.mixed :]
        places = torch.arange(x.shape[1], device=x.device)
        earlier = (x[:, :, None] == x[:, None, :]) & (places[None, :] < places[:, None])
        # The place behind the last occurrence; 0 stands for none, since it is behind no place.
        once = ((places + 1) * earlier).amax(-1)
        at, found = once, torch.zeros_like(once)
        for hops in range(1, self.hops + 1):
            if hops > 1:
                at = torch.where(at > 0, once.gather(1, at), 0)
            if not self.mixed:
                found = at
            elif hops in self.asked:
                found = torch.where(asks == self.asked.index(hops), at, found)
        found = torch.where(found > 0, x.gather(1, found), IGNORED)
        return F.pad(found, (int(self.mixed), 0), value=IGNORED)


@dataclass(frozen=True)
class WordProblem:
    """The word problem of a group: after each element, the product of all so far.

    S₃ has 6 elements and is solvable; A₅ has 60 and is not, so its products cannot be had by a
    network of constant depth (unless two classes of circuits fall together); Z₆₀ has 60 as well
    and is as easy as counting.

    Args:
        group: "S3", "A5" or "Z60".
        length: elements of a sequence.
        rows: sequences of a batch.
        device: where targets are computed.
    """

    group: str = "A5"
    length: int = 16
    rows: int = 64
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"group must be one of {GROUPS}, got {self.group!r}")
        _check_sizes(self, length=1, rows=1)

    @property
    def time(self) -> int:
        """Tokens of a sequence."""
        return self.length

    @property
    def vocabulary(self) -> int:
        """Of inputs and targets: the elements."""
        return len(table(self.group))

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Elements and their products so far, `(rows, length)` each."""
        x = torch.randint(self.vocabulary, (self.rows, self.length), generator=generator)
        x = x.to(self.device, non_blocking=True)
        return x, self.targets(x)

    def targets(self, x: Tensor) -> Tensor:
        """x_1, x_1·x_2, …"""
        products = table(self.group, x.device)
        found = [x[:, 0]]
        for place in range(1, x.shape[1]):
            found.append(products[found[-1], x[:, place]])
        return torch.stack(found, 1)


@cache
def table(group: str, device: torch.device = torch.device("cpu")) -> Tensor:  # noqa: B008
    """a, b ↦ a·b of a group's elements by number, `(elements, elements)`."""
    if device.type != "cpu":
        return table(group).to(device)
    if group == "Z60":
        numbers = torch.arange(60)
        return (numbers[:, None] + numbers) % 60
    size = int(group[1:])
    found = [p for p in itertools.permutations(range(size)) if group[0] == "S" or _is_even(p)]
    number = {p: index for index, p in enumerate(found)}
    return torch.tensor([[number[tuple(a[i] for i in b)] for b in found] for a in found])


def _is_even(permutation: tuple[int, ...]) -> bool:
    pairs = itertools.combinations(permutation, 2)
    return sum(a > b for a, b in pairs) % 2 == 0


@dataclass(frozen=True)
class Text:
    """A text as characters.

    Attributes:
        tokens: the number of each character, `(characters,)`.
        alphabet: the characters by number.
    """

    tokens: Tensor
    alphabet: str

    @classmethod
    def of(cls, text: str) -> "Text":
        """Of a text, with the characters that are in it."""
        alphabet = "".join(sorted(set(text)))
        if len(alphabet) < 2:
            raise DataError(f"a text needs at least two different characters, has {alphabet!r}")
        places = {character: number for number, character in enumerate(alphabet)}
        return cls(torch.tensor([places[character] for character in text]), alphabet)

    @classmethod
    def read(cls, path: str | Path) -> "Text":
        """Of a file in UTF-8; lines end with a line feed, whatever they end with there."""
        path = Path(path)
        try:
            if path.stat().st_size > _LARGEST:
                raise DataError(f"{path} is larger than {_LARGEST >> 20} MiB")
            return cls.of(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is no text in UTF-8: {error}") from None
        except OSError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read: {error.strerror}") from None

    def encode(self, text: str) -> Tensor:
        """The numbers of characters, `(characters,)`; a ValueError names one that is unknown."""
        unknown = sorted(set(text) - set(self.alphabet))
        if unknown:
            raise ValueError(f"the character {unknown[0]!r} is not in the alphabet of the text")
        return torch.tensor([self.alphabet.index(character) for character in text])

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens `(characters,)`."""
        return "".join(self.alphabet[number] for number in tokens.tolist())


@dataclass(frozen=True)
class RandomWindows:
    """Pieces of a text from random places, each token with the one behind it as its target.

    They are not fresh: places come again, if not the same pieces. Depth rules need held-out rows.

    Args:
        tokens: of the text, on the device where the pieces are to be, `(characters,)`.
        length: tokens of a piece.
        rows: pieces of a batch.
    """

    tokens: Tensor
    length: int = 128
    rows: int = 64

    def __post_init__(self) -> None:
        _check_sizes(self, length=1, rows=1)
        if len(self.tokens) <= self.length:
            raise ValueError(
                f"there are {len(self.tokens)} tokens, a window of {self.length} needs one more"
            )

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens and targets, `(rows, length)` each."""
        starts = torch.randint(
            len(self.tokens) - self.length, (self.rows, 1), generator=generator
        ).to(self.tokens.device, non_blocking=True)
        places = starts + torch.arange(self.length + 1, device=self.tokens.device)
        found = self.tokens[places]
        return found[:, :-1], found[:, 1:]


def windows(tokens: Tensor, length: int, most: int | None = None) -> tuple[Tensor, Tensor]:
    """A text in pieces, each token with the one behind it as its target: `(rows, length)` each.

    Pieces do not overlap, and what is left at the end is left out.

    Args:
        tokens: of the text, `(characters,)`.
        length: tokens of a piece.
        most: pieces at most, from all over the text; None for all.
    """
    rows = (len(tokens) - 1) // length
    if rows < 1:
        raise ValueError(f"there are {len(tokens)} tokens, a window of {length} needs one more")
    x = tokens[: rows * length].view(rows, length)
    y = tokens[1 : rows * length + 1].view(rows, length)
    if most is None or most >= rows:
        return x, y
    chosen = torch.linspace(0, rows - 1, most).round().long()
    return x[chosen], y[chosen]


def _check_sizes(task: object, **least: int) -> None:
    for name, low in least.items():
        value = getattr(task, name)
        if isinstance(value, bool) or int(value) != value or value < low:
            raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
