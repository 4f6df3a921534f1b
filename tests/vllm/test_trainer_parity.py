"""Trainer and vLLM give the same log-probs after every push, of policy and teacher."""

from pathlib import Path

import pytest
import torch

from checkpoint_tools.sources import open_source
from megatron_corew.config import Config
from megatron_corew.data.batching import collate
from megatron_corew.rollout.sampler import Sampler, Sampling, ServerPool
from megatron_corew.rollout.server import VllmServer
from megatron_corew.types import Prompt
from tests.distributed.parts import config_for, train_batch
from tests.models import save

pytestmark = pytest.mark.vllm

SAMPLING = Sampling(temperature=1.0, max_tokens=12)
PROMPTS = [
    Prompt(question_id=str(n), view="original", text="", token_ids=tuple(range(3 + n, 9 + 2 * n)))
    for n in range(6)
]


def mean_gap(policy, sampler: Sampler, *, seed: int) -> float:
    """Mean |trainer - sampler| log-prob over freshly sampled tokens."""
    batch = collate(sampler.sample(PROMPTS, samples=4, seed=seed))
    ours = policy.score(batch).logprobs_RT
    return float((ours - batch.rollout_logprobs_RT)[batch.mask_RT].abs().mean())


@pytest.mark.parametrize("family", ["qwen3_tied", "qwen3_untied", "qwen3_moe_untied"])
def test_the_log_prob_gap_stays_below_1e_5_after_every_push(family, tmp_path: Path):
    from megatron_corew.mcore.parallel import parallel_world
    from megatron_corew.mcore.policy import Policy
    from megatron_corew.mcore.teacher import Teacher

    # vLLM's CPU attention knows few head sizes.
    folder = save(family, tmp_path / family, head_size=32)
    config = config_for(str(folder), lr=1e-2)
    server = start_server(folder, config, tmp_path)
    try:
        pool = ServerPool([server.client()])
        knobs = {
            "sampling": SAMPLING,
            "bucket_folder": Path("/dev/shm"),
            "bucket_bytes": 1 << 16,
            "dtype": torch.float32,
        }
        sampler, teacher_sampler = (
            Sampler(pool, "policy", **knobs),
            Sampler(pool, "teacher", **knobs),
        )
        with parallel_world(config.parallel, seed=0) as layout:
            policy = Policy(config, open_source(folder), layout)
            teacher = Teacher(policy.optimizer, policy.ddp, residual=torch.float32, offload=False)
            for step in range(3):
                sampler.push(policy.hf_stream(), version=step)
                assert mean_gap(policy, sampler, seed=step) <= 1e-5
                batch = collate(sampler.sample(PROMPTS, samples=4, seed=100 + step))
                before = policy.score(batch).logprobs_RT
                teacher.update(0.3)
                with teacher.installed():
                    teacher_sampler.push(policy.hf_stream(), version=step)
                    assert mean_gap(policy, teacher_sampler, seed=10 + step) <= 1e-5
                policy.step(train_batch(batch, seed=step), learning_rate=1e-2)
                # The step moves the policy far beyond the gap: a stale push would be seen.
                moved = (policy.score(batch).logprobs_RT - before)[batch.mask_RT].abs().mean()
                assert float(moved) > 1e-3
    finally:
        server.stop()


def start_server(folder: Path, config: Config, tmp_path: Path) -> VllmServer:
    """A float32 server that is ready."""
    server = VllmServer(
        str(folder),
        config.servers.model_copy(update={"start_timeout_s": 150.0, "request_timeout_s": 60.0}),
        dtype="float32",
        max_model_len=64,
        seed=0,
        log_path=tmp_path / "vllm.log",
    )
    server.start()
    server.wait_until_healthy()
    return server
