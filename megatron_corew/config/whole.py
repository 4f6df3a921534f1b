"""One training run: every section of knobs, and the rules across sections."""

from typing import Self

from pydantic import model_validator

from megatron_corew.config.inputs import DataConfig, ModelConfig, RunConfig
from megatron_corew.config.layout import ParallelConfig, PrecisionConfig
from megatron_corew.config.rewards import AnswersConfig, ShapingConfig
from megatron_corew.config.sampling import RolloutConfig, ServersConfig
from megatron_corew.config.sections import Section
from megatron_corew.config.updates import LossConfig, OptimizerConfig, TeacherConfig
from megatron_corew.config.watching import (
    CheckpointConfig,
    EvaluateConfig,
    MonitorConfig,
    ObserveConfig,
)
from megatron_corew.methods import METHODS, Method


class Config(Section):
    """One training run."""

    method: str
    """Preset of methods.py: co_rewarding_i, _ii, _iii, majority_vote, ground_truth, ..."""
    run: RunConfig
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    servers: ServersConfig = ServersConfig()
    answers: AnswersConfig = AnswersConfig()
    shaping: ShapingConfig = ShapingConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    teacher: TeacherConfig = TeacherConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    observe: ObserveConfig = ObserveConfig()
    monitor: MonitorConfig = MonitorConfig()

    @property
    def preset(self) -> Method:
        """The method's row."""
        return METHODS[self.method]

    @property
    def keeps_teacher(self) -> bool:
        """Whether a second set of weights is kept: a teacher, or the frozen KL reference."""
        return self.preset.needs_teacher or self.kl_coef > 0

    @property
    def kl_coef(self) -> float:
        """The KL weight in force."""
        return self.preset.kl_coef if self.loss.kl_coef is None else self.loss.kl_coef

    @model_validator(mode="after")
    def method_is_known(self) -> Self:
        """The preset exists."""
        if self.method not in METHODS:
            raise ValueError(f"method: need one of {', '.join(METHODS)}; got {self.method!r}.")
        return self

    @model_validator(mode="after")
    def method_finds_its_columns(self) -> Self:
        """The data have the view and the answers that the method needs."""
        if self.data.train == "lab" or self.method not in METHODS:
            return self
        has_rephrased = self.data.rephrased_column or self.data.train_rephrased
        if self.preset.needs_rephrasings and not has_rephrased:
            raise ValueError(
                f"data.rephrased_column: method {self.method} trains on rephrased questions, got "
                "none. Set data.rephrased_column or data.train_rephrased."
            )
        if self.preset.labeller == "ground_truth" and not self.data.answer_column:
            raise ValueError(
                f"data.answer_column: method {self.method} needs true answers, got none. "
                "Set data.answer_column."
            )
        return self

    @model_validator(mode="after")
    def soft_votes_need_votes(self) -> Self:
        """A share of votes exists only where votes make the label."""
        if self.shaping.soft_votes and self.preset.labeller not in ("policy", "teacher"):
            raise ValueError(
                f"shaping.soft_votes: method {self.method} is not labelled by votes. Set "
                "shaping.soft_votes=false."
            )
        return self

    @model_validator(mode="after")
    def overlong_buffer_fits(self) -> Self:
        """The penalty starts within the response."""
        buffer, longest = self.shaping.overlong_buffer_tokens, self.rollout.max_response_tokens
        if buffer is not None and buffer > longest:
            raise ValueError(
                f"shaping.overlong_buffer_tokens: need at most rollout.max_response_tokens "
                f"({longest}), got {buffer}."
            )
        return self

    @model_validator(mode="after")
    def there_is_a_teacher_to_offload(self) -> Self:
        """A setting without effect is an error."""
        if self.teacher.offload and self.method in METHODS and not self.keeps_teacher:
            raise ValueError(
                f"teacher.offload: need a method with a teacher, or loss.kl_coef above 0, got "
                f"{self.method} without. Set teacher.offload=false."
            )
        return self

    @model_validator(mode="after")
    def updates_divide_the_prompts(self) -> Self:
        """Every update of a step gets the same number of whole groups."""
        prompts, updates = self.rollout.prompts_per_step, self.loss.updates_per_step
        if prompts % updates:
            rollouts = prompts * self.rollout.samples_per_prompt
            raise ValueError(
                f"loss.updates_per_step: need a divisor of rollout.prompts_per_step ({prompts}; "
                f"{rollouts} rollouts = {prompts} x {self.rollout.samples_per_prompt}), got "
                f"{updates}."
            )
        return self

    @model_validator(mode="after")
    def packed_micro_batch_holds_the_longest_sequence(self) -> Self:
        """A sequence is never cut over micro-batches."""
        budget = self.parallel.tokens_per_micro_batch
        prompt, response = self.data.max_prompt_tokens, self.rollout.max_response_tokens
        # Context parallelism pads every sequence to whole stripes.
        stripes = 2 * self.parallel.context if self.parallel.context > 1 else 1
        longest = -(-(prompt + response) // stripes) * stripes
        if 0 < budget < longest:
            raise ValueError(
                f"parallel.tokens_per_micro_batch: need 0 or at least {longest} for one sequence "
                f"(data.max_prompt_tokens {prompt} + rollout.max_response_tokens {response}), got "
                f"{budget}."
            )
        return self

    @model_validator(mode="after")
    def rollback_finds_a_checkpoint_from_before_the_alarm(self) -> Self:
        """The checkpoints that are kept reach back beyond the steps that an alarm looks at."""
        knobs, saved = self.monitor, self.checkpoint
        reach, needed = (saved.keep - 1) * saved.every, knobs.window + knobs.patience
        if knobs.on_collapse == "rollback" and reach < needed:
            raise ValueError(
                f"checkpoint.keep: monitor.on_collapse=rollback needs checkpoints that reach back "
                f"{needed} steps (monitor.window + monitor.patience), got (keep - 1) x every = "
                f"{reach}. Raise checkpoint.keep or checkpoint.every."
            )
        return self

    @model_validator(mode="after")
    def emulated_layers_see_whole_sequences(self) -> Self:
        """Context parallelism is Transformer Engine's attention, which emulation does not use."""
        if self.precision.fp8 == "emulate" and self.parallel.context > 1:
            raise ValueError(
                f"parallel.context: need 1 with precision.fp8=emulate, got "
                f"{self.parallel.context}. Set parallel.context=1 or another precision.fp8."
            )
        return self

    @model_validator(mode="after")
    def fp8_of_transformer_engine_trains_bfloat16(self) -> Self:
        """Its kernels take bfloat16."""
        if self.precision.transformer_engine and self.model.dtype != "bfloat16":
            raise ValueError(
                f"precision.fp8: need model.dtype=bfloat16 for {self.precision.fp8}, got "
                f"{self.model.dtype}. Set model.dtype=bfloat16 or precision.fp8=emulate."
            )
        return self

    @model_validator(mode="after")
    def official_micro_batch_divides_the_update(self) -> Self:
        """A micro-batch of the official mean never crosses an update."""
        rollouts = self.rollout.prompts_per_step * self.rollout.samples_per_prompt
        rollouts //= self.loss.updates_per_step
        official = self.loss.aggregation == "micro_batch_token_mean"
        if official and rollouts % self.loss.official_micro_batch:
            raise ValueError(
                f"loss.official_micro_batch: need a divisor of the {rollouts} rollouts of an "
                f"update, got {self.loss.official_micro_batch}."
            )
        return self
