"""Metrics of a step by hand."""

import math
from dataclasses import replace

import pytest
import torch

from megatron_corew.observe.step_metrics import (
    answer_spread,
    mean_metrics,
    refill_metrics,
    step_metrics,
)
from megatron_corew.types import Gathered, Prompt, Rollout, RolloutGroup, ViewLabels, Vote


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
        vote_correct=(1.0, 0.0),
        teacher_agrees=(1.0, 0.0),
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
        "label/teacher_policy_agreement": 0.5,
        # Of the policy's votes only the first has a label, and it is right.
        "label/policy_accuracy": 1.0,
        # Two answers, all the same; two different ones: (0 + ln 2) / 2.
        "label/vote_entropy": math.log(2) / 2,
        # All three agree; two against one.
        "label/teacher_vote_entropy": (math.log(3) - 2 / 3 * math.log(2)) / 2,
        "answers/none_share": 1 / 3,
        "answers/distinct_share": 2 / 6,
        "answers/top_share": 3 / 6,
        # The two answers of all, over the one of the first question and the two of the second.
        "answers/spread": 2 / 3,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_the_spread_of_answers_is_that_between_questions_and_learning_does_not_lower_it():
    def spread(*views):
        votes = [[vote(*answers, label=None, share=0.0) for answers in view] for view in views]
        return answer_spread(votes)

    # Three questions with answers of their own, first scattered, then sure.
    assert spread([("1", "2", "3"), ("4", "5"), ("6",)]) == 1.0
    assert spread([("1", "1", "1"), ("4", "4"), ("6",)]) == 1.0
    # All give 0; two of three do.
    assert spread([("0", "0", "0"), ("0", "0"), ("0",)]) == 1 / 3
    assert spread([("0", "0", None), ("0", "0"), ("6",)]) == 2 / 3
    # That both wordings of a question get its answer is no loss.
    assert spread([("1", "2"), ("3", "4")], [("1", "1"), ("3", "3")]) == 1.0
    assert math.isnan(spread([(None, None), (None,)]))


def test_groups_without_a_label_count_as_such_and_in_no_mean():
    labels = ViewLabels(
        votes=(
            vote("4", "5", label=None, share=0.5, tie=True),
            vote("4", "4", label="4", share=1.0),
        ),
        teacher_votes=None,
        labels=(None, "4"),
        rewards=((0.0, 0.0), (1.0, 1.0)),
        correct=None,
        label_correct=(0.0, 1.0),
    )
    groups = [group(1, 1), group(1, 1)]
    metrics = step_metrics(groups, {"original": labels}, labels.rewards or ())
    assert metrics["label/unlabelled_share"] == 0.5
    assert metrics["reward/mean"] == metrics["label/accuracy"] == 1.0
    assert metrics["reward/zero_std_share"] == 1.0
    nothing = replace(labels, labels=(None, None), label_correct=(0.0, 0.0))
    metrics = step_metrics(groups, {"original": nothing}, labels.rewards or ())
    assert (metrics["label/unlabelled_share"], metrics["reward/mean"]) == (1.0, 0.0)
    assert "label/accuracy" not in metrics


def test_the_gap_is_that_of_the_first_update_and_the_rest_are_means():
    first = {"gap/mean": 1e-7, "gap/max": 1e-6, "policy/loss": 1.0}
    second = {"gap/mean": 1e-2, "gap/max": 1e-1, "policy/loss": 3.0}
    assert mean_metrics([first, second]) == {
        "gap/mean": 1e-7,
        "gap/max": 1e-6,
        "policy/loss": 2.0,
    }


def test_refilling_is_counted_over_all_that_was_asked():
    # Two of five groups carry signal; of two trained ones only one does.
    gathered = Gathered(
        questions=(),
        groups=(group(1, 1),) * 5,
        taught=(),
        labels={},
        rewards_PG=torch.zeros(5, 2),
        kept_P=torch.tensor([False, True, False, True, False]),
        rounds=(0, 0, 1, 1, 2),
        trained=(0, 1),
    )
    assert refill_metrics(gathered) == pytest.approx(
        {
            "refill/rounds": 2.0,
            "refill/groups_asked": 5.0,
            "refill/signal_share": 0.4,
            "refill/groups_trained": 1.0,
        }
    )
