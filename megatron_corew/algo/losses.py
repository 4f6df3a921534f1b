"""Per-token losses: clipped surrogate, KL estimates, and the weights of off-policy correction.

Everything is computed in float32, element by element, and never summed here: how tokens are
averaged is the business of ``aggregation``.
"""

from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

# The official code's bound on log-ratios: exp(20) is finite in every dtype, and the gradient of
# the clamp is zero beyond it, so extreme differences give neither inf nor 0 * inf.
_LOG_RATIO_BOUND = 20.0


def _log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return (numerator.float() - denominator.float()).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)


def policy_token_losses(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """Compute the clipped surrogate loss of every token.

    Args:
        logprobs: any shape, natural log; the gradient flows through these.
        old_logprobs: same shape, of the policy before the update. The detached current ones
            give ratio 1 and the plain policy gradient.
        advantages: broadcastable to that shape, e.g. [R, 1].
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
        dual_clip: upper bound of the loss, in units of the advantage's size, for negative
            advantages; None: unbounded.

    Returns:
        (loss, clipped), both of the shape of ``logprobs``: float32, and bool that says where the
        clipped surrogate is the worse one (there the policy gets no gradient).

    Source: PPO, arXiv:1707.06347 eq. 7; dual clip, arXiv:1912.09729 eq. 5; log-ratio bound as
        in the official Co-rewarding-II code.
    """
    ratio = _log_ratio(logprobs, old_logprobs).exp()
    advantages = advantages.float()
    plain = -advantages * ratio
    clipped_ratio = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, clipped_ratio)
    if dual_clip is not None:
        bounded = torch.minimum(loss, -advantages * dual_clip)
        loss = torch.where(advantages < 0, bounded, loss)
    return loss, clipped_ratio > plain


def kl_token_estimates(
    logprobs: Tensor, ref_logprobs: Tensor, *, estimator: KlEstimator, clamp: float | None
) -> Tensor:
    """Estimate KL(policy || reference) at every sampled token.

    Args:
        logprobs: any shape, natural log; the gradient flows through these.
        ref_logprobs: same shape, of the reference.
        estimator: ``k1`` log-ratio, ``k2`` half its square, ``k3`` r - log r - 1 with
            r = reference / policy.
        clamp: the estimate is limited to +-clamp (zero gradient beyond); None: unlimited.

    Returns:
        float32 of the same shape. Value and gradient are finite for any finite input.

    Raises:
        ValueError: unknown estimator.

    Source: J. Schulman, "Approximating KL divergence", 2020; bounds as in the official code.
    """
    if estimator == "k1":
        estimate = logprobs.float() - ref_logprobs.float()
    elif estimator == "k2":
        estimate = 0.5 * (logprobs.float() - ref_logprobs.float()).square()
    elif estimator == "k3":
        log_ratio = _log_ratio(ref_logprobs, logprobs)
        estimate = log_ratio.exp() - log_ratio - 1.0
    else:
        raise ValueError(
            f"kl_token_estimates: need k1, k2 or k3, got {estimator!r}. Set loss.kl_estimator."
        )
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def importance_weights(logprobs: Tensor, rollout_logprobs: Tensor, *, cap: float) -> Tensor:
    """Weight every token by the truncated ratio of trainer to sampler probability.

    Args:
        logprobs: any shape, of the trainer before the update, natural log.
        rollout_logprobs: same shape, of the sampler.
        cap: largest weight.

    Returns:
        float32 of the same shape in [0, cap], without gradient.

    Source: truncated importance sampling, "Your efficient RL framework secretly brings you
        off-policy RL training", Yao et al. 2025.
    """
    return _log_ratio(logprobs.detach(), rollout_logprobs.detach()).exp().clamp(max=cap)
