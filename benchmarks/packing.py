"""Measures tokens/s of an update with packed sequences against padded batches, in one process.

    python benchmarks/packing.py

Three ways to cut the same rollouts, with the same largest number of tokens in a forward pass:
padded in the order of arrival, padded with rows sorted by length, packed. Every round times all
three; figures are the best of the rounds, in true (unpadded) tokens. Prints one JSON.
"""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from checkpoint_tools.hf_folder import HfReader
from megatron_corew.config import Config
from megatron_corew.mcore.micro_batches import MicroBatch, plan_micro_batches
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.types import RolloutBatch, TrainBatch

ROWS, PROMPT, LONGEST, ROWS_PADDED, ROUNDS = 48, 32, 384, 4, 3
VOCAB = 2048
BUDGET = ROWS_PADDED * (PROMPT + LONGEST)


def rollouts() -> RolloutBatch:
    """Responses of a log-normal length (median a fifth of the longest), some cut off.

    The shape of reasoning responses early in training: most are short, the tail hits the limit.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(ROWS, generator=generator) * 0.8).exp() * LONGEST / 5
    counts = lengths.long().clamp(1, LONGEST)
    mask_RT = torch.arange(LONGEST)[None] < counts[:, None]
    ids_RT = torch.randint(0, VOCAB, mask_RT.shape, generator=generator) * mask_RT
    return RolloutBatch(
        prompt_ids=tuple(tuple(range(1, PROMPT + 1)) for _ in range(ROWS)),
        response_ids_RT=ids_RT,
        mask_RT=mask_RT,
        view_R=torch.zeros(ROWS, dtype=torch.int64),
        rollout_logprobs_RT=-torch.ones(mask_RT.shape) * mask_RT,
    )


def in_order_of_arrival(policy: Policy, batch: RolloutBatch) -> list[MicroBatch]:
    """Padded micro-batches of neighbouring rows."""
    plan = []
    for start in range(0, ROWS, ROWS_PADDED):
        rows = slice(start, start + ROWS_PADDED)
        part = replace(
            batch,
            prompt_ids=batch.prompt_ids[rows],
            response_ids_RT=batch.response_ids_RT[rows],
            mask_RT=batch.mask_RT[rows],
        )
        (micro,) = plan_micro_batches(
            part, policy.layout, policy._parallel, policy._cost, torch.device("cpu")
        )
        plan.append(replace(micro, place_N=micro.place_N + start * LONGEST))
    return plan


def config(folder: str, **parallel: int) -> Config:
    """A run on the benchmark's model."""
    return Config.model_validate(
        {
            "method": "ground_truth",
            "run": {"name": "packing", "steps": 1},
            "model": {"path": folder, "dtype": "float32"},
            "data": {"train": "lab", "max_prompt_tokens": PROMPT},
            "rollout": {"max_response_tokens": LONGEST},
            "parallel": parallel,
        }
    )


def model_folder(folder: Path) -> str:
    """A random Qwen3 of 13 million weights."""
    torch.manual_seed(0)
    sizes = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(sizes).float().save_pretrained(folder)
    return str(folder)


def seconds(policy: Policy, batch: TrainBatch) -> float:
    """Of one update."""
    start = time.perf_counter()
    policy.step(batch, learning_rate=1e-6)
    return time.perf_counter() - start


def measure(folder: str) -> dict[str, object]:
    """All three ways, round by round."""
    sampled = rollouts()
    batch = TrainBatch(
        rollouts=sampled,
        advantages_R=torch.ones(ROWS),
        old_logprobs_RT=None,
        ref_logprobs_RT=sampled.rollout_logprobs_RT,
        weights_RT=sampled.mask_RT / sampled.mask_RT.sum(),
    )
    padded = config(folder, micro_batch_rollouts=ROWS_PADDED)
    packed = config(folder, tokens_per_micro_batch=BUDGET)
    with parallel_world(padded.parallel, seed=0) as layout:
        ways = {
            "arrival": Policy(padded, HfReader(folder), layout),
            "sorted": Policy(padded, HfReader(folder), layout),
            "packed": Policy(packed, HfReader(folder), layout),
        }
        arrival = in_order_of_arrival(ways["arrival"], sampled)
        ways["arrival"]._plan = lambda _: arrival  # type: ignore[method-assign]
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for name, policy in ways.items():
                best[name] = min(best[name], seconds(policy, batch))
        computed = {
            name: sum(micro.token_ids_BS.numel() for micro in policy._plan(sampled))
            for name, policy in ways.items()
        }
    tokens = int(sampled.mask_RT.sum()) + ROWS * PROMPT
    return {
        "tokens": tokens,
        "tokens_with_padding": computed,
        "tokens_per_second": {name: round(tokens / took, 1) for name, took in best.items()},
        "packed_over_arrival": round(best["arrival"] / best["packed"], 2),
        "packed_over_sorted": round(best["sorted"] / best["packed"], 2),
    }


def main() -> None:
    """Print the figures as JSON."""
    with tempfile.TemporaryDirectory() as root:
        print(json.dumps(measure(model_folder(Path(root) / "model")), indent=1))


if __name__ == "__main__":
    main()
