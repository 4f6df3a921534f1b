"""What is saved, evaluated, written and watched while a run goes on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from megatron_corew.config.sections import Count, NotNegative, Positive, Section, Share


class CheckpointConfig(Section):
    """When the whole state of the run is saved."""

    every: Annotated[int, Field(ge=0)] = 30
    """Steps between checkpoints; 0: only at the end. Official: 10 (I), 30 (II, III)."""
    keep: Count = 2
    """Newest checkpoints to keep."""


class EvaluateConfig(Section):
    """Held-out accuracy during the run."""

    every: Annotated[int, Field(ge=0)] = 10
    """Steps between evaluations; 0: only before and after. Official: 10."""
    questions: Count = 256
    """Held-out questions to use, the first of the file."""
    samples_per_prompt: Count = 1
    """Responses per held-out prompt; accuracy is their mean (pass@1)."""
    temperature: NotNegative = 0.0
    """Sampling temperature; 0 is greedy. Official validation: greedy."""

    @model_validator(mode="after")
    def greedy_responses_are_all_the_same(self) -> Self:
        """Several samples need a temperature."""
        if self.temperature == 0.0 and self.samples_per_prompt > 1:
            raise ValueError(
                f"evaluate.samples_per_prompt: need 1 at temperature 0, got "
                f"{self.samples_per_prompt}. Raise evaluate.temperature."
            )
        return self


class ObserveConfig(Section):
    """Where metrics and rollouts are written besides metrics.jsonl."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    wandb_project: str | None = None
    """Weights & Biases project; None: off. Needs the ``wandb`` extra."""
    rollout_groups: Annotated[int, Field(ge=0)] = 8
    """Rollout groups per step, view and round of questions written to rollouts.jsonl."""


class MonitorConfig(Section):
    """The watch over a collapse, which needs no labels; see docs/monitor.md for the thresholds."""

    on_collapse: Literal["off", "warn", "stop", "rollback"] = "warn"
    """Upon an alarm: nothing, a message, the end of the run, or back to the last checkpoint from
    before the alarm with a lower learning rate."""
    window: Annotated[int, Field(ge=1)] = 5
    """Steps whose mean is compared: the first so many with the last so many."""
    patience: Count = 3
    """Steps in a row that a signal must stand before it is an alarm."""
    probe_every: Annotated[int, Field(ge=0)] = 2
    """Steps between measurements of the agreement over the two views; 0: never. A method that
    trains one view asks the other one for it, where the data have it."""
    probe_questions: Count = 16
    """Questions of the step that such a measurement looks at."""
    agreement_gain: Share = 0.15
    """Rise of the agreement within a group, in probability, from which on the agreement over the
    two views must follow."""
    across_share: Share = 0.5
    """Smallest share of that rise that the agreement over the two views must reach."""
    agreement_loss: Share = 0.15
    """Largest fall of either agreement below its best so far."""
    max_kl: Positive = 0.15
    """Largest KL of the policy to its reference, nats per token."""
    top_share: Share = 0.3
    """Largest share of one answer among all responses ..."""
    top_growth: Annotated[float, Field(ge=1.0)] = 2.0
    """... unless it began so high: as a multiple of its start."""
    distinct_share: Share = 0.5
    """Smallest ratio of the distinct answers of all questions to the sum of each question's own,
    as a share of its start. Distinct answers alone become fewer when a policy learns."""
    unreadable_gain: Share = 0.15
    """Largest rise of the share of responses that are cut, or that have no answer."""
    teacher_loss: Share = 0.25
    """Largest fall of the share of questions on which policy and teacher elect the same answer."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """``rollback``: the learning rate is multiplied by this each time."""
    max_rollbacks: Count = 3
    """``rollback``: so many; the next alarm goes back once more and stops the run there."""
