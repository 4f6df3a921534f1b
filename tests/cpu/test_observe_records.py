"""metrics.jsonl, rollouts.jsonl and the clock: what is written, and what a resume leaves behind."""

import json
import math
import sys
import time
import types
from dataclasses import replace

import pytest
import torch

from megatron_corew.observe.clock import PhaseClock
from megatron_corew.observe.metrics import MetricLog, read_metrics
from megatron_corew.observe.rollouts import RolloutLog, read_rollouts, rollout_records
from megatron_corew.types import (
    Gathered,
    Prompt,
    Question,
    Rollout,
    RolloutGroup,
    ViewLabels,
    Vote,
)


def open_log(folder, **options) -> MetricLog:
    defaults = {"tensorboard": False, "wandb_project": None, "config_dict": {}}
    return MetricLog(folder, **(defaults | options))


def values(folder, name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in read_metrics(folder) if name in line]


def test_every_step_is_one_line_that_is_on_disk_at_once(tmp_path):
    with open_log(tmp_path) as log:
        log.log(1, {"reward/mean": 0.5})
        (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record.pop("time") == pytest.approx(time.time(), abs=60)
    assert record == {"step": 1, "attempt": 1, "reward/mean": 0.5}


def test_steps_that_are_run_again_count_once_with_the_later_values(tmp_path):
    with open_log(tmp_path) as log:
        for step in range(198, 213):
            log.log(step, {"x": 1.0, "only/first": 1.0})
    with open_log(tmp_path) as log:
        for step in range(201, 215):
            log.log(step, {"x": 2.0})
    steps = list(range(198, 215))
    assert values(tmp_path, "x") == [(s, 1.0 if s <= 200 else 2.0) for s in steps]
    # Nothing of the earlier attempt is mixed into a step of the later one.
    assert values(tmp_path, "only/first") == [(198, 1.0), (199, 1.0), (200, 1.0)]
    assert [line["attempt"] for line in read_metrics(tmp_path)] == [1] * 3 + [2] * 14


def test_several_lines_of_one_step_and_attempt_add_up(tmp_path):
    with open_log(tmp_path) as log:
        log.log(3, {"a": 1.0})
        log.log(3, {"b": 2.0})
    (record,) = read_metrics(tmp_path)
    assert (record["a"], record["b"]) == (1.0, 2.0)


def test_half_a_line_is_ignored_and_gone_after_the_next_start(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with open_log(tmp_path) as log:
        log.log(1, {"a": 1.0})
    with path.open("a") as file:
        file.write('{"step": 2, "att')
    assert values(tmp_path, "a") == [(1, 1.0)]
    with open_log(tmp_path) as log:
        assert log.attempt == 2
        log.log(2, {"a": 2.0})
    assert values(tmp_path, "a") == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("length", [10, 70_000, 200_000])
def test_the_last_line_is_found_whatever_its_length(tmp_path, length):
    with RolloutLog(tmp_path) as log:
        log.write(1, [{"text": "a" * length}, {"text": "b" * length}])
    with (tmp_path / "rollouts.jsonl").open("a") as file:
        file.write("c" * length)
    with RolloutLog(tmp_path) as log:
        log.write(2, [{"text": "d"}])
    records = read_rollouts(tmp_path)
    assert [(r["step"], r["attempt"], r["text"][0]) for r in records] == [
        (1, 1, "a"),
        (1, 1, "b"),
        (2, 2, "d"),
    ]


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "attempt": 1, "time": 0}\noops\n{}\n')
    with pytest.raises(ValueError, match="line 2 is not a JSON object"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_valid_json_and_reads_as_nan(tmp_path, value):
    with open_log(tmp_path) as log:
        log.log(1, {"x": value, "y": 1.0})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["x"] is None
    (record,) = read_metrics(tmp_path)
    assert math.isnan(record["x"])


def test_a_folder_without_records_has_none(tmp_path):
    assert read_metrics(tmp_path) == []
    assert read_rollouts(tmp_path) == []


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, value in ((1, 1.0), (3, 2.0)):
        with open_log(tmp_path, tensorboard=True) as log:
            for step in range(first, 5):
                log.log(step, {"reward/mean": value})
        time.sleep(1.1)  # Event files are ordered by the second of their creation.
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert shown == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


class StrictTracker:
    """Like W&B: it refuses a step that it has seen, and knows the run by its id."""

    def __init__(self) -> None:
        self.runs: list[dict] = []
        self.lines: list[dict] = []
        self.axis: list = []
        self.exit_codes: list[int] = []

    def init(self, **options):
        self.runs.append(options)
        return self

    def define_metric(self, name, step_metric):
        self.axis.append((name, step_metric))

    def log(self, line, step=None):
        assert step is None, "an explicit step may not repeat"
        self.lines.append(line)

    def finish(self, exit_code):
        self.exit_codes.append(exit_code)


def test_wandb_gets_repeated_steps_on_an_axis_of_our_own(tmp_path, monkeypatch):
    tracker = StrictTracker()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=tracker.init))
    for _ in range(2):
        with open_log(tmp_path, wandb_project="p", config_dict={"a": 1}) as log:
            log.log(5, {"x": 1.0})
    assert tracker.lines == [{"x": 1.0, "step": 5}] * 2
    assert tracker.axis[0] == ("*", "step")
    assert tracker.exit_codes == [0, 0]
    assert {run["resume"] for run in tracker.runs} == {"allow"}
    assert tracker.runs[0]["config"] == {"a": 1}


