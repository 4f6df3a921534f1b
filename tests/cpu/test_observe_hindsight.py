"""How often the monitor was right, method by method."""

import math

from megatron_corew.config import MonitorConfig
from megatron_corew.observe.collapse import Alarm
from megatron_corew.observe.hindsight import Hindsight, look_back
from megatron_corew.observe.hindsight_table import HEAD, as_lines, hindsight_rows

KNOBS = MonitorConfig(window=2, patience=1, max_kl=0.3)


def run(accuracy: tuple[float, float, float], *, alarm=None, at_alarm=None, fell=None) -> Hindsight:
    start, best, end = accuracy
    alarms = (Alarm(signal="drift", step=alarm, since=alarm, sentence="", evidence=()),)
    return Hindsight(
        alarms=alarms if alarm else (),
        start=start,
        best=best,
        end=end,
        at_alarm=at_alarm,
        fell_at=fell,
    )


VOTES = [
    run((0.5, 0.6, 0.2), alarm=10, at_alarm=0.5, fell=16),
    run((0.5, 0.5, 0.1), alarm=20, at_alarm=0.3, fell=18),
    run((0.4, 0.4, 0.2), fell=9),
    run((0.6, 0.9, 0.9)),
]
LEARNERS = [run((0.5, 0.9, 0.9)), run((0.5, 0.8, 0.8), alarm=30, at_alarm=0.7)]
UNKNOWN = run((math.nan, math.nan, math.nan), alarm=5)


def test_every_outcome_is_counted_once_in_its_method_and_in_all():
    seen = [("vote", one) for one in VOTES] + [("learn", one) for one in LEARNERS]
    head, vote, learn, together = hindsight_rows([*seen, ("vote", UNKNOWN)])
    assert head == HEAD
    # Leads 6 and -2: the median is 2.
    assert vote[:7] == ("vote", "4", "3", "2", "1", "0", "2 (-2 to 6)")
    assert vote[7] == "0.50, 0.60, 0.40, 0.35"
    assert learn == ("learn", "2", "0", "0", "0", "1", "-", "0.50, 0.85, 0.70, 0.85")
    assert together[:7] == ("all", "6", "3", "2", "1", "1", "2 (-2 to 6)")


def test_a_single_lead_has_no_range_and_runs_without_truth_have_no_row():
    (_, row, _) = hindsight_rows([("vote", VOTES[0])])
    assert row[6] == "6"
    assert hindsight_rows([("vote", UNKNOWN)]) == [HEAD]


def test_the_columns_stand_under_each_other():
    assert as_lines([("a", "b"), ("long", "")]) == ["a     b", "long"]


def test_the_accuracy_at_the_alarm_is_the_mean_of_the_steps_up_to_it():
    accuracies = [0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1]
    records = [
        {"step": step, "reward/accuracy": value, "policy/kl": 1.0 if step > 4 else 0.0}
        for step, value in enumerate(accuracies, start=1)
    ]
    seen = look_back(records, KNOBS, margin=0.1)
    # The mean KL of steps 4 and 5 passes the limit.
    assert (seen.alarms[0].step, seen.at_alarm) == (5, 0.45)
    assert look_back(records[:4], KNOBS, margin=0.1).at_alarm is None
    blind = [{key: line[key] for key in ("step", "policy/kl")} for line in records]
    assert look_back(blind, KNOBS, margin=0.1).at_alarm is None
