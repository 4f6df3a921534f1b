"""The collapse monitor on series made by hand, and what a run does about an alarm."""

import json
from pathlib import Path

import pytest

from megatron_corew.config import Config, MonitorConfig
from megatron_corew.guard import Guard, stop_message
from megatron_corew.observe.collapse import SIGNALS, Monitor
from megatron_corew.observe.hindsight import look_back
from megatron_corew.observe.metrics import MetricLog, read_events, read_metrics
from megatron_corew.runs import RunFolder, checkpoint_folder

KNOBS = MonitorConfig(
    on_collapse="warn",
    window=2,
    patience=2,
    agreement_gain=0.2,
    across_share=0.5,
    agreement_loss=0.2,
    max_kl=0.3,
    top_share=0.3,
    top_growth=2.0,
    distinct_share=0.5,
    unreadable_gain=0.2,
    teacher_loss=0.2,
    lr_factor=0.5,
    max_rollbacks=2,
)
# Signal -> metrics of a healthy step, and of one that the signal must see.
CASES = {
    "agreement": (
        {"agreement/within": 0.5, "agreement/across": 0.4},
        {"agreement/within": 0.8, "agreement/across": 0.5},
    ),
    "contradiction": ({"agreement/within": 0.5}, {"agreement/within": 0.25}),
    "drift": ({"policy/kl": 0.01}, {"policy/kl": 0.4}),
    "concentration": (
        {"answers/top_share": 0.1, "answers/spread": 0.4},
        {"answers/top_share": 0.35, "answers/spread": 0.4},
    ),
    "unreadable": (
        {"answers/none_share": 0.1, "response/truncated_share": 0.0},
        {"answers/none_share": 0.35, "response/truncated_share": 0.0},
    ),
    "teacher": ({"label/teacher_policy_agreement": 0.7}, {"label/teacher_policy_agreement": 0.4}),
}


HEALTHY, SICK = CASES["drift"]


def series(*parts: tuple[int, dict[str, float]]) -> list[dict[str, float]]:
    """Steps from 1 on: so many with these metrics, then so many with those."""
    steps = [metrics for count, metrics in parts for _ in range(count)]
    return [{"step": number} | metrics for number, metrics in enumerate(steps, start=1)]


def alarms(*parts: tuple[int, dict[str, float]], knobs: MonitorConfig = KNOBS):
    return Monitor(knobs).replay(series(*parts))


def test_every_signal_has_a_case():
    assert set(CASES) == set(SIGNALS)


@pytest.mark.parametrize("signal", CASES)
def test_a_signal_is_raised_once_with_its_first_step_and_its_figures(signal):
    healthy, sick = CASES[signal]
    found = alarms((6, healthy), (6, sick))
    # Step 7 is half sick, step 8 wholly: the mean over two steps passes the limit at step 8 (or
    # 7, when half the change is enough), and patience asks for one step more.
    assert [alarm.signal for alarm in found] == [signal]
    (alarm,) = found
    assert alarm.since == 8
    assert alarm.step == 9
    first = alarm.evidence[0]
    assert first.start == pytest.approx(healthy[first.metric])
    assert first.now == pytest.approx(sick[first.metric])
    assert first.start <= first.limit <= first.now or first.now <= first.limit <= first.start
    assert f"{first.now:.3g}" in alarm.sentence
    json.dumps(alarm.as_fields(), allow_nan=False)


@pytest.mark.parametrize("signal", CASES)
def test_a_healthy_run_and_a_run_without_the_metric_are_silent(signal):
    healthy, sick = CASES[signal]
    assert alarms((30, healthy)) == []
    assert alarms((6, healthy), (6, dict.fromkeys(sick, float("nan")))) == []
    assert alarms((12, {})) == []


@pytest.mark.parametrize("signal", CASES)
def test_one_bad_step_is_no_alarm_and_a_signal_that_returns_is_a_second_one(signal):
    healthy, sick = CASES[signal]
    assert alarms((6, healthy), (1, sick), (6, healthy)) == []
    twice = alarms((6, healthy), (4, sick), (6, healthy), (4, sick))
    assert [alarm.since for alarm in twice if alarm.signal == signal] == [8, 18]


