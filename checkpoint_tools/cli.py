"""`corew-convert`: the four commands under one name."""

import typer

from checkpoint_tools import compare, hf_to_megatron, inspect, megatron_to_hf

app = typer.Typer(
    help="Hugging Face folders and Megatron-Core checkpoints: convert, compare, inspect.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name, module in {
    "hf-to-megatron": hf_to_megatron,
    "megatron-to-hf": megatron_to_hf,
    "compare": compare,
    "inspect": inspect,
}.items():
    app.command(name, epilog=module.EXAMPLE)(module.command)


def main() -> None:
    """Entry point of the console script."""
    app()
