"""Recognises a collapse from the metrics of the steps, without any label.

Every signal compares a mean over the last steps with the same mean over the first ones. A step
alone is noise; a signal that stands for several steps in a row is an alarm. The state is small and
a pure function of the metrics so far, so that replaying metrics.jsonl restores it.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_corew.config import MonitorConfig
from megatron_corew.observe.format import number


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One measured quantity of an alarm."""

    metric: str
    start: float
    """Mean over the first steps of the run."""
    now: float
    """Mean over the last steps."""
    limit: float
    """What ``now`` should not have passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A signal that stood for as many steps as the configuration asks for."""

    signal: str
    """Its name, one of ``SIGNALS``."""
    step: int
    """The step after which it was raised."""
    since: int
    """The first of the steps in a row at which the signal stood."""
    sentence: str
    """What a person should know, figures included."""
    evidence: tuple[Evidence, ...]

    def as_fields(self) -> dict[str, Any]:
        """The alarm as JSON values; what is not finite is None."""
        return {
            "signal": self.signal,
            "since": self.since,
            "sentence": self.sentence,
            "evidence": [
                {
                    "metric": one.metric,
                    "start": _finite(one.start),
                    "now": _finite(one.now),
                    "limit": _finite(one.limit),
                }
                for one in self.evidence
            ],
        }


