"""Trains the same model with and without emulated FP8, and passes checkpoints between the two.

Arguments: tensor sequence dtype model-folder checkpoint-folder out.json
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_corew.config import PrecisionConfig
from megatron_corew.mcore import checkpoint
from megatron_corew.mcore.checkpoint import Checkpoints
from megatron_corew.mcore.fp8_emulation import RoundedColumnParallelLinear
from megatron_corew.mcore.main_parameters import main_parameters
from megatron_corew.mcore.parallel import parallel_world
from tests.distributed.parts import config_for, made_up_batch, policy_for, train_batch


def train(policy, rollouts, steps: int = 6) -> list[dict]:
    """Metrics of some steps on the same rollouts."""
    return [policy.step(train_batch(rollouts, seed=1), learning_rate=1e-3) for _ in range(steps)]


def weights_of(policy) -> list[torch.Tensor]:
    """All main parameters, detached."""
    return [main.main.detach().clone() for main in main_parameters(policy.optimizer)]


def same(first, second) -> bool:
    """Whether two lists of weights have the same bits."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def pass_checkpoints(folder: Path, config, exact, rounded) -> dict:
    """Save with one precision, load with the other, with and without extra states."""
    results = {}
    saved = Checkpoints(folder, config, exact, None)
    saved.save(1)
    Checkpoints(folder, config, rounded, None).load(1)
    results["off_to_emulate"] = same(weights_of(exact), weights_of(rounded))
    # Delayed scaling has states to read, and this checkpoint has none.
    delayed = config.model_copy(update={"precision": PrecisionConfig(fp8="delayed")})
    with_states = Checkpoints(folder, delayed, exact, None)
    with_states.load(1)
    # As it writes them.
    with_states.save(2)
    names = checkpoint.FileSystemReader(folder / "step-000002").read_metadata().state_dict_metadata
    results["states"] = sum("_extra_state" in name for name in names)
    train(rounded, made_up_batch(), steps=1)
    results["changed"] = not same(weights_of(exact), weights_of(rounded))
    Checkpoints(folder, config, rounded, None).load(2)
    results["states_to_none"] = same(weights_of(exact), weights_of(rounded))
    return results


def main() -> None:
    """Measure, and write on rank 0."""
    tensor, sequence, dtype = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3]
    folder, saved, out = (Path(a) for a in sys.argv[4:7])
    config = config_for(str(folder), tensor=tensor, sequence=sequence, dtype=dtype)
    emulate = PrecisionConfig(fp8="emulate", bf16_last_layers=1)
    with parallel_world(config.parallel, seed=3) as layout:
        exact = policy_for(config, layout)
        rounded = policy_for(config.model_copy(update={"precision": emulate}), layout)
        measured: dict = {
            "layers": [
                isinstance(layer.self_attention.linear_qkv, RoundedColumnParallelLinear)
                for layer in rounded.module[0].decoder.layers
            ]
        }
        rollouts = made_up_batch()
        scores = exact.score(rollouts)
        rollouts = dataclasses.replace(rollouts, rollout_logprobs_RT=scores.logprobs_RT)
        measured["off"] = train(exact, rollouts)
        measured["emulate"] = train(rounded, rollouts)
        if tensor == 1:
            measured["checkpoints"] = pass_checkpoints(saved, config, exact, rounded)
        if dist.get_rank() == 0:
            out.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
