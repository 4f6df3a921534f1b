"""Token weights: means by hand, independence of any split, then the errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.algo.aggregation import token_weights

AGGREGATIONS = ["token_mean", "seq_mean", "micro_batch_token_mean", "dr_grpo"]


def _weights(lengths, aggregation, views=None, length_constant=8, official_micro_batch=1):
    mask_RT = torch.arange(max(max(lengths), 1)) < torch.tensor(lengths)[:, None]
    view_R = torch.tensor(views if views else [0] * len(lengths))
    return token_weights(
        mask_RT,
        view_R,
        aggregation=aggregation,
        length_constant=length_constant,
        official_micro_batch=official_micro_batch,
    )


# Sequence A = 1, 1, 1, 1; sequence B = 5 (one token).
LOSSES_RT = torch.tensor([[1.0, 1.0, 1.0, 1.0], [5.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("aggregation", "micro_batch", "loss"),
    [
        ("token_mean", 1, 1.8),  # 9 / 5
        ("seq_mean", 1, 3.0),  # (1 + 5) / 2
        ("dr_grpo", 1, 0.5625),  # (4 / 8 + 5 / 8) / 2
        ("micro_batch_token_mean", 1, 3.0),  # (4 / 4 + 5 / 1) / 2
        ("micro_batch_token_mean", 2, 1.8),  # 9 / 5 in one micro-batch
    ],
)
@pytest.mark.parametrize("rows_per_part", [1, 2])
def test_two_sequences_match_the_hand_computed_means(aggregation, micro_batch, loss, rows_per_part):
    weights_RT = _weights([4, 1], aggregation, official_micro_batch=micro_batch)
    losses_RT = LOSSES_RT.clone().requires_grad_()
    # Micro-batches or data-parallel ranks: each takes its rows, the sums are added.
    parts = zip(weights_RT.split(rows_per_part), losses_RT.split(rows_per_part), strict=True)
    total = sum((weights * losses).sum() for weights, losses in parts)
    total.backward()
    assert total.item() == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(losses_RT.grad, weights_RT)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_loss_of_two_views_is_the_sum_of_their_losses(aggregation):
    both_RT = _weights([3, 2, 4, 1], aggregation, views=[0, 0, 1, 1], official_micro_batch=2)
    original_RT = _weights([3, 2], aggregation, official_micro_batch=2)
    rephrased_RT = _weights([4, 1], aggregation, official_micro_batch=2)
    assert torch.equal(both_RT[:2, :3], original_RT)
    assert torch.equal(both_RT[2:], rephrased_RT)


def test_interleaved_views_do_not_change_the_weights():
    grouped_RT = _weights([3, 2, 4, 1], "micro_batch_token_mean", [0, 0, 1, 1], 8, 2)
    mixed_RT = _weights([3, 4, 2, 1], "micro_batch_token_mean", [0, 1, 0, 1], 8, 2)
    assert torch.equal(mixed_RT, grouped_RT[[0, 2, 1, 3]])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_row_without_a_token_is_no_sequence(aggregation):
    with_empty_RT = _weights([4, 0, 1], aggregation)
    assert torch.equal(with_empty_RT[[0, 2]], _weights([4, 1], aggregation))
    assert not with_empty_RT[1].any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_view_without_a_token_gives_zeros_and_does_not_touch_the_other(aggregation):
    weights_RT = _weights([0, 0, 2, 3], aggregation, views=[0, 0, 1, 1])
    assert not weights_RT[:2].any()
    assert torch.equal(weights_RT[2:], _weights([2, 3], aggregation))
    assert not _weights([0, 0], aggregation).any()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 5))
def test_the_weights_of_a_mean_sum_to_one(lengths, micro_batch):
    for aggregation in ("token_mean", "seq_mean", "micro_batch_token_mean"):
        weights_RT = _weights(lengths, aggregation, official_micro_batch=micro_batch)
        expected = 1.0 if any(lengths) else 0.0
        assert weights_RT.sum().item() == pytest.approx(expected, abs=1e-6)


def test_what_does_not_fit_is_refused_with_the_knob():
    with pytest.raises(ValueError, match=r"loss\.aggregation"):
        _weights([1, 2], "mean")
    with pytest.raises(ValueError, match=r"loss\.official_micro_batch"):
        _weights([1, 2], "token_mean", official_micro_batch=0)
    with pytest.raises(ValueError, match="one batch"):
        _weights([1, 2], "token_mean", views=[0, 0, 0])
