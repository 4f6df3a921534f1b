"""Averages a metric over the runs of a method."""

from collections.abc import Sequence
from statistics import fmean

from megatron_corew.observe.summary import Records


def mean_curve(runs: Sequence[Records], metric: str) -> dict[int, float]:
    """Average a metric over the runs of a method.

    Args:
        runs: Records of each.
        metric: Its name.

    Returns:
        Step -> mean over the runs that measured it in that step.
    """
    values: dict[int, list[float]] = {}
    for records in runs:
        for record in records:
            if metric in record:
                values.setdefault(int(record["step"]), []).append(record[metric])
    return {step: fmean(of_step) for step, of_step in sorted(values.items())}
