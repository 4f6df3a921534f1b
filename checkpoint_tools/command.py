"""What the commands share: how they name choices, start, and fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import torch
import typer

DTYPE_OF = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


class DtypeName(StrEnum):
    """Types that weights may be written in."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Backend(StrEnum):
    """Who converts: this project's own weight tables, or NVIDIA's Megatron-Bridge."""

    NATIVE = "native"
    MEGATRON_BRIDGE = "megatron-bridge"


WrittenType = Annotated[DtypeName | None, typer.Option(help="Written type; default: as stored.")]
Workers = Annotated[int, typer.Option(min=1, help="Threads.")]
AllowNonfinite = Annotated[bool, typer.Option("--allow-nonfinite", help="Keep NaN and infinity.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what was written before.")]
Converter = Annotated[Backend, typer.Option(help="Who converts.")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Users' and the world's errors end the command with one line and exit code 1."""
    try:
        yield
    except typer.Exit:
        raise
    except (ValueError, RuntimeError, OSError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.secho("interrupted", fg="red", err=True)
        raise


def standalone(command: Callable[..., None], example: str) -> None:
    """Run one command as a program of its own (python -m checkpoint_tools....)."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=example)(command)
    app()
