"""Cuts a batch of rollouts into padded micro-batches for this rank's data-parallel share.

Rows are sorted by length so that a micro-batch holds little padding. Every rank computes the
same plan; the loss does not depend on it, because each token carries its own weight.

Dimension key:
    B: rows of a micro-batch    S: its padded length    N: its response tokens
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_corew.mcore.parallel import Layout
from megatron_corew.types import RolloutBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Some rows of a RolloutBatch, ready for a forward pass."""

    token_ids_BS: Tensor
    """[B, S] int64: prompt, response, zeros."""
    position_ids_BS: Tensor
    """[B, S] int64: 0 .. S - 1 in every row."""
    predictor_N: Tensor
    """[N] int64: flat index in [S, B] of the position that predicts each response token."""
    targets_N: Tensor
    """[N] int64: the response tokens."""
    place_N: Tensor
    """[N] int64: flat index of each response token in the batch's [R, T]."""


def plan_micro_batches(
    batch: RolloutBatch, layout: Layout, *, rows_per_micro_batch: int, device: torch.device
) -> list[MicroBatch]:
    """This data-parallel rank's micro-batches; every rank gets equally many.

    A rank with fewer rows than others gets an empty micro-batch (one row of padding, no response
    token), so that all take part in the same collective operations.
    """
    lengths = [
        len(prompt) + int(count)
        for prompt, count in zip(batch.prompt_ids, batch.mask_RT.sum(dim=1), strict=True)
    ]
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    chunks = [
        order[start : start + rows_per_micro_batch]
        for start in range(0, len(order), rows_per_micro_batch)
    ]
    chunks += [[] for _ in range(-len(chunks) % layout.data_size)]
    multiple = layout.tensor_size if layout.sequence_parallel else 1
    return [
        _micro_batch(batch, rows, multiple, device)
        for rows in chunks[layout.data_rank :: layout.data_size]
    ]


def _micro_batch(
    batch: RolloutBatch, rows: Sequence[int], multiple: int, device: torch.device
) -> MicroBatch:
    counts = [int(count) for count in batch.mask_RT.sum(dim=1)[list(rows)]]
    prompts = [batch.prompt_ids[row] for row in rows]
    longest = max((len(p) + n for p, n in zip(prompts, counts, strict=True)), default=1)
    length = -(-longest // multiple) * multiple
    height = max(len(rows), 1)
    token_ids_BS = torch.zeros(height, length, dtype=torch.int64)
    predictors, targets, places = [], [], []
    for index, (row, prompt, count) in enumerate(zip(rows, prompts, counts, strict=True)):
        response = batch.response_ids_RT[row, :count]
        start = len(prompt)
        token_ids_BS[index, :start] = torch.tensor(prompt)
        token_ids_BS[index, start : start + count] = response
        predictors.append(torch.arange(start - 1, start - 1 + count) * height + index)
        targets.append(response)
        places.append(torch.arange(count) + row * batch.mask_RT.shape[1])
    empty = torch.zeros(0, dtype=torch.int64)
    return MicroBatch(
        token_ids_BS=token_ids_BS.to(device),
        position_ids_BS=torch.arange(length, device=device).expand(height, length),
        predictor_N=torch.cat([empty, *predictors]).to(device),
        targets_N=torch.cat([empty, *targets]).to(device),
        place_N=torch.cat([empty, *places]).to(device),
    )
