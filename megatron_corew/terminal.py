"""What every command shares: where it prints, how it fails."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

console = Console(highlight=False, markup=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Users' and the world's errors end the command with one line and exit code 1."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        errors.print(f"error: {error}", style="red")
        raise typer.Exit(1) from error
