"""Sums up, method by method, how often the collapse monitor was right."""

from collections.abc import Sequence
from statistics import fmean, median

from megatron_corew.observe.format import number
from megatron_corew.observe.hindsight import Hindsight

HEAD = (
    "method",
    "runs",
    "fell",
    "detected",
    "missed",
    "false alarms",
    "lead in steps",
    "accuracy start, best, at alarm, end",
)
ALL = "all"


def hindsight_rows(seen: Sequence[tuple[str, Hindsight]]) -> list[tuple[str, ...]]:
    """Count what became of the runs of every method.

    Args:
        seen: the method of each run and what hindsight says of it, in any order; runs without a
            ground truth are left out.

    Returns:
        ``HEAD``, a row per method in the order of first appearance, and one of all runs. The lead
        is that of the detected falls: the median, the smallest and the largest in brackets; the
        accuracies are means over the runs, ``-`` where no run has one.
    """
    known = [(method, run) for method, run in seen if run.outcome != "unknown"]
    by_method: dict[str, list[Hindsight]] = {}
    for method, run in known:
        by_method.setdefault(method, []).append(run)
    rows = [_row(method, runs) for method, runs in by_method.items()]
    return [HEAD, *rows, _row(ALL, [run for _, run in known])] if known else [HEAD]


def as_lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align rows as text.

    Args:
        rows: of equal length, the headings first.

    Returns:
        One line per row.
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(name: str, runs: Sequence[Hindsight]) -> tuple[str, ...]:
    outcomes = [run.outcome for run in runs]
    return (
        name,
        str(len(runs)),
        str(sum(run.fell_at is not None for run in runs)),
        *(str(outcomes.count(outcome)) for outcome in ("detected", "missed", "false alarm")),
        _leads([run.lead for run in runs if run.lead is not None]),
        ", ".join(
            _mean(values)
            for values in (
                [run.start for run in runs],
                [run.best for run in runs],
                [run.at_alarm for run in runs if run.at_alarm is not None],
                [run.end for run in runs],
            )
        ),
    )


def _leads(leads: Sequence[int]) -> str:
    if not leads:
        return "-"
    middle = number(median(leads))
    return middle if len(leads) == 1 else f"{middle} ({min(leads)} to {max(leads)})"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" if values else "-"
