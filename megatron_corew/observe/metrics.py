"""The metrics of a run: one JSON line per step, and the trackers that copy it.

metrics.jsonl is the record; every other tracker may be missing or wrong without harm. After a
resume some steps are logged again: readers take the later line.
"""

import math
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from megatron_corew.observe.jsonl import append, last_line, open_for_append, read_lines

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"


class MetricLog:
    """Writes the metrics of a run; use as a context manager.

    Args:
        folder: the run's folder; it exists.
        tensorboard: also write event files to ``tensorboard/``.
        wandb_project: also log to this Weights & Biases project; None: do not.
        config_dict: the configuration, for Weights & Biases.

    Raises:
        ValueError: ``wandb_project`` is set and the package is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tensorboard: bool,
        wandb_project: str | None,
        config_dict: Mapping[str, Any],
    ) -> None:
        path = folder / METRICS_FILE
        self._folder = folder
        self._file = open_for_append(path)
        last = last_line(path)
        self.attempt = 1 + last["attempt"] if last else 1
        """Which start of the run this is, counted from 1."""
        self._tensorboard = tensorboard
        self._writer: SummaryWriter | None = None
        self._wandb = _start_wandb(wandb_project, folder, config_dict) if wandb_project else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step; several calls for one step add up.

        Args:
            step: training step; 0 is before the first.
            metrics: ``group/name`` -> value. NaN and infinity are recorded as null.
        """
        line = {"step": step, "attempt": self.attempt, "time": time.time()}
        append(self._file, line | {name: _finite(value) for name, value in metrics.items()})
        if self._tensorboard:
            writer = self._event_writer(step)
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)
        if self._wandb is not None:
            # The step is a metric like any other: W&B drops what its own counter saw before.
            self._wandb.log({**metrics, "step": step})

    def event(self, step: int, kind: str, **fields: Any) -> None:
        """Record that something happened after a step.

        Args:
            step: training step.
            kind: ``start``, or ``alarm``, ``rollback`` or ``stop`` as in ``guard``.
            fields: JSON values about it.
        """
        stamp = {"step": step, "attempt": self.attempt, "time": time.time(), "event": kind}
        append(self._file, stamp | fields)

    def next_attempt(self) -> None:
        """Let what follows replace the records of the steps that are run again."""
        self.attempt += 1
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _event_writer(self, first_step: int) -> "SummaryWriter":
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Hides what an earlier attempt wrote from this step on.
            self._writer = SummaryWriter(
                str(self._folder / "tensorboard"), purge_step=first_step, flush_secs=10
            )
        return self._writer


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, one entry per step.

    Args:
        folder: the run's folder.

    Returns:
        In the order of the steps: ``step``, ``attempt``, ``time`` and the metrics. Lines of one
        attempt for one step are joined; a later attempt replaces an earlier one. What was not
        finite is NaN. Steps that a rollback took back are left out. Empty without a file.

    Raises:
        ValueError: a line before the last is damaged.
    """
    steps: dict[int, dict[str, float]] = {}
    for line in read_lines(folder / METRICS_FILE):
        if "event" in line:
            if line["event"] == "rollback":
                steps = {step: kept for step, kept in steps.items() if step <= line["to"]}
            continue
        values = {name: math.nan if value is None else value for name, value in line.items()}
        before = steps.get(line["step"], {})
        steps[line["step"]] = (before if before.get("attempt") == line["attempt"] else {}) | values
    return [steps[step] for step in sorted(steps)]


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The starts, alarms, rollbacks and stops of a run, in the order in which they happened.

    Args:
        folder: the run's folder.

    Returns:
        ``step``, ``attempt``, ``time``, ``event`` and what belongs to it. What a resumed run
        records again stands once, in the place of the first time.

    Raises:
        ValueError: a line before the last is damaged.
    """
    events: dict[tuple[object, ...], dict[str, Any]] = {}
    for line in read_lines(folder / METRICS_FILE):
        if line.get("event") == "alarm":
            events[line["step"], line["signal"], line["rollbacks"]] = line
        elif "event" in line:
            events[line["step"], line["event"], len(events)] = line
    return list(events.values())


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _start_wandb(project: str, folder: Path, config_dict: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            f"observe.wandb_project: need the package wandb for project {project!r}, got none. "
            "Install the extra wandb or set observe.wandb_project=null."
        ) from error
    # One W&B run per run folder, whatever the number of attempts; a folder made anew is a new run.
    id_file = folder / "wandb_id"
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex)
    run = wandb.init(
        project=project,
        name=folder.resolve().name,
        id=id_file.read_text(),
        resume="allow",
        dir=str(folder),
        config=dict(config_dict),
    )
    run.define_metric("*", step_metric="step")
    return run
