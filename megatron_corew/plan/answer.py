"""Answers `corew plan`: judges or searches, prints, says whether anything fits."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.plan import show
from megatron_corew.plan.gpus import gpu_named
from megatron_corew.plan.known_models import architecture_of
from megatron_corew.plan.planner import Plan, judge, search
from megatron_corew.plan.workload import Workload, workload

_console = Console(highlight=False, markup=False)


def answer(
    config_file: Path,
    overrides: Sequence[str],
    *,
    gpus: int | None,
    gpu: str,
    top: int,
    response_tokens: float | None,
    as_json: bool,
) -> bool:
    """Print the plan of a run; the arguments are the command's.

    Returns:
        Whether anything fits.

    Raises:
        ValueError: the file, an override, the model's path, the GPU or the layout is wrong.
    """
    config, kind = load_config(config_file, overrides), gpu_named(gpu)
    architecture = architecture_of(config)
    work = workload(config, response_tokens=response_tokens)
    if gpus is None:
        own = _addressed_gpus(config)
        plans = [judge(config, architecture, kind, work, server_gpus=own)]
        verdict = _own_verdict(plans[0])
    else:
        plans = search(config, architecture, kind, work, gpus=gpus)
        verdict = _search_verdict(plans, f"{gpus} x {kind.name}")
    fits = any(not plan.faults for plan in plans)
    if as_json:
        found = [show.as_dictionary(plan) for plan in plans[:top]]
        _console.out(json.dumps({"verdict": verdict, "fits": fits, "plans": found}, indent=1))
    else:
        _print(plans[:top], work, verdict, searched=gpus is not None)
    return fits


def _addressed_gpus(config: Config) -> int | None:
    """GPUs of servers with addresses; None: the run starts them beside the trainer."""
    addresses = {*config.servers.policy, *config.servers.teacher}
    return len(addresses) * config.servers.tensor_parallel if addresses else None


def _own_verdict(plan: Plan) -> str:
    where = f"{plan.gpus} x {plan.gpu.name}"
    if plan.faults:
        return f"does not fit on {where}: {'; '.join(plan.faults)}. Try --gpus {plan.gpus}."
    peak, there = plan.memory.total / 1e9, plan.gpu.memory / 1e9
    return f"fits on {where}: {peak:.1f} of {there:.1f} GB, about {plan.step_s:.0f} s a step."


def _search_verdict(plans: list[Plan], where: str) -> str:
    if not plans:
        return (
            f"nothing fits on {where}: take more or larger GPUs, shorter responses, or "
            "optimizer.offload=true teacher.offload=true."
        )
    best = f"the best of {len(plans)} layouts takes about {plans[0].step_s:.0f} s a step"
    return f"fits on {where}: {best}."


def _print(plans: list[Plan], work: Workload, verdict: str, *, searched: bool) -> None:
    if plans:
        if searched:
            _console.print(show.plans_table(plans))
            _console.print(f"1: {' '.join(plans[0].overrides())}", soft_wrap=True)
        _console.print(show.memory_table(plans[0]))
        if plans[0].phases:
            _console.print(show.time_table(plans[0]))
        _console.print(show.assumptions_text(work), soft_wrap=True)
    _console.print(verdict, style="bold", soft_wrap=True)
