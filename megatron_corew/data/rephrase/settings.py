"""The knobs of `corew rephrase`, each with its unit and source."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from megatron_corew.config import Count, NotNegative, Positive, Section, ServersConfig, Share
from megatron_corew.data.prepare.rephrasings import RephrasingFault, RephrasingLimits

QUESTION = "{question}"
"""Where the question stands in a template."""


class PromptConfig(Section):
    """What the rewriting model is told, and where its answer holds the new question."""

    template: str
    """The whole request; ``{question}`` stands once, where the question goes."""
    start: str | None = None
    """The new question begins after the last of these; None: at the beginning."""
    end: str | None = None
    """It ends before the next of these; None: with the answer."""
    chat: bool = True
    """True: the request is a user message. False: it is plain text that the model continues."""
    thinking: bool | None = None
    """Value of the chat template's ``enable_thinking``; None: the template's own default."""

    @model_validator(mode="after")
    def template_has_one_question(self) -> Self:
        """A template without the question would ask for the same thing every time."""
        if self.template.count(QUESTION) != 1:
            raise ValueError(
                f"prompt.template: need {QUESTION} exactly once, got "
                f"{self.template.count(QUESTION)} times."
            )
        return self


class SamplingConfig(Section):
    """How the rewriting model is sampled."""

    temperature: NotNegative = 0.7
    """Official rewrite script: 0.7."""
    top_p: Share = 0.8
    """Official rewrite script: 0.8."""
    max_tokens: Count = 20480
    """Longest answer, thinking included, in tokens. Official rewrite script: 20,480."""
    seed: int = 0
    """Every question and attempt has a seed of its own, made of this one."""


class CheckConfig(Section):
    """What makes an answer of the rewriting model a rephrasing."""

    refuse: tuple[RephrasingFault, ...] = (
        "missing",
        "placeholder",
        "identical",
        "diagram lost",
        "numbers lost",
        "too short",
        "too long",
        "another language",
    )
    """Faults that are not accepted."""
    limits: RephrasingLimits = RephrasingLimits()
    attempts: Count = 3
    """Answers to ask for, each with another seed, before a question is quarantined."""


class PreserveConfig(Section):
    """Whether a solver must give the same answer to both versions."""

    samples: Annotated[int, Field(ge=0)] = 0
    """Solutions of each version that vote; 0: no check."""
    instruction: str = "Let's think step by step and output the final answer within \\boxed{}."
    """System message of the solver. Default: that of the released data."""
    temperature: Positive = 1.0
    """Sampling temperature of the solver."""
    max_tokens: Count = 3072
    """Longest solution, in tokens. Default: the paper's longest response."""
    undecided: Literal["accept", "refuse"] = "accept"
    """What becomes of a rephrasing when either vote has no winner: refusing all of them would
    leave easy questions only."""


class RephraseConfig(Section):
    """One way of rephrasing."""

    model: str
    """Hugging Face folder of the rewriting model, or its name on a running server."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the weights in a server that the command starts."""
    max_model_len: Count = 24576
    """Longest request and answer together, in tokens, of a server that the command starts."""
    concurrency: Count = 256
    """Requests under way at the same time; the server batches them."""
    tries: Count = 6
    """How often a request is sent while the server is too busy or cannot be reached."""
    prompt: PromptConfig
    sampling: SamplingConfig = SamplingConfig()
    check: CheckConfig = CheckConfig()
    preserve: PreserveConfig = PreserveConfig()
    servers: ServersConfig = ServersConfig()
    """Of a server that the command starts: ``tensor_parallel``, ``threads``, time-outs."""

    @model_validator(mode="after")
    def answers_fit_the_server(self) -> Self:
        """A request without room for its answer would be refused every time."""
        longest = max(self.sampling.max_tokens, self.preserve.max_tokens)
        if longest >= self.max_model_len:
            raise ValueError(
                f"max_model_len: need more than the {longest} tokens of an answer, got "
                f"{self.max_model_len}. Lower sampling.max_tokens."
            )
        return self
