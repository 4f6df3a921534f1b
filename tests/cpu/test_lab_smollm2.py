"""The few-shot sums for the small language model; its download is not tested here."""

import re

import pytest

from megatron_corew.lab import smollm2
from megatron_corew.lab.smollm2 import SHOTS, require_readers, sum_rows

SOLVED = re.compile(r"^(\d) (?:\+|plus) (\d) (?:=|is) (\d+) so \\boxed\{(\d+)\}$")
SUMMANDS = re.compile(r"^(\d) \+ (\d)")
ASKED = re.compile(r"^(\d) (?:\+|plus) (\d) (?:=|is)$")


def test_the_same_seed_gives_the_same_sums():
    assert sum_rows("train", 20, seed=1) == sum_rows("train", 20, seed=1)
    assert sum_rows("train", 20, seed=1) != sum_rows("train", 20, seed=2)


def test_every_solved_sum_is_right_in_both_wordings():
    for row in sum_rows("train", 50, seed=0):
        for view in ("prompt", "rephrased"):
            *shots, _ = row[view].split("\n")
            assert len(shots) == SHOTS
            for shot in shots:
                first, second, plain, boxed = map(int, SOLVED.fullmatch(shot).groups())
                assert first + second == plain == boxed


def test_the_rephrased_question_swaps_the_summands_and_keeps_the_answer():
    for row in sum_rows("train", 50, seed=0):
        first, second = ASKED.fullmatch(row["prompt"].split("\n")[-1]).groups()
        swapped = ASKED.fullmatch(row["rephrased"].split("\n")[-1]).groups()
        assert swapped == (second, first)
        assert int(first) + int(second) == int(row["answer"])


def test_no_sum_of_one_split_is_asked_in_the_other_nor_shown_solved():
    asked = {}
    for split in ("train", "eval"):
        asked[split] = set()
        for row in sum_rows(split, 400):
            *shots, question = row["prompt"].split("\n")
            sums = [tuple(sorted(SUMMANDS.match(line).groups())) for line in (*shots, question)]
            assert sums[-1] not in sums[:-1]
            asked[split].add(sums[-1])
    assert asked["train"].isdisjoint(asked["eval"])
    # All 45 pairs of digits without order are asked somewhere.
    assert len(asked["train"] | asked["eval"]) == 45


def test_a_prompt_does_not_end_in_a_space():
    # The tokenizer joins a space to the word behind it: a final space would be a rare token.
    assert all(not row["prompt"].endswith(" ") for row in sum_rows("train", 5, seed=0))


def test_a_missing_reader_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(smollm2, "READERS", ("json", "no_such_reader"))
    with pytest.raises(RuntimeError, match="pip install no_such_reader"):
        require_readers()
