"""The command line that all launchers share, and what they do before they differ."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from launchers.bundle import Bundle, make_bundle
from launchers.cluster import Cluster, load_cluster
from launchers.placement import Placement, Wish, picture, place
from megatron_corew.config_file import load_config

_console = Console(highlight=False, markup=False, soft_wrap=True)
_errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One checked request: what to start and where."""

    cluster: Cluster
    placement: Placement
    bundle: Bundle


def run_command(start: Callable[[Launch, bool], str], *, help: str, example: str) -> None:
    """Be the command of a launcher: read, check, show, start.

    Args:
        start: starts the launch, or with True only says what it would do; returns a summary.
        help: one sentence.
        example: command line to show.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(help=help, epilog=f"Example: {example}")
    def main(
        config_file: Annotated[Path, typer.Argument(help="YAML file of the run.")],
        cluster: Annotated[Path, typer.Option(help="YAML file of the cluster.")],
        overrides: Annotated[
            list[str] | None,
            typer.Argument(help="Knobs to change, as section.key=value, or further YAML files."),
        ] = None,
        nodes: Annotated[int, typer.Option(min=1, help="Trainer nodes.")] = 1,
        policy_nodes: Annotated[
            int, typer.Option(min=0, help="Nodes with policy servers; 0: on the trainer's nodes.")
        ] = 0,
        teacher_nodes: Annotated[int, typer.Option(min=0, help="Nodes with teacher servers.")] = 0,
        teacher_servers: Annotated[
            int, typer.Option(min=0, help="Teacher servers on each trainer node.")
        ] = 0,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Print the scripts and who runs where.")
        ] = False,
    ) -> None:
        with _one_line_errors():
            wish = Wish(
                nodes=nodes,
                policy_nodes=policy_nodes,
                teacher_nodes=teacher_nodes,
                teacher_servers=teacher_servers,
            )
            launch = _prepare(config_file, overrides or [], cluster, wish)
            if dry_run:
                _print_scripts(launch.bundle)
            _console.print(picture(launch.placement))
            _console.print(start(launch, dry_run))

    sys.exit(app())


def _prepare(config_file: Path, overrides: list[str], cluster_file: Path, wish: Wish) -> Launch:
    config = load_config(config_file, overrides)
    cluster = load_cluster(cluster_file)
    placement = place(config, cluster, wish)
    bundle = make_bundle(config, cluster, placement)
    return Launch(cluster=cluster, placement=placement, bundle=bundle)


def _print_scripts(bundle: Bundle) -> None:
    for name, text in bundle.scripts.items():
        _console.print(f"---- {bundle.folder / name}\n{text}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Users' and the world's errors end the command with one line and exit code 1."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        _errors.print(f"error: {error}", style="red")
        raise typer.Exit(1) from error
