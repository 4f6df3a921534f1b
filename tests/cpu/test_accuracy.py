"""Held-out accuracy by hand."""

import pytest

from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.evaluate.accuracy import accuracy
from megatron_corew.types import Prompt, Question, Rollout, RolloutGroup


class Scripted:
    """Answers every prompt with given texts."""

    def __init__(self, texts: dict[tuple[str, str], tuple[str, ...]]) -> None:
        self.texts = texts

    def sample(self, prompts, *, samples, seed):
        return [
            RolloutGroup(
                prompt=prompt,
                rollouts=tuple(
                    Rollout(
                        token_ids=(1,),
                        logprobs=(0.0,),
                        text=text,
                        finish_reason="stop" if text else "length",
                        weights_version=0,
                    )
                    for text in self.texts[prompt.question_id, prompt.view]
                ),
            )
            for prompt in prompts
        ]


def question(name: str, answer: str, *views: str) -> Question:
    prompts = {view: Prompt(question_id=name, view=view, text="", token_ids=(1,)) for view in views}
    return Question(id=name, prompts=prompts, answer=answer)


def test_accuracy_is_the_mean_share_of_right_answers_per_view():
    questions = [
        question("a", "6", "original", "rephrased"),
        question("b", "7", "original"),  # no second view: only the first is evaluated
    ]
    sampler = Scripted(
        {
            ("a", "original"): (r"\boxed{6}", r"\boxed{5}"),
            ("b", "original"): (r"\boxed{7}", r"\boxed{7.0}"),
            ("a", "rephrased"): ("", r"\boxed{6}"),
        }
    )
    with AnswerJudge(
        equivalence="math",
        tie="abstain",
        min_share=0,
        verify_timeout_s=5,
        verify_workers=1,
        verify_memory_mb=2048,
        extractors=("boxed",),
    ) as judge:
        metrics = accuracy(questions, sampler, judge, samples=2, seed=0)
    # (1 + 0 + 1 + 1) / 4 and (0 + 1) / 2; one of six responses is cut.
    assert metrics["eval/accuracy_original"] == pytest.approx(0.75)
    assert metrics["eval/accuracy_rephrased"] == pytest.approx(0.5)
    assert metrics["eval/truncated_share"] == pytest.approx(1 / 6)
