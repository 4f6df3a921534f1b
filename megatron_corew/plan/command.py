"""`corew plan`: what a run needs, and which layouts of some GPUs hold it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.plan import show
from megatron_corew.plan.gpus import GPUS, gpu_named
from megatron_corew.plan.known_models import architecture_of
from megatron_corew.plan.planner import Plan, judge, search
from megatron_corew.plan.workload import Workload, workload

_console = Console(highlight=False, markup=False)
EPILOG = "Example: corew plan configs/runs/math_qwen3_8b.yaml --gpus 32 --gpu h100-80gb"


def plan(
    config_file: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Knobs to change, as section.key=value.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="Search layouts of so many GPUs; else judge the file's own."),
    ] = None,
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}.")] = "h100-80gb",
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 5,
    response_tokens: Annotated[
        float | None, typer.Option(help="Mean response length; half of the longest if not given.")
    ] = None,
    fp8: Annotated[bool, typer.Option(help="Linear layers in FP8.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in bytes and seconds.")
    ] = False,
) -> bool:
    """Estimate memory and step time before anything runs; exit code 1 if nothing fits.

    Needs neither GPU nor weights: the model's config.json, or the name of a published model.
    """
    config, kind = load_config(config_file, overrides or []), gpu_named(gpu)
    architecture = architecture_of(config)
    work = workload(config, response_tokens=response_tokens)
    if gpus is None:
        own = _addressed_gpus(config)
        plans = [judge(config, architecture, kind, work, server_gpus=own, fp8=fp8)]
        verdict = _own_verdict(plans[0])
    else:
        plans = search(config, architecture, kind, work, gpus=gpus, fp8=fp8)
        verdict = _search_verdict(plans, f"{gpus} x {kind.name}")
    fits = any(not plan.faults for plan in plans)
    if as_json:
        found = [show.as_dictionary(plan) for plan in plans[:top]]
        typer.echo(json.dumps({"verdict": verdict, "fits": fits, "plans": found}, indent=1))
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
        return f"nothing fits on {where}: take more or larger GPUs, or shorter responses."
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
