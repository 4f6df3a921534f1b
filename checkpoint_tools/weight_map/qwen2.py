"""Dense Qwen2 and Qwen2.5: one layer's weights. Llama's, and biases on query, key and value."""

from checkpoint_tools.weight_map.rows import (
    Row,
    attention_output,
    gate_up,
    hidden_norm,
    mlp_output,
    qkv_bias,
    qkv_weight,
)

LAYER = (
    Row(
        "self_attention.linear_qkv.weight",
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        qkv_weight,
    ),
    Row(
        "self_attention.linear_qkv.bias",
        ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        qkv_bias,
    ),
    Row("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), attention_output),
    Row("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), gate_up),
    Row("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), mlp_output),
    Row("input_layernorm.weight", ("input_layernorm.weight",), hidden_norm),
    Row("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), hidden_norm),
)
