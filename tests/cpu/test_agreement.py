"""Agreement of answers by hand: inside a group, and over the two views of a question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.config import AnswersConfig
from megatron_corew.evaluate.agreement import agreement_across, cross_view_agreement
from megatron_corew.judges import judge_of
from megatron_corew.observe.step_metrics import agreement_within
from megatron_corew.types import Prompt, Question, Rollout, RolloutGroup

CLUSTERS = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("clusters", "chance"),
    [
        ((0, 0, 0, 0), 1.0),
        ((0, 1, 2, 3), 0.0),
        # 3 of the 6 pairs of AAAB agree; 2 of those of AABB.
        ((0, 0, 0, 1), 0.5),
        ((0, 0, 1, 1), 1 / 3),
        ((None, None), 0.0),
        ((0, 0, None), 1 / 3),
    ],
)
def test_agreement_within_is_the_share_of_agreeing_pairs(clusters, chance):
    assert agreement_within(clusters) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("first", "second", "chance"),
    [
        ((0, 0), (0, 0), 1.0),
        ((0, 0), (1, 1), 0.0),
        ((0, 0, 0, 1), (0, 1), 0.5),
        ((0, 1, None, None), (0, None), 1 / 8),
        ((None, None), (None, None), 0.0),
    ],
)
def test_agreement_across_is_the_share_of_agreeing_pairs(first, second, chance):
    assert agreement_across(first, second) == pytest.approx(chance)


@given(CLUSTERS)
def test_agreement_within_is_the_mean_over_all_splits_of_one_against_the_rest(clusters):
    parts = [
        agreement_across([own], [*clusters[:at], *clusters[at + 1 :]])
        for at, own in enumerate(clusters)
    ]
    assert agreement_within(clusters) == pytest.approx(sum(parts) / len(parts))


@given(CLUSTERS, CLUSTERS)
def test_agreement_across_does_not_depend_on_the_order(first, second):
    assert agreement_across(first, second) == agreement_across(second[::-1], first[::-1])


class Answers:
    """A sampler that says what it is told to, and writes down what it was asked."""

    def __init__(self, answers: dict[tuple[str, str], list[str]]) -> None:
        self.answers, self.asked = answers, []

    def sample(self, prompts, *, samples, seed):
        self.asked += [(prompt.question_id, prompt.view) for prompt in prompts]
        return [self.group(prompt) for prompt in prompts]

    def group(self, prompt: Prompt) -> RolloutGroup:
        rollouts = tuple(
            Rollout(
                token_ids=(1,),
                logprobs=(0.0,),
                text=f"\\boxed{{{answer}}}",
                finish_reason="stop",
                weights_version=0,
            )
            for answer in self.answers[prompt.question_id, prompt.view]
        )
        return RolloutGroup(prompt=prompt, rollouts=rollouts)


def question(name: str, *views: str) -> Question:
    prompts = {view: Prompt(question_id=name, view=view, text="", token_ids=(1,)) for view in views}
    return Question(id=name, prompts=prompts, answer=None)


@pytest.fixture
def judge():
    with judge_of(AnswersConfig(verify_workers=1)) as judge:
        yield judge


def test_a_view_that_was_not_answered_is_asked_now(judge):
    sampler = Answers(
        {
            ("a", "original"): ["1/2", "3"],
            ("a", "rephrased"): ["0.5", "0.5"],  # one of two agrees
            ("b", "original"): ["7", "7"],
            ("b", "rephrased"): ["7", "7"],  # all agree
            ("c", "original"): ["9", "9"],  # has one view only
        }
    )
    questions = [
        question("a", "original", "rephrased"),
        question("b", "original", "rephrased"),
        question("c", "original"),
    ]
    groups = [sampler.group(q.prompts["original"]) for q in questions]
    found = cross_view_agreement(questions, groups, sampler, judge, samples=2, seed=0)
    assert found == {"agreement/across": pytest.approx(0.75)}
    assert sampler.asked == [("a", "rephrased"), ("b", "rephrased")]


def test_two_trained_views_need_no_sampling_and_one_view_has_no_measure(judge):
    sampler = Answers({("a", "original"): ["1", "2"], ("a", "rephrased"): ["1", "1"]})
    both = question("a", "original", "rephrased")
    groups = [sampler.group(prompt) for prompt in both.prompts.values()]
    found = cross_view_agreement([both], groups, sampler, judge, samples=2, seed=0)
    assert found == {"agreement/across": 0.5}
    one = question("a", "original")
    assert cross_view_agreement([one], groups[:1], sampler, judge, samples=2, seed=0) == {}
    assert sampler.asked == []
