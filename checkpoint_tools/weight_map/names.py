"""Names of Megatron-Core's parameters in its two layer specifications.

The weight table speaks in names of the local spec. Transformer Engine's linears carry the norm
before them, which renames two norms of a dense layer but only one of a layer with experts, whose
router stands between the norm and the linears. Its grouped experts are one module.
"""

import re
from typing import Literal

FeedForward = Literal["dense", "sequential_experts", "grouped_experts"]
"""What stands behind the second norm of a layer: one feed-forward, or experts in either form."""

# (local, Transformer Engine)
_QKV_NORM = (".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
_MLP_NORM = (".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")

_SEQUENTIAL = re.compile(r"\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight$")
_GROUPED = re.compile(r"\.experts\.(linear_fc[12])\.weight(\d+)$")


def te_name(local_name: str, feed_forward: FeedForward = "dense") -> str:
    """Name of a weight in Megatron-Core's Transformer Engine spec.

    Args:
        local_name: name in the local spec.
        feed_forward: of the model.

    Returns:
        A norm as part of the linear after it, an expert as part of its group; other names
        unchanged.

    Source: Megatron-Core 0.16.1, models/gpt/gpt_layer_specs.py; recorded in tests/golden.
    """
    if feed_forward == "grouped_experts":
        local_name = _SEQUENTIAL.sub(r".experts.\2.weight\1", local_name)
    fused = [_QKV_NORM, _MLP_NORM] if feed_forward == "dense" else [_QKV_NORM]
    return _with_suffix(local_name, dict(fused))


def local_name(te_name: str) -> str:
    """Undo ``te_name``, whatever the feed-forward is.

    Args:
        te_name: name in the Transformer Engine spec.

    Returns:
        Name in the local spec.
    """
    sequential = _GROUPED.sub(r".experts.local_experts.\2.\1.weight", te_name)
    return _with_suffix(sequential, {te: local for local, te in (_QKV_NORM, _MLP_NORM)})


def shift_expert(local_name: str, by: int) -> str:
    """Renumber an expert: from its number on a rank to the one among all, or back.

    Args:
        local_name: name in the local spec.
        by: added to the expert's number; the experts on the expert-parallel ranks before.

    Returns:
        The renumbered name; names of other weights unchanged.
    """
    return _SEQUENTIAL.sub(
        lambda found: f".experts.local_experts.{int(found[1]) + by}.{found[2]}.weight", local_name
    )


def _with_suffix(name: str, suffixes: dict[str, str]) -> str:
    for old, new in suffixes.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
