"""Look at a built site: no link inside it is broken, and nothing is loaded from elsewhere.

python tools/check_site.py build/docs
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The anchors of a page, where it leads to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each tag."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given and given.get("rel") != "canonical":
            self.loads.append(given[LOADS[tag]])


def problems(folder: Path) -> list[str]:
    """What is wrong with the site in a folder, a line each."""
    pages: dict[Path, Page] = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = [] if folder / "index.html" in pages else [f"{folder} has no index.html"]
    for path, page in pages.items():
        name = path.relative_to(folder)
        for address in page.links + page.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    found.append(f"{name} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{name} leads to {address}, which is not there")
            elif parts.fragment and target.suffix == ".html":
                anchors = pages[folder.resolve() / target.relative_to(folder.resolve())].anchors
                if unquote(parts.fragment) not in anchors:
                    found.append(f"{name} leads to {address}, which has no such place")
    return found


def main(folder: str) -> int:
    """Print the problems; the exit status is 1 if there are any."""
    found = problems(Path(folder).resolve())
    for line in found:
        print(line, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
