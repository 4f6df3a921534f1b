"""Writes Megatron-Core distributed checkpoints, piece by piece, without Megatron-Core.

A checkpoint belongs to no layout: any number of ranks may load it. The layout given here only
decides how the stored tensors are cut, so that each of its ranks reads its own bytes.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.utils.serialization import config as serialization

from checkpoint_tools.megatron_folder import HF_FOLDER, MegatronReader
from checkpoint_tools.megatron_index import INDEX_FILE, write_index
from checkpoint_tools.partial_folder import PartialFolder
from checkpoint_tools.raw_bytes import with_own_storage
from checkpoint_tools.side_files import copy_side_files, read_config
from checkpoint_tools.weight_map.architecture import Architecture, read_architecture
from checkpoint_tools.weight_map.checkpoint_keys import Place, extra_states, places
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.pieces import Piece, cut
from checkpoint_tools.weight_map.table import weight_table

_FILE_BYTES = 256e6
"""A file is closed before it grows beyond this, in bytes, so that workers can share a model."""
_ALIGNMENT = 64
"""A tensor's archive begins at a multiple of so many bytes, as the numbers in it do: those of an
odd place could not be used where they lie in a mapped file."""
_ARCHIVE_BYTES = 4096
"""More than torch.save adds to a tensor's numbers."""
_OWN_FILES = ("*.distcp", INDEX_FILE, "metadata.json", "common.pt", HF_FOLDER)
_FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The ranks for which a checkpoint is cut."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1


