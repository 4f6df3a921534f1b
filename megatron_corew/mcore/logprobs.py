"""Log-probs, entropy and self-certainty of sampled tokens from hidden states.

The vocabulary is split over the tensor-parallel ranks and never gathered. Logits exist for one
chunk of tokens and one block of the vocabulary at a time, in the forward pass and (recomputed) in
the backward pass: the peak memory grows neither with the tokens nor with the vocabulary.

Dimension key:
    N: tokens        D: hidden size        W: this rank's part of the padded vocabulary
    V: rows of one block of it
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

# Rows of the vocabulary whose logits exist at the same time: wide enough for whole-speed matrix
# products, a ninth of a vocabulary of 150,000.
VOCABULARY_BLOCK = 1 << 14


class VocabularyShard(NamedTuple):
    """This rank's part of the vocabulary."""

    first: int
    """Token id of the first row."""
    size: int
    """Rows that are true tokens; the rows behind them are padding."""
    vocab_size: int
    """True size of the whole vocabulary."""
    group: dist.ProcessGroup | None
    """The ranks that hold the other parts; None: this rank holds all."""


def vocabulary_shard(
    padded_rows: int, vocab_size: int, rank: int, group: dist.ProcessGroup | None
) -> VocabularyShard:
    """The part of the vocabulary on tensor-parallel rank ``rank`` with ``padded_rows`` rows."""
    first = rank * padded_rows
    return VocabularyShard(first, max(0, min(padded_rows, vocab_size - first)), vocab_size, group)


