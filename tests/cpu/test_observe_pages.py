"""What people look at: the display, the summary, the report."""

import io
import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from megatron_corew.observe import format as wording
from megatron_corew.observe.charts import Chart, Series, draw
from megatron_corew.observe.metrics import MetricLog, read_metrics
from megatron_corew.observe.progress import Progress
from megatron_corew.observe.report import write_report
from megatron_corew.observe.report_rollouts import sampled_questions
from megatron_corew.observe.rollouts import RolloutLog
from megatron_corew.observe.summary import ends, summary_text

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}"


def record_run(folder, steps: int = 3, extra: dict[str, float] | None = None) -> None:
    with (
        MetricLog(folder, tensorboard=False, wandb_project=None, config_dict={}) as log,
        RolloutLog(folder) as rollouts,
    ):
        log.log(0, {"eval/accuracy_original": 0.25})
        for step in range(1, steps + 1):
            metrics = {
                "reward/mean": step / 10,
                "time/train_s": 2.0,
                "time/push_s": 1.0,
                "time/step_s": 4.0,
            }
            log.log(step, metrics | (extra or {}))
            rollouts.write(
                step,
                [
                    {
                        "question_id": "q",
                        "view": "original",
                        "prompt": "1+1=",
                        "text": f"{HOSTILE} of step {step}",
                        "answer": None,
                        "label": HOSTILE,
                        "reward": 0.0,
                        "finish_reason": "length",
                    }
                ],
            )
        log.log(steps, {"eval/accuracy_original": 0.75})


