"""`unbounded completion`: what a shell needs to complete our commands and options."""

import argparse
from typing import NamedTuple

from unbounded.cli.common import Console, add_output_arguments

NAME = "completion"
HELP = "print completions for a shell"
DESCRIPTION = """\
Print a script that lets a shell complete commands, options and their values. It is made from the
commands of this version: print it again after an update."""
EPILOG = """\
examples:
  unbounded completion bash > ~/.local/share/bash-completion/completions/unbounded
  unbounded completion zsh > ~/.zfunc/_unbounded     # with fpath+=~/.zfunc before compinit
  unbounded completion fish > ~/.config/fish/completions/unbounded.fish
"""


class Option(NamedTuple):
    """An option of a command."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A command: its options, and the words that may stand alone, if they are a few."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unbounded completion`."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="which")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    from unbounded.cli.program import build_parser

    console = Console(options)
    script = SHELLS[options.shell](commands(build_parser()))
    if not console.json:
        console.say(script)
    console.result({"shell": options.shell, "script": script})


def commands(parser: argparse.ArgumentParser) -> list[Command]:
    """The commands of a parser, with all that can be completed of them."""
    found = []
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, sub in action.choices.items():
            options = tuple(_option(one) for one in sub._actions if one.option_strings)
            plain = [one for one in sub._actions if not one.option_strings]
            words = [str(w) for one in plain for w in one.choices or getattr(one, "words", ())]
            found.append(Command(name, helps.get(name, ""), options, tuple(words)))
    return found


def _option(action: argparse.Action) -> Option:
    choices = tuple(str(choice) for choice in action.choices or ())
    help = (action.help or "").split(" (default")[0]
    return Option(tuple(action.option_strings), help, action.nargs != 0, choices)


def bash(found: list[Command]) -> str:
    """For bash: a function that fills COMPREPLY; without an answer, names of files."""
    names = " ".join(command.name for command in found)
    options = "\n".join(
        f"    {c.name}) words='{' '.join(flag for o in c.options for flag in o.flags)}' ;;"
        for c in found
    )
    values = "\n".join(
        f"    {c.name}:{flag}) words='{' '.join(o.choices)}' ;;"
        for c in found
        for o in c.options
        for flag in o.flags
        if o.choices
    )
    alone = "\n".join(f"    {c.name}) words='{' '.join(c.words)}' ;;" for c in found if c.words)
    return f"""\
# Completions of unbounded for bash.
_unbounded() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{names} --help --version'
  else
    case "${{COMP_WORDS[1]}}:$before" in
{values}
    esac
    if [ -z "$words" ]; then case "$current" in
    -*) case "${{COMP_WORDS[1]}}" in
{options}
    esac ;;
    *) case "${{COMP_WORDS[1]}}" in
{alone}
    esac ;;
    esac; fi
  fi
  [ -n "$words" ] && COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _unbounded unbounded"""


def zsh(found: list[Command]) -> str:
    """For zsh: a function of its completion system."""
    names = "\n".join(f"    {_quoted(f'{c.name}:{c.help}')}" for c in found)
    cases = "\n".join(f"    {c.name}) _arguments -s {_zsh_arguments(c)} ;;" for c in found)
    return f"""\
#compdef unbounded
# Completions of unbounded for zsh.
_unbounded() {{
  local -a commands
  commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{cases}
  esac
}}
compdef _unbounded unbounded"""


def _zsh_arguments(command: Command) -> str:
    parts = []
    for option in command.options:
        help = option.help.replace("[", "(").replace("]", ")").replace(":", ",")
        value = ""
        if option.takes_value:
            value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
        parts += [_quoted(f"*{flag}[{help}]{value}") for flag in option.flags]
    words = f"({' '.join(command.words)})" if command.words else "_files"
    return " ".join([*parts, _quoted(f"*:argument:{words}")])


def fish(found: list[Command]) -> str:
    """For fish: a line for each command and option."""
    lines = ["# Completions of unbounded for fish."]
    for command in found:
        start = "complete -c unbounded -n __fish_use_subcommand"
        lines.append(f"{start} -a {command.name} -d {_quoted(command.help)}")
        start = f"complete -c unbounded -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{start} -a {_quoted(' '.join(command.words))}")
        for option in command.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in option.flags
            )
            value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r"
            lines.append(
                f"{start} {flags}{value if option.takes_value else ''} -d {_quoted(option.help)}"
            )
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A text between apostrophes, on one line, for zsh and fish alike."""
    return "'" + " ".join(text.split()).replace("'", "’").replace("\\", "") + "'"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
"""How each is written."""
