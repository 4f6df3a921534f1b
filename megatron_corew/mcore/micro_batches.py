"""Cuts a batch of rollouts into micro-batches for this rank's data-parallel share.

Two forms. Padded: rows of about the same length side by side, B x S. Packed: sequences one
behind the other in a single row up to a budget of tokens, with the places where each starts.
Every rank computes the same plan; the loss does not depend on it, because each token carries its
own weight.

With context parallelism a rank holds two stripes of every sequence, one from each end, so that
causal attention costs the same on all ranks; it scores the tokens that its own positions predict.

Dimension key:
    B: rows of a micro-batch    S: their length on this rank    N: response tokens scored here
    Z: sequences of a packed row    L: length of a row before context parallelism cuts it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatron_corew.config import ParallelConfig
from megatron_corew.mcore.balance import SequenceCost, deal, pack
from megatron_corew.mcore.parallel import Layout
from megatron_corew.types import RolloutBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Some rows of a RolloutBatch, ready for a forward pass."""

    token_ids_BS: Tensor
    """[B, S] int64: prompt, response, zeros."""
    position_ids_BS: Tensor
    """[B, S] int64: each token's place in its own sequence."""
    predictor_N: Tensor
    """[N] int64: flat index in [S, B] of the position that predicts each response token."""
    targets_N: Tensor
    """[N] int64: the response tokens."""
    place_N: Tensor
    """[N] int64: flat index of each response token in the batch's [R, T]."""
    starts_Z: Tensor | None
    """[Z + 1] int32: where each packed sequence starts in the row of L tokens, and L; None:
    padded."""
    longest: int
    """Tokens of the longest sequence, padding included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Where the sequences of a micro-batch stand."""

    height: int
    width: int
    corners: tuple[tuple[int, int], ...]
    """Row and first column of each sequence."""
    spans: tuple[int, ...]
    """Tokens of each sequence in a row, padding included; their sum is the width. Context
    parallelism cuts them one by one."""
    packed: bool


def plan_micro_batches(
    batch: RolloutBatch,
    layout: Layout,
    knobs: ParallelConfig,
    cost: SequenceCost,
    device: torch.device,
    *,
    token_multiple: int = 1,
) -> list[MicroBatch]:
    """This data-parallel rank's micro-batches; every rank gets equally many.

    Micro-batches are dealt by cost. A rank with fewer rows than others gets empty micro-batches
    (padding, no response token), so that all take part in the same collective operations.

    Args:
        batch: the same on every rank.
        layout: where this rank stands.
        knobs: padded or packed, and how much fits.
        cost: of a sequence, for the balance.
        device: where the tensors go.
        token_multiple: a forward pass has a multiple of so many tokens on every rank; see
            ``PrecisionConfig.token_multiple``.

    Raises:
        ValueError: a sequence is longer than ``parallel.tokens_per_micro_batch``.
    """
    lengths = [
        len(prompt) + int(count)
        for prompt, count in zip(batch.prompt_ids, batch.mask_RT.sum(dim=1), strict=True)
    ]
    packed = knobs.tokens_per_micro_batch > 0
    # The interleaved schedule takes micro-batches of one width, in groups of the pipeline's size.
    group = layout.pipeline_size if knobs.virtual_pipeline > 1 else 1
    multiple = layout.data_size * group
    if packed:
        stripes = _stripes(layout)
        chunks = pack(
            [_round_up(length, stripes) for length in lengths],
            cost,
            capacity=knobs.tokens_per_micro_batch,
            multiple=multiple,
        )
    else:
        chunks = _equal_rows(lengths, knobs.micro_batch_rollouts, multiple)
    spans = [[lengths[row] for row in rows] for rows in chunks]
    tokens = _stripes(layout) * token_multiple
    tokens *= layout.tensor_size if layout.sequence_parallel else 1
    grid = partial(_grid, stripes=_stripes(layout), multiple=tokens, packed=packed)
    grids = [grid(some) for some in spans]
    if knobs.virtual_pipeline > 1:
        widest = max(some.width for some in grids)
        grids = [grid(some, at_least=widest) for some in spans]
    costs = [
        grid.height * sum(cost.of(span) for span in grid.spans) if rows else 0.0
        for grid, rows in zip(grids, chunks, strict=True)
    ]
    mine = deal(costs, ranks=layout.data_size)[layout.data_rank]
    return [_micro_batch(batch, chunks[i], grids[i], layout, device) for i in mine]


