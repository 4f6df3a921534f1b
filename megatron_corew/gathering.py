"""Gathers the answers of a step until enough groups carry signal.

Dimension key:
    P: prompts over all trained views    G: samples per prompt
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_corew.algo.shaping import Shaping
from megatron_corew.config import Config
from megatron_corew.data.batching import collate
from megatron_corew.labelling import join_labels, reward_matrix
from megatron_corew.parts import Label, Observer, Policy, Questions, Sampler, Teacher
from megatron_corew.seeds import call_seed
from megatron_corew.types import Gathered, Prompt, Question, RolloutGroup, View, ViewLabels


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """What one round of questions gave, ordered by (view, question)."""

    asked: Sequence[Question]
    groups: list[RolloutGroup]
    taught: list[RolloutGroup]
    labels: dict[View, ViewLabels]
    rewards_PG: Tensor
    kept_P: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Gatherer:
    """Asks the questions of a step, and further ones where groups without signal are replaced.

    All rounds of a step are answered by the same weights: the policy before this step's update
    and the teacher after its own. Every rank decides alike how many rounds there are, because
    labels and scores are the same on all of them.
    """

    config: Config
    questions: Questions
    policy: Policy
    teacher: Teacher | None
    sampler: Sampler
    teacher_sampler: Sampler
    label: Label
    observer: Observer

    def gather(self, step: int, *, teacher_weight: float) -> Gathered:
        """Answers, labels and rewards of a step, and which groups are trained.

        A further round is asked while a view has fewer than ``rollout.prompts_per_step`` groups
        with signal, at most ``shaping.refill_rounds`` times or until the data have no other
        question.

        Args:
            step: training step; the sampler holds the policy's weights of version ``step - 1``.
            teacher_weight: share of the policy mixed into the teacher after the first answers.

        Source: dynamic sampling, DAPO, arXiv:2503.14476, eq. 11.
        """
        wanted = self.config.rollout.prompts_per_step
        rounds = [self._ask(step, 0, self.questions.batch_at(step), teacher_weight)]
        while len(rounds) <= self.config.shaping.refill_rounds and _is_short(rounds, wanted):
            further = self.questions.further_at(step, len(rounds))
            if not further:
                break
            rounds.append(self._ask(step, len(rounds), further, teacher_weight))
        return _join(rounds, wanted)

    def _ask(
        self, step: int, number: int, asked: Sequence[Question], teacher_weight: float
    ) -> _Round:
        """One round: the policy answers, the teacher follows once per step, answers are judged."""
        views = self.config.preset.views
        prompts = [question.prompts[view] for view in views for question in asked]
        groups = self._policy_answers(prompts, step, number)
        if number == 0 and self.teacher is not None:
            self.teacher.update(teacher_weight)
        taught = self._teacher_answers(prompts, step, number)
        with self.observer.phase("answers"):
            labels = self.label(asked, groups, taught)
        rewards_PG, kept_P = self._rewards(groups, labels)
        return _Round(
            asked=asked,
            groups=groups,
            taught=taught,
            labels=labels,
            rewards_PG=rewards_PG,
            kept_P=kept_P,
        )

    def _policy_answers(
        self, prompts: Sequence[Prompt], step: int, number: int
    ) -> list[RolloutGroup]:
        # The teacher's turn on a shared server ends the policy's.
        if self.sampler.version != step - 1:
            with self.observer.phase("push"):
                self.sampler.push(self.policy.hf_stream(), version=step - 1)
        with self.observer.phase("policy_rollout"):
            return self.sampler.sample(
                prompts,
                samples=self.config.rollout.samples_per_prompt,
                seed=self._seed(step, number, "policy"),
            )

    def _teacher_answers(
        self, prompts: Sequence[Prompt], step: int, number: int
    ) -> list[RolloutGroup]:
        """The labelling teacher's answers; none under the other methods."""
        if self.teacher is None or self.config.preset.labeller != "teacher":
            return []
        # Servers of its own still hold it in a further round.
        if self.teacher_sampler.version != self.teacher.updates:
            with self.teacher.installed(), self.observer.phase("teacher_push"):
                self.teacher_sampler.push(self.policy.hf_stream(), version=self.teacher.updates)
        with self.observer.phase("teacher_rollout"):
            return self.teacher_sampler.sample(
                prompts,
                samples=self.config.rollout.teacher_samples,
                seed=self._seed(step, number, "teacher"),
            )

    def _seed(self, step: int, number: int, role: str) -> int:
        purpose = role if number == 0 else f"{role}, round {number}"
        return call_seed(self.config.run.seed, step, purpose)

    def _rewards(
        self, groups: Sequence[RolloutGroup], labels: dict[View, ViewLabels]
    ) -> tuple[Tensor, Tensor]:
        """The rewards of a round and which groups may be trained, under the run's settings."""
        config, knobs = self.config, self.config.shaping
        batch, scores = collate(groups), None
        if not config.preset.needs_labels:
            with self.observer.phase("policy_forward"):
                scores = self.policy.score(batch)
        shaping = Shaping(
            format_reward=knobs.format_reward,
            overlong_buffer_tokens=knobs.overlong_buffer_tokens,
            overlong_penalty=knobs.overlong_penalty,
            max_response_tokens=config.rollout.max_response_tokens,
            drop_equal_rewards=knobs.drop_equal_rewards,
        )
        return reward_matrix(
            labels,
            config.preset,
            scores,
            batch.mask_RT,
            unlabelled=config.answers.unlabelled,
            shaping=shaping,
        )


