"""Where commands write: targets checked before the work, and only files of ours replaced."""

import argparse
import csv
import gzip
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from unbounded import atomic
from unbounded.cli.common import CommandError

_LOOKED_AT = 1 << 20  # bytes that are looked at to tell what a file is
_STANDARD_OUTPUT = 1

MODEL, PAGE, PREDICTIONS = "a model", "a page", "a table of predictions"
EXPORT = "an exported model"


def check_output(options: argparse.Namespace, path: Path, kind: str, *inputs: Path | None) -> Path:
    """The path, if a file of this kind can be written there; asked before any work is done.

    Args:
        options: of the command; `--force` replaces what is no file of ours.
        path: where.
        kind: `MODEL`, `PAGE`, `PREDICTIONS` or `EXPORT`.
        inputs: files that must not be written over.
    """
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            raise CommandError(f"cannot write {path}: it is being read from; name another file")
    atomic.check_target(path)
    if options.json and atomic.descriptor(path) == _STANDARD_OUTPUT:
        raise CommandError(f"cannot write {path}: with --json the document stands there")
    if not options.force and atomic.is_file(path) and not _is_ours(path, kind):
        raise CommandError(
            f"cannot write {path}: it is there already and is not {kind} that unbounded wrote; "
            "--force replaces it"
        )
    return path


def same_place(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, be it there or not."""
    return os.path.realpath(one) == os.path.realpath(other)


def _is_ours(path: Path, kind: str) -> bool:
    """Whether a file is not there, is empty, or is one that a command made of this kind."""
    try:
        size = path.stat().st_size
        if size == 0:
            return True
        if kind == MODEL:
            return _is_model(path)
        if kind == EXPORT:
            return _is_export(path)
        return _is_page(path, size) if kind == PAGE else _is_predictions(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_model(path: Path) -> bool:
    """A safetensors file, perhaps cut short, with our name in its header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(min(size, 100 << 20))
    return header.startswith(b'{"__metadata__":{') and b'"unbounded":"' in header


def _is_export(path: Path) -> bool:
    """An ONNX file that names us as its producer, or an archive of torch with our description."""
    with path.open("rb") as file:
        if b"\x12\tunbounded" in file.read(64):
            return True
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/unbounded.json") for name in archive.namelist())


def _is_page(path: Path, size: int) -> bool:
    """A page with our name at its head or, as older versions wrote it, at its foot."""
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(0, size - 1024))
        foot = file.read()
    written = b'<meta name="generator" content="unbounded ' in head
    return head.startswith(b"<!DOCTYPE html>") and (
        written or b"<footer>Written by unbounded " in foot
    )


def _is_predictions(path: Path) -> bool:
    """A table with the columns that `predict` writes, in any of its formats."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    if start.startswith(b"PAR1"):
        return _are_ours(_parquet_names(path))
    if start.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as packed:
                start = packed.read(_LOOKED_AT)
        except (EOFError, zlib.error):
            return False
    text = start.decode("utf-8", "replace")
    if text.startswith("{"):
        try:
            first = json.loads(text.split("\n", 1)[0])
        except (ValueError, RecursionError):
            return False
        return isinstance(first, dict) and _are_ours(first)
    for delimiter in (",", "\t"):
        try:
            names = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error:
            continue
        if _are_ours(names):
            return True
    return False


def _parquet_names(path: Path) -> list[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        return list(parquet.read_schema(path).names)
    except pyarrow.ArrowException:
        return []


def _are_ours(names: Iterable[str]) -> bool:
    found = set(names)
    classes = "prediction" in found and any(re.match("p_", name) for name in found)
    return classes or {"mean", "sd", "lower", "upper"} <= found