def test_agreement_that_grows_in_both_views_is_learning():
    start = {"agreement/within": 0.5, "agreement/across": 0.4}
    assert alarms((6, start), (6, {"agreement/within": 0.9, "agreement/across": 0.8})) == []
    # Half of the gain of .4 is .2: .59 is below .4 + .2, .61 is not.
    below = {"agreement/within": 0.9, "agreement/across": 0.59}
    assert [a.signal for a in alarms((6, start), (6, below))] == ["agreement"]
    assert alarms((6, start), (6, below | {"agreement/across": 0.61})) == []


def test_agreement_that_was_gained_and_is_lost_again_is_an_alarm():
    start = {"agreement/within": 0.5, "agreement/across": 0.4}
    best = {"agreement/within": 0.6, "agreement/across": 0.7}
    (alarm,) = alarms((6, start), (6, best), (6, best | {"agreement/across": 0.45}))
    assert (alarm.signal, alarm.evidence[0].metric) == ("contradiction", "agreement/across")
    assert alarm.evidence[0].limit == pytest.approx(0.5)
    assert alarms((6, start), (6, best), (6, best | {"agreement/across": 0.55})) == []


def test_agreement_over_the_views_may_be_measured_on_some_steps_only():
    def step(number, within, across):
        probed = {"agreement/across": across} if number % 2 == 0 else {}
        return {"step": number, "agreement/within": within} | probed

    records = [step(n, 0.5, 0.4) for n in range(1, 7)] + [step(n, 0.9, 0.4) for n in range(7, 13)]
    assert [alarm.signal for alarm in Monitor(KNOBS).replay(records)] == ["agreement"]


def test_an_answer_that_was_frequent_from_the_start_may_be_twice_as_frequent():
    start = {"answers/top_share": 0.2, "answers/spread": 0.4}
    assert alarms((6, start), (6, start | {"answers/top_share": 0.39})) == []
    assert len(alarms((6, start), (6, start | {"answers/top_share": 0.41}))) == 1
    (alarm,) = alarms((6, start), (6, start | {"answers/spread": 0.19}))
    assert [one.now for one in alarm.evidence] == pytest.approx([0.2, 0.19])
    assert "0.4 -> 0.19" in alarm.sentence


def test_replaying_the_records_restores_the_state():
    healthy, sick = CASES["drift"]
    records = series((6, healthy), (6, sick))
    whole, resumed = Monitor(KNOBS), Monitor(KNOBS)
    expected = whole.replay(records)
    before = resumed.replay(records[:8])
    assert before == []
    assert resumed.replay(records[8:]) == expected


def accuracies(*values: float, kl: float = 0.0) -> list[dict[str, float]]:
    return [
        {"step": step, "reward/accuracy": value, "policy/kl": kl if step > 4 else 0.0}
        for step, value in enumerate(values, start=1)
    ]


def test_in_hindsight_a_run_that_ends_below_its_start_has_collapsed_and_the_lead_is_counted():
    # Means over two steps: .5 until step 6, .4 at step 7, below the start from there on.
    seen = look_back(accuracies(*[0.5] * 6, *[0.3] * 6, kl=1.0), KNOBS, margin=0.1)
    assert (seen.start, seen.end, seen.fell_at) == (0.5, 0.3, 7)
    # KL 1 from step 5: the mean passes .3 at step 5, patience asks for one more.
    assert (seen.alarms[0].step, seen.lead, seen.outcome) == (6, 1, "detected")


def test_in_hindsight_a_run_that_loses_what_it_gained_fell_back():
    values = [0.5] * 5 + [0.9] * 5 + [0.6] * 5
    seen = look_back(accuracies(*values), KNOBS, margin=0.1)
    assert (seen.best, seen.fell_at, seen.outcome) == (0.9, 11, "missed")
    assert seen.lead is None


@pytest.mark.parametrize(("kl", "outcome"), [(0.0, "silent"), (1.0, "false alarm")])
def test_in_hindsight_a_run_that_learns_should_be_silent(kl, outcome):
    values = [0.5] * 5 + [0.2] + [0.9] * 5
    seen = look_back(accuracies(*values, kl=kl), KNOBS, margin=0.1)
    assert (seen.fell_at, seen.outcome) == (None, outcome)


def test_without_true_answers_there_is_no_hindsight():
    assert look_back(series((6, HEALTHY)), KNOBS, margin=0.1).outcome == "unknown"


