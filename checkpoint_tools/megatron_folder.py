"""Reads Megatron-Core distributed checkpoints, one weight at a time, without Megatron-Core.

Whatever layout wrote a checkpoint: a stored tensor is whole, cut into boxes that may lie in any
file. Only the boxes that a weight needs are read, so optimizer state is never touched.
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations, product
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.utils import _create_file_view

from checkpoint_tools.hf_folder import common_dtype, first_names
from checkpoint_tools.megatron_index import read_index
from checkpoint_tools.raw_bytes import mapped
from checkpoint_tools.side_files import read_config
from checkpoint_tools.weight_map.architecture import Architecture, read_architecture
from checkpoint_tools.weight_map.checkpoint_keys import Place, places
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.pieces import Piece, cut
from checkpoint_tools.weight_map.table import weight_table

HF_FOLDER = "hf"
"""Inside a checkpoint written here: config and tokenizer of the model, without weights."""
TEACHER_PREFIX = "corew.teacher."
"""Before the keys of the teacher's weights, in checkpoints of the trainer."""
_EMBEDDING = "embedding.word_embeddings.weight"
_FOREIGN = ("optimizer.", "corew.", "rng", "rerun_state", "opt_param_scheduler")

Box = Sequence[tuple[int, int]]
"""Per dimension: first index, and the one after the last."""


class MegatronReader:
    """One model's weights in a checkpoint: the policy's, or the teacher's.

    The index is read and compared with the model's weight table at once, so that a missing,
    misshapen or unexpected tensor shows before any work is done.
    """

    def __init__(
        self, folder: str | Path, *, config_folder: str | Path | None = None, teacher: bool = False
    ) -> None:
        """Open a checkpoint.

        Args:
            folder: the checkpoint of one step.
            config_folder: Hugging Face folder whose config.json describes the model; None: the one
                that the converter left inside the checkpoint.
            teacher: read the teacher's weights of a trainer's checkpoint.

        Raises:
            ValueError: there is no checkpoint or no config, the architecture is not supported, or
                the stored tensors are not the model's.
            RuntimeError: the checkpoint is damaged or incomplete.
        """
        self.folder = Path(folder)
        self._index = read_index(self.folder)
        self.config_folder = _config_folder(self.folder, config_folder)
        self.config = read_config(self.config_folder)
        self.architecture: Architecture = read_architecture(self.config)
        _refuse_contradiction(self.folder, self.architecture, self.config_folder)
        self._prefix = TEACHER_PREFIX if teacher else ""
        self._stored = {
            key.removeprefix(self._prefix): stored
            for key, stored in self._index.state_dict_metadata.items()
            if key.startswith(self._prefix) and isinstance(stored, TensorStorageMetadata)
        }
        self.table = self._read_table(teacher)
        self._places = {
            name: self._stored_place(place) for name, place in places(self.table).items()
        }
        self._check()
        self._candidates = {
            place.key: _by_stack(self._stored[place.key].chunks, len(place.index))
            for place in self._places.values()
        }

    @property
    def dtype(self) -> torch.dtype:
        """The stored type of the weights, which must all have the same.

        Raises:
            ValueError: there are several, or it is none that is written here.
        """
        keys = {place.key for place in self._places.values()}
        return common_dtype(self.folder, (self._stored[key].properties.dtype for key in keys))

    def read(self, entry: Entry) -> dict[str, Tensor]:
        """Read one row of the table.

        Args:
            entry: of ``table``.

        Returns:
            Hugging Face name -> tensor in its stored dtype, on the CPU; a memory map where the
            checkpoint stores its numbers in one box.

        Raises:
            RuntimeError: a file is damaged.
        """
        tensors: dict[str, Tensor] = {}
        for piece in cut(entry, 1):
            tensors |= piece.take_apart(self._read_piece(piece))
        return tensors

    def _read_piece(self, piece: Piece) -> Tensor:
        place = self._places[piece.entry.megatron_name]
        stacked = [(number, number + 1) for number in place.index]
        inner = zip(piece.offset, piece.shape, strict=True)
        wanted = (*stacked, *((first, first + size) for first, size in inner))
        origin = [first for first, _ in wanted]
        shared = {
            number: common
            for number in self._candidates[place.key][place.index]
            if (common := _common(self._stored[place.key].chunks[number], wanted))
        }
        first_of_stack = (0,) * len(stacked)
        if list(shared.values()) == [list(wanted)]:
            (number,) = shared
            return self._box(place.key, number, wanted)[first_of_stack]
        if _overlap(list(shared.values())):
            raise RuntimeError(f"{self.folder}: the index stores parts of {place.key} twice.")
        dtype = self._stored[place.key].properties.dtype
        target = torch.empty([last - first for first, last in wanted], dtype=dtype)
        for number, common in shared.items():
            _narrow(target, origin, common).copy_(self._box(place.key, number, common))
        return target[first_of_stack]

    def _box(self, key: str, number: int, box: Box) -> Tensor:
        """Part of one stored box, by memory map."""
        chunk = self._stored[key].chunks[number]
        return _narrow(self._chunk(key, number, chunk), chunk.offsets, box)

    def _chunk(self, key: str, number: int, chunk: ChunkStorageMetadata) -> Tensor:
        """One stored box, by memory map."""
        index = MetadataIndex(self._prefix + key, chunk.offsets, number)
        stored = self._index.storage_data.get(index)
        if stored is None:
            raise RuntimeError(f"{self.folder}: the index does not say where {key} is stored.")
        file = self.folder / stored.relative_path
        try:
            with file.open("rb") as opened:
                view = cast(IO[bytes], _create_file_view(opened, stored.offset, stored.length))
                # Shape, strides and place of the numbers; the numbers themselves are not read.
                outline = torch.load(view, map_location="meta", weights_only=True)
        except (RuntimeError, ValueError, OSError, UnpicklingError) as error:
            raise RuntimeError(
                f"{file}: need {key} at byte {stored.offset}, got something that torch does not "
                "read as a tensor. The file is damaged, or from elsewhere."
            ) from error
        dtype = self._stored[key].properties.dtype
        fits = isinstance(outline, Tensor) and outline.dtype == dtype
        if not fits or tuple(outline.shape) != tuple(chunk.sizes):
            raise RuntimeError(
                f"{file}: need {key} of {list(chunk.sizes)} at byte {stored.offset}, got "
                "another shape or type. The file does not belong to its index."
            )
        storage = outline.untyped_storage()
        numbers = mapped(
            file,
            start=stored.offset + storage._checkpoint_offset,
            count=storage.nbytes() // outline.itemsize,
            dtype=outline.dtype,
        )
        first = numbers.storage_offset() + outline.storage_offset()
        return numbers.as_strided(outline.shape, outline.stride(), first)

    def _read_table(self, teacher: bool) -> tuple[Entry, ...]:
        if _EMBEDDING not in self._stored:
            who = "teacher" if teacher else "policy"
            raise ValueError(
                f"{self.folder}: need the {who}'s {_EMBEDDING}, got none. "
                + ("Leave --teacher out." if teacher else "Is this a GPT model's checkpoint?")
            )
        return weight_table(self.architecture, padded_vocab=self._stored[_EMBEDDING].size[0])

    def _stored_place(self, place: Place) -> Place:
        """Some Megatron settings store each layer under its own number instead of a stack."""
        if place.key in self._stored or not place.index:
            return place
        number = f"decoder.layers.{place.index[0]}."
        own = place.key.replace("decoder.layers.", number, 1)
        return Place(key=own, index=place.index[1:], stack=place.stack[1:])

    def _check(self) -> None:
        missing = [name for name, place in self._places.items() if place.key not in self._stored]
        if missing:
            raise ValueError(
                f"{self.folder}: {first_names(missing)} missing. Name the Hugging Face folder that "
                "the checkpoint was trained from (--like)."
            )
        known = {place.key for place in self._places.values()}
        extra = [key for key in self._stored if key not in known and not key.startswith(_FOREIGN)]
        if extra:
            raise ValueError(
                f"{self.folder}: {first_names(extra)} not part of a {self.architecture.family} "
                "model. Name the Hugging Face folder that the checkpoint was trained from (--like)."
            )
        for entry in self.table:
            place = self._places[entry.megatron_name]
            needed = (*place.stack, *entry.megatron_shape)
            stored = self._stored[place.key]
            got = tuple(stored.size)
            if got != needed:
                raise ValueError(
                    f"{self.folder}: {place.key} must be {list(needed)}, got {list(got)}. Name the "
                    "Hugging Face folder that the checkpoint was trained from (--like)."
                )
            held = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
            if held != math.prod(got):
                raise RuntimeError(
                    f"{self.folder}: need {math.prod(got)} numbers of {place.key}, got {held}. "
                    "The checkpoint is incomplete."
                )


