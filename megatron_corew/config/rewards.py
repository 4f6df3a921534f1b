"""What counts as an answer, and what a response is rewarded for."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from megatron_corew.config.sections import Count, NotNegative, Positive, Section, Share


class AnswersConfig(Section):
    """What counts as the same answer, and when a vote gives a label."""

    equivalence: Literal["math", "raw"] = "math"
    """``math``: canonical keys and math-verify. ``raw``: equal strings, as the official code."""
    extractors: Annotated[
        tuple[Literal["boxed", "hashes", "phrase", "choice", "last_number"], ...],
        Field(min_length=1),
    ] = ("boxed",)
    """Where an answer is looked for, in this order, until one is found: the last complete box, the
    line behind ####, "answer is ...", a choice letter, the last number. A matter of the data."""
    tie: Literal["abstain", "first", "shortest"] = "abstain"
    """Label of a tied vote: none, the answer seen first (official), or the shortest key."""
    min_share: Share = 0.0
    """Smallest share of the responses that makes a label; below it there is none."""
    unlabelled: Literal["drop", "keep"] = "drop"
    """Groups without a label: out of the loss, or in it with advantage 0 (official: KL acts)."""
    verify_timeout_s: Positive = 5.0
    """Seconds that slow math-verify comparisons may cost a step in all; a single one is ended
    after a fifth. What is ended or no longer made counts as unequal, and is counted."""
    verify_workers: Count = 1
    """Processes for math-verify."""
    verify_memory_mb: Annotated[int, Field(ge=512)] = 2048
    """Address space of a math-verify process, in MB."""

    @model_validator(mode="after")
    def official_answers_stand_in_boxes(self) -> Self:
        """The released code knows boxes only."""
        if self.equivalence == "raw" and self.extractors != ("boxed",):
            raise ValueError(
                f"answers.extractors: need [boxed] with answers.equivalence=raw, got "
                f"{list(self.extractors)}. Set answers.equivalence=math."
            )
        return self


class ShapingConfig(Section):
    """What is added to the reward of 1 or 0; all off. The paper and its code add nothing."""

    soft_votes: bool = False
    """True: the reward is the share of the labelling votes that gave the same answer, instead of 1
    for the label only. Groups without a label stay without reward."""
    format_reward: NotNegative = 0.0
    """Reward for stating any answer where answers.extractors look for it; 0: off."""
    overlong_buffer_tokens: Count | None = None
    """Tokens before rollout.max_response_tokens in which a penalty grows from 0 to its full size;
    None: off. DAPO: 4,096 of 20,480."""
    overlong_penalty: Positive = 1.0
    """Full size of that penalty, subtracted from the reward. DAPO: 1."""
    drop_equal_rewards: bool = False
    """True: groups whose rewards are all equal leave the loss and its divisor, as in DAPO's dynamic
    sampling."""
    refill_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds of ``rollout.prompts_per_step`` further questions that a step may ask to replace the
    groups that left; 0: they are not replaced."""

    @model_validator(mode="after")
    def refill_replaces_dropped_groups(self) -> Self:
        """Without dropped groups there is nothing to replace."""
        if self.refill_rounds and not self.drop_equal_rewards:
            raise ValueError(
                f"shaping.refill_rounds: needs shaping.drop_equal_rewards=true, got false with "
                f"{self.refill_rounds} rounds. Set shaping.refill_rounds=0."
            )
        return self
