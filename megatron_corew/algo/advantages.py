"""Group-relative advantages.

Dimension key:
    P: prompts in the batch
    G: responses sampled per prompt (the group)
"""

import torch
from torch import Tensor

# The guard of the reference. It matters only when a group's spread is near zero.
_STD_EPS = 1e-6


def group_advantages(rewards_PG: Tensor, *, divide_by_std: bool) -> Tensor:
    """Score every response against the mean of its own group.

    Args:
        rewards_PG: [P, G] floating point, one reward per response.
        divide_by_std: True gives the GRPO advantage, False the Dr. GRPO one.

    Returns:
        [P, G] float32. Each row sums to zero; a row of equal rewards is exactly zero.

    Raises:
        ValueError: rewards are not [P, G] with G >= 2 (one response has no group to beat), or
            one of them is not finite.

    Source: GRPO, arXiv:2402.03300 sec. 4.1.2 (standard deviation of the sample, divisor G - 1,
        plus 1e-6 as in the official code); without it, Dr. GRPO, arXiv:2503.20783.
    """
    if rewards_PG.ndim != 2 or rewards_PG.shape[1] < 2:
        raise ValueError(
            f"group_advantages: need rewards [P, G] with G >= 2, got {list(rewards_PG.shape)}. "
            "Set rollout.samples_per_prompt to 2 or more."
        )
    if not rewards_PG.isfinite().all():
        bad = (~rewards_PG.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"group_advantages: need finite rewards, got {rewards_PG[bad[0], bad[1]].item()} for "
            f"prompt {bad[0]}, sample {bad[1]}. Check the rewards of that response."
        )
    # float64: the mean of equal float32 numbers is not always that number, and dividing the
    # left-over by a spread near 1e-6 would turn it into a visible advantage.
    exact_PG = rewards_PG.double()
    centred_PG = exact_PG - exact_PG.mean(dim=1, keepdim=True)
    if divide_by_std:
        centred_PG = centred_PG / (exact_PG.std(dim=1, keepdim=True) + _STD_EPS)
    all_equal_P1 = (rewards_PG == rewards_PG[:, :1]).all(dim=1, keepdim=True)
    return torch.where(all_equal_P1, 0.0, centred_PG).float()
