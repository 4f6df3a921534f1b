"""The page of a comparison in a real browser: drawn, told apart, readable on a phone, printable."""

import json

import pytest

from megatron_corew.lab.compare.plan import plan
from megatron_corew.lab.compare.writing import write_comparison
from megatron_corew.methods import METHODS

from .browser import CHROMIUM, open_browser
from .test_report_browser import CONTRAST

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium on the PATH (Debian: apt-get install chromium)"
)

STEPS = 48
LANDSCAPE_PX = 1047
"""A4 less its margins at 96 dots per inch."""


def record(cell) -> None:
    """A run whose figures differ from method to method and from seed to seed."""
    place = list(METHODS).index(cell.method)
    lines = []
    for step in range(STEPS + 1):
        value = 0.45 + (place - 4) * step / 600 + (cell.seed - 102) * step / 1000
        line = {"attempt": 1, "time": 0.0, "step": step}
        if step % 8 == 0:
            line |= {"eval/accuracy_original": value, "eval/accuracy_rephrased": value - 0.02}
        if step > 0:
            line |= {"reward/mean": value, "policy/entropy": value, "time/step_s": 1.0}
            line["response/length_mean"] = 10 + 10 * value
            if METHODS[cell.method].needs_labels:
                line["label/accuracy"] = value
        lines.append(json.dumps(line) + "\n")
    cell.folder.path.mkdir(parents=True)
    (cell.folder.path / "metrics.jsonl").write_text("".join(lines))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    cells = plan(list(METHODS), base="echo", seeds=3, out=out, steps=STEPS)
    for cell in cells:
        record(cell)
    write_comparison(cells, out, base="echo")
    return (out / "comparison.html").as_uri()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab
        assert tab.complaints == []


@pytest.fixture
def page(tab, address):
    tab.requests.clear()
    tab.open(address)
    return tab


def test_it_opens_without_the_network(page, address):
    assert page.requests == [address]
    assert page.value("document.querySelectorAll('tbody th').length") >= len(METHODS)


def test_every_chart_draws_every_method_over_its_whole_width(page):
    shapes = page.value(
        "[...document.querySelectorAll('.plot')].map((plot) => {"
        " const box = plot.querySelector('svg').getBoundingClientRect();"
        " return [...plot.querySelectorAll('path:not(.dots)')].map((path) => {"
        "  const line = path.getBoundingClientRect();"
        "  return [line.width / box.width, line.top - box.top, box.bottom - line.bottom]; }); })"
    )
    # Labels and their rewards are missing where a method rewards with a score of the policy.
    labelled = sum(method.needs_labels for method in METHODS.values())
    everyone = len(METHODS)
    assert [len(lines) for lines in shapes] == [everyone, everyone, labelled, labelled] + [
        everyone
    ] * 2
    for width, above, below in (line for lines in shapes for line in lines):
        assert width > 0.95
        assert above > -2
        assert below > -2


def test_no_two_methods_look_alike(page):
    looks = page.value(
        "[...document.querySelectorAll('figure:first-of-type .legend i')].map((i) => {"
        " const style = getComputedStyle(i);"
        " return style.borderTopColor + ' ' + style.borderTopStyle; })"
    )
    assert len(set(looks)) == len(looks) == len(METHODS)
    lines = page.value(
        "[...document.querySelectorAll('figure:first-of-type path:not(.dots)')].map((p) => {"
        " const style = getComputedStyle(p);"
        " return style.stroke + ' ' + (style.strokeDasharray === 'none' ? 'solid' : 'dashed'); })"
    )
    assert lines == looks


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(tab, address, width):
    tab.open(address, width=width)
    assert tab.value("document.documentElement.scrollWidth") <= width


def test_a_desktop_shows_the_whole_table_of_three_seeds(page):
    hidden = page.value(
        "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(" + TABLE + ")"
    )
    assert hidden <= 0


def test_a_phone_scrolls_the_table_under_the_methods_names(tab, address):
    tab.open(address, width=360)
    before = tab.value(f"{TABLE}.scrollWidth > {TABLE}.clientWidth")
    assert before
    tab.value(f"{TABLE}.scrollLeft = 10000")
    # The name stays at the left edge, the last column is inside the card, letters stay together.
    name, last, card = (
        tab.value(
            "(({left, right, height}) => ({left, right, height}))"
            f"({element}.getBoundingClientRect())"
        )
        for element in (
            f"{TABLE}.querySelector('tbody th')",
            f"{TABLE}.querySelector('tbody td:last-child')",
            TABLE,
        )
    )
    assert card["left"] <= name["left"] < name["right"] <= last["left"]
    assert last["right"] <= card["right"]
    assert name["right"] - name["left"] > 50
    assert name["height"] < 90


TABLE = "document.querySelector('.card.scroll')"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(page, scheme):
    page.send(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    assert page.value(CONTRAST) == []


def test_print_fits_the_table_on_a_page_and_leaves_the_controls_out(tab, address):
    tab.open(address, width=LANDSCAPE_PX)
    tab.send("Emulation.setEmulatedMedia", media="print")
    try:
        right = "document.querySelector('.card.scroll table').getBoundingClientRect().right"
        assert tab.value(right) <= LANDSCAPE_PX
        style = "getComputedStyle(document.querySelector('figure details')).display"
        assert tab.value(style) == "none"
        assert len(tab.send("Page.printToPDF", preferCSSPageSize=True)["data"]) > 20_000
    finally:
        tab.send("Emulation.setEmulatedMedia", media="")
