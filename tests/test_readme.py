"""README and docs: their code runs, their links lead somewhere, their names and commands exist."""

import contextlib
import functools
import importlib
import importlib.util
import itertools
import pkgutil
import re
import shlex
import types
from pathlib import Path

import numpy as np
import pytest

import unbounded as ub
from unbounded.cli.common import CommandError
from unbounded.cli.program import Parser, build_parser
from unbounded.data import cifar10, uci
from unbounded.data.images import Images
from unbounded.experiments import STUDIES
from unbounded.experiments.cifar10 import overview, published
from unbounded.experiments.cifar10.results import spread_of
from unbounded.experiments.pages import plus_minus

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY"))]
TEXTS += [ROOT / "results" / "README.md"]
CHANGES = ROOT / "CHANGES.md"  # its names are those of their time
FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```", re.S | re.M)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def listed(words):
    return words.split()


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, *kinds):
    """The fenced blocks whose first word is one of these."""
    found = FENCED.findall(page.read_text())
    return [code for kind, code in found if kind.split()[:1] and kind.split()[0] in kinds]


def python_of(page):
    """Code as a reader would paste it; the options of a notebook's cell are none of it."""
    cells = blocks(page, "python", "{code-cell}")
    return [re.sub(r"\A(:\w+:.*\n)+", "", cell) for cell in cells]


# Code


def few_images(*_):
    """Something of CIFAR-10's kind, small."""
    x = np.random.default_rng(0).integers(256, size=(32, 16, 16, 3), dtype=np.uint8)
    part = Images(x, np.arange(32) % 10, cifar10.CLASSES)
    return cifar10.CIFAR10(part, part)


def few_yachts(name):
    masks = np.zeros((1, 8), dtype=bool)
    return uci.UCISet(name, np.zeros((8, 6)), np.zeros(8), masks, masks, "")


def test_python_blocks_of_the_readme_run(tmp_path, monkeypatch, capsys):
    """In order and in one namespace. The first one does what the text around it says."""
    monkeypatch.chdir(tmp_path)
    code = python_of(README)
    assert len(code) >= 2
    assert len(README.read_text().splitlines()) <= 140  # what is longer goes to docs
    assert len(code[0].strip().splitlines()) <= 15
    namespace: dict[str, object] = {}
    exec(compile(code[0], "README, first block", "exec"), namespace)
    printed = capsys.readouterr().out
    probs = [float(p) for p in re.findall(r"q\(\d+\) = ([\d.]+)", printed)]
    assert len(probs) >= 4
    assert sum(probs) == pytest.approx(1, abs=0.01)
    assert float(re.search(r"accuracy ([\d.]+)", printed)[1]) > 0.95
    for index, block in enumerate(code[1:], start=2):
        exec(compile(block, f"README, block {index}", "exec"), namespace)


ROWS = """
import numpy as np
import torch
import unbounded as ub

x, y = torch.randn(512, 2), torch.arange(512) % 2
xv, yv = x[:64], y[:64]
model = ub.UDN(ub.Dense(2, 8, 2), ub.Categorical(2), ub.FixedDepth(2))
"""
TABLES = """
import numpy as np
import pandas as pd
from pathlib import Path

values = np.random.default_rng(0).normal(size=(200, 3))
frame = pd.DataFrame(values, columns=["rooms", "area", "price"])
frame.to_csv("train.csv", index=False)
frame.to_csv("new.csv", index=False)
"""
DISK = """
Path("visits").mkdir()
frame.astype("float32").to_parquet("visits/1.parquet", row_group_size=50)
np.save("x.npy", x.numpy())
np.save("y.npy", y.numpy())
"""
TOKENS = """
import torch
import unbounded as ub

vocabulary, prompt = 5, torch.zeros(1, 3, dtype=torch.long)
x = y = torch.randint(5, (256, 6))
x_val, y_val = x[:16], y[:16]


def draw(generator):
    return x[:16], y[:16]
"""
# What a page takes for granted.
BEFORE = {
    "docs/checkpoints.md": ROWS,
    "docs/scaling.md": ROWS + TABLES + DISK,
    "docs/sequences.md": TOKENS,
    "docs/start.md": TABLES,
}
# For time's sake; besides, all numbers of epochs become 1.
INSTEAD = {
    "docs/images.md": {"epochs=50": "epochs=1, batch_size=16", "rate=20.0": "rate=2.0"},
    "docs/scaling.md": {"batch_size=1024": "batch_size=64"},
    "docs/sequences.md": {
        "width=128": "width=16",
        "lr=1e-3": "lr=1e-3, epochs=1",
        "200": "5",
        "50_000_000": "640",
        "64 * 256": "16 * 6",
    },
}
# Pages whose own tests run them, with the packages and surroundings that they need.
APART = ("docs/integrations.md", "docs/api/integrations.md")
# Packages that the development set does not bring: blocks that import them are compiled alone.
FOREIGN = ("dask", "ray", "pyspark", "wandb")


@pytest.fixture
def small_world(tmp_path, monkeypatch):
    """An empty folder, short trainings, no downloads and no windows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cifar10, "load", few_images)
    monkeypatch.setattr(uci, "load", few_yachts)
    estimators = importlib.import_module("unbounded.estimators.base")
    monkeypatch.setattr(estimators, "choose_epochs", lambda *_: 2)
    (tmp_path / "results").symlink_to(ROOT / "results")
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.setattr(pyplot, "show", lambda: pyplot.close("all"))


def is_possible(code):
    wanted = re.findall(r"^(?:import|from) (\w+)", code, re.M)
    return all(importlib.util.find_spec(name) for name in wanted if name in FOREIGN)


def shortened(page, code):
    for there, here in INSTEAD.get(name_of(page), {}).items():
        code = code.replace(there, here)
    return re.sub(r"\bepochs=\d+", "epochs=1", code)


def is_run_here(page):
    return bool(python_of(page)) and name_of(page) not in APART


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
@pytest.mark.parametrize("page", [p for p in PAGES if is_run_here(p)], ids=name_of)
def test_python_blocks_of_the_docs_run(page, small_world):
    namespace: dict[str, object] = {}
    exec(BEFORE.get(name_of(page), ""), namespace)
    for index, block in enumerate(python_of(page), start=1):
        code = compile(shortened(page, block), f"{name_of(page)}, block {index}", "exec")
        if is_possible(block):
            exec(code, namespace)


# Links


def prose(page):
    return FENCED.sub("", page.read_text())


def slugs(page):
    """The anchors of a page's headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*TEXTS, CHANGES], ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(CODE, "", prose(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            assert target.startswith(("https://", "mailto:")), target
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{name_of(page)} leads to {target}"
        if anchor:
            assert anchor in slugs(there), f"{name_of(page)} leads to {target}"


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for index in (DOCS / "index.md", DOCS / "api" / "index.md"):
        for contents in blocks(index, "{toctree}"):
            names = [line for line in contents.split("\n") if re.fullmatch(r"[\w/]+\*?", line)]
            for name in names:
                found = set(index.parent.glob(f"{name}.md"))
                assert found or name.endswith("*"), f"{name_of(index)} lists {name}"
                listed |= found
    assert listed == set(PAGES) - {DOCS / "index.md"}


def test_the_first_page_leads_to_what_people_look_for():
    """In one click each; the texts behind them are on that page."""
    links = dict(re.findall(r"\[([^\]]+)\]\(([^)#\s]+)", (DOCS / "index.md").read_text()))
    wanted = {
        "start.md": "unbounded fit train.csv",
        "tutorials/own_layers.md": "class Gated(ub.Layers)",
        "checkpoints.md": "resume=True",
        "export.md": "--to onnx",
        "scaling.md": "torchrun --nproc-per-node",
        "how_depth_is_inferred.md": "q(ℓ) is its posterior",
    }
    for page, words in wanted.items():
        assert page in links.values()
        assert words in (DOCS / page).read_text()


# Names


@functools.cache
def modules():
    """The modules of the library by their names."""
    found = {"unbounded": ub}
    for each in pkgutil.walk_packages(ub.__path__, "unbounded."):
        if not each.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of a package that is an extra
                found[each.name] = importlib.import_module(each.name)
    return found


@functools.cache
def starts():
    """What the first word of a dotted name may be."""
    model = ub.UDN(ub.Dense(2, 4, 2), ub.Categorical(2))
    estimator = ub.UDNRegressor(epochs=1, width=4).fit(np.ones((40, 2)), np.arange(40.0))
    found: dict[str, list[object]] = {"ub": [ub], "model": [model, estimator, ub.TableModel]}
    found |= {"layers": [model.layers], "history": [ub.training.History()]}
    found |= {"trainer": [ub.training.Trainer]}
    found |= {"estimator": [estimator], "encoding": [ub.tables.Encoding], "family": [model.depth]}
    for name, module in modules().items():
        found.setdefault(name.rpartition(".")[2], []).append(module)
        for word in dir(module):
            if not word.startswith("__"):
                values = found.setdefault(word, [])
                with contextlib.suppress(ImportError):
                    values.append(getattr(module, word))
    return found


MISSING = object()


def resolves(dotted):
    """Whether a dotted name is there: of the library, of a class of it, or of a model."""
    first, *rest = dotted.split(".")
    for candidate in starts().get(first, []):
        for word in rest:
            notes = getattr(candidate, "__annotations__", {})
            candidate = getattr(candidate, word, notes.get(word, MISSING))
        if candidate is not MISSING:
            return True
    return False


# First words of dotted names that are of other libraries, or of files.
OTHERS = listed("""
torch np numpy nn plt pd sklearn scipy optim functools os python dist pandas onnx parts X
lightning accelerate accelerator mlflow optuna wandb rich
""")
# Capitalised words in code that are no names of ours.
WORDS = listed("""
AdamW SGD LBFGS DataLoader DistributedSampler IterableDataset TensorDataset
DistributedDataParallel MLPRegressor MLPClassifier HistGradientBoosting RealMLP TypeError
ValueError NetworkStack OneCycleLR
""")
FILES = "md txt json csv tsv udn onnx pt2 html js css svg npz npy log checkpoint safetensors lock"
ENDINGS = rf"\.({FILES.replace(' ', '|')})$"


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_names_in_the_text_exist(page):
    """`ub.fit(…)`, `elbo.depth_kl`, `HeldOutAscent` and paths of the source."""
    for word in CODE.findall(prose(page)):
        name = re.sub(r"[(\[=].*$", "", word)
        if re.fullmatch(r"[\w/]+\.(py|js|css)", name):
            there = (ROOT / name).exists() or any((ROOT / "src").rglob(name))
            assert there, f"{name_of(page)}: {word}"
        elif re.search(ENDINGS, name) or "/" in name:
            continue
        elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
            first = name.split(".")[0]
            assert first in OTHERS + WORDS or resolves(name), f"{name_of(page)} names {word}"
        elif re.fullmatch(r"(?=\w*[a-z])[A-Z][a-z]*[A-Z]\w*", name) and name not in WORDS:
            assert name in starts(), f"{name_of(page)} names {word}"


# Modules whose every public name has a place, and an example, in docs/api.
PUBLIC = listed("""
unbounded unbounded.depth unbounded.layers unbounded.likelihoods unbounded.priors unbounded.elbo
unbounded.training unbounded.engines unbounded.estimators unbounded.tables unbounded.exporting
unbounded.data unbounded.data.images unbounded.metrics unbounded.parallel unbounded.testing
unbounded.baselines unbounded.integrations unbounded.play
""")


def public_names(module):
    """Its own names, not those that it imports for its own use."""
    for name in dir(module):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or module.__name__
        of_others = not home.startswith("unbounded") or name == "TYPE_CHECKING"
        if name.startswith("_") or isinstance(value, types.ModuleType) or of_others:
            continue
        is_alias = isinstance(value, types.GenericAlias) or not hasattr(value, "__module__")
        if is_alias and not name.isupper():
            continue  # for annotations
        if hasattr(module, "__path__") or home == module.__name__:
            yield name, value


@functools.cache
def documented():
    """What docs/api describes: objects, and the names of constants."""
    found = {}
    for page in sorted((DOCS / "api").glob("*.md")):
        for path in re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)", page.read_text(), re.M):
            module, _, name = path.rpartition(".")
            found[path] = (page, name, getattr(importlib.import_module(module), name))
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    described = [value for _, _, value in documented().values()]
    for name, value in public_names(importlib.import_module(module)):
        assert any(value is each for each in described), f"{module}.{name} is not in docs/api"


def test_every_name_of_the_reference_has_an_example():
    for path, (page, name, _) in documented().items():
        examples = "\n".join(blocks(page, "python"))
        assert re.search(rf"\b{name}\b", examples), f"{path} has no example in {name_of(page)}"


# Commands


@functools.cache
def study(name):
    parser = Parser(prog=name)
    importlib.import_module(STUDIES[name].module).add_arguments(parser)
    parser.add_argument("--json", action="store_true")
    return parser


def commands(text):
    """The words behind `unbounded` in the lines of a block."""
    lines = re.sub(r"\\\n", " ", text).split("\n")
    if any(line.startswith("$ ") for line in lines):  # the others are what was printed
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        found = re.search(r"(?:^|[;|] |-m )unbounded (.*)$", line)
        if found:
            words = shlex.split(found[1], comments=True)
            ends = [i for i, w in enumerate(words) if w in (">", "|", "2>", "&&") or w[-1:] == ";"]
            if ends:
                end = ends[0]
                words = [*words[:end], *([words[end][:-1]] if words[end][-1] == ";" else [])]
            yield words


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_commands_can_be_given_so(page):
    given = (commands(text) for text in blocks(page, "sh", "bash", "console"))
    for words in itertools.chain(*given):
        try:
            options = build_parser().parse_args(words)
            if options.command == "reproduce":
                study(options.study).parse_args(options.arguments)
        except (CommandError, KeyError) as error:
            pytest.fail(f"{name_of(page)}: unbounded {' '.join(words)}: {error}")


def options_of(parser):
    return {word for action in parser._actions for word in action.option_strings}


# Of torchrun, pip, git, python and our own benchmarks.
FOREIGN_OPTIONS = listed("""
--nproc-per-node --nnodes --max-restarts --rdzv-backend --rdzv-endpoint
""")


def test_commands_and_options_in_sentences_exist():
    subparsers = next(a for a in build_parser()._actions if a.dest == "command").choices
    known = set().union(*(options_of(parser) for parser in subparsers.values()))
    known |= set().union(*(options_of(study(name)) for name in STUDIES), FOREIGN_OPTIONS)
    known |= {"--help", "--version"}
    ours = "\n".join(p.read_text() for p in (ROOT / "benchmarks").rglob("*.py"))
    ours += (ROOT / "tools" / "lock.py").read_text()
    ours += "\n".join(p.read_text() for p in (ROOT / "src/unbounded/experiments").rglob("*.py"))
    known |= set(re.findall(r'"(--[a-z][\w-]*)"', ours))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in TEXTS:
        for word in CODE.findall(prose(page)):
            where = f"{name_of(page)}: {word}"
            found = re.match(r"(?:.*-m )?unbounded ([a-z]+)", word)
            if found:
                assert found[1] in subparsers, where
            for option in re.findall(r"(?<![\w-])(--[a-z][\w-]*)", word):
                assert option in known, where
            found = re.match(r"make ([a-z]+)", word)
            if found:
                assert found[1] in targets, where
            found = re.match(r"python -m ((?:benchmarks|tests|unbounded)[\w.]*)", word)
            if found:
                assert importlib.util.find_spec(found[1]), where


def test_table_2_is_what_was_run():
    """Every row of README's, and what it says of epochs and seeds, by the files of the runs."""
    best = overview.best_runs(overview.parts(ROOT / "results" / "cifar10"))
    expected = []
    for row in published.TABLE:
        cells = [row.label.split(" ")[0], plus_minus(row.mean, row.deviation, 1), "–"]
        if row.model in best:
            part, line = best[row.model]
            told = ["one seed"] if len(line.runs) == 1 else []
            told += [f"{part.recipe['epochs']} epochs"] if part.recipe["epochs"] != 100 else []
            cells[2] = plus_minus(*spread_of(line.runs, "test_accuracy", 0.01), 2)
            cells[2] += f" ({', '.join(told)})" if told else ""
        expected.append(f"| {' | '.join(cells)} |")
    _, _, text = README.read_text().partition("| model | published | ours |\n|---|---|---|\n")
    assert text.splitlines()[: len(expected)] == expected
