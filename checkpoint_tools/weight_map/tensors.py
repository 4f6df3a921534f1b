"""Repacking pairs: each way of storing the same numbers stands beside its inverse.

Dimension key:
    G: key/value heads (query groups)
    Q: query heads per key/value head
    D: head size
    F: feed-forward size
"""

import torch
from torch import Tensor


def pack_qkv(query: Tensor, key: Tensor, value: Tensor, *, num_kv_heads: int) -> Tensor:
    """Interleave query, key and value rows per key/value head, as Megatron-Core keeps them.

    With 4 query heads, 2 key/value heads and head size 1, the rows q = [0, 1, 2, 3],
    k = [10, 11], v = [20, 21] become [0, 1, 10, 20, 2, 3, 11, 21]: all of a group is together,
    so that an even cut between groups is a tensor-parallel shard.

    Args:
        query: [G*Q*D, ...] weight or bias, heads of a group next to each other.
        key: [G*D, ...] of the same trailing shape.
        value: [G*D, ...] of the same trailing shape.
        num_kv_heads: G.

    Returns:
        [G*(Q+2)*D, ...], a new tensor.
    """
    groups = [part.reshape(num_kv_heads, -1, *part.shape[1:]) for part in (query, key, value)]
    return torch.cat(groups, dim=1).flatten(0, 1)


def unpack_qkv(
    packed: Tensor, *, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Undo ``pack_qkv``.

    Args:
        packed: [G*(Q+2)*D, ...] weight or bias.
        num_heads: G*Q.
        num_kv_heads: G.

    Returns:
        query [G*Q*D, ...], key [G*D, ...] and value [G*D, ...], new tensors.
    """
    queries = num_heads // num_kv_heads
    groups = packed.reshape(num_kv_heads, queries + 2, -1, *packed.shape[1:])
    query, key, value = groups[:, :queries], groups[:, queries], groups[:, queries + 1]
    return query.flatten(0, 2), key.flatten(0, 1), value.flatten(0, 1)


def pack_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """Stack the gate on the up projection.

    Args:
        gate: [F, ...].
        up: [F, ...].

    Returns:
        [2*F, ...], a new tensor.
    """
    return torch.cat([gate, up])


def unpack_gate_up(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Undo ``pack_gate_up``.

    Args:
        packed: [2*F, ...].

    Returns:
        gate [F, ...] and up [F, ...], views of ``packed``.
    """
    gate, up = packed.chunk(2)
    return gate, up


def pad_vocabulary(weight: Tensor, *, padded_vocab: int) -> Tensor:
    """Append zero rows up to the padded vocabulary.

    Args:
        weight: [vocabulary, hidden].
        padded_vocab: rows wanted, at least the vocabulary.

    Returns:
        [padded_vocab, hidden]; ``weight`` itself when there is nothing to append.
    """
    missing = padded_vocab - weight.shape[0]
    if missing == 0:
        return weight
    return torch.cat([weight, weight.new_zeros(missing, *weight.shape[1:])])


def cut_vocabulary(weight: Tensor, *, vocab_size: int) -> Tensor:
    """Undo ``pad_vocabulary``, whatever the padding rows have become in training.

    Args:
        weight: [padded vocabulary, hidden].
        vocab_size: rows wanted.

    Returns:
        [vocab_size, hidden], a view of ``weight``.
    """
    return weight[:vocab_size]
