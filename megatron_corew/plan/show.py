"""Shows plans: a table for people, a dictionary for programs."""

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from megatron_corew.plan.assumptions import NOT_MODELLED, PUBLISHED_OVER_PLANNED
from megatron_corew.plan.planner import Plan
from megatron_corew.plan.workload import Workload

_GB = 1e9


def memory_table(plan: Plan) -> Table:
    """The fullest trainer GPU, cause by cause."""
    table = Table(title="Fullest trainer GPU", title_justify="left", box=SIMPLE)
    table.add_column("cause")
    table.add_column("GB", justify="right")
    for cause, count in plan.memory.causes().items():
        table.add_row(cause.replace("_", " "), f"{count / _GB:.1f}")
    table.add_row("peak", f"{plan.memory.total / _GB:.1f}", style="bold")
    table.add_row("of", f"{plan.gpu.memory / _GB:.1f}")
    if plan.host:
        table.add_row("host memory for each GPU", f"{plan.host / _GB:.1f}")
    return table


def time_table(plan: Plan) -> Table:
    """The phases of a step."""
    table = Table(title="Step, estimated", title_justify="left", box=SIMPLE)
    table.add_column("phase")
    table.add_column("s", justify="right")
    for phase, seconds in plan.phases.items():
        table.add_row(phase, f"{seconds:.1f}")
    table.add_row("step", f"{plan.step_s:.1f}", style="bold")
    return table


def plans_table(plans: list[Plan]) -> Table:
    """The best few, the fastest first.

    Parallel sizes of the trainer, what the backward pass computes again, tokens of a micro-batch,
    servers x GPUs of each (beside the trainer or on GPUs apart), the fullest GPU, a step's seconds.
    """
    title = "Layouts that fit, the fastest first"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in ("", "TP/PP/DP/EP", "again", "tokens", "servers", "share", "GB", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, plan in enumerate(plans, start=1):
        parallel, servers = plan.config.parallel, plan.servers
        where = "beside" if plan.shared else "apart"
        table.add_row(
            str(number),
            f"{parallel.tensor}/{parallel.pipeline}/{parallel.data}/{parallel.expert}",
            parallel.recompute,
            str(parallel.tokens_per_micro_batch),
            f"{servers.count} x {servers.tensor} {where}",
            f"{plan.config.servers.gpu_memory_share:.2f}",
            f"{plan.memory.total / _GB:.1f}",
            f"{plan.step_s:.0f}",
        )
    return table


def assumptions_text(work: Workload) -> str:
    """What the figures rest on."""
    low, high = PUBLISHED_OVER_PLANNED
    lengths = f"{work.prompt_tokens:g} prompt and {work.response_tokens:g} response tokens"
    return (
        f"Assumed: sequences of {lengths} on average (--response-tokens). Estimates, not "
        f"measurements; not modelled: {'; '.join(NOT_MODELLED)}. So seconds are a lower bound: "
        f"published steps of NeMo-RL took {low:g} to {high:g} times what is planned for them."
    )


def as_dictionary(plan: Plan) -> dict[str, Any]:
    """A plan in bytes and seconds."""
    return {
        "fits": not plan.faults,
        "faults": list(plan.faults),
        "gpus": plan.gpus,
        "trainer_gpus": plan.config.parallel.processes,
        "servers": {
            "count": plan.servers.count,
            "gpus_each": plan.servers.tensor,
            "bytes_per_gpu": plan.servers.memory,
            "share_gpus_with_trainer": plan.shared,
        },
        "overrides": plan.overrides(),
        "memory_bytes": plan.memory.causes() | {"total": plan.memory.total},
        "gpu_memory_bytes": plan.gpu.memory,
        "host_bytes_for_each_gpu": plan.host,
        "phase_s": plan.phases,
        "step_s": plan.step_s,
    }
