"""Trains with optimizer and teacher on the host and on the device, and counts differing tensors.

Arguments: models-folder checkpoint-folder out.json; the cases of this number of processes.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_corew.mcore import offload, teacher
from megatron_corew.mcore.checkpoint import Checkpoints
from megatron_corew.mcore.main_parameters import main_parameters
from megatron_corew.mcore.parallel import Layout, parallel_world
from tests.distributed.parts import (
    config_for,
    made_up_batch,
    policy_for,
    teacher_for,
    train_batch,
)
from tests.distributed.split_worker import meeting_place

# Processes -> name -> model, ``parallel`` and precision knobs.
CASES: dict[int, dict[str, tuple[str, dict[str, object]]]] = {
    1: {
        "alone": ("qwen3_tied", {}),
        "alone_bf16_residual": ("qwen3_tied", {"dtype": "bfloat16", "residual": "bfloat16"}),
    },
    2: {
        "dp2_distributed": ("qwen3_tied", {"data": 2, "distributed_optimizer": True}),
        "dp2_distributed_bf16": (
            "qwen3_tied",
            {"data": 2, "distributed_optimizer": True, "dtype": "bfloat16"},
        ),
        # Two of Megatron's optimizers in a chain: the experts have one of their own.
        "ep2_distributed_bf16": (
            "qwen3_moe_untied",
            {"data": 2, "expert": 2, "distributed_optimizer": True, "dtype": "bfloat16"},
        ),
    },
}
STEPS = 3
# Small enough that most parameters of the test model come in several pieces, the last one odd.
PIECE = 512


class Run:
    """A policy and a teacher, stored as the config says."""

    def __init__(self, folder: str, layout: Layout, knobs: dict, *, offloaded: bool) -> None:
        self.config = config_for(folder, offload=offloaded, **knobs)
        self.policy = policy_for(self.config, layout)
        self.teacher = teacher_for(self.config, self.policy)
        self.found: list[Tensor] = []

    def train(self, first: int) -> None:
        """Steps from ``first`` on, with the teacher installed after each of them."""
        rollouts = made_up_batch()
        for step in range(first, first + STEPS):
            metrics = self.policy.step(train_batch(rollouts, seed=step), learning_rate=1e-3)
            self.found += [torch.tensor(value).double() for value in metrics.values()]
            # Before the teacher is installed: restoring the policy would repair its weights.
            self.found += [weight.detach().clone() for weight in self.policy.ddp.parameters()]
            self.teacher.update(0.1 / step)
            with self.teacher.installed():
                self.found.append(self.policy.score(rollouts).logprobs_RT)

    def state(self) -> list[Tensor]:
        """Copies of everything a step may change, and of what was measured."""
        tensors = [parameter.detach() for parameter in self.policy.ddp.parameters()]
        for main in main_parameters(self.policy.optimizer):
            state = main.owner.optimizer.state[main.main]
            tensors += [main.main.detach(), *(state[name] for name in sorted(state))]
        for shard in self.teacher.shards:
            tensors += [shard.value, shard.residual]
        return [tensor.clone() for tensor in [*self.found, *tensors]]

    def saved(self, folder: Path) -> Checkpoints:
        """The checkpoints of this run."""
        return Checkpoints(folder, self.config, self.policy, self.teacher)


def differing(run: Run, other: Run) -> tuple[int, int]:
    """Tensors that differ in a bit, and how many there are; over all ranks."""
    pairs = list(zip(run.state(), other.state(), strict=True))
    counts = torch.tensor([sum(not torch.equal(a, b) for a, b in pairs), len(pairs)])
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


def measure(folder: str, saved: Path, knobs: dict, layout: Layout) -> dict[str, object]:
    """Train both, then go on from each other's checkpoint."""
    hosted, plain = (Run(folder, layout, knobs, offloaded=on) for on in (True, False))
    for run in (hosted, plain):
        run.train(1)
    measured: dict[str, object] = {"trained": differing(hosted, plain)}
    for name, (writer, offloaded) in {"hosted": (hosted, False), "plain": (plain, True)}.items():
        writer.saved(saved / name).save(STEPS)
        heir = Run(folder, layout, knobs, offloaded=offloaded)
        heir.saved(saved / name).load(STEPS)
        heir.found = writer.found.copy()
        measured[f"loaded_from_{name}"] = differing(heir, writer)
        for run in (heir, writer):
            run.train(STEPS + 1)
        measured[f"resumed_from_{name}"] = differing(heir, writer)
    return measured


def main() -> None:
    """Measure the cases and write the result."""
    folders, saved, out = (Path(argument) for argument in sys.argv[1:4])
    offload.PIECE = teacher.PIECE = PIECE
    found, init_process_group = {}, dist.init_process_group
    for name, (family, knobs) in CASES[int(os.environ["WORLD_SIZE"])].items():
        folder = str(folders / family)
        dist.init_process_group = partial(init_process_group, **meeting_place(name))
        with parallel_world(config_for(folder, **knobs).parallel, seed=3) as layout:
            found[name] = measure(folder, saved / name, knobs, layout)
            rank = dist.get_rank()
    if rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
