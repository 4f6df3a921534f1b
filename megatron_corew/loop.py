"""The whole algorithm, once, on one screen.

Dimension key:
    P: prompts over all trained views    G: samples per prompt
    R: P x G trained rollouts, ordered by (view, question, sample)    T: longest response
"""

from torch import Tensor

from megatron_corew.algo.advantages import group_advantages
from megatron_corew.algo.schedules import ema_weight, learning_rate
from megatron_corew.algo.updates import make_updates
from megatron_corew.config import Config
from megatron_corew.data.batching import collate
from megatron_corew.gathering import Gatherer
from megatron_corew.types import RolloutBatch, TrainBatch


def train(gatherer: Gatherer, *, first_step: int, lr_scale: float) -> None:
    """Train from ``first_step`` until the observer or the run ends; all ranks run the same loop.

    Args:
        gatherer: asks the policy and the teacher that are trained here.
        first_step: counted from 1; the policy holds the weights of the step before.
        lr_scale: factor of the learning rate, below 1 after a rollback.

    Source: Co-rewarding, arXiv:2508.00410, algorithms 1 and 2. The order within a step is the
    official code's: policy rollout, EMA with the weights before the update, teacher rollout.
    """
    config, policy, teacher = gatherer.config, gatherer.policy, gatherer.teacher
    loss, sampler, observer = config.loss, gatherer.sampler, gatherer.observer
    # A fresh or resumed run never samples from weights that it did not push itself.
    sampler.push(policy.hf_stream(), version=first_step - 1)
    observer.before_training()
    for step in range(first_step, config.run.steps + 1):
        # 1. The policy answers; the teacher follows it, as it is before this step's update, and
        #    answers too; votes make labels, labels make rewards. See ``Gatherer``.
        weight = _teacher_weight(config, step)
        gathered = gatherer.gather(step, teacher_weight=weight)
        places = list(gathered.trained)
        batch = collate([gathered.groups[place] for place in places])

        # 2. Rewards make advantages; the loss looks back at other weights than today's.
        advantages_PG = group_advantages(
            gathered.rewards_PG[places], divide_by_std=loss.divide_by_std
        )
        old_logprobs_RT = ref_logprobs_RT = None
        if loss.updates_per_step > 1:
            with observer.phase("policy_forward"):
                old_logprobs_RT = policy.score(batch).logprobs_RT
        if teacher is not None and config.kl_coef:
            with teacher.installed(), observer.phase("reference_forward"):
                ref_logprobs_RT = policy.score(batch).logprobs_RT

        # 3. The optimizer steps, and the sampler gets the new weights.
        kept_P = gathered.kept_P[places]
        updates = _updates(config, batch, advantages_PG, kept_P, old_logprobs_RT, ref_logprobs_RT)
        with observer.phase("train"):
            rates = [lr_scale * _learning_rate(config, step, k) for k in range(len(updates))]
            done = [policy.step(u, learning_rate=r) for u, r in zip(updates, rates, strict=True)]
        with observer.phase("push"):
            sampler.push(policy.hf_stream(), version=step)

        # 4. Record, evaluate, watch for a collapse, save.
        if not observer.after_step(step, updates=done, teacher_weight=weight, gathered=gathered):
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
