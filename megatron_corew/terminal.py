"""Where the commands print."""

from rich.console import Console

console = Console(highlight=False, markup=False, soft_wrap=True)