def token_scores(
    hidden_ND: Tensor,
    weight_WD: Tensor,
    targets_N: Tensor,
    shard: VocabularyShard,
    *,
    temperature: float,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Score tokens under softmax(hidden @ weight.T / temperature).

    All ranks of ``shard.group`` must call with the same hidden states and targets. Gradients
    reach ``hidden_ND`` (this rank's share, to be summed over the group) and ``weight_WD``.

    Args:
        hidden_ND: [N, D], the state that predicts each token.
        weight_WD: [W, D] output weights of this rank, same dtype as ``hidden_ND``.
        targets_N: [N] int64 token ids.
        shard: where this rank's rows stand in the vocabulary.
        temperature: sampling temperature, > 0.
        chunk: tokens whose logits exist at the same time.

    Returns:
        Three [N] float32 tensors: log-probs (differentiable), entropy in nats (differentiable),
        self-certainty logsumexp(z) - mean(z) over the true vocabulary (no gradient).

    Source: self-certainty as in Intuitor, arXiv:2505.19590; entropy as in RENT, arXiv:2505.22660.
    """
    return _TokenScores.apply(hidden_ND, weight_WD, targets_N, shard, temperature, chunk)


def _blocks(shard: VocabularyShard) -> Iterator[slice]:
    for start in range(0, shard.size, VOCABULARY_BLOCK):
        yield slice(start, min(start + VOCABULARY_BLOCK, shard.size))


def _logits(hidden_ND: Tensor, weight_VD: Tensor, temperature: float) -> Tensor:
    return (hidden_ND @ weight_VD.t()).float() / temperature


def _local_targets(targets_N: Tensor, first: int, size: int) -> tuple[Tensor, Tensor]:
    local_N = targets_N - first
    here_N = (local_N >= 0) & (local_N < size)
    return local_N.clamp(0, size - 1), here_N


def _reduce(tensor: Tensor, op: dist.ReduceOp.RedOpType, shard: VocabularyShard) -> Tensor:
    if shard.group is not None:
        dist.all_reduce(tensor, op=op, group=shard.group)
    return tensor


def _shifted(sums_4N: Tensor, shift_N: Tensor, count: int) -> Tensor:
    """Sums relative to one maximum, made relative to another that is ``-shift_N`` higher."""
    total_N, weighted_N, plain_N, target_N = sums_4N
    scale_N = shift_N.exp()
    return torch.stack(
        [
            total_N * scale_N,
            (weighted_N + shift_N * total_N) * scale_N,
            plain_N + count * shift_N,
            target_N,
        ]
    )


def _block_sums(logits_NV: Tensor, max_N: Tensor, targets_N: Tensor, first: int) -> Tensor:
    """[4, N] over a block: exp(z - max), exp(z - max) (z - max), z - max, and the target's z."""
    local_N, here_N = _local_targets(targets_N, first, logits_NV.shape[1])
    target_N = torch.where(here_N, logits_NV.gather(-1, local_N[:, None])[:, 0], 0.0)
    shifted_NV = logits_NV - max_N[:, None]
    exp_NV = shifted_NV.exp()
    weighted_N = (exp_NV * shifted_NV).sum(-1)
    return torch.stack([exp_NV.sum(-1), weighted_N, shifted_NV.sum(-1), target_N])


def _chunk_scores(
    hidden_ND: Tensor,
    weight_WD: Tensor,
    targets_N: Tensor,
    shard: VocabularyShard,
    temperature: float,
) -> Tensor:
    """[4, N]: log-prob, entropy, self-certainty, logsumexp.

    Source: the running maximum of online softmax, arXiv:1805.02867.
    """
    count = len(hidden_ND)
    # A rank may hold padding only; it still takes part in the reductions.
    max_N = torch.full((count,), -torch.inf, device=hidden_ND.device)
    sums_4N = torch.zeros(4, count, device=hidden_ND.device)
    for block in _blocks(shard):
        logits_NV = _logits(hidden_ND, weight_WD[block], temperature)
        before_N, max_N = max_N, torch.maximum(max_N, logits_NV.amax(-1))
        if block.start:
            sums_4N = _shifted(sums_4N, before_N - max_N, block.start)
        sums_4N += _block_sums(logits_NV, max_N, targets_N, shard.first + block.start)
    whole_max_N = _reduce(max_N.clone(), dist.ReduceOp.MAX, shard)
    if shard.size:
        sums_4N = _shifted(sums_4N, max_N - whole_max_N, shard.size)
    total_N, weighted_N, plain_N, target_N = _reduce(sums_4N, dist.ReduceOp.SUM, shard)
    log_total_N = total_N.log()
    return torch.stack(
        [
            target_N - whole_max_N - log_total_N,
            log_total_N - weighted_N / total_N,
            log_total_N - plain_N / shard.vocab_size,
            log_total_N + whole_max_N,
        ]
    )


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        shard: VocabularyShard,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = [
            _chunk_scores(h, weight, t, shard, temperature)
            for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        scores = torch.cat(parts, dim=1) if len(hidden) else hidden.new_zeros(4, 0).float()
        logprobs, entropy, certainty, logsumexp = scores
        ctx.save_for_backward(hidden, weight, targets, logsumexp, entropy)
        ctx.shard, ctx.temperature, ctx.chunk = shard, temperature, chunk
        ctx.mark_non_differentiable(certainty)
        return logprobs, entropy, certainty

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, logsumexp, entropy = ctx.saved_tensors
        # Blocks and chunks are summed in float32: in bfloat16 the sum would lose the small ones.
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            of_tokens = [
                tensor[part]
                for tensor in (targets, logsumexp, entropy, grad_logprobs, grad_entropy)
            ]
            for block in _blocks(ctx.shard):
                logits_NV = _logits(hidden[part], weight[block], ctx.temperature)
                first = ctx.shard.first + block.start
                grad_NV = _block_gradient(logits_NV, first, *of_tokens) / ctx.temperature
                grad_NV = grad_NV.to(weight.dtype)
                grad_hidden[part] += grad_NV @ weight[block]
                grad_weight[block] += grad_NV.t() @ hidden[part]
        gradients = grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype)
        return *gradients, None, None, None, None


def _block_gradient(
    logits_NV: Tensor,
    first: int,
    targets_N: Tensor,
    logsumexp_N: Tensor,
    entropy_N: Tensor,
    grad_logprobs_N: Tensor,
    grad_entropy_N: Tensor,
) -> Tensor:
    """[N, V] of log-prob and entropy with respect to a block of the logits."""
    logp_NV = logits_NV - logsumexp_N[:, None]
    prob_NV = logp_NV.exp()
    grad_NV = -prob_NV * grad_logprobs_N[:, None]
    local_N, here_N = _local_targets(targets_N, first, logits_NV.shape[1])
    grad_NV.scatter_add_(1, local_N[:, None], (grad_logprobs_N * here_N)[:, None])
    grad_NV -= grad_entropy_N[:, None] * prob_NV * (logp_NV + entropy_N[:, None])
    return grad_NV
