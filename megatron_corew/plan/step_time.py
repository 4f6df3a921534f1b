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
from megatron_corew.plan.memory import (
    element_bytes,
    fp8_share,
    micro_batches,
    offloaded_bytes,
    optimizer_shard,
)
from megatron_corew.plan.parameters import stage_parameters, whole_model
from megatron_corew.plan.workload import Workload, forward_flops


def phases(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    servers: Servers,
    work: Workload,
) -> dict[str, float]:
    """Seconds of each phase of a step; they follow one another.

    Args:
        config: the run, with the trainer's layout.
        architecture: its model.
        gpu: of trainer and servers.
        servers: of policy and teacher, in turns.
        work: tokens of a step.
    """
    forward = _pass_s(config, architecture, gpu, work, training=False)
    push = whole_model(architecture).total * 2.0 / PUSH_BYTES_PER_S
    taught = work.teacher_rollouts
    return {
        "policy rollout": rollout_s(architecture, servers, gpu, work, rollouts=work.rollouts),
        "teacher rollout": rollout_s(architecture, servers, gpu, work, rollouts=taught),
        "scoring": work.scorings * forward,
        "training": _pass_s(config, architecture, gpu, work, training=True),
        "optimizer, teacher": _update_s(config, architecture, gpu)
        + _offload_s(config, architecture, gpu, work),
        "weight pushes": push * (2 if taught else 1),
        "other": OVERHEAD_S,
    }


def _pass_s(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    work: Workload,
    *,
    training: bool,
) -> float:
    """Over all rollouts: a forward pass, or forward and backward with its gradients' reduction."""
    parallel = config.parallel
    compute = _compute_s(config, architecture, gpu, work, training=training)
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
    training: bool,
) -> float:
    flops, recompute = forward_flops(architecture, work), config.parallel.recompute
    # Forward, and twice as much backward; recomputation is one forward more.
    times = (4 if recompute == "full" else 3) if training else 1
    again = flops.feed_forward if training and recompute == "selective" else 0.0
    # The backward pass of the scores computes the logits once more.
    output = flops.output * (4 if training else 1) / (gpu.bf16 * GEMM_SHARE)
    share = fp8_share(config, architecture)
    assert not share or gpu.fp8 is not None
    per_flop = (1 - share) / (gpu.bf16 * GEMM_SHARE)
    per_flop += share / (gpu.fp8 * FP8_GEMM_SHARE) if gpu.fp8 else 0.0
    seconds = (flops.dense * times + again) * per_flop
    expert_times = times + (training and recompute == "selective")
    seconds += flops.experts * expert_times / (gpu.bf16 * EXPERT_GEMM_SHARE)
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
    # The feed-forward's half of the sums, and every exchange, is recomputed by "selective" as well.
    again = {"none": (0.0, 0.0), "selective": (0.5, 1.0), "full": (1.0, 1.0)}[parallel.recompute]
    for_sums, for_exchanges = (2 + one for one in again) if training else (1.0, 1.0)
    tensor, expert = parallel.tensor, parallel.expert
    sums = 2 * whole * 2 * (tensor - 1) / tensor
    picked = architecture.mixture.experts_per_token if architecture.mixture else 0
    exchanged = 2 * whole * picked * (expert - 1) / expert / tensor
    rate = gpu.link if expert * parallel.expert_tensor <= gpu.per_node else gpu.network
    waits = for_sums * sums / gpu.link + for_exchanges * exchanged / rate
    return waits / LINK_SHARE


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


def _offload_s(config: Config, architecture: Architecture, gpu: Gpu, work: Workload) -> float:
    """What is kept on the host goes to the device and back, one way at a time.

    An update moves the optimizer's state both ways and its main parameters into the model; the
    teacher's update moves the teacher both ways; every installation brings the teacher, and then
    the main parameters.
    """
    optimizer, teacher = offloaded_bytes(config, architecture, 0)
    held = stage_parameters(architecture, config.parallel, 0)
    separate = config.optimizer.offload and element_bytes(config) < 4
    mains = 4 * optimizer_shard(held, config.parallel) if separate else 0.0
    moves = config.preset.needs_teacher and config.preset.teacher_moves
    moved = (2 * optimizer + mains) * config.loss.updates_per_step
    moved += 2 * teacher + mains if moves else 0.0
    installations = int(work.teacher_rollouts > 0) + int(config.kl_coef > 0)
    values = 4 * optimizer_shard(held, config.parallel) if teacher else 0.0
    moved += installations * (values + mains)
    return moved / (gpu.bus * LINK_SHARE)
