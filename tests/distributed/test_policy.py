"""The policy in one process: what a step may depend on, and what stops it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from megatron_corew.algo.objective import token_objective
from megatron_corew.mcore import platform
from megatron_corew.mcore.checkpoint import Checkpoints
from megatron_corew.mcore.main_parameters import check_coverage, main_parameters
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.types import RolloutBatch, TrainBatch
from tests.distributed.parts import config_for, made_up_batch, policy_for, train_batch
from tests.models import MIXTURES, save

# What Megatron-Core 0.16 needs redirected on a CPU; something new here comes with an upgrade.
REDIRECTED = {
    "torch.cuda.current_device",
    "torch.cuda.synchronize",
    "torch.cuda.get_rng_state",
    "torch.cuda.manual_seed",
    "Tensor.cuda",
    "Tensor.type()",
    "torch.tensor(device='cuda')",
    "torch.zeros(device='cuda')",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen3_tied", tmp_path_factory.mktemp("policy") / "model")


def state_of(policy) -> list[torch.Tensor]:
    tensors = [parameter.detach().clone() for parameter in policy.ddp.parameters()]
    for leaf in policy.optimizer.chained_optimizers:
        for state in leaf.optimizer.state.values():
            tensors += [value.clone() for value in state.values()]
    return tensors


def reordered(batch: TrainBatch, order: list[int]) -> TrainBatch:
    rollouts = batch.rollouts
    return TrainBatch(
        rollouts=RolloutBatch(
            prompt_ids=tuple(rollouts.prompt_ids[row] for row in order),
            response_ids_RT=rollouts.response_ids_RT[order],
            mask_RT=rollouts.mask_RT[order],
            view_R=rollouts.view_R[order],
            rollout_logprobs_RT=rollouts.rollout_logprobs_RT[order],
        ),
        advantages_R=batch.advantages_R[order],
        old_logprobs_RT=None,
        ref_logprobs_RT=batch.ref_logprobs_RT[order],
        weights_RT=batch.weights_RT[order],
    )


@pytest.mark.parametrize(
    ("rows_per_micro_batch", "order", "chunk"),
    [(1, range(8), 4096), (3, range(8), 5), (8, reversed(range(8)), 4096)],
    ids=["micro_1", "micro_3_chunk_5", "micro_8_reversed"],
)
def test_a_step_does_not_depend_on_micro_batches_chunks_or_order(
    folder, rows_per_micro_batch, order, chunk
):
    def step(rows: int, chunk_tokens: int, batch: TrainBatch) -> tuple[dict, list]:
        config = config_for(str(folder), micro_batch_rollouts=rows, logit_chunk_tokens=chunk_tokens)
        with parallel_world(config.parallel, seed=0) as layout:
            policy = policy_for(config, layout)
            metrics = policy.step(batch, learning_rate=1e-3)
            # After one step Adam's first moment is a tenth of the clipped gradient.
            return metrics, [
                state["exp_avg"].clone()
                for leaf in policy.optimizer.chained_optimizers
                for state in leaf.optimizer.state.values()
            ]

    batch = train_batch(made_up_batch())
    expected, gradients = step(8, 4096, batch)
    metrics, others = step(rows_per_micro_batch, chunk, reordered(batch, list(order)))
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("family", ["qwen3_tied", *MIXTURES])
def test_loss_and_gradient_norm_are_those_of_hugging_face_and_autograd(family, tmp_path):
    folder = save(family, tmp_path)
    config = config_for(str(folder))
    batch = train_batch(made_up_batch())
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        metrics = policy.step(batch, learning_rate=1e-3)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rollouts, total = batch.rollouts, torch.zeros(())
    for row, prompt in enumerate(rollouts.prompt_ids):
        count = int(rollouts.mask_RT[row].sum())
        response = rollouts.response_ids_RT[row, :count]
        ids = torch.cat([torch.tensor(prompt), response])
        logits = model(ids[None]).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        losses = token_objective(
            policy.objective,
            logprobs,
            old_logprobs=None,
            ref_logprobs=batch.ref_logprobs_RT[row, :count],
            rollout_logprobs=rollouts.rollout_logprobs_RT[row, :count],
            advantages=batch.advantages_R[row],
        )
        total = total + (losses.total * batch.weights_RT[row, :count]).sum()
    total.backward()
    # Over half a million numbers a float32 norm is itself wrong by more than the tolerance.
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    assert metrics["policy/loss"] == pytest.approx(total.item(), rel=1e-5)
    assert metrics["policy/grad_norm"] == pytest.approx(gradients.norm().item(), rel=1e-5)


def test_an_update_without_a_trained_token_changes_nothing(folder):
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        batch = train_batch(made_up_batch())
        policy.step(batch, learning_rate=1e-3)  # gives Adam a momentum to move by
        before = state_of(policy)
        empty = replace(batch, weights_RT=torch.zeros_like(batch.weights_RT))
        metrics = policy.step(empty, learning_rate=1e-3)
        assert metrics["policy/empty_update"] == 1.0
        assert metrics["policy/trained_tokens"] == 0.0
        for one, other in zip(before, state_of(policy), strict=True):
            assert torch.equal(one, other)


def test_a_non_finite_update_is_skipped_and_too_many_end_the_run(folder):
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        batch = train_batch(made_up_batch())
        broken = replace(batch, advantages_R=torch.full((8,), torch.nan))
        before = state_of(policy)
        for _ in range(config.optimizer.max_skipped_updates):
            assert policy.step(broken, learning_rate=1e-3)["policy/skipped_update"] == 1.0
        for one, other in zip(before, state_of(policy), strict=True):
            assert torch.equal(one, other)
        with pytest.raises(RuntimeError, match=r"optimizer\.lr"):
            policy.step(broken, learning_rate=1e-3)
        # A finite update in between starts the count again.
        assert policy.step(batch, learning_rate=1e-3)["policy/skipped_update"] == 0.0
        assert policy.skipped_updates == 0


def test_scoring_leaves_weights_optimizer_and_rng_as_they_are(folder):
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy, batch = policy_for(config, layout), made_up_batch()
        policy.step(train_batch(batch), learning_rate=1e-3)
        before, rng = state_of(policy), torch.get_rng_state()
        policy.score(batch)
        assert torch.equal(rng, torch.get_rng_state())
        for one, other in zip(before, state_of(policy), strict=True):
            assert torch.equal(one, other)


def test_weight_decay_reaches_every_parameter(folder):
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        decays = {group["weight_decay"] for group in policy.optimizer.param_groups}
        assert decays == {config.optimizer.weight_decay}
        count = sum(len(group["params"]) for group in policy.optimizer.param_groups)
        assert count == len(list(policy.ddp.parameters()))


def test_a_trained_parameter_without_a_teacher_is_an_error_that_names_it(folder):
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        mains = main_parameters(policy.optimizer)
        check_coverage(policy.module, mains)
        policy.module.forgotten = torch.nn.Parameter(torch.zeros(1))
        with pytest.raises(ValueError, match="forgotten"):
            check_coverage(policy.module, mains)


def test_a_truncated_checkpoint_is_refused_by_the_name_of_the_file(folder, tmp_path):
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        policy.step(train_batch(made_up_batch()), learning_rate=1e-3)
        checkpoints = Checkpoints(tmp_path, config, policy, None)
        saved = checkpoints.save(1)
        checkpoints.load(1)
        damaged = max(saved.glob("*.distcp"), key=lambda file: file.stat().st_size)
        damaged.write_bytes(damaged.read_bytes()[:-100])
        with pytest.raises(RuntimeError, match=damaged.name):
            checkpoints.load(1)


def test_megatron_reaches_only_for_the_known_redirections(folder):
    if platform.has_cuda():
        pytest.skip("nothing is redirected where CUDA is present")
    platform.record()
    config = config_for(str(folder))
    with parallel_world(config.parallel, seed=0) as layout:
        policy_for(config, layout).step(train_batch(made_up_batch()), learning_rate=1e-3)
    sites = platform.recorded_sites()
    assert sites.keys() <= REDIRECTED
    assert "torch.zeros(device='cuda')" in sites
    assert any("schedules" in site for site in sites["torch.zeros(device='cuda')"])
