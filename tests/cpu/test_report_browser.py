"""The report in a real browser: it opens, draws, reads out, zooms, filters and renews itself."""

import shutil
import threading

import pytest

from megatron_corew.observe.metrics import MetricLog
from megatron_corew.observe.report import write_report
from megatron_corew.observe.rollouts import RolloutLog
from megatron_corew.observe.watch import ReportServer

from .browser import CHROMIUM, open_browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium on the PATH (Debian: apt-get install chromium)"
)

HOSTILE = "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>"
ACCURACY = "chart-main-1"


def add_steps(folder, steps) -> None:
    with (
        MetricLog(folder, tensorboard=False, wandb_project=None, config_dict={}) as log,
        RolloutLog(folder) as rollouts,
    ):
        for step in steps:
            log.log(
                step,
                {
                    "eval/accuracy_original": step / 100,
                    "eval/accuracy_rephrased": step / 200,
                    "reward/mean": 0.5,
                    "time/train_s": 1.0,
                },
            )
            rollouts.write(step, [rollout(sample, step) for sample in range(2)])


def rollout(sample: int, step: int) -> dict[str, object]:
    return {
        "question_id": f"question of {step}",
        "view": "original",
        "prompt": "1 + 1 =",
        "text": f"{HOSTILE} needle-{step}",
        "answer": str(sample),
        "cluster": sample,
        "label": None if step < 20 else "1",
        "label_correct": None if step < 20 else 1.0,
        "reward": float(sample),
        "truth": "1",
        "finish_reason": "stop",
    }


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab
        # Whatever a test did, the page never complained and nothing of a model ran.
        assert tab.complaints == []


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    add_steps(folder, range(1, 41))
    with MetricLog(folder, tensorboard=False, wandb_project=None, config_dict={}) as log:
        log.event(21, "alarm", signal="drift", sentence=f"Far away. {HOSTILE}", rollbacks=0)
    return folder


@pytest.fixture
def page(tab, run):
    tab.requests.clear()
    tab.open(write_report([run]).as_uri())
    return tab


def test_many_alarms_leave_the_curves_in_sight_and_are_all_printed(tab, run):
    with MetricLog(run, tensorboard=False, wandb_project=None, config_dict={}) as log:
        for step in range(1, 41):
            log.event(step, "alarm", signal="drift", sentence="Far away. " * 9, rollbacks=0)
    tab.open(write_report([run]).as_uri())
    height = "document.querySelector('.alarms').getBoundingClientRect().height"
    assert tab.value(height) < 500
    tab.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert tab.value(height) > 1500
    finally:
        tab.send("Emulation.setEmulatedMedia", media="")


def box_of(page, chart: str) -> dict[str, float]:
    page.value(f"document.getElementById('{chart}').scrollIntoView({{block: 'center'}})")
    return page.value(
        f"(({{x, y, width, height}}) => ({{x, y, width, height}}))"
        f"(document.getElementById('{chart}').getBoundingClientRect())"
    )


def shown(page, part: str) -> bool:
    return page.value(f"!document.querySelector(`{part}`).hidden")


def x_labels(page) -> list[str]:
    return page.value(
        f"[...document.querySelectorAll('#{ACCURACY} .tick.x')].map((t) => t.textContent)"
    )


def test_it_opens_without_the_network_and_runs_nothing_of_a_model(page):
    assert len(page.requests) == 1
    assert page.requests[0].startswith("file://")
    assert page.value("window.broken") is None
    assert page.value("document.querySelectorAll('img').length") == 0


def test_every_chart_is_drawn_inside_its_box(page):
    sizes = page.value(
        "[...document.querySelectorAll('.plot .bold')].map((p) => {"
        " const line = p.getBoundingClientRect(), box = p.ownerSVGElement.getBoundingClientRect();"
        " return [line.width / box.width, line.left - box.left, box.bottom - line.bottom]; })"
    )
    assert len(sizes) >= 3
    assert all(width > 0.95 and left > -2 and below > -2 for width, left, below in sizes)


def test_the_alarm_stands_at_its_step(page):
    left = page.value(
        f"(() => {{ const mark = document.querySelector('#{ACCURACY} .mark.alarm'),"
        " box = mark.ownerSVGElement.getBoundingClientRect();"
        " return (mark.getBoundingClientRect().left - box.left) / box.width; })()"
    )
    assert left == pytest.approx(20 / 39, abs=0.01)


