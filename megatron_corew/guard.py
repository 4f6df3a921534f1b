"""Decides what a run does about an alarm of the collapse monitor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from megatron_corew.config import MonitorConfig
from megatron_corew.observe.collapse import Alarm, Monitor
from megatron_corew.observe.metrics import MetricLog, read_events, read_metrics
from megatron_corew.runs import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What becomes of the run after a step."""

    action: Literal["go_on", "stop", "rollback"]
    alarms: tuple[Alarm, ...] = ()
    to_step: int = 0
    """``rollback``: the step whose checkpoint is restored."""
    lr_scale: float = 1.0
    """Factor on the learning rate from here on."""
    reason: str = ""
    """``stop``: one sentence."""


class Guard:
    """The monitor of one run with the power to stop it or turn it back; rank 0 only.

    What it knows comes from the run's own records, so that a resumed run goes on as if it had
    never stopped.

    Args:
        knobs: thresholds, and what to do.
        folder: of the run.
        log: where alarms and rollbacks are recorded.
        first_step: the first step of this attempt.
    """

    def __init__(
        self, knobs: MonitorConfig, folder: RunFolder, log: MetricLog, *, first_step: int
    ) -> None:
        self._knobs, self._folder, self._log = knobs, folder, log
        # Without a checkpoint this is another run in the same folder.
        events = [] if folder.latest_step() is None else read_events(folder.path)
        self._rollbacks = sum(event["event"] == "rollback" for event in events)
        self._restart(first_step)

    @property
    def lr_scale(self) -> float:
        """Factor on the learning rate after the rollbacks so far."""
        return float(self._knobs.lr_factor**self._rollbacks)

    def judge(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        """Look at a finished, recorded step; record its alarms, and turn back where that is asked.

        Args:
            step: training step.
            metrics: its metrics.

        Returns:
            What to do; after ``rollback`` the folder's newest checkpoint is the one to restore,
            and the monitor has forgotten the steps after it. A ``stop`` that ends the rollbacks
            leaves that checkpoint the newest one too, for ``corew export``.
        """
        if self._knobs.on_collapse == "off":
            return Verdict(action="go_on", lr_scale=self.lr_scale)
        alarms = tuple(self._monitor.observe(step, metrics))
        for alarm in alarms:
            self._log.event(step, "alarm", rollbacks=self._rollbacks, **alarm.as_fields())
        if not alarms or self._knobs.on_collapse == "warn":
            return Verdict(action="go_on", alarms=alarms, lr_scale=self.lr_scale)
        before = self._step_before(alarms)
        if self._knobs.on_collapse == "stop":
            return self._stop(step, alarms, "monitor.on_collapse is stop", before)
        return self._turn_back(step, alarms, before)

    def _step_before(self, alarms: tuple[Alarm, ...]) -> int | None:
        """The last checkpoint without a trace of the evidence."""
        first = _first_step_of_evidence(self._knobs, alarms)
        earlier = [saved for saved in self._folder.steps() if saved < first]
        return earlier[-1] if earlier else None

    def _turn_back(self, step: int, alarms: tuple[Alarm, ...], to_step: int | None) -> Verdict:
        if to_step is None:
            first = _first_step_of_evidence(self._knobs, alarms)
            why = f"there is no checkpoint from before step {first}"
            return self._stop(step, alarms, why, to_step)
        # The pointer first: a kill in between costs the lower rate, not the way back.
        self._folder.rewind(to_step)
        if self._rollbacks == self._knobs.max_rollbacks:
            return self._stop(step, alarms, f"{self._rollbacks} rollbacks did not help", to_step)
        self._rollbacks += 1
        self._log.event(step, "rollback", to=to_step, lr_scale=self.lr_scale)
        self._log.next_attempt()
        self._restart(to_step + 1)
        return Verdict(action="rollback", alarms=alarms, to_step=to_step, lr_scale=self.lr_scale)

    def _stop(self, step: int, alarms: tuple[Alarm, ...], why: str, before: int | None) -> Verdict:
        self._log.event(step, "stop", reason=why, before=before)
        return Verdict(action="stop", alarms=alarms, lr_scale=self.lr_scale, reason=why)

    def _restart(self, first_step: int) -> None:
        self._monitor = Monitor(self._knobs)
        records = read_metrics(self._folder.path)
        self._monitor.replay(record for record in records if record["step"] < first_step)


def _first_step_of_evidence(knobs: MonitorConfig, alarms: tuple[Alarm, ...]) -> int:
    """The first step of the first mean in which a signal stood, at least 1."""
    return max(1, min(alarm.since for alarm in alarms) - knobs.window + 1)


def stop_message(folder: RunFolder) -> str | None:
    """Why the monitor stopped a run.

    Args:
        folder: of the run.

    Returns:
        One line with the last alarm and the policy from before it, when the last thing recorded
        is a stop; else None.
    """
    events = read_events(folder.path)
    records = read_metrics(folder.path)
    if not events or events[-1]["event"] != "stop" or records[-1]["step"] != events[-1]["step"]:
        return None
    alarm = next(event for event in reversed(events) if event["event"] == "alarm")
    stop = events[-1]
    kept = (
        "No checkpoint from before it is left."
        if stop["before"] is None
        else f"The policy from before it: corew export {folder.path} OUT --step {stop['before']}."
    )
    return (
        f"monitor: the run was stopped after step {stop['step']} ({stop['reason']}). "
        f"{alarm['sentence']} {kept} Lower optimizer.lr, try another method, or go "
        "on regardless with monitor.on_collapse=warn."
    )
