"""Check a wheel: it holds the package's files, all of them and no others, and is small.

python tools/wheel.py dist/*.whl        # the end of `make dist`
"""

from __future__ import annotations

import fnmatch
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 1_000_000  # bytes


def expected(root: Path = ROOT) -> set[str]:
    """Modules and package data of the source tree, as a wheel names them."""
    told = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = told["tool"]["setuptools"]["package-data"]["unbounded"]
    package = root / "src" / "unbounded"
    names = [path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()]
    return {
        f"unbounded/{name}"
        for name in names
        if name.endswith(".py") or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }


def problems(wheel: Path, root: Path = ROOT) -> list[str]:
    """What is wrong with the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        licensed = any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    wanted = expected(root)
    found = [f"{name} is missing" for name in sorted(wanted - held)]
    found += [f"{name} is none of the package's files" for name in sorted(held - wanted)]
    if not licensed:
        found.append("the licence is missing")
    if wheel.stat().st_size > LARGEST:
        found.append(f"it has {wheel.stat().st_size:,} bytes, more than {LARGEST:,}")
    return found


def main(arguments: list[str]) -> int:
    """Tell of each wheel; 1 if something is wrong."""
    status = 0
    for name in arguments:
        found = problems(Path(name))
        for problem in found:
            print(f"{name}: {problem}", file=sys.stderr)
        status |= bool(found)
        if not found:
            print(f"{name}: {Path(name).stat().st_size:,} bytes, all files of the package")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
