"""Measures how far every layout, split and order of a batch is from one process, row by row.

Arguments: model-folder reference-file out.json. Without a reference file the first case writes it.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatron_corew.mcore import modules
from megatron_corew.mcore.main_parameters import whole_parameters
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.types import TrainBatch
from tests.distributed.cases import FEW_SPLITS, LAYOUTS, SPLITS, batches, select
from tests.distributed.gathered_attention import GatheredSdpa
from tests.distributed.parts import config_for, policy_for

# With Adam's usual epsilon the first step is the gradient's sign, which rounding decides where
# the gradient is zero; with a large one the weights move with the gradient.
OPTIMIZER = {"lr": 1e-2, "eps": 1e-2}


def two_steps(policy: Policy, batch: TrainBatch) -> dict[str, Tensor]:
    """Everything that must not depend on layout and split; tensors are whole on rank 0."""
    scores = policy.score(batch.rollouts)
    measured = {
        "scores": torch.stack([scores.logprobs_RT, scores.entropy_RT, scores.self_certainty_RT])
    }
    for step in (1, 2):
        metrics = policy.step(batch, learning_rate=OPTIMIZER["lr"])
        for name in ("policy/loss", "policy/grad_norm", "policy/kl", "policy/entropy", "gap/mean"):
            measured[f"{name} {step}"] = torch.tensor(metrics[name], dtype=torch.float64)
    measured |= whole_tensors(policy, "weights")
    # The stream reads parameters, so Adam's mean of the gradients takes their place.
    means = whole_parameters(policy.optimizer, first_moment, torch.float32)
    with torch.no_grad():
        for parameter, mean in means.items():
            parameter.copy_(mean)
    return measured | whole_tensors(policy, "gradients")


def first_moment(main) -> Tensor:
    return main.owner.optimizer.state[main.main]["exp_avg"]


def whole_tensors(policy: Policy, what: str) -> dict[str, Tensor]:
    return {
        f"{what} {name}": tensor.clone()
        for name, tensor in policy.hf_stream()
        if tensor is not None
    }


def distances(measured: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference per kind of value, relative to the largest value of that kind."""
    worst: dict[str, list[float]] = {}
    for name, tensor in reference.items():
        kind = name.split()[0]
        difference = float((measured[name] - tensor).abs().max())
        pair = worst.setdefault(kind, [0.0, 0.0])
        pair[0] = max(pair[0], difference)
        pair[1] = max(pair[1], float(tensor.abs().max()))
    return {kind: difference / largest for kind, (difference, largest) in worst.items()}


def idles(policy: Policy, batch: TrainBatch) -> bool:
    """Whether a rank has a micro-batch without a token to learn from."""
    empty = [not micro.place_N.numel() for micro in policy._plan(batch.rollouts)]
    found = torch.tensor(any(empty))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


def reordered(batch: TrainBatch, seed: int) -> tuple[TrainBatch, Tensor]:
    order = torch.randperm(len(batch.advantages_R), generator=torch.Generator().manual_seed(seed))
    return select(batch, order.tolist()), order.argsort()


def measure_layout(folder: str, knobs: dict, reference: dict[str, dict[str, Tensor]]) -> dict:
    """Distances of all batches and splits under one layout; fills an empty reference."""
    found = {}
    whole = SPLITS["packed_all"]
    with parallel_world(config_for(folder, **whole, **knobs).parallel, seed=0) as layout:
        for index, (split, split_knobs) in enumerate(SPLITS.items()):
            for name, batch in batches().items():
                first = name not in reference
                if "virtual_pipeline" in knobs and "tokens_per_micro_batch" not in split_knobs:
                    continue
                few = name != "mixed" or dist.get_world_size() > 2
                if few and not first and split not in FEW_SPLITS:
                    continue
                shuffled, back = (batch, slice(None)) if first else reordered(batch, index)
                policy = policy_for(config_for(folder, **OPTIMIZER, **knobs, **split_knobs), layout)
                measured = two_steps(policy, shuffled)
                measured["scores"] = measured["scores"][:, back]
                if first:
                    reference[name] = measured
                somebody_idles = idles(policy, shuffled)
                if dist.get_rank() == 0:
                    found[f"{name} {split}"] = distances(measured, reference[name])
                    found[f"{name} {split}"]["idles"] = float(somebody_idles)
    return found


def meeting_place(name: str) -> dict:
    """Where process groups find each other; one's keys would lead the next one's ranks astray."""
    agent = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    return {
        "store": dist.PrefixStore(name, agent),
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
    }


def main() -> None:
    """Measure all layouts of this number of processes and write the distances."""
    folder, file, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    reference: dict[str, dict[str, Tensor]] = {}
    if file.exists():
        for key, tensor in load_file(file).items():
            batch, _, name = key.partition(":")
            reference.setdefault(batch, {})[name] = tensor
    found = {}
    # Attention over a cut sequence needs Transformer Engine; this one stands in for it, so that
    # the cut itself, the loss and the gradients can be held against one process.
    modules.check_context_parallel = lambda size: None
    causal_sdpa = modules.CausalSdpa
    init_process_group = dist.init_process_group
    for layout, knobs in LAYOUTS[int(os.environ["WORLD_SIZE"])].items():
        dist.init_process_group = partial(init_process_group, **meeting_place(layout))
        modules.CausalSdpa = GatheredSdpa if "context" in knobs else causal_sdpa
        found[layout] = measure_layout(folder, knobs, reference)
    if int(os.environ["RANK"]) == 0:
        if not file.exists():
            flat = {
                f"{b}:{n}": t.contiguous() for b, ts in reference.items() for n, t in ts.items()
            }
            save_file(flat, file)
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
