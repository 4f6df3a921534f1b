"""The question stream: whole epochs, and resuming at any step without a state."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_corew.config import DataConfig
from megatron_corew.data.prompts import QuestionStream, load_questions
from megatron_corew.types import Prompt, Question
from tests.cpu.test_data_prompts import byte_tokenizer, own_cache  # noqa: F401


def questions(count: int) -> list[Question]:
    return [
        Question(
            id=str(at),
            prompts={
                "original": Prompt(question_id=str(at), view="original", text="", token_ids=(at,))
            },
            answer=None,
        )
        for at in range(count)
    ]


def ids(stream: QuestionStream, steps) -> list[tuple[str, ...]]:
    return [tuple(question.id for question in stream.batch_at(step)) for step in steps]


def test_an_epoch_uses_every_question_once_and_leaves_out_the_incomplete_batch():
    stream = QuestionStream(questions(7), prompts_per_step=2, seed=0)
    assert stream.steps_per_epoch == 3
    for first in (1, 4, 7):
        epoch = [name for batch in ids(stream, range(first, first + 3)) for name in batch]
        assert len(set(epoch)) == 6


@pytest.mark.parametrize("done", range(7))
def test_resuming_at_any_step_runs_exactly_the_steps_that_were_left(done):
    # Two epochs of three batches, stopped also at the ends of both epochs.
    whole = ids(QuestionStream(questions(6), prompts_per_step=2, seed=5), range(1, 7))
    resumed = ids(QuestionStream(questions(6), prompts_per_step=2, seed=5), range(done + 1, 7))
    assert resumed == whole[done:]


def test_epochs_and_seeds_have_orders_of_their_own():
    stream = QuestionStream(questions(50), prompts_per_step=50, seed=0)
    other = QuestionStream(questions(50), prompts_per_step=50, seed=1)
    orders = {*ids(stream, range(1, 4)), *ids(other, range(1, 4))}
    assert len(orders) == 6


def test_the_order_is_the_same_on_every_machine():
    stream = QuestionStream(questions(6), prompts_per_step=6, seed=0)
    assert ids(stream, [1, 2]) == [tuple("051432"), tuple("201534")]


def further(stream: QuestionStream, step: int, rounds) -> list[str]:
    return [question.id for at in rounds for question in stream.further_at(step, at)]


@pytest.mark.parametrize("step", range(1, 9))
def test_further_questions_go_once_through_all_data_but_the_step_s_own(step):
    stream = QuestionStream(questions(11), prompts_per_step=3, seed=0)
    own = [question.id for question in stream.batch_at(step)]
    rounds = [further(stream, step, [at]) for at in (1, 2, 3, 4)]
    assert [len(part) for part in rounds] == [3, 3, 2, 0]
    assert sorted(own + further(stream, step, [1, 2, 3, 4])) == sorted(str(at) for at in range(11))


def test_further_questions_are_the_same_on_every_machine():
    stream = QuestionStream(questions(8), prompts_per_step=2, seed=0)
    assert [further(stream, step, [1, 2]) for step in (1, 2)] == [list("3716"), list("5260")]


def test_further_questions_of_steps_and_seeds_have_orders_of_their_own():
    streams = [QuestionStream(questions(40), prompts_per_step=4, seed=seed) for seed in (0, 1)]
    found = {tuple(further(stream, step, [1])) for stream in streams for step in range(1, 12)}
    assert len(found) == 22


def test_more_prompts_per_step_than_questions_are_refused():
    with pytest.raises(ValueError, match=r"rollout\.prompts_per_step: need at most the 3 usable"):
        QuestionStream(questions(3), prompts_per_step=4, seed=0)


def test_filtering_and_shuffling_never_part_a_question_from_its_rephrasing(tmp_path):
    rows = [{"key": f"k{at}", "prompt": f"ask {at}", "again": f"again {at}"} for at in range(6)]
    rows[1]["again"] = ""
    rows[4]["prompt"] = "ask 4 " + "x" * 40
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "answer": row["key"]}) + "\n" for row in rows))
    config = DataConfig(
        train=str(path),
        id_column="key",
        rephrased_column="again",
        answer_column="answer",
        chat_template=False,
        max_prompt_tokens=16,
    )
    loaded = load_questions(
        config, byte_tokenizer(), which="train", needs_rephrasings=True, needs_answers=True
    )
    stream = QuestionStream(loaded.questions, prompts_per_step=2, seed=11)
    seen = [question for step in (1, 2, 3, 4) for question in stream.batch_at(step)]
    assert sorted(question.id for question in seen) == sorted(["k0", "k2", "k3", "k5"] * 2)
    assert [question.id for question in seen[:4]] != ["k0", "k2", "k3", "k5"]
    for question in seen:
        number = question.id.removeprefix("k")
        assert question.prompts["original"].text == f"ask {number}"
        assert question.prompts["rephrased"].text == f"again {number}"
        assert question.answer == question.id


def test_the_order_knows_neither_ranks_nor_the_hash_seed():
    program = (
        "from tests.cpu.test_data_stream import *\n"
        "stream = QuestionStream(questions(30), prompts_per_step=4, seed=3)\n"
        "print(ids(stream, range(1, 15)), further(stream, 9, [1, 2]))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RANK": "3", "WORLD_SIZE": "4", "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    stream = QuestionStream(questions(30), prompts_per_step=4, seed=3)
    assert there == f"{ids(stream, range(1, 15))} {further(stream, 9, [1, 2])}\n"
