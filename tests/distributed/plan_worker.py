"""Counts the bytes that a real policy, optimizer and teacher allocate, per rank, for each case.

Arguments: models-folder processes out.json
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from checkpoint_tools.sources import open_source
from megatron_corew.mcore.main_parameters import leaf_optimizers
from megatron_corew.mcore.parallel import Layout, parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.mcore.teacher import Teacher
from megatron_corew.plan.memory import static_bytes
from tests.distributed.parts import config_for, made_up_batch, policy_for, teacher_for, train_batch
from tests.distributed.split_worker import meeting_place

CASES = {
    1: {
        "one": ("qwen3_untied", {}),
        "one_bf16_tied": ("llama32_tied", {"dtype": "bfloat16"}),
        "one_bf16_residual": ("qwen2_untied", {"dtype": "bfloat16", "residual": "bfloat16"}),
    },
    2: {
        "tp2": ("qwen3_untied", {"tensor": 2, "sequence": True}),
        "pp2_tied": ("qwen3_tied", {"pipeline": 2}),
        "dp2": ("qwen3_untied", {"data": 2}),
        "dp2_distributed": ("qwen3_untied", {"data": 2, "distributed_optimizer": True}),
        "dp2_distributed_bf16": (
            "qwen3_untied",
            {"data": 2, "distributed_optimizer": True, "dtype": "bfloat16"},
        ),
        "tp2_bf16": ("llama32_tied", {"tensor": 2, "dtype": "bfloat16"}),
        "ep2_distributed": (
            "qwen3_moe_untied",
            {"data": 2, "expert": 2, "distributed_optimizer": True, "dtype": "bfloat16"},
        ),
        "experts_tp2": ("qwen3_moe_untied", {"tensor": 2, "sequence": True}),
    },
}


def size_of(tensors: list[torch.Tensor]) -> int:
    """Bytes of the memory behind tensors, memory that several share counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def allocated(policy: Policy, teacher: Teacher) -> dict[str, int]:
    """What really stands in this process's memory."""
    weights = [parameter.data for parameter in policy.module.parameters()]
    buffers = [b for ddp in policy.ddp for b in ddp.buffers + ddp.expert_parallel_buffers]
    mains = {shard.source.main.untyped_storage().data_ptr() for shard in teacher.shards}
    mains -= {weight.untyped_storage().data_ptr() for weight in weights}
    states = [
        value
        for leaf in leaf_optimizers(policy.optimizer)
        for state in leaf.optimizer.state.values()
        for value in state.values()
        if value.numel() > 1
    ]
    own = [s.source.main for s in teacher.shards if s.source.main.data_ptr() in mains]
    kept = [shard.value for shard in teacher.shards]
    kept += [shard.residual for shard in teacher.shards if shard.residual is not None]
    return {
        "weights": size_of(weights),
        "gradients": size_of([buffer.grad_data for buffer in buffers]),
        "optimizer": size_of([*states, *own]),
        "teacher": size_of(kept),
    }


def measure(family: str, folder: Path, knobs: dict) -> dict[str, dict[str, float]] | None:
    """Measured and planned bytes of every rank, on rank 0."""
    config = config_for(str(folder), **knobs)
    config = config.model_copy(update={"method": "co_rewarding_iii"})
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        teacher = teacher_for(config, policy)
        # Adam makes its moments in the first step.
        policy.step(train_batch(made_up_batch()), learning_rate=1e-3)
        planned = _planned(config, folder, layout)
        mine = {"measured": allocated(policy, teacher), "planned": planned}
        ranks: list = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        return ranks if dist.get_rank() == 0 else None


def _planned(config, folder: Path, layout: Layout) -> dict[str, float]:
    names = ("weights", "gradients", "optimizer", "teacher")
    architecture = open_source(folder).architecture
    stage = layout.pipeline_rank
    return dict(zip(names, static_bytes(config, architecture, stage), strict=True))


def main() -> None:
    """Measure the cases of this number of processes and write the result."""
    folders, processes, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    found, init_process_group = {}, dist.init_process_group
    for name, (family, knobs) in CASES[processes].items():
        dist.init_process_group = partial(init_process_group, **meeting_place(name))
        found[name] = measure(family, folders / family, dict(knobs))
    if all(found.values()):
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
