"""Recomputed activations are really not kept; that they change no number is in test_splits."""

from pathlib import Path

import pytest
import torch

from megatron_corew.mcore.parallel import parallel_world
from tests.distributed.parts import config_for, made_up_batch, policy_for, train_batch
from tests.models import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen3_tied", tmp_path_factory.mktemp("recompute") / "model")


def largest_kept(folder: Path, recompute: str) -> int:
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
    return largest


def test_selective_recompute_keeps_less_and_full_recompute_least(folder):
    kept = {mode: largest_kept(folder, mode) for mode in ("none", "selective", "full")}
    # Of this model the feed-forward parts keep a fifth. With full recompute one of the four layers
    # is there at a time, beside the inputs of all: a quarter and a little.
    assert kept["selective"] < 0.85 * kept["none"], kept
    assert kept["full"] < 0.5 * kept["none"], kept
