"""Who labels whom: votes by hand for every method."""

from collections import Counter

import pytest
import torch

from megatron_corew.labelling import label_source, label_views, reward_matrix
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
        return [
            [float(text.removeprefix("\\boxed{").removesuffix("}") == truth) for text in texts]
            for texts, truth in pairs
        ]


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
    labels = label_views(RawJudge(), method, [QUESTION], groups, taught)
    assert labels.keys() == set(method.views)
    for view, (label, rewards) in EXPECTED[name].items():
        assert labels[view].labels == (label,)
        assert labels[view].rewards == (rewards,)


def test_the_truth_is_a_metric_and_never_a_reward_of_a_label_free_method():
    method = METHODS["co_rewarding_iii"]
    groups = [group(view, *POLICY[view]) for view in method.views]
    taught = [group(view, *TEACHER[view]) for view in method.views]
    labels = label_views(RawJudge(), method, [QUESTION], groups, taught)
    assert labels["rephrased"].correct == ((0.0, 0.0, 1.0),)
    assert labels["rephrased"].label_correct == (1.0,)
    assert labels["original"].label_correct == (0.0,)
    unknown = Question(id="q", prompts={}, answer=None)
    blind = label_views(RawJudge(), method, [unknown], groups, taught)
    for view in method.views:
        assert blind[view].rewards == labels[view].rewards
        assert blind[view].correct is None


def test_only_crossed_methods_take_the_label_of_the_other_view():
    assert label_source(METHODS["co_rewarding_i"], "original") == "rephrased"
    assert label_source(METHODS["co_rewarding_iii"], "rephrased") == "original"
    assert label_source(METHODS["co_rewarding_ii"], "original") == "original"


def test_entropy_rewards_are_the_negative_mean_entropy():
    method = METHODS["entropy"]
    labels = label_views(RawJudge(), method, [QUESTION], [group("original", "4", "5")], [])
    mask = torch.tensor([[True, True], [True, False]])
    scores = TokenScores(
        logprobs_RT=torch.zeros(2, 2),
        entropy_RT=torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
        self_certainty_RT=torch.zeros(2, 2),
    )
    rewards_PG, kept_P = reward_matrix(labels, method, scores, mask, unlabelled="drop")
    assert rewards_PG.tolist() == [[-1.5, -3.0]]
    assert kept_P.tolist() == [True]
