"""Files that are written whole or not at all."""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield an empty file beside `path`; move it to `path` if the block ends without an error.

    Readers see the old file or the new one, never a part. The new file is on the disk before it
    is moved. It keeps the permissions of the file it replaces; a file that was not there gets the
    usual ones (0666 less the umask). After an error the old file is as it was, and the temporary
    one is gone.

    Args:
        path: the file to write; its folder must exist.
    """
    path = Path(path)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mode = None
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # The system itself takes the umask off, so nobody has to ask for it. What replaces a private
    # file is private from its first byte on.
    created = os.open(
        temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else 0o600
    )
    os.close(created)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_target(path: str | Path) -> Path:
    """The path, if a file could be written there; to be asked before the work is done.

    Raises:
        OSError: if it is a folder, or if its folder is not there or closed.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if not path.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not path.parent.is_dir():
        raise NotADirectoryError(f"cannot write {path}: {path.parent} is a file, not a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(f"cannot write {path}: permission denied")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise type(error)(f"cannot write {path}: {str(error.strerror).lower()}") from None


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file of bytes, see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write a file of text in UTF-8 with plain line feeds, see `replacing`."""
    write_bytes(path, text.encode())
