"""`unbounded reproduce NAME`: a table or figure of the paper again."""

import argparse
import contextlib
import sys
from pathlib import Path

from unbounded.cli.common import CommandError
from unbounded.printing import show_json
from unbounded.tables.text import closest

NAME = "reproduce"
HELP = "run a study of the paper again"
DESCRIPTION = """\
Run a study again: one table or figure of the paper. Each is one file of unbounded.experiments with
arguments of its own: `unbounded reproduce NAME --help`. Processes that torchrun starts divide its
networks among themselves."""
EPILOG = ""
TAKES_PROCESSES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name of the study; what follows it is the study's own."""
    from unbounded.experiments import STUDIES

    listed = "\n".join(f"  {name:16} {study.about}" for name, study in sorted(STUDIES.items()))
    parser.epilog = f"studies:\n{listed or '  none in this version'}"
    # Without a name we ourselves say which there are.
    action = parser.add_argument("study", metavar="NAME", nargs="?", help="which")
    action.words = tuple(STUDIES)  # type: ignore[attr-defined]
    # All that follows, also what looks like an option of ours, belongs to the study.
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the study's own arguments")


def run(options: argparse.Namespace) -> None:
    """Import the study's module and hand over."""
    import importlib

    from unbounded.cli.program import Formatter, Parser
    from unbounded.experiments import STUDIES, check_processes, shares

    name = options.study
    if name is None:
        raise CommandError(f"say which study: {', '.join(sorted(STUDIES))}")
    if name not in STUDIES:
        raise CommandError(f"there is no study {name!r}: {closest(name, sorted(STUDIES))}")
    module = importlib.import_module(STUDIES[name].module)
    prog = f"unbounded reproduce {name}"
    parser = Parser(prog=prog, description=module.__doc__, formatter_class=Formatter)
    module.add_arguments(parser)
    words = "print one JSON document on standard output: the study, its folder and what is in it"
    parser.add_argument("--json", action="store_true", help=words)
    chosen = parser.parse_args(options.arguments)
    check_processes(name)
    if not chosen.json:
        module.run(chosen)
        return
    with contextlib.redirect_stdout(sys.stderr):
        module.run(chosen)
    if not shares.processes().is_first:
        return
    out = Path(chosen.out)
    files = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    show_json({"study": name, "out": str(out), "files": files})
