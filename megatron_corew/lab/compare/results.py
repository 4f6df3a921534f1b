"""What a comparison's runs came to, as figures of runs and of methods."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from megatron_corew.observe.summary import Records, column, ends
from megatron_corew.types import VIEWS

Outcome = Literal["collapsed", "fell back", "held"]

MARGIN = 0.10
"""Loss of accuracy on the original questions that counts as a fall. With 384 answers per
evaluation the standard error of one is at most 0.026, of a difference 0.036."""
DEFINITION = (
    f"Collapsed: the last held-out accuracy on original questions is more than {MARGIN:.2f} below "
    f"the first. Fell back: not that, but more than {MARGIN:.2f} below the best. Held: neither."
)

_CHANGES = {
    "label accuracy": "label/accuracy",
    "reward": "reward/mean",
    "entropy": "policy/entropy",
    "length": "response/length_mean",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """One finished run."""

    method: str
    seed: int
    figures: Mapping[str, float]
    """``original start``, ``best``, ``final``, the same of ``rephrased``; ``label accuracy``,
    ``reward``, ``entropy`` (nats per token) and ``length`` (tokens), ``start`` and ``final``."""
    outcome: Outcome
    seconds: float
    """Wall-clock time of all its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """One figure over the seeds of a method."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodResult:
    """All finished runs of a method."""

    method: str
    seeds: Sequence[int]
    figures: Mapping[str, Spread]
    outcomes: Mapping[Outcome, int]


def outcome_of(accuracies: Sequence[float]) -> Outcome:
    """Say how a run ended.

    Args:
        accuracies: Of every evaluation in [0, 1], the first one before training.

    Returns:
        The word for it, by ``DEFINITION``.
    """
    start, best, final = accuracies[0], max(accuracies), accuracies[-1]
    if start - final > MARGIN:
        return "collapsed"
    return "fell back" if best - final > MARGIN else "held"


def run_result(records: Records, *, method: str, seed: int) -> RunResult:
    """Sum up a finished run.

    Args:
        records: Its metrics, from ``read_metrics``.
        method: Its preset.
        seed: Its seed.

    Returns:
        Its figures. What single steps measure is the mean over the first and the last five; what
        the method does not have (self-certainty has no labels) is left out.
    """
    figures: dict[str, float] = {}
    for view in VIEWS:
        values = column(records, f"eval/accuracy_{view}")
        figures |= {
            f"{view} start": values[0],
            f"{view} best": max(values),
            f"{view} final": values[-1],
        }
    for name, metric in _CHANGES.items():
        if values := column(records, metric):
            figures[f"{name} start"], figures[f"{name} final"] = ends(values)
    return RunResult(
        method=method,
        seed=seed,
        figures=figures,
        outcome=outcome_of(column(records, "eval/accuracy_original")),
        seconds=sum(column(records, "time/step_s")),
    )


def method_results(runs: Iterable[RunResult]) -> list[MethodResult]:
    """Join the runs of every method.

    Args:
        runs: In any order.

    Returns:
        One entry per method, in the order of first appearance.
    """
    by_method: dict[str, list[RunResult]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    return [
        MethodResult(
            method=method,
            seeds=[run.seed for run in of_method],
            figures={
                name: _spread([run.figures[name] for run in of_method])
                for name in of_method[0].figures
            },
            outcomes=dict(Counter(run.outcome for run in of_method)),
        )
        for method, of_method in by_method.items()
    ]


def _spread(values: Sequence[float]) -> Spread:
    return Spread(mean=fmean(values), low=min(values), high=max(values))
