"""Tiny Hugging Face models with random weights, one per family and shape that matters."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB_SIZE = 127  # odd, so that tensor parallelism has to pad it
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1000000.0}

FAMILIES = ("llama32_tied", "qwen2_untied", "qwen3_tied", "qwen3_untied")

MIXTURES = ("qwen3_moe_untied", "qwen3_moe_unnormalised_tied")
"""Models with experts, which not every layout can hold."""


def build(
    family: str, *, seed: int = 7, head_size: int | None = None, kv_heads: int = 2
) -> PreTrainedModel:
    """A float32 model of the family: 4 layers, width 64, 8 heads, 4 experts."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 96,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": family.endswith("_tied"),
        "attn_implementation": "eager",
        "eos_token_id": 1,
    }
    if family.startswith("llama32"):
        config = LlamaConfig(head_dim=head_size or 8, rope_parameters=_LLAMA3_ROPE, **sizes)
        model: PreTrainedModel = LlamaForCausalLM(config)
    elif family.startswith("qwen2"):
        model = Qwen2ForCausalLM(Qwen2Config(rope_parameters=_PLAIN_ROPE, **sizes))
    elif family.startswith("qwen3_moe"):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        experts |= {"norm_topk_prob": "unnormalised" not in family}
        head = {"head_dim": head_size or 16, "rope_parameters": _PLAIN_ROPE}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**head, **experts, **sizes))
    else:
        config = Qwen3Config(head_dim=head_size or 16, rope_parameters=_PLAIN_ROPE, **sizes)
        model = Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.08
            parameter.copy_(noise + (1.0 if "norm" in name else 0.0))
    model.tie_weights()
    return model.float().eval()


def save(
    family: str, folder: Path, *, seed: int = 7, head_size: int | None = None, kv_heads: int = 2
) -> Path:
    """Write the model of ``build`` and a tokenizer of one word per id; return the folder."""
    build(family, seed=seed, head_size=head_size, kv_heads=kv_heads).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1").save_pretrained(folder)
    return folder
