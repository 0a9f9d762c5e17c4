"""Run a study without the command line: `python -m unbounded.experiments NAME …`.

The processes that a study starts are run in this way. The exit status is 0, or 2 after an error
of use, or 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP.
"""

import argparse
import importlib
import signal
import sys

from unbounded import interrupts
from unbounded.experiments import STUDIES, StudyError, check_processes
from unbounded.parallel import ProcessError
from unbounded.printing import show


def main(arguments: list[str] | None = None) -> int:
    """Run one study; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    chooser = argparse.ArgumentParser(prog="python -m unbounded.experiments")
    chooser.add_argument("study", choices=sorted(STUDIES))
    name = chooser.parse_args(words[:1]).study
    module = importlib.import_module(STUDIES[name].module)
    parser = argparse.ArgumentParser(prog=f"{chooser.prog} {name}", description=module.__doc__)
    module.add_arguments(parser)
    with interrupts.taken():
        try:
            options = parser.parse_args(words[1:])
            check_processes(name)
            module.run(options)
        except (StudyError, ProcessError) as error:
            show(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as interrupt:
            show(f"interrupted: {interrupt}", file=sys.stderr)
            return 128 + int(interrupts.latest() or signal.SIGINT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
