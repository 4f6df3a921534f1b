"""Log-probs, entropy and self-certainty of sampled tokens from hidden states.

The vocabulary is split over the tensor-parallel ranks and never gathered. Logits exist for one
chunk of tokens at a time, in the forward pass and (recomputed) in the backward pass, so the
peak memory grows with ``chunk``, not with tokens x vocabulary.

Dimension key:
    N: tokens        D: hidden size        W: this rank's part of the padded vocabulary
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


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


def _logits(hidden: Tensor, weight: Tensor, shard: VocabularyShard, temperature: float) -> Tensor:
    return (hidden @ weight[: shard.size].t()).float() / temperature


def _local_targets(targets_N: Tensor, shard: VocabularyShard) -> tuple[Tensor, Tensor]:
    local_N = targets_N - shard.first
    here_N = (local_N >= 0) & (local_N < shard.size)
    return local_N.clamp(0, max(shard.size - 1, 0)), here_N


def _reduce(tensor: Tensor, op: dist.ReduceOp.RedOpType, shard: VocabularyShard) -> Tensor:
    if shard.group is not None:
        dist.all_reduce(tensor, op=op, group=shard.group)
    return tensor


def _chunk_scores(logits_NW: Tensor, targets_N: Tensor, shard: VocabularyShard) -> Tensor:
    """[4, N]: log-prob, entropy, self-certainty, logsumexp."""
    local_N, here_N = _local_targets(targets_N, shard)
    count = logits_NW.shape[0]
    if shard.size:
        max_N, target_N = logits_NW.amax(-1), logits_NW.gather(-1, local_N[:, None])[:, 0]
    else:
        # A rank may hold padding only; it still takes part in the reductions.
        max_N = logits_NW.new_full((count,), -torch.inf)
        target_N = logits_NW.new_zeros(count)
    max_N = _reduce(max_N, dist.ReduceOp.MAX, shard)
    shifted_NW = logits_NW - max_N[:, None]
    exp_NW = shifted_NW.exp()
    sums = torch.stack(
        [
            exp_NW.sum(-1),
            (exp_NW * shifted_NW).sum(-1),
            shifted_NW.sum(-1),
            torch.where(here_N, target_N - max_N, 0.0),
        ]
    )
    total_N, weighted_N, plain_N, target_N = _reduce(sums, dist.ReduceOp.SUM, shard)
    log_total_N = total_N.log()
    return torch.stack(
        [
            target_N - log_total_N,
            log_total_N - weighted_N / total_N,
            log_total_N - plain_N / shard.vocab_size,
            log_total_N + max_N,
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
            _chunk_scores(_logits(h, weight, shard, temperature), t, shard)
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
        shard, temperature, chunk = ctx.shard, ctx.temperature, ctx.chunk
        grad_hidden = torch.zeros_like(hidden)
        # Chunks are summed in float32: in bfloat16 the sum would lose the small ones.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden) if shard.size else 0, chunk):
            part = slice(start, start + chunk)
            logp_NW = _logits(hidden[part], weight, shard, temperature) - logsumexp[part, None]
            prob_NW = logp_NW.exp()
            grad_NW = -prob_NW * grad_logprobs[part, None]
            local_N, here_N = _local_targets(targets[part], shard)
            grad_NW.scatter_add_(1, local_N[:, None], (grad_logprobs[part] * here_N)[:, None])
            grad_NW -= grad_entropy[part, None] * prob_NW * (logp_NW + entropy[part, None])
            grad_NW = (grad_NW / temperature).to(weight.dtype)
            grad_hidden[part] = grad_NW @ weight[: shard.size]
            grad_weight[: shard.size] += grad_NW.t() @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None