class Page(HTMLParser):
    """Collects the tags and attributes of a page, and checks that tags close in order."""

    VOID = ("meta", "link", "line", "path", "br", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(folder) -> str:
    return write_report([folder]).read_text()


def test_the_page_needs_nothing_else(tmp_path):
    record_run(tmp_path)
    text = page_of(tmp_path)
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object")]
    assert not [a for _, a in page.tags if {"src", "href", "srcset"} & a.keys()]
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "@import" not in text


def test_text_of_a_model_is_shown_and_never_run(tmp_path):
    record_run(tmp_path)
    (tmp_path / "config.yaml").write_text(f'method: "{HOSTILE}"\n')
    text = page_of(tmp_path)
    scripts = [tag for tag, _ in Page(text).tags if tag == "script"]
    assert len(scripts) == 2  # the data and the read-out, both ours
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert "{{ 7*7 }}" in text


def test_the_page_shows_rollouts_of_some_steps_and_before_and_after(tmp_path):
    record_run(tmp_path, steps=20)
    text = page_of(tmp_path)
    shown = [int(a["data-step"]) for _, a in Page(text).tags if a.get("class") == "question"]
    assert (shown[0], shown[-1], len(shown)) == (1, 20, 8)
    assert re.search(r"0\.250 &rarr;</small>\s*0\.750", text)
    assert "+50.0 points" in text


def response(view: str, answer: str | None, **changes) -> dict[str, object]:
    record = {
        "question_id": "q7",
        "view": view,
        "prompt": f"{view} words",
        "other_prompt": "the other words",
        "text": f"It is {answer}.",
        "answer": answer,
        "cluster": None if answer is None else int(answer),
        "label": "4",
        "reward": float(answer == "4"),
        "truth": "4",
        "correct": float(answer == "4"),
        "label_correct": 1.0,
        "finish_reason": "stop",
        "teacher_texts": ["The teacher says 4."],
        "teacher_answers": ["4"],
    }
    return record | changes


def test_a_question_has_its_truth_vote_groups_label_and_teacher_in_every_view(tmp_path):
    with (
        MetricLog(tmp_path, tensorboard=False, wandb_project=None, config_dict={}) as log,
        RolloutLog(tmp_path) as rollouts,
    ):
        log.log(1, {"reward/mean": 0.5})
        answers = ["3", "4", "4", None, "5"]
        rollouts.write(1, [response("original", answer) for answer in answers])
        rollouts.write(1, [response("rephrased", "4", reward=1.0, in_loss=False)])
    (question,) = sampled_questions(tmp_path)
    assert (question["truth"], question["other_prompt"]) == ("4", None)
    first, second = question["views"]
    # The largest vote group is A, the others follow in their order; no answer has no letter.
    assert [r["letter"] for r in first["responses"]] == ["B", "A", "A", "?", "C"]
    assert second["teacher_answers"] == ["4"]
    assert first["kinds"] == {"answer missing", "mixed rewards", "right label"}
    assert second["kinds"] == {"equal rewards", "outside the loss", "right label"}
    assert question["kinds"] == sorted(first["kinds"] | second["kinds"])
    text = page_of(tmp_path)
    assert "The teacher says 4." in text
    assert "true answer <b>4</b>" in text


def test_a_method_of_one_view_shows_the_other_wording(tmp_path):
    with RolloutLog(tmp_path) as rollouts:
        rollouts.write(1, [response("original", "4", label=None, finish_reason="length")])
    (question,) = sampled_questions(tmp_path)
    assert question["other_prompt"] == "the other words"
    assert question["kinds"] == ["cut at the limit", "equal rewards", "no label"]


def test_alarms_stand_on_the_time_axis_and_in_words(tmp_path):
    with MetricLog(tmp_path, tensorboard=False, wandb_project=None, config_dict={}) as log:
        log.event(0, "start", versions={"torch": "2.13", "python": "3.11"})
        for step in range(1, 12):
            log.log(step, {"reward/mean": step / 10})
        log.event(6, "alarm", signal="drift", sentence=HOSTILE, rollbacks=0)
    text = page_of(tmp_path)
    # Step 6 of 1 to 11 is the middle of the axis.
    (mark,) = [a for tag, a in Page(text).tags if a.get("class") == "mark alarm"]
    assert (mark["x1"], mark["x2"]) == ("500.0", "500.0")
    assert "Marked steps: alarm at 6." in text
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(1)") == 1
    assert "<script>alert" not in text
    assert '<th scope="row">torch</th><td>2.13</td>' in text


def test_steps_that_were_rolled_back_leave_the_curves_and_stay_as_marks(tmp_path):
    with MetricLog(tmp_path, tensorboard=False, wandb_project=None, config_dict={}) as log:
        for step in range(1, 7):
            log.log(step, {"reward/mean": step / 10})
        log.event(6, "rollback", to=2, lr_scale=0.3)
        log.next_attempt()
        for step in range(3, 9):
            log.log(step, {"reward/mean": 0.9})
        log.event(8, "stop", reason="it is Sunday", before=2)
    records = read_metrics(tmp_path)
    assert [record["reward/mean"] for record in records] == [0.1, 0.2, *[0.9] * 6]
    text = page_of(tmp_path)
    assert "Went back to step 2 with 0.3 times the learning rate." in text
    assert "stopped: it is Sunday. The checkpoint of step 2 is from before it." in text


def test_a_comparison_has_a_line_per_run_and_the_differences_of_the_settings(tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder, rate in zip(folders, ("0.1", "0.2"), strict=True):
        folder.mkdir()
        record_run(folder, extra={"label/accuracy": 0.5, "answers/none_share": 0.0})
        (folder / "config.yaml").write_text(f"method: x\noptimizer: {{lr: {rate}}}\n")
    text = write_report(folders, tmp_path / "both.html").read_text()
    titles = re.findall(r"<figcaption>\s*<h3>(.*?)</h3>", text)
    # One chart per metric, and none for what is zero in all runs.
    assert titles == [
        "Held-out accuracy: original questions",
        "Reward: mean reward",
        "Labels against the truth: labels",
    ]
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', text, flags=re.DOTALL)
    assert all(re.findall(r"<span>(.*?)</span>", legend) == ["a", "b"] for legend in legends)
    assert "2 settings, 1 of them differ and come first" in text
    assert text.index("<b>optimizer.lr</b>") < text.index(">method</th>")
    assert re.search(r'<th scope="row">train</th><td>2\.00</td><td>2\.00</td>', text)


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path):
    folders = [tmp_path / root / "run" for root in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
        record_run(folder)
    text = write_report(folders, tmp_path / "both.html").read_text()
    assert "one/run" in text
    assert "two/run" in text


def test_charts_without_data_are_left_out_and_every_chart_has_words_and_a_table(tmp_path):
    record_run(tmp_path, extra={"policy/kl": math.nan})
    text = page_of(tmp_path)
    titles = re.findall(r"<figcaption>\s*<h3>(.*?)</h3>", text)
    assert titles == ["Held-out accuracy", "Reward", "Time per step"]
    plots = [a for tag, a in Page(text).tags if a.get("class") == "plot"]
    assert len(plots) == text.count("<table>") == 3
    assert all(a["role"] == "img" and "Last values" in a["aria-label"] for a in plots)


@pytest.mark.parametrize("steps", [1, 2, 300])
def test_runs_of_any_length_have_a_page(tmp_path, steps):
    record_run(tmp_path, steps, extra={"gap/mean": 0.0, "policy/loss": 1e-9, "policy/kl": 1e9})
    text = page_of(tmp_path)
    assert "nan" not in re.sub(r"<[^>]*>", "", text.lower())
    assert len(text) < 400_000


def test_a_run_that_never_evaluated_or_stopped_has_a_page(tmp_path):
    with MetricLog(tmp_path, tensorboard=False, wandb_project=None, config_dict={}) as log:
        log.log(1, {"policy/loss": math.nan})
    assert "Held-out accuracy" not in page_of(tmp_path)


def test_a_folder_without_metrics_has_no_page(tmp_path):
    with pytest.raises(ValueError, match="need recorded metrics, got none"):
        write_report([tmp_path])


def one_chart(points: dict[int, float], **options):
    return draw(Chart(title="t", note="n", series=[Series(label="s", points=points)], **options))


def test_a_line_goes_through_its_points():
    drawing = one_chart({0: 0.0, 5: 0.5, 10: 1.0}, bounds=(0.0, 1.0))
    # The y axis of the box points down.
    assert drawing.lines[0].path == "M0.0 1000.0L500.0 500.0L1000.0 0.0"
    assert [label for _, label in drawing.x_ticks] == ["0", "2", "4", "6", "8", "10"]
    assert (50.0, "0.5") in drawing.y_ticks


def test_a_value_that_is_not_finite_interrupts_the_line():
    path = one_chart({0: 0.0, 1: math.nan, 2: 1.0, 3: 1.0}, bounds=(0.0, 1.0)).lines[0].path
    assert path.count("M") == 2
    assert path.count("L") == 1


def test_a_logarithmic_axis_spaces_powers_of_ten_evenly_and_puts_zero_on_the_floor():
    drawing = one_chart({1: 1e-6, 2: 1e-5, 3: 1e-4, 4: 0.0}, log=True)
    ys = [float(part.split()[1]) for part in re.split("[ML]", drawing.lines[0].path)[1:]]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert ys[3] == 1000.0
    assert "1e-5" in [label for _, label in drawing.y_ticks]


def test_stacked_areas_stand_on_each_other():
    series = [Series(label="a", points={1: 1.0, 2: 1.0}), Series(label="b", points={1: 3.0})]
    first, second = draw(Chart(title="t", note="n", series=series, stacked=True)).lines
    tops = [area.path.split("L")[0] for area in (first, second)]
    base = first.path.split("L")[-1].removesuffix("Z")
    heights = [1000.0 - float(top.split()[1]) for top in tops]
    assert base == "0.0 1000.0"
    assert heights[1] == pytest.approx(4 * heights[0], abs=0.5)
    # The upper area ends where the lower one begins.
    assert second.path.split("L")[-1].removesuffix("Z") == tops[0].removeprefix("M")


def test_long_series_are_smoothed_over_the_faint_single_steps():
    points = {step: float(step % 2) for step in range(100)}
    (line,) = one_chart(points, bounds=(0.0, 1.0)).lines
    middle = [float(part.split()[1]) for part in line.path.split("L")[20:80]]
    assert all(abs(y - 500) < 120 for y in middle)
    assert line.faint.count("L") == 99
    (plain,) = one_chart(points, bounds=(0.0, 1.0), smooth=False).lines
    assert plain.path == line.faint


def test_the_table_of_a_long_run_is_thinned_out_and_keeps_both_ends():
    rows = one_chart({step: 0.5 for step in range(1, 1001)}).rows
    assert len(rows) <= 42
    assert rows[0][0] == "1"
    assert rows[-1] == ["1000", "0.5"]


def plain_lines(**options) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(console=Console(file=out, width=60), **options), out


def test_without_a_terminal_every_step_is_one_line():
    progress, out = plain_lines(total_steps=10)
    with progress:
        progress.note("[not markup] " + "long " * 30)
        progress.update(0, {"eval/accuracy_original": 0.5})
        progress.update(1, {"reward/mean": 0.25, "time/step_s": 2.0, "time/train_s": 1.0})
    note, before, first = out.getvalue().splitlines()
    assert note.startswith("[not markup] long")
    assert before == "step  0/10  held-out accuracy 0.500"
    assert first.startswith("step  1/10  reward 0.250  2.0 s  left ")
    assert "\x1b" not in out.getvalue()


def test_after_going_back_the_time_left_is_counted_anew():
    progress, out = plain_lines(total_steps=30)
    with progress:
        progress.update(20, {"reward/mean": 0.5})
        progress.go_back(10)
        progress.update(11, {"reward/mean": 0.5})
        progress.update(12, {"reward/mean": 0.5})
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 20/30", "step 11/30", "step 12/30"]
    assert ["left" in line for line in lines] == [False, False, True]
    assert "-" not in lines[2]


def test_on_a_terminal_the_accuracy_stays_visible_with_its_start():
    out = io.StringIO()
    progress = Progress(10, console=Console(file=out, force_terminal=True, width=100))
    with progress:
        progress.update(0, {"eval/accuracy_original": 0.25})
        progress.update(1, {"eval/accuracy_original": 0.5})
        progress.update(2, {"reward/mean": 0.125, "time/train_s": 1.25})
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    last = shown[shown.rindex("done") :]
    assert "0.250 -> 0.500" in last
    assert "0.125" in last
    assert "1.25 s" in last
    assert "2/10" in last


def test_the_summary_says_what_changed_and_where_the_time_went(tmp_path):
    record_run(tmp_path, steps=4, extra={"gap/mean": 2e-6, "label/unlabelled_share": 0.5})
    text = summary_text(read_metrics(tmp_path), folder=tmp_path)
    assert "original questions   0.250 -> 0.750  (+50.0 points, best 0.750)" in text
    assert "rephrased" not in text
    assert re.search(r"reward +0\.15 -> 0\.35\n", text)
    assert re.search(r"unlabelled share +0\.5 -> 0\.5\n", text)
    assert re.search(r"gap +mean 2\.00e-6, largest step mean 2\.00e-6", text)
    assert re.search(r"time of all steps +16 s, 4\.00 s per step", text)
    assert re.search(r"train +8 s, 2\.00 s per step\n  push +4 s, 1\.00 s per step", text)
    assert str(tmp_path / "report.html") in text
    assert str(tmp_path / "checkpoints") in text


def test_ends_are_means_of_five_steps_or_of_each_half():
    assert ends([1.0]) == (1.0, 1.0)
    assert ends([1.0, 2.0, 3.0]) == (1.0, 3.0)
    assert ends([0.0] * 5 + [9.0] * 10 + [2.0] * 5) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03125, "0.03125"), (12345.6, "12,346"), (1.2e-6, "1.20e-6"), (0.0, "0"), (3e7, "3.00e7")],
)
def test_numbers_read_short(value, text):
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(42.4, "42 s"), (187, "3:07 min"), (3765, "1:02:45 h")]
)
def test_durations_read_like_a_clock(seconds, text):
    assert wording.duration(seconds) == text