def _equal_rows(lengths: Sequence[int], rows: int, multiple: int) -> list[list[int]]:
    """Rows sorted by length, so that a micro-batch holds little padding."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    chunks = [order[start : start + rows] for start in range(0, len(order), rows)]
    return chunks + [[] for _ in range(-len(chunks) % multiple)]


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _stripes(layout: Layout) -> int:
    """Equal parts that context parallelism cuts a sequence into."""
    return 2 * layout.context_size if layout.context_size > 1 else 1


def _grid(
    lengths: Sequence[int], *, stripes: int, multiple: int, packed: bool, at_least: int = 1
) -> _Grid:
    if not packed:
        width = _round_up(max([*lengths, at_least]), multiple)
        corners = tuple((index, 0) for index in range(len(lengths)))
        height = max(len(lengths), 1)
        return _Grid(height=height, width=width, corners=corners, spans=(width,), packed=False)
    spans = [_round_up(length, stripes) for length in lengths]
    corners = tuple((0, sum(spans[:index])) for index in range(len(spans)))
    width = _round_up(max(sum(spans), at_least), multiple)
    # What fills the row is a sequence of its own: no other one attends to it.
    tail = [width - sum(spans)] if width > sum(spans) else []
    return _Grid(height=1, width=width, corners=corners, spans=(*spans, *tail), packed=True)


def _columns_here(grid: _Grid, layout: Layout) -> Tensor:
    """[S] columns of the whole row that this context-parallel rank holds, in its order."""
    if layout.context_size == 1:
        return torch.arange(grid.width)
    columns = []
    for span in torch.arange(grid.width).split(grid.spans):
        parts = span.chunk(_stripes(layout))
        columns += [parts[layout.context_rank], parts[-1 - layout.context_rank]]
    return torch.cat(columns)


def _micro_batch(
    batch: RolloutBatch, rows: Sequence[int], grid: _Grid, layout: Layout, device: torch.device
) -> MicroBatch:
    token_ids_BL = torch.zeros(grid.height, grid.width, dtype=torch.int64)
    position_ids_BL = torch.zeros_like(token_ids_BL)
    columns_S = _columns_here(grid, layout)
    # Where a column stands on this rank; -1: another context-parallel rank has it.
    here_L = torch.full((grid.width,), -1)
    here_L[columns_S] = torch.arange(len(columns_S))
    scored = [torch.zeros(3, 0, dtype=torch.int64)]
    for row, (index, first) in zip(rows, grid.corners, strict=True):
        response = batch.response_ids_RT[row, : int(batch.mask_RT[row].sum())]
        tokens = torch.cat([torch.tensor(batch.prompt_ids[row]), response])
        token_ids_BL[index, first : first + len(tokens)] = tokens
        position_ids_BL[index, first : first + len(tokens)] = torch.arange(len(tokens))
        start = first + len(batch.prompt_ids[row]) - 1
        here_N = here_L[start : start + len(response)]
        place_N = torch.arange(len(response)) + row * batch.mask_RT.shape[1]
        predictor_N = here_N * grid.height + index
        scored.append(torch.stack([predictor_N, response, place_N])[:, here_N >= 0])
    predictor_N, targets_N, place_N = torch.cat(scored, dim=1).to(device)
    starts_Z = torch.tensor([0, *grid.spans], device=device).cumsum(0).to(torch.int32)
    return MicroBatch(
        token_ids_BS=token_ids_BL[:, columns_S].to(device),
        position_ids_BS=position_ids_BL[:, columns_S].to(device),
        predictor_N=predictor_N,
        targets_N=targets_N,
        place_N=place_N,
        starts_Z=starts_Z if grid.packed else None,
        longest=max(grid.spans),
    )
