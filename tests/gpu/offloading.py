"""Compares training with optimizer and teacher on the host to training with both on the device."""

import torch
from torch import Tensor

from megatron_corew.mcore import offload, teacher
from megatron_corew.mcore.main_parameters import main_parameters
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.types import TrainBatch
from tests.gpu.models import TINY, MadeUpSource, run_config

_PIECE = 512
"""Elements; small, so that the little model's parameters come in several pieces."""


def _trained(batch: TrainBatch, *, offloaded: bool) -> list[Tensor]:
    """Weights, main parameters and teacher after three steps, on the host."""
    config = run_config(dtype="bfloat16", response_tokens=32, budget=128, offload=offloaded)
    with parallel_world(config.parallel, seed=0) as layout:
        policy = Policy(config, MadeUpSource(TINY, scale=0.02), layout)
        slow = teacher.Teacher(
            policy.optimizer, policy.ddp, residual=torch.float32, offload=offloaded
        )
        for _ in range(3):
            policy.step(batch, learning_rate=1e-3)
            slow.update(0.1)
        found = [weight.detach() for weight in policy.ddp.parameters()]
        found += [main.main.detach() for main in main_parameters(policy.optimizer)]
        found += [part for shard in slow.shards for part in (shard.value, shard.residual)]
        return [tensor.cpu().clone() for tensor in found]


def measure(batch: TrainBatch) -> dict[str, int]:
    """How many tensors differ in a bit; a GPU may differ from itself too, so that is counted."""
    offload.PIECE = teacher.PIECE = _PIECE
    here, again, away = (_trained(batch, offloaded=on) for on in (False, False, True))

    def differing(other: list[Tensor]) -> int:
        return sum(not torch.equal(a, b) for a, b in zip(here, other, strict=True))

    return {"tensors": len(here), "differ_again": differing(again), "differ": differing(away)}
