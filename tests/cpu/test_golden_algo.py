"""Advantages, losses, schedules and scores against the golden numbers of public code.

Each file states its tolerance; it is read from there. The golden aggregations that are not
offered (sums per sequence) are formed here from the token losses.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_corew.algo.advantages import group_advantages
from megatron_corew.algo.aggregation import token_weights
from megatron_corew.algo.losses import importance_weights, kl_token_estimates, policy_token_losses
from megatron_corew.algo.objective import Objective, token_objective
from megatron_corew.algo.schedules import ema_weight, learning_rate
from megatron_corew.algo.scores import response_means

GOLDEN = Path(__file__).parents[1] / "golden"
AGGREGATIONS = {"token-mean": "token_mean", "seq-mean-token-mean": "seq_mean"}
ESTIMATORS = {"k1", "k2", "k3"}


def _load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def _cases(name, *, having=None):
    golden = _load(name)
    return [
        pytest.param(case, case.get("tolerance", golden["tolerance"]), id=case["name"])
        for case in golden["cases"]
        if having is None or having in case
    ]


def _close(ours, golden, tolerance):
    expected = torch.tensor(golden, dtype=torch.float64)
    actual = torch.as_tensor(ours, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=tolerance["rtol"], atol=tolerance["atol"])


def _mask(lengths, num_tokens):
    return torch.arange(num_tokens) < torch.tensor(lengths)[:, None]


def _weights(mask_RT, aggregation, *, view_R=None, constant=1, micro_batch=1):
    if view_R is None:
        view_R = torch.zeros(len(mask_RT), dtype=torch.int64)
    return token_weights(
        mask_RT,
        view_R,
        aggregation=aggregation,
        length_constant=constant,
        official_micro_batch=micro_batch,
    )


def _aggregate(token_losses_RT: Tensor, mask_RT: Tensor, aggregation: str) -> Tensor:
    """Any official aggregation: ours through the weights, the others as plain sums."""
    if aggregation in AGGREGATIONS:
        return (_weights(mask_RT, AGGREGATIONS[aggregation]) * token_losses_RT).sum()
    sums_R = (token_losses_RT * mask_RT).sum(dim=1)
    if aggregation == "seq-mean-token-sum":
        return sums_R.mean()
    assert aggregation == "seq-mean-token-sum-norm"
    return sums_R.sum() / mask_RT.shape[1]


# Advantages ---------------------------------------------------------------------------------


def _group_rows(group_ids):
    rows = {}
    for row, group in enumerate(group_ids):
        rows.setdefault(group, []).append(row)
    return rows.values()


@pytest.mark.parametrize(("case", "tolerance"), _cases("grpo_advantage"))
def test_advantages(case, tolerance):
    tolerance = tolerance.get("values", tolerance)
    rewards = case.get("rewards") or [sum(row) for row in case["token_level_rewards"]]
    for rows in _group_rows(case["group_ids"]):
        rewards_PG = torch.tensor([[rewards[row] for row in rows]])
        if len(rows) == 1:
            # The official code gives a group of one its own reward as the advantage; here it is
            # refused, because nothing was compared.
            with pytest.raises(ValueError, match="samples_per_prompt"):
                group_advantages(rewards_PG, divide_by_std=True)
            continue
        for key, divide in (("advantages_with_std", True), ("advantages_without_std", False)):
            advantages_PG = group_advantages(rewards_PG, divide_by_std=divide)
            _close(advantages_PG[0], [case[key][row] for row in rows], tolerance)


# Policy loss --------------------------------------------------------------------------------


def _policy_loss(case, mask_RT, *, clip_low, clip_high, dual_clip, log_probs=None):
    logprobs_RT = torch.tensor(log_probs or case["log_probs"], requires_grad=True)
    losses_RT, clipped_RT = policy_token_losses(
        logprobs_RT,
        torch.tensor(case["old_log_probs"]),
        torch.tensor(case["advantages"])[:, None],
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return logprobs_RT, losses_RT, clipped_RT


@pytest.mark.parametrize(("case", "tolerance"), _cases("policy_loss"))
def test_policy_loss(case, tolerance):
    mask_RT = _mask(case["response_lengths"], len(case["log_probs"][0]))
    for result in case["results"]:
        logprobs_RT, losses_RT, clipped_RT = _policy_loss(
            case, mask_RT, **{key: result[key] for key in ("clip_low", "clip_high", "dual_clip")}
        )
        loss = _aggregate(losses_RT, mask_RT, result["aggregation"])
        loss.backward()
        _close(loss.detach(), result["loss"], tolerance["values"])
        _close(clipped_RT[mask_RT].double().mean(), result["clip_fraction"], tolerance["values"])
        _close(logprobs_RT.grad, result["grad_log_probs"], tolerance["gradients"])


@pytest.mark.parametrize(("case", "tolerance"), _cases("dr_grpo"))
def test_dr_grpo(case, tolerance):
    mask_RT = _mask(case["response_lengths"], len(case["log_probs"][0]))
    logprobs_RT, losses_RT, _ = _policy_loss(
        case, mask_RT, clip_low=case["clip_low"], clip_high=case["clip_high"], dual_clip=None
    )
    loss = (_weights(mask_RT, "dr_grpo", constant=case["constant"]) * losses_RT).sum()
    loss.backward()
    _close(loss.detach(), case["verl"]["loss"], tolerance["values"])
    _close(loss.detach(), case["trl"]["loss"], tolerance["values"])
    _close(logprobs_RT.grad, case["verl"]["grad_log_probs"], tolerance["gradients"])


@pytest.mark.parametrize(("case", "tolerance"), _cases("dapo_token_mean"))
def test_the_global_token_mean_over_ranks_and_micro_batches(case, tolerance):
    mask_RT = _mask(case["response_lengths"], len(case["log_probs"][0]))
    clips = {key: case[key] for key in ("clip_low", "clip_high", "dual_clip")}
    logprobs_RT, losses_RT, _ = _policy_loss(case, mask_RT, **clips)
    weighted_RT = _weights(mask_RT, "token_mean") * losses_RT
    parts = [weighted_RT[part["rows"][0] : part["rows"][1]].sum() for part in case["parts"]]
    for part, loss in zip(case["parts"], parts, strict=True):
        _close(loss.detach(), part["nemo_rl_loss"], tolerance["values"])
    total = sum(parts)
    total.backward()
    _close(total.detach(), case["single_process"]["loss"], tolerance["values"])
    _close(logprobs_RT.grad, case["single_process"]["grad_log_probs"], tolerance["gradients"])


@pytest.mark.parametrize(("case", "tolerance"), _cases("tis"))
def test_truncated_importance_sampling(case, tolerance):
    mask_RT = _mask(case["response_lengths"], len(case["log_probs"][0]))
    result = case["results"]["token"]
    weights_RT = importance_weights(
        torch.tensor(case["old_log_probs"]),
        torch.tensor(case["rollout_log_probs"]),
        cap=case["cap"],
    )
    _close(weights_RT * mask_RT, result["weights"], tolerance["values"])
    for aggregation in AGGREGATIONS:
        logprobs_RT, losses_RT, _ = _policy_loss(
            case, mask_RT, clip_low=0.2, clip_high=0.2, dual_clip=None
        )
        loss = _aggregate(weights_RT * losses_RT, mask_RT, aggregation)
        loss.backward()
        _close(loss.detach(), result[aggregation]["loss"], tolerance["values"])
        _close(logprobs_RT.grad, result[aggregation]["grad_log_probs"], tolerance["gradients"])


# KL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "tolerance"), _cases("kl_penalty"))
def test_kl_estimators(case, tolerance):
    mask_RT = _mask(case["response_lengths"], len(case["log_probs"][0]))
    results = [result for result in case["results"] if result["alias"] in ESTIMATORS]
    assert {result["alias"] for result in results} == ESTIMATORS
    for result in results:
        # The official code clamps its k3 only.
        clamp = 10.0 if result["alias"] == "k3" else None
        logprobs_RT = torch.tensor(case["log_probs"], requires_grad=True)
        estimates_RT = kl_token_estimates(
            logprobs_RT,
            torch.tensor(case["ref_log_probs"]),
            estimator=result["alias"],
            clamp=clamp,
        )
        _close(estimates_RT.detach(), result["per_token"], tolerance["values"])
        for key in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
            loss = _aggregate(estimates_RT, mask_RT, key).detach()
            _close(loss, result[f"loss {key}"], tolerance["values"])
        masked_sum = (estimates_RT * mask_RT).sum()
        (grad_sum,) = torch.autograd.grad(masked_sum, logprobs_RT, retain_graph=True)
        _close(grad_sum, result["grad_of_masked_sum"], tolerance["gradients"])
        (grad_mean,) = torch.autograd.grad(
            _aggregate(estimates_RT, mask_RT, "token-mean"), logprobs_RT
        )
        _close(grad_mean, result["grad token-mean"], tolerance["gradients"])


# A whole update -----------------------------------------------------------------------------


def _update(case, rows, *, old_logprobs_RT, weights_RT, logprobs_RT, advantages_R, ref_RT):
    """Loss and gradient of the rows of one update: surrogate plus KL, weighted and summed."""
    objective = Objective(
        clip_low=case["clip"],
        clip_high=case["clip"],
        dual_clip=case["dual_clip"],
        kl_coef=case["kl_coef"],
        kl_estimator="k3",
        kl_clamp=10.0,
        tis_cap=None,
    )
    losses = token_objective(
        objective,
        logprobs_RT,
        old_logprobs=old_logprobs_RT,
        ref_logprobs=ref_RT,
        rollout_logprobs=logprobs_RT.detach(),
        advantages=advantages_R[:, None],
    )
    weighted_RT = weights_RT * losses.total
    return weighted_RT[rows].sum()


@pytest.mark.parametrize(
    ("case", "tolerance"), _cases("update_step", having="response_lengths_original")
)
def test_the_update_of_two_views(case, tolerance):
    def both(key):
        return torch.tensor(case[f"{key}_original"] + case[f"{key}_rephrased"])

    logprobs_RT = both("log_probs").requires_grad_()
    num_rows = len(case["advantages_original"])
    view_R = torch.arange(2).repeat_interleave(num_rows)
    mask_RT = torch.arange(logprobs_RT.shape[1]) < both("response_lengths")[:, None]
    official_mean = "seq_mean" if case["aggregation"] != "token-mean" else "micro_batch_token_mean"
    weights_RT = _weights(
        mask_RT, official_mean, view_R=view_R, micro_batch=case["micro_batch_size"]
    )
    micro_batch_R = torch.arange(num_rows).div(case["micro_batch_size"], rounding_mode="floor")
    losses = [
        _update(
            case,
            micro_batch_R.repeat(2) == number,
            old_logprobs_RT=both("old_log_probs"),
            weights_RT=weights_RT,
            logprobs_RT=logprobs_RT,
            advantages_R=both("advantages"),
            ref_RT=both("ref_log_probs"),
        )
        for number in range(len(case["loss_per_micro_batch"]))
    ]
    total = sum(losses)
    total.backward()
    _close(torch.stack(losses).detach(), case["loss_per_micro_batch"], tolerance["values"])
    _close(total.detach(), case["loss"], tolerance["values"])
    _close(logprobs_RT.grad, case["grad_original"] + case["grad_rephrased"], tolerance["gradients"])
    _close(logprobs_RT.grad.norm(), case["grad_norm"], tolerance["values"])


@pytest.mark.parametrize(("case", "tolerance"), _cases("update_step", having="mini_batch_size"))
def test_the_update_of_one_view(case, tolerance):
    mini, micro = case["mini_batch_size"], case["micro_batch_size"]
    one_mini_batch = mini == len(case["advantages"])
    mask_RT = _mask(case["response_lengths"], len(case["log_probs"][0]))
    for number, start in enumerate(range(0, len(case["advantages"]), mini)):
        part = slice(start, start + mini)
        logprobs_RT = torch.tensor(case["log_probs"][part], requires_grad=True)
        old_RT = None if one_mini_batch else torch.tensor(case["old_log_probs"][part])
        weights_RT = _weights(mask_RT[part], "micro_batch_token_mean", micro_batch=micro)
        losses = [
            _update(
                case,
                slice(first, first + micro),
                old_logprobs_RT=old_RT,
                weights_RT=weights_RT,
                logprobs_RT=logprobs_RT,
                advantages_R=torch.tensor(case["advantages"][part]),
                ref_RT=torch.tensor(case["ref_log_probs"][part]),
            )
            for first in range(0, mini, micro)
        ]
        sum(losses).backward()
        first_loss = start // micro
        golden_losses = case["loss_per_micro_batch"][first_loss : first_loss + mini // micro]
        _close(torch.stack(losses).detach(), golden_losses, tolerance["values"])
        # The golden gradient is that of the whole table: zero outside the mini-batch.
        golden_grad = case["grad_per_mini_batch"][number][part]
        _close(logprobs_RT.grad, golden_grad, tolerance["gradients"])
        _close(
            logprobs_RT.grad.norm(), case["grad_norm_per_mini_batch"][number], tolerance["values"]
        )


# Schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "tolerance"), _cases("ema", having="alpha"))
def test_the_ema_weight_of_every_step(case, tolerance):
    weights = [
        ema_weight(
            case["first_step"] + offset,
            case["total_steps"],
            schedule="cosine",
            start=case["alpha_start"],
            end=case["alpha_end"],
        )
        for offset in range(len(case["alpha"]))
    ]
    _close(weights, case["alpha"], tolerance["alpha"])


@pytest.mark.parametrize(("case", "tolerance"), _cases("ema", having="steps"))
def test_teacher_sequences_follow_the_schedule(case, tolerance):
    teacher = {name: torch.tensor(value) for name, value in case["initial_teacher"].items()}
    for step in case["steps"]:
        weight = ema_weight(
            step["step"],
            case["total_steps"],
            schedule="cosine",
            start=case["alpha_start"],
            end=case["alpha_end"],
        )
        _close(weight, step["alpha"], tolerance["alpha"])
        for name, value in teacher.items():
            policy = torch.tensor(step["policy"][name])
            teacher[name] = value + weight * (policy - value)
            _close(teacher[name], step["teacher"][name], tolerance["teacher"])


@pytest.mark.parametrize(("case", "tolerance"), _cases("lr_schedule"))
def test_the_official_learning_rate(case, tolerance):
    total = case["total_steps"]
    rates = [
        learning_rate(
            update,
            total,
            peak=case["lr"],
            warmup_share=case["warmup_ratio"],
            min_lr_share=case["min_lr_ratio"],
            warmup_from_zero=True,
        )
        for update in range(1, total + 1)
    ]
    _close(rates, case["lr_at_update"], tolerance["lr"])


# Scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "tolerance"), _cases("logits"))
def test_self_certainty_and_entropy_as_rewards(case, tolerance):
    mask_RT = _mask(case["response_lengths"], len(case["labels"][0]))
    certainty_R = response_means(torch.tensor(case["self_certainty"]), mask_RT)
    entropy_R = -response_means(torch.tensor(case["entropy"]), mask_RT)
    _close(certainty_R, case["self_certainty_per_response"], tolerance["values"])
    _close(entropy_R, case["rent_rewards"], tolerance["values"])
    for rows in _group_rows(case["group_ids"]):
        if len(rows) == 1:
            continue  # a group of one is refused, see test_advantages
        for rewards_R, key in (
            (certainty_R, "self_certainty_advantages"),
            (entropy_R, "rent_advantages"),
        ):
            advantages_PG = group_advantages(rewards_R[rows][None], divide_by_std=True)
            _close(advantages_PG[0], [case[key][row] for row in rows], tolerance["values"])
