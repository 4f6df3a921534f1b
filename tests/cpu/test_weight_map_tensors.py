"""The repacking pairs: hand-worked layouts, then exact round trips."""

import pytest
import torch

from checkpoint_tools.weight_map.tensors import (
    cut_vocabulary,
    pack_gate_up,
    pack_qkv,
    pad_vocabulary,
    unpack_gate_up,
    unpack_qkv,
)


def column(*rows: float) -> torch.Tensor:
    return torch.tensor(rows).unsqueeze(1)


def test_each_group_holds_its_queries_then_its_key_then_its_value():
    # 4 query heads, 2 key/value heads, head size 1: heads 0 and 1 read key 10, heads 2 and 3 key 11
    packed = pack_qkv(column(0, 1, 2, 3), column(10, 11), column(20, 21), num_kv_heads=2)
    assert packed.flatten().tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_a_head_keeps_its_rows_together():
    # 2 query heads, 2 key/value heads, head size 2
    query, key, value = column(0, 1, 2, 3), column(10, 11, 12, 13), column(20, 21, 22, 23)
    packed = pack_qkv(query, key, value, num_kv_heads=2)
    assert packed.flatten().tolist() == [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23]


def test_a_bias_is_ordered_as_its_weight():
    query, key, value = torch.arange(8.0), torch.arange(10.0, 14.0), torch.arange(20.0, 24.0)
    bias = pack_qkv(query, key, value, num_kv_heads=2)
    weight = pack_qkv(query[:, None], key[:, None], value[:, None], num_kv_heads=2)
    assert bias.tolist() == weight.flatten().tolist()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("trailing", [(), (5,)], ids=["bias", "weight"])
def test_unpacking_qkv_returns_every_bit(heads, kv_heads, trailing):
    query = torch.randn(heads * 3, *trailing)
    key, value = torch.randn(2, kv_heads * 3, *trailing)
    packed = pack_qkv(query, key, value, num_kv_heads=kv_heads)
    unpacked = unpack_qkv(packed, num_heads=heads, num_kv_heads=kv_heads)
    for before, after in zip((query, key, value), unpacked, strict=True):
        assert torch.equal(before, after)


def test_the_gate_comes_before_the_up_projection():
    packed = pack_gate_up(column(0, 1), column(10, 11))
    assert packed.flatten().tolist() == [0, 1, 10, 11]
    gate, up = unpack_gate_up(packed)
    assert gate.flatten().tolist() == [0, 1]
    assert up.flatten().tolist() == [10, 11]


def test_the_vocabulary_is_padded_with_zero_rows_and_cut_again():
    weight = column(1, 2, 3)
    padded = pad_vocabulary(weight, padded_vocab=5)
    assert padded.flatten().tolist() == [1, 2, 3, 0, 0]
    assert torch.equal(cut_vocabulary(padded, vocab_size=3), weight)


def test_padding_keeps_the_type():
    assert pad_vocabulary(column(1).bfloat16(), padded_vocab=2).dtype == torch.bfloat16
