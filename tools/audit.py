"""Ask whether known vulnerabilities concern the versions in requirements.lock and torch.lock.

    python tools/audit.py           # `make audit`

pip-audit asks the advisory database of PyPI about each name and version; nothing is installed. The
exit status is 0 if nothing is known, 1 if something is, and 2 if the database could not be asked,
about all of them or about some: no answer is not a good answer.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "torch.lock")
ACCEPTED: dict[str, str] = {}
"""Advisories that do no harm here, by their id, each with the reason; they are told as such."""
TIMEOUT = 15  # seconds to wait for an answer


def locked() -> list[str]:
    """Names and versions of both locks, builds such as `+cpu` as their release, each once."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    lock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lock)
    held = (key for name in LOCKS for key in lock.read(ROOT / name))
    return sorted({f"{name}=={version.partition('+')[0]}" for name, version in held})


def asked(pinned: list[str]) -> dict[str, Any] | str:
    """What pip-audit finds of these, as its JSON document; a text if it could not ask."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pinned.txt")
        path.write_text("\n".join(pinned) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--progress-spinner", "off", "--timeout", str(TIMEOUT)]
        done = subprocess.run(
            [*command, "-r", str(path)], capture_output=True, text=True, check=False
        )
    try:
        found = json.loads(done.stdout)
        assert isinstance(found["dependencies"], list)
    except (ValueError, KeyError, TypeError, AssertionError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"pip-audit ended with {done.returncode} and no words"
    return found


def verdict(found: dict[str, Any] | str, pinned: list[str]) -> tuple[int, list[str]]:
    """The exit status, and what to say."""
    if isinstance(found, str):
        words = "the database of advisories could not be asked, so nothing is known of"
        return 2, [f"audit: {words} {len(pinned)} packages: {found}"]
    lines: list[str] = []
    bad, answered = 0, set[str]()
    for package in found["dependencies"]:
        label = f"{package['name']} {package.get('version', '?')}"
        if "skip_reason" in package:
            continue
        answered.add(f"{package['name']}=={package['version']}")
        for advisory in package["vulns"]:
            names = {advisory["id"], *advisory.get("aliases", ())}
            reason = next((ACCEPTED[name] for name in sorted(names) if name in ACCEPTED), None)
            bad += reason is None
            fixed = ", ".join(advisory.get("fix_versions", ())) or "no version yet"
            kept = f"accepted: {reason}" if reason else f"fixed in {fixed}"
            lines.append(f"{label}: {advisory['id']} ({kept})")
    if not answered:
        reasons = [p["skip_reason"] for p in found["dependencies"] if "skip_reason" in p]
        return verdict(reasons[0] if reasons else "no answer came", pinned)
    silent = [name for name in pinned if name not in answered]
    if silent:
        lines.append(f"audit: no answer about {len(silent)} packages: {', '.join(silent)}")
    lines.append(f"audit: {len(answered)} packages asked about, {bad} known vulnerabilities")
    return (1 if bad else 2 if silent else 0), lines


def main() -> int:
    """Ask, and tell."""
    pinned = locked()
    status, lines = verdict(asked(pinned), pinned)
    print("\n".join(lines), file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
