"""Group advantages: values by hand, then the properties the loss relies on, then the errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.algo.advantages import group_advantages


def test_two_groups_match_the_hand_computed_values():
    rewards_PG = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    # Group 0: mean 0.25, sample std sqrt((0.75^2 + 3 * 0.25^2) / 3) = 0.5. Group 1: mirrored.
    # A standard deviation over the whole batch would give +-0.9354.
    expected_PG = torch.tensor([[1.5, -0.5, -0.5, -0.5], [0.5, 0.5, 0.5, -1.5]])
    advantages_PG = group_advantages(rewards_PG, divide_by_std=True)
    torch.testing.assert_close(advantages_PG, expected_PG, atol=1e-5, rtol=0)


def test_without_the_std_only_the_mean_is_removed():
    advantages_PG = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), divide_by_std=False)
    assert advantages_PG.tolist() == [[0.75, -0.25, -0.25, -0.25]]


@pytest.mark.parametrize("divide_by_std", [True, False], ids=["grpo", "dr_grpo"])
@pytest.mark.parametrize("group_size", [2, 4, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.35, -3.3e7, 1e20])
def test_a_group_of_equal_rewards_gets_exactly_zero(reward, dtype, group_size, divide_by_std):
    rewards_PG = torch.full((3, group_size), reward, dtype=dtype)
    advantages_PG = group_advantages(rewards_PG, divide_by_std=divide_by_std)
    assert torch.equal(advantages_PG, torch.zeros(3, group_size))


def test_groups_do_not_see_each_other():
    easy, hard = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    together_PG = group_advantages(torch.stack([easy, hard]), divide_by_std=True)
    alone_PG = group_advantages(easy[None], divide_by_std=True)
    assert torch.equal(together_PG[0], alone_PG[0])


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=16))
def test_every_group_sums_to_zero_and_is_finite(rewards):
    advantages_PG = group_advantages(torch.tensor([rewards]), divide_by_std=True)
    assert advantages_PG.isfinite().all()
    assert abs(advantages_PG.sum().item()) < 1e-4


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8), st.randoms())
def test_shuffling_a_group_shuffles_its_advantages(rewards, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    plain_PG = group_advantages(torch.tensor([rewards]), divide_by_std=True)
    shuffled_PG = group_advantages(torch.tensor([[rewards[i] for i in order]]), divide_by_std=True)
    torch.testing.assert_close(shuffled_PG[0], plain_PG[0][order])


@pytest.mark.parametrize("shape", [(4, 1), (4,), (2, 2, 2)])
def test_what_is_not_a_group_is_refused_with_the_knob_to_turn(shape):
    with pytest.raises(ValueError, match="samples_per_prompt"):
        group_advantages(torch.ones(shape), divide_by_std=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused_with_its_place(bad):
    rewards_PG = torch.tensor([[0.0, 1.0], [1.0, bad]])
    with pytest.raises(ValueError, match="prompt 1, sample 1"):
        group_advantages(rewards_PG, divide_by_std=False)
