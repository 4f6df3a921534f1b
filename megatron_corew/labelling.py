"""From the answers of a step to labels and rewards, by the method's row in the table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from megatron_corew.algo.scores import response_means
from megatron_corew.algo.shaping import Shaping, groups_with_signal, shaped_rewards
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

    def support(
        self, groups: Sequence[Sequence[str]], votes: Sequence[Vote]
    ) -> list[list[float]]: ...

    def same(self, answers: Sequence[str | None], others: Sequence[str | None]) -> list[float]: ...

    def are_right(
        self, answers: Sequence[str | None], truths: Sequence[str | None]
    ) -> list[float]: ...


def label_views(
    judge: Judge,
    method: Method,
    questions: Sequence[Question],
    groups: Sequence[RolloutGroup],
    teacher_groups: Sequence[RolloutGroup],
    *,
    soft_votes: bool,
) -> dict[View, ViewLabels]:
    """Vote, label and reward every trained view.

    Args:
        judge: decides which answers are the same.
        method: who labels, and whether the label comes from the other view.
        questions: of this step.
        groups: the policy's rollouts, ordered by (view, question).
        teacher_groups: the teacher's, in the same order; empty when the teacher does not label.
        soft_votes: reward the share of the votes behind an answer, not the label alone.

    Source: Co-rewarding, arXiv:2508.00410, eq. 6 to 8 (I), 9 to 11 (II); crossed teacher for III.
    """
    asked, answered = _by_view(groups), _by_view(teacher_groups)
    own = {view: judge.votes([g.texts for g in part]) for view, part in asked.items()}
    taught = {view: judge.votes([g.texts for g in part]) for view, part in answered.items()}
    return {
        view: _label_view(judge, method, questions, part, own, taught, view, soft_votes)
        for view, part in asked.items()
    }


def join_labels(parts: Sequence[ViewLabels]) -> ViewLabels:
    """One view's labels over several rounds of questions, in their order.

    Args:
        parts: at least one. What one of them does not know (its truths), the whole does not.
    """
    columns: dict[str, Any] = {}
    for field in fields(ViewLabels):
        values = [getattr(part, field.name) for part in parts]
        known = all(value is not None for value in values)
        columns[field.name] = tuple(chain.from_iterable(values)) if known else None
    return ViewLabels(**columns)


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
    soft_votes: bool,
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
        votes = (taught if method.labeller == "teacher" else own)[label_source(method, view)]
        labels = [vote.label for vote in votes]
        rewards = judge.agreement(texts, labels)
        if soft_votes:
            rewards = _soft(judge.support(texts, votes), labels)
    elected = [vote.label for vote in own[view]]
    teacher_elected = [vote.label for vote in taught[view]] if view in taught else None
    return ViewLabels(
        votes=tuple(own[view]),
        teacher_votes=tuple(taught[view]) if view in taught else None,
        labels=None if labels is None else tuple(labels),
        rewards=None if rewards is None else _frozen(rewards),
        correct=None if correct is None else _frozen(correct),
        label_correct=tuple(judge.are_right(labels, truths)) if known and labels else None,
        vote_correct=tuple(judge.are_right(elected, truths)) if known else None,
        teacher_agrees=tuple(judge.same(elected, teacher_elected)) if teacher_elected else None,
    )


def _soft(shares: list[list[float]], labels: Sequence[str | None]) -> list[list[float]]:
    """Shares as rewards; none in a group without a label."""
    return [
        row if label is not None else [0.0] * len(row)
        for row, label in zip(shares, labels, strict=True)
    ]


def _frozen(rows: Iterable[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in rows)


def reward_matrix(
    labels: Mapping[View, ViewLabels],
    method: Method,
    scores: TokenScores | None,
    mask_RT: Tensor,
    *,
    unlabelled: str,
    shaping: Shaping,
) -> tuple[Tensor, Tensor]:
    """The rewards of a step and which groups are trained.

    Args:
        labels: of every trained view.
        method: label rewards, or a score of the policy's own forward pass.
        scores: that forward pass; needed for self_certainty and entropy only.
        mask_RT: [R, T] bool, the response tokens.
        unlabelled: ``drop`` takes groups without a label out of the loss; ``keep`` leaves them
            in with equal rewards, hence advantage 0 (but for what shaping adds).
        shaping: what is added to the rewards.

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
    rewards_PG = rewards_R.view(groups, -1)
    answered = [a is not None for view in labels.values() for v in view.votes for a in v.answers]
    rewards_PG = shaped_rewards(
        rewards_PG,
        answered_PG=torch.tensor(answered).view(rewards_PG.shape),
        lengths_PG=mask_RT.sum(dim=1).view(rewards_PG.shape),
        shaping=shaping,
    )
    if shaping.drop_equal_rewards:
        kept_P = kept_P & groups_with_signal(rewards_PG)
    return rewards_PG, kept_P