def test_wandb_sees_a_resumed_run_as_the_same_run_and_another_folder_as_another(
    tmp_path, monkeypatch
):
    tracker = StrictTracker()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=tracker.init))
    for name in ("a", "a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        with open_log(tmp_path / name, wandb_project="p"):
            pass
    first, resumed, other = (run["id"] for run in tracker.runs)
    assert first == resumed != other


def test_wandb_that_is_not_installed_is_named_with_the_knob(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"observe\.wandb_project: need the package wandb"):
        open_log(tmp_path, wandb_project="p")


def group(view: str, name: str, texts: list[str]) -> RolloutGroup:
    prompt = Prompt(question_id=name, view=view, text=f"{view} {name}", token_ids=(1,))
    return RolloutGroup(
        prompt=prompt,
        rollouts=tuple(
            Rollout(
                token_ids=(1, 2),
                logprobs=(0.0, 0.0),
                text=text,
                finish_reason="stop",
                weights_version=7,
            )
            for text in texts
        ),
    )


def view_labels(answers: list[list[str]], labels: list[str | None]) -> ViewLabels:
    votes = tuple(
        Vote(answers=tuple(row), clusters=(0, 1), label=row[0], share=0.5, tie=True)
        for row in answers
    )
    return ViewLabels(
        votes=votes,
        teacher_votes=None,
        labels=tuple(labels),
        rewards=None,
        correct=None,
        label_correct=None,
    )


QUESTIONS = tuple(
    Question(
        id=name,
        prompts={
            view: Prompt(question_id=name, view=view, text=f"{name} {view}", token_ids=(1,))
            for view in ("original", "rephrased")
        },
        answer=f"truth of {name}",
    )
    for name in ("q0", "q1", "q2")
)


def test_records_keep_each_response_with_its_own_label_reward_and_answer():
    groups = [
        group("original", "q0", ["a", "b"]),
        group("original", "q1", ["c", "d"]),
        group("rephrased", "q0", ["e", "f"]),
        group("rephrased", "q1", ["g", "h"]),
    ]
    labels = {
        "original": view_labels([["A", "B"], ["C", "D"]], ["L0", "L1"]),
        "rephrased": view_labels([["E", "F"], ["G", "H"]], ["M0", None]),
    }
    rewards = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    gathered = Gathered(
        questions=QUESTIONS[:2],
        groups=tuple(groups),
        taught=tuple(groups),
        labels=labels,
        rewards_PG=torch.tensor(rewards),
        kept_P=torch.tensor([True, True, True, False]),
        rounds=(0, 0, 0, 0),
        trained=(0, 1, 2, 3),
    )
    records = rollout_records(gathered, groups_per_view=2)
    found = [(r["text"], r["answer"], r["label"], r["reward"]) for r in records]
    assert found == [
        ("a", "A", "L0", 0.0),
        ("b", "B", "L0", 1.0),
        ("c", "C", "L1", 2.0),
        ("d", "D", "L1", 3.0),
        ("e", "E", "M0", 4.0),
        ("f", "F", "M0", 5.0),
        ("g", "G", None, 6.0),
        ("h", "H", None, 7.0),
    ]
    assert records[0]["weights_version"] == 7
    assert [record["cluster"] for record in records] == [0, 1] * 4
    assert (records[2]["truth"], records[2]["other_prompt"]) == ("truth of q1", "q1 rephrased")
    assert records[6]["other_prompt"] == "q1 original"
    assert records[2]["teacher_texts"] == ["c", "d"]
    assert records[2]["teacher_version"] == 7
    untaught = replace(gathered, taught=())
    first_only = rollout_records(untaught, groups_per_view=1)
    assert [record["text"] for record in first_only] == ["a", "b", "e", "f"]
    assert "teacher_texts" not in first_only[0]
    assert rollout_records(untaught, groups_per_view=0) == []


def test_records_show_every_round_and_which_groups_are_in_the_loss():
    # Two questions, then one more: the first has no signal and leaves, the third replaces it.
    names = ["q0", "q1", "q2"]
    gathered = Gathered(
        questions=QUESTIONS,
        groups=tuple(group("original", name, [f"{name}a", f"{name}b"]) for name in names),
        taught=(),
        labels={"original": view_labels([["A", "B"], ["C", "D"], ["E", "F"]], ["L", "M", "N"])},
        rewards_PG=torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]),
        kept_P=torch.tensor([False, True, True]),
        rounds=(0, 0, 1),
        trained=(1, 2),
    )
    records = rollout_records(gathered, groups_per_view=1)[::2]
    found = [(r["question_id"], r["round"], r["label"], r["in_loss"]) for r in records]
    assert found == [("q0", 0, "L", False), ("q2", 1, "N", True)]
    # A further question comes with its own truth and wording.
    assert [r["truth"] for r in records] == ["truth of q0", "truth of q2"]
    assert records[1]["other_prompt"] == "q2 rephrased"
    every = rollout_records(gathered, groups_per_view=2)[::2]
    assert [record["in_loss"] for record in every] == [False, True, True]
    # Chosen only to fill the batch, or with signal but left out: neither is in the loss.
    left_out = rollout_records(replace(gathered, trained=(0, 1)), groups_per_view=2)[::2]
    assert [record["in_loss"] for record in left_out] == [False, True, False]


def test_rollouts_of_the_first_and_last_step_are_read_back_from_the_later_attempt(tmp_path):
    with RolloutLog(tmp_path) as log:
        for step in range(1, 6):
            log.write(step, [{"text": f"{step}a"}, {"text": f"{step}b"}])
    with RolloutLog(tmp_path) as log:
        for step in range(4, 6):
            log.write(step, [{"text": f"again {step}"}])
    assert [record["text"] for record in read_rollouts(tmp_path)] == ["1a", "1b", "again 5"]
    assert [r["text"] for r in read_rollouts(tmp_path, steps=[3, 4])] == ["3a", "3b", "again 4"]


def test_the_clock_adds_up_phases_also_when_they_fail(monkeypatch):
    now = iter([0.0, 2.0, 10.0, 11.0, 20.0, 25.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = PhaseClock()
    with clock.phase("train"):
        pass
    with pytest.raises(KeyError), clock.phase("train"):
        raise KeyError
    with clock.phase("push"):
        pass
    assert clock.collect() == {"time/train_s": 3.0, "time/push_s": 5.0}
    assert clock.collect() == {}
