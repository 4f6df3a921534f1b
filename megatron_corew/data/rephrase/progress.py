"""Shows how far a rephrasing job is."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RephraseProgress:
    """A bar with the questions done, and how many of them got no rephrasing."""

    def __init__(self, console: Console, total: int) -> None:
        self._bar = Progress(
            TextColumn("rephrasing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[refused]} without a rephrasing"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=total, refused=0)
        self._refused = 0

    def count(self, accepted: bool) -> None:
        """Count one question."""
        self._refused += not accepted
        self._bar.update(self._task, advance=1, refused=self._refused)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
