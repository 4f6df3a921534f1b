"""Shaped rewards by hand: the format bonus and DAPO's overlong punishment."""

import re

import pytest
import torch

from megatron_corew.algo.shaping import (
    Shaping,
    groups_with_signal,
    shaped_rewards,
    soft_overlong_punishment,
)
from megatron_corew.config import Config

OFF = {
    "format_reward": 0.0,
    "overlong_buffer_tokens": None,
    "overlong_penalty": 1.0,
    "drop_equal_rewards": False,
}
REWARDS = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
ANSWERED = torch.tensor([[True, True], [False, True]])
LENGTHS = torch.tensor([[5, 8], [9, 10]])


def _shaped(**change):
    shaping = Shaping(max_response_tokens=10, **{**OFF, **change})
    return shaped_rewards(REWARDS, answered_PG=ANSWERED, lengths_PG=LENGTHS, shaping=shaping)


def test_without_shaping_the_rewards_are_those_given():
    assert _shaped() is REWARDS


def test_stating_an_answer_earns_the_format_reward():
    assert _shaped(format_reward=0.25).tolist() == [[1.25, 0.25], [0.0, 0.25]]


def test_the_penalty_grows_over_the_buffer():
    # Buffer 4 of 10: 6 tokens are free, 8 cost a half, 9 three quarters, 10 all.
    assert _shaped(overlong_buffer_tokens=4).tolist() == [[1.0, -0.5], [-0.75, -1.0]]
    assert _shaped(overlong_buffer_tokens=4, overlong_penalty=2.0).tolist() == [
        [1.0, -1.0],
        [-1.5, -2.0],
    ]


def test_dapo_s_own_numbers():
    lengths = torch.tensor([16_384, 18_432, 20_480, 30_000])
    punishment = soft_overlong_punishment(lengths, max_tokens=20_480, buffer_tokens=4_096)
    assert punishment.tolist() == [0.0, -0.5, -1.0, -1.0]


def test_groups_of_equal_rewards_have_no_signal():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.4]])
    assert groups_with_signal(rewards).tolist() == [False, False, True, True]


@pytest.mark.parametrize("buffer", [0, 11])
def test_a_buffer_that_does_not_fit_is_refused_with_the_knob(buffer):
    with pytest.raises(ValueError, match=r"shaping\.overlong_buffer_tokens"):
        soft_overlong_punishment(LENGTHS, max_tokens=10, buffer_tokens=buffer)


def _config(**sections):
    base = {
        "method": "majority_vote",
        "run": {"name": "test", "steps": 1},
        "model": {"path": "lab"},
        "data": {"train": "lab"},
        "rollout": {"max_response_tokens": 10},
    }
    return Config.model_validate(base | sections)


def test_all_shaping_is_off_by_default():
    assert _config().shaping.model_dump() == {
        "soft_votes": False,
        "format_reward": 0.0,
        "overlong_buffer_tokens": None,
        "overlong_penalty": 1.0,
        "drop_equal_rewards": False,
        "refill_rounds": 0,
    }


@pytest.mark.parametrize(
    ("sections", "knob"),
    [
        ({"method": "ground_truth", "shaping": {"soft_votes": True}}, "shaping.soft_votes"),
        ({"method": "entropy", "shaping": {"soft_votes": True}}, "shaping.soft_votes"),
        ({"shaping": {"overlong_buffer_tokens": 11}}, "shaping.overlong_buffer_tokens"),
        ({"answers": {"extractors": []}}, "answers.extractors"),
        (
            {"answers": {"equivalence": "raw", "extractors": ["boxed", "hashes"]}},
            "answers.extractors",
        ),
    ],
)
def test_settings_that_cannot_work_together_are_refused_with_the_knob(sections, knob):
    with pytest.raises(ValueError, match=re.escape(knob)):
        _config(**sections)
