"""Trains with parameter gathers that overlap the forward pass, with and without a teacher.

Arguments: model-folder out.json; two data-parallel ranks, bfloat16, distributed optimizer.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_corew.mcore import chunks as chunks_module
from megatron_corew.mcore import policy as policy_module
from megatron_corew.mcore.main_parameters import whole_parameters
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.teacher import Teacher
from tests.distributed.parts import config_for, made_up_batch, policy_for, train_batch


def overlapping_policy(config, layout):
    """A policy in several buckets whose gathers run behind the forward pass."""
    chunks_module.DistributedDataParallelConfig = partial(
        chunks_module.DistributedDataParallelConfig,
        overlap_param_gather=True,
        overlap_grad_reduce=True,
        bucket_size=20_000,
    )
    policy_module.OptimizerConfig = partial(
        policy_module.OptimizerConfig, overlap_param_gather=True
    )
    policies = [policy_for(config, layout) for _ in range(2)]
    for policy in policies:
        policy.module[0].config.no_sync_func = policy.ddp[0].no_sync
    return policies


def flags(policy):
    """Which bucket groups have dispatched their gather."""
    return [group.param_gather_dispatched for group in policy.ddp.bucket_groups]


def install(policy, teacher, rollouts, measured) -> None:
    """Score under the teacher; note whether every rank had its whole weights, and the flags."""
    before = flags(policy)
    shards = {id(shard.source.main): shard for shard in teacher.shards}
    wanted = whole_parameters(
        policy.optimizer, lambda main: shards[id(main.main)].value, torch.float32
    )
    with teacher.installed():
        measured["whole"] &= all(
            torch.equal(p.detach(), whole.to(p.dtype)) for p, whole in wanted.items()
        )
        policy.score(rollouts)
    measured["flags_kept"] &= flags(policy) == before


def refuses_between_forward_and_backward(policy, teacher) -> bool:
    """Whether installing fails before the backward pass, and works after it."""
    tokens = torch.ones(1, 4, dtype=torch.int64)
    (piece,) = policy.ddp
    with piece.no_sync():
        hidden = piece(tokens, torch.arange(4)[None], None)
        try:
            with teacher.installed():
                return False
        except AssertionError:
            pass
        hidden.sum().backward()
    with teacher.installed():
        return True


def main() -> None:
    """Train both, and write what was measured."""
    folder, out = sys.argv[1], Path(sys.argv[2])
    config = config_for(folder, data=2, distributed_optimizer=True, dtype="bfloat16")
    measured: dict = {"whole": True, "flags_kept": True}
    with parallel_world(config.parallel, seed=3) as layout:
        with_teacher, without = overlapping_policy(config, layout)
        teacher = Teacher(
            with_teacher.optimizer, with_teacher.ddp, residual=torch.float32, offload=False
        )
        rollouts = made_up_batch()
        losses: dict[str, list[float]] = {"with": [], "without": []}
        for step in range(1, 5):
            teacher.update(0.3)
            install(with_teacher, teacher, rollouts, measured)
            for name, policy in (("with", with_teacher), ("without", without)):
                metrics = policy.step(train_batch(rollouts, seed=step), learning_rate=1e-3)
                losses[name].append(metrics["policy/loss"])
            # The weights of the other rank are stale here; then their gathers are under way.
            install(with_teacher, teacher, rollouts, measured)
            if step % 2:
                for group in with_teacher.ddp.bucket_groups:
                    group.start_param_sync()
                install(with_teacher, teacher, rollouts, measured)
                with_teacher.ddp.zero_grad_buffer()
        measured["buckets"] = len(with_teacher.ddp.bucket_groups)
        measured["losses"] = losses
        measured["refused"] = refuses_between_forward_and_backward(with_teacher, teacher)
        ranks: list = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, measured)
        if dist.get_rank() == 0:
            for key in ("whole", "flags_kept", "refused"):
                measured[key] = all(rank[key] for rank in ranks)
            out.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
