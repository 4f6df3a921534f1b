"""Agreement of the policy's answers over the two views of a question, without any label."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Protocol

from megatron_corew.evaluate.accuracy import Sampler
from megatron_corew.ranks import on_driver
from megatron_corew.types import VIEWS, Question, RolloutGroup, View, Vote


class Judge(Protocol):
    """Says which answers are the same; see ``answers.judge``."""

    def votes(self, groups: Sequence[Sequence[str]]) -> list[Vote]: ...


def cross_view_agreement(
    questions: Sequence[Question],
    groups: Sequence[RolloutGroup],
    sampler: Sampler,
    judge: Judge,
    *,
    samples: int,
    seed: int,
) -> dict[str, float]:
    """How often answers to the two views of one question agree.

    Collective: every rank calls. A view that was not answered in this step is asked now, of the
    questions that have it; where the step trained both views nothing is sampled.

    Args:
        questions: of the step, those to look at.
        groups: the step's rollouts of all its questions, ordered by (view, question).
        sampler: holds the policy, at the temperature of training.
        judge: decides which answers are the same.
        samples: responses per prompt that is asked now.
        seed: of that sampling call.

    Returns:
        ``agreement/across``: chance that an answer to one view equals an answer to the other, as
        a mean over questions; the same on every rank. Empty when no question has both views.
    """
    paired = [question for question in questions if all(view in question.prompts for view in VIEWS)]
    texts: dict[tuple[str, View], list[str]] = {
        (group.prompt.question_id, group.prompt.view): group.texts for group in groups
    }
    missing = [q.prompts[view] for view in VIEWS for q in paired if (q.id, view) not in texts]
    if missing:
        asked = sampler.sample(missing, samples=samples, seed=seed)
        texts |= {(group.prompt.question_id, group.prompt.view): group.texts for group in asked}
    if not paired:
        return {}
    return on_driver(lambda: {"agreement/across": _agreement(judge, [q.id for q in paired], texts)})


def _agreement(
    judge: Judge, ids: Sequence[str], texts: Mapping[tuple[str, View], list[str]]
) -> float:
    first, second = VIEWS
    pairs = [(texts[name, first], texts[name, second]) for name in ids]
    # Both views stand in one group, so that equal answers get one number.
    votes = judge.votes([[*ours, *theirs] for ours, theirs in pairs])
    return fmean(
        agreement_across(vote.clusters[: len(ours)], vote.clusters[len(ours) :])
        for (ours, _), vote in zip(pairs, votes, strict=True)
    )


def agreement_across(first: Sequence[int | None], second: Sequence[int | None]) -> float:
    """Chance that a response of one group agrees with one of another.

    Args:
        first: vote group of each response; None, no answer, agrees with nothing.
        second: the same of the other group, with numbers that mean the same.

    Returns:
        In [0, 1]. Two groups that draw from one distribution agree as often as two samples of
        either do with each other (``agreement/within``).
    """
    ours, theirs = Counter(first), Counter(second)
    pairs = sum(count * theirs[group] for group, count in ours.items() if group is not None)
    return pairs / (len(first) * len(second))
