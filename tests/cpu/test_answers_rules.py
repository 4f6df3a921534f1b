"""The table of rules in docs/answers.md, row by row."""

import re
from pathlib import Path

import pytest

from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.answers.keys import canonical_key

PAGE = (Path(__file__).parents[2] / "docs" / "answers.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## Rules")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| what")
]


def _answers(cell):
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def judge():
    with AnswerJudge(
        equivalence="math",
        tie="abstain",
        min_share=0.0,
        verify_timeout_s=60.0,
        verify_workers=1,
        verify_memory_mb=2048,
        extractors=("boxed",),
    ) as judge:
        yield judge


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_of_the_table_is_true(judge, row):
    what, same, different, _ = row
    if what == "no answer":
        assert [canonical_key(answer) for answer in _answers(same)] == [None] * 4
        return
    same, different = _answers(same), _answers(different)
    assert same
    assert different
    (vote,) = judge.votes([[f"\\boxed{{{answer}}}" for answer in same]])
    assert set(vote.clusters) == {0}, dict(zip(same, vote.clusters, strict=True))
    pairs = [(a, b) for a in same for b in different]
    equal = judge.same([a for a, _ in pairs], [b for _, b in pairs])
    assert not any(equal), [pair for pair, is_equal in zip(pairs, equal, strict=True) if is_equal]
    backwards = judge.same([b for _, b in pairs], [a for a, _ in pairs])
    assert not any(backwards)


def test_the_table_has_the_rows_that_matter():
    names = {row[0] for row in ROWS}
    assert names >= {
        *("percent", "units", "degrees", "thousands", "decimals and fractions", "intervals"),
        *("sets", "tuples", "matrices", "text", "choice letters", "equations", "bases"),
        "huge numbers",
    }
