"""Carries out the runs of a comparison, several at a time, and goes on where it was interrupted."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from megatron_corew.lab.compare.plan import Cell

POLL_S = 0.5


class Process(Protocol):
    """A run that goes on; ``subprocess.Popen`` is one."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def wait(self) -> int: ...


class Watcher(Protocol):
    """Is told what happens."""

    def skipped(self, cell: Cell) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def running(self, cells: Sequence[Cell]) -> None: ...

    def ended(self, cell: Cell, code: int) -> None: ...


def carry_out(
    cells: Sequence[Cell],
    *,
    jobs: int,
    start: Callable[[Cell], Process],
    watcher: Watcher,
    pause: Callable[[float], None] = time.sleep,
) -> list[Cell]:
    """Run what is not finished; a run that stopped halfway goes on from its checkpoint.

    A run that fails does not stop the others. An interrupt ends all that are going on.

    Args:
        cells: In the order to start them.
        jobs: Runs at the same time.
        start: Starts the training command of a run.
        watcher: Told of every event.
        pause: Waits for so many seconds between two looks.

    Returns:
        The runs that did not come to their last checkpoint, in the order of ``cells``.
    """
    waiting = [cell for cell in cells if not cell.is_finished]
    for cell in cells:
        if cell not in waiting:
            watcher.skipped(cell)
    running: list[tuple[Cell, Process]] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running.append((cell, start(cell)))
                watcher.started(cell)
            watcher.running([cell for cell, _ in running])
            pause(POLL_S)
            for cell, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((cell, process))
                watcher.ended(cell, process.wait())
    finally:
        _end(running)
    return [cell for cell in cells if not cell.is_finished]


def _end(running: Sequence[tuple[Cell, Process]]) -> None:
    for _, process in running:
        process.terminate()
    for _, process in running:
        process.wait()
