"""Cuts a step's rollouts into optimizer updates and gives every token its weight in the loss."""

import torch
from torch import Tensor

from megatron_corew.algo.aggregation import Aggregation, token_weights
from megatron_corew.types import RolloutBatch, TrainBatch


def make_updates(
    batch: RolloutBatch,
    *,
    advantages_R: Tensor,
    kept_R: Tensor,
    old_logprobs_RT: Tensor | None,
    ref_logprobs_RT: Tensor | None,
    num_views: int,
    num_updates: int,
    aggregation: Aggregation,
    length_constant: int,
    official_micro_batch: int,
) -> list[TrainBatch]:
    """Equal parts of a step's batch, each with the weights of its own global mean.

    Args:
        batch: R rows ordered by (view, question, sample).
        advantages_R: [R] float32.
        kept_R: [R] bool; rows outside count neither in the loss nor in its divisor.
        old_logprobs_RT: [R, T] float32, or None for the current ones.
        ref_logprobs_RT: [R, T] float32, or None without a KL term.
        num_views: views in the batch; R is a multiple.
        num_updates: optimizer updates; divides the groups of a view. Each update holds the same
            questions in all views, unless groups without signal were replaced.
        aggregation: the mean, see ``LossConfig.aggregation``.
        length_constant: tokens, the divisor of ``dr_grpo``.
        official_micro_batch: rows per view of ``micro_batch_token_mean``.

    Returns:
        ``num_updates`` batches. An update without any kept row has all weights zero.
    """
    rows_VR = torch.arange(len(batch.prompt_ids)).view(num_views, -1)
    updates = []
    for rows in (part.flatten() for part in rows_VR.chunk(num_updates, dim=1)):
        weights_RT = token_weights(
            batch.mask_RT[rows] & kept_R[rows, None],
            batch.view_R[rows],
            aggregation=aggregation,
            length_constant=length_constant,
            official_micro_batch=official_micro_batch,
        )
        updates.append(
            TrainBatch(
                rollouts=_select(batch, rows),
                advantages_R=advantages_R[rows],
                old_logprobs_RT=None if old_logprobs_RT is None else old_logprobs_RT[rows],
                ref_logprobs_RT=None if ref_logprobs_RT is None else ref_logprobs_RT[rows],
                weights_RT=weights_RT,
            )
        )
    return updates


def _select(batch: RolloutBatch, rows: Tensor) -> RolloutBatch:
    return RolloutBatch(
        prompt_ids=tuple(batch.prompt_ids[row] for row in rows.tolist()),
        response_ids_RT=batch.response_ids_RT[rows],
        mask_RT=batch.mask_RT[rows],
        view_R=batch.view_R[rows],
        rollout_logprobs_RT=batch.rollout_logprobs_RT[rows],
    )
