"""Tiny Hugging Face folders for the tests that read or write them."""

import torch
import transformers

FAMILIES = ["Llama", "Qwen2", "Qwen3"]


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}


UNTIED_HEAD = "lm_head.weight"


def save_model(folder, family="Qwen2", *, tied=True, **save_options):
    """A tiny random model, saved by transformers."""
    plain_rope = {"rope_type": "default", "rope_theta": 1e6}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=131,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        rope_parameters=LLAMA3_ROPE if family == "Llama" else plain_rope,
        **(EXPERTS if family == "Qwen3Moe" else {}),
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(folder, **save_options)
    return model
