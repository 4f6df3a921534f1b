"""The layer specification of the policy: Transformer Engine's on GPUs, our own on the CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_corew.config import PrecisionConfig
from megatron_corew.mcore import platform
from megatron_corew.mcore.fast_paths import uses_transformer_engine

platform.redirect_torch()

from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_block import (  # noqa: E402
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron.core.transformer.transformer_layer import (  # noqa: E402
    get_transformer_layer_offset,
)

from megatron_corew.mcore.fp8_emulation import (  # noqa: E402
    RoundedColumnParallelLinear,
    RoundedRowParallelLinear,
)

if not moe_utils.HAVE_TE:
    # Megatron-Core 0.16 asks whether this name is None, but without Transformer Engine it is unset.
    moe_utils.te_general_gemm = None


class RMSNorm(torch.nn.RMSNorm):
    """RMSNorm that works with sequence parallelism.

    The mark makes Megatron sum the weight's gradient over the tensor-parallel ranks, each of
    which normalises its own part of the sequence. The stock local norm refuses that layout.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class CausalSdpa(torch.nn.Module):
    """Core attention by torch's scaled_dot_product_attention: causal, within each sequence.

    Padding stands on the right of a sequence, so no real token ever sees it and no mask is needed.
    """

    def __init__(
        self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any
    ) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
        packed_seq_params: PackedSeqParams | None = None,
        **__: Any,
    ) -> Tensor:
        """[S, B, heads, K] queries, [S, B, groups, K] keys and values -> [S, B, heads * K].

        Packed sequences come and go without the B.
        """
        if packed_seq_params is None:
            return self._attend(query, key, value)
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        parts = zip(*(tensor.split(lengths) for tensor in (query, key, value)), strict=True)
        return torch.cat([self._attend(*(part[:, None] for part in qkv))[:, 0] for qkv in parts])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=True
        )
        return out.permute(2, 0, 1, 3).flatten(start_dim=2)


def check_context_parallel(size: int) -> None:
    """Refuse context parallelism where no attention can do it.

    Args:
        size: ranks that share each sequence.

    Raises:
        ValueError: Transformer Engine or a GPU is missing.
    """
    if size > 1 and not uses_transformer_engine():
        raise ValueError(
            f"parallel.context: need a GPU with Transformer Engine for {size} ranks per sequence "
            "(its attention passes keys and values around), got none. Set parallel.context=1."
        )


def layer_spec(
    config: TransformerConfig, *, qk_norm: bool, precision: PrecisionConfig, chunk: int
) -> ModuleSpec | TransformerBlockSubmodules:
    """The specification of the layers of one of this rank's pieces.

    Args:
        config: Megatron's configuration of the model.
        qk_norm: normalise queries and keys per head (Qwen3).
        precision: whether linears are emulated in FP8, and in which layers.
        chunk: number of the piece.

    Raises:
        ValueError: context parallelism without Transformer Engine.
    """
    check_context_parallel(config.context_parallel_size)
    emulated = precision.fp8 == "emulate"
    if uses_transformer_engine() and not emulated:
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts,
            moe_grouped_gemm=config.moe_grouped_gemm,
            qk_layernorm=qk_norm,
        )
    first = get_transformer_layer_offset(config, vp_stage=chunk)
    layers = range(first, first + get_num_layers_to_build(config, vp_stage=chunk))
    inner = range(precision.bf16_first_layers, config.num_layers - precision.bf16_last_layers)
    specs = [
        _local_layer(config, qk_norm=qk_norm, emulated=emulated and layer in inner)
        for layer in layers
    ]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=RMSNorm)


def _local_layer(config: TransformerConfig, *, qk_norm: bool, emulated: bool) -> ModuleSpec:
    """The specification of one layer without Transformer Engine."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, qk_layernorm=qk_norm, normalization="RMSNorm"
    )
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention.core_attention = CausalSdpa
    if config.num_moe_experts is not None:
        # Stored as part of the linear after it, as in a dense layer of either specification, no
        # checkpoint with experts could go from a CPU to Transformer Engine and back.
        del layer.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if emulated:
        attention.linear_qkv = RoundedColumnParallelLinear
        attention.linear_proj = RoundedRowParallelLinear
        feed_forward = layer.mlp.submodules
        if config.num_moe_experts is not None:
            feed_forward = feed_forward.experts.submodules
        feed_forward.linear_fc1 = RoundedColumnParallelLinear
        feed_forward.linear_fc2 = RoundedRowParallelLinear
    return spec
