"""Measures models with experts under one layout, and saves or resumes a run of one of them.

Arguments: parallel-knobs-as-json models-folder checkpoint-folder mode out.json
mode ``measure``: logits, ten steps, export, a teacher that follows; ``save``: 3 steps, save,
3 more; ``resume``: load step 3, 3 more.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from checkpoint_tools.hf_folder import HfReader
from megatron_corew.config import Config
from megatron_corew.mcore.checkpoint import Checkpoints
from megatron_corew.mcore.parallel import Layout, parallel_world
from tests.distributed.layout_worker import logit_difference, score_difference
from tests.distributed.parts import config_for, made_up_batch, policy_for, teacher_for, train_batch
from tests.distributed.teacher_worker import exported, follow, train
from tests.models import MIXTURES


def measure(folder: Path, config: Config, layout: Layout) -> dict:
    """Logits, export, ten steps of one model."""
    policy, batch, reader = policy_for(config, layout), made_up_batch(), HfReader(folder)
    measured = {
        "scores": score_difference(policy, folder, batch),
        "logits": logit_difference(policy, folder, batch, layout),
    }
    streamed = list(policy.hf_stream())
    if dist.get_rank() == 0:
        measured["names"] = [name for name, _ in streamed]
        measured["exported"] = all(torch.equal(reader.read(n), t) for n, t in streamed)
    steps = [policy.step(train_batch(batch, seed=s), learning_rate=1e-3) for s in range(10)]
    measured["losses"] = [step["policy/loss"] for step in steps]
    measured["grad_norms"] = [step["policy/grad_norm"] for step in steps]
    after = [tensor for _, tensor in policy.hf_stream()]
    if dist.get_rank() == 0:
        measured["weight_sums"] = [float(t.double().abs().sum()) for t in after]
    return measured


def with_teacher(folder: Path, saved: Path, config: Config, layout: Layout, mode: str) -> tuple:
    """A run with a teacher: what was measured, and both sets of weights at its end."""
    policy = policy_for(config, layout)
    teacher = teacher_for(config, policy)
    measured: dict = {"untouched": True, "losses": []}
    if mode == "measure":
        follow(policy, teacher, folder, layout)
    else:
        checkpoints = Checkpoints(saved, config, policy, teacher)
        train(policy, teacher, checkpoints, mode=mode, measured=measured)
    untouched = [True] * dist.get_world_size()
    dist.all_gather_object(untouched, measured["untouched"])
    measured["untouched"] = all(untouched)
    student = exported(policy)
    with teacher.installed():
        slow = exported(policy)
    return measured, {"student": student, "teacher": slow}


def main() -> None:
    """Run the mode and write what was measured."""
    knobs, folders, saved = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    mode, out = sys.argv[4], Path(sys.argv[5])

    def config_of(family: str) -> Config:
        return config_for(str(folders / family), **knobs)

    with parallel_world(config_of(MIXTURES[0]).parallel, seed=3) as layout:
        families = MIXTURES if mode == "measure" else ()
        results = {f: measure(folders / f, config_of(f), layout) for f in families}
        results["run"], weights = with_teacher(
            folders / MIXTURES[0], saved, config_of(MIXTURES[0]), layout, mode
        )
        if dist.get_rank() == 0:
            torch.save(weights, out.with_suffix(".pt"))
            out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
