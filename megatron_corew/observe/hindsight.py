"""Holds the collapse monitor against what the ground truth says, for runs that have one."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron_corew.config import MonitorConfig
from megatron_corew.observe.collapse import Alarm, Monitor
from megatron_corew.observe.summary import Records

TRUE = "reward/accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hindsight:
    """What the monitor says of a finished run, and what became of it."""

    alarms: Sequence[Alarm]
    start: float
    """Accuracy of the responses, mean of the first steps; NaN without a ground truth."""
    best: float
    """The largest mean over as many steps."""
    end: float
    """Mean of the last steps."""
    at_alarm: float | None
    """Mean of the steps up to the first alarm; None: there was none, or no ground truth."""
    fell_at: int | None
    """First step of the fall, see ``look_back``; None: it does not fall."""

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

    All accuracies are means over ``knobs.window`` steps. A run has fallen when it ends more than
    ``margin`` below its start (it collapsed), or below its best (it lost what it had gained). The
    fall begins where the accuracy goes below the start, or below the best less ``margin``, and
    stays there.

    Args:
        records: from ``read_metrics``.
        knobs: of the monitor.
        margin: of accuracy, in [0, 1].
    """
    means = _rolling(records, knobs.window)
    start, best, end = math.nan, math.nan, math.nan
    if means:
        values = list(means.values())
        start, best, end = values[0], max(values), values[-1]
    fell_at = None
    if start - end > margin:
        fell_at = _stays_below(means, start)
    elif best - end > margin:
        fell_at = _stays_below(means, best - margin)
    alarms = tuple(Monitor(knobs).replay(records))
    at_alarm = means.get(alarms[0].step) if alarms else None
    return Hindsight(
        alarms=alarms, start=start, best=best, end=end, at_alarm=at_alarm, fell_at=fell_at
    )


def _rolling(records: Records, window: int) -> dict[int, float]:
    """Step -> mean accuracy of the window that ends there."""
    last: deque[float] = deque(maxlen=window)
    means: dict[int, float] = {}
    for record in (record for record in records if math.isfinite(record.get(TRUE, math.nan))):
        last.append(record[TRUE])
        if len(last) == window:
            means[int(record["step"])] = sum(last) / window
    return means


def _stays_below(means: Mapping[int, float], limit: float) -> int:
    """The first step after which no mean reaches the limit; the last one is below it."""
    fell = next(iter(means))
    was_below = False
    for step, mean in means.items():
        if mean < limit and not was_below:
            fell = step
        was_below = mean < limit
    return fell
