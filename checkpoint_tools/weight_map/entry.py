"""One row of the weight table at work: the Megatron-Core tensor and the HF tensors it holds.

Dimension key of the shapes: as stored by torch.nn.Linear, [outputs, inputs].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Shape = tuple[int, ...]
Parallel = Literal["replicated", "column", "row", "gated", "vocabulary"]
"""How tensor parallelism cuts: not at all; by outputs; by inputs; by outputs within the gate and
within the up half; by tokens of the vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A Megatron-Core tensor, its Hugging Face tensors, and the four pure ways between them.

    A "whole" tensor is the one of a single process; a "shard" is that of one tensor-parallel rank.
    """

    megatron_name: str
    """Name in the local spec, with the global layer number."""
    megatron_shape: Shape
    """Of the whole tensor, with the padded vocabulary."""
    hf_names: tuple[str, ...]
    hf_shapes: tuple[Shape, ...]
    """One per name."""
    parallel: Parallel
    units: int = 1
    """What tensor parallelism cannot cut further; the parallel size must divide it."""
    unit: str = ""
    """The config key that gives ``units``, for messages."""
    expert: int | None = None
    """Number among all experts of the layer; None: not an expert's."""
    pack: Callable[..., Tensor] = field(compare=False, repr=False)
    """HF tensors, in order -> whole tensor."""
    unpack: Callable[[Tensor], tuple[Tensor, ...]] = field(compare=False, repr=False)
    """Whole tensor -> HF tensors, in order."""

    def to_megatron(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Build the whole Megatron-Core tensor.

        Args:
            tensors: exactly the tensors named in ``hf_names``, of ``hf_shapes``, any dtype.

        Returns:
            [megatron_shape], same dtype and values; may share memory with an input.

        Raises:
            ValueError: a tensor is missing, unexpected or of another shape.
        """
        unexpected = tensors.keys() - set(self.hf_names)
        if unexpected:
            raise ValueError(
                f"{self.megatron_name}: made of {', '.join(self.hf_names)}; got also "
                f"{', '.join(sorted(unexpected))}."
            )
        for name, shape in zip(self.hf_names, self.hf_shapes, strict=True):
            if name not in tensors:
                raise ValueError(f"{self.megatron_name}: needs {name}, got none.")
            _check_shape(name, tensors[name], shape)
        return self.pack(*(tensors[name] for name in self.hf_names))

    def to_hf(self, whole: Tensor) -> dict[str, Tensor]:
        """Take the whole Megatron-Core tensor apart.

        Args:
            whole: [megatron_shape], any dtype.

        Returns:
            The tensors named in ``hf_names``, in that order, of ``hf_shapes``; they may share
            memory with ``whole``.

        Raises:
            ValueError: ``whole`` has another shape.
        """
        _check_shape(self.megatron_name, whole, self.megatron_shape)
        return dict(zip(self.hf_names, self.unpack(whole), strict=True))

    def split(self, whole: Tensor, rank: int, size: int) -> Tensor:
        """Cut out the shard of one tensor-parallel rank.

        Args:
            whole: [megatron_shape].
            rank: tensor-parallel rank, 0 <= rank < size.
            size: tensor-parallel size.

        Returns:
            The shard; it may be a view of ``whole``, then not always contiguous.

        Raises:
            ValueError: ``whole`` has another shape, or ``size`` does not divide the units.
        """
        _check_shape(self.megatron_name, whole, self.megatron_shape)
        self.check_split(size)
        if self.parallel == "replicated" or size == 1:
            return whole
        if self.parallel == "gated":
            return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
        return whole.chunk(size, dim=self._dim)[rank]

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """Put the shards of all tensor-parallel ranks together.

        Args:
            shards: one per rank, in rank order.

        Returns:
            [megatron_shape]; may share memory with a shard.

        Raises:
            ValueError: the shards do not add up to the whole shape.
            RuntimeError: the copies of a replicated tensor differ between the ranks.
        """
        self.check_split(len(shards))
        if self.parallel == "replicated":
            for rank, shard in enumerate(shards):
                if not torch.equal(shard, shards[0]):
                    raise RuntimeError(
                        f"{self.megatron_name}: every tensor-parallel rank must hold the same "
                        f"values, but ranks 0 and {rank} differ. The ranks have drifted apart; "
                        "go back to the last checkpoint."
                    )
            whole = shards[0]
        elif len(shards) == 1:
            whole = shards[0]
        elif self.parallel == "gated":
            gates, ups = zip(*(shard.chunk(2) for shard in shards), strict=True)
            whole = torch.cat([*gates, *ups])
        else:
            whole = torch.cat(list(shards), dim=self._dim)
        _check_shape(self.megatron_name, whole, self.megatron_shape)
        return whole

    def check_split(self, size: int) -> None:
        """Refuse a tensor-parallel size that would cut through a head or leave a remainder.

        Args:
            size: tensor-parallel size.

        Raises:
            ValueError: ``size`` does not divide the units.
        """
        if self.parallel != "replicated" and self.units % size:
            raise ValueError(
                f"parallel.tensor (--tensor): need a divisor of {self.unit} ({self.units}) to "
                f"split {self.megatron_name}, got {size}. Choose another."
            )

    @property
    def _dim(self) -> int:
        return 1 if self.parallel == "row" else 0


def _check_shape(name: str, tensor: Tensor, shape: Shape) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name}: need shape {list(shape)}, got {list(tensor.shape)}. The tensor does not "
            "belong to this config.json."
        )
