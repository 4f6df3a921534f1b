"""Extraction, votes and rewards against the golden values of the released code (raw mode)."""

import json
import re
from itertools import takewhile
from pathlib import Path

import pytest

from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.answers.keys import canonical_key, decides
from megatron_corew.answers.official import official_answer, officially_equal

GOLDEN = Path(__file__).parents[1] / "golden"

# Where the reading of math mode differs from math-verify's on purpose: gold, answer, ours.
OTHER_READING = {
    (r"\frac", r"\frac"): False,  # no answer
    (r"\sqrt", r"\sqrt"): False,  # no answer
    ("5", "5=x"): True,  # x = 5 either way round
    ("a", r"a\text{ b}\text{ c}"): False,  # three words; math-verify drops two of them
}


def _cases(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def _judge(equivalence):
    return AnswerJudge(
        equivalence=equivalence,
        tie="first",
        min_share=0.0,
        verify_timeout_s=20.0,
        verify_workers=1,
        verify_memory_mb=2048,
        extractors=("boxed",),
    )


EXTRACTION, EQUIVALENCE, REWARD = _cases("extraction")


@pytest.mark.parametrize("item", EXTRACTION["items"], ids=lambda item: repr(item["text"]))
def test_official_extraction(item):
    # The golden answer "" stands for none, and for failures that the official code swallows.
    assert (official_answer(item["text"]) or "") == item["extracted_answer"]
    (vote,) = _judge("raw").votes([[item["text"]]])
    assert (vote.answers[0] or "") == item["extracted_answer"]


@pytest.mark.parametrize("item", EQUIVALENCE["items"], ids=lambda item: f"{item['a']}, {item['b']}")
def test_official_equivalence(item):
    assert officially_equal(item["a"], item["b"]) is item["is_equiv"]
    reward = _judge("raw").correctness([[f"\\boxed{{{item['a']}}}"]], [item["b"]])
    assert reward == [[item["score_of_boxed_a_against_b"]]]


def test_official_ground_truth_reward():
    texts = [item["text"] for item in REWARD["items"]]
    truths = REWARD["ground_truths"]
    rewards = _judge("raw").correctness([texts] * len(truths), truths)
    assert rewards == [
        list(row) for row in zip(*(i["scores"] for i in REWARD["items"]), strict=True)
    ]


def _in_batch_order(case, number):
    """The samples of one question in the order in which the official code met them."""
    size = case["group_size"]
    if case["row_order"] is None:
        return list(range(size))
    return [row % size for row in case["row_order"] if row // size == number]


class _Official:
    """One golden case, run through the judge."""

    def __init__(self, case):
        self._case, self._judge = case, _judge("raw")
        self._orders = [_in_batch_order(case, n) for n in range(len(case["questions"]))]

    def texts(self, kind):
        return [question[kind] for question in self._case["questions"]]

    def labels(self, kind):
        pairs = zip(self.texts(kind), self._orders, strict=True)
        votes = self._judge.votes([[texts[place] for place in order] for texts, order in pairs])
        return [vote.label for vote in votes]

    def rewards(self, kind, labels):
        return self._judge.agreement(self.texts(kind), labels)

    def correct(self, kind):
        truths = [question["ground_truth"] for question in self._case["questions"]]
        return self._judge.correctness(self.texts(kind), truths)


VOTES = [pytest.param(case, id=case["name"]) for case in _cases("votes")]


def _named(labels):
    return [label or "" for label in labels]


@pytest.mark.parametrize("case", VOTES)
def test_official_answers_and_labels(case):
    official = _Official(case)
    for kind, golden in case["extracted_answers"].items():
        votes = _judge("raw").votes(official.texts(kind))
        assert [_named(vote.answers) for vote in votes] == golden
    for kind, golden in case["votes"].items():
        assert _named(official.labels(kind)) == golden


@pytest.mark.parametrize("case", VOTES)
@pytest.mark.parametrize(
    ("method", "for_original", "for_rephrased"),
    [
        ("co_rewarding_I", "policy_rephrased", "policy_original"),
        ("co_rewarding_III", "teacher_rephrased", "teacher_original"),
    ],
)
def test_official_rewards_of_crossed_views(case, method, for_original, for_rephrased):
    official, golden = _Official(case), case[method]
    for view, source in (("original", for_original), ("rephrased", for_rephrased)):
        labels = official.labels(source)
        assert _named(labels) == golden[f"label_for_{view}"]
        assert official.rewards(f"policy_{view}", labels) == golden[f"rewards_{view}"]


@pytest.mark.parametrize("case", VOTES)
@pytest.mark.parametrize(
    ("method", "source"),
    [("co_rewarding_II", "teacher_original"), ("majority_voting", "policy_original")],
)
def test_official_rewards_of_one_view(case, method, source):
    official, golden = _Official(case), case[method]
    labels = official.labels(source)
    rewards = official.rewards("policy_original", labels)
    if golden.get("raises"):
        # The official code divides by the number of labels; here there is simply no reward.
        assert set(labels) == {None}
        assert not any(map(sum, rewards))
        return
    assert _named(labels) == golden["label"]
    assert rewards == golden["rewards"]


@pytest.mark.parametrize("case", VOTES)
def test_official_rewards_of_the_ground_truth(case):
    golden = case["ground_truth"]
    assert not golden.get("raises")
    assert _Official(case).correct("policy_original") == golden["rewards"]


def test_math_mode_agrees_with_math_verify_apart_from_its_stated_readings():
    (pairs,) = _cases("math_verify")
    items = [(item["gold"], item["answer"], item["verify"]) for item in pairs["items"]]
    with _judge("math") as judge:
        rewards = judge.correctness(
            [[f"\\boxed{{{answer}}}"] for _, answer, _ in items], [gold for gold, _, _ in items]
        )
    differing = {
        (gold, answer): bool(reward)
        for (gold, answer, verify), (reward,) in zip(items, rewards, strict=True)
        if bool(reward) is not verify
    }
    assert differing == OTHER_READING


def test_most_golden_pairs_need_no_math_verify():
    (pairs,) = _cases("math_verify")
    keys = [(canonical_key(item["gold"]), canonical_key(item["answer"])) for item in pairs["items"]]
    undecided = [pair for pair in keys if None not in pair and decides(*pair) is None]
    assert len(undecided) <= len(keys) // 4


PARITY = (Path(__file__).parents[2] / "docs" / "parity.md").read_text()


def _rows(heading):
    """The first rows of a table of the page: all spans of code in the cells, as texts."""
    lines = PARITY.partition(heading)[2].lstrip().splitlines()
    cells = [line.split(" | ") for line in takewhile(lambda line: line.startswith("|"), lines)]
    return [[_code(cell) for cell in row] for row in cells[2:]]


def _code(cell):
    return [code.replace("⏎", "\n") for code in re.findall(r"`([^`]*)`", cell)]


def test_parity_lists_every_golden_response_that_is_read_differently():
    with _judge("math") as judge:
        votes = judge.votes([[item["text"]] for item in EXTRACTION["items"]])
        texts, truths = [item["text"] for item in REWARD["items"]], REWARD["ground_truths"]
        rewards = judge.correctness([texts] * len(truths), truths)
    differing = {}
    for item, vote in zip(EXTRACTION["items"], votes, strict=True):
        official, ours = item["extracted_answer"], vote.answers[0] or ""
        if official.strip() != ours:
            differing[item["text"]] = ([official] if official else [], [ours] if ours else [])
    listed = _rows("ground-truth rewards of these responses:")
    assert {row[0][0]: (row[1], row[2]) for row in listed} == differing
    also = {
        item["text"]
        for item, ours in zip(REWARD["items"], zip(*rewards, strict=True), strict=True)
        if list(ours) != item["scores"]
    }
    assert also <= {*differing, r"\boxed{}", r"\boxed{ }"}


def test_parity_lists_every_golden_pair_that_is_compared_differently():
    items = EQUIVALENCE["items"]
    with _judge("math") as judge:
        ours = judge.same([item["a"] for item in items], [item["b"] for item in items])
    differing = {
        (item["a"], item["b"]): item["is_equiv"]
        for item, is_same in zip(items, ours, strict=True)
        if bool(is_same) is not item["is_equiv"]
    }
    table = PARITY.partition("Equality (")[2]
    lines = [line for line in table.splitlines() if re.match(r"\| `.*` \| [=≠] \| [=≠] \|", line)]
    listed = {tuple(_code(line.split(" | ")[0])): line.split(" | ")[1] == "=" for line in lines}
    assert listed == differing
