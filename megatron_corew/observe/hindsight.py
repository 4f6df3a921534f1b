"""Holds the collapse monitor against what the ground truth says, for runs that have one."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_corew.config import MonitorConfig
from megatron_corew.observe.collapse import Alarm, Monitor
from megatron_corew.observe.summary import Records, column, ends

TRUE = "reward/accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hindsight:
    """What the monitor says of a finished run, and what became of it."""

    alarms: Sequence[Alarm]
    start: float
    """Accuracy of the responses, mean of the first steps; NaN without a ground truth."""
    end: float
    """The same of the last steps."""
    fell_at: int | None
    """First step from which on the accuracy stays below its start; None: it does not collapse."""

    @property
    def lead(self) -> int | None:
        """Steps between the first alarm and the fall; negative when the alarm came later."""
        if self.fell_at is None or not self.alarms:
            return None
        return self.fell_at - self.alarms[0].step

    @property
    def outcome(self) -> str:
        """``detected``, ``missed``, ``false alarm``, ``silent``; ``unknown`` without a truth."""
        if math.isnan(self.start):
            return "unknown"
        if self.fell_at is None:
            return "false alarm" if self.alarms else "silent"
        return "detected" if self.alarms else "missed"


def look_back(records: Records, knobs: MonitorConfig, *, margin: float) -> Hindsight:
    """Replay a run's records through the monitor and compare with its accuracy.

    A run has collapsed when the accuracy of its responses, as a mean over ``knobs.window`` steps,
    ends more than ``margin`` below its mean over the first steps. It fell at the first step after
    which that mean never reaches its start again.

    Args:
        records: from ``read_metrics``.
        knobs: of the monitor.
        margin: of accuracy, in [0, 1].
    """
    values = column(records, TRUE)
    start, end = ends(values) if values else (math.nan, math.nan)
    fell_at = _fell_at(records, start, knobs.window) if start - end > margin else None
    return Hindsight(
        alarms=tuple(Monitor(knobs).replay(records)), start=start, end=end, fell_at=fell_at
    )


def _fell_at(records: Records, start: float, window: int) -> int:
    last: deque[float] = deque(maxlen=window)
    fell = 0
    for record in (record for record in records if TRUE in record):
        last.append(record[TRUE])
        is_below = len(last) == window and sum(last) / window < start
        fell = (fell or int(record["step"])) if is_below else 0
    return fell
