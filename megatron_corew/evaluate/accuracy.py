"""Held-out accuracy of the policy: sampled answers against the ground truth."""

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from megatron_corew.ranks import on_driver
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

    Collective: every rank calls; rank 0 compares the answers.

    Args:
        questions: all with a ground truth; a view is evaluated on the questions that have it.
        sampler: at the evaluation's temperature and limits.
        judge: decides what is right.
        samples: responses per prompt.
        seed: of this sampling call; the same seed at every step makes steps comparable.

    Returns:
        ``eval/accuracy_<view>`` and ``eval/truncated_share``, the same on every rank.
    """
    asked = {view: [q for q in questions if view in q.prompts] for view in VIEWS}
    prompts = [question.prompts[view] for view in VIEWS for question in asked[view]]
    groups = sampler.sample(prompts, samples=samples, seed=seed)

    def compare() -> dict[str, float]:
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        metrics = {"eval/truncated_share": fmean(r.finish_reason == "length" for r in rollouts)}
        for view in (view for view in VIEWS if asked[view]):
            texts = [group.texts for group in groups if group.prompt.view == view]
            right = judge.correctness(texts, [question.answer for question in asked[view]])
            metrics[f"eval/accuracy_{view}"] = fmean(share for row in right for share in row)
        return metrics

    return on_driver(compare)
