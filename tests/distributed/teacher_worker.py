"""Measures the teacher under one layout, and saves or resumes a run with it.

Arguments: mode tensor pipeline data distributed dtype model-folder checkpoint-folder out.json
mode ``save``: 3 steps, save, 3 more; ``resume``: load step 3, 3 more; ``follow``: the policy takes
the same given weights in every layout, so that the teachers can be compared to rounding.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from checkpoint_tools.sources import HfSource
from checkpoint_tools.weight_map.entry import Entry
from megatron_corew.mcore import weights
from megatron_corew.mcore.checkpoint import Checkpoints
from megatron_corew.mcore.parallel import parallel_world
from tests.distributed.parts import config_for, made_up_batch, policy_for, teacher_for, train_batch

WEIGHTS = [0.3, 0.05, 1e-4, 0.2, 1e-3, 0.1]


def fingerprint(policy) -> str:
    """A hash over every bit of parameters, main parameters and Adam state on this rank."""
    digest = hashlib.sha256()
    tensors = [p.detach() for p in policy.ddp.parameters()]
    for leaf in policy.optimizer.chained_optimizers:
        for group in leaf.optimizer.param_groups:
            for main in group["params"]:
                tensors += [main.detach(), *leaf.optimizer.state[main].values()]
    for tensor in tensors:
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def exported(policy) -> dict[str, torch.Tensor]:
    """The weights in the policy's parameters, on rank 0."""
    return {n: t.clone().double() for n, t in policy.hf_stream() if t is not None}


class NoisySource(HfSource):
    """A Hugging Face folder whose every tensor is moved by noise of its own."""

    step = 0

    def read(self, entry: Entry) -> dict[str, torch.Tensor]:
        """The stored tensors plus noise from (name, step)."""
        return {
            name: tensor + self.noise(name, tensor) for name, tensor in super().read(entry).items()
        }

    def noise(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        digest = hashlib.sha256(f"{name}/{self.step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
        return 0.01 * torch.randn(tensor.shape, generator=generator)


def follow(policy, teacher, folder: Path, layout) -> None:
    """Give the policy six sets of weights and let the teacher follow each."""
    source = NoisySource(folder)
    for step, weight in enumerate(WEIGHTS):
        source.step = step
        weights.load(policy.module, source, layout)
        policy.optimizer.reload_model_params()
        teacher.update(weight)


def train(policy, teacher, checkpoints, *, mode: str, measured: dict) -> None:
    """Six steps, with the teacher installed between its update and the policy's."""
    rollouts = made_up_batch()
    if mode == "resume":
        checkpoints.load(3)
    for step in range(4 if mode == "resume" else 1, 7):
        teacher.update(WEIGHTS[step - 1])
        before = fingerprint(policy)
        with teacher.installed():
            policy.score(rollouts)
        measured["untouched"] &= fingerprint(policy) == before
        metrics = policy.step(train_batch(rollouts, seed=step), learning_rate=1e-3)
        measured["losses"].append([metrics["policy/loss"], metrics["policy/grad_norm"]])
        if mode == "save" and step == 3:
            checkpoints.save(3)


def main() -> None:
    """Run the mode and write what was measured."""
    mode, dtype = sys.argv[1], sys.argv[6]
    # A pipeline of "2x2" has two stages with two pieces of the model each.
    pipeline, _, pieces = sys.argv[3].partition("x")
    tensor, data, distributed = (int(sys.argv[n]) for n in (2, 4, 5))
    folder, saved, out = (Path(a) for a in sys.argv[7:10])
    config = config_for(
        str(folder),
        tensor=tensor,
        pipeline=int(pipeline),
        virtual_pipeline=int(pieces or 1),
        tokens_per_micro_batch=25 if pieces else 0,
        data=data,
        distributed_optimizer=bool(distributed),
        dtype=dtype,
    )
    measured: dict = {"untouched": True, "losses": []}
    with parallel_world(config.parallel, seed=3) as layout:
        policy = policy_for(config, layout)
        teacher = teacher_for(config, policy)
        checkpoints = Checkpoints(saved, config, policy, teacher)
        if mode == "follow":
            follow(policy, teacher, folder, layout)
        else:
            train(policy, teacher, checkpoints, mode=mode, measured=measured)
        student = exported(policy)
        with teacher.installed():
            slow = exported(policy)
        measured["updates"] = teacher.updates
        untouched = [measured["untouched"]] * dist.get_world_size()
        dist.all_gather_object(untouched, measured["untouched"])
        measured["untouched"] = all(untouched)
        if dist.get_rank() == 0:
            torch.save({"student": student, "teacher": slow}, out.with_suffix(".pt"))
            out.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
