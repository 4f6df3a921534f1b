"""The index of a Megatron-Core distributed checkpoint: what it holds, and in which file.

The index is a pickle. It is read by an unpickler that builds torch's index classes and nothing
else, so that a checkpoint from elsewhere cannot run code here.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.filesystem as dcp_filesystem
import torch.distributed.checkpoint.metadata as dcp_metadata
import torch.distributed.checkpoint.planner as dcp_planner
from torch.distributed.checkpoint.metadata import Metadata

INDEX_FILE = ".metadata"
_CLASSES: dict[str, tuple[object, frozenset[str]]] = {
    "torch.distributed.checkpoint.metadata": (
        dcp_metadata,
        frozenset(
            {
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            }
        ),
    ),
    "torch.distributed.checkpoint.planner": (
        dcp_planner,
        frozenset({"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"}),
    ),
    "torch.distributed.checkpoint.filesystem": (
        dcp_filesystem,
        frozenset({"_StorageInfo", "_StoragePrefix"}),
    ),
    "torch.serialization": (torch.serialization, frozenset({"_get_layout"})),
}
# Classes of Megatron-Core's own and paths: kept by some versions, needed by no reader.
_PASSED_OVER = {
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"),
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
}


# What unpickling damaged bytes raises.
_DAMAGE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


class _Ignored:
    """Stands for an object that the index carries and nobody reads."""

    def __init__(self, *_: object) -> None: ...


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        owner, names = _CLASSES.get(module, (None, frozenset()))
        if name in names:
            return getattr(owner, name)
        if (module, name) in _PASSED_OVER:
            return _Ignored
        value = getattr(torch, name, None) if module == "torch" else None
        if value is torch.Size or isinstance(value, torch.dtype):
            return value
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into an index")


def is_megatron_folder(folder: Path) -> bool:
    """Whether a folder looks like a distributed checkpoint."""
    return (folder / INDEX_FILE).is_file()


def read_index(folder: Path) -> Metadata:
    """Read a checkpoint's index and check the sizes of the files it names.

    Args:
        folder: the checkpoint.

    Returns:
        torch's description of all stored tensors and objects.

    Raises:
        ValueError: there is no index.
        RuntimeError: the index is damaged or holds foreign classes, or a file is missing or short.

    Source: torch.distributed.checkpoint, FileSystemReader.read_metadata.
    """
    file = folder / INDEX_FILE
    if not file.is_file():
        raise ValueError(
            f"{folder}: need a Megatron-Core distributed checkpoint, got a folder without "
            f"{INDEX_FILE}. Name the folder of one iteration."
        )
    try:
        index = _unpickled(file)
        ends = _ends(index)
    except _DAMAGE as error:
        raise RuntimeError(
            f"{file}: need torch's index of a checkpoint, got: {error}. The file is damaged or "
            "was not written by Megatron-Core."
        ) from error
    _check_files(folder, ends)
    return index


def write_index(folder: Path, index: Metadata) -> None:
    """Write a checkpoint's index, as torch reads it."""
    with (folder / INDEX_FILE).open("wb") as file:
        pickle.dump(index, file)


def _unpickled(file: Path) -> Metadata:
    with file.open("rb") as opened:
        index = _IndexUnpickler(opened).load()
    if not isinstance(index, Metadata) or index.storage_data is None:
        raise TypeError("something else")
    return index


def _ends(index: Metadata) -> dict[str, int]:
    """File -> where the last of its contents ends, in bytes."""
    ends: dict[str, int] = {}
    for stored in index.storage_data.values():
        end = stored.offset + stored.length
        ends[stored.relative_path] = max(ends.get(stored.relative_path, 0), end)
    return ends


def _check_files(folder: Path, ends: dict[str, int]) -> None:
    for name, end in ends.items():
        path = folder / name
        if path.resolve().parent != folder.resolve():
            raise RuntimeError(f"{folder}: the index names {name}, which lies outside.")
        size = path.stat().st_size if path.is_file() else 0
        if size < end:
            raise RuntimeError(
                f"{path}: need {end} bytes, got {size}. The checkpoint is incomplete: copy it "
                "again, or use an older one."
            )
