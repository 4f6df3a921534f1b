"""Builds a rank's part of the policy from a Hugging Face architecture."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from checkpoint_tools.weight_map.architecture import Architecture, Mixture, inv_freq
from megatron_corew.config import Config, PrecisionConfig
from megatron_corew.layout_check import check_divisible
from megatron_corew.mcore import fast_paths, platform
from megatron_corew.mcore.fast_paths import uses_transformer_engine
from megatron_corew.mcore.fp8_checks import check_recipe
from megatron_corew.mcore.modules import layer_spec
from megatron_corew.mcore.parallel import Layout

platform.redirect_torch()

from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    # Fused attention keeps no scores: recomputing it would save little. Megatron's recomputed
    # norms reach for Transformer Engine. A layer has one of the two modules.
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["mlp", "moe"]},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


class HiddenStateModel(GPTModel):
    """Megatron's GPT whose last stage gives hidden states instead of logits.

    ``logprobs.token_scores`` goes on from there, chunk by chunk and for response tokens only,
    so the logits of a whole micro-batch are never built.
    """

    def _postprocess(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        return hidden_states

    def output_weight(self) -> Tensor:
        """[W, D] this rank's rows of the output layer; the embedding's when they are tied."""
        if self.share_embeddings_and_output_weights:
            return self.shared_embedding_or_output_weight()
        return self.output_layer.weight


def padded_vocab_size(architecture: Architecture, tensor_size: int) -> int:
    """The vocabulary rounded up to whole, equal parts for the tensor-parallel ranks."""
    return -(-architecture.vocab_size // tensor_size) * tensor_size


def transformer_config(architecture: Architecture, config: Config) -> TransformerConfig:
    """Megatron's configuration of the model under a run's layout and precision."""
    dtype = DTYPES[config.model.dtype]
    interleaved = config.parallel.virtual_pipeline > 1
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_size,
        ffn_hidden_size=architecture.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        qk_layernorm=architecture.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=config.parallel.tensor,
        pipeline_model_parallel_size=config.parallel.pipeline,
        virtual_pipeline_model_parallel_size=(
            config.parallel.virtual_pipeline if interleaved else None
        ),
        context_parallel_size=config.parallel.context,
        sequence_parallel=config.parallel.sequence,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=not platform.has_cuda(),
        gradient_accumulation_fusion=fast_paths.fuses_weight_gradients(),
        masked_softmax_fusion=platform.has_cuda(),
        # Micro-batches of a step differ in length; stages tell each other the shapes. Between two
        # ranks the interleaved schedule mixes up such messages: its micro-batches are equally long.
        variable_seq_lengths=config.parallel.pipeline > 1 and not interleaved,
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        moe_token_dispatcher_type="alltoall",
        **_mixture_settings(architecture.mixture, config),
        **_fp8_settings(config.precision),
        # The loss is a plain sum of weighted token losses: no division by Megatron.
        calculate_per_token_loss=True,
        **_RECOMPUTE[config.parallel.recompute],
    )


def _mixture_settings(mixture: Mixture | None, config: Config) -> dict[str, Any]:
    if mixture is None:
        return {}
    return {
        "num_moe_experts": mixture.num_experts,
        "moe_router_topk": mixture.experts_per_token,
        "moe_ffn_hidden_size": mixture.expert_ffn_size,
        # A softmax over the chosen logits is one over all, divided by the chosen ones' sum.
        "moe_router_pre_softmax": not mixture.normalise_topk,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_grouped_gemm": uses_transformer_engine() and config.precision.fp8 != "emulate",
        "expert_model_parallel_size": config.parallel.expert,
        "expert_tensor_parallel_size": config.parallel.expert_tensor,
    }


def _fp8_settings(precision: PrecisionConfig) -> dict[str, Any]:
    if not precision.transformer_engine:
        return {}
    kept = precision.bf16_first_layers + precision.bf16_last_layers
    return {
        # Blocks are small enough for gradients in e4m3; whole tensors need the range of e5m2.
        "fp8": "e4m3" if precision.fp8 == "blockwise" else "hybrid",
        "fp8_recipe": precision.fp8,
        # Weights stay bfloat16 beside their float32 mains: they are averaged, pushed and saved.
        "fp8_param": False,
        "fp8_amax_history_len": 1024 if precision.fp8 == "delayed" else 1,
        "fp8_amax_compute_algo": "max",
        "first_last_layers_bf16": kept > 0,
        "num_layers_at_start_in_bf16": precision.bf16_first_layers,
        "num_layers_at_end_in_bf16": precision.bf16_last_layers,
    }


def build_model(
    architecture: Architecture, config: Config, layout: Layout, *, chunk: int = 0
) -> HiddenStateModel:
    """One of this rank's pieces of the model, with unset weights.

    Args:
        architecture: what the Hugging Face folder describes.
        config: the run; its layout and precision are used.
        layout: where this rank stands.
        chunk: number of the piece, below ``parallel.virtual_pipeline``.

    Raises:
        ValueError: heads, layers, experts or inner size do not divide by the layout or the FP8
            recipe; or FP8 or context parallelism that this machine cannot do.
    """
    check_divisible(architecture, config)
    check_recipe(config.precision)
    megatron_config = transformer_config(architecture, config)
    model = HiddenStateModel(
        config=megatron_config,
        transformer_layer_spec=layer_spec(
            megatron_config,
            qk_norm=architecture.qk_norm,
            precision=config.precision,
            chunk=chunk,
        ),
        vocab_size=padded_vocab_size(architecture, layout.tensor_size),
        max_sequence_length=architecture.max_positions,
        pre_process=layout.first_stage and chunk == 0,
        post_process=layout.last_stage and chunk == config.parallel.virtual_pipeline - 1,
        vp_stage=chunk,
        parallel_output=True,
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope",
        rotary_base=architecture.rope_theta,
    )
    # Megatron-Core hard-codes three of the four llama3 scaling values; ours come from the folder.
    model.rotary_pos_emb.inv_freq = inv_freq(architecture).to(platform.device())
    return model.to(platform.device())
