"""The whole algorithm, once, on one screen.

Dimension key:
    P: prompts of the step over all trained views    G: samples per prompt
    R: P x G rollouts, ordered by (view, question, sample)    T: longest response
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from megatron_corew.algo.advantages import group_advantages
from megatron_corew.algo.schedules import ema_weight, learning_rate
from megatron_corew.algo.updates import make_updates
from megatron_corew.config import Config
from megatron_corew.data.batching import collate
from megatron_corew.labelling import reward_matrix
from megatron_corew.seeds import call_seed
from megatron_corew.types import (
    Prompt,
    Question,
    RolloutBatch,
    RolloutGroup,
    TokenScores,
    TrainBatch,
    View,
    ViewLabels,
)

Stream = Iterator[tuple[str, Tensor | None]]


class Questions(Protocol):
    """The training data, a pure function of the step; see ``data.prompts``."""

    def batch_at(self, step: int) -> Sequence[Question]: ...


class Policy(Protocol):
    """The trained model; see ``mcore.policy``."""

    def score(self, batch: RolloutBatch) -> TokenScores: ...

    def step(self, batch: TrainBatch, *, learning_rate: float) -> dict[str, float]: ...

    def hf_stream(self) -> Stream: ...


class Teacher(Protocol):
    """A slow or still copy of the policy; see ``mcore.teacher``."""

    updates: int

    def update(self, weight: float) -> None: ...

    def installed(self) -> AbstractContextManager[None]: ...


class Sampler(Protocol):
    """An inference engine holding one set of weights; see ``rollout.sampler``."""

    def push(self, stream: Stream, version: int) -> None: ...

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, seed: int
    ) -> list[RolloutGroup]: ...


Label = Callable[
    [Sequence[Question], Sequence[RolloutGroup], Sequence[RolloutGroup]], dict[View, ViewLabels]
]
"""(questions, policy groups, teacher groups) -> votes, labels and rewards; see ``labelling``."""


class Observer(Protocol):
    """Clock, records, evaluation and checkpoints; see ``observer``."""

    def phase(self, name: str) -> AbstractContextManager[None]: ...

    def before_training(self) -> None: ...

    def after_step(
        self,
        step: int,
        *,
        updates: Sequence[Mapping[str, float]],
        teacher_weight: float,
        questions: Sequence[Question],
        groups: Sequence[RolloutGroup],
        taught: Sequence[RolloutGroup],
        labels: Mapping[View, ViewLabels],
        rewards_PG: Tensor,
    ) -> bool:
        """False: this attempt ends here."""
        ...


def train(
    config: Config,
    *,
    first_step: int,
    lr_scale: float,
    questions: Questions,
    policy: Policy,
    teacher: Teacher | None,
    sampler: Sampler,
    teacher_sampler: Sampler,
    label: Label,
    observer: Observer,
) -> None:
    """Train from ``first_step`` until the observer or the run ends; all ranks run the same loop.

    Source: Co-rewarding, arXiv:2508.00410, algorithms 1 and 2. The order within a step is the
    official code's: policy rollout, EMA with the weights before the update, teacher rollout.
    """
    method, loss, sizes = config.preset, config.loss, config.rollout
    # A fresh or resumed run never samples from weights that it did not push itself.
    sampler.push(policy.hf_stream(), version=first_step - 1)
    observer.before_training()
    for step in range(first_step, config.run.steps + 1):
        # 1. The policy answers the questions in all trained views.
        asked = questions.batch_at(step)
        prompts = [question.prompts[view] for view in method.views for question in asked]
        with observer.phase("policy_rollout"):
            seed = call_seed(config.run.seed, step, "policy")
            groups = sampler.sample(prompts, samples=sizes.samples_per_prompt, seed=seed)
        batch, ref_logprobs_RT, taught, weight = collate(groups), None, list[RolloutGroup](), 0.0

        # 2. The teacher follows the policy as it is before this step's update, then answers.
        if teacher is not None:
            weight = _teacher_weight(config, step)
            teacher.update(weight)
            with teacher.installed():
                if config.kl_coef:
                    with observer.phase("reference_forward"):
                        ref_logprobs_RT = policy.score(batch).logprobs_RT
                if method.labeller == "teacher":
                    with observer.phase("teacher_push"):
                        teacher_sampler.push(policy.hf_stream(), version=teacher.updates)
        if method.labeller == "teacher":
            with observer.phase("teacher_rollout"):
                seed, samples = call_seed(config.run.seed, step, "teacher"), sizes.teacher_samples
                taught = teacher_sampler.sample(prompts, samples=samples, seed=seed)

        # 3. Votes make labels, labels make rewards, rewards make advantages.
        with observer.phase("answers"):
            labels = label(asked, groups, taught)
        scores = None
        if loss.updates_per_step > 1 or not method.needs_labels:
            with observer.phase("policy_forward"):
                scores = policy.score(batch)
        rewards_PG, kept_P = reward_matrix(
            labels, method, scores, batch.mask_RT, unlabelled=config.answers.unlabelled
        )
        advantages_PG = group_advantages(rewards_PG, divide_by_std=loss.divide_by_std)

        # 4. The optimizer steps, and the sampler gets the new weights.
        old_logprobs_RT = None if scores is None else scores.logprobs_RT
        updates = _updates(config, batch, advantages_PG, kept_P, old_logprobs_RT, ref_logprobs_RT)
        with observer.phase("train"):
            rates = [lr_scale * _learning_rate(config, step, k) for k in range(len(updates))]
            done = [policy.step(u, learning_rate=r) for u, r in zip(updates, rates, strict=True)]
        with observer.phase("push"):
            sampler.push(policy.hf_stream(), version=step)

        # 5. Record, evaluate, watch for a collapse, save.
        if not observer.after_step(
            step,
            updates=done,
            teacher_weight=weight,
            questions=asked,
            groups=groups,
            taught=taught,
            labels=labels,
            rewards_PG=rewards_PG,
        ):
            return


def _updates(
    config: Config,
    batch: RolloutBatch,
    advantages_PG: Tensor,
    kept_P: Tensor,
    old_logprobs_RT: Tensor | None,
    ref_logprobs_RT: Tensor | None,
) -> list[TrainBatch]:
    """The optimizer updates of a step, under the run's loss settings."""
    return make_updates(
        batch,
        advantages_R=advantages_PG.flatten(),
        kept_R=kept_P.repeat_interleave(advantages_PG.shape[1]),
        old_logprobs_RT=old_logprobs_RT,
        ref_logprobs_RT=ref_logprobs_RT,
        num_views=len(config.preset.views),
        num_updates=config.loss.updates_per_step,
        aggregation=config.loss.aggregation,
        length_constant=config.rollout.max_response_tokens,
        official_micro_batch=config.loss.official_micro_batch,
    )


def _teacher_weight(config: Config, step: int) -> float:
    """The policy's share in this step's teacher update; 0 for a teacher that stands still."""
    method, knobs = config.preset, config.teacher
    if not (method.needs_teacher and method.teacher_moves) or (step - 1) % knobs.update_every:
        return 0.0
    return ema_weight(
        step,
        config.run.steps,
        schedule=knobs.schedule,
        start=knobs.weight_start,
        end=knobs.weight_end,
    )


def _learning_rate(config: Config, step: int, part: int) -> float:
    """The rate of update ``part`` (counted from 0) of a step."""
    per_step, knobs = config.loss.updates_per_step, config.optimizer
    return learning_rate(
        (step - 1) * per_step + part + 1,
        config.run.steps * per_step,
        peak=knobs.lr,
        warmup_share=knobs.warmup_share,
        min_lr_share=knobs.min_lr_share,
        warmup_from_zero=knobs.warmup_from_zero,
    )
