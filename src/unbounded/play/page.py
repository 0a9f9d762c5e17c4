"""The playground's parts put together: one page that loads nothing."""

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path

from unbounded import atomic

TRAINER = ("kernels.js", "numbers.js", "rule.js", "trainer.js", "points.js")
"""What computes, in the order in which it is read."""


def part(name: str) -> str:
    """The text of one of the parts, such as "trainer.js"."""
    return resources.files("unbounded.play").joinpath(name).read_text(encoding="utf-8")


def trainer() -> str:
    """The trainer in JavaScript: `Trainer`, `makeData` and what they are made of."""
    return "\n".join(part(name) for name in TRAINER)


def html() -> str:
    """The playground as one HTML page, complete in itself.

    Its scripts run in a browser without any network: write the text to a file, or give it to
    an `<iframe srcdoc=…>`. A Content-Security-Policy within it allows these scripts alone.

    Example:
        >>> html().startswith("<!DOCTYPE html>"), len(html().encode()) < 300_000
        (True, True)
    """
    from unbounded import __version__

    style, view = part("style.css").strip(), _lean(part("view.js"))
    worker = _lean(f"{trainer()}\n{part('worker.js')}")
    if any("</script" in text for text in (view, worker)) or "</style" in style:
        raise ValueError("a part of the page would end before its end")
    policy = (
        f"default-src 'none'; script-src {_digest(view)} 'wasm-unsafe-eval'; "
        f"style-src {_digest(style)}; worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    page = part("page.html")
    filled = {"VERSION": __version__, "POLICY": policy, "STYLE": style}
    for name, text in {**filled, "WORKER": worker, "VIEW": view}.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    return page


def write(path: str | Path) -> Path:
    """Write the page, atomically; returns the path."""
    target = atomic.check_target(Path(path))
    atomic.write_text(target, html())
    return target


def _lean(script: str) -> str:
    """A script without indentation and without those comments that have lines of their own."""
    script = re.sub(r"^[ \t]*/\*\*.*?\*/\n", "", script, flags=re.MULTILINE | re.DOTALL)
    script = re.sub(r"^[ \t]*//.*\n", "", script, flags=re.MULTILINE)
    return re.sub(r"^[ \t]+|^\n", "", script, flags=re.MULTILINE).strip()


def _digest(text: str) -> str:
    """How a Content-Security-Policy names a script or style that it allows."""
    found = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{found}'"
