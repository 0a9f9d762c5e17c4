"""The one recipe of the sequence study: its problems, its networks, and how all of them train.

Fixed depths and UDNs have the same blocks, rates, batches and number of tokens. What differs is
q(ℓ) alone.
"""

import argparse
import hashlib
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unbounded.data.sequences import GROUPS, Hops, Text, WordProblem
from unbounded.depth import FixedDepth, TruncatedNormal
from unbounded.experiments import StudyError, listed, whole_numbers
from unbounded.layers import TransformerLayers
from unbounded.likelihoods import Tokens
from unbounded.model import UDN
from unbounded.training import PRESETS, HeldOutAscent
from unbounded.training.presets import cosine

PRESET = PRESETS["settled"]
TASKS = ("hops", "words", "text")
_FLOOR = 10.0  # nats that a block must gain on `most` tokens


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on.

    Attributes:
        tasks: which of hops, words and text.
        hops: k of the induction tasks.
        groups: of the word problems.
        lengths: of the word problems.
        depths: the fixed ones.
        text_depths: those of a text.
        seeds: of data and weights.
        width: of hidden states.
        heads: of attention.
        hop_length: letters of an induction sequence.
        letters: how many there are.
        mixed: whether induction is learnt with fewer hops as well, and asked for k alone.
        rows: sequences of a batch.
        word_rows: of a batch of word problems, which are short.
        steps: batches of induction that each network is trained on.
        word_steps: batches of word problems.
        looks: epochs that they are divided into: how often a UDN may move its depth.
        lr: the highest learning rate, from which it falls along half a cosine.
        average: decay a step of the moving average of all parameters.
        most: tokens of a look that the depth rule counts, at most. The ten nats that a layer
            must gain are 10/most nats a token.
        text_most: the same for held-out characters of a text, where small gains count.
        text_reference: place and spread that q(ℓ) starts from on a text; elsewhere it starts
            from the layers' own.
        text_narrowest: the smallest spread of q(ℓ) on a text. Heads of several depths stay good
            enough for tokens to leave early by them.
        test_rows: fresh sequences that the result is measured on; of text so many windows at
            most, and as many to follow the training by.
        text_dropout: the share of channels that training on text leaves out: it is short, and
            networks learn it by heart. Made tasks never repeat.
        text_length: characters of a window.
        text_rows: windows of a batch.
        text_steps: batches on text.
        text_stretches: of a text, at most; each gives its end to validation and test.
        text_shares: parts of the training text, for E[ℓ] against the size of the data.
        equal: other fixed depths on the whole text, as wide as to have the parameters of
        equal_to: blocks of the usual width.
    """

    tasks: tuple[str, ...] = TASKS
    hops: tuple[int, ...] = (1, 2, 4, 8, 16)
    groups: tuple[str, ...] = GROUPS
    lengths: tuple[int, ...] = (8, 16)
    depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    text_depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    seeds: tuple[int, ...] = (0, 1)
    width: int = 128
    heads: int = 4
    hop_length: int = 64
    letters: int = 4
    mixed: bool = True
    rows: int = 64
    word_rows: int = 256
    steps: int = 6000
    word_steps: int = 3000
    looks: int = 100
    lr: float = 0.002
    average: float = 0.99
    most: int = 1024
    text_most: int = 1024
    text_reference: tuple[float, float] = (6.0, 3.0)
    text_narrowest: float = 1.5
    test_rows: int = 1024
    text_dropout: float = 0.1
    text_length: int = 128
    text_rows: int = 64
    text_steps: int = 2500
    text_stretches: int = 20
    text_shares: tuple[float, ...] = (0.1, 0.3, 1.0)
    equal: tuple[int, ...] = (2, 3, 4, 8, 12)
    equal_to: int = 6


QUICK = Settings(
    hops=(1,),
    groups=("S3",),
    lengths=(6,),
    depths=(1, 2, 4),
    text_depths=(1, 2, 4),
    seeds=(0,),
    width=32,
    heads=2,
    hop_length=16,
    rows=32,
    word_rows=32,
    steps=120,
    word_steps=120,
    looks=12,
    lr=0.003,
    average=0.9,
    test_rows=64,
    text_length=32,
    text_rows=32,
    text_steps=60,
    text_shares=(0.1, 1.0),
    equal=(2,),
    equal_to=4,
)
PUBLISHED = {1: 2, 2: 2, 3: 3, 4: 3, 5: 4, 6: 4, 7: 4, 8: 4, 16: 5}
"""k ↦ the least depth that Sanford, Hsu and Telgarsky (2024) found to learn k hops."""


@dataclass(frozen=True)
class Problem:
    """Something to learn.

    Attributes:
        name: of the files.
        about: in words.
        task: "hops", "words" or "text".
        number: k, the length, or the share of the text.
        group: of a word problem.
        needed: the depth that theory says is enough, if it says anything.
        published: the least depth that others found to be enough.
    """

    name: str
    about: str
    task: str
    number: float
    group: str = ""
    needed: int | None = None
    published: int | None = None


@dataclass(frozen=True)
class Run:
    """One network."""

    problem: Problem
    depth: int | None  # of a fixed one; None infers it
    seed: int
    width: int | None = None  # if it is not the usual one

    @property
    def model(self) -> str:
        """What is compared: "udn", "fixed" or, at equal parameters, "equal"."""
        if self.depth is None:
            return "udn"
        return "fixed" if self.width is None else "equal"

    @property
    def name(self) -> str:
        """Of its file."""
        model = "udn" if self.depth is None else f"depth{self.depth}"
        model += "" if self.width is None else f"x{self.width}"
        return f"{self.problem.name}-{model}-{self.seed}"


def problems(settings: Settings) -> list[Problem]:
    """Those of the tasks."""
    found = []
    if "hops" in settings.tasks:
        for k in settings.hops:
            about, needed = f"{k}-hop induction, {settings.hop_length} letters", Hops(k).needed
            found.append(
                Problem(f"hop-{k}", about, "hops", k, needed=needed, published=PUBLISHED.get(k))
            )
    if "words" in settings.tasks:
        for group in settings.groups:
            for length in settings.lengths:
                about = f"word problem of {group}, {length} elements"
                found.append(Problem(f"word-{group}-{length}", about, "words", length, group))
    if "text" in settings.tasks:
        for share in settings.text_shares:
            about = f"characters of a text, {share:.4g} of it"
            found.append(Problem(f"text-{share:g}", about, "text", share))
    return found


def plan(settings: Settings) -> list[Run]:
    """All networks, what matters most first: time may end early.

    Of text fixed depths are trained on the whole of it alone.
    """
    whole, found = max(settings.text_shares), list[Run]()
    for seed in settings.seeds:
        for problem in problems(settings):
            is_text = problem.task == "text"
            found.append(Run(problem, None, seed))
            if is_text and problem.number < whole:
                continue
            depths = settings.text_depths if is_text else settings.depths
            found += [Run(problem, depth, seed) for depth in depths]
            if is_text:
                widths = {depth: equal_width(depth, settings) for depth in settings.equal}
                found += [Run(problem, depth, seed, width) for depth, width in widths.items()]
    return sorted(found, key=partial(_rank, first=settings.seeds[0]))


def _rank(run: Run, first: int) -> tuple[float, ...]:
    """UDNs, of text all of them; fixed depths of the first seed; the text again; other seeds.

    Seeds differ most on text.
    """
    problem, is_first, model = run.problem, run.seed == first, run.model
    is_text, is_words = problem.task == "text", problem.task == "words"
    task = ("text", "hops", "words").index(problem.task)
    stage = 4
    if is_first:
        stage = {"udn": 0, "fixed": 3 if is_words else 1, "equal": 3}[model]
    elif is_text and model != "equal":
        stage = 0 if model == "udn" else 2
    # Of other seeds, UDNs before the rest; else what needs more depth than there is comes last.
    late = model != "udn" if stage == 4 else problem.task == "hops" and problem.number > 8
    return (stage, late, task, -problem.number if is_text else 0)


def equal_width(depth: int, settings: Settings) -> int:
    """The width at which so many blocks have about the parameters of `equal_to` usual ones."""
    unit = 2 * settings.heads
    return max(1, round(settings.width * math.sqrt(settings.equal_to / depth) / unit)) * unit


def task_of(
    problem: Problem, settings: Settings, rows: int, device: str = "cpu"
) -> Hops | WordProblem:
    """What makes the sequences of a problem that is made."""
    if problem.task == "hops":
        k, mixed = int(problem.number), settings.mixed
        return Hops(k, settings.hop_length, settings.letters, rows, device, mixed)
    return WordProblem(problem.group, int(problem.number), rows, device)


def build(run: Run, vocabulary: int, settings: Settings) -> UDN:
    """The network before training."""
    is_text = run.problem.task == "text"
    width = settings.width if run.width is None else run.width
    dropout = settings.text_dropout if is_text else 0.0
    layers = TransformerLayers(vocabulary, width, heads=settings.heads, dropout=dropout)
    likelihood = Tokens(vocabulary, score="bits_per_character" if is_text else "accuracy")
    start = settings.text_reference if is_text else layers.reference
    family = TruncatedNormal(*start) if run.depth is None else FixedDepth(run.depth)
    return UDN(layers, likelihood, family, seed=run.seed)


def fitting(run: Run, epochs: int, settings: Settings) -> dict[str, Any]:
    """How to `fit` a run."""
    found: dict[str, Any] = {
        "epochs": epochs,
        "lr": settings.lr,
        "schedule": Fall(epochs),
        "average": settings.average,
        "clip": PRESET.clip,
        "select": "log_score",
    }
    if run.depth is None:
        found["depth_rule"] = (
            HeldOutAscent(
                reference=settings.text_reference,
                floor=_FLOOR,
                narrowest=settings.text_narrowest,
                most=settings.text_most,
            )
            if run.problem.task == "text"
            else HeldOutAscent(floor=_FLOOR, most=settings.most)
        )
    return found


OLD = {
    "bf16": False,
    "text_reference": [3.0, 2.0],
    "text_narrowest": 0.5,
    "text_dropout": 0.0,
    "text_stretches": 1,
}
"""Settings that files of earlier versions do not name."""
_MATTERS = {
    "all": ["width", "heads", "looks", "lr", "average", "test_rows", "bf16"],
    "hops": ["hop_length", "letters", "mixed", "rows", "steps"],
    "words": ["word_rows", "word_steps"],
    "text": ["text_length", "text_rows", "text_steps", "text_dropout", "text_stretches", "text"],
}
_OF_DEPTH = {
    "hops": ["most"],
    "words": ["most"],
    "text": ["text_most", "text_reference", "text_narrowest"],
}


def matters(task: str, model: str) -> list[str]:
    """Names of the settings that the numbers of a network depend on, besides what it is called.

    Args:
        task: "hops", "words" or "text".
        model: "udn", "fixed" or "equal".
    """
    return _MATTERS["all"] + _MATTERS[task] + (_OF_DEPTH[task] if model == "udn" else [])


@dataclass(frozen=True)
class Fall:
    """Epoch ↦ factor of the rate: up in the first twentieth, then down along half a cosine."""

    epochs: int

    def __call__(self, epoch: int) -> float:
        """At the middle of the epoch."""
        return cosine((epoch + 0.5) / self.epochs)


def text_parts(text: Text, share: float, length: int, stretches: int) -> dict[str, torch.Tensor]:
    """Training, validation and test characters, each from all over the text.

    The text is cut into stretches. The last tenth of each is held out, half of it for validation
    and half for the test. Of the rest a share at its end is trained on. A text's end alone would
    not do for its whole: plays, chapters and persons differ more than networks.

    Args:
        text: all of it.
        share: of the training characters to be trained on; ten windows at least.
        length: characters of a window. Stretches have 40 of them at least, if the text has.
        stretches: how many, at most.
    """
    total = len(text.tokens)
    count = max(1, min(stretches, total // (40 * length)))
    found: dict[str, list[torch.Tensor]] = {"train": [], "validation": [], "test": []}
    for stretch in text.tokens.tensor_split(count):
        held = max(4 * length, len(stretch) // 10)
        free = len(stretch) - held
        if free < 10 * length + 1:
            raise StudyError(
                f"the text has {total} characters, too few for windows of {length}: "
                "give a longer one"
            )
        kept = max(-(-(10 * length + 1) // count), math.ceil(share * free))
        found["train"].append(stretch[free - kept : free])
        found["validation"].append(stretch[free : free + held // 2])
        found["test"].append(stretch[free + held // 2 :])
    return {name: torch.cat(pieces) for name, pieces in found.items()}


def digest(text: Text | None) -> str | None:
    """Tells one text from another."""
    if text is None:
        return None
    return hashlib.sha256(text.tokens.numpy().tobytes() + text.alphabet.encode()).hexdigest()[:16]


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for, checked."""
    usual = QUICK if options.quick else Settings()
    changes: dict[str, Any] = {}
    for name in ("hops", "lengths", "depths", "text_depths", "seeds", "equal"):
        words = getattr(options, name)
        if words is not None:
            changes[name] = whole_numbers(
                name.replace("_", "-"), words, 0 if name == "seeds" else 1
            )
    for name, known in (("tasks", TASKS), ("groups", GROUPS)):
        words = getattr(options, name)
        if words is not None:
            chosen = listed(" ".join(words))
            unknown = [word for word in chosen if word not in known]
            if unknown or not chosen:
                raise StudyError(f"--{name} must be among {', '.join(known)}, got {words}")
            changes[name] = tuple(chosen)
    least = {"width": 1, "heads": 1, "steps": 1, "word_steps": 1, "text_steps": 1, "rows": 1}
    least |= {"equal_to": 1, "looks": 1, "most": 1, "text_most": 1, "text_stretches": 1}
    for name, low in {**least, "hop_length": 2, "letters": 2}.items():
        value = getattr(options, name)
        if value is not None:
            if value < low:
                raise StudyError(f"--{name.replace('_', '-')} must be at least {low}, got {value}")
            changes[name] = value
    if options.lr is not None:
        if not 0 < options.lr < 1:
            raise StudyError(f"--lr must be between 0 and 1, got {options.lr:g}")
        changes["lr"] = options.lr
    if options.text_dropout is not None:
        if not 0 <= options.text_dropout < 1:
            raise StudyError(
                f"--text-dropout must be at least 0 and below 1, got {options.text_dropout:g}"
            )
        changes["text_dropout"] = options.text_dropout
    if options.text_reference is not None:
        try:
            changes["text_reference"] = TruncatedNormal.checked(*options.text_reference)
        except ValueError as error:
            raise StudyError(f"--text-reference: {error}") from None
    if options.text_narrowest is not None:
        if not 0.01 <= options.text_narrowest < math.inf:
            raise StudyError(
                f"--text-narrowest must be at least 0.01, got {options.text_narrowest:g}"
            )
        changes["text_narrowest"] = options.text_narrowest
    settings = replace(usual, **changes)
    if settings.width % (2 * settings.heads):
        raise StudyError(f"--width must be a multiple of twice --heads, {2 * settings.heads}")
    length, letters = settings.hop_length, settings.letters
    if "hops" in settings.tasks and settings.rows * length**2 < 40 * letters:
        few = f"sequences of {length} letters out of {letters} hardly repeat any"
        raise StudyError(f"{few}: take a longer --hop-length, more --rows or fewer --letters")
    return replace(settings, looks=min(settings.looks, settings.steps))


def text_file(given: Path | None, folder: str | None) -> Path | None:
    """The file of the text: as given, else the file or the folder's text.txt that is named.

    Args:
        given: by an option, a file.
        folder: by the environment, a file or a folder.
    """
    if given is not None:
        if given.is_dir():
            given = given / "text.txt"
        if not given.is_file():
            raise StudyError(f"--data: there is no text file {given}")
        return given
    if not folder:
        return None
    path = Path(folder)
    path = path / "text.txt" if path.is_dir() else path
    return path if path.is_file() else None
