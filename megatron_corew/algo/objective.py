"""The token loss of a method: clipped surrogate, KL term and importance weights in one place."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from megatron_corew.algo.losses import (
    importance_weights,
    kl_token_estimates,
    policy_token_losses,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """The numbers of the objective; see ``LossConfig`` for what each one means."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    kl_coef: float
    kl_estimator: Literal["k1", "k2", "k3"]
    kl_clamp: float | None
    tis_cap: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLosses:
    """Per-token values, all of the shape of the log-probs."""

    total: Tensor
    """Surrogate plus kl_coef x KL; the only one with a gradient that is used."""
    kl: Tensor
    """The KL estimate; zeros without a reference."""
    clipped: Tensor
    """bool: the surrogate's clip is active."""


def token_objective(
    objective: Objective,
    logprobs: Tensor,
    *,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor,
    advantages: Tensor,
) -> TokenLosses:
    """The loss of every token, before weighting and summing.

    Args:
        objective: the numbers.
        logprobs: [...] float32 of the policy, with gradient.
        old_logprobs: the same before the update; None: the current ones, detached (ratio 1).
        ref_logprobs: the same under the KL reference; None: no KL term.
        rollout_logprobs: the sampler's, for truncated importance sampling.
        advantages: broadcastable to [...].

    Source: Co-rewarding, arXiv:2508.00410, eq. 3 to 5.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    surrogate, clipped = policy_token_losses(
        logprobs,
        old,
        advantages,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip,
    )
    if objective.tis_cap is not None:
        surrogate = surrogate * importance_weights(old, rollout_logprobs, cap=objective.tis_cap)
    if ref_logprobs is None:
        return TokenLosses(total=surrogate, kl=torch.zeros_like(logprobs), clipped=clipped)
    kl = kl_token_estimates(
        logprobs, ref_logprobs, estimator=objective.kl_estimator, clamp=objective.kl_clamp
    )
    return TokenLosses(total=surrogate + objective.kl_coef * kl, kl=kl, clipped=clipped)
