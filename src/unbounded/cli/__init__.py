"""The command line, `unbounded …`: one file a command.

A command is a module with `NAME`, `HELP`, `DESCRIPTION`, `EPILOG`, `add_arguments(parser)` and
`run(options)`. It imports what is heavy inside `run`, so that `unbounded --help` costs no more
than `import unbounded`.
"""

from unbounded.cli.program import main as main
