"""Judges layouts of a number of GPUs: which ones fit, and which are the fastest."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config
from megatron_corew.layout_check import check_divisible
from megatron_corew.plan.assumptions import (
    MAX_SERVER_SHARE,
    MIN_SEQUENCES,
    SERVER_BYTES,
    SPARE_SHARE,
)
from megatron_corew.plan.generation import (
    Servers,
    cache_bytes_per_token,
    cache_tokens,
    server_weights,
)
from megatron_corew.plan.gpus import Gpu
from megatron_corew.plan.memory import Memory, host_bytes, peak_memory
from megatron_corew.plan.step_time import phases
from megatron_corew.plan.workload import Workload

_SIZES = (1, 2, 4, 8)
_EXPERT_SIZES = (1, 2, 4, 8, 16, 32)
_BUDGETS = (8_192, 16_384, 32_768)
_RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One way to run a configuration, with its memory and time."""

    config: Config
    gpu: Gpu
    shared: bool
    """Servers stand on the trainer's GPUs; else on GPUs of their own."""
    servers: Servers
    memory: Memory
    """Of the fullest trainer GPU."""
    phases: dict[str, float]
    """Seconds of a step; empty when it does not fit."""
    faults: tuple[str, ...]
    """Why it does not fit; empty: it fits."""
    host: float
    """Bytes of host memory for one trainer GPU: what is offloaded."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.phases.values())

    @property
    def gpus(self) -> int:
        """GPUs of trainer and servers together."""
        return self.config.parallel.processes + (0 if self.shared else self.servers.gpus)

    def overrides(self) -> list[str]:
        """What to add to ``corew train`` to get this layout."""
        parallel, share = self.config.parallel, self.config.servers.gpu_memory_share
        names = ["tensor", "pipeline", "virtual_pipeline", "data", "context", "expert", "sequence"]
        names += ["distributed_optimizer", "recompute", "tokens_per_micro_batch"]
        names += ["micro_batch_rollouts"] if not parallel.tokens_per_micro_batch else []
        knobs = [f"parallel.{name}={_text(getattr(parallel, name))}" for name in names]
        knobs.append(f"servers.tensor_parallel={self.servers.tensor}")
        return [*knobs, f"servers.gpu_memory_share={share:g}"]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def judge(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    work: Workload,
    *,
    server_gpus: int | None,
) -> Plan:
    """Memory and time of a configuration as it stands.

    Args:
        config: the run; ``servers.gpu_memory_share`` is the servers' part of a GPU.
        architecture: its model.
        gpu: of trainer and servers.
        work: tokens of a step.
        server_gpus: GPUs that only servers use; None: they share the trainer's GPUs.

    Raises:
        ValueError: the layout cannot hold the model; the message names the knob.
    """
    check_divisible(architecture, config)
    alone = peak_memory(config, architecture)
    return _judge(config, architecture, gpu, work, alone, server_gpus=server_gpus)


def _judge(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    work: Workload,
    alone: Memory,
    *,
    server_gpus: int | None,
) -> Plan:
    shared = server_gpus is None
    count = config.parallel.processes if server_gpus is None else server_gpus
    servers = Servers(
        gpus=count,
        tensor=config.servers.tensor_parallel,
        memory=config.servers.gpu_memory_share * gpu.memory,
        max_sequences=config.servers.max_sequences,
    )
    memory = replace(alone, server=servers.memory if shared else 0.0)
    faults = tuple(_faults(config, architecture, gpu, servers, memory))
    spent = {} if faults else phases(config, architecture, gpu, servers, work)
    return Plan(
        config=config,
        gpu=gpu,
        shared=shared,
        servers=servers,
        memory=memory,
        phases=spent,
        faults=faults,
        host=host_bytes(config, architecture),
    )


def _faults(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    servers: Servers,
    memory: Memory,
) -> Iterator[str]:
    if config.precision.transformer_engine and gpu.fp8 is None:
        yield f"{gpu.name} has no FP8 (precision.fp8={config.precision.fp8})"
    usable = gpu.memory * (1 - SPARE_SHARE)
    if memory.total > usable:
        yield f"the fullest GPU needs {memory.total / 1e9:.1f} GB, usable are {usable / 1e9:.1f} GB"
    if servers.gpus < 1 or servers.gpus % servers.tensor:
        yield f"{servers.gpus} GPUs cannot hold servers of {servers.tensor} GPUs"
        return
    if architecture.num_heads % servers.tensor:
        yield f"servers.tensor_parallel {servers.tensor} does not divide the heads"
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    held = cache_tokens(architecture, servers) / longest
    if held < MIN_SEQUENCES:
        yield (
            f"a server's {servers.memory / 1e9:.1f} GB hold {max(held, 0.0):.1f} of the longest "
            f"sequences, need {MIN_SEQUENCES}"
        )


def search(
    config: Config, architecture: Architecture, gpu: Gpu, work: Workload, *, gpus: int
) -> list[Plan]:
    """The layouts of ``gpus`` GPUs that fit, the fastest first, one per division of the GPUs.

    Recomputation, the budget of a micro-batch and the servers' share of memory are chosen, the
    rest of the configuration is kept: context parallelism, pieces of a pipeline rank, precision and
    what is offloaded too.

    Args:
        config: the run.
        architecture: its model.
        gpu: what there is.
        work: tokens of a step.
        gpus: how many, for trainer and servers.
    """
    best: dict[tuple[object, ...], Plan] = {}
    for trainer in dict.fromkeys((gpus, gpus // 2, 3 * gpus // 4)):
        server_gpus = None if trainer == gpus else gpus - trainer
        for candidate in layouts(config, architecture, gpu, trainer):
            parallel = candidate.parallel
            alone = peak_memory(candidate, architecture)
            for plan in _with_servers(
                candidate, architecture, gpu, work, alone, server_gpus=server_gpus
            ):
                sizes = (parallel.tensor, parallel.pipeline, parallel.expert)
                key = (trainer, *sizes, plan.servers.tensor)
                if key not in best or plan.step_s < best[key].step_s:
                    best[key] = plan
    return sorted(best.values(), key=lambda plan: (plan.step_s, plan.memory.total))


def layouts(
    config: Config, architecture: Architecture, gpu: Gpu, processes: int
) -> Iterator[Config]:
    """Every layout of so many trainer processes that can hold the model.

    Args:
        config: the run; its context-parallel size is kept.
        architecture: its model.
        gpu: tensor parallelism stays inside a node of it.
        processes: of the trainer.
    """
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    stripes = 2 * config.parallel.context
    budgets = [b for b in _BUDGETS if b >= longest] + [-(-longest // stripes) * stripes]
    experts = _EXPERT_SIZES if architecture.mixture else (1,)
    for tensor, pipeline, expert in product(_SIZES, _SIZES, experts):
        whole = tensor * pipeline * config.parallel.context
        if tensor > gpu.per_node or processes % whole:
            continue
        for recompute, budget in product(_RECOMPUTE, budgets):
            data = processes // whole
            parallel = config.parallel.model_dump() | {
                "tensor": tensor,
                "pipeline": pipeline,
                # Without a pipeline there is nothing to interleave.
                "virtual_pipeline": config.parallel.virtual_pipeline if pipeline > 1 else 1,
                "expert": expert,
                "data": data,
                "sequence": tensor > 1,
                "distributed_optimizer": data > 1,
                "recompute": recompute,
                "tokens_per_micro_batch": budget,
            }
            try:
                # The rules across knobs, then those of the model: the same as a run's.
                candidate = Config.model_validate(config.model_dump() | {"parallel": parallel})
                check_divisible(architecture, candidate)
            except ValueError:
                break
            yield candidate


def _with_servers(
    config: Config,
    architecture: Architecture,
    gpu: Gpu,
    work: Workload,
    alone: Memory,
    *,
    server_gpus: int | None,
) -> Iterator[Plan]:
    """The plans for every size of a server, with as large a share of memory as is free."""
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    free = 1.0 - SPARE_SHARE - (0.0 if server_gpus is not None else alone.total / gpu.memory)
    share = math.floor(100 * min(free, MAX_SERVER_SHARE)) / 100
    for tensor in _SIZES:
        cache = MIN_SEQUENCES * longest * cache_bytes_per_token(architecture, tensor)
        if share * gpu.memory < server_weights(architecture, tensor) + cache + SERVER_BYTES:
            continue
        knobs = {"tensor_parallel": tensor, "gpu_memory_share": share}
        servers = config.servers.model_copy(update=knobs)
        candidate = config.model_copy(update={"servers": servers})
        plan = _judge(candidate, architecture, gpu, work, alone, server_gpus=server_gpus)
        if not plan.faults:
            yield plan
