"""Finding the last box: by hand, broken and hostile texts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.answers.boxes import last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First I get \boxed{3}. Wait, recheck. The final answer is \boxed{4}.", "4"),
        (r"\boxed{4}, hmm, \boxed{3}, no: \boxed{4}", "4"),
        (r"\boxed{840}. text **Final Answer** \boxed{840}", "840"),
        (r"\boxed{4} \fbox{5}", "5"),
    ],
)
def test_of_several_boxes_the_last_counts(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{\sqrt{2}}{\sqrt{3}}}", r"\frac{\sqrt{2}}{\sqrt{3}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{\text{the value is } \boxed{7}}", "7"),
        ("\\boxed{\n5\n}", "5"),
        (r"\boxed{}", ""),
        (r"{\boxed{5}", "5"),
        (r"\boxed{5}}", "5"),
    ],
)
def test_braces_are_matched(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed {5}", "5"),
        ("\\boxed\n{5}", "5"),
        (r"\boxed 5", "5"),
        (r"$\boxed 5$ dollars", "5"),
        (r"\(\boxed 5\) or so", "5"),
        (r"{\boxed 5} or so", "5"),
        (r"\boxed5", "5"),
        (r"\boxed \frac{1}{2} is it", r"\frac{1}{2}"),
        (r"\boxed x", "x"),
        (r"\fbox{5}", "5"),
    ],
)
def test_other_ways_to_write_a_box(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    "text",
    ["", "no box", r"\boxed", r"\boxed{5", "boxed{5}", r"\Boxed{5}", r"\boxedd{6}", "**73**"],
)
def test_without_a_complete_box_there_is_no_answer(text):
    assert last_boxed(text) is None


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{1} and \boxed{2",
        r"\boxed{1}, which I put into \boxed as asked",
        r"\boxed{1} \boxedd{6}",
        r"\boxed{1} \boxed",
        r"\boxed{1} \boxed \frac{2",
    ],
)
def test_what_is_no_complete_box_does_not_hide_the_one_before(text):
    assert last_boxed(text) == "1"


PIECES = st.lists(st.sampled_from(["\\boxed{", "\\fbox", *"\\{}$ 5xb\n"]), max_size=60)


@given(PIECES.map("".join) | st.text())
def test_any_text_is_read_without_an_error(text):
    answer = last_boxed(text)
    assert answer is None or answer in text


def test_unclosed_boxes_do_not_make_it_slow():
    started = time.perf_counter()
    assert last_boxed(r"\boxed{" * 20_000) is None
    assert last_boxed(r"\boxed \frac{" * 20_000) is None
    # Quadratic scanning would take minutes.
    assert time.perf_counter() - started < 5.0