def _refuse_contradiction(folder: Path, architecture: Architecture, config_folder: Path) -> None:
    """Another model's config would give other results from the same numbers, unnoticed."""
    if not (folder / HF_FOLDER).is_dir():
        return
    own = read_architecture(read_config(folder / HF_FOLDER))
    for name in (one.name for one in fields(own)):
        if getattr(own, name) != getattr(architecture, name):
            raise ValueError(
                f"{config_folder}: need the {name} of {folder / HF_FOLDER} "
                f"({getattr(own, name)}), got {getattr(architecture, name)}. Name the folder of "
                "the same model (--like), or leave --like out."
            )


def _by_stack(
    chunks: Sequence[ChunkStorageMetadata], depth: int
) -> dict[tuple[int, ...], list[int]]:
    """(layer, expert) -> numbers of the boxes that hold a part of it: a model has thousands."""
    numbers: dict[tuple[int, ...], list[int]] = {}
    for number, chunk in enumerate(chunks):
        stacked = zip(chunk.offsets[:depth], chunk.sizes[:depth], strict=True)
        for index in product(*(range(start, start + size) for start, size in stacked)):
            numbers.setdefault(index, []).append(number)
    return numbers


def _config_folder(folder: Path, config_folder: str | Path | None) -> Path:
    if config_folder is not None:
        return Path(config_folder)
    inside = folder / HF_FOLDER
    if not inside.is_dir():
        raise ValueError(
            f"{folder}: need the model's config, got a checkpoint without {HF_FOLDER}/. Name the "
            "Hugging Face folder that it was trained from (--like)."
        )
    return inside


def _common(chunk: ChunkStorageMetadata, wanted: Box) -> Box | None:
    """What a stored box and the wanted one share; None: nothing."""
    common = [
        (max(offset, first), min(offset + size, last))
        for offset, size, (first, last) in zip(chunk.offsets, chunk.sizes, wanted, strict=True)
    ]
    return common if all(first < last for first, last in common) else None


def _overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes share a number. With their sizes adding up, they then leave a gap."""
    return any(
        all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one, two, strict=True))
        for one, two in combinations(boxes, 2)
    )


def _narrow(tensor: Tensor, origin: Sequence[int], box: Box) -> Tensor:
    """View of a box, for a tensor whose first element stands at ``origin``."""
    for dim, (start, (first, last)) in enumerate(zip(origin, box, strict=True)):
        tensor = tensor.narrow(dim, first - start, last - first)
    return tensor
