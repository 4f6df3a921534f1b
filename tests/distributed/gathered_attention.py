"""Attention over sequences that context parallelism has cut: every rank gathers all keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_corew.mcore import platform

platform.redirect_torch()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.common.embeddings import rope_utils  # noqa: E402
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region  # noqa: E402

# Megatron picks a rank's rotary positions with a pinned tensor, which needs CUDA.
rope_utils.torch = platform._Torch("rope_utils")
rope_utils.torch.tensor = lambda *args, pin_memory, **kwargs: torch.tensor(*args, **kwargs)


def places(spans: list[int], rank: int, ranks: int) -> Tensor:
    """[2, S] sequence number and position of what a rank holds: Megatron's two stripes."""
    parts = []
    for number, span in enumerate(spans):
        stripes = torch.arange(span).chunk(2 * ranks)
        position = torch.cat([stripes[rank], stripes[2 * ranks - 1 - rank]])
        parts.append(torch.stack([torch.full_like(position, number), position]))
    return torch.cat(parts, dim=1)


class GatheredSdpa(torch.nn.Module):
    """Stands in for Transformer Engine's attention under context parallelism."""

    def __init__(self, config, *_, softmax_scale: float | None = None, **__) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, *_, packed_seq_params=None, **__) -> Tensor:
        """[S, B, heads, K] or packed [S, heads, K], with the stripes of this rank."""
        group = parallel_state.get_context_parallel_group()
        rank, ranks = group.rank(), group.size()
        packed = packed_seq_params is not None
        spans = packed_seq_params.cu_seqlens_q.diff().tolist() if packed else [len(query) * ranks]
        mine = places(spans, rank, ranks)
        all_of_them = torch.cat([places(spans, other, ranks) for other in range(ranks)], dim=1)
        mask = (mine[0][:, None] == all_of_them[0]) & (mine[1][:, None] >= all_of_them[1])
        key, value = (
            gather_from_sequence_parallel_region(t, tensor_parallel_output_grad=True, group=group)
            for t in (key, value)
        )
        if packed:
            query, key, value = (t[:, None] for t in (query, key, value))
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=True
        )
        out = out.permute(2, 0, 1, 3).flatten(start_dim=2)
        return out[:, 0] if packed else out
