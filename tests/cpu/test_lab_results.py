"""The figures of a comparison: one run, the seeds of a method, and how a run ended."""

import json

import pytest

from megatron_corew.lab.compare.curves import mean_curve
from megatron_corew.lab.compare.results import method_results, outcome_of, run_result
from megatron_corew.lab.compare.tables import COLUMNS, as_json, markdown, table_rows


@pytest.mark.parametrize(
    ("accuracies", "outcome"),
    [
        ([0.50, 0.70, 0.95], "held"),
        ([0.50, 0.45, 0.41], "held"),  # 0.09 below the start
        ([0.50, 0.45, 0.39], "collapsed"),  # 0.11 below the start
        ([0.50, 0.90, 0.39], "collapsed"),  # the start decides, not only the best
        ([0.50, 0.90, 0.79], "fell back"),  # 0.11 below the best, above the start
        ([0.50, 0.90, 0.81], "held"),
        ([0.50, 0.58, 0.47], "fell back"),  # a little below the start, 0.11 below the best
        ([0.50], "held"),
    ],
)
def test_a_run_ends_by_what_it_lost_from_its_start_and_from_its_best(accuracies, outcome):
    assert outcome_of(accuracies) == outcome


def records(accuracies, *, labels=True, first_reward=0.0):
    """Metrics of a run with an evaluation at every other step, as read_metrics gives them."""
    found = [{"step": 0, "eval/accuracy_original": accuracies[0], "eval/accuracy_rephrased": 0.3}]
    for step in range(1, 2 * len(accuracies) - 1):
        line = {
            "step": step,
            "reward/mean": first_reward + step,
            "policy/entropy": 0.5,
            "response/length_mean": 10.0 - step,
            "time/step_s": 2.0,
        }
        if labels:
            line["label/accuracy"] = step / 10
        if step % 2 == 0:
            line["eval/accuracy_original"] = accuracies[step // 2]
            line["eval/accuracy_rephrased"] = 0.4
        found.append(line)
    return found


def test_a_run_is_summed_up_by_hand():
    found = run_result(records([0.5, 0.8, 0.6]), method="majority_vote", seed=3)
    # Four steps: the first half is steps 1 and 2, the last half 3 and 4.
    assert found.figures == pytest.approx(
        {
            "original start": 0.5,
            "original best": 0.8,
            "original final": 0.6,
            "rephrased start": 0.3,
            "rephrased best": 0.4,
            "rephrased final": 0.4,
            "label accuracy start": 0.15,
            "label accuracy final": 0.35,
            "reward start": 1.5,
            "reward final": 3.5,
            "entropy start": 0.5,
            "entropy final": 0.5,
            "length start": 8.5,
            "length final": 6.5,
        }
    )
    assert (found.outcome, found.seconds) == ("fell back", 8.0)


def three_runs():
    return [
        run_result(records([0.5, 0.9]), method="co_rewarding_i", seed=101),
        run_result(records([0.5, 0.2], labels=False), method="self_certainty", seed=101),
        run_result(records([0.6, 0.45]), method="co_rewarding_i", seed=102),
    ]


def test_the_seeds_of_a_method_become_mean_and_extremes():
    first, second = method_results(three_runs())
    assert (first.method, first.seeds) == ("co_rewarding_i", [101, 102])
    final = first.figures["original final"]
    assert (final.mean, final.low, final.high) == pytest.approx((0.675, 0.45, 0.9))
    assert first.outcomes == {"held": 1, "collapsed": 1}
    assert (second.method, second.outcomes) == ("self_certainty", {"collapsed": 1})


def test_the_table_has_a_cell_for_every_heading_and_a_dash_for_what_is_not_measured():
    head, co, certain = table_rows(method_results(three_runs()))
    assert head[3:] == list(COLUMNS.values())
    row = dict(zip(COLUMNS, co[3:], strict=True))
    assert co[:3] == ["co_rewarding_i", "101-102", "1 held, 1 collapsed"]
    assert row["original final"] == "0.68 (0.45-0.90)"
    assert row["rephrased final"] == "0.40"
    assert row["length final"] == "8.0"
    assert certain[2] == "collapsed"
    assert dict(zip(COLUMNS, certain[3:], strict=True))["label accuracy final"] == "-"


def test_the_markdown_says_what_collapsed_means_and_every_row_has_all_columns():
    text = markdown(method_results(three_runs()), title="Lab: base echo", setting="Two runs.")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 4
    assert "more than 0.10 below the first" in text


def test_the_json_holds_every_run_and_loads_again():
    runs = three_runs()
    found = as_json(runs, method_results(runs), base="echo", config={"run.steps": 2})
    again = json.loads(json.dumps(found, allow_nan=False))
    assert [run["outcome"] for run in again["runs"]] == ["held", "collapsed", "collapsed"]
    assert again["methods"][0]["figures"]["original final"]["low"] == 0.45
    assert again["setting"] == {"run.steps": 2}


def test_a_mean_curve_averages_the_runs_that_measured_a_step():
    runs = [
        [{"step": 0, "x": 1.0}, {"step": 2, "x": 3.0}],
        [{"step": 0, "x": 2.0}, {"step": 1, "y": 9.0}],
    ]
    assert mean_curve(runs, "x") == {0: 1.5, 2: 3.0}
