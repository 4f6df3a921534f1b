"""How token losses become one number: a weight per token, made once for the whole update.

The loss is sum(weight x token loss), so its value and gradient cannot depend on how rows are
split over micro-batches and ranks. Each view gets its own mean and the views are summed, as in
the official code (L(x) + L(x')).

Dimension key:
    R: rollouts of the update
    T: response tokens, padded
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "seq_mean", "micro_batch_token_mean", "dr_grpo"]


def token_weights(
    mask_RT: Tensor,
    view_R: Tensor,
    *,
    aggregation: Aggregation,
    length_constant: int,
    official_micro_batch: int,
) -> Tensor:
    """Compute the factor of every token's loss.

    A row without a token (dropped or empty) is no sequence: it is not counted anywhere.
    Example: one view, lengths 4 and 1, ``token_mean``: each weight is 1/5; ``seq_mean``: 1/8 and
    1/2; ``dr_grpo`` with constant 8: 1/16.

    Args:
        mask_RT: [R, T] bool, True on trained tokens.
        view_R: [R] int64, the view of each row.
        aggregation: ``token_mean`` over all tokens of the view; ``seq_mean`` of sequence means;
            ``micro_batch_token_mean``, the mean of the token means of consecutive rows of the
            view, ``official_micro_batch`` at a time; ``dr_grpo``, the sum over tokens by
            (sequences x ``length_constant``).
        length_constant: tokens, used by ``dr_grpo``.
        official_micro_batch: rows, used by ``micro_batch_token_mean``.

    Returns:
        [R, T] float32, zero where the mask is False. Per view with any token the weights sum to
        1 (not for ``dr_grpo``).

    Raises:
        ValueError: unknown aggregation, shapes that do not fit, or a size below 1.

    Source: token mean, DAPO arXiv:2503.14476 eq. 8; sequence mean, Co-rewarding arXiv:2508.00410
        eq. 4; micro-batch mean, the official code; Dr. GRPO, arXiv:2503.20783.
    """
    if mask_RT.ndim != 2 or view_R.shape != mask_RT.shape[:1]:
        raise ValueError(
            "token_weights: need mask [R, T] and view [R], got "
            f"{list(mask_RT.shape)} and {list(view_R.shape)}. Pass the rows of one batch."
        )
    if length_constant < 1 or official_micro_batch < 1:
        raise ValueError(
            "token_weights: need length_constant and official_micro_batch of at least 1, got "
            f"{length_constant} and {official_micro_batch}. Set rollout.max_response_tokens and "
            "loss.official_micro_batch."
        )
    lengths_R = mask_RT.sum(dim=1).double()
    row_weight_R = torch.zeros_like(lengths_R)
    for view in sorted(set(view_R.tolist())):
        rows = (view_R == view).nonzero().flatten()
        row_weight_R[rows] = _row_weights(
            lengths_R[rows], aggregation, length_constant, official_micro_batch
        )
    return (row_weight_R[:, None] * mask_RT).float()


def _row_weights(
    lengths_R: Tensor, aggregation: Aggregation, length_constant: int, official_micro_batch: int
) -> Tensor:
    """Weight of one token of each row of one view; rows without a token get a finite dummy."""
    sequences = (lengths_R > 0).sum().clamp(min=1)
    if aggregation == "token_mean":
        return torch.ones_like(lengths_R) / lengths_R.sum().clamp(min=1)
    if aggregation == "seq_mean":
        return 1.0 / (sequences * lengths_R.clamp(min=1))
    if aggregation == "dr_grpo":
        return torch.ones_like(lengths_R) / (sequences * length_constant)
    if aggregation == "micro_batch_token_mean":
        parts = [part.sum() for part in torch.split(lengths_R, official_micro_batch)]
        tokens_R = torch.stack(parts).repeat_interleave(official_micro_batch)[: len(lengths_R)]
        filled = sum(bool(part > 0) for part in parts)
        return 1.0 / (max(filled, 1) * tokens_R.clamp(min=1))
    raise ValueError(
        "token_weights: need token_mean, seq_mean, micro_batch_token_mean or dr_grpo, got "
        f"{aggregation!r}. Set loss.aggregation."
    )
