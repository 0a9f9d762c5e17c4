"""Docstrings are plain text with `code`; this makes reStructuredText of them for autodoc."""

import re

from sphinx.pycode import ModuleAnalyzer

CODE = re.compile(r"`([^`\n]+)`")
COLON = "\ue000"  # stands for a colon while napoleon looks for "type: description"
VALUES = ("attribute", "data", "property")


def _plain(text: str) -> str:
    """Marks that mean something in reStructuredText, escaped."""
    return re.sub(r"([*|\\])|(?<=\w)_(?!\w)", lambda m: "\\" + m[0], text)


def to_rst(line: str) -> str:
    """A line of a docstring: its code as literals, all else as it stands."""
    parts = CODE.split(line)
    return "".join(
        f"``{part.strip()}``" if index % 2 else _plain(part) for index, part in enumerate(parts)
    )


def before_napoleon(app, what, name, obj, options, lines):
    """Called by autodoc for each docstring; examples (>>>) stay as they are."""
    example = False
    for index, line in enumerate(lines):
        if line.lstrip().startswith(">>>"):
            example = True
        elif not line.strip():
            example = False
        if not example:
            lines[index] = to_rst(line)
        if what in VALUES:
            lines[index] = lines[index].replace(":", COLON)


def after_napoleon(app, what, name, obj, options, lines):
    """Called by autodoc for each docstring."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def _without_overloads(analyze):
    """The arguments of a function itself, not those that type checkers are told of."""

    def wrapped(self):
        analyze(self)
        self.overloads = {}

    return wrapped


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", after_napoleon, priority=600)
    ModuleAnalyzer.analyze = _without_overloads(ModuleAnalyzer.analyze)
    return {"parallel_read_safe": True}
