"""Models of made-up weights, without a folder and without transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.table import weight_table
from megatron_corew.config import Config

PARITY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 128,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
# The shape of Llama-3.2-1B, without its stretched rotation.
ONE_BILLION = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
TINY = ONE_BILLION | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


class MadeUpSource:
    """Seeded random weights under Hugging Face names, as a source that a policy starts from."""

    def __init__(self, config: dict[str, Any], *, scale: float = 0.05) -> None:
        self.folder = self.config_folder = Path("made-up")
        self.config, self.architecture = config, read_architecture(config)
        self.table = weight_table(self.architecture)
        self._scale = scale

    def read(self, entry: Entry) -> dict[str, Tensor]:
        """The tensors of a row; the same at every call and on every machine."""
        tensors = {}
        for name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True):
            seed = sum(ord(letter) * (place + 1) for place, letter in enumerate(name))
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * self._scale
            tensors[name] = noise + (1.0 if "norm" in name else 0.0)
        return tensors


def run_config(*, dtype: str, response_tokens: int, budget: int, offload: bool = False) -> Config:
    """A run in one process whose sequences are packed to ``budget`` tokens."""
    return Config.model_validate(
        {
            "method": "co_rewarding_iii",
            "run": {"name": "gpu", "steps": 10},
            "model": {"path": "made-up", "dtype": dtype},
            "data": {"train": "lab", "max_prompt_tokens": 64},
            "rollout": {"max_response_tokens": response_tokens},
            "optimizer": {"offload": offload},
            "teacher": {"offload": offload},
            "parallel": {"tokens_per_micro_batch": budget},
        }
    )