def _is_short(rounds: Sequence[_Round], wanted: int) -> bool:
    """Whether a view has fewer groups with signal than wanted."""
    signals = dict.fromkeys(rounds[0].labels, 0)
    for part in rounds:
        for group, kept in zip(part.groups, part.kept_P.tolist(), strict=True):
            signals[group.prompt.view] += kept
    return min(signals.values()) < wanted


def _join(rounds: Sequence[_Round], wanted: int) -> Gathered:
    """All rounds as one, ordered by (view, round, question)."""
    views = list(rounds[0].labels)
    groups = [group for part in rounds for group in part.groups]
    taught = [group for part in rounds for group in part.taught]
    numbers = [number for number, part in enumerate(rounds) for _ in part.groups]
    order = sorted(range(len(groups)), key=lambda at: views.index(groups[at].prompt.view))
    groups = [groups[at] for at in order]
    kept_P = torch.cat([part.kept_P for part in rounds])[order]
    return Gathered(
        questions=tuple(question for part in rounds for question in part.asked),
        groups=tuple(groups),
        taught=tuple(taught[at] for at in order) if taught else (),
        labels={view: join_labels([part.labels[view] for part in rounds]) for view in views},
        rewards_PG=torch.cat([part.rewards_PG for part in rounds])[order],
        kept_P=kept_P,
        rounds=tuple(numbers[at] for at in order),
        trained=trained_places([g.prompt.view for g in groups], kept_P.tolist(), wanted=wanted),
    )


def trained_places(views: Sequence[View], kept: Sequence[bool], *, wanted: int) -> tuple[int, ...]:
    """Choose the groups of the step's batch.

    Of every view the first groups with signal; where they are too few, also the first ones
    without. Those stay outside the loss and its divisor, so the batch is smaller by them, but
    every view keeps its number of rows and an update its number of groups.

    Args:
        views: of the asked groups, in the order in which they were asked within each view.
        kept: of each group, whether it carries signal.
        wanted: groups per view; no view has fewer.

    Returns:
        Ascending places in ``views``, ``wanted`` of each.
    """
    chosen: list[int] = []
    for view in set(views):
        places = [place for place, own in enumerate(views) if own == view]
        chosen += sorted(places, key=lambda place: not kept[place])[:wanted]
    return tuple(sorted(chosen))
