"""The locks cover what pyproject.toml asks for, with exact versions and hashes."""

import importlib.util
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
assert _SPEC is not None
assert _SPEC.loader is not None
lock = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lock)

LOCKS = ["requirements.lock", "torch.lock"]
HELD = {name: lock.read(ROOT / name) for name in LOCKS}


def test_every_requirement_is_locked_at_a_version_that_satisfies_it():
    versions = {name: version for held in HELD.values() for name, version in held}
    wanted = [Requirement(entry) for entry in lock.requirements()]
    assert {"torch", "pandas", "pillow", "pytest-xdist", "setuptools"} <= {w.name for w in wanted}
    for requirement in wanted:
        locked = Version(versions[lock.normal(requirement.name)])
        assert requirement.specifier.contains(locked), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_an_exact_version_or_a_hash(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    packages = [line for line in lines if not line.startswith(" ")]
    hashes = [line for line in lines if line.startswith(" ")]
    marker = r'(?: ; sys_platform [!=]= "linux")?'
    assert all(re.fullmatch(rf"[a-z0-9-]+==[\w.+]+{marker} \\", line) for line in packages)
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line) for line in hashes)
    assert len(HELD[name]) == len(packages)  # each has a hash
    assert sum(map(len, HELD[name].values())) == len(hashes)


def test_on_linux_the_lock_asks_for_torch_without_cuda():
    release = Requirement((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[-1])
    plain = str(release.specifier).removeprefix("==")
    assert set(HELD["torch.lock"]) == {("torch", plain), ("torch", f"{plain}+cpu")}
    text = (ROOT / "torch.lock").read_text(encoding="utf-8")
    assert f'torch=={plain}+cpu ; sys_platform == "linux"' in text
    assert f'torch=={plain} ; sys_platform != "linux"' in text
    assert not any(name.startswith(("nvidia", "cuda", "triton")) for name, _ in HELD[LOCKS[0]])


def test_own_extras_are_unfolded(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        """
        [build-system]
        requires = ["setuptools>=77"]
        [project]
        name = "unbounded"
        dependencies = ["numpy>=1"]
        [project.optional-dependencies]
        tables = ["pandas", "unbounded[files]"]
        files = ["pyarrow"]
        dev = ["unbounded[tables]", "numpy>=1", "pytest>=8"]
        """
    )
    assert lock.requirements(pyproject) == [
        "numpy>=1",
        "pandas",
        "pyarrow",
        "pytest>=8",
        "setuptools>=77",
    ]


def test_a_lock_written_again_keeps_the_hashes_of_the_same_version_only(tmp_path, capsys):
    path = tmp_path / "requirements.lock"
    lock.write(path, {("one", "1.0"): {"a" * 64}, ("two", "1.0"): {"b" * 64}})
    lock.write(path, {("one", "1.0"): {"c" * 64}, ("two", "1.1"): {"d" * 64}})
    assert lock.read(path) == {("one", "1.0"): {"a" * 64, "c" * 64}, ("two", "1.1"): {"d" * 64}}
    assert capsys.readouterr().out.endswith("requirements.lock: 2 versions\n")