class Monitor:
    """Watches a run step by step.

    Args:
        knobs: windows and thresholds.
    """

    def __init__(self, knobs: MonitorConfig) -> None:
        self._knobs = knobs
        self._first: list[Mapping[str, float]] = []
        self._best: dict[str, float] = {}
        self._last: deque[Mapping[str, float]] = deque(maxlen=knobs.window)
        self._since: dict[str, int] = {}
        self._streak: dict[str, int] = {}

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Take in a step.

        Args:
            step: training step, counted from 1 and rising; others are ignored.
            metrics: of the step, by their usual names; a signal without its metrics is silent.

        Returns:
            The alarms that are new: a signal raises one when it has stood for ``patience`` steps,
            and another one only after it has been away.
        """
        if step < 1:
            return []
        self._last.append(metrics)
        if len(self._first) < self._knobs.window:
            self._first.append(metrics)
            return []
        alarms = []
        first, last = Means(self._first), Means(self._last)
        for metric in (WITHIN, ACROSS):
            # NaN is never larger.
            if last.of(metric) > self._best.get(metric, first.of(metric)):
                self._best[metric] = last.of(metric)
        for signal, look in _SIGNALS.items():
            found = look(self._knobs, first, last, self._best)
            if found is None:
                self._streak[signal] = 0
                continue
            self._streak[signal] = self._streak.get(signal, 0) + 1
            if self._streak[signal] == 1:
                self._since[signal] = step
            if self._streak[signal] == self._knobs.patience:
                sentence, evidence = found
                alarms.append(
                    Alarm(
                        signal=signal,
                        step=step,
                        since=self._since[signal],
                        sentence=sentence,
                        evidence=evidence,
                    )
                )
        return alarms

    def replay(self, records: Iterable[Mapping[str, float]]) -> list[Alarm]:
        """Take in recorded steps, such as ``read_metrics`` gives them.

        Args:
            records: metrics with their ``step``, in order.

        Returns:
            All alarms that the run raised or would have raised.
        """
        return [alarm for one in records for alarm in self.observe(int(one["step"]), one)]


class Means:
    """Means over some steps; a metric that a step lacks does not count there.

    Args:
        steps: metrics of the steps.
    """

    def __init__(self, steps: Iterable[Mapping[str, float]]) -> None:
        self._steps = list(steps)

    def of(self, metric: str) -> float:
        """The mean of the finite values; NaN when there are none."""
        found = [step[metric] for step in self._steps if math.isfinite(step.get(metric, math.nan))]
        return sum(found) / len(found) if found else math.nan


Best = Mapping[str, float]
"""Largest mean so far of the agreements, where it is above the first."""
Found = tuple[str, tuple[Evidence, ...]] | None
"""Sentence and evidence of a signal that stands; None: it does not, or cannot be measured."""
WITHIN, ACROSS = "agreement/within", "agreement/across"
KL, TEACHER = "policy/kl", "label/teacher_policy_agreement"
TOP, SPREAD = "answers/top_share", "answers/spread"
TRUNCATED, NO_ANSWER = "response/truncated_share", "answers/none_share"


def _agreement(knobs: MonitorConfig, first: Means, last: Means, best: Best) -> Found:
    """Samples of one prompt agree more and more, those of its other view do not follow."""
    gain = last.of(WITHIN) - first.of(WITHIN)
    needed = knobs.across_share * gain
    across = last.of(ACROSS) - first.of(ACROSS)
    # A comparison with NaN is False: without both measures the signal is silent.
    if not (gain > knobs.agreement_gain and across < needed):
        return None
    evidence = (
        _evidence(WITHIN, first, last, first.of(WITHIN) + knobs.agreement_gain),
        _evidence(ACROSS, first, last, first.of(ACROSS) + needed),
    )
    return (
        f"Answers to one wording of a question agree more ({_change(WITHIN, first, last)}), but "
        f"not with the answers to its other wording ({_change(ACROSS, first, last)}): the policy "
        "becomes sure of something that depends on the wording.",
        evidence,
    )


def _contradiction(knobs: MonitorConfig, first: Means, last: Means, best: Best) -> Found:
    """Answers that used to agree do so no more, in a group (its halves part) or over the views."""
    for metric, words in ((WITHIN, "the same wording"), (ACROSS, "the two wordings")):
        limit = best.get(metric, first.of(metric)) - knobs.agreement_loss
        if last.of(metric) < limit:
            return (
                f"Answers to {words} of a question contradict each other more than before: the "
                f"chance that two agree was {first.of(metric):.3g} at first, "
                f"{limit + knobs.agreement_loss:.3g} at best, and is {last.of(metric):.3g}.",
                (_evidence(metric, first, last, limit),),
            )
    return None


def _drift(knobs: MonitorConfig, first: Means, last: Means, best: Best) -> Found:
    """The policy is far from its KL reference."""
    if not last.of(KL) > knobs.max_kl:
        return None
    return (
        f"The policy has moved far from its reference: KL {_change(KL, first, last)} nats per "
        f"token, more than {number(knobs.max_kl)}.",
        (_evidence(KL, first, last, knobs.max_kl),),
    )


def _concentration(knobs: MonitorConfig, first: Means, last: Means, best: Best) -> Found:
    """Few answers stand for many questions."""
    most = max(knobs.top_share, knobs.top_growth * first.of(TOP))
    fewest = knobs.distinct_share * first.of(SPREAD)
    evidence = (_evidence(TOP, first, last, most), _evidence(SPREAD, first, last, fewest))
    if last.of(TOP) > most:
        return (
            f"One answer is given to many different questions: its share of all responses went "
            f"{_change(TOP, first, last)}.",
            evidence,
        )
    if last.of(SPREAD) < fewest:
        return (
            f"The answers to different questions become the same: distinct answers of all "
            f"questions, over the sum of each one's own, went {_change(SPREAD, first, last)}.",
            evidence,
        )
    return None


def _unreadable(knobs: MonitorConfig, first: Means, last: Means, best: Best) -> Found:
    """Responses without an end or without an answer."""
    for metric, words in ((NO_ANSWER, "have no readable answer"), (TRUNCATED, "are cut off")):
        limit = first.of(metric) + knobs.unreadable_gain
        if last.of(metric) > limit:
            return (
                f"More and more responses {words}: their share went "
                f"{_change(metric, first, last)}.",
                (_evidence(metric, first, last, limit),),
            )
    return None


def _teacher(knobs: MonitorConfig, first: Means, last: Means, best: Best) -> Found:
    """Policy and teacher elect different answers."""
    limit = first.of(TEACHER) - knobs.teacher_loss
    if not last.of(TEACHER) < limit:
        return None
    return (
        f"The policy leaves its teacher: the share of questions for which both elect the same "
        f"answer went {_change(TEACHER, first, last)}.",
        (_evidence(TEACHER, first, last, limit),),
    )


_SIGNALS: dict[str, Callable[[MonitorConfig, Means, Means, Best], Found]] = {
    "agreement": _agreement,
    "contradiction": _contradiction,
    "drift": _drift,
    "concentration": _concentration,
    "unreadable": _unreadable,
    "teacher": _teacher,
}
SIGNALS: Sequence[str] = tuple(_SIGNALS)
"""The names of all signals."""


def _evidence(metric: str, first: Means, last: Means, limit: float) -> Evidence:
    return Evidence(metric=metric, start=first.of(metric), now=last.of(metric), limit=limit)


def _change(metric: str, first: Means, last: Means) -> str:
    return f"{first.of(metric):.3g} -> {last.of(metric):.3g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
