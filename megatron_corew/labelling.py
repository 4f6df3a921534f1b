"""From the answers of a step to labels and rewards, by the method's row in the table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from megatron_corew.algo.scores import response_means
from megatron_corew.methods import Method
from megatron_corew.types import (
    Question,
    RolloutGroup,
    TokenScores,
    View,
    ViewLabels,
    Vote,
)


class Judge(Protocol):
    """What labelling needs of ``answers.judge.AnswerJudge``."""

    def votes(self, groups: Sequence[Sequence[str]]) -> list[Vote]: ...

    def agreement(
        self, groups: Sequence[Sequence[str]], labels: Sequence[str | None]
    ) -> list[list[float]]: ...

    def correctness(
        self, groups: Sequence[Sequence[str]], truths: Sequence[str | None]
    ) -> list[list[float]]: ...


def label_views(
    judge: Judge,
    method: Method,
    questions: Sequence[Question],
    groups: Sequence[RolloutGroup],
    teacher_groups: Sequence[RolloutGroup],
) -> dict[View, ViewLabels]:
    """Vote, label and reward every trained view.

    Args:
        judge: decides which answers are the same.
        method: who labels, and whether the label comes from the other view.
        questions: of this step.
        groups: the policy's rollouts, ordered by (view, question).
        teacher_groups: the teacher's, in the same order; empty when the teacher does not label.

    Source: Co-rewarding, arXiv:2508.00410, eq. 6 to 8 (I), 9 to 11 (II); crossed teacher for III.
    """
    asked, answered = _by_view(groups), _by_view(teacher_groups)
    own = {view: judge.votes([g.texts for g in part]) for view, part in asked.items()}
    taught = {view: judge.votes([g.texts for g in part]) for view, part in answered.items()}
    return {
        view: _label_view(judge, method, questions, part, own, taught, view)
        for view, part in asked.items()
    }


def _by_view(groups: Sequence[RolloutGroup]) -> dict[View, list[RolloutGroup]]:
    views: dict[View, list[RolloutGroup]] = {}
    for group in groups:
        views.setdefault(group.prompt.view, []).append(group)
    return views


def label_source(method: Method, view: View) -> View:
    """The view whose answers label ``view``."""
    if not method.crossed:
        return view
    return "rephrased" if view == "original" else "original"


def _label_view(
    judge: Judge,
    method: Method,
    questions: Sequence[Question],
    groups: Sequence[RolloutGroup],
    own: Mapping[View, list[Vote]],
    taught: Mapping[View, list[Vote]],
    view: View,
) -> ViewLabels:
    texts = [group.texts for group in groups]
    truths = [question.answer for question in questions]
    known = all(truth is not None for truth in truths)
    correct = judge.correctness(texts, truths) if known else None
    labels: list[str | None] | None = None
    rewards: list[list[float]] | None = None
    if method.labeller == "ground_truth":
        labels, rewards = truths, correct or judge.correctness(texts, truths)
    elif method.needs_labels:
        votes = taught if method.labeller == "teacher" else own
        labels = [vote.label for vote in votes[label_source(method, view)]]
        rewards = judge.agreement(texts, labels)
    label_correct = None
    if known and labels is not None:
        # In a box, a label is read like a response.
        boxed = [["" if label is None else f"\\boxed{{{label}}}"] for label in labels]
        label_correct = tuple(row[0] for row in judge.correctness(boxed, truths))
    return ViewLabels(
        votes=tuple(own[view]),
        teacher_votes=tuple(taught[view]) if view in taught else None,
        labels=None if labels is None else tuple(labels),
        rewards=None if rewards is None else _frozen(rewards),
        correct=None if correct is None else _frozen(correct),
        label_correct=label_correct,
    )


def _frozen(rows: Iterable[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in rows)


def reward_matrix(
    labels: Mapping[View, ViewLabels],
    method: Method,
    scores: TokenScores | None,
    mask_RT: Tensor,
    *,
    unlabelled: str,
) -> tuple[Tensor, Tensor]:
    """The rewards of a step and which groups are trained.

    Args:
        labels: of every trained view.
        method: label rewards, or a score of the policy's own forward pass.
        scores: that forward pass; needed for self_certainty and entropy only.
        mask_RT: [R, T] bool, the response tokens.
        unlabelled: ``drop`` takes groups without a label out of the loss; ``keep`` leaves them
            in with equal rewards, hence advantage 0.

    Returns:
        rewards_PG: [P, G] float32, P prompts over all views.
        kept_P: [P] bool.

    Source: self-certainty, arXiv:2505.19590; entropy (RENT), arXiv:2505.22660.
    """
    groups = sum(len(view.votes) for view in labels.values())
    if scores is not None and method.labeller == "self_certainty":
        rewards_R = response_means(scores.self_certainty_RT, mask_RT)
    elif scores is not None and method.labeller == "entropy":
        rewards_R = -response_means(scores.entropy_RT, mask_RT)
    else:
        rows = [row for view in labels.values() for row in view.rewards or ()]
        rewards_R = torch.tensor(rows, dtype=torch.float32).flatten()
    kept_P = torch.ones(groups, dtype=torch.bool)
    if method.needs_labels and unlabelled == "drop":
        kept_P = torch.tensor(
            [label is not None for view in labels.values() for label in view.labels or ()]
        )
    return rewards_R.view(groups, -1), kept_P
