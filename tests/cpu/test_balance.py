"""Packing and dealing by cost: hand-worked numbers, then what holds for any lengths."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_tools.weight_map.architecture import Architecture, Mixture
from megatron_corew.mcore.balance import SequenceCost, deal, pack, sequence_cost

BY_TOKENS = SequenceCost(linear=1.0, quadratic=0.0)

DENSE = Architecture(
    family="qwen3",
    num_layers=2,
    hidden_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_size=3,
    ffn_size=16,
    vocab_size=100,
    tied=True,
    qkv_bias=False,
    qk_norm=True,
    norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    max_positions=64,
)


def test_cost_grows_with_the_length_and_its_square():
    assert SequenceCost(linear=10.0, quadratic=2.0).of(3) == 30.0 + 18.0


def test_a_models_cost_counts_its_matrices_and_causal_attention():
    cost = sequence_cost(DENSE)
    # Per layer: q 8x12, k 8x6, v 8x6, out 12x8, gate, up and down 8x16 each = 672 weights.
    assert cost.linear == 2 * 2 * 672
    # Per layer: scores and values, 2 FLOPs x 12 channels each, half of them under the mask.
    assert cost.quadratic == 2 * 24


def test_of_a_mixture_a_token_passes_the_chosen_experts_and_the_router():
    mixture = Mixture(num_experts=8, experts_per_token=2, expert_ffn_size=5, normalise_topk=True)
    cost = sequence_cost(replace(DENSE, mixture=mixture))
    # Attention as above, 288; two experts of 3 x 8x5; a router of 8x8.
    assert cost.linear == 2 * 2 * (288 + 2 * 120 + 64)


def test_longest_first_into_the_cheapest_bin_that_has_room():
    # 8 | 7 ; then 6 beside the 7 (13 <= 14), 5 beside the 8, 2 beside the cheaper of 13 and 13.
    assert pack([5, 7, 2, 8, 6], BY_TOKENS, capacity=15, multiple=1) == [[3, 0, 2], [1, 4]]


def test_attention_cost_moves_a_short_sequence_away_from_the_long_one():
    lengths = [10, 6, 4, 2]
    # By tokens 10 | 6 4, and the 2 joins the first of two equal bins.
    assert pack(lengths, BY_TOKENS, capacity=12, multiple=1) == [[0, 3], [1, 2]]
    # Squared: 100 | 36 + 16, so the 2 (4) goes to the short ones.
    squared = SequenceCost(linear=0.0, quadratic=1.0)
    assert pack(lengths, squared, capacity=12, multiple=1) == [[0], [1, 2, 3]]


def test_bins_come_in_multiples_even_when_some_stay_empty():
    assert pack([3], BY_TOKENS, capacity=10, multiple=4) == [[0], [], [], []]


def test_one_more_bin_is_opened_when_the_sequences_do_not_fit():
    # 18 tokens would fill two bins of 9, but 6 + 6 + 6 cannot be cut.
    assert pack([6, 6, 6], BY_TOKENS, capacity=9, multiple=1) == [[0], [1], [2]]


def test_a_sequence_longer_than_a_bin_names_the_knob():
    with pytest.raises(ValueError, match=r"got 11\. Raise parallel\.tokens_per_micro_batch"):
        pack([3, 11], BY_TOKENS, capacity=10, multiple=1)


def test_dealing_evens_out_sums_with_equally_many_items():
    # 9 | 8, 7 to the poorer second, 3 to the first (its hand is still open): 12 and 15.
    assert deal([9, 3, 8, 7], ranks=2) == [[0, 1], [2, 3]]
    assert deal([1, 1, 1, 9], ranks=2) == [[3, 2], [0, 1]]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 200), st.integers(1, 4))
def test_every_sequence_lies_in_one_bin_and_no_bin_overflows(lengths, capacity, multiple):
    bins = pack(
        lengths, SequenceCost(linear=1.0, quadratic=0.1), capacity=capacity, multiple=multiple
    )
    assert sorted(index for one in bins for index in one) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in one) <= capacity for one in bins)
    assert len(bins) % multiple == 0
    assert len(bins) >= multiple


@given(st.lists(st.floats(0.0, 100.0), max_size=30), st.integers(1, 4))
def test_ranks_differ_by_no_more_than_the_largest_item(costs, ranks):
    costs = costs + [0.0] * (-len(costs) % ranks)
    hands = deal(costs, ranks=ranks)
    assert sorted(index for hand in hands for index in hand) == list(range(len(costs)))
    assert len({len(hand) for hand in hands}) == 1
    sums = [sum(costs[index] for index in hand) for hand in hands]
    assert max(sums) - min(sums) <= max(costs, default=0.0) + 1e-6