def test_the_mouse_reads_a_step_and_dragging_zooms_every_chart(page):
    box = box_of(page, ACCURACY)
    middle = box["y"] + box["height"] / 2
    page.mouse("Moved", box["x"] + box["width"] * 20 / 39, middle)
    text = page.value(f"document.querySelector('#{ACCURACY} .readout').textContent")
    assert text == "step 21original questions 0.21rephrased questions 0.105"
    assert not shown(page, "#unzoom")
    page.mouse("Pressed", box["x"] + box["width"] * 9 / 39, middle, button="left")
    page.mouse("Moved", box["x"] + box["width"] * 19 / 39, middle, button="left")
    page.mouse("Released", box["x"] + box["width"] * 19 / 39, middle, button="left")
    assert shown(page, "#unzoom")
    assert x_labels(page) == ["10", "12", "14", "16", "18", "20"]
    views = page.value(
        "[...document.querySelectorAll('.plot svg')].map((s) => s.getAttribute('viewBox'))"
    )
    assert len(set(views)) == 1
    left, _, width, _ = map(float, views[0].split())
    assert left == pytest.approx(1000 * 9 / 39, abs=5)
    assert width == pytest.approx(1000 * 10 / 39, abs=5)
    page.value("document.getElementById('unzoom').click()")
    assert not shown(page, "#unzoom")
    assert x_labels(page)[-1] == "40"


def test_the_keyboard_reads_and_zooms(page):
    page.value(f"document.getElementById('{ACCURACY}').focus()")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    text = page.value(f"document.querySelector('#{ACCURACY} .readout').textContent")
    assert text.startswith("step 39")
    page.press("+")
    assert shown(page, "#unzoom")
    page.press("Escape")
    assert not shown(page, "#unzoom")


def visible_steps(page) -> list[int]:
    return page.value(
        "[...document.querySelectorAll('.question')].filter((q) => q.offsetParent !== null)"
        ".map((q) => Number(q.dataset.step))"
    )


def choose(page, name: str, value: str) -> None:
    page.value(
        f"(() => {{ const field = document.querySelector('.filters [name={name}]');"
        f" field.value = '{value}';"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_the_filters_choose_rollouts_and_say_how_many(page):
    everything = visible_steps(page)
    assert (everything[0], everything[-1], len(everything)) == (1, 40, 8)
    choose(page, "kind", "no label")
    few = visible_steps(page)
    assert few == [step for step in everything if step < 20]
    output = "document.querySelector('.filters output').textContent"
    assert page.value(output) == f"{len(few)} of 8 questions"
    choose(page, "kind", "")
    choose(page, "step", "40")
    assert visible_steps(page) == [40]
    choose(page, "step", "")
    choose(page, "text", "NEEDLE-1")
    assert visible_steps(page) == [step for step in everything if str(step).startswith("1")]
    choose(page, "text", "nothing like it")
    assert page.value(output) == "0 of 8 questions"


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("runs", [1, 8])
def test_nothing_is_wider_than_the_window(tab, run, width, runs, tmp_path):
    copies = [tmp_path / f"another_run_with_a_long_name_{number}" for number in range(1, runs)]
    for copy in copies:
        shutil.copytree(run, copy)
    tab.open(write_report([run, *copies]).as_uri(), width=width)
    assert tab.value("document.documentElement.scrollWidth") <= width
    if runs > 1:
        # Beside the names of the runs there is room for figures.
        figure = "document.querySelector('.wide tbody td:nth-child(3)')"
        assert tab.value(f"{figure}.getBoundingClientRect().right") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(page, scheme):
    """WCAG AA: 4.5 to 1 for text of this size, in both colour schemes."""
    page.send(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    assert page.value(CONTRAST) == []


CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("main *, #unzoom")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || node.closest("script, option")) continue;
    const pair = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort();
    const ratio = (pair[1] + 0.05) / (pair[0] + 0.05);
    if (ratio < 4.5) poor.push(node.className + " " + node.tagName + " " + ratio.toFixed(2));
  }
  return [...new Set(poor)];
})()
"""


def test_everything_that_acts_has_a_name(page):
    nameless = page.value(
        "[...document.querySelectorAll('button, select, input, [tabindex], form')].filter((n) =>"
        " !(n.ariaLabel || n.labels?.length || n.textContent.trim())).map((n) => n.outerHTML)"
    )
    assert nameless == []


def test_print_shows_every_chart_and_no_controls(page):
    page.send("Emulation.setEmulatedMedia", media="print")
    try:
        style = "getComputedStyle(document.querySelector('.filters')).display"
        assert page.value(style) == "none"
        assert len(page.send("Page.printToPDF")["data"]) > 20_000
    finally:
        page.send("Emulation.setEmulatedMedia", media="")


def test_a_watched_run_renews_itself_and_keeps_filters_and_zoom(tab, run):
    with ReportServer([run], host="127.0.0.1", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.open(server.address)
        choose(tab, "kind", "right label")
        tab.value("zoomTo(10, 20)")
        add_steps(run, range(41, 61))
        # The page asks every two seconds; wait for it, not for the clock.
        last = tab.value(
            "new Promise((done) => { const timer = setInterval(() => {"
            " const rows = JSON.parse(document.getElementById('data').textContent);"
            f" const last = rows['{ACCURACY}'].x.at(-1);"
            " if (last > 40) { clearInterval(timer); done(last); } }, 50); })"
        )
        assert last == 60
        assert min(visible_steps(tab)) >= 20
        assert shown(tab, "#unzoom")
        assert x_labels(tab) == ["10", "12", "14", "16", "18", "20"]
        assert tab.value("document.querySelector('.news').textContent") == "live"
        tab.open("about:blank")
        server.shutdown()
