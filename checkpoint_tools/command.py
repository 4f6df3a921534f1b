"""What the commands share: how they name choices, start, and fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import typer


class DtypeName(StrEnum):
    """Types that weights may be written in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Backend(StrEnum):
    """Who converts: this project's own weight tables, or NVIDIA's Megatron-Bridge."""

    NATIVE = "native"
    MEGATRON_BRIDGE = "megatron-bridge"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Users' and the world's errors end the command with one line and exit code 1."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error


def standalone(command: Callable[..., None], example: str) -> None:
    """Run one command as a program of its own (python -m checkpoint_tools....)."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=example)(command)
    app()
