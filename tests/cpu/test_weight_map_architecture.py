"""Reading configs: what is understood, what is refused, and the rotary frequencies."""

import pytest
import torch
import transformers

from checkpoint_tools.weight_map.architecture import (
    Architecture,
    Mixture,
    RopeScaling,
    inv_freq,
    read_architecture,
)

SCALING_KEYS = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA_32_1B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", **SCALING_KEYS},
    "tie_word_embeddings": True,
}
QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "sliding_window": None,
    "use_sliding_window": False,
    "rope_scaling": None,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
}

QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "sliding_window": None,
    "use_sliding_window": False,
    "rope_scaling": None,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def test_llama_32_is_read_in_full():
    assert read_architecture(LLAMA_32_1B) == Architecture(
        family="llama",
        num_layers=16,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=8,
        head_size=64,
        ffn_size=8192,
        vocab_size=128256,
        tied=True,
        qkv_bias=False,
        qk_norm=False,
        norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(
            factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
        ),
        max_positions=131072,
    )


def test_qwen2_has_biases_and_an_idle_sliding_window():
    arch = read_architecture(QWEN25_05B)
    assert (arch.family, arch.qkv_bias, arch.qk_norm, arch.tied) == ("qwen2", True, False, True)
    assert (arch.head_size, arch.rope_theta, arch.rope_scaling) == (64, 1e6, None)


def test_qwen3_has_head_norms_and_a_head_size_of_its_own():
    arch = read_architecture(QWEN3_8B)
    assert (arch.family, arch.qkv_bias, arch.qk_norm, arch.tied) == ("qwen3", False, True, False)
    # as in Qwen3-0.6B, where hidden_size / num_attention_heads would be 64
    config = without(QWEN3_8B, "head_dim") | {"hidden_size": 1024, "num_attention_heads": 16}
    assert read_architecture(config).head_size == 128


def test_qwen3_moe_has_a_mixture_in_every_layer():
    arch = read_architecture(QWEN3_30B_A3B)
    assert (arch.family, arch.qkv_bias, arch.qk_norm, arch.tied) == (
        "qwen3_moe",
        False,
        True,
        False,
    )
    assert arch.mixture == Mixture(
        num_experts=128, experts_per_token=8, expert_ffn_size=768, normalise_topk=True
    )
    # transformers' own defaults; it takes the head size from the other two, unlike for Qwen3
    bare = read_architecture(without(QWEN3_30B_A3B, "norm_topk_prob", "head_dim"))
    assert bare.mixture is not None
    assert (bare.mixture.normalise_topk, bare.head_size) == (False, 64)
    assert read_architecture(QWEN3_8B).mixture is None


def test_absent_keys_mean_what_transformers_makes_of_them():
    config = without(LLAMA_32_1B, "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling")
    arch = read_architecture(without(config, "tie_word_embeddings"))
    assert (arch.num_kv_heads, arch.head_size, arch.rope_theta, arch.tied) == (32, 64, 1e4, False)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **SCALING_KEYS}},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **SCALING_KEYS}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **SCALING_KEYS}},
    ],
    ids=["type", "rope_type", "rope_parameters"],
)
def test_every_spelling_of_rope_is_read(rope):
    config = without(LLAMA_32_1B, "rope_theta", "rope_scaling") | rope
    assert read_architecture(config) == read_architecture(LLAMA_32_1B)


@pytest.mark.parametrize("config", [LLAMA_32_1B, QWEN25_05B, QWEN3_8B, QWEN3_30B_A3B])
def test_a_config_saved_by_the_installed_transformers_reads_the_same(config, tmp_path):
    name = config["architectures"][0].replace("ForCausalLM", "Config")
    getattr(transformers, name)(**config).save_pretrained(tmp_path)
    saved = transformers.PreTrainedConfig.get_config_dict(tmp_path)[0]
    assert read_architecture(saved) == read_architecture(config)


def test_llama3_frequencies_have_the_published_values():
    frequencies = inv_freq(read_architecture(LLAMA_32_1B))
    # 500000 ** (-28/64): short wavelength, unchanged. The next is blended, the last divided by 32.
    assert frequencies[14].item() == pytest.approx(3.211446e-3, rel=1e-6)
    assert frequencies[15].item() == pytest.approx(1.290548e-3, rel=1e-6)
    assert frequencies[31].item() == pytest.approx(9.418307e-8, rel=1e-6)


