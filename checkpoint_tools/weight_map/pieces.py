"""Cuts an entry into the pieces that a layout's ranks read, each made from parts of HF tensors.

Dimension key of the shapes: as stored by torch.nn.Linear, [outputs, inputs].
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_tools.weight_map.entry import Entry, Shape
from checkpoint_tools.weight_map.tensors import pack_qkv


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A box of one entry's Megatron tensor."""

    entry: Entry
    offset: tuple[int, ...]
    """Of the box's first element in the whole tensor."""
    shape: Shape
    half: int | None = None
    """Of a gated entry: 0 for the gate, 1 for the up projection."""

    @property
    def hf_names(self) -> tuple[str, ...]:
        """The Hugging Face tensors that the piece is made from."""
        names = self.entry.hf_names
        return names if self.half is None else (names[self.half],)

    def build(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The piece's values.

        Args:
            tensors: those of ``hf_names``.

        Returns:
            [shape], same dtype; only what belongs to the piece is read. May be a view.
        """
        parts = [tensors[name] for name in self.hf_names]
        start, stop = self.offset[0], self.offset[0] + self.shape[0]
        match self.entry.parallel:
            case "replicated":
                return self.entry.pack(*parts)
            case "row":
                first = self.offset[1]
                return self.entry.pack(*parts)[:, first : first + self.shape[1]]
            case "gated":
                assert self.half is not None
                first = start - self.half * self.entry.megatron_shape[0] // 2
                return parts[0][first : first + self.shape[0]]
            case "vocabulary":
                rows = parts[0][start:stop]
                missing = self.shape[0] - rows.shape[0]
                padding = rows.new_zeros(missing, *rows.shape[1:])
                return torch.cat([rows, padding]) if missing else rows
            case "column":
                return self._grouped(parts, start, stop)

    def take_apart(self, values: Tensor) -> dict[str, Tensor]:
        """The Hugging Face tensors in a piece of an entry that is not cut: the way back.

        Args:
            values: [shape], any dtype.

        Returns:
            The tensors of ``hf_names``, in that order; they may share memory with ``values``.

        Raises:
            ValueError: another rank holds a part of them.
        """
        if self.half is not None and self.shape == self.entry.hf_shapes[self.half]:
            return {self.entry.hf_names[self.half]: values}
        return self.entry.to_hf(values)

    def _grouped(self, parts: list[Tensor], start: int, stop: int) -> Tensor:
        """Query, key and value rows of the piece's key/value heads."""
        rows, groups = self.entry.megatron_shape[0], self.entry.units
        first, last = start * groups // rows, stop * groups // rows
        own = [part[first * len(part) // groups : last * len(part) // groups] for part in parts]
        return pack_qkv(own[0], own[1], own[2], num_kv_heads=last - first)


def cut(entry: Entry, size: int) -> tuple[Piece, ...]:
    """The pieces that the ranks of one tensor-parallel size read.

    Args:
        entry: a row of the weight table.
        size: tensor-parallel size.

    Returns:
        Pieces that cover the whole tensor once, in rank order; two per rank for a gated entry.

    Raises:
        ValueError: ``size`` does not divide the entry's units.
    """
    entry.check_split(size)
    shape = entry.megatron_shape
    if entry.parallel == "replicated":
        return (Piece(entry=entry, offset=(0,) * len(shape), shape=shape),)
    if entry.parallel == "gated":
        rows = shape[0] // 2 // size
        return tuple(
            Piece(
                entry=entry,
                offset=((half * size + rank) * rows, 0),
                shape=(rows, *shape[1:]),
                half=half,
            )
            for rank in range(size)
            for half in (0, 1)
        )
    dim = 1 if entry.parallel == "row" else 0
    step = shape[dim] // size
    own = (*shape[:dim], step, *shape[dim + 1 :])
    return tuple(
        Piece(
            entry=entry,
            offset=tuple(rank * step if axis == dim else 0 for axis in range(len(shape))),
            shape=own,
        )
        for rank in range(size)
    )
