"""The part of a checkpoint that is in shards: one file of each process, in a folder beside it.

Written and read by torch's distributed checkpoint, in its safetensors format: no pickle is read.
The checkpoint itself names the folder and the digests of its files. It is replaced when the folder
is whole, so that a crash leaves the checkpoint before, with a folder of its own.
"""

import hashlib
import re
import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbounded import atomic
from unbounded.network import Placement
from unbounded.parallel import ProcessError, Processes, Shards
from unbounded.schema import FileError, mapping, record, text

DESCRIBED = record({"folder": text(300), "files": mapping(text(64))})
"""What a checkpoint says of its shards."""

_MARK = r"\.[0-9a-f]{16}\.shards"
_PIECE = 1 << 22


def write(path: str | Path, tensors: dict[str, Tensor], processes: Processes) -> dict[str, Any]:
    """Write the shards of all processes to a new folder beside `path`.

    Raises:
        ProcessError: in all processes, if one cannot write its own.

    Returns:
        What `read` needs to know, for the checkpoint; the same in all processes.
    """
    import torch.distributed.checkpoint as dcp

    target = Path(path)
    mark = processes.gather(secrets.token_hex(8))[0]
    folder = target.with_name(f"{target.name}.{mark}.shards")
    try:
        with processes.agreeing():
            if processes.is_first:
                with atomic.naming(path):
                    folder.mkdir()
        writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(tensors, storage_writer=writer)  # what fails in one process, fails in all
        with processes.agreeing():
            files = sorted(folder.iterdir())
            own = {file.name: _digest(file) for file in files[processes.rank :: processes.size]}
    except Exception as error:
        if processes.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        # All processes know of it: whoever has called this need not ask again.
        raise ProcessError(f"cannot write {path}: {_words(error)}") from error
    found = {name: value for part in processes.gather(own) for name, value in part.items()}
    return {"folder": folder.name, "files": found}


def read(
    path: str | Path, described: dict[str, Any], placement: Placement, processes: Processes
) -> dict[str, Tensor]:
    """The tensors that `write` wrote: in shards if the model is, else whole; no message is sent.

    Raises:
        FileError: if files are missing, damaged, or not of this checkpoint.
    """
    import torch.distributed.checkpoint as dcp

    name = described["folder"]
    if not re.fullmatch(re.escape(Path(path).name) + _MARK, name):
        raise FileError(f"the field shards.folder names {name!r}, which is not beside it")
    folder = Path(path).with_name(name)
    there = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    if there != sorted(described["files"]):
        raise FileError(f"its folder {name} does not hold the {len(described['files'])} files")
    for file in there[processes.rank :: processes.size]:  # together, all of them
        if _digest(folder / file) != described["files"][file]:
            raise FileError(f"the file {name}/{file} is damaged: it does not fit its digest")
    try:
        known = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors = {}
        for key, found in known.items():
            assert isinstance(found, dcp.TensorStorageMetadata)
            kind = found.properties.dtype
            if isinstance(placement, Shards):
                tensors[key] = placement.empty(found.size, kind)
            else:
                tensors[key] = torch.empty(found.size, dtype=kind)
        with warnings.catch_warnings():  # each process reads by itself, as it should
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            reader = dcp.HuggingFaceStorageReader(str(folder))
            dcp.load(tensors, storage_reader=reader, no_dist=True)
    except (SystemExit, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a reader in Rust that panics raises no Exception
        raise FileError(f"its folder {name} cannot be read: {_words(error)}") from None
    return tensors


def sweep(path: str | Path, keep: str | None) -> None:
    """Remove the folders of checkpoints that are replaced, but for the one to keep."""
    target = Path(path)
    for folder in target.parent.glob("*.shards"):
        ours = re.fullmatch(re.escape(target.name) + _MARK, folder.name)
        if ours and folder.name != keep:
            shutil.rmtree(folder, ignore_errors=True)


def _digest(file: Path) -> str:
    total = hashlib.sha256()
    with open(file, "rb") as stream:
        while piece := stream.read(_PIECE):
            total.update(piece)
    return total.hexdigest()


def _words(error: BaseException) -> str:
    """What torch has to say, in a line."""
    failures = getattr(error, "failures", None)
    inner = next(iter(failures.values()))[0] if failures else error
    return " ".join(str(inner).split())[:300] or type(inner).__name__
