"""The kinds of rows a family's table is made of.

Each kind takes the full Megatron-Core name, the full Hugging Face names in the order it says, and
the architecture, and returns the entry with all shapes filled in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from checkpoint_tools.weight_map.architecture import Architecture, Mixture
from checkpoint_tools.weight_map.entry import Entry, Parallel, Shape
from checkpoint_tools.weight_map.tensors import (
    cut_vocabulary,
    pack_gate_up,
    pack_qkv,
    pad_vocabulary,
    unpack_gate_up,
    unpack_qkv,
)

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a family's layer table.

    A line with ``{expert}`` in its names stands for as many lines as the model has experts.
    """

    megatron_name: str
    """Name within the layer, local spec."""
    hf_names: Names
    """Names within the layer, in the order that the kind expects."""
    kind: Callable[[str, Names, Architecture], Entry]
    """Builds the entry from the full names."""

    @property
    def per_expert(self) -> bool:
        """Whether the line stands for one line per expert."""
        return "{expert}" in self.megatron_name


def hidden_norm(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Norm over the hidden size."""
    return _same(megatron_name, hf_names, (arch.hidden_size,), "replicated")


def head_norm(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Norm over one head, shared by all heads."""
    return _same(megatron_name, hf_names, (arch.head_size,), "replicated")


def qkv_weight(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Weights of query, key, value -> one weight, grouped by key/value head."""
    return _qkv(megatron_name, hf_names, arch, (arch.hidden_size,))


def qkv_bias(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Biases of query, key, value -> one bias, in the order of the weight."""
    return _qkv(megatron_name, hf_names, arch, ())


def attention_output(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Projection from the heads to the hidden size; cut like the heads it reads."""
    shape = (arch.hidden_size, arch.num_heads * arch.head_size)
    units, unit = arch.num_kv_heads, "num_key_value_heads"
    return _same(megatron_name, hf_names, shape, "row", units, unit)


def gate_up(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Gate and up projection -> one weight, gate first."""
    return _gate_up(megatron_name, hf_names, arch, arch.ffn_size, "intermediate_size")


def mlp_output(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Projection from the feed-forward size to the hidden size."""
    shape = (arch.hidden_size, arch.ffn_size)
    return _same(megatron_name, hf_names, shape, "row", arch.ffn_size, "intermediate_size")


def router(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """Projection from the hidden size to one score per expert."""
    shape = (_mixture(arch).num_experts, arch.hidden_size)
    return _same(megatron_name, hf_names, shape, "replicated")


def expert_gate_up(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """One expert's gate and up projection -> one weight, gate first."""
    size = _mixture(arch).expert_ffn_size
    return _gate_up(megatron_name, hf_names, arch, size, "moe_intermediate_size")


def expert_output(megatron_name: str, hf_names: Names, arch: Architecture) -> Entry:
    """One expert's projection from its feed-forward size to the hidden size."""
    size = _mixture(arch).expert_ffn_size
    shape = (arch.hidden_size, size)
    return _same(megatron_name, hf_names, shape, "row", size, "moe_intermediate_size")


def vocabulary(megatron_name: str, hf_name: str, arch: Architecture, padded_vocab: int) -> Entry:
    """Embedding or output layer, padded with zero rows."""
    return Entry(
        megatron_name=megatron_name,
        megatron_shape=(padded_vocab, arch.hidden_size),
        hf_names=(hf_name,),
        hf_shapes=((arch.vocab_size, arch.hidden_size),),
        parallel="vocabulary",
        units=padded_vocab,
        unit="the padded vocabulary",
        pack=partial(pad_vocabulary, padded_vocab=padded_vocab),
        unpack=partial(_cut, vocab_size=arch.vocab_size),
    )


def _qkv(megatron_name: str, hf_names: Names, arch: Architecture, inputs: Shape) -> Entry:
    query, key = arch.num_heads * arch.head_size, arch.num_kv_heads * arch.head_size
    return Entry(
        megatron_name=megatron_name,
        megatron_shape=(query + 2 * key, *inputs),
        hf_names=hf_names,
        hf_shapes=((query, *inputs), (key, *inputs), (key, *inputs)),
        parallel="column",
        units=arch.num_kv_heads,
        unit="num_key_value_heads",
        pack=partial(pack_qkv, num_kv_heads=arch.num_kv_heads),
        unpack=partial(unpack_qkv, num_heads=arch.num_heads, num_kv_heads=arch.num_kv_heads),
    )


def _gate_up(
    megatron_name: str, hf_names: Names, arch: Architecture, size: int, unit: str
) -> Entry:
    half = (size, arch.hidden_size)
    return Entry(
        megatron_name=megatron_name,
        megatron_shape=(2 * size, arch.hidden_size),
        hf_names=hf_names,
        hf_shapes=(half, half),
        parallel="gated",
        units=size,
        unit=unit,
        pack=pack_gate_up,
        unpack=unpack_gate_up,
    )


def _mixture(arch: Architecture) -> Mixture:
    assert arch.mixture is not None, f"{arch.family}: its table needs an architecture with experts"
    return arch.mixture


def _same(
    megatron_name: str,
    hf_names: Names,
    shape: Shape,
    parallel: Parallel,
    units: int = 1,
    unit: str = "",
) -> Entry:
    return Entry(
        megatron_name=megatron_name,
        megatron_shape=shape,
        hf_names=hf_names,
        hf_shapes=(shape,),
        parallel=parallel,
        units=units,
        unit=unit,
        pack=_identity,
        unpack=_alone,
    )


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _cut(whole: Tensor, *, vocab_size: int) -> tuple[Tensor, ...]:
    return (cut_vocabulary(whole, vocab_size=vocab_size),)


def _alone(whole: Tensor) -> tuple[Tensor, ...]:
    return (whole,)
