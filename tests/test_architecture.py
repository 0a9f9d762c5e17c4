"""The house: who imports whom, how large things are, and that nothing stands twice."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "unbounded"
FILES = sorted(SRC.rglob("*.py"))

# From top to bottom: a room imports from those above it (and rooms of one line from each other).
ROOMS = [
    {"atomic", "devices", "interrupts", "printing", "scaling", "schema", "trees"},
    {"depth", "likelihoods", "priors"},
    {"elbo"},
    {"layers"},
    {"network"},
    {"growth", "exits", "predictive", "frozen", "generation"},
    {"model"},
    {"files"},
    {"parallel"},
    {"steps"},
    {"engines"},
    {"training"},
    {"metrics", "data", "baselines", "report", "integrations", "play"},
    {"tables", "estimators"},
    {"exporting"},
    {"experiments"},
    {"cli"},
    {"testing", "engine"},
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Rooms that a file imports, wherever in it, but not for type annotations alone."""
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    rooms = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unbounded"):
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("unbounded.")
            }
    return rooms


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_rooms_import_from_those_above(path):
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    for other in imported(ast.parse(path.read_text())) - {room, "__version__"}:
        assert other in LEVEL, f"{path} imports {other}, which is no room"
        assert LEVEL[other] <= LEVEL[room], f"{path.name} in {room} imports {other} from below"


def test_the_check_notices():
    tree = ast.parse("def f():\n    from unbounded.cli import common\nimport unbounded.depth")
    assert imported(tree) == {"cli", "depth"}
    assert imported(ast.parse("if TYPE_CHECKING:\n    from unbounded.cli import main")) == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_sizes(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 80, f"{node.name} is too long"


def test_the_network_knows_no_kind_of_layer():
    text = (SRC / "network.py").read_text()
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not names & {"Dense", "DenseLayer", "PooledLayer", "ResidualConv", "Linear"}
    modules = {
        node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
    }
    assert {m for m in modules if m and m.startswith("unbounded.layers")} == {
        "unbounded.layers.base"
    }
