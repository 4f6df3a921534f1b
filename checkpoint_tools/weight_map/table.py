"""The one table between Hugging Face and Megatron-Core weights, for loading, export and rollout.

Names are those of Megatron-Core's local spec; ``names.te_name`` gives Transformer Engine's.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, product

from checkpoint_tools.weight_map import llama, qwen2, qwen3, qwen3_moe
from checkpoint_tools.weight_map.architecture import Architecture, Family
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.rows import Row, hidden_norm, vocabulary

_LAYERS: dict[Family, tuple[Row, ...]] = {
    "llama": llama.LAYER,
    "qwen2": qwen2.LAYER,
    "qwen3": qwen3.LAYER,
    "qwen3_moe": qwen3_moe.LAYER,
}


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
    layers = [entry for layer in range(arch.num_layers) for entry in _layer(arch, layer)]
    final_norm = hidden_norm("decoder.final_layernorm.weight", ("model.norm.weight",), arch)
    if arch.tied:
        return (embedding, *layers, final_norm)
    head = vocabulary("output_layer.weight", "lm_head.weight", arch, rows)
    return (embedding, *layers, final_norm, head)


def _layer(arch: Architecture, layer: int) -> Iterator[Entry]:
    every_expert = range(arch.mixture.num_experts) if arch.mixture else ()
    for per_expert, rows in groupby(_LAYERS[arch.family], lambda row: row.per_expert):
        for expert, row in product(every_expert if per_expert else (None,), tuple(rows)):
            entry = row.kind(
                f"decoder.layers.{layer}.{row.megatron_name.format(expert=expert)}",
                tuple(f"model.layers.{layer}.{n.format(expert=expert)}" for n in row.hf_names),
                arch,
            )
            yield replace(entry, expert=expert)
