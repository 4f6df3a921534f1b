"""Measures one layout: logits against Hugging Face, ten training steps, the exported weights.

Arguments: tensor pipeline data sequence distributed-optimizer families-folder out.json
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from megatron_corew.mcore.parallel import Layout, parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.types import RolloutBatch
from tests.distributed.parts import config_for, made_up_batch, policy_for, train_batch
from tests.models import FAMILIES


def score_difference(policy: Policy, folder: Path, batch: RolloutBatch) -> float:
    """Against Hugging Face, over every token of the vocabulary at every response position."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours, largest = policy.score(batch), 0.0
    for row, prompt in enumerate(batch.prompt_ids):
        count = int(batch.mask_RT[row].sum())
        response = batch.response_ids_RT[row, :count]
        ids = torch.cat([torch.tensor(prompt), response])
        with torch.no_grad():
            logits = model(ids[None]).logits[0, len(prompt) - 1 : -1]
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        certainty = logits.logsumexp(-1) - logits.mean(-1)
        picked = logp.gather(1, response[:, None])[:, 0]
        for mine, theirs in (
            (ours.logprobs_RT, picked),
            (ours.entropy_RT, entropy),
            (ours.self_certainty_RT, certainty),
        ):
            largest = max(largest, float((mine[row, :count] - theirs).abs().max()))
    return largest


def logit_difference(policy: Policy, folder: Path, batch: RolloutBatch, layout: Layout) -> float:
    """Whole logits at the predicting positions against Hugging Face, on the last stage."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []

    def use(micro, hidden_SBD):
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

        from megatron_corew.mcore.weights import gather_sequence

        hidden_ND = gather_sequence(hidden_SBD, layout).flatten(0, 1)[micro.predictor_N]
        logits_NW = hidden_ND @ policy.module.output_weight().t()
        logits_NV = gather_from_tensor_model_parallel_region(logits_NW)
        found.append((micro.place_N, logits_NV[:, : policy.architecture.vocab_size]))
        return hidden_SBD.sum(), torch.tensor(1, dtype=torch.int), {}

    with torch.no_grad():
        policy._forward_backward(policy._plan(batch), use, forward_only=True)
    largest, columns = 0.0, batch.mask_RT.shape[1]
    for place_N, logits_NV in found:
        for place, logits_V in zip(place_N.tolist(), logits_NV, strict=True):
            row, column = divmod(place, columns)
            ids = [*batch.prompt_ids[row], *batch.response_ids_RT[row, :column].tolist()]
            with torch.no_grad():
                theirs = model(torch.tensor([ids])).logits[0, -1]
            largest = max(largest, float((logits_V - theirs).abs().max()))
    answer = torch.tensor(largest)
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return float(answer)


def measure(family: str, folder: Path, config, layout: Layout) -> dict:
    """Everything about one family under this layout."""
    policy, batch = policy_for(config, layout), made_up_batch()
    measured = {
        "scores": score_difference(policy, folder, batch),
        "logits": logit_difference(policy, folder, batch, layout),
    }
    before = {name: tensor for name, tensor in policy.hf_stream()}
    if dist.get_rank() == 0:
        state = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        measured["exported"] = all(torch.equal(state[n], t) for n, t in before.items())
    steps = [policy.step(train_batch(batch, seed=s), learning_rate=1e-3) for s in range(10)]
    measured["losses"] = [step["policy/loss"] for step in steps]
    measured["grad_norms"] = [step["policy/grad_norm"] for step in steps]
    measured["kl"] = [step["policy/kl"] for step in steps]
    after = [tensor for _, tensor in policy.hf_stream()]
    if dist.get_rank() == 0:
        measured["weight_sums"] = [float(t.double().abs().sum()) for t in after]
    return measured


def main() -> None:
    """Measure all families and write the result."""
    tensor, pipeline, data, sequence, distributed = (int(a) for a in sys.argv[1:6])
    folders, out = Path(sys.argv[6]), Path(sys.argv[7])
    results = {}
    knobs = {
        "tensor": tensor,
        "pipeline": pipeline,
        "data": data,
        "sequence": bool(sequence),
        "distributed_optimizer": bool(distributed),
    }
    config = config_for(str(folders / FAMILIES[0]), **knobs)
    with parallel_world(config.parallel, seed=0) as layout:
        for family in FAMILIES:
            config = config_for(str(folders / family), **knobs)
            results[family] = measure(family, folders / family, config, layout)
        if dist.get_rank() == 0:
            out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
