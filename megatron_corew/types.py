"""The nouns that pass between modules: who fills each field, and with what.

Dimension key:
    R: rollouts of one batch, ordered by (view, question, sample)
    T: longest response of the batch, in tokens
    P: prompts asked in a step    G: samples per prompt (the group)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

View = Literal["original", "rephrased"]
VIEWS: tuple[View, View] = ("original", "rephrased")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One view of a question as the model reads it; made by ``data``."""

    question_id: str
    view: View
    text: str
    """The rendered text (chat template applied), for people and logs."""
    token_ids: tuple[int, ...]
    """What the sampler and the trainer read; never re-tokenised from ``text``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question in all its views; made by ``data``, joined by id."""

    id: str
    prompts: Mapping[View, Prompt]
    answer: str | None
    """Ground truth, when the data has one: for metrics and the ground_truth method only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One sampled response; made by ``rollout``."""

    token_ids: tuple[int, ...]
    """Response tokens as sampled, with the end token when the model emitted one."""
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each token, after the temperature; natural log."""
    text: str
    """Decoded response without special tokens."""
    finish_reason: Literal["stop", "length"]
    """``stop``: end token or stop string. ``length``: cut at the token limit."""
    weights_version: int
    """Version stamp of the weights that made it (the optimizer step of the policy or teacher)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """All samples of one prompt."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]

    @property
    def texts(self) -> list[str]:
        """The response texts, in sample order."""
        return [rollout.text for rollout in self.rollouts]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """The outcome of one group's vote; made by ``answers``."""

    answers: tuple[str | None, ...]
    """Extracted answer of each response, None where none was found."""
    clusters: tuple[int | None, ...]
    """Vote group of each response: equal numbers mean equivalent answers."""
    label: str | None
    """A spelling of the winning answer, or None: no answer, a tie, or too small a share."""
    share: float
    """Responses with the winning answer over all responses, in [0, 1]; 0 without any answer."""
    tie: bool
    """Two or more vote groups share the highest count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewLabels:
    """One view's votes, labels and rewards, in the order of the questions; made by ``labelling``.

    ``correct`` and ``label_correct`` compare with the ground truth where the data have one. They
    are metrics and never reach a reward.
    """

    votes: tuple[Vote, ...]
    """The policy's own votes (for metrics also where somebody else labels)."""
    teacher_votes: tuple[Vote, ...] | None
    """None: the teacher was not asked."""
    labels: tuple[str | None, ...] | None
    """None: the method has no labels."""
    rewards: tuple[tuple[float, ...], ...] | None
    """Per question and sample; None: rewards are scores of the policy's forward pass."""
    correct: tuple[tuple[float, ...], ...] | None
    """Per question and sample: 1.0 where the response has the true answer."""
    label_correct: tuple[float, ...] | None
    """Per question: 1.0 where the label is the true answer."""
    vote_correct: tuple[float, ...] | None = None
    """Per question: 1.0 where the policy's own vote is the true answer."""
    teacher_agrees: tuple[float, ...] | None = None
    """Per question: 1.0 where policy and teacher elect the same answer; None: no teacher's vote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """All that was asked in a step, ordered by (view, round, question); made by ``gathering``."""

    questions: tuple[Question, ...]
    """Of all rounds in their order; every view was asked all of them."""
    groups: tuple[RolloutGroup, ...]
    """P groups, the policy's rollouts."""
    taught: tuple[RolloutGroup, ...]
    """The teacher's in the same order; empty when it does not label."""
    labels: Mapping[View, ViewLabels]
    """Of every trained view, over all rounds."""
    rewards_PG: "Tensor"
    """[P, G] float32, as trained on."""
    kept_P: "Tensor"
    """[P] bool, False: outside the loss and its divisor wherever the group goes."""
    rounds: tuple[int, ...]
    """P numbers: the round in which each group was asked; 0 is the first."""
    trained: tuple[int, ...]
    """Ascending places in ``groups`` of the step's batch: equally many of every view."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """All trained rollouts of a step as padded tensors, the same on every rank."""

    prompt_ids: tuple[tuple[int, ...], ...]
    """R prompts, unpadded."""
    response_ids_RT: "Tensor"
    """[R, T] int64, zero where ``mask_RT`` is False."""
    mask_RT: "Tensor"
    """[R, T] bool, from the response lengths (never from token values)."""
    view_R: "Tensor"
    """[R] int64, index into VIEWS."""
    rollout_logprobs_RT: "Tensor"
    """[R, T] float32, the sampler's log-probs, zero on padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """What one forward pass says of the sampled tokens; made by ``mcore``; zero on padding."""

    logprobs_RT: "Tensor"
    """[R, T] float32, at the sampling temperature."""
    entropy_RT: "Tensor"
    """[R, T] float32, nats, of the tempered distribution."""
    self_certainty_RT: "Tensor"
    """[R, T] float32, logsumexp(z) - mean(z) over the true vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainBatch:
    """A RolloutBatch with everything the loss needs, the same on every rank."""

    rollouts: RolloutBatch
    advantages_R: "Tensor"
    """[R] float32, one per response."""
    old_logprobs_RT: "Tensor | None"
    """[R, T] float32 of the policy before the update; None: the current ones, detached."""
    ref_logprobs_RT: "Tensor | None"
    """[R, T] float32 of the KL reference; None without a KL term."""
    weights_RT: "Tensor"
    """[R, T] float32: the factor of each token's loss. The loss is the plain sum of
    weight x token loss over all ranks, so it cannot depend on how rows are split."""
