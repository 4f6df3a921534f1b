"""Who labels whom: votes by hand for every method."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from megatron_corew.algo.shaping import Shaping
from megatron_corew.labelling import join_labels, label_source, label_views, reward_matrix
from megatron_corew.methods import METHODS
from megatron_corew.types import Prompt, Question, Rollout, RolloutGroup, TokenScores, Vote


class RawJudge:
    """Votes on the bare texts; no ties occur in these tests."""

    def votes(self, groups):
        return [self._vote(texts) for texts in groups]

    def _vote(self, texts):
        label, count = Counter(texts).most_common(1)[0]
        return Vote(
            answers=tuple(texts),
            clusters=tuple(sorted(set(texts)).index(text) for text in texts),
            label=label,
            share=count / len(texts),
            tie=False,
        )

    def agreement(self, groups, labels):
        pairs = zip(groups, labels, strict=True)
        return [[float(text == label) for text in texts] for texts, label in pairs]

    def correctness(self, groups, truths):
        pairs = zip(groups, truths, strict=True)
        return [[float(text == truth) for text in texts] for texts, truth in pairs]

    def support(self, groups, votes):
        return [
            [vote.answers.count(text) / len(vote.answers) for text in texts]
            for texts, vote in zip(groups, votes, strict=True)
        ]

    def same(self, answers, others):
        return [float(a is not None and a == b) for a, b in zip(answers, others, strict=True)]

    are_right = same


def group(view: str, *texts: str) -> RolloutGroup:
    return RolloutGroup(
        prompt=Prompt(question_id="q", view=view, text="", token_ids=(1,)),
        rollouts=tuple(
            Rollout(
                token_ids=(1,), logprobs=(0.0,), text=text, finish_reason="stop", weights_version=0
            )
            for text in texts
        ),
    )


OFF = Shaping(
    format_reward=0.0,
    overlong_buffer_tokens=None,
    overlong_penalty=1.0,
    max_response_tokens=2,
    drop_equal_rewards=False,
)
QUESTION = Question(id="q", prompts={}, answer="6")
POLICY = {"original": ("4", "4", "5"), "rephrased": ("5", "5", "6")}
TEACHER = {"original": ("6", "6", "4"), "rephrased": ("4", "4", "5")}

# method -> view -> (label, rewards): majority of the policy is 4 on x and 5 on x', of the
# teacher 6 on x and 4 on x'.
EXPECTED = {
    "majority_vote": {"original": ("4", (1.0, 1.0, 0.0))},
    "majority_vote_rephrased": {"rephrased": ("5", (1.0, 1.0, 0.0))},
    "co_rewarding_i": {
        "original": ("5", (0.0, 0.0, 1.0)),
        "rephrased": ("4", (0.0, 0.0, 0.0)),
    },
    "co_rewarding_ii": {"original": ("6", (0.0, 0.0, 0.0))},
    "frozen_teacher": {"original": ("6", (0.0, 0.0, 0.0))},
    "co_rewarding_iii": {
        "original": ("4", (1.0, 1.0, 0.0)),
        "rephrased": ("6", (0.0, 0.0, 1.0)),
    },
    "ground_truth": {"original": ("6", (0.0, 0.0, 0.0))},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_labels_and_rewards_are_those_of_the_method(name):
    method = METHODS[name]
    groups = [group(view, *POLICY[view]) for view in method.views]
    taught = [group(view, *TEACHER[view]) for view in method.views]
    taught = taught if method.labeller == "teacher" else []
    labels = label_views(RawJudge(), method, [QUESTION], groups, taught, soft_votes=False)
    assert labels.keys() == set(method.views)
    for view, (label, rewards) in EXPECTED[name].items():
        assert labels[view].labels == (label,)
        assert labels[view].rewards == (rewards,)


def test_the_truth_is_a_metric_and_never_a_reward_of_a_label_free_method():
    method = METHODS["co_rewarding_iii"]
    groups = [group(view, *POLICY[view]) for view in method.views]
    taught = [group(view, *TEACHER[view]) for view in method.views]
    labels = label_views(RawJudge(), method, [QUESTION], groups, taught, soft_votes=False)
    assert labels["rephrased"].correct == ((0.0, 0.0, 1.0),)
    assert labels["rephrased"].label_correct == (1.0,)
    assert labels["original"].label_correct == (0.0,)
    unknown = Question(id="q", prompts={}, answer=None)
    blind = label_views(RawJudge(), method, [unknown], groups, taught, soft_votes=False)
    for view in method.views:
        assert blind[view].rewards == labels[view].rewards
        assert blind[view].correct is None


def test_only_crossed_methods_take_the_label_of_the_other_view():
    assert label_source(METHODS["co_rewarding_i"], "original") == "rephrased"
    assert label_source(METHODS["co_rewarding_iii"], "rephrased") == "original"
    assert label_source(METHODS["co_rewarding_ii"], "original") == "original"


def test_entropy_rewards_are_the_negative_mean_entropy():
    method = METHODS["entropy"]
    labels = label_views(
        RawJudge(), method, [QUESTION], [group("original", "4", "5")], [], soft_votes=False
    )
    mask = torch.tensor([[True, True], [True, False]])
    scores = TokenScores(
        logprobs_RT=torch.zeros(2, 2),
        entropy_RT=torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
        self_certainty_RT=torch.zeros(2, 2),
    )
    rewards_PG, kept_P = reward_matrix(labels, method, scores, mask, unlabelled="drop", shaping=OFF)
    assert rewards_PG.tolist() == [[-1.5, -3.0]]
    assert kept_P.tolist() == [True]


@pytest.mark.parametrize(
    ("name", "view", "rewards"),
    [
        # Votes 4, 4, 5 on x; 5, 5, 6 on x'; the teacher's 6, 6, 4 on x and 4, 4, 5 on x'.
        ("majority_vote", "original", (2 / 3, 2 / 3, 1 / 3)),
        ("co_rewarding_i", "original", (0.0, 0.0, 2 / 3)),
        ("co_rewarding_i", "rephrased", (1 / 3, 1 / 3, 0.0)),
        ("co_rewarding_ii", "original", (1 / 3, 1 / 3, 0.0)),
        ("co_rewarding_iii", "rephrased", (0.0, 0.0, 2 / 3)),
    ],
)
def test_soft_votes_reward_the_share_of_the_labelling_votes(name, view, rewards):
    method = METHODS[name]
    groups = [group(each, *POLICY[each]) for each in method.views]
    taught = [group(each, *TEACHER[each]) for each in method.views]
    taught = taught if method.labeller == "teacher" else []
    labels = label_views(RawJudge(), method, [QUESTION], groups, taught, soft_votes=True)
    assert labels[view].rewards == (rewards,)


def test_a_group_without_a_label_has_no_soft_reward_either():
    class Abstains(RawJudge):
        def votes(self, groups):
            return [replace(vote, label=None) for vote in super().votes(groups)]

    groups = [group("original", "4", "5")]
    (labels,) = label_views(
        Abstains(), METHODS["majority_vote"], [QUESTION], groups, [], soft_votes=True
    ).values()
    assert labels.rewards == ((0.0, 0.0),)


def test_the_votes_of_policy_and_teacher_are_compared_with_each_other_and_the_truth():
    method = METHODS["co_rewarding_ii"]
    groups = [group("original", "6", "6", "4"), group("original", "4", "4", "5")]
    taught = [group("original", "6", "6", "6"), group("original", "6", "6", "4")]
    (labels,) = label_views(
        RawJudge(), method, [QUESTION, QUESTION], groups, taught, soft_votes=False
    ).values()
    assert labels.teacher_agrees == (1.0, 0.0)
    assert labels.vote_correct == (1.0, 0.0)
    assert labels.label_correct == (1.0, 1.0)


def test_shaping_reaches_the_rewards_with_answers_and_lengths():
    method = METHODS["majority_vote"]
    labels = label_views(
        RawJudge(), method, [QUESTION], [group("original", "4", "4")], [], soft_votes=False
    )
    vote = replace(labels["original"].votes[0], answers=("4", None))
    labels = {"original": replace(labels["original"], votes=(vote,), rewards=((1.0, 0.0),))}
    shaping = replace(OFF, format_reward=0.5, overlong_buffer_tokens=2)
    mask = torch.tensor([[True, True], [True, False]])
    rewards_PG, _ = reward_matrix(labels, method, None, mask, unlabelled="drop", shaping=shaping)
    # Two tokens of two cost 1, one costs a half.
    assert rewards_PG.tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize(("drop", "kept"), [(False, [True, True]), (True, [False, True])])
def test_groups_of_equal_rewards_leave_the_loss_by_choice(drop, kept):
    method = METHODS["majority_vote"]
    groups = [group("original", "4", "4"), group("original", "4", "5")]
    questions = [QUESTION, QUESTION]
    labels = label_views(RawJudge(), method, questions, groups, [], soft_votes=False)
    shaping = replace(OFF, drop_equal_rewards=drop)
    mask = torch.ones(4, 2, dtype=torch.bool)
    _, kept_P = reward_matrix(labels, method, None, mask, unlabelled="drop", shaping=shaping)
    assert kept_P.tolist() == kept


@pytest.mark.parametrize("name", METHODS)
def test_labels_of_two_rounds_joined_are_those_of_both_asked_at_once(name):
    method = METHODS[name]
    teaches = method.labeller == "teacher"
    others = ("6", "6", "7"), ("6", "7", "7")
    rounds = [(POLICY, TEACHER), (dict(zip(POLICY, others, strict=True)), POLICY)]

    def label(questions, rounds):
        groups, taught = (
            [group(view, *answers[side][view]) for view in method.views for answers in rounds]
            for side in (0, 1)
        )
        return label_views(
            RawJudge(), method, questions, groups, taught if teaches else [], soft_votes=False
        )

    parts = [label([QUESTION], [one]) for one in rounds]
    whole = label([QUESTION, QUESTION], rounds)
    for view in method.views:
        assert join_labels([part[view] for part in parts]) == whole[view]


def test_joined_labels_know_the_truth_only_where_every_round_does():
    method, groups = METHODS["majority_vote"], [group("original", "6", "6", "4")]
    known, unknown = (
        label_views(
            RawJudge(), method, [replace(QUESTION, answer=truth)], groups, [], soft_votes=False
        )["original"]
        for truth in ("6", None)
    )
    joined = join_labels([known, unknown])
    assert joined.labels == ("6", "6")
    assert (joined.correct, joined.label_correct, joined.vote_correct) == (None, None, None)
