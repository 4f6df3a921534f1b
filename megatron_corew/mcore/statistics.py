"""Brings what the reporting ranks measured to every rank."""

from dataclasses import astuple, dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_corew.algo.objective import TokenLosses
from megatron_corew.mcore import platform
from megatron_corew.mcore.parallel import Layout
from megatron_corew.types import RolloutBatch, TokenScores


def collect_scores(
    results: list[dict[str, Tensor]], batch: RolloutBatch, layout: Layout
) -> TokenScores:
    """Put the micro-batches' token scores of all data-parallel ranks into whole tensors.

    Args:
        results: per micro-batch ``place`` [N] and ``scores`` [3, N]; empty before the last stage.
        batch: the batch that was scored.
        layout: where this rank stands.
    """
    scores_3RT = torch.zeros(3, *batch.mask_RT.shape, device=platform.device())
    if layout.reports:
        flat = scores_3RT.flatten(1)
        for result in results:
            flat[:, result["place"]] = result["scores"]
    # Exactly one rank wrote each place, the others hold zero: the sum is that rank's value.
    dist.all_reduce(scores_3RT)
    logprobs_RT, entropy_RT, certainty_RT = scores_3RT.to(batch.mask_RT.device)
    return TokenScores(
        logprobs_RT=logprobs_RT, entropy_RT=entropy_RT, self_certainty_RT=certainty_RT
    )


@dataclass(kw_only=True, slots=True)
class StepSums:
    """Sums over trained tokens of one update.

    The gap to the sampler's log-probs is over all sampled tokens, its last entry a maximum.
    """

    tokens: float = 0.0
    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    sampled_tokens: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0

    @classmethod
    def of_micro_batch(
        cls,
        loss: Tensor,
        losses: TokenLosses,
        entropy_N: Tensor,
        logprobs_N: Tensor,
        rollout_logprobs_N: Tensor,
        weights_N: Tensor,
    ) -> "StepSums":
        """The sums of one micro-batch; tokens of weight 0 count for the gap only."""
        trained_N = weights_N != 0
        gap_N = (logprobs_N.detach() - rollout_logprobs_N).abs()
        values = torch.stack(
            [
                trained_N.sum().float(),
                loss.detach(),
                losses.kl.detach()[trained_N].sum(),
                entropy_N.detach()[trained_N].sum(),
                losses.clipped[trained_N].sum().float(),
                gap_N.new_tensor(float(gap_N.numel())),
                gap_N.sum(),
                gap_N.max() if gap_N.numel() else loss.detach().new_zeros(()),
            ]
        )
        return cls(**dict(zip((f.name for f in fields(cls)), values.tolist(), strict=True)))

    @classmethod
    def over_all_ranks(cls, parts: list["StepSums"], layout: Layout) -> "StepSums":
        """The sums of all micro-batches of all ranks, on every rank."""
        rows = [list(astuple(part)) for part in parts] if layout.reports else []
        local = torch.tensor(rows or [[0.0] * len(fields(cls))], dtype=torch.float64)
        sums, largest = local[:, :-1].sum(dim=0), local[:, -1].max()
        sums, largest = sums.to(platform.device()), largest.to(platform.device())
        dist.all_reduce(sums)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        names = [f.name for f in fields(cls)]
        return cls(**dict(zip(names, [*sums.tolist(), largest.item()], strict=True)))

    def metrics(self) -> dict[str, float]:
        """Means per trained token, by metric name."""
        count = max(self.tokens, 1.0)
        return {
            "policy/loss": self.loss,
            "policy/kl": self.kl / count,
            "policy/entropy": self.entropy / count,
            "policy/clip_share": self.clipped / count,
            "policy/trained_tokens": self.tokens,
            "gap/mean": self.gap / max(self.sampled_tokens, 1.0),
            "gap/max": self.gap_max,
        }
