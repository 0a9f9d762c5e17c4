"""Files are there whole or not at all, for all who may read them."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from unbounded import atomic


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_text_and_bytes_are_written(tmp_path):
    atomic.write_text(tmp_path / "a.txt", "Ω₅\n")
    atomic.write_bytes(str(tmp_path / "b"), b"\r\n")
    assert (tmp_path / "a.txt").read_bytes() == "Ω₅\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\r\n"
    assert {p.name for p in tmp_path.iterdir()} == {"a.txt", "b"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_mid_write_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old and whole")

    def write_half():
        with atomic.replacing(path) as temporary:
            temporary.write_text("new, but only ha")
            assert temporary.parent == path.parent  # a move between disks is not atomic
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old and whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_nothing_where_nothing_was(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        atomic.write_text(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_what_is_moved_has_been_flushed(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr("os.replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    atomic.write_text(tmp_path / "file", "text")
    assert calls == ["fsync", "replace"]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    """In a process of its own: the umask belongs to the process, not to a thread."""
    code = """
import os, sys
from unbounded import atomic
for umask in (0o022, 0o002, 0o077):
    os.umask(umask)
    atomic.write_text(os.path.join(sys.argv[1], f"{umask:03o}"), "text")
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    for umask, expected in (("022", 0o644), ("002", 0o664), ("077", 0o600)):
        assert mode(tmp_path / umask) == expected


@pytest.mark.parametrize("kept", [0o600, 0o664, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, kept):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(kept)
    atomic.write_text(path, "new")
    assert path.read_text() == "new"
    assert mode(path) == kept


def test_what_replaces_a_private_file_is_private_at_once(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    with atomic.replacing(path) as temporary:
        assert mode(temporary) == 0o600


def test_many_writers_of_one_file(tmp_path):
    """The last one wins; at no time is there a mixture, or no file."""
    path = tmp_path / "file"
    atomic.write_bytes(path, b"x" * 100_000)

    def write(letter):
        for _ in range(20):
            atomic.write_bytes(path, letter * 100_000)
            found = path.read_bytes()
            assert len(found) == 100_000
            assert len(set(found)) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, [b"a", b"b", b"c", b"d"]))
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic.write_text(tmp_path / "none" / "file", "text")


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        atomic.write_text(tmp_path / "folder", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