class Run:
    """A run folder with checkpoints after some steps, watched step by step."""

    def __init__(self, path: Path, on_collapse: str, saved: tuple[int, ...] = (0, 2, 4, 6)) -> None:
        self.folder = RunFolder(path)
        self.knobs = KNOBS.model_copy(update={"on_collapse": on_collapse})
        for step in saved:
            checkpoint_folder(self.folder.checkpoints, step).mkdir(parents=True)
        (self.folder.checkpoints / "latest").write_text(str(max(saved)))

    def go(self, steps, first_step=1):
        """Verdicts up to the first one that is not to go on."""
        verdicts = []
        options = {"tensorboard": False, "wandb_project": None, "config_dict": {}}
        with MetricLog(self.folder.path, **options) as log:
            guard = Guard(self.knobs, self.folder, log, first_step=first_step)
            self.scale = guard.lr_scale
            for step, metrics in enumerate(steps, start=first_step):
                log.log(step, metrics)
                verdicts.append(guard.judge(step, metrics))
                if verdicts[-1].action != "go_on":
                    break
        return verdicts


COLLAPSE = [HEALTHY] * 6 + [SICK] * 6


def events_of(run: Run) -> list[tuple[str, int]]:
    return [(event["event"], event["step"]) for event in read_events(run.folder.path)]


def test_a_warning_is_recorded_and_the_run_goes_on(tmp_path):
    run = Run(tmp_path, "warn")
    verdicts = run.go(COLLAPSE)
    assert len(verdicts) == 12
    assert [len(verdict.alarms) for verdict in verdicts] == [0] * 8 + [1] + [0] * 3
    assert events_of(run) == [("alarm", 9)]
    (event,) = read_events(tmp_path)
    assert event["signal"] == "drift"
    assert event["evidence"][0]["limit"] == 0.3
    assert len(read_metrics(tmp_path)) == 12
    assert stop_message(run.folder) is None


def test_a_warned_run_that_ends_with_its_alarm_was_not_stopped(tmp_path):
    run = Run(tmp_path, "warn")
    run.go(COLLAPSE[:9])
    assert events_of(run) == [("alarm", 9)]
    assert stop_message(run.folder) is None


def test_a_resumed_run_judges_the_steps_that_run_again_as_if_for_the_first_time(tmp_path):
    run = Run(tmp_path, "warn")
    run.go(COLLAPSE[:8])
    verdicts = run.go(COLLAPSE[6:], first_step=7)
    assert [(alarm.step, alarm.since) for v in verdicts for alarm in v.alarms] == [(9, 8)]


def test_off_means_off(tmp_path):
    run = Run(tmp_path, "off")
    assert len(run.go(COLLAPSE)) == 12
    assert events_of(run) == []


def test_stop_ends_the_run_with_a_sentence(tmp_path):
    run = Run(tmp_path, "stop")
    verdicts = run.go(COLLAPSE)
    assert [verdict.action for verdict in verdicts] == ["go_on"] * 8 + ["stop"]
    assert events_of(run) == [("alarm", 9), ("stop", 9)]
    message = stop_message(run.folder)
    assert "after step 9" in message
    assert "KL 0.01 -> 0.4" in message
    # The signal stood from step 8 on, whose mean begins at step 7.
    assert f"corew export {tmp_path} OUT --step 6." in message
    # Going on with a warning only is not stopped any more.
    run.knobs = run.knobs.model_copy(update={"on_collapse": "warn"})
    run.go(COLLAPSE[6:], first_step=7)
    assert stop_message(run.folder) is None


def test_rollback_restores_the_checkpoint_from_before_the_evidence_at_a_lower_rate(tmp_path):
    run = Run(tmp_path, "rollback")
    verdict = run.go(COLLAPSE)[-1]
    # The signal stood from step 8 on, whose mean begins at step 7.
    assert (verdict.action, verdict.to_step, verdict.lr_scale) == ("rollback", 6, 0.5)
    assert run.folder.latest_step() == 6
    assert events_of(run) == [("alarm", 9), ("rollback", 9)]
    # The steps that were taken back are no longer part of the run.
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_the_same_process_goes_on_after_a_rollback_as_if_the_steps_had_not_been(tmp_path):
    run = Run(tmp_path, "rollback")
    options = {"tensorboard": False, "wandb_project": None, "config_dict": {}}
    with MetricLog(tmp_path, **options) as log:
        guard = Guard(run.knobs, run.folder, log, first_step=1)
        turned = []
        for step, metrics in [*enumerate(COLLAPSE[:9], start=1), *enumerate([SICK] * 3, start=7)]:
            log.log(step, metrics)
            turned.append(guard.judge(step, metrics).action == "rollback")
    # Both times the mean passes at step 8 and the alarm comes at step 9.
    assert turned == [False] * 8 + [True] + [False] * 2 + [True]
    assert events_of(run) == [("alarm", 9), ("rollback", 9)] * 2
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    steps = [(line["step"], line["attempt"]) for line in lines if "event" not in line]
    assert steps[8:] == [(9, 1), (7, 2), (8, 2), (9, 2)]


