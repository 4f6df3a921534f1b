"""The parts of a run, as the algorithm sees them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from megatron_corew.types import (
    Gathered,
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
"""Hugging Face names and whole tensors; ranks other than 0 may get None."""


class Questions(Protocol):
    """The training data, a pure function of step and round; see ``data.prompts``."""

    def batch_at(self, step: int) -> Sequence[Question]: ...

    def further_at(self, step: int, round_number: int) -> Sequence[Question]: ...


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

    @property
    def version(self) -> int | None: ...

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
        gathered: Gathered,
    ) -> bool:
        """False: this attempt ends here."""
        ...
