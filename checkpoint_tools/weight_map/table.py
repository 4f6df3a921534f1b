"""The one table between Hugging Face and Megatron-Core weights, for loading, export and rollout.

Names are those of Megatron-Core's local spec; ``te_name`` gives Transformer Engine's.
"""

from checkpoint_tools.weight_map import llama, qwen2, qwen3
from checkpoint_tools.weight_map.architecture import Architecture, Family
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.rows import Row, hidden_norm, vocabulary

_LAYERS: dict[Family, tuple[Row, ...]] = {
    "llama": llama.LAYER,
    "qwen2": qwen2.LAYER,
    "qwen3": qwen3.LAYER,
}

# Transformer Engine's linears carry the norm before them.
_TE_SUFFIXES = {
    ".input_layernorm.weight": ".self_attention.linear_qkv.layer_norm_weight",
    ".pre_mlp_layernorm.weight": ".mlp.linear_fc1.layer_norm_weight",
}
_LOCAL_SUFFIXES = {te: local for local, te in _TE_SUFFIXES.items()}


def weight_table(arch: Architecture, *, padded_vocab: int | None = None) -> tuple[Entry, ...]:
    """All weights of a model, in Hugging Face order.

    Args:
        arch: the model.
        padded_vocab: rows of Megatron-Core's embedding and output layer; None: no padding.

    Returns:
        Embedding, layers from 0 on, final norm, and the output layer unless it is tied. Every HF
        name and every Megatron name occurs exactly once.

    Raises:
        ValueError: ``padded_vocab`` is below the vocabulary.
    """
    rows = arch.vocab_size if padded_vocab is None else padded_vocab
    if rows < arch.vocab_size:
        raise ValueError(f"padded_vocab: need at least vocab_size ({arch.vocab_size}), got {rows}.")
    embedding = vocabulary(
        "embedding.word_embeddings.weight", "model.embed_tokens.weight", arch, rows
    )
    layers = [
        row.kind(
            f"decoder.layers.{layer}.{row.megatron_name}",
            tuple(f"model.layers.{layer}.{name}" for name in row.hf_names),
            arch,
        )
        for layer in range(arch.num_layers)
        for row in _LAYERS[arch.family]
    ]
    final_norm = hidden_norm("decoder.final_layernorm.weight", ("model.norm.weight",), arch)
    if arch.tied:
        return (embedding, *layers, final_norm)
    head = vocabulary("output_layer.weight", "lm_head.weight", arch, rows)
    return (embedding, *layers, final_norm, head)


def te_name(local_name: str) -> str:
    """Name of a dense model's weight in Megatron-Core's Transformer Engine spec.

    Args:
        local_name: name in the local spec.

    Returns:
        The norm of attention or MLP as part of the linear after it; other names unchanged.
    """
    return _with_suffix(local_name, _TE_SUFFIXES)


def local_name(te_name: str) -> str:
    """Undo ``te_name``.

    Args:
        te_name: name in the Transformer Engine spec.

    Returns:
        Name in the local spec.
    """
    return _with_suffix(te_name, _LOCAL_SUFFIXES)


def _with_suffix(name: str, suffixes: dict[str, str]) -> str:
    for old, new in suffixes.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
