"""Docstrings are plain text with `code`; this makes reStructuredText of them for autodoc."""

import re

CODE = re.compile(r"`([^`\n]+)`")


def _plain(text: str) -> str:
    """Marks that mean something in reStructuredText, escaped."""
    return re.sub(r"([*|\\])|(?<=\w)_(?!\w)", lambda m: "\\" + m[0], text)


def to_rst(line: str) -> str:
    """A line of a docstring: its code as literals, all else as it stands."""
    if line.lstrip().startswith(">>>"):
        return line
    parts = CODE.split(line)
    return "".join(
        f"``{part.strip()}``" if index % 2 else _plain(part) for index, part in enumerate(parts)
    )


def process(app, what, name, obj, options, lines):
    """Called by autodoc for each docstring, before napoleon finds its sections."""
    example = False
    for index, line in enumerate(lines):
        if line.lstrip().startswith(">>>"):
            example = True
        elif not line.strip():
            example = False
        if not example:
            lines[index] = to_rst(line)


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True}
