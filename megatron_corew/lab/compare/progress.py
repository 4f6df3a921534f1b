"""What a person sees of a comparison: a live display, or plain lines without a terminal."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from megatron_corew.lab.compare.job import LOG_FILE
from megatron_corew.lab.compare.plan import Cell
from megatron_corew.observe.jsonl import last_line
from megatron_corew.observe.metrics import METRICS_FILE


class CompareProgress:
    """Shows how far the runs are; use as a context manager.

    Args:
        console: Where to.
        num_runs: Runs of the comparison.
        sum_up: One line about a finished run.
    """

    def __init__(self, console: Console, num_runs: int, *, sum_up: Callable[[Cell], str]) -> None:
        self._console, self._sum_up, self._num_runs, self._done = console, sum_up, num_runs, 0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("runs", total=num_runs)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def skipped(self, cell: Cell) -> None:
        """A run was finished before."""
        self._count(cell, "finished before")

    def started(self, cell: Cell) -> None:
        """A run starts, or goes on."""
        done = cell.folder.latest_step()
        self._console.print(f"{cell.name}: {f'goes on after step {done}' if done else 'starts'}")
        steps = cell.config.run.steps
        self._tasks[cell.name] = self._bars.add_task(cell.name, total=steps, completed=done or 0)

    def running(self, cells: Sequence[Cell]) -> None:
        """Some time has passed."""
        for cell in cells if self._console.is_terminal else ():
            last = last_line(cell.folder.path / METRICS_FILE)
            if last is not None:
                self._bars.update(self._tasks[cell.name], completed=last["step"])

    def ended(self, cell: Cell, code: int) -> None:
        """A run's process is gone."""
        self._bars.remove_task(self._tasks.pop(cell.name))
        if cell.is_finished:
            self._count(cell, "done")
        else:
            log = cell.folder.logs / LOG_FILE
            self._console.print(f"{cell.name}: failed with code {code}; see {log}")

    def _count(self, cell: Cell, what: str) -> None:
        self._done += 1
        self._bars.update(self._all, completed=self._done)
        self._console.print(f"{self._done}/{self._num_runs} {what}: {self._sum_up(cell)}")
