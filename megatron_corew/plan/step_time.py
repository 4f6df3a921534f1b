"""Estimates the time of a training step, phase by phase."""

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config
from megatron_corew.plan.assumptions import (
    ATTENTION_SHARE,
    COPY_SHARE,
    EXPERT_GEMM_SHARE,
    FP8_GEMM_SHARE,
    GEMM_SHARE,
    LINK_SHARE,
    OVERHEAD_S,
    PUSH_BYTES_PER_S,
)
from megatron_corew.plan.generation import Servers, rollout_s
from megatron_corew.plan.gpus import Gpu
from megatron_corew.plan.memory import element_bytes, micro_batches, optimizer_shard
from megatron_corew.plan.parameters import stage_parameters, whole_model
from megatron_corew.plan.workload import Workload, forward_flops


def phases(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    servers: Servers,
    work: Workload,
    *,
    fp8: bool,
) -> dict[str, float]:
    """Seconds of each phase of a step; they follow one another.

    Args:
        config: the run, with the trainer's layout.
        architecture: its model.
        gpu: of trainer and servers.
        servers: of policy and teacher, in turns.
        work: tokens of a step.
        fp8: linear layers compute in FP8.
    """
    forward = _pass_s(config, architecture, gpu, work, fp8=fp8, training=False)
    push = whole_model(architecture).total * 2.0 / PUSH_BYTES_PER_S
    taught = work.teacher_rollouts
    return {
        "policy rollout": rollout_s(architecture, servers, gpu, work, rollouts=work.rollouts),
        "teacher rollout": rollout_s(architecture, servers, gpu, work, rollouts=taught),
        "scoring": work.scorings * forward,
        "training": _pass_s(config, architecture, gpu, work, fp8=fp8, training=True),
        "optimizer, teacher": _update_s(config, architecture, gpu),
        "weight pushes": push * (2 if taught else 1),
        "other": OVERHEAD_S,
    }


def _pass_s(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    work: Workload,
    *,
    fp8: bool,
    training: bool,
) -> float:
    """Over all rollouts: a forward pass, or forward and backward with its gradients' reduction."""
    parallel = config.parallel
    compute = _compute_s(config, architecture, gpu, work, fp8=fp8, training=training)
    moved = _layer_traffic_s(config, architecture, gpu, work, training=training)
    count = micro_batches(config, work.sequence_tokens)
    bubble = 1 + (parallel.pipeline - 1) / (count * parallel.virtual_pipeline)
    gradients = _gradient_traffic_s(config, architecture, gpu) if training else 0.0
    return (compute + moved) * bubble + gradients * config.loss.updates_per_step


def _compute_s(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    work: Workload,
    *,
    fp8: bool,
    training: bool,
) -> float:
    flops, recompute = forward_flops(architecture, work), config.parallel.recompute
    # Forward, and twice as much backward; recomputation is one forward more.
    times = (4 if recompute == "full" else 3) if training else 1
    again = flops.feed_forward if training and recompute == "selective" else 0.0
    # The backward pass of the scores computes the logits once more.
    output = flops.output * (4 if training else 1) / (gpu.bf16 * GEMM_SHARE)
    rate = gpu.bf16 * GEMM_SHARE
    if fp8:
        assert gpu.fp8 is not None
        rate = gpu.fp8 * FP8_GEMM_SHARE
    seconds = (flops.dense * times + again) / rate
    seconds += flops.experts * times / (gpu.bf16 * EXPERT_GEMM_SHARE)
    seconds += flops.attention * times / (gpu.bf16 * ATTENTION_SHARE)
    return (seconds + output) * work.rollouts / config.parallel.processes


def _layer_traffic_s(
    config: Config, architecture: Architecture, gpu: Gpu, work: Workload, *, training: bool
) -> float:
    """Sums over the tensor-parallel group, and tokens on their way to experts and back."""
    parallel = config.parallel
    tokens = work.rollouts * work.sequence_tokens / (parallel.data * parallel.context)
    whole = tokens * architecture.hidden_size * element_bytes(config)
    whole *= architecture.num_layers / parallel.pipeline
    times = (3 if parallel.recompute == "full" else 2) if training else 1
    tensor, expert = parallel.tensor, parallel.expert
    sums = 2 * whole * 2 * (tensor - 1) / tensor
    picked = architecture.mixture.experts_per_token if architecture.mixture else 0
    exchanged = 2 * whole * picked * (expert - 1) / expert / tensor
    rate = gpu.link if expert * parallel.expert_tensor <= gpu.per_node else gpu.network
    return times * (sums / (gpu.link * LINK_SHARE) + exchanged / (rate * LINK_SHARE))


def _gradient_traffic_s(config: Config, architecture: Architecture, gpu: Gpu) -> float:
    """Gradients over the data-parallel group, and weights back with a distributed optimizer."""
    parallel = config.parallel
    replicas = parallel.data * parallel.context
    held = stage_parameters(architecture, parallel, 0).total
    bytes_each = 4 + (element_bytes(config) if parallel.distributed_optimizer else 4)
    moved = held * bytes_each * (replicas - 1) / replicas
    inside = parallel.tensor * replicas <= gpu.per_node
    return moved / ((gpu.link if inside else gpu.network) * LINK_SHARE)


def _update_s(config: Config, architecture: Architecture, gpu: Gpu) -> float:
    """Adam reads and writes 34 bytes per parameter, the compensated teacher 20."""
    held = stage_parameters(architecture, config.parallel, 0)
    shard = optimizer_shard(held, config.parallel)
    teacher = 20 if config.preset.needs_teacher and config.preset.teacher_moves else 0
    moved = shard * (34 * config.loss.updates_per_step + teacher)
    return moved / (gpu.bandwidth * COPY_SHARE)
