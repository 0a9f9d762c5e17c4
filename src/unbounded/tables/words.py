"""Words of texts that hardly repeat: which there are, and which tell of the target."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

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
_CERTAINTY = 4.0  # see `telling`


def words_of(text: str) -> frozenset[str]:
    """The words of a text, without case: runs of letters and digits."""
    return frozenset(word for word in _WORD.findall(text.lower()) if len(word) <= _LONGEST)


def repeat(texts: Mapping[str, int]) -> bool:
    """Whether some word is in enough of the texts, and not in nearly all.

    Args:
        texts: how often each is there.
    """
    rows = sum(texts.values())
    counts: Counter[str] = Counter()
    for text, count in texts.items():
        for word in words_of(text):
            counts[word] += count
    low, high = _bounds(rows)
    return any(low <= count <= high for count in counts.values())


def telling(
    codes: Codes, texts: Sequence[str], response: Floats | None, weights: Floats | None
) -> list[str]:
    """The words that tell of the target, those that tell most first; at most `MAX_WORDS`.

    Of n rows a word is in n_w. If it told nothing of a response r, which has mean 0 and deviation
    1, the sum of r over its rows would have mean 0 and variance n_w (1 − n_w/n). A word is kept
    if some response is further from that than √(2 ln K + 4) deviations: of K words that tell
    nothing the furthest is at about √(2 ln K).

    Args:
        codes: the number of each row's text, `(rows,)`; −1 is none.
        texts: by number.
        response: `(rows, means)`, as `standardized_response` has it; None: the most frequent words.
        weights: how often each row counts, `(rows,)`; None for once.
    """
    there = codes >= 0
    counts = counts_of(codes, weights, len(texts)).astype(np.float64)
    words, matrix = _incidence(texts)
    in_rows = matrix.T @ counts
    rows = float(counts.sum())
    low, high = _bounds(rows)
    chosen = np.flatnonzero((in_rows >= low) & (in_rows <= high))
    strength = in_rows[chosen]
    if response is not None and len(chosen):
        weighted = response if weights is None else response * weights[:, None]
        sums = [np.bincount(codes[there], r, len(texts)) for r in weighted[there].T]
        deviation = np.sqrt(in_rows[chosen] * (1 - in_rows[chosen] / rows))
        scores = np.abs(matrix.T[chosen] @ np.stack(sums, 1)) / deviation[:, None]
        strength = scores.max(1)
        enough = strength > math.sqrt(2 * math.log(len(chosen)) + _CERTAINTY)
        chosen, strength = chosen[enough], strength[enough]
    order = np.lexsort((chosen, -strength))[:MAX_WORDS]
    return [words[place] for place in chosen[order]]


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
    each = [words_of(text) for text in texts]
    words = sorted(set().union(*each))
    place = {word: at for at, word in enumerate(words)}
    columns = [place[word] for found in each for word in found]
    ends = np.cumsum([0, *(len(found) for found in each)])
    ones = np.ones(len(columns))
    return words, sparse.csr_matrix((ones, columns, ends), (len(texts), len(words)))


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
