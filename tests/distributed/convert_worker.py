"""Loads converted checkpoints through real Megatron-Core, and writes its own.

Arguments: parallel-knobs-as-json models-folder checkpoints-folder families-as-json out.json
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing

from megatron_corew.mcore.parallel import Layout, parallel_world
from tests.distributed.layout_worker import logit_difference
from tests.distributed.parts import config_for, made_up_batch, policy_for


def sharded(pieces: dict[str, torch.nn.Module]) -> dict:
    """Megatron's description of this rank's pieces of the model."""
    return {name: piece.sharded_state_dict() for name, piece in pieces.items()}


def measure(folder: Path, checkpoint: Path, own: Path, knobs: dict, layout: Layout) -> dict:
    """One family: weights loaded by Megatron, and started from, against Hugging Face's; logits."""
    policy = policy_for(config_for(str(folder), **knobs), layout)
    model, wanted = policy.module, {n: p.clone() for n, p in policy.module.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    pieces = dict(model.named_children())
    loaded = dist_checkpointing.load(sharded(pieces), str(checkpoint))
    for name, piece in pieces.items():
        piece.load_state_dict(loaded[name])
    equal = all(torch.equal(wanted[name], p) for name, p in model.named_parameters())
    started = policy_for(config_for(str(checkpoint), **knobs), layout).module
    equal &= all(torch.equal(wanted[name], p) for name, p in started.named_parameters())
    everywhere = [equal] * dist.get_world_size()
    dist.all_gather_object(everywhere, equal)
    if dist.get_rank() == 0:
        own.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(sharded(pieces), str(own))
    batch = made_up_batch()
    return {"equal": all(everywhere), "logits": logit_difference(policy, folder, batch, layout)}


def main() -> None:
    """Measure all families under this layout."""
    knobs, folders, checkpoints = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    families, out = json.loads(sys.argv[4]), Path(sys.argv[5])
    results = {}
    with parallel_world(config_for(str(folders / families[0]), **knobs).parallel, seed=0) as layout:
        for family in families:
            folder = folders / family
            own = out.with_suffix("") / family
            results[family] = measure(folder, checkpoints / family, own, knobs, layout)
        if dist.get_rank() == 0:
            out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
