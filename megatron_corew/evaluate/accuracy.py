"""Held-out accuracy of the policy: sampled answers against the ground truth."""

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from megatron_corew.types import VIEWS, Prompt, Question, RolloutGroup


class Sampler(Protocol):
    """An inference engine holding the policy; see ``rollout.sampler``."""

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, seed: int
    ) -> list[RolloutGroup]: ...


class Judge(Protocol):
    """Compares answers with the truth; see ``answers.judge``."""

    def correctness(
        self, groups: Sequence[Sequence[str]], truths: Sequence[str | None]
    ) -> list[list[float]]: ...


def accuracy(
    questions: Sequence[Question], sampler: Sampler, judge: Judge, *, samples: int, seed: int
) -> dict[str, float]:
    """Mean share of right answers (pass@1 over ``samples`` responses) per view.

    Args:
        questions: all with a ground truth; a view is evaluated when every question has it.
        sampler: at the evaluation's temperature and limits.
        judge: decides what is right.
        samples: responses per prompt.
        seed: of this sampling call; the same seed at every step makes steps comparable.

    Returns:
        ``eval/accuracy_<view>`` and ``eval/truncated_share``.
    """
    views = [view for view in VIEWS if all(view in q.prompts for q in questions)]
    prompts = [question.prompts[view] for view in views for question in questions]
    groups = sampler.sample(prompts, samples=samples, seed=seed)
    truths = [question.answer for question in questions]
    metrics: dict[str, float] = {}
    for index, view in enumerate(views):
        part = groups[index * len(questions) : (index + 1) * len(questions)]
        right = judge.correctness([group.texts for group in part], truths)
        metrics[f"eval/accuracy_{view}"] = fmean(share for row in right for share in row)
    metrics["eval/truncated_share"] = fmean(
        rollout.finish_reason == "length" for group in groups for rollout in group.rollouts
    )
    return metrics
