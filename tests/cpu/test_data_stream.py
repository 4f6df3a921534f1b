"""The question stream: whole epochs, and resuming at any step without a state."""

import pytest

from megatron_corew.data.prompts import QuestionStream
from megatron_corew.types import Prompt, Question


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


def test_more_prompts_per_step_than_questions_are_refused():
    with pytest.raises(ValueError, match=r"rollout\.prompts_per_step: need at most the 3 usable"):
        QuestionStream(questions(3), prompts_per_step=4, seed=0)
