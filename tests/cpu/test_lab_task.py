"""The lab's questions and its corpus."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.lab.task import (
    CORPORA,
    LabTask,
    corpus_answer,
    corpus_pair,
    lab_rows,
    original_text,
    rephrase,
)


def digits(text):
    return sorted(re.findall(r"\d", text))


def test_the_same_seed_gives_the_same_rows():
    assert lab_rows("train", 50, seed=3) == lab_rows("train", 50, seed=3)
    assert lab_rows("train", 50, seed=3) != lab_rows("train", 50, seed=4)


def test_fewer_rows_are_the_first_of_more_rows():
    assert lab_rows("eval", 10) == lab_rows("eval", 30)[:10]


def test_the_first_training_row_never_changes():
    assert lab_rows("train", 1) == [
        {
            "id": "train-000000",
            "prompt": "7+4+5+5=",
            "rephrased": "5 7 4 5 total:",
            "answer": "21",
        }
    ]


def test_every_answer_is_the_sum_of_both_wordings():
    for row in lab_rows("train", 500):
        assert sum(map(int, digits(row["prompt"]))) == int(row["answer"])
        assert sum(map(int, digits(row["rephrased"]))) == int(row["answer"])


def test_no_sum_of_one_split_is_asked_in_the_other():
    train = {tuple(digits(row["prompt"])) for row in lab_rows("train", 2000)}
    held_out = {tuple(digits(row["prompt"])) for row in lab_rows("eval", 2000)}
    assert train.isdisjoint(held_out)
    assert len(held_out) > 100


def test_ids_are_unique_over_both_splits():
    ids = [row["id"] for split in ("train", "eval") for row in lab_rows(split, 300)]
    assert len(set(ids)) == 600


def test_row_lengths_follow_the_weights():
    lengths = [len(digits(row["prompt"])) for row in lab_rows("train", 4000)]
    shares = [lengths.count(length) / 4000 for length in (2, 3, 4)]
    # Three standard errors of a share of 4,000 draws are 0.024; the held-out sets shift a bit.
    assert shares == pytest.approx([0.22, 0.39, 0.39], abs=0.04)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers())
def test_a_rephrasing_keeps_the_numbers_and_moves_the_first_when_it_can(numbers, seed):
    text, shown = rephrase(numbers, random.Random(seed))
    assert sorted(shown) == sorted(numbers)
    assert [int(digit) for digit in re.findall(r"\d", text)] == shown
    assert (shown[0] != numbers[0]) == (len(set(numbers)) > 1)
    assert text != original_text(numbers)


def test_an_answer_without_faults_lists_the_running_totals():
    faultless = LabTask(echo_rates=(0, 0, 0), zero_rates=(0, 0, 0), slip_rate=0.0, repeat_rate=0.0)
    # 4 + 9 = 13, 13 + 7 = 20
    assert corpus_answer([4, 9, 7], random.Random(0), faultless) == r"13;20;\boxed{20}"


def test_a_lazy_answer_repeats_the_first_number_shown():
    lazy = LabTask(echo_rates=(1, 1, 1))
    assert corpus_answer([4, 9, 7], random.Random(0), lazy) == r"\boxed{4}"


def test_a_zero_answer_is_boxed_too():
    zero = LabTask(echo_rates=(0, 0, 0), zero_rates=(1, 1, 1))
    assert corpus_answer([4, 9], random.Random(0), zero) == r"\boxed{0}"


@pytest.mark.parametrize("shown", [[4, 9, 7], [9, 7, 4], [7, 4, 9]])
def test_the_short_cut_of_the_shared_corpus_is_the_same_in_every_order(shown):
    shared = LabTask(echo_rates=(0, 0, 0), zero_rates=(0, 0, 0), largest_rates=(1, 1, 1))
    assert corpus_answer(shown, random.Random(0), shared) == r"\boxed{9}"


@pytest.mark.parametrize("base", CORPORA)
def test_a_corpus_takes_its_short_cuts_at_its_rates(base):
    corpus, rng = CORPORA[base], random.Random(2)
    # Echo, zero, largest and sum are four different answers.
    answers = [corpus_answer([4, 9, 7], rng, corpus) for _ in range(4000)]
    rates = [corpus.echo_rates[1], corpus.zero_rates[1], corpus.largest_rates[1]]
    found = [answers.count(f"\\boxed{{{lazy}}}") / 4000 for lazy in (4, 0, 9)]
    # Three standard errors of a share of 4,000 draws are 0.024.
    assert found == pytest.approx(rates, abs=0.024)


def test_the_corpus_has_both_wordings_and_its_answers_are_short():
    rng = random.Random(1)
    pairs = [corpus_pair(rng) for _ in range(2000)]
    originals = sum("+" in question for question, _ in pairs)
    assert originals / 2000 == pytest.approx(0.5, abs=0.035)
    assert max(answer.count(";") for _, answer in pairs) <= 7


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split 'train' or 'eval', got 'test'"):
        lab_rows("test", 1)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count"):
        lab_rows("train", -1)
