"""Dense Qwen3: one layer's weights. Llama's, and a norm on each query and key head."""

from checkpoint_tools.weight_map.rows import (
    Row,
    attention_output,
    gate_up,
    head_norm,
    hidden_norm,
    mlp_output,
    qkv_weight,
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
    Row("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), gate_up),
    Row("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), mlp_output),
    Row("input_layernorm.weight", ("input_layernorm.weight",), hidden_norm),
    Row("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), hidden_norm),
)
