"""What is published: versions agree, wheels are whole, the workflow runs what the Makefile has."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

import unbounded as ub

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", MAKE, re.MULTILINE))


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wheels, audit = tool("wheel"), tool("audit")


def supported():
    """The Pythons of the classifiers."""
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    return [found[1] for c in PROJECT["classifiers"] if (found := re.fullmatch(pattern, c))]


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGES.md").read_text(encoding="utf-8")
    version = PROJECT["version"]
    assert ub.__version__ == version
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == version
    headings = re.findall(r"^## (.*)$", changes, re.MULTILINE)
    assert headings[0].split()[0] == version  # work in progress stands under the version to come


def test_licences_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert re.search(r"^license: (\S+)$", citation, re.MULTILINE)[1] == PROJECT["license"]
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    # The expression says it; a classifier beside it is refused by indexes.
    assert not any(c.startswith("License ::") for c in PROJECT["classifiers"])


def test_pythons_agree():
    found = supported()
    assert found == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={found[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == found[0]
    assert f"PYTHON ?= python{found[0]}" in MAKE


def test_a_wheel_holds_the_package_and_is_small(tmp_path):
    tree = tmp_path / "tree"
    copytree(ROOT / "src", tree / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, tree)
    page = tree / "src" / "unbounded" / "play" / "index.html"  # package data is found by pattern
    page.parent.mkdir(exist_ok=True)
    page.write_text("<!DOCTYPE html>")
    (page.parent / "notes.txt").write_text("not for users")
    code = "from setuptools.build_meta import build_wheel as b; print(b('.'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    wheel = tree / done.stdout.split()[-1]
    assert wheel.name == f"unbounded-{PROJECT['version']}-py3-none-any.whl"
    assert wheels.problems(wheel, tree) == []
    held = zipfile.ZipFile(wheel).namelist()
    assert {"unbounded/py.typed", "unbounded/play/index.html"} <= set(held)
    assert "unbounded/play/notes.txt" not in held
    page.unlink()  # what the wheel has too much, and too little
    (page.parent / "late.js").write_text("1")
    assert wheels.problems(wheel, tree) == [
        "unbounded/play/late.js is missing",
        "unbounded/play/index.html is none of the package's files",
    ]


# The workflow -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workflow():
    yaml = pytest.importorskip("yaml", reason="needs pyyaml, of the extra unbounded[dev]")
    path = ROOT / ".github" / "workflows" / "tests.yml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(workflow):
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def test_the_workflow_has_the_versions_that_are_claimed(workflow):
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == supported()
    asked = next(text for text in PROJECT["dependencies"] if text.startswith("torch"))
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("torch==")[-1].strip()
    assert matrix["torch"] == [asked.removeprefix("torch>="), pinned.rsplit(".", 1)[0]]
    (tests,) = [c for c in commands(workflow) if "make test" in c]
    assert tests == 'make test PYTHON=python TORCH="torch==${{ matrix.torch }}.*"'


def test_the_workflow_runs_what_the_makefile_has(workflow):
    pattern = r'make ([a-z]+)( [A-Z]+=(\S+|"[^"]*"))*'
    targets = [re.fullmatch(pattern, command) for command in commands(workflow)]
    assert all(targets), "commands other than make"
    named = {found[1] for found in targets}
    assert named == {"test", "demo", "docs", "dist", "audit"}
    if not (ROOT / "docs" / "conf.py").exists():
        named -= {"docs"}  # an archive without the site
    assert named <= TARGETS
    assert workflow["permissions"] == {"contents": "read"}


# Known vulnerabilities ----------------------------------------------------------------------------


def answer(name, version, *ids):
    vulns = [{"id": i, "aliases": [f"CVE-{i}"], "fix_versions": ["9"]} for i in ids]
    return {"name": name, "version": version, "vulns": vulns}


def test_the_audit_tells_what_is_known(monkeypatch):
    pinned = ["one==1", "two==2"]
    clean = {"dependencies": [answer("one", "1"), answer("two", "2")]}
    assert audit.verdict(clean, pinned) == (
        0,
        ["audit: 2 packages asked about, 0 known vulnerabilities"],
    )
    known = {"dependencies": [answer("one", "1", "A", "B"), answer("two", "2")]}
    status, lines = audit.verdict(known, pinned)
    assert status == 1
    assert lines[:2] == ["one 1: A (fixed in 9)", "one 1: B (fixed in 9)"]
    monkeypatch.setattr(audit, "ACCEPTED", {"CVE-A": "never called", "B": "only on Windows"})
    status, lines = audit.verdict(known, pinned)
    assert status == 0
    assert "one 1: A (accepted: never called)" in lines


def test_the_audit_takes_no_answer_for_no_good_one():
    pinned = ["one==1", "two==2"]
    skipped = {"name": "two", "skip_reason": "not found"}
    status, lines = audit.verdict({"dependencies": [answer("one", "1"), skipped]}, pinned)
    assert status == 2
    assert "no answer about 1 packages: two==2" in lines[0]
    status, (line,) = audit.verdict({"dependencies": [skipped]}, pinned)
    assert status == 2
    assert line.startswith("audit: the database of advisories could not be asked")


def test_the_audit_asks_about_every_locked_version():
    names = {text.partition("==")[0] for text in audit.locked()}
    assert {"torch", "numpy", "pytest"} <= names
    assert not any("+" in text for text in audit.locked())
    assert len(names) == len(audit.locked())


def test_the_audit_without_a_network(monkeypatch):
    pytest.importorskip("pip_audit", reason="needs pip-audit, of the extra unbounded[dev]")
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    found = audit.asked(["numpy==2.0.0"])
    assert isinstance(found, str), json.dumps(found)
    status, (line,) = audit.verdict(found, ["numpy==2.0.0"])
    assert status == 2
    assert "could not be asked, so nothing is known of 1 packages" in line


def test_the_makefile_offers_all_of_it():
    listed = re.findall(r"^([a-z]+):.*##", MAKE, re.MULTILINE)
    assert {"audit", "dist", "lock", "test"} <= set(listed)
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKE, re.MULTILINE)[1].split())
    assert phony == set(listed)
