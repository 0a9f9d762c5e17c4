"""Files that are written whole or not at all, and nothing replaced but regular files."""

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EROFS, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_STALE = 24 * 3600.0  # seconds after which the rest of a write is nobody's, whoever began it
_LONGEST = 200  # bytes of a name that a temporary one can still hold


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield an empty file beside `path`; move it to `path` if the block ends without an error.

    Readers see the old file or the new one, never a part. The new file is on the disk before it
    is moved. It keeps the permissions of the file it replaces and, where the system allows it,
    the owner; a file that was not there gets the usual ones (0666 less the umask). After an
    error the old file is as it was, and the temporary one is gone. What a killed process left
    behind of an earlier write goes, too.

    Links are followed: they stay, and what they lead to is replaced. Devices, FIFOs and
    descriptors such as /dev/stdout are never replaced: when the file is whole, it is copied into
    them.

    Args:
        path: the file to write; its folder must exist.

    Raises:
        OSError: "cannot write …" with the name of the file.
    """
    with naming(path):
        target = _followed(path)
    if target is None:
        with _copying(path) as temporary:
            yield temporary
        return
    with naming(path):
        there = _status(target)
        _sweep(target)
        temporary = _temporary(target, there is not None)
    try:
        with naming(path, temporary):
            yield temporary
        with naming(path):
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            if there is not None:
                _keep_owner(temporary, there)
                temporary.chmod(stat.S_IMODE(there.st_mode))
            os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_target(path: str | Path) -> Path:
    """The path, if a file could be written there; to be asked before the work is done.

    Raises:
        OSError: if it is a folder, or if its folder is not there or closed.
    """
    path = Path(path)
    with naming(path):
        target = _followed(path)
    if target is None:
        number = descriptor(path)
        with naming(path):
            if number is not None:
                os.fstat(number)  # an error if it is not open
            elif not os.access(path, os.W_OK):
                raise PermissionError(f"cannot write {path}: permission denied")
        return path
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if not target.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: the folder {target.parent} does not exist")
    if not target.parent.is_dir():
        raise NotADirectoryError(f"cannot write {path}: {target.parent} is a file, not a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"cannot write {path}: permission denied")
    with naming(path), tempfile.TemporaryFile(dir=target.parent):
        return path


def is_file(path: str | Path) -> bool:
    """Whether writing to `path` makes or replaces a file, rather than feed a device or a pipe."""
    return _followed(path) is not None


def descriptor(path: str | Path) -> int | None:
    """The number of the open descriptor that a path such as /dev/stdout stands for."""
    current = os.path.abspath(path)
    for _ in range(40):
        found = re.fullmatch(r"(?:/proc/(?:self|thread-self|(\d+))|/dev)/fd/(\d+)", current)
        if found and found[1] in (None, str(os.getpid())):
            return int(found[2])
        if not os.path.islink(current):
            return None
        current = os.path.normpath(os.path.join(os.path.dirname(current), os.readlink(current)))
    return None


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file of bytes, see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write a file of text in UTF-8 with plain line feeds, see `replacing`."""
    write_bytes(path, text.encode())


@contextmanager
def naming(path: str | Path, temporary: Path | None = None) -> Iterator[None]:
    """Errors of writing with the name of the file that the user knows.

    With a temporary file, only those that are about it or about a full or closed disk: the block
    is somebody else's and may fail for other reasons.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BrokenPipeError):
            raise
        about = None if error.filename is None else os.fspath(error.filename)
        if temporary is None:
            ours = True
        elif about is None:
            ours = error.errno in _FULL
        else:
            ours = about == os.fspath(temporary)
        if not ours:
            raise
        reason = os.strerror(error.errno)
        told = type(error)(f"cannot write {path}: {reason[:1].lower()}{reason[1:]}")
        told.errno = error.errno
        raise told from None


@contextmanager
def spooling(name: str) -> Iterator[Path]:
    """Yield a file for the time of the block; an error of a full disk says what it was for."""
    with naming(name):
        handle, made = tempfile.mkstemp(prefix="unbounded-")
        os.close(handle)
    temporary = Path(made)
    try:
        with naming(name, temporary):
            yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _followed(path: str | Path) -> Path | None:
    """The file that a path leads to; None for devices, FIFOs and descriptors.

    Raises:
        OSError: if links lead in a circle, or to a disk or a socket.
    """
    path = Path(path)
    if descriptor(path) is not None:
        return None
    status = _status(path)
    if status is not None:
        if stat.S_ISBLK(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            what = "a disk" if stat.S_ISBLK(status.st_mode) else "a socket"
            raise OSError(f"cannot write {path}: it is {what}, not a file")
        if stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode):
            return None
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _status(path: Path) -> os.stat_result | None:
    """What the system says of a file, links followed; None if it is not there."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def _copying(path: str | Path) -> Iterator[Path]:
    """Yield an empty file; copy it into a device, a FIFO or a descriptor at the end."""
    with spooling(str(path)) as temporary:
        yield temporary
        number = descriptor(path)
        if number == 1 and sys.stdout is not None:
            sys.stdout.flush()  # what was printed before comes before
        with naming(path):
            # A copy of the descriptor shares its place in the file: what is there stays.
            handle = os.open(path, os.O_WRONLY) if number is None else os.dup(number)
            with open(handle, "wb") as into, open(temporary, "rb") as whole:
                shutil.copyfileobj(whole, into)


def _marks(target: Path) -> tuple[str, str]:
    """How the names of temporary files for `target` begin, and the mark of this machine."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    host = hashlib.sha256(platform.node().encode(errors="replace")).hexdigest()[:6]
    return f".{name}.", host


def _temporary(target: Path, private: bool) -> Path:
    """A new, empty file beside the target; its name says which process writes it."""
    begin, host = _marks(target)
    path = target.with_name(f"{begin}{os.getpid()}-{host}-{secrets.token_hex(4)}")
    # The system itself takes the umask off, so nobody has to ask for it. What replaces a private
    # file is private from its first byte on.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(path, flags, 0o600 if private else 0o666))
    return path


def _sweep(target: Path) -> None:
    """Remove what killed processes left behind when they wrote this file."""
    begin, host = _marks(target)
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if not entry.name.startswith(begin):
                continue
            found = re.fullmatch(r"(\d+)-([0-9a-f]{6})-[0-9a-f]{8}", entry.name[len(begin) :])
            if found is None:
                continue
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                mine = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
                dead = found[2] == host and not _is_alive(int(found[1]))
                old = time.time() - status.st_mtime > _STALE
                if stat.S_ISREG(status.st_mode) and mine and (dead or old):
                    os.unlink(entry.path)


def _is_alive(process: int) -> bool:
    """Whether a process of this machine runs; True where that cannot be asked."""
    if sys.platform == "win32":  # there, os.kill ends it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _keep_owner(temporary: Path, there: os.stat_result) -> None:
    """Give the file its group and owner back, as far as the system lets us."""
    if not hasattr(os, "chown"):
        return
    made = temporary.stat()
    for uid, gid, differs in (
        (-1, there.st_gid, made.st_gid != there.st_gid),
        (there.st_uid, -1, made.st_uid != there.st_uid),
    ):
        if differs:
            with suppress(OSError):
                os.chown(temporary, uid, gid)
