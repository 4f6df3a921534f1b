"""Writes a Hugging Face folder, each tensor straight to its place in its file.

The shapes are known from the config, so the files are laid out before the first tensor comes:
tensors may be added in any order, from several threads, and none is kept in memory.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from checkpoint_tools.hf_folder import INDEX_FILE, SINGLE_FILE, HfReader, first_names, hf_shapes
from checkpoint_tools.partial_folder import PartialFolder
from checkpoint_tools.raw_bytes import raw_bytes
from checkpoint_tools.side_files import (
    CONFIG_FILE,
    COPIED_FILES,
    copy_side_files,
    read_config,
    read_json,
    write_json,
)
from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.entry import Shape
from checkpoint_tools.weight_map.table import weight_table

_OWN_FILES = ("*.safetensors", INDEX_FILE, CONFIG_FILE, *COPIED_FILES)
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class _Place(NamedTuple):
    file: str
    start: int
    """Of the tensor's first byte in the file."""


class HfWriter:
    """A Hugging Face folder in the making.

    As a context manager it finishes on success, unless that was done, and clears away on an error.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        source_folder: str | Path,
        dtype: torch.dtype,
        shard_bytes: float = 5e9,
        like: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Start a folder.

        Args:
            folder: the target.
            source_folder: where config, generation config and tokenizer come from.
            dtype: type of the written weights.
            shard_bytes: a weight file is closed before it grows beyond this, in bytes.
            like: lay the weight files out and name them as those of ``source_folder``; the size
                of a shard is then not used.
            overwrite: replace an existing target at the end.

        Raises:
            ValueError: the target exists, or the source has no supported config or, with ``like``,
                no complete weights.
            RuntimeError: the disk is too full, or the target is being written already.
        """
        self.folder, self._source = Path(folder).absolute(), Path(source_folder)
        self._dtype = dtype
        table = weight_table(read_architecture(read_config(self._source)))
        self._shapes = hf_shapes(table)
        if like:
            reader = HfReader(self._source)
            reader.check_complete(table)
            self._shards, self._index = _shards_like(reader, self._shapes)
        else:
            self._shards, self._index = _shards_of_size(self._shapes, dtype, shard_bytes)
        self.num_bytes = sum(_num_bytes(shape, dtype) for shape in self._shapes.values())
        self._missing, self._adding = set(self._shapes), Lock()
        self._partial = PartialFolder(
            folder, num_bytes=self.num_bytes, overwrite=overwrite, own_files=_OWN_FILES
        )
        self._writing = {file: Lock() for file in self._shards}
        try:
            self._places = self._lay_out()
        except BaseException:
            self._partial.discard()
            raise

    def add(self, name: str, tensor: Tensor) -> None:
        """Write one tensor; threads may add different ones at the same time.

        Args:
            name: Hugging Face name.
            tensor: any device, dtype and layout.

        Raises:
            ValueError: the name is unknown or was added before, or the shape is wrong.
            RuntimeError: the disk takes no more.
        """
        with self._adding:
            if name not in self._missing or self._shapes[name] != tuple(tensor.shape):
                shape = self._shapes[name] if name in self._missing else None
                needed = f"of shape {list(shape)}" if shape else "of the model, and only once"
                raise ValueError(
                    f"{self.folder}: need each tensor {needed}, got {name} of {list(tensor.shape)}."
                )
            self._missing.remove(name)
        place = self._places[name]
        content = raw_bytes(tensor.detach().to("cpu", self._dtype))
        file = self._partial.path / place.file
        try:
            # The kernel lets one writer at a time into a file: wait for that asleep.
            with self._writing[place.file], file.open("r+b") as opened:
                opened.seek(place.start)
                opened.write(content)
        except OSError as error:
            raise RuntimeError(f"{self.folder}: {name} cannot be written: {error}.") from error
        self._partial.wrote(file, content.nbytes)

    def finish(self) -> Path:
        """Add index, config and tokenizer, and give the folder its name.

        Returns:
            The finished folder.

        Raises:
            ValueError: tensors have not been added, or the target has appeared meanwhile.
        """
        if self._missing:
            missing = [name for name in self._shapes if name in self._missing]
            raise ValueError(f"{self.folder}: {first_names(missing)} not added.")
        if self._index is not None:
            self._index["metadata"] |= {"total_size": self.num_bytes}
            write_json(self._partial.path / INDEX_FILE, self._index)
        copy_side_files(self._source, self._partial.path, self._dtype)
        # Reads every header: each file is whole, and the index fits.
        HfReader(self._partial.path)
        return self._partial.publish()

    def discard(self) -> None:
        """Remove what has been written; the target is left as it was."""
        self._partial.discard()

    def __enter__(self) -> Self:
        """Nothing to do: the writer is open from the start."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish, or clear away after an error."""
        try:
            if kind is None and self._partial.path.exists():
                self.finish()
        finally:
            self.discard()

    def _lay_out(self) -> dict[str, _Place]:
        places: dict[str, _Place] = {}
        for file_name, names in self._shards.items():
            header, ends = _header({name: self._shapes[name] for name in names}, self._dtype)
            with (self._partial.path / file_name).open("wb") as file:
                self._partial.reserve(file, len(header) + max(end for _, end in ends.values()))
                file.write(header)
            places |= {
                name: _Place(file_name, len(header) + start) for name, (start, _) in ends.items()
            }
        return places


Shards = dict[str, list[str]]
"""File -> names of its tensors."""


def _shards_like(
    reader: HfReader, wanted: Mapping[str, Shape]
) -> tuple[Shards, dict[str, Any] | None]:
    """The shards of an existing folder, and its index if it has one, without what is not wanted."""
    shards: Shards = {}
    for name, file in reader.files().items():
        if name in wanted:
            shards.setdefault(file, []).append(name)
    if not (reader.folder / INDEX_FILE).is_file():
        return shards, None
    index = {"metadata": {}} | read_json(reader.folder / INDEX_FILE)
    index["weight_map"] = {n: file for n, file in index["weight_map"].items() if n in wanted}
    return shards, index


def _shards_of_size(
    wanted: Mapping[str, Shape], dtype: torch.dtype, shard_bytes: float
) -> tuple[Shards, dict[str, Any] | None]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in wanted.items():
        size = _num_bytes(shape, dtype)
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {SINGLE_FILE: shards[0]}, None
    named = {
        f"model-{number:05d}-of-{len(shards):05d}.safetensors": names
        for number, names in enumerate(shards, start=1)
    }
    weight_map = {name: file for file, names in named.items() for name in names}
    return named, {"metadata": {}, "weight_map": weight_map}


def _header(
    tensors: Mapping[str, Shape], dtype: torch.dtype
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The head of a safetensors file, and where each tensor starts and ends after it.

    Source: the format section of safetensors' README; order and padding are those of its writer.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends: dict[str, tuple[int, int]] = {}
    start = 0
    for name in sorted(tensors):
        end = start + _num_bytes(tensors[name], dtype)
        ends[name] = (start, end)
        entries[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": list(tensors[name]),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ends


def _num_bytes(shape: Shape, dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
