"""Additions to the reward of agreement: a bonus for the format, a penalty for overlong responses.

Dimension key:
    P: prompts in the batch    G: responses sampled per prompt (the group)
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Shaping:
    """The numbers of the additions; see ``ShapingConfig`` for what each one means."""

    format_reward: float
    overlong_buffer_tokens: int | None
    overlong_penalty: float
    max_response_tokens: int
    drop_equal_rewards: bool


def shaped_rewards(
    rewards_PG: Tensor, *, answered_PG: Tensor, lengths_PG: Tensor, shaping: Shaping
) -> Tensor:
    """Add the bonus and the penalty to every reward.

    Args:
        rewards_PG: [P, G] float32.
        answered_PG: [P, G] bool, the response states an answer.
        lengths_PG: [P, G] int, response tokens.
        shaping: the numbers.

    Returns:
        [P, G] float32; the rewards themselves, bit for bit, where everything is off.
    """
    if shaping.format_reward:
        rewards_PG = rewards_PG + shaping.format_reward * answered_PG
    if shaping.overlong_buffer_tokens is not None:
        punishment_PG = soft_overlong_punishment(
            lengths_PG,
            max_tokens=shaping.max_response_tokens,
            buffer_tokens=shaping.overlong_buffer_tokens,
        )
        rewards_PG = rewards_PG + shaping.overlong_penalty * punishment_PG
    return rewards_PG


def groups_with_signal(rewards_PG: Tensor) -> Tensor:
    """Find the groups that teach anything.

    Args:
        rewards_PG: [P, G] float32.

    Returns:
        [P] bool, False where all rewards of the group are equal.

    Source: DAPO, arXiv:2503.14476, eq. 11 (the filter; ``gathering`` asks again).
    """
    return (rewards_PG != rewards_PG[:, :1]).any(dim=1)


def soft_overlong_punishment(lengths: Tensor, *, max_tokens: int, buffer_tokens: int) -> Tensor:
    """Punish lengths within the buffer before the limit, growing linearly up to 1.

    Args:
        lengths: [...] int, response tokens.
        max_tokens: the limit.
        buffer_tokens: width of the buffer, in 1 .. max_tokens.

    Returns:
        [...] float32 in [-1, 0]: 0 up to max_tokens - buffer_tokens, -1 from max_tokens on.

    Raises:
        ValueError: the buffer is outside 1 .. max_tokens.

    Source: DAPO, arXiv:2503.14476, eq. 13.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(
            f"soft_overlong_punishment: need a buffer of 1 to {max_tokens} tokens, got "
            f"{buffer_tokens}. Set shaping.overlong_buffer_tokens."
        )
    over = lengths.to(torch.float32) - (max_tokens - buffer_tokens)
    return -(over / buffer_tokens).clamp(0.0, 1.0)
