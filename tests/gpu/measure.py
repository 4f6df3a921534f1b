"""Measures parity, a step, offloading, the kernels and FP8 on this machine; prints one JSON.

    python -m tests.gpu.measure [--dry-run]

Without a GPU only the dry run, with tiny sizes, goes: it shows that the script itself works, its
figures mean nothing.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from megatron_corew.mcore import platform
from megatron_corew.mcore.logprobs import token_scores, vocabulary_shard
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.policy import Policy
from megatron_corew.mcore.teacher import Teacher
from megatron_corew.types import RolloutBatch, TrainBatch
from tests.gpu import offloading, parity
from tests.gpu.models import ONE_BILLION, TINY, MadeUpSource, run_config

H100_BF16_FLOPS = 989e12
"""Peak of H100 and H200 SXM, dense; NVIDIA's data sheet."""


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Median time of an action after one to warm up, device work included."""
    times = []
    for _ in range(repeats + 1):
        _wait()
        start = time.perf_counter()
        action()
        _wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _wait() -> None:
    if platform.has_cuda():
        torch.cuda.synchronize()


def copy_rate(elements: int) -> float:
    """Bytes per second, read and written together, of a float32 copy."""
    source = torch.randn(elements, device=platform.device())
    target = torch.empty_like(source)
    return 8 * elements / seconds(lambda: target.copy_(source), 5)


def made_up_batch(rows: int, response: int, vocab: int) -> TrainBatch:
    """Rollouts of full length with advantages of both signs."""
    generator = torch.Generator().manual_seed(1)
    ids_RT = torch.randint(0, vocab, (rows, response), generator=generator)
    mask_RT = torch.ones(rows, response, dtype=torch.bool)
    logprobs_RT = torch.full((rows, response), -3.0)
    return TrainBatch(
        rollouts=RolloutBatch(
            prompt_ids=tuple(tuple(range(1, 33)) for _ in range(rows)),
            response_ids_RT=ids_RT,
            mask_RT=mask_RT,
            view_R=torch.zeros(rows, dtype=torch.int64),
            rollout_logprobs_RT=logprobs_RT,
        ),
        advantages_R=torch.tensor([1.0, -1.0]).repeat(rows // 2),
        old_logprobs_RT=None,
        ref_logprobs_RT=logprobs_RT,
        weights_RT=mask_RT / mask_RT.sum(),
    )


def step_and_teacher(tiny: bool) -> dict[str, dict[str, Any]]:
    """A training step and the teacher's update of one policy."""
    model, rows, response = (TINY, 4, 32) if tiny else (ONE_BILLION, 16, 2016)
    config = run_config(dtype="bfloat16", response_tokens=response, budget=128 if tiny else 8192)
    batch = made_up_batch(rows, response, model["vocab_size"])
    with parallel_world(config.parallel, seed=0) as layout:
        policy = Policy(config, MadeUpSource(model, scale=0.02), layout)
        teacher = Teacher(policy.optimizer, policy.ddp, residual=torch.float32, offload=False)
        count = sum(shard.value.numel() for shard in teacher.shards)
        took = seconds(lambda: policy.step(batch, learning_rate=1e-6), 3)
        loss = policy.step(batch, learning_rate=1e-6)["policy/loss"]
        updated = seconds(lambda: teacher.update(0.01), 5)
    tokens = rows * (32 + response)
    # Read policy 4, teacher 4, residual 4; write teacher 4, residual 4.
    moved = 20 * count / updated
    return {
        "step": {
            "parameters": count,
            "tokens": tokens,
            "seconds": took,
            "tokens_per_s": tokens / took,
            # Embedding and output layer share their weights, which count once, as the latter.
            "mfu_of_h100": 6 * count * tokens / took / H100_BF16_FLOPS,
            "loss": loss,
            "memory_bytes": torch.cuda.max_memory_allocated() if platform.has_cuda() else 0,
        },
        "ema": {
            "parameters": count,
            "seconds": updated,
            "bytes_per_s": moved,
            "share_of_copy": moved / copy_rate(1 << 16 if tiny else 1 << 28),
        },
    }


def scoring(tiny: bool) -> dict[str, Any]:
    """Log-probs and entropy, forward and backward, against copying the logits once."""
    tokens, hidden, vocab = (64, 32, 256) if tiny else (8192, 2048, 128_256)
    device = platform.device()
    hidden_ND = torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16)
    weight_WD = torch.randn(vocab, hidden, device=device, dtype=torch.bfloat16) * 0.02
    hidden_ND.requires_grad_()
    weight_WD.requires_grad_()
    targets_N = torch.randint(0, vocab, (tokens,), device=device)
    shard = vocabulary_shard(vocab, vocab, 0, None)

    def both_ways() -> None:
        logp_N, entropy_N, _ = token_scores(
            hidden_ND, weight_WD, targets_N, shard, temperature=1.0, chunk=4096
        )
        (logp_N.sum() + entropy_N.sum()).backward()

    took = seconds(both_ways, 3)
    copied = 8 * tokens * vocab / copy_rate(1 << 16 if tiny else 1 << 28)
    # Logits twice, and a product for each of the two gradients.
    computed = 8 * tokens * vocab * hidden / H100_BF16_FLOPS
    return {
        "tokens": tokens,
        "vocabulary": vocab,
        "seconds": took,
        "logits_copy_seconds": copied,
        "share_of_copy": copied / took,
        "share_of_h100_peak": computed / took,
    }


def fp8() -> dict[str, Any]:
    """A linear layer in Transformer Engine's FP8 against the same in bfloat16."""
    if not platform.has_cuda() or find_spec("transformer_engine") is None:
        return {"skipped": "needs a GPU with Transformer Engine"}
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    layer = te.Linear(4096, 4096, bias=False, params_dtype=torch.bfloat16, device="cuda")
    inputs = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    exact = layer(inputs).float()
    found: dict[str, Any] = {"bf16_seconds": seconds(lambda: layer(inputs), 10)}
    recipes = {
        "blockwise": recipe.Float8BlockScaling(),
        "tensorwise": recipe.Float8CurrentScaling(),
        "delayed": recipe.DelayedScaling(),
    }
    for name, chosen in recipes.items():

        def quantised(chosen: Any = chosen) -> torch.Tensor:
            with te.fp8_autocast(enabled=True, fp8_recipe=chosen):
                return layer(inputs)

        error = (quantised().float() - exact).norm() / exact.norm()
        found[name] = {"seconds": seconds(quantised, 10), "relative_error": float(error)}
    return found


def main() -> None:
    """Measure part after part; what was measured before a failure is printed too."""
    parser = argparse.ArgumentParser(description="Measure this machine; print one JSON.")
    parser.add_argument("--dry-run", action="store_true", help="Tiny sizes, GPU or not.")
    tiny = parser.parse_args().dry_run
    if not (tiny or platform.has_cuda()):
        sys.exit("measure: need a GPU, got none. Try the script with --dry-run.")
    gpu = torch.cuda.get_device_name() if platform.has_cuda() else None
    found: dict[str, Any] = {"gpu": gpu, "torch": torch.__version__, "dry_run": tiny}
    began = time.perf_counter()
    try:
        found["logits"] = parity.measure("bfloat16")
        found |= step_and_teacher(tiny)
        found["offload"] = offloading.measure(made_up_batch(4, 32, TINY["vocab_size"]))
        found["scores"] = scoring(tiny)
        found["fp8"] = fp8()
        found["complete"] = True
    finally:
        found["seconds"] = time.perf_counter() - began
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
