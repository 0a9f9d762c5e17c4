"""Words of texts that hardly repeat: which there are, and which tell of the target."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import rankdata

from unbounded.tables.encoder import Coded, Encoder, Response, weights_of
from unbounded.tables.text import count_of
from unbounded.tables.values import Floats
from unbounded.tables.weighted import Codes, counts_of

MAX_WORDS = 40
"""Words of a column that the model sees, at most."""
_WORD = re.compile(r"[^\W_]+")
_LONGEST = 40  # letters of a word: longer ones are codes
_LEAST_ROWS, _LEAST_SHARE = 5, 0.01  # with a word that could tell something
_MOST_SHARE = 0.95  # of the rows: a word that nearly all have tells nothing
_TINY = 1e-300
_TRACKED = 200_000  # words that are counted


def words_of(text: str) -> frozenset[str]:
    """The words of a text, without case: runs of letters and digits."""
    return frozenset(word for word in _WORD.findall(text.lower()) if len(word) <= _LONGEST)


class Count:
    """In how many rows each word is, gathered chunk by chunk in bounded memory."""

    def __init__(self) -> None:
        self.rows = 0
        self.words: Counter[str] = Counter()

    def add(self, texts: Mapping[str, int]) -> None:
        """Take in texts, and how often each is there."""
        for text, count in texts.items():
            self.rows += count
            for word in words_of(text):
                self.words[word] += count
        if len(self.words) > _TRACKED:  # what has been rare so far is forgotten
            self.words = Counter(dict(self.words.most_common(_TRACKED // 2)))

    @property
    def repeats(self) -> bool:
        """Whether some word is in enough of the rows, and not in nearly all."""
        low, high = _bounds(self.rows)
        return any(low <= count <= high for count in self.words.values())


def telling(
    codes: Codes, texts: Sequence[str], response: Floats | None, weights: Floats | None
) -> list[str]:
    """The words that tell of the target, those that tell most first; at most `MAX_WORDS`.

    Let r be a response, by its ranks and standardised over the rows with a text, ω the rows'
    weights, and S the sum of ωr over the n rows of N that have a word. If the word told nothing,
    S would have mean 0 and the variance V = n (1 − n/N) times the mean of (ωr)². By Bennett's
    inequality it would be above t with a probability of at most exp(−V/M² h(Mt/V)), where M is
    the largest ωr and h(u) = (1 + u) ln(1 + u) − u; and below −t likewise. A word is kept if, for
    some response, the exponent is above ln(KR), of K words and R responses that are looked at.
    Ranks, and M, are for targets and weights with a few that are far from the rest, and for rare
    classes.

    Args:
        codes: the number of each row's text, `(rows,)`; −1 is none.
        texts: by number.
        response: `(rows, means)`, as `standardized_response` has it; None: the most frequent words.
        weights: how often each row counts, `(rows,)`; None for once.
    """
    there = codes >= 0
    codes = codes[there]
    counts = counts_of(codes, None if weights is None else weights[there], len(texts))
    words, matrix = _incidence(texts)
    in_rows = matrix.T @ counts.astype(np.float64)
    rows = float(counts.sum())
    low, high = _bounds(rows)
    chosen = np.flatnonzero((in_rows >= low) & (in_rows <= high))
    strength = in_rows[chosen]
    if response is not None and len(chosen):
        own = np.ones(len(codes)) if weights is None else weights[there].astype(np.float64)
        own = own / own.mean()
        r = rankdata(response[there], axis=0)
        r -= own @ r / own.sum()
        r /= np.maximum(np.sqrt(own @ r**2 / own.sum()), _TINY)
        r *= own[:, None]
        columns = [*r.T, np.ones(len(r))]
        by_text = np.stack([np.bincount(codes, column, len(texts)) for column in columns], 1)
        by_word = matrix.T[chosen] @ by_text
        total, n = by_word[:, :-1], by_word[:, -1:]
        variance = n * (1 - n / len(r)) * (r**2).mean(0)
        most = np.where(total > 0, r.max(0), -r.min(0))
        strength = _bennett(np.abs(total), np.maximum(variance, _TINY), most).max(1)
        enough = strength > math.log(len(chosen) * r.shape[1])
        chosen, strength = chosen[enough], strength[enough]
    order = np.lexsort((chosen, -strength))[:MAX_WORDS]
    return [words[place] for place in chosen[order]]


def _bennett(t: Floats, variance: Floats, most: Floats) -> Floats:
    """V/M² h(Mt/V), see `telling`; 0 where t is, whatever M is."""
    most = np.where(t > 0, most, 1.0)
    u = most * t / variance
    found: Floats = variance / most**2 * ((1 + u) * np.log1p(u) - u)
    return found


def has_words(texts: Iterable[str], words: Sequence[str]) -> Floats:
    """1 where a text has a word, 0 elsewhere: `(texts, words)`."""
    place = {word: at for at, word in enumerate(words)}
    texts = list(texts)
    found = np.zeros((len(texts), len(words)))
    for row, text in enumerate(texts):
        found[row, [place[word] for word in words_of(text) if word in place]] = 1
    return found


def _bounds(rows: float) -> tuple[float, float]:
    """In how many of the rows a word has to be, and may be."""
    return max(_LEAST_ROWS, _LEAST_SHARE * rows), _MOST_SHARE * rows


def _incidence(texts: Sequence[str]) -> tuple[list[str], sparse.csr_matrix]:
    """All words, sorted, and which text has which: `(texts, words)`."""
    number: dict[str, int] = {}
    columns, ends = array("q"), array("q", [0])
    for text in texts:
        columns.extend(number.setdefault(word, len(number)) for word in words_of(text))
        ends.append(len(columns))
    words = sorted(number)
    place = np.empty(len(number), np.int64)
    place[[number[word] for word in words]] = np.arange(len(number))
    found = place[np.frombuffer(columns, np.int64)] if columns else np.zeros(0, np.int64)
    ones = np.ones(len(columns), np.float32)
    shape = len(texts), len(words)
    return words, sparse.csr_matrix((ones, found, np.frombuffer(ends, np.int64)), shape)


@dataclass
class WordsEncoder(Encoder):
    """Of texts that hardly repeat, whether they have each of the words that tell of the target."""

    kind: ClassVar[str] = "words"
    words: list[str]  # those that tell most first
    missing: bool

    @classmethod
    def fit(cls, values: Coded, response: Response | None = None) -> "WordsEncoder":
        """From the training rows: there may be no such word."""
        codes, texts = values
        told = None if response is None else response.values
        words = telling(codes, texts, told, weights_of(response))
        return cls(words, bool((codes < 0).any()))

    def parts(self) -> dict[str, list[str]]:
        """The words, and missing texts."""
        parts = {count_of(len(self.words), "word"): [f" has {word!r}" for word in self.words]}
        return parts | ({"missing": [" (missing)"]} if self.missing else {})

    def transform(self, values: Coded) -> NDArray[np.float32]:
        """Texts as codes `(rows,)` → `(rows, width)`."""
        # One row for each text of the chunk, and a last one for missing values (code −1).
        table = has_words([*values.levels, ""], self.words)
        if self.missing:
            table = np.concatenate([table, np.zeros((len(table), 1))], 1)
            table[-1, -1] = 1
        return table.astype(np.float32)[values.codes]
