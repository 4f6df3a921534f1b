"""The last words of a run: what changed, what it took, where everything is."""

import math
from collections.abc import Sequence
from pathlib import Path

from megatron_corew.observe.format import duration, number, phase_seconds, share

Records = Sequence[dict[str, float]]

_LAST = {
    "reward": "reward/mean",
    "label accuracy": "label/accuracy",
    "vote share": "label/vote_share",
    "unlabelled share": "label/unlabelled_share",
    "groups of equal reward": "reward/zero_std_share",
    "truncated share": "response/truncated_share",
    "share of the top answer": "answers/top_share",
    "KL to the reference": "policy/kl",
    "entropy": "policy/entropy",
}
_WINDOW = 5


def summary_text(records: Records, *, folder: Path) -> str:
    """Sum up a run in plain text.

    Args:
        records: from ``read_metrics``.
        folder: the run's folder.

    Returns:
        Some ten lines; what was not measured is left out.
    """
    lines = [f"{_steps(records)} steps in {folder}"]
    for view in ("original", "rephrased"):
        values = column(records, f"eval/accuracy_{view}")
        if values:
            change = 100 * (values[-1] - values[0])
            lines.append(
                f"accuracy, {view + ' questions':<20} {share(values[0])} -> {share(values[-1])}"
                f"  ({change:+.1f} points, best {share(max(values))})"
            )
    for label, name in _LAST.items():
        values = column(records, name)
        if values:
            start, end = ends(values)
            lines.append(f"{label:<30} {number(start)} -> {number(end)}")
    gaps = column(records, "gap/mean")
    if gaps:
        lines.append(
            f"{'trainer/sampler log-prob gap':<30} mean {number(sum(gaps) / len(gaps))}, "
            f"largest step mean {number(max(gaps))}"
        )
    lines += _times(records)
    lines.append(f"report       {folder / 'report.html'}")
    lines.append(f"checkpoints  {folder / 'checkpoints'}")
    return "\n".join(lines)


def column(records: Records, name: str) -> list[float]:
    """The finite values of a metric, in the order of the steps."""
    return [record[name] for record in records if math.isfinite(record.get(name, math.nan))]


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the first and of the last five values (single steps are noisy), or of each half."""
    width = max(1, min(_WINDOW, len(values) // 2))
    return sum(values[:width]) / width, sum(values[-width:]) / width


def _steps(records: Records) -> int:
    return sum(1 for record in records if record["step"] > 0)


def _times(records: Records) -> list[str]:
    totals: dict[str, float] = {}
    for record in records:
        for phase, seconds in phase_seconds(record).items():
            totals[phase] = totals.get(phase, 0.0) + seconds
    steps = max(1, _steps(records))
    total = sum(column(records, "time/step_s")) or sum(totals.values())
    lines = [f"{'time of all steps':<30} {duration(total)}, {total / steps:.2f} s per step"]
    lines += [
        f"  {phase.replace('_', ' '):<28} {duration(seconds):>10}, {seconds / steps:.2f} s per step"
        for phase, seconds in sorted(totals.items(), key=lambda item: -item[1])
    ]
    return lines if totals else []
