"""Recomputed activations are really not kept, and change no number."""

from pathlib import Path

import pytest
import torch

from megatron_corew.mcore.parallel import parallel_world
from tests.distributed.parts import config_for, made_up_batch, policy_for, train_batch
from tests.models import save

# Model -> what selective recompute keeps at most, as a share of everything. The feed-forward parts
# keep a fifth of the dense model, the experts close to half of the other one.
SELECTIVE = {"qwen3_tied": 0.85, "qwen3_moe_untied": 0.7}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recompute")
    for family in SELECTIVE:
        save(family, root / family)
    return root


def largest_kept(folder: Path, recompute: str) -> tuple[int, list[torch.Tensor]]:
    """Most bytes kept for the backward pass at one time in a step of one micro-batch.

    Every tensor that autograd saves counts from then on until it is asked for back.
    """
    now = largest = 0

    class Kept:
        def __init__(self, tensor: torch.Tensor) -> None:
            nonlocal now, largest
            self.tensor, self.counted = tensor, tensor.numel() * tensor.element_size()
            now += self.counted
            largest = max(largest, now)

        def back(self) -> torch.Tensor:
            nonlocal now
            now, self.counted = now - self.counted, 0
            return self.tensor

    config = config_for(str(folder), recompute=recompute, tokens_per_micro_batch=999)
    with parallel_world(config.parallel, seed=0) as layout:
        policy, batch = policy_for(config, layout), train_batch(made_up_batch(16))
        with torch.autograd.graph.saved_tensors_hooks(Kept, Kept.back):
            policy.step(batch, learning_rate=1e-3)
        return largest, [parameter.detach().clone() for parameter in policy.ddp.parameters()]


@pytest.mark.parametrize("family", SELECTIVE)
def test_selective_recompute_keeps_less_and_full_recompute_least_with_the_same_bits(root, family):
    kept, weights = {}, {}
    for mode in ("none", "selective", "full"):
        kept[mode], weights[mode] = largest_kept(root / family, mode)
    assert kept["selective"] < SELECTIVE[family] * kept["none"], kept
    # One of the four layers is there at a time, beside the inputs of all: a quarter and a little.
    assert kept["full"] < 0.5 * kept["none"], kept
    for mode in ("selective", "full"):
        for one, other in zip(weights[mode], weights["none"], strict=True):
            assert torch.equal(one, other), mode
