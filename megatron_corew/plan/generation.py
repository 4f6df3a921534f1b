"""Estimates the time of rollouts from a roofline of decoding."""

from dataclasses import dataclass

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.plan.assumptions import (
    ALL_REDUCE_LATENCY_S,
    EXPERT_GEMM_SHARE,
    GEMM_SHARE,
    MEMORY_SHARE,
    SERVER_BYTES,
)
from megatron_corew.plan.gpus import Gpu
from megatron_corew.plan.parameters import active_parameters, whole_model
from megatron_corew.plan.workload import Workload

_BF16 = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """The vLLM servers of a plan, all alike."""

    gpus: int
    """GPUs of all servers together."""
    tensor: int
    """GPUs of one server."""
    memory: float
    """Bytes of a GPU that a server takes."""
    max_sequences: int
    """Sequences that a server works on at the same time."""

    @property
    def count(self) -> int:
        """Number of servers."""
        return self.gpus // self.tensor


def cache_bytes_per_token(architecture: Architecture, tensor: int) -> float:
    """Keys and values of one token on one of a server's GPUs; heads that do not divide are kept
    by several GPUs."""
    heads = max(1.0, architecture.num_kv_heads / tensor)
    return 2.0 * _BF16 * architecture.num_layers * heads * architecture.head_size


def server_weights(architecture: Architecture, tensor: int) -> float:
    """Bytes of the model on one of a server's GPUs."""
    return whole_model(architecture).total * _BF16 / tensor


def cache_tokens(architecture: Architecture, servers: Servers) -> float:
    """Tokens that fit into a server's cache; negative where not even the weights fit."""
    room = servers.memory - server_weights(architecture, servers.tensor) - SERVER_BYTES
    return room / cache_bytes_per_token(architecture, servers.tensor)


def decode_step_s(
    architecture: Architecture, servers: Servers, gpu: Gpu, *, sequences: float, context: float
) -> float:
    """Seconds until every sequence has one token more.

    Args:
        architecture: the model.
        servers: its servers.
        gpu: what they run on.
        sequences: decoded together on one server.
        context: mean tokens before the next one.
    """
    dense, experts = active_parameters(architecture)
    output, touched = architecture.vocab_size * architecture.hidden_size, 0.0
    mixture = architecture.mixture
    if mixture is not None:
        missed = (1 - mixture.experts_per_token / mixture.num_experts) ** sequences
        every_expert = experts * mixture.num_experts / mixture.experts_per_token
        touched = every_expert * (1 - missed)
    weights = (dense + output + touched) * _BF16 / servers.tensor
    cache = sequences * context * cache_bytes_per_token(architecture, servers.tensor)
    reading = (weights + cache) / (gpu.bandwidth * MEMORY_SHARE)
    per_share = (dense + output) / GEMM_SHARE + experts / EXPERT_GEMM_SHARE
    computing = 2 * sequences * per_share / servers.tensor / gpu.bf16
    waits = 2 * architecture.num_layers * ALL_REDUCE_LATENCY_S if servers.tensor > 1 else 0.0
    return max(reading, computing) + waits


def rollout_s(
    architecture: Architecture, servers: Servers, gpu: Gpu, work: Workload, *, rollouts: int
) -> float:
    """Seconds for all responses: prompts read once, full batches, then the last response alone.

    Args:
        architecture: the model.
        servers: at least one, whose cache holds a sequence.
        gpu: what they run on.
        work: gives the lengths.
        rollouts: responses of all servers together.
    """
    if not rollouts:
        return 0.0
    each = rollouts / servers.count
    held = cache_tokens(architecture, servers) / work.sequence_tokens
    together = max(1.0, min(each, servers.max_sequences, held))
    context = work.prompt_tokens + work.response_tokens / 2
    step = decode_step_s(architecture, servers, gpu, sequences=together, context=context)
    alone = decode_step_s(architecture, servers, gpu, sequences=1, context=work.longest_response)
    tail = (work.longest_response - work.response_tokens) * alone
    dense, experts = active_parameters(architecture)
    reading = 2 * (dense / GEMM_SHARE + experts / EXPERT_GEMM_SHARE) * work.prompt_tokens
    prompts = work.prompts / servers.count * reading / servers.tensor / gpu.bf16
    return prompts + each * work.response_tokens / together * step + tail