@dataclass(frozen=True, slots=True)
class _Item:
    """One piece, and where it stands in the tensor that the checkpoint stores."""

    place: Place
    piece: Piece

    @property
    def offset(self) -> torch.Size:
        return torch.Size((*self.place.index, *self.piece.offset))

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*(1 for _ in self.place.index), *self.piece.shape))


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the checkpoint and the pieces that go into it."""

    name: str
    items: tuple[_Item, ...]


class MegatronWriter:
    """A checkpoint in the making: ``write`` each of ``files``, then ``finish``, or ``discard``."""

    def __init__(
        self,
        folder: str | Path,
        *,
        source_folder: str | Path,
        dtype: torch.dtype,
        layout: Layout,
        overwrite: bool = False,
    ) -> None:
        """Plan a checkpoint and make its hidden folder.

        Args:
            folder: the target.
            source_folder: Hugging Face folder with config and tokenizer, which are kept with it.
            dtype: type of the written weights.
            layout: of the ranks that will read it most often.
            overwrite: replace an existing target at the end.

        Raises:
            ValueError: the layout does not divide the model, the target exists, or the source has
                no supported config.
            RuntimeError: the disk is too full, or the target is being written already.
        """
        self._source, self._dtype = Path(source_folder), dtype
        architecture = read_architecture(read_config(self._source))
        padded = -(-architecture.vocab_size // layout.tensor) * layout.tensor
        self.table = weight_table(architecture, padded_vocab=padded)
        self.files = plan_files(architecture, self.table, layout, dtype)
        self.num_bytes = sum(
            item.shape.numel() * dtype.itemsize for file in self.files for item in file.items
        )
        self._storage: dict[MetadataIndex, _StorageInfo] = {}
        self._partial = PartialFolder(
            folder, num_bytes=self.num_bytes, overwrite=overwrite, own_files=_OWN_FILES
        )

    def write(self, file: PlannedFile, build: Callable[[Piece], Tensor]) -> None:
        """Write one file; threads may write different ones at the same time.

        Args:
            file: one of ``files``.
            build: gives a piece's values, in the type of the checkpoint.

        Raises:
            RuntimeError: the disk takes no more.
        """
        path = self._partial.path / file.name
        try:
            # Nobody checks the sums: torch.load does not, and unzip cannot read joined archives.
            unsummed = serialization.patch({"save.compute_crc32": False})  # type: ignore[attr-defined]
            with unsummed, path.open("wb") as opened:
                self._partial.reserve(opened, self._largest_size(file))
                for number, item in enumerate(file.items):
                    content = with_own_storage(build(item.piece)).view(item.shape)
                    start = -(-opened.tell() // _ALIGNMENT) * _ALIGNMENT
                    opened.seek(start)
                    torch.save(content, opened)
                    length = opened.tell() - start
                    index = MetadataIndex(item.place.key, item.offset, number)
                    self._storage[index] = _StorageInfo(file.name, start, length)
                    self._partial.wrote(path, length)
                opened.truncate()
        except OSError as error:
            raise RuntimeError(f"{self._partial.target}: cannot be written: {error}.") from error

    def _largest_size(self, file: PlannedFile) -> int:
        numbers = sum(item.shape.numel() * self._dtype.itemsize for item in file.items)
        return numbers + len(file.items) * _ARCHIVE_BYTES

    def finish(self) -> Path:
        """Add index, extra states, config and tokenizer, and give the folder its name.

        Returns:
            The finished folder.

        Raises:
            ValueError: the target has appeared meanwhile.
        """
        folder = self._partial.path
        states = self._write_extra_states(folder / "extra_states.distcp")
        write_index(
            folder,
            Metadata(
                state_dict_metadata={**self._tensors(), **states},
                storage_data=self._storage,
                storage_meta=StorageMeta(),
            ),
        )
        (folder / "metadata.json").write_text(json.dumps(_FORMAT))
        torch.save({}, folder / "common.pt")
        (folder / HF_FOLDER).mkdir()
        copy_side_files(self._source, folder / HF_FOLDER, self._dtype)
        MegatronReader(folder)
        return self._partial.publish()

    def discard(self) -> None:
        """Remove what has been written; the target is left as it was."""
        self._partial.discard()

    def _write_extra_states(self, file: Path) -> dict[str, BytesStorageMetadata]:
        """Without FP8 an extra state is empty, yet Megatron-Core asks for each of them."""
        buffer = io.BytesIO()
        torch.save([torch.empty(0, dtype=torch.uint8)], buffer)
        content, names = buffer.getvalue(), extra_states(self.table)
        file.write_bytes(content * len(names))
        for number, name in enumerate(names):
            self._storage[MetadataIndex(name)] = _StorageInfo(
                file.name, number * len(content), len(content)
            )
        return {name: BytesStorageMetadata() for name in names}

    def _tensors(self) -> dict[str, TensorStorageMetadata]:
        tensors: dict[str, TensorStorageMetadata] = {}
        shapes = {entry.megatron_name: entry.megatron_shape for entry in self.table}
        for file in self.files:
            for item in file.items:
                whole = (*item.place.stack, *shapes[item.piece.entry.megatron_name])
                tensor = tensors.setdefault(
                    item.place.key,
                    TensorStorageMetadata(
                        TensorProperties(dtype=self._dtype), torch.Size(whole), []
                    ),
                )
                tensor.chunks.append(ChunkStorageMetadata(item.offset, item.shape))
        return tensors


def plan_files(
    architecture: Architecture, table: Sequence[Entry], layout: Layout, dtype: torch.dtype
) -> tuple[PlannedFile, ...]:
    """The files of a checkpoint: by rank of the layout, of a size that workers can share.

    Args:
        architecture: of the whole model.
        table: its weights.
        layout: whose ranks' pieces go into one file.
        dtype: of the written weights.

    Raises:
        ValueError: the layout does not divide the model.
    """
    _check_divisible(architecture, layout)
    ranks: dict[int, list[_Item]] = {}
    where, ranks_of_stage = places(table), layout.tensor * layout.expert
    for entry in table:
        place = where[entry.megatron_name]
        expert_rank = _share(entry.expert, architecture, layout)
        first = _stage(place, architecture, layout) * ranks_of_stage + expert_rank * layout.tensor
        pieces = cut(entry, layout.tensor)
        for number, piece in enumerate(pieces):
            tensor_rank = number * layout.tensor // len(pieces)
            ranks.setdefault(first + tensor_rank, []).append(_Item(place, piece))
    return tuple(
        PlannedFile(f"__{rank}_{number}.distcp", items)
        for rank in sorted(ranks)
        for number, items in enumerate(_buckets(ranks[rank], dtype))
    )


def _buckets(items: Sequence[_Item], dtype: torch.dtype) -> Iterator[tuple[_Item, ...]]:
    bucket: list[_Item] = []
    filled = 0
    for item in items:
        size = item.shape.numel() * dtype.itemsize
        if bucket and filled + size > _FILE_BYTES:
            yield tuple(bucket)
            bucket, filled = [], 0
        bucket.append(item)
        filled += size
    yield tuple(bucket)


def _stage(place: Place, architecture: Architecture, layout: Layout) -> int:
    """Embedding on the first pipeline stage, final norm and output layer on the last."""
    if place.index:
        return place.index[0] * layout.pipeline // architecture.num_layers
    return 0 if place.key.startswith("embedding.") else layout.pipeline - 1


def _share(expert: int | None, architecture: Architecture, layout: Layout) -> int:
    """The expert-parallel rank that holds a weight; all hold what is no expert's."""
    if expert is None or architecture.mixture is None:
        return 0
    return expert * layout.expert // architecture.mixture.num_experts


def _check_divisible(architecture: Architecture, layout: Layout) -> None:
    """Tensor sizes are checked weight by weight, as they are cut."""
    experts = 1 if architecture.mixture is None else architecture.mixture.num_experts
    if experts % layout.expert:
        needed = (
            "1 for a model without experts"
            if architecture.mixture is None
            else f"a divisor of num_experts ({experts})"
        )
        raise ValueError(f"--expert: need {needed}, got {layout.expert}. Choose another.")
    if architecture.num_layers % layout.pipeline:
        raise ValueError(
            f"--pipeline: need a divisor of num_hidden_layers ({architecture.num_layers}), got "
            f"{layout.pipeline}. Choose another."
        )
