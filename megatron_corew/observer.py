"""What happens around the steps of a run: time, records, evaluation, checkpoints.

Rank 0 writes; evaluation and checkpoints are collective, so every rank has an observer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.config import Config
from megatron_corew.evaluate.accuracy import Sampler, accuracy
from megatron_corew.evaluate.agreement import cross_view_agreement
from megatron_corew.guard import Guard, Verdict
from megatron_corew.observe.clock import PhaseClock
from megatron_corew.observe.metrics import MetricLog
from megatron_corew.observe.progress import Progress
from megatron_corew.observe.rollouts import RolloutLog, rollout_records
from megatron_corew.observe.step_metrics import mean_metrics, refill_metrics, step_metrics
from megatron_corew.observe.versions import versions
from megatron_corew.ranks import is_driver, on_driver
from megatron_corew.runs import RunFolder
from megatron_corew.seeds import call_seed
from megatron_corew.types import Gathered, Question, RolloutGroup


class Observer:
    """Everything that the loop calls and that is not the algorithm; use as a context manager.

    Args:
        config: the run.
        folder: where it writes.
        training_sampler: samples from the policy as in training.
        evaluation_sampler: samples from the policy with the evaluation's settings.
        judge: compares answers with the truth.
        held_out: questions with answers; empty: no evaluation.
        save: writes a checkpoint of the state after a step.
        first_step: the first step of this attempt.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        *,
        training_sampler: Sampler,
        evaluation_sampler: Sampler,
        judge: AnswerJudge,
        held_out: Sequence[Question],
        save: Callable[[int], object],
        first_step: int,
    ) -> None:
        self._config, self._folder, self._first_step = config, folder, first_step
        self._training_sampler = training_sampler
        self._sampler, self._judge, self._held_out = evaluation_sampler, judge, held_out
        self._save, self._clock, self._step_start = save, PhaseClock(), time.monotonic()
        self._open = ExitStack()
        self._writes, self._is_new = is_driver(), first_step == 1

    def __enter__(self) -> Self:
        if self._writes:
            config = self._config
            self._log = self._open.enter_context(
                MetricLog(
                    self._folder.path,
                    tensorboard=config.observe.tensorboard,
                    wandb_project=config.observe.wandb_project,
                    config_dict=config.model_dump(),
                )
            )
            self._log.event(self._first_step - 1, "start", versions=versions())
            self._guard = Guard(
                config.monitor, self._folder, self._log, first_step=self._first_step
            )
            self._rollouts = self._open.enter_context(RolloutLog(self._folder.path))
            self._progress = self._open.enter_context(
                Progress(config.run.steps, first_step=self._first_step)
            )
        scale = on_driver(lambda: self._guard.lr_scale)
        self.verdict = Verdict(action="go_on", lr_scale=scale)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the seconds of a part of the step, and show its name."""
        if self._writes:
            self._progress.doing(name.replace("_", " "))
        return self._clock.phase(name)

    def before_training(self) -> None:
        """Evaluate the policy as it comes, unless this run has begun before."""
        if self._is_new:
            self._is_new = False
            if self._held_out:
                self._record(0, self._evaluate())
            if self._config.monitor.on_collapse == "rollback":
                # So that there is always something to go back to.
                self._save(0)
        self._step_start = time.monotonic()

    def after_step(
        self,
        step: int,
        *,
        updates: Sequence[Mapping[str, float]],
        teacher_weight: float,
        gathered: Gathered,
    ) -> bool:
        """Evaluate, record the step, watch for a collapse, and save, when it is time.

        Args:
            step: the step that is done.
            updates: metrics of its optimizer updates.
            teacher_weight: share of the policy mixed into the teacher in this step.
            gathered: all that was asked in it.

        Returns:
            Whether to go on with the next step; ``verdict`` says what else to do.
        """
        last, evaluation = step == self._config.run.steps, dict[str, float]()
        if self._held_out and (last or _is_due(step, self._config.evaluate.every)):
            with self.phase("evaluate"):
                evaluation = self._evaluate()
        agreement = self._agreement(step, gathered)
        metrics = dict[str, float]()
        # Recorded before it is saved: a checkpoint without its step's record would lose it.
        if self._writes:
            metrics = step_metrics(gathered.groups, gathered.labels, gathered.rewards_PG.tolist())
            if self._config.shaping.refill_rounds:
                metrics |= refill_metrics(gathered)
            metrics |= mean_metrics(updates) | agreement | evaluation
            metrics["teacher/weight"] = teacher_weight
            self._write_step(step, metrics, gathered)
        self.verdict = on_driver(lambda: self._judge_step(step, metrics))
        if self.verdict.action != "go_on":
            return False
        if last or _is_due(step, self._config.checkpoint.every):
            with self.phase("save"):
                self._save(step)
        return True

    def _judge_step(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        verdict = self._guard.judge(step, metrics)
        for alarm in verdict.alarms:
            self._progress.note(f"collapse monitor, step {step}: {alarm.sentence}")
        if verdict.action == "rollback":
            self._rollouts.next_attempt()
            self._progress.go_back(verdict.to_step)
            self._progress.note(
                f"going back to step {verdict.to_step} with {verdict.lr_scale:g} times the "
                "configured learning rate"
            )
        return verdict

    def _write_step(self, step: int, metrics: dict[str, float], gathered: Gathered) -> None:
        metrics |= {f"verify/{name}": count for name, count in self._judge.statistics().items()}
        metrics |= self._throughput(gathered)
        now = time.monotonic()
        metrics["time/step_s"], self._step_start = now - self._step_start, now
        self._record(step, metrics | self._clock.collect())
        count = self._config.observe.rollout_groups
        self._rollouts.write(step, rollout_records(gathered, groups_per_view=count))

    def _agreement(self, step: int, gathered: Gathered) -> dict[str, float]:
        knobs = self._config.monitor
        if not _is_due(step, knobs.probe_every):
            return {}
        with self.phase("agreement"):
            return cross_view_agreement(
                gathered.questions[: knobs.probe_questions],
                gathered.groups,
                self._training_sampler,
                self._judge,
                samples=self._config.rollout.samples_per_prompt,
                seed=call_seed(self._config.run.seed, step, "agreement"),
            )

    def _evaluate(self) -> dict[str, float]:
        return accuracy(
            self._held_out,
            self._sampler,
            self._judge,
            samples=self._config.evaluate.samples_per_prompt,
            # The same noise at every step: differences come from the weights.
            seed=call_seed(self._config.run.seed, 0, "evaluate"),
        )

    def _throughput(self, gathered: Gathered) -> dict[str, float]:
        """Response tokens per second of every phase that works on them."""
        asked = _num_tokens(gathered.groups)
        trained = _num_tokens([gathered.groups[place] for place in gathered.trained])
        # Rewards that are scores need all that was asked, old log-probs what is trained.
        for_rewards = 0 if self._config.preset.needs_labels else asked
        for_old_logprobs = trained if self._config.loss.updates_per_step > 1 else 0
        tokens = {
            "policy_rollout": asked,
            "teacher_rollout": _num_tokens(gathered.taught),
            "reference_forward": trained,
            "policy_forward": for_rewards + for_old_logprobs,
            "train": trained,
        }
        seconds = self._clock.seconds()
        return {
            f"tokens_per_s/{phase}": count / seconds[phase]
            for phase, count in tokens.items()
            if seconds.get(phase)
        }

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writes:
            self._log.log(step, metrics)
            self._progress.update(step, metrics)


def _num_tokens(groups: Sequence[RolloutGroup]) -> int:
    return sum(len(rollout.token_ids) for group in groups for rollout in group.rollouts)


def _is_due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
