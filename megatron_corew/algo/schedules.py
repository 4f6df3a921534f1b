"""Two schedules as pure functions of the step: the teacher's weight and the learning rate.

Nothing is remembered between calls, so a resumed run continues where it was by construction.
"""

import math
from typing import Literal


def ema_weight(
    step: int,
    total_steps: int,
    *,
    schedule: Literal["cosine", "constant"],
    start: float,
    end: float,
) -> float:
    """Compute the policy's share in teacher <- teacher + weight x (policy - teacher).

    This is the update rate, one minus the decay: decay 0.99 is weight 0.01, weight 0 never
    moves the teacher, weight 1 copies the policy.

    Args:
        step: training step, counted from 1; earlier and later steps are held at the ends.
        total_steps: steps of the whole run.
        schedule: ``cosine`` from ``start`` at step 1 towards ``end`` at step total + 1, or
            ``constant`` at ``start``.
        start: weight at the first step, in [0, 1].
        end: weight the cosine heads for, in [0, 1]; not used by ``constant``.

    Returns:
        The weight, between ``start`` and ``end``.

    Raises:
        ValueError: a weight outside [0, 1], no steps, or an unknown schedule.

    Source: the official Co-rewarding-II code (``update_alpha``); it meets the end points that
        arXiv:2508.00410 states, which the formula printed there does not.
    """
    if not (0.0 <= start <= 1.0 and 0.0 <= end <= 1.0):
        raise ValueError(
            f"ema_weight: need weights in [0, 1], got start {start} and end {end}. Set "
            "teacher.weight_start and teacher.weight_end (one minus the decay)."
        )
    if total_steps < 1:
        raise ValueError(f"ema_weight: need at least 1 step, got {total_steps}. Set run.steps.")
    if schedule == "constant":
        return start
    if schedule != "cosine":
        raise ValueError(
            f"ema_weight: need cosine or constant, got {schedule!r}. Set teacher.schedule."
        )
    elapsed = min(max(step - 1, 0), total_steps)
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * elapsed / total_steps))


def learning_rate(
    update: int,
    total_updates: int,
    *,
    peak: float,
    warmup_share: float,
    min_lr_share: float,
    warmup_from_zero: bool,
) -> float:
    """Compute the learning rate of one optimizer update: linear warm-up, then half a cosine.

    Args:
        update: 1 .. total_updates.
        total_updates: updates of the whole run.
        peak: rate at the end of the warm-up.
        warmup_share: share of the updates that warm up, rounded down to whole updates W.
        min_lr_share: floor, as a share of the peak.
        warmup_from_zero: True: update k of the warm-up has share (k - 1) / W of the way from the
            floor to the peak (the official code: the first update is lost); False: k / W.

    Returns:
        The rate in force at that update.

    Raises:
        ValueError: the update is outside 1 .. total_updates.

    Source: the official code, ``get_cosine_schedule_with_warmup``.
    """
    if not 1 <= update <= total_updates:
        raise ValueError(
            f"learning_rate: need an update in 1..{total_updates}, got {update}. Set run.steps."
        )
    warmup = int(warmup_share * total_updates)
    done = update - 1
    if done < warmup:
        share = (done if warmup_from_zero else update) / warmup
    else:
        progress = (done - warmup) / (total_updates - warmup)
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (min_lr_share + (1.0 - min_lr_share) * share)
