"""`corew lab compare`: every method from one pre-registered setting, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkpoint_tools.command import one_line_errors
from megatron_corew.methods import METHODS
from megatron_corew.terminal import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from megatron_corew.lab.compare.plan import Cell
    from megatron_corew.lab.compare.results import MethodResult

app = typer.Typer(no_args_is_help=True)


@app.callback()
def lab() -> None:
    """See the methods collapse or hold on a task that two CPU cores can learn."""


@app.command(
    epilog="Example: corew lab compare --base echo --methods majority_vote,co_rewarding_i --seeds 1"
)
def compare(
    base: Annotated[
        str,
        typer.Option(
            help="Policy to start from. echo: its short cut differs between the views; clean: "
            "hardly any; shared: its short cut is the same in both views."
        ),
    ] = "echo",
    methods: Annotated[
        str, typer.Option(help="Presets, separated by commas; all of corew methods by default.")
    ] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, one core each.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/lab-BASE by default.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps instead of the pre-registered ones.")
    ] = None,
) -> None:
    """Run every method from one pre-registered setting and compare what becomes of it.

    Every run is a real `corew train`. Finished runs are skipped and half ones go on, so the same
    command continues an interrupted comparison, and more seeds add to it. Writes results.md,
    results.json, accuracy.png, signals.png and comparison.html.
    """
    with one_line_errors():
        from megatron_corew.lab.compare.plan import plan
        from megatron_corew.lab.compare.writing import FILES, write_comparison

        folder = Path("runs") / f"lab-{base}" if out is None else out
        names = [name.strip() for name in methods.split(",")]
        cells = plan(names, base=base, seeds=seeds, out=folder, steps=steps)
        folder.mkdir(parents=True, exist_ok=True)
        failed = _carry_out(cells, jobs)
        finished = [cell for cell in cells if cell not in failed]
        if finished:
            _show(write_comparison(finished, folder, base=base))
            console.print(f"{len(finished)} of {len(cells)} runs; {', '.join(FILES)} in {folder}")
        if failed:
            raise RuntimeError(
                f"corew lab compare: {len(failed)} of {len(cells)} runs failed "
                f"({', '.join(cell.name for cell in failed)}); their output is in "
                f"{failed[0].folder.logs.parent.parent}/RUN/logs/compare.log. The same command "
                "tries them again."
            )


def _carry_out(cells: "Sequence[Cell]", jobs: int) -> "list[Cell]":
    from megatron_corew.lab.compare.job import start_training
    from megatron_corew.lab.compare.progress import CompareProgress
    from megatron_corew.lab.compare.schedule import carry_out

    with CompareProgress(console, len(cells), sum_up=_one_line) as progress:
        return carry_out(cells, jobs=jobs, start=start_training, watcher=progress)


def _one_line(cell: "Cell") -> str:
    from megatron_corew.lab.compare.results import run_result
    from megatron_corew.observe.format import duration, share
    from megatron_corew.observe.metrics import read_metrics

    found = run_result(read_metrics(cell.folder.path), method=cell.method, seed=cell.seed)
    start, final = found.figures["original start"], found.figures["original final"]
    return (
        f"{cell.name} {found.outcome}, accuracy {share(start)} -> {share(final)}, "
        f"{duration(found.seconds)}"
    )


def _show(methods: "Sequence[MethodResult]") -> None:
    from megatron_corew.lab.compare.tables import table_rows

    console.print()
    for name, seeds, outcome, *cells in table_rows(methods):
        original = "  ".join(f"{cell:<18}" for cell in cells[:3])
        console.print(f"{name:<25} {seeds:<16} {outcome:<24} {original}".rstrip())
