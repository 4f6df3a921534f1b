"""Metrics of a step by hand."""

import pytest

from megatron_corew.observe.step_metrics import mean_metrics, step_metrics
from megatron_corew.types import Prompt, Rollout, RolloutGroup, ViewLabels, Vote


def group(*lengths: int) -> RolloutGroup:
    prompt = Prompt(question_id="q", view="original", text="", token_ids=(1,))
    return RolloutGroup(
        prompt=prompt,
        rollouts=tuple(
            Rollout(
                token_ids=(1,) * length,
                logprobs=(0.0,) * length,
                text="",
                finish_reason="length" if length > 3 else "stop",
                weights_version=0,
            )
            for length in lengths
        ),
    )


def vote(*answers: str | None, label: str | None, share: float, tie: bool = False) -> Vote:
    clusters = tuple(None if answer is None else int(answer) for answer in answers)
    return Vote(answers=answers, clusters=clusters, label=label, share=share, tie=tie)


def test_a_step_in_numbers():
    labels = ViewLabels(
        votes=(
            vote("4", "4", None, label="4", share=2 / 3),
            vote("5", "4", None, label=None, share=1 / 3, tie=True),
        ),
        teacher_votes=(
            vote("4", "4", "4", label="4", share=1.0),
            vote("5", "5", "4", label="5", share=2 / 3),
        ),
        labels=("4", "5"),
        rewards=((1.0, 1.0, 0.0), (1.0, 0.0, 0.0)),
        correct=((1.0, 1.0, 0.0), (0.0, 1.0, 0.0)),
        label_correct=(1.0, 0.0),
    )
    metrics = step_metrics(
        [group(1, 2, 3), group(4, 2, 6)], {"original": labels}, labels.rewards or ()
    )
    expected = {
        "reward/mean": 0.5,
        "reward/zero_std_share": 0.0,
        "reward/accuracy": 0.5,
        "response/length_mean": 3.0,
        "response/length_max": 6.0,
        "response/truncated_share": 1 / 3,
        "label/vote_share": 0.5,
        "label/teacher_vote_share": 5 / 6,
        "label/tie_share": 0.5,
        "label/unlabelled_share": 0.0,
        "label/accuracy": 0.5,
        # On the second question the policy's vote has no label: no agreement.
        "label/teacher_policy_agreement": 0.5,
        "answers/none_share": 1 / 3,
        "answers/distinct_share": 2 / 6,
        "answers/top_share": 3 / 6,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_the_gap_is_that_of_the_first_update_and_the_rest_are_means():
    first = {"gap/mean": 1e-7, "gap/max": 1e-6, "policy/loss": 1.0}
    second = {"gap/mean": 1e-2, "gap/max": 1e-1, "policy/loss": 3.0}
    assert mean_metrics([first, second]) == {
        "gap/mean": 1e-7,
        "gap/max": 1e-6,
        "policy/loss": 2.0,
    }
