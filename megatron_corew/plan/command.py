"""`corew plan`: what a run needs, and which layouts of some GPUs hold it."""

from pathlib import Path
from typing import Annotated

import typer

from megatron_corew.plan.gpus import GPUS

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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in bytes and seconds.")
    ] = False,
) -> bool:
    """Estimate memory and step time before anything runs; exit code 1 if nothing fits.

    Needs neither GPU nor weights: the model's config.json, or the name of a published model.
    """
    # The weight table needs torch, which `corew --help` can do without.
    from megatron_corew.plan.answer import answer

    return answer(
        config_file,
        overrides or [],
        gpus=gpus,
        gpu=gpu,
        top=top,
        response_tokens=response_tokens,
        as_json=as_json,
    )
