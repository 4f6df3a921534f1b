"""The files of a comparison: table, JSON, plots and page, made of recorded runs."""

import json
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from megatron_corew.lab.compare.plan import plan
from megatron_corew.lab.compare.writing import FILES, setting_line, write_comparison
from megatron_corew.methods import METHODS

METHODS_HERE = ("co_rewarding_i", "majority_vote", "self_certainty")


def record(cell, final):
    """Leave the metrics of a run of four steps behind."""
    lines = [{"step": 0, "eval/accuracy_original": 0.5, "eval/accuracy_rephrased": 0.5}]
    for step in range(1, 5):
        line = {"step": step, "reward/mean": 0.5, "policy/entropy": 0.4, "time/step_s": 1.0}
        line["response/length_mean"] = 8.0
        # A score of the policy itself is no label.
        if cell.method != "self_certainty":
            line["label/accuracy"] = 0.7
        if step == 4:
            line |= {"eval/accuracy_original": final, "eval/accuracy_rephrased": final}
        lines.append(line)
    cell.folder.path.mkdir(parents=True)
    stamped = [json.dumps({"attempt": 1, "time": 0.0} | line) + "\n" for line in lines]
    (cell.folder.path / "metrics.jsonl").write_text("".join(stamped))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    cells = plan(METHODS_HERE, base="echo", seeds=2, out=out, steps=4)
    for cell in cells:
        record(cell, {"majority_vote": 0.2, "self_certainty": 0.0}.get(cell.method, 0.95))
    return cells, out, write_comparison(cells, out, base="echo")


def test_every_file_is_written(written):
    _, out, _ = written
    assert {file.name for file in out.iterdir()} == {*FILES, "runs"}


def test_the_rows_say_who_collapsed(written):
    _, out, rows = written
    assert [(row.method, dict(row.outcomes)) for row in rows] == [
        ("co_rewarding_i", {"held": 2}),
        ("majority_vote", {"collapsed": 2}),
        ("self_certainty", {"collapsed": 2}),
    ]
    found = json.loads((out / "results.json").read_text())
    assert [run["outcome"] for run in found["runs"]] == ["held", "collapsed", "collapsed"] * 2
    assert found["setting"]["rollout.prompts_per_step"] == 24
    assert not {"method", "run.name", "run.root", "run.seed"} & found["setting"].keys()


def test_a_changed_length_is_said_wherever_the_table_stands(written):
    cells, out, _ = written
    sentence = "6 runs of 4 steps in place of the 80 pre-registered ones"
    assert sentence in setting_line(cells, "echo")
    assert sentence in (out / "results.md").read_text()
    assert sentence in (out / "comparison.html").read_text()
    whole = plan(METHODS_HERE, base="echo", seeds=1, out=out / "whole")
    assert "pre-registered" not in setting_line(whole, "echo")


def test_the_plots_are_pictures_with_ink_in_every_panel(written):
    _, out, _ = written
    for name in ("accuracy.png", "signals.png"):
        with Image.open(out / name) as picture:
            assert picture.width > 1000
            colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
        # More than the axes' greys: lines were drawn.
        assert any(max(colour) - min(colour) > 60 for colour in colours), name


class Tags(HTMLParser):
    """Collects what a page loads and how its tables are shaped."""

    def __init__(self):
        super().__init__()
        self.loads, self.rows, self.open = [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.loads += [values[name] for name in ("src", "href") if name in values]
        if tag not in ("meta", "line", "path", "wbr"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append((values.get("class"), []))
        if tag in ("td", "th"):
            self.rows[-1][1].append("")

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][1][-1] += data

    def handle_endtag(self, tag):
        assert tag in ("meta", "line", "path", "wbr") or self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(written):
    _, out, _ = written
    text = (out / "comparison.html").read_text()
    page = Tags()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert not re.search(r"https?://|@import|url\(", text)
    shown = {cells[0]: (colour, cells) for colour, cells in page.rows if cells[0] in METHODS}
    assert {name: colour for name, (colour, _) in shown.items()} == {
        "majority_vote": "collapsed",
        "self_certainty": "collapsed",
        "co_rewarding_i": "held",
    }
    assert len({len(cells) for _, cells in shown.values()}) == 1
    assert shown["co_rewarding_i"][1][5] == "0.95"


def test_a_score_without_bounds_is_not_drawn_beside_rewards_of_one_and_zero(written):
    _, out, _ = written
    figures = (out / "comparison.html").read_text().split("<figure")[1:]
    # The legend says the method and its last value.
    drawn = {re.search("<figcaption>(.*?)<", one)[1]: one.count("<li>") for one in figures}
    assert drawn == {
        "held-out accuracy, original questions": 3,
        "held-out accuracy, rephrased questions": 3,
        "label accuracy": 2,
        "mean reward, methods with labels": 2,
        "entropy (nats per token)": 3,
        "length (tokens)": 3,
    }
