"""The trainer's process groups: started, seeded, described, torn down."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from megatron_corew.config import ParallelConfig
from megatron_corew.mcore import platform

platform.redirect_torch()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402

platform.redirect_megatron()


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where this process stands among the others."""

    tensor_rank: int
    tensor_size: int
    pipeline_rank: int
    pipeline_size: int
    data_rank: int
    data_size: int
    context_rank: int
    context_size: int
    sequence_parallel: bool
    expert_rank: int = 0
    expert_size: int = 1
    expert_tensor_rank: int = 0
    expert_tensor_size: int = 1
    """Ranks that share one expert; the dense layers' tensor_size, or 1 (see ParallelConfig)."""

    @property
    def first_stage(self) -> bool:
        """Whether this rank holds the embedding."""
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank computes log-probs and the loss."""
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def reports(self) -> bool:
        """Whether this rank is the one of its data-parallel replica that reports results."""
        return self.last_stage and self.tensor_rank == 0


@contextmanager
def parallel_world(config: ParallelConfig, *, seed: int) -> Iterator[Layout]:
    """Start torch.distributed and Megatron's groups, and destroy both at the end.

    All ranks must enter. Without torchrun's environment variables a world of one is started.

    Args:
        config: the layout.
        seed: seeds torch and Megatron's RNG tracker.

    Raises:
        ValueError: the number of processes is not tensor x pipeline x context x data.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != config.processes:
        raise ValueError(
            f"parallel: need {config.processes} processes (tensor {config.tensor} x pipeline "
            f"{config.pipeline} x context {config.context} x data {config.data}), got {world}. "
            "Set parallel.data to processes / (tensor x pipeline x context)."
        )
    if platform.has_cuda():
        # A launcher may show each task one device only.
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    else:
        torch.set_num_threads(config.threads)
    dist.init_process_group(
        "nccl" if platform.has_cuda() else "gloo",
        timeout=datetime.timedelta(seconds=config.timeout_s),
        **({} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}),
    )
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.tensor,
            pipeline_model_parallel_size=config.pipeline,
            virtual_pipeline_model_parallel_size=(
                config.virtual_pipeline if config.virtual_pipeline > 1 else None
            ),
            context_parallel_size=config.context,
            expert_model_parallel_size=config.expert,
            expert_tensor_parallel_size=config.expert_tensor,
        )
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
        yield _layout(config)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _layout(config: ParallelConfig) -> Layout:
    return Layout(
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        tensor_size=config.tensor,
        pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
        pipeline_size=config.pipeline,
        data_rank=parallel_state.get_data_parallel_rank(),
        data_size=config.data,
        context_rank=parallel_state.get_context_parallel_rank(),
        context_size=config.context,
        sequence_parallel=config.sequence,
        expert_rank=parallel_state.get_expert_model_parallel_rank(),
        expert_size=config.expert,
        expert_tensor_rank=parallel_state.get_expert_tensor_parallel_rank(),
        expert_tensor_size=config.expert_tensor,
    )
