"""Measures tokens/s of an update with packed sequences against padded batches, in one process.

    python benchmarks/packing.py

Three ways to cut the same rollouts, with the same largest number of tokens in a forward pass:
    random: a fixed number of rows in random order, padded to the longest of them; what other
        trainers do without packing, and what the headline compares with.
    sorted: as many rows sorted by length first; what this one does without packing.
    packed: sequences one behind the other.
Two mixes of lengths. Every round times all ways; figures are
the best of the rounds, in true (unpadded) tokens and the process's own seconds. Prints one JSON.
"""

import json
import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from checkpoint_tools.sources import open_source
from megatron_corew.config import Config
from megatron_corew.mcore.micro_batches import MicroBatch, plan_micro_batches
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.types import RolloutBatch, TrainBatch

ROWS, PROMPT, LONGEST, ROWS_PADDED, ROUNDS = 48, 32, 384, 4, 3
VOCAB = 2048
BUDGET = ROWS_PADDED * (PROMPT + LONGEST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """Log-normal lengths of responses, cut off at the longest."""

    median: float
    """Tokens."""
    spread: float
    """Standard deviation of the logarithm."""


MIXES = {
    # The shape of reasoning responses early in training: most are short, the tail hits the limit.
    "a fifth": Mix(median=LONGEST / 5, spread=0.8),
    # A mean of 600 under a limit of 3,072, scaled by 8: exp(0.5) times the median is the mean.
    "long tail": Mix(median=75 / math.exp(0.5), spread=1.0),
}


def rollouts(mix: Mix) -> RolloutBatch:
    """Made-up responses of a mix, in random order."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(ROWS, generator=generator) * mix.spread).exp() * mix.median
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


def in_random_order(policy: Policy, batch: RolloutBatch) -> list[MicroBatch]:
    """Padded micro-batches of neighbouring rows, whose lengths are independent."""
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
    start = time.process_time()
    policy.step(batch, learning_rate=1e-6)
    return time.process_time() - start


def measure(folder: str, mix: Mix) -> dict[str, object]:
    """All three ways, round by round."""
    sampled = rollouts(mix)
    batch = TrainBatch(
        rollouts=sampled,
        advantages_R=torch.ones(ROWS),
        old_logprobs_RT=None,
        ref_logprobs_RT=sampled.rollout_logprobs_RT,
        weights_RT=sampled.mask_RT / sampled.mask_RT.sum(),
    )
    source = open_source(Path(folder))
    padded = config(folder, micro_batch_rollouts=ROWS_PADDED)
    packed = config(folder, tokens_per_micro_batch=BUDGET)
    with parallel_world(padded.parallel, seed=0) as layout:
        ways = {
            "random": Policy(padded, source, layout),
            "sorted": Policy(padded, source, layout),
            "packed": Policy(packed, source, layout),
        }
        unsorted = in_random_order(ways["random"], sampled)
        ways["random"]._plan = lambda _: unsorted  # type: ignore[method-assign]
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
        "packed_over_random": round(best["random"] / best["packed"], 2),
        "packed_over_sorted": round(best["sorted"] / best["packed"], 2),
    }


def main() -> None:
    """Print the figures of both mixes as JSON."""
    with tempfile.TemporaryDirectory() as root:
        folder = model_folder(Path(root) / "model")
        print(json.dumps({name: measure(folder, mix) for name, mix in MIXES.items()}, indent=1))


if __name__ == "__main__":
    main()