@pytest.mark.parametrize(
    "scaling",
    [
        SCALING_KEYS,
        SCALING_KEYS | {"factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 6.0},
        SCALING_KEYS | {"original_max_position_embeddings": 4096},
    ],
)
def test_scaled_frequencies_equal_those_of_transformers(scaling):
    config = LLAMA_32_1B | {"rope_scaling": {"rope_type": "llama3", **scaling}}
    small = config | {"vocab_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small))
    assert torch.equal(inv_freq(read_architecture(config)), model.model.rotary_emb.inv_freq)


def test_plain_frequencies_equal_those_of_transformers():
    small = QWEN3_8B | {"vocab_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    small |= {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small))
    frequencies = inv_freq(read_architecture(QWEN3_8B))
    assert frequencies.dtype == torch.float32
    assert torch.equal(frequencies, model.model.rotary_emb.inv_freq)


@pytest.mark.parametrize("names", [["MistralForCausalLM"], None, []])
def test_an_unknown_architecture_is_refused_with_the_known_ones(names):
    with pytest.raises(ValueError, match="LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"):
        read_architecture(LLAMA_32_1B | {"architectures": names})


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_an_unknown_rope_type_is_refused(key):
    with pytest.raises(ValueError, match="rope_type must be one of default, llama3, got 'yarn'"):
        read_architecture(LLAMA_32_1B | {"rope_scaling": {key: "yarn", "factor": 4.0}})


@pytest.mark.parametrize("key", list(SCALING_KEYS))
def test_a_missing_scaling_key_is_named(key):
    scaling = {"rope_type": "llama3", **without(SCALING_KEYS, key)}
    with pytest.raises(ValueError, match=f"{key} must be"):
        read_architecture(LLAMA_32_1B | {"rope_scaling": scaling})


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        (LLAMA_32_1B, {"attention_bias": True}, "attention_bias"),
        (LLAMA_32_1B, {"mlp_bias": True}, "mlp_bias"),
        (LLAMA_32_1B, {"hidden_act": "gelu"}, "hidden_act"),
        (LLAMA_32_1B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA_32_1B, {"attention_multiplier": 0.1}, "attention_multiplier"),
        (LLAMA_32_1B, {"sliding_window": 4096}, "sliding_window"),
        (LLAMA_32_1B, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        (LLAMA_32_1B, {"head_dim": 65}, "head_dim"),
        (QWEN25_05B, {"use_sliding_window": True}, "sliding_window"),
        (QWEN3_8B, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (QWEN3_8B, {"attention_bias": True}, "attention_bias"),
        (QWEN3_8B, {"rope_scaling": {"rope_type": "default", "mrope_section": [2]}}, "mrope_sec"),
        (
            without(QWEN3_8B, "rope_theta"),
            {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor",
        ),
        (QWEN3_30B_A3B, {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        (QWEN3_30B_A3B, {"shared_expert_intermediate_size": 5632}, "shared_expert"),
        (QWEN3_30B_A3B, {"n_shared_experts": 1}, "n_shared_experts"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "at most num_experts"),
        (QWEN3_30B_A3B, {"num_local_experts": 64}, "num_experts and num_local_experts must agree"),
    ],
)
def test_a_feature_that_would_change_results_unnoticed_is_refused(config, change, named):
    with pytest.raises(ValueError, match=named):
        read_architecture(config | change)


def test_a_sliding_window_that_no_layer_uses_is_accepted():
    config = QWEN25_05B | {"use_sliding_window": True, "max_window_layers": 24}
    assert read_architecture(config) == read_architecture(QWEN25_05B)


def test_two_spellings_that_disagree_are_refused():
    with pytest.raises(ValueError, match=r"rope_theta and rope_parameters\.rope_theta must agree"):
        read_architecture(QWEN3_8B | {"rope_parameters": {"rope_theta": 10000.0}})
    with pytest.raises(ValueError, match="rope_type and type must agree"):
        read_architecture(LLAMA_32_1B | {"rope_scaling": {"rope_type": "llama3", "type": "yarn"}})


@pytest.mark.parametrize("key", ["hidden_size", "rms_norm_eps", "vocab_size"])
def test_a_missing_size_is_named(key):
    with pytest.raises(ValueError, match=f"{key} must be"):
        read_architecture(without(QWEN3_8B, key))


@pytest.mark.parametrize("key", ["num_experts", "num_experts_per_tok", "moe_intermediate_size"])
def test_a_missing_size_of_the_mixture_is_named(key):
    with pytest.raises(ValueError, match=f"{key} must be"):
        read_architecture(without(QWEN3_30B_A3B, key))


def test_a_frequency_band_without_width_is_refused():
    scaling = {"rope_type": "llama3", **SCALING_KEYS, "low_freq_factor": 4.0}
    with pytest.raises(ValueError, match="high_freq_factor must be above"):
        read_architecture(LLAMA_32_1B | {"rope_scaling": scaling})


def test_query_heads_must_share_key_heads_evenly():
    with pytest.raises(ValueError, match="num_attention_heads must be a multiple"):
        read_architecture(LLAMA_32_1B | {"num_key_value_heads": 5})
