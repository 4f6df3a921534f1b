"""Counts the tokens and FLOPs of a training step."""

from dataclasses import dataclass

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config
from megatron_corew.plan.parameters import active_parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What one step samples and trains."""

    prompts: int
    """Prompts of all trained views."""
    rollouts: int
    """Responses of the policy."""
    teacher_rollouts: int
    """Responses of the teacher."""
    prompt_tokens: float
    """Mean length of a prompt."""
    response_tokens: float
    """Mean length of a response."""
    longest_response: int
    """Tokens of the last response to end."""
    scorings: int
    """Forward passes over the batch besides the training one."""

    @property
    def sequence_tokens(self) -> float:
        """Mean length of prompt and response."""
        return self.prompt_tokens + self.response_tokens


def workload(config: Config, *, response_tokens: float | None = None) -> Workload:
    """The step of a run.

    Args:
        config: the run.
        response_tokens: mean length of a response; None: half of the longest, an assumption.

    Raises:
        ValueError: the mean is not between 1 and the longest.
    """
    sizes, method = config.rollout, config.preset
    longest = sizes.max_response_tokens
    mean = longest / 2 if response_tokens is None else response_tokens
    if not 1 <= mean <= longest:
        raise ValueError(
            f"--response-tokens: need 1 to rollout.max_response_tokens ({longest}), got {mean:g}."
        )
    prompts = sizes.prompts_per_step * len(method.views)
    taught = prompts * sizes.teacher_samples if method.labeller == "teacher" else 0
    reference = config.kl_coef > 0
    own = config.loss.updates_per_step > 1 or not method.needs_labels
    return Workload(
        prompts=prompts,
        rollouts=prompts * sizes.samples_per_prompt,
        teacher_rollouts=taught,
        prompt_tokens=config.data.max_prompt_tokens / 2,
        response_tokens=mean,
        longest_response=longest,
        scorings=int(reference) + int(own),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardFlops:
    """FLOPs of one sequence's forward pass, by the kernel that does them."""

    dense: float
    """Linear layers but experts."""
    experts: float
    attention: float
    output: float
    """The output layer, over response tokens."""
    feed_forward: float
    """Part of ``dense`` that selective recomputation does again."""


def forward_flops(architecture: Architecture, work: Workload) -> ForwardFlops:
    """FLOPs of one mean sequence.

    Source: 2 per weight and token; causal attention does half of 4 x length^2 x width.
    """
    dense, experts = active_parameters(architecture)
    tokens, heads = work.sequence_tokens, architecture.num_heads * architecture.head_size
    hidden = architecture.hidden_size
    inner = 0 if architecture.mixture else 3 * hidden * architecture.ffn_size
    return ForwardFlops(
        dense=2.0 * dense * tokens,
        experts=2.0 * experts * tokens,
        attention=2.0 * architecture.num_layers * heads * tokens**2,
        output=2.0 * architecture.vocab_size * hidden * work.response_tokens,
        feed_forward=2.0 * architecture.num_layers * inner * tokens,
    )
