"""Schedules: values by hand, the meaning of the weight, then the errors."""

import pytest

from megatron_corew.algo.schedules import ema_weight, learning_rate

COSINE = {"schedule": "cosine", "start": 0.01, "end": 1e-4}
RATE = {"peak": 1.0, "warmup_share": 0.4, "min_lr_share": 0.0}


def test_the_cosine_starts_at_step_one_and_meets_the_paper_s_end_points():
    assert ema_weight(1, 100, **COSINE) == pytest.approx(0.01)
    assert ema_weight(51, 100, **COSINE) == pytest.approx(0.00505)  # half way: the middle
    assert ema_weight(101, 100, **COSINE) == pytest.approx(1e-4)


def test_steps_outside_the_run_are_held_at_the_ends():
    assert ema_weight(0, 100, **COSINE) == ema_weight(1, 100, **COSINE)
    assert ema_weight(500, 100, **COSINE) == ema_weight(101, 100, **COSINE)


def test_the_constant_schedule_stays():
    weights = {ema_weight(s, 9, schedule="constant", start=0.3, end=0.9) for s in range(1, 10)}
    assert weights == {0.3}


@pytest.mark.parametrize(
    ("decay", "after_one", "after_three"),
    [(0.99, 0.99, 0.970299), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)],
)
def test_the_weight_is_the_policy_s_share_and_not_the_decay(decay, after_one, after_three):
    teacher, policy, course = 1.0, 0.0, []
    for step in (1, 2, 3):
        weight = ema_weight(step, 3, schedule="constant", start=1.0 - decay, end=0.0)
        teacher += weight * (policy - teacher)
        course.append(teacher)
    assert course[0] == pytest.approx(after_one)
    assert course[2] == pytest.approx(after_three)


@pytest.mark.parametrize(
    ("change", "knob"),
    [
        ({"start": 1.01}, "teacher.weight_start"),
        ({"end": -0.1}, "teacher.weight_start"),
        ({"schedule": "linear"}, "teacher.schedule"),
    ],
)
def test_a_wrong_ema_setting_is_refused_with_the_knob(change, knob):
    with pytest.raises(ValueError, match=knob):
        ema_weight(1, 10, **{**COSINE, **change})
    with pytest.raises(ValueError, match=r"run\.steps"):
        ema_weight(1, 0, **COSINE)


def test_the_default_warm_up_wastes_no_update():
    rates = [learning_rate(k, 10, **RATE, warmup_from_zero=False) for k in range(1, 11)]
    # 4 warm-up updates, then the cosine over 6: 1, (1 + cos 30) / 2, ...
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[5] == pytest.approx(0.9330127)
    assert rates[-1] > 0.0


def test_the_official_warm_up_starts_at_zero_and_decays_alike():
    official = [learning_rate(k, 10, **RATE, warmup_from_zero=True) for k in range(1, 11)]
    ours = [learning_rate(k, 10, **RATE, warmup_from_zero=False) for k in range(1, 11)]
    assert official[:4] == pytest.approx([0.0, 0.25, 0.5, 0.75])
    assert official[4:] == ours[4:]


def test_the_floor_is_a_share_of_the_peak():
    rate = {"peak": 2.0, "warmup_share": 0.0, "min_lr_share": 0.5, "warmup_from_zero": False}
    assert learning_rate(1, 4, **rate) == pytest.approx(2.0)
    assert learning_rate(3, 4, **rate) == pytest.approx(1.5)  # half way between 1 and 2


@pytest.mark.parametrize("warmup_share", [0.0, 0.05, 1.0])
def test_any_warm_up_share_works(warmup_share):
    rate = {**RATE, "warmup_share": warmup_share, "warmup_from_zero": False}
    assert all(0.0 < learning_rate(k, 7, **rate) <= 1.0 for k in range(1, 8))


@pytest.mark.parametrize("update", [0, 11])
def test_an_update_outside_the_run_is_refused(update):
    with pytest.raises(ValueError, match=r"run\.steps"):
        learning_rate(update, 10, **RATE, warmup_from_zero=False)
