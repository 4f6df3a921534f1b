"""What the workers share: a config for a layout, a batch of made-up rollouts, a policy."""

from pathlib import Path

import torch

from checkpoint_tools.sources import open_source
from megatron_corew.config import Config
from megatron_corew.mcore.model import DTYPES
from megatron_corew.mcore.parallel import Layout
from megatron_corew.mcore.policy import Policy
from megatron_corew.mcore.teacher import Teacher
from megatron_corew.types import RolloutBatch, TrainBatch
from tests.models import VOCAB_SIZE


def config_for(folder: str, **parallel: object) -> Config:
    """A run on ``folder`` with the given ``parallel`` knobs; other sections as keywords."""
    # Optimizer and teacher, both or neither.
    offload = parallel.pop("offload", False)
    return Config.model_validate(
        {
            "method": "co_rewarding_i",
            "run": {"name": "test", "steps": 10},
            "model": {"path": folder, "dtype": parallel.pop("dtype", "float32")},
            "data": {"train": "lab", "max_prompt_tokens": 9},
            "rollout": {"max_response_tokens": 12},
            "optimizer": {
                "lr": parallel.pop("lr", 1e-3),
                "eps": parallel.pop("eps", 1e-8),
                "offload": offload,
            },
            "teacher": {"residual": parallel.pop("residual", "float32"), "offload": offload},
            "parallel": {"micro_batch_rollouts": 3, "logit_chunk_tokens": 16} | parallel,
        }
    )


def made_up_batch(rows: int = 8, *, seed: int = 5) -> RolloutBatch:
    """Rollouts of mixed lengths over two views, with one-token responses among them."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    counts = [1, *numbers(2, 12, rows - 2), 12]
    mask_RT = torch.arange(max(counts))[None] < torch.tensor(counts)[:, None]
    ids_RT = torch.randint(0, VOCAB_SIZE, mask_RT.shape, generator=generator)
    return RolloutBatch(
        prompt_ids=tuple(tuple(numbers(0, VOCAB_SIZE, n)) for n in numbers(2, 9, rows)),
        response_ids_RT=ids_RT * mask_RT,
        mask_RT=mask_RT,
        view_R=torch.arange(rows) * 2 // rows,
        rollout_logprobs_RT=-torch.rand(mask_RT.shape, generator=generator) * mask_RT,
    )


def train_batch(rollouts: RolloutBatch, *, seed: int = 6) -> TrainBatch:
    """Advantages, old and reference log-probs near the sampler's, and a global token mean."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, *rollouts.mask_RT.shape, generator=generator) * 0.05
    mask_RT = rollouts.mask_RT
    return TrainBatch(
        rollouts=rollouts,
        advantages_R=torch.randn(len(mask_RT), generator=generator),
        old_logprobs_RT=None,
        ref_logprobs_RT=(rollouts.rollout_logprobs_RT + noise[1]) * mask_RT,
        weights_RT=mask_RT / mask_RT.sum(),
    )


def teacher_for(config: Config, policy: Policy) -> Teacher:
    """A teacher that moves, stored as the config says."""
    return Teacher(
        policy.optimizer,
        policy.ddp,
        residual=DTYPES[config.teacher.residual],
        offload=config.teacher.offload,
    )


def policy_for(config: Config, layout: Layout) -> Policy:
    """The policy of a config's model folder."""
    return Policy(config, open_source(Path(config.model.path)), layout)
