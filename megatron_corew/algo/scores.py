"""Scores of a response from its own tokens: the rewards of the methods without a label.

Dimension key:
    R: rollouts of the batch
    T: response tokens, padded
"""

import torch
from torch import Tensor


def response_means(values_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """Average a token quantity over each response.

    With self-certainty this is the reward of ``self_certainty``; with entropy, negated, that
    of ``entropy``.

    Args:
        values_RT: [R, T] floating point, one value per token; anything on padding.
        mask_RT: [R, T] bool, True on response tokens.

    Returns:
        [R] float32; 0 for a response without a token.

    Raises:
        ValueError: the shapes differ.

    Source: Intuitor, arXiv:2505.19590 eq. 4; RENT, arXiv:2505.22660 sec. 3.
    """
    if values_RT.shape != mask_RT.shape:
        raise ValueError(
            f"response_means: need values and mask of one shape, got {list(values_RT.shape)} and "
            f"{list(mask_RT.shape)}. Pass the rows of one batch."
        )
    # where, not a product: padding may hold inf or NaN.
    sums_R = torch.where(mask_RT, values_RT.double(), 0.0).sum(dim=1)
    return (sums_R / mask_RT.sum(dim=1).clamp(min=1)).float()