@pytest.mark.parametrize("bad", [7, 8])
def test_a_bad_checkpoint_is_removed_and_an_older_one_restored(tmp_path, bad):
    run = Run(tmp_path, "rollback", saved=(0, 4, bad))
    assert run.go(COLLAPSE)[-1].to_step == 4
    assert run.folder.steps() == [0, 4]


def test_a_resumed_run_remembers_its_rollbacks_and_stops_after_the_last(tmp_path):
    run = Run(tmp_path, "rollback")
    assert run.go(COLLAPSE)[-1].lr_scale == 0.5
    second = run.go([SICK] * 6, first_step=7)[-1]
    assert run.scale == 0.5
    assert (second.action, second.to_step, second.lr_scale) == ("rollback", 6, 0.25)
    third = run.go([SICK] * 6, first_step=7)[-1]
    assert third.action == "stop"
    assert "2 rollbacks did not help" in stop_message(run.folder)


def test_the_stop_after_the_last_rollback_leaves_the_policy_from_before_the_evidence(tmp_path):
    run = Run(tmp_path, "rollback")
    run.knobs = run.knobs.model_copy(update={"max_rollbacks": 1})
    run.go(COLLAPSE)
    # A checkpoint of the second try, written before its alarm.
    checkpoint_folder(run.folder.checkpoints, 8).mkdir()
    assert run.go([SICK] * 6, first_step=7)[-1].action == "stop"
    assert (run.folder.latest_step(), run.folder.steps()) == (6, [0, 2, 4, 6])
    assert f"corew export {tmp_path} OUT --step 6." in stop_message(run.folder)


def test_a_stop_keeps_the_checkpoints_from_after_the_evidence(tmp_path):
    run = Run(tmp_path, "stop", saved=(4, 8))
    run.go(COLLAPSE)
    assert (run.folder.latest_step(), run.folder.steps()) == (8, [4, 8])
    assert "OUT --step 4." in stop_message(run.folder)


def test_a_run_that_recovers_after_a_rollback_is_whole_again(tmp_path):
    run = Run(tmp_path, "rollback")
    run.go(COLLAPSE)
    verdicts = run.go([HEALTHY] * 6, first_step=7)
    assert {verdict.action for verdict in verdicts} == {"go_on"}
    assert [record["step"] for record in read_metrics(tmp_path)] == list(range(1, 13))


def test_without_a_checkpoint_from_before_the_run_is_stopped(tmp_path):
    run = Run(tmp_path, "rollback", saved=(8,))
    assert run.go(COLLAPSE)[-1].action == "stop"
    message = stop_message(run.folder)
    assert "no checkpoint from before step 7" in message
    assert "No checkpoint from before it is left." in message
    # Nothing was taken away either.
    assert run.folder.steps() == [8]


def test_a_folder_without_checkpoints_is_another_run(tmp_path):
    run = Run(tmp_path, "rollback")
    run.go(COLLAPSE)
    (run.folder.checkpoints / "latest").unlink()
    run.go([HEALTHY])
    assert run.scale == 1.0


def test_rollback_needs_checkpoints_that_reach_back():
    fields = {
        "method": "majority_vote",
        "run": {"name": "r", "steps": 10},
        "model": {"path": "lab"},
        "data": {"train": "lab"},
        "monitor": {"on_collapse": "rollback", "window": 5, "patience": 3},
    }
    Config.model_validate(fields | {"checkpoint": {"every": 8, "keep": 2}})
    with pytest.raises(ValueError, match=r"checkpoint.keep: .*reach back 8 steps.*got .* 7\."):
        Config.model_validate(fields | {"checkpoint": {"every": 7, "keep": 2}})
