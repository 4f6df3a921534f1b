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

    VOID = ("meta", "link", "line", "path", "br", "img")

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
    return write_report(folder).read_text()


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
    (tmp_path / "config.yaml").write_text(f'run: {{name: "{HOSTILE}"}}\n')
    text = page_of(tmp_path)
    scripts = [tag for tag, _ in Page(text).tags if tag == "script"]
    assert len(scripts) == 2  # the data and the read-out, both ours
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert "{{ 7*7 }}" in text


def test_the_page_shows_the_first_and_the_last_rollouts_and_before_and_after(tmp_path):
    record_run(tmp_path)
    text = page_of(tmp_path)
    assert "Rollouts of step 1" in text
    assert "Rollouts of step 3" in text
    assert "Rollouts of step 2" not in text
    assert re.search(r"0\.250 &rarr;</small>\s*0\.750", text)
    assert "+50.0 points" in text


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
        write_report(tmp_path)


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
