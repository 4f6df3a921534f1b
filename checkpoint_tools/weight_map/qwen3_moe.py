"""Qwen3-MoE: one layer's weights. Qwen3's, with a router before many feed-forwards."""

from checkpoint_tools.weight_map.rows import (
    Row,
    attention_output,
    expert_gate_up,
    expert_output,
    head_norm,
    hidden_norm,
    qkv_weight,
    router,
)

LAYER = (
    Row(
        "self_attention.linear_qkv.weight",
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        qkv_weight,
    ),
    Row("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), attention_output),
    Row("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",), head_norm),
    Row("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",), head_norm),
    Row("mlp.router.weight", ("mlp.gate.weight",), router),
    Row(
        "mlp.experts.local_experts.{expert}.linear_fc1.weight",
        ("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"),
        expert_gate_up,
    ),
    Row(
        "mlp.experts.local_experts.{expert}.linear_fc2.weight",
        ("mlp.experts.{expert}.down_proj.weight",),
        expert_output,
    ),
    Row("input_layernorm.weight", ("input_layernorm.weight",), hidden_norm),
    Row("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), hidden_norm),
)
