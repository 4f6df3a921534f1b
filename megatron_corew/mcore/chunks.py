"""The pieces of the model that one rank holds, treated as one model.

A rank has one piece; with interleaved pipelining it has several, from places all over the model.
"""

from typing import Any

import torch
from torch import Tensor

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config
from megatron_corew.mcore import platform
from megatron_corew.mcore.model import HiddenStateModel, build_model
from megatron_corew.mcore.parallel import Layout

platform.redirect_torch()

from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.transformer.module import Float16Module  # noqa: E402


class Chunks(torch.nn.ModuleList):
    """This rank's pieces, in the order of the layers."""

    def output_weight(self) -> Tensor:
        """[W, D] this rank's rows of the output layer; on the last stage only."""
        last = self[-1]
        assert isinstance(last, HiddenStateModel)
        return last.output_weight()


def build_chunks(architecture: Architecture, config: Config, layout: Layout) -> Chunks:
    """All pieces of this rank, with unset weights.

    Raises:
        ValueError: as ``build_model``.
    """
    count = config.parallel.virtual_pipeline
    return Chunks([build_model(architecture, config, layout, chunk=n) for n in range(count)])


class DataParallelChunks(torch.nn.ModuleList):
    """This rank's pieces under Megatron's data parallelism.

    Args:
        chunks: with their weights; data-parallel rank 0's are taken.
        distributed_optimizer: shard optimizer state over the data-parallel group.
        bf16: cast in and out of a bfloat16 model.
    """

    def __init__(self, chunks: Chunks, *, distributed_optimizer: bool, bf16: bool) -> None:
        knobs = DistributedDataParallelConfig(
            use_distributed_optimizer=distributed_optimizer, grad_reduce_in_fp32=True
        )
        super().__init__(
            DistributedDataParallel(
                chunk.config, knobs, Float16Module(chunk.config, chunk) if bf16 else chunk
            )
            for chunk in chunks
        )
        for ddp in self:
            ddp.broadcast_params()

    @property
    def bucket_groups(self) -> list[Any]:
        """Of all pieces."""
        return [group for ddp in self for group in ddp.bucket_groups]

    @property
    def expert_parallel_bucket_groups(self) -> list[Any]:
        """Of all pieces."""
        return [group for ddp in self for group in ddp.expert_parallel_bucket_groups]

    def zero_grad_buffer(self) -> None:
        """Forget all gradients."""
        for ddp in self:
            ddp.zero_grad_buffer()

    def start_param_sync(self, *, force_sync: bool) -> None:
        """Gather all parameters from the ranks that own them."""
        for ddp in self:
            ddp.start_param_sync(force_sync=force_sync)
