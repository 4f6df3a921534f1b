"""Token losses: values by hand, extreme inputs, then the errors."""

import math

import pytest
import torch

from megatron_corew.algo.losses import importance_weights, kl_token_estimates, policy_token_losses

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def _loss(ratio: float, advantage: float, dual_clip: float | None = None) -> tuple[float, bool]:
    logprob, old = torch.tensor([math.log(ratio) - 1.0]), torch.tensor([-1.0])
    loss, clipped = policy_token_losses(
        logprob, old, torch.tensor([advantage]), **CLIP, dual_clip=dual_clip
    )
    return loss.item(), bool(clipped.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.2, 2.0, -2.4, False),  # inside 1.3
        (1.5, 2.0, -2.6, True),  # 1.3 x 2: too far in the good direction
        (0.5, 2.0, -1.0, False),  # a bad move is never clipped
        (0.5, -2.0, 1.6, True),  # 0.8 x 2
        (1.5, -2.0, 3.0, False),
    ],
)
def test_the_surrogate_is_the_pessimistic_one(ratio, advantage, loss, clipped):
    assert _loss(ratio, advantage) == (pytest.approx(loss, abs=1e-6), clipped)


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert _loss(10.0, -2.0)[0] == pytest.approx(20.0, rel=1e-6)
    assert _loss(10.0, -2.0, dual_clip=3.0)[0] == pytest.approx(6.0)
    assert _loss(0.05, 2.0, dual_clip=3.0)[0] == pytest.approx(-0.1)


def test_a_detached_copy_as_old_logprobs_gives_the_plain_policy_gradient():
    logprobs = torch.tensor([[-0.5, -3.0]], requires_grad=True)
    loss, clipped = policy_token_losses(
        logprobs, logprobs.detach(), torch.tensor([[1.5]]), **CLIP, dual_clip=None
    )
    loss.sum().backward()
    assert logprobs.grad.tolist() == [[-1.5, -1.5]]
    assert not clipped.any()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("logprob", [-1000.0, 0.0])
def test_extreme_log_ratios_stay_finite(logprob, advantage):
    logprobs = torch.tensor([logprob], requires_grad=True)
    loss, _ = policy_token_losses(
        logprobs, torch.tensor([-500.0]), torch.tensor([advantage]), **CLIP, dual_clip=None
    )
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize(
    ("logprob", "ref", "k3"), [(-1.0, -1.0, 0.0), (-1.0, -1.5, 0.106531), (-2.0, -1.0, 0.718282)]
)
def test_k3_matches_the_hand_computed_values(logprob, ref, k3):
    # exp(ref - logprob) - (ref - logprob) - 1
    estimate = kl_token_estimates(
        torch.tensor([logprob]), torch.tensor([ref]), estimator="k3", clamp=None
    )
    assert estimate.item() == pytest.approx(k3, abs=1e-6)


def test_k1_is_the_log_ratio_and_k2_half_its_square():
    logprob, ref = torch.tensor([-1.0]), torch.tensor([-3.0])
    assert kl_token_estimates(logprob, ref, estimator="k1", clamp=None).item() == 2.0
    assert kl_token_estimates(logprob, ref, estimator="k2", clamp=None).item() == 2.0
    assert kl_token_estimates(logprob, ref, estimator="k1", clamp=1.5).item() == 1.5
    assert kl_token_estimates(ref, logprob, estimator="k1", clamp=1.5).item() == -1.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("clamp", [None, 10.0])
@pytest.mark.parametrize("logprob", [-120.0, -1e4, -1.0])
def test_kl_is_finite_at_extreme_differences(dtype, estimator, clamp, logprob):
    # The naive k3 is exp(119): inf in float32, and inf * 0 = NaN in the backward of a clamp.
    logprobs = torch.tensor([logprob], dtype=dtype, requires_grad=True)
    ref = torch.tensor([-1.0], dtype=dtype)
    estimate = kl_token_estimates(logprobs, ref, estimator=estimator, clamp=clamp)
    estimate.sum().backward()
    assert estimate.dtype == torch.float32
    assert estimate.isfinite().all()
    assert logprobs.grad.isfinite().all()


def test_an_unknown_estimator_is_refused_with_the_knob():
    with pytest.raises(ValueError, match=r"loss\.kl_estimator"):
        kl_token_estimates(torch.zeros(1), torch.zeros(1), estimator="abs", clamp=None)


def test_importance_weights_are_capped_ratios_without_gradient():
    logprobs = torch.tensor([math.log(0.6), math.log(0.2), math.log(0.9)], requires_grad=True)
    rollout = torch.tensor([math.log(0.2), math.log(0.4), math.log(0.9)])
    weights = importance_weights(logprobs, rollout, cap=2.0)
    # 0.6 / 0.2 = 3 -> 2; 0.2 / 0.4; 1
    torch.testing.assert_close(weights, torch.tensor([2.0, 0.5, 1.0]))
    assert not weights.requires_grad
