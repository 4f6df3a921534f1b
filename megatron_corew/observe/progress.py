"""What a person sees of a run that trains: a live display, or plain lines without a terminal."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table

from megatron_corew.observe.format import duration, phase_seconds, share

_HELD_OUT = {"held-out accuracy": "eval/accuracy_original", "rephrased": "eval/accuracy_rephrased"}
_FIGURES = {
    "reward": "reward/mean",
    "vote share": "label/vote_share",
    "unlabelled": "label/unlabelled_share",
    "label accuracy": "label/accuracy",
    "truncated": "response/truncated_share",
}


class Progress:
    """Shows how a run goes; use as a context manager, in one process only.

    Args:
        total_steps: last step of the run.
        first_step: the first step of this attempt.
        console: where to show it; None: standard output.
    """

    def __init__(
        self, total_steps: int, *, first_step: int = 1, console: Console | None = None
    ) -> None:
        self._console = console or Console()
        self._total = total_steps
        self._anchor: tuple[int, float] | None = None
        self._metrics: dict[str, float] = {}
        self._start_values: dict[str, float] = {}
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("starting", total=total_steps, completed=first_step - 1)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.doing("stopped" if error else "done")
        if self._live is not None:
            self._live.stop()

    def doing(self, what: str) -> None:
        """Name what happens now, such as ``evaluating``; live display only.

        Args:
            what: a word or two.
        """
        self._bar.update(self._task, description=what)

    def note(self, text: str) -> None:
        """Say something once, above the display.

        Args:
            text: one line.
        """
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def go_back(self, step: int) -> None:
        """Count the steps after ``step`` again.

        Args:
            step: the last one that stands.
        """
        self._anchor = None
        self._bar.update(self._task, completed=step)

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step.

        Args:
            step: which; 0 is the evaluation before training.
            metrics: by their usual names; what is not there is not shown. Held-out accuracy stays
                visible until the next evaluation.
        """
        held_out = {n: v for n, v in self._metrics.items() if n in _HELD_OUT.values()}
        self._metrics = held_out | dict(metrics)
        for name in _HELD_OUT.values():
            if name in metrics:
                self._start_values.setdefault(name, metrics[name])
        # Steps are timed from the first one shown: servers and models load before it.
        self._anchor = self._anchor or (step, time.monotonic())
        self._bar.update(self._task, completed=step)
        if self._live is None:
            self.note(self._line(step, metrics))

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        figures = [
            f"{label} {share(metrics[name])}"
            for label, name in (_FIGURES | _HELD_OUT).items()
            if name in metrics
        ]
        seconds = metrics.get("time/step_s", sum(phase_seconds(metrics).values()))
        if seconds:
            figures.append(f"{seconds:.1f} s")
        left = self._seconds_left(step)
        if left:
            figures.append(f"left {duration(left)}")
        width = len(str(self._total))
        return f"step {step:>{width}}/{self._total}  " + "  ".join(figures)

    def _seconds_left(self, step: int) -> float | None:
        first, since = self._anchor or (step, 0.0)
        if step == first:
            return None
        return (time.monotonic() - since) / (step - first) * (self._total - step)

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        figures, seconds = self._figures(), phase_seconds(self._metrics)
        phases = [(name.replace("_", " "), f"{value:.2f} s") for name, value in seconds.items()]
        for row in range(max(len(figures), len(phases))):
            left = figures[row] if row < len(figures) else ("", "")
            right = phases[row] if row < len(phases) else ("", "")
            table.add_row(f"[dim]{left[0]}[/]", left[1], f"[dim]{right[0]}[/]", right[1])
        return Group(self._bar.get_renderable(), table)

    def _figures(self) -> list[tuple[str, str]]:
        rows = []
        for label, name in _HELD_OUT.items():
            if name in self._metrics:
                start, now = self._start_values[name], self._metrics[name]
                rows.append((label, f"{share(start)} -> [bold green]{share(now)}[/]"))
        rows += [
            (label, share(self._metrics[name]))
            for label, name in _FIGURES.items()
            if name in self._metrics
        ]
        return rows
