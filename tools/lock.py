"""Write requirements.lock and torch.lock: exact versions and hashes of what `make setup` installs.

    python tools/lock.py            # `make lock`

pip's resolver picks the versions from pyproject.toml under constraints.txt, at whatever indexes
pip is set up with. Every wheel that they list of a picked version is allowed by its hash, so that
one lock serves all platforms; source archives are not: to build one would fetch unpinned tools.
Hashes that the old lock holds of the same version stay: one index may lack a build of another.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Written by `make lock` from pyproject.toml and constraints.txt: do not edit.
# Install with: pip install --no-deps --only-binary :all: --require-hashes -r {name}
"""
TORCH = """\
# On Linux only the local version `+cpu` is free of CUDA, whose packages take gigabytes: it is
# asked for by name. Elsewhere the plain one is for CPUs.
"""
WHEEL = re.compile(r"([^/\s]+)\.whl#sha256=([0-9a-f]{64})")
LINE = re.compile(r"^([\w.-]+)==(\S+)[^\n]* \\$|^    --hash=sha256:([0-9a-f]{64})", re.MULTILINE)

Hashes = dict[tuple[str, str], set[str]]  # of a package's normal name and version


def normal(name: str) -> str:
    """A package's name in the one spelling that indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """What the library, its development and its build need, other extras of its own unfolded."""
    told = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = told["project"]
    own = re.compile(rf"{re.escape(project['name'])}\[(.+)\]")

    def unfolded(entries: list[str]) -> list[str]:
        flat = []
        for entry in entries:
            found = own.fullmatch(entry)
            extras = found.group(1).split(",") if found else []
            for extra in extras:
                flat += unfolded(project["optional-dependencies"][extra.strip()])
            if not found:
                flat.append(entry)
        return flat

    named = told["build-system"]["requires"] + project["dependencies"]
    return sorted({*named, *unfolded(project["optional-dependencies"]["dev"])})


def read(lock: Path) -> Hashes:
    """The versions and hashes that a lock holds."""
    held: Hashes = {}
    key = ("", "")
    for found in LINE.finditer(lock.read_text(encoding="utf-8") if lock.exists() else ""):
        name, version, digest = found.groups()
        if name:
            key = (normal(name), version)
        else:
            held.setdefault(key, set()).add(digest)
    return held


def resolve(wanted: list[str]) -> Hashes:
    """The versions that pip picks, with the hashes of all wheels that its indexes list of them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "-vv", "--dry-run", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--report", str(report)]
        command += ["-c", str(ROOT / "constraints.txt"), *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"pip could not resolve the requirements:\n{done.stderr}")
        picked = json.loads(report.read_text(encoding="utf-8"))["install"]
    locked: Hashes = {}
    for entry in picked:
        told = entry["metadata"]
        key = (normal(told["name"]), told["version"])
        locked[key] = {entry["download_info"]["archive_info"]["hashes"]["sha256"]}
    plain: Hashes = {}  # of torch's CPU build for Linux: the CPU builds of other platforms
    for stem, digest in WHEEL.findall(done.stdout):
        name, version, *tags = unquote(stem).split("-")
        key = (normal(name), version)
        if key in locked:
            locked[key].add(digest)
        elif (key[0], f"{version}+cpu") in locked and "linux" not in tags[-1]:
            plain.setdefault(key, set()).add(digest)
    locked.update(plain)
    return locked


def write(lock: Path, locked: Hashes, note: str = "") -> None:
    """Write a lock, with what the old one knows of the same versions."""
    known = read(lock)
    text = HEADER.format(name=lock.name) + note
    for (name, version), found in sorted(locked.items()):
        marker = ""
        if name == "torch":
            marker = f' ; sys_platform {"==" if "+cpu" in version else "!="} "linux"'
        hashes = sorted(found | known.get((name, version), set()))
        lines = [f"{name}=={version}{marker}", *(f"    --hash=sha256:{h}" for h in hashes)]
        text += " \\\n".join(lines) + "\n"
    lock.write_text(text, encoding="utf-8")
    print(f"{lock.name}: {len(locked)} versions")


def main() -> None:
    """Write both locks."""
    locked = resolve(requirements())
    torch = {key: hashes for key, hashes in locked.items() if key[0] == "torch"}
    if len(torch) != 2:
        raise SystemExit(
            f"expected torch's CPU build and its plain version, found: {sorted(torch)}"
        )
    write(ROOT / "torch.lock", torch, TORCH)
    write(ROOT / "requirements.lock", {k: v for k, v in locked.items() if k not in torch})


if __name__ == "__main__":
    main()
