"""From rollout groups to the padded tensors of a step."""

from collections.abc import Sequence

import torch

from megatron_corew.types import VIEWS, RolloutBatch, RolloutGroup


def collate(groups: Sequence[RolloutGroup]) -> RolloutBatch:
    """Pad all rollouts of the groups, in order, to the longest response.

    The mask comes from the number of tokens, so a response token that equals the padding value
    stays a token.

    Args:
        groups: every group with the same number of rollouts.

    Raises:
        ValueError: a rollout has no token, or another number of log-probs than tokens.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for rollout in rollouts:
        if not rollout.token_ids or len(rollout.token_ids) != len(rollout.logprobs):
            raise ValueError(
                f"collate: need at least one token and one log-prob each, got "
                f"{len(rollout.token_ids)} tokens and {len(rollout.logprobs)} log-probs."
            )
    longest = max(len(rollout.token_ids) for rollout in rollouts)
    response_ids_RT = torch.zeros(len(rollouts), longest, dtype=torch.int64)
    mask_RT = torch.zeros(len(rollouts), longest, dtype=torch.bool)
    rollout_logprobs_RT = torch.zeros(len(rollouts), longest)
    for row, rollout in enumerate(rollouts):
        count = len(rollout.token_ids)
        response_ids_RT[row, :count] = torch.tensor(rollout.token_ids)
        mask_RT[row, :count] = True
        rollout_logprobs_RT[row, :count] = torch.tensor(rollout.logprobs)
    return RolloutBatch(
        prompt_ids=tuple(group.prompt.token_ids for group in groups for _ in group.rollouts),
        response_ids_RT=response_ids_RT,
        mask_RT=mask_RT,
        view_R=torch.tensor(
            [VIEWS.index(group.prompt.view) for group in groups for _ in group.rollouts]
        ),
        rollout_logprobs_RT=rollout_logprobs_RT,
    )
