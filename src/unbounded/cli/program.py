"""From arguments to a command, and from errors to one line.

The exit status is 0, or 2 after one line `unbounded: error: …` on standard error; 130 if Ctrl-C
came before there was anything to keep; 143 after SIGTERM (129 after SIGHUP), whatever was kept.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from unbounded import interrupts, parallel
from unbounded.cli import (
    completion,
    demo,
    doctor,
    evaluate,
    export,
    fit,
    inspect,
    play,
    predict,
    report,
    reproduce,
)
from unbounded.cli.common import CommandError
from unbounded.cli.hints import next_step
from unbounded.printing import show
from unbounded.tables.text import closest

COMMANDS = (
    *(fit, predict, evaluate, inspect, report, export),
    *(demo, play, reproduce, doctor, completion),
)
TRACEBACKS = "UNBOUNDED_TRACEBACK"

_EPILOG = """\
a table, from start to end:
  unbounded fit train.csv --target price --out house.udn
  unbounded inspect house.udn
  unbounded evaluate house.udn test.csv
  unbounded predict house.udn new.csv --out predictions.csv
  unbounded report house.udn test.csv --out house.html

`unbounded COMMAND --help` tells more of each.
"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help texts as they are written, with a wide column for the arguments."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=26)

    def add_argument(self, action: argparse.Action) -> None:
        """Leave room for the names of commands, too, which stand further in."""
        super().add_argument(action)
        for sub in self._iter_indented_subactions(action):
            size = len(self._format_action_invocation(sub)) + self._current_indent
            self._action_max_length = max(self._action_max_length, size)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all other errors."""

    def error(self, message: str) -> NoReturn:
        """Raise rather than print the usage and exit."""
        typed = re.search(r"argument COMMAND: invalid choice: '(.*)' \(", message)
        if typed:
            names = [command.NAME for command in COMMANDS]
            message = f"there is no command {typed[1]!r}: {closest(typed[1], names)}"
        raise CommandError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            show(message.removesuffix("\n"), sys.stderr if file is None else file)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from unbounded import __version__

    parser = Parser(
        prog="unbounded",
        description="Neural networks whose depth is inferred from the data.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"unbounded {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )
    for command in COMMANDS:
        sub = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
            formatter_class=Formatter,
        )
        command.add_arguments(sub)
        takes = getattr(command, "TAKES_PROCESSES", False)
        sub.set_defaults(run=command.run, takes_processes=takes)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    with interrupts.taken():
        status = _main(arguments)
        number = interrupts.latest()
    return status if number in (None, signal.SIGINT) else 128 + int(number)


def _main(arguments: Sequence[str] | None) -> int:
    try:
        parser = build_parser()
        given = sys.argv[1:] if arguments is None else list(arguments)
        if not given:  # somebody looks what there is
            parser.print_help()
            return 0
        options = _parse(parser, given)
        if parallel.started() > 1 and not options.takes_processes:
            raise CommandError(f"unbounded {options.command} runs in one process, without torchrun")
        options.run(options)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt as interrupt:  # a study says what it has kept
        _print_error(f"interrupted: {str(interrupt) or 'nothing was written'}")
        return 130
    except BrokenPipeError:  # somebody closed our output, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        message = _explain(error)
        if message is None and interrupts.latest() is not None:
            # What is written in C, such as an import, makes another error of Ctrl-C.
            _print_error("interrupted: what was written before is kept")
            return 130
        if message is None and os.environ.get(TRACEBACKS):
            raise
        _print_error(_unexpected(error) if message is None else next_step(message))
        return 2


def _parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """The options; of those that are wrong the message names the right ones."""
    found = {command.name: command for command in completion.commands(parser)}
    try:
        options, unknown = parser.parse_known_args(given)
    except CommandError as error:
        # A required option that is missing may be there, written otherwise.
        command = found.get(given[0])
        if command is None or " required: " not in str(error):
            raise
        flags = [flag for option in command.options for flag in option.flags]
        words = [word for word in given[1:] if word.startswith("--")]
        unknown = [w for w in words if not any(f.startswith(w.split("=")[0]) for f in flags)]
        if not unknown:
            raise
        raise CommandError(_not_known(command, unknown[0])) from None
    if unknown:
        raise CommandError(_not_known(found[options.command], unknown[0]))
    return options


def _not_known(command: completion.Command, word: str) -> str:
    """What is wrong with an argument that a command does not know."""
    see = f"(see unbounded {command.name} --help)"
    if not word.startswith("-"):
        return f"unbounded {command.name} takes no further argument {word!r} {see}"
    if command.name == reproduce.NAME:
        return f"options of a study come after its name: unbounded reproduce NAME {word}"
    name = word.split("=")[0]
    long = [option for option in command.options if option.flags[-1].startswith("--")]
    spelt = name.lstrip("-").replace("-", " ")  # --learning-rate is --lr, as its help says
    same = [option.flags[-1] for option in long if option.help.startswith(spelt)]
    advice = f"did you mean {same[0]!r}?" if same and spelt else ""
    advice = advice or closest(name, [option.flags[-1] for option in long])
    advice = f": {advice}" if advice.startswith("did you mean") else ""
    return f"unbounded {command.name} has no option {word!r}{advice} {see}"


def _explain(error: Exception) -> str | None:
    """One line for the user, or None if the error is a mistake of ours."""
    from unbounded.experiments import StudyError
    from unbounded.files import FileError
    from unbounded.growth import TooDeepError
    from unbounded.parallel import ProcessError
    from unbounded.tables import TableError
    from unbounded.training import NonFiniteError

    if isinstance(error, CommandError | TableError | FileError | StudyError | ProcessError):
        return str(error)
    if isinstance(error, NonFiniteError):
        return f"training diverged before there was anything to keep: {error}"
    if isinstance(error, TooDeepError):
        return f"there is not enough memory: {error}"
    if isinstance(error, MemoryError):
        return (
            "there is not enough memory: close other programs, or take fewer rows (fit --max-rows)"
        )
    if isinstance(error, ImportError) and "unbounded" not in (error.name or ""):
        return f"{error}: unbounded doctor tells which packages are missing and how to get them"
    if isinstance(error, OSError):
        if error.strerror and error.filename:
            return f"{error.filename}: {error.strerror}"
        return str(error)
    return None


def _unexpected(error: Exception) -> str:
    return (
        f"unexpected {type(error).__name__}: {error} "
        f"(this is a mistake in unbounded; {TRACEBACKS}=1 shows where)"
    )


def _print_error(message: str) -> None:
    line = " ".join(message.split())
    kind = "" if line.startswith("interrupted") else "error: "
    with suppress(OSError):  # the disk behind it may be full, as the message says
        sys.stdout.flush()
    show(f"unbounded: {kind}{line}", sys.stderr, accent=("error:", "red"))
