"""Finding the final answer in responses without boxes: by hand, and any text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.answers.extract import candidates

ALL = ("boxed", "hashes", "phrase", "choice", "last_number")


def _only(name, text):
    return next(candidates(text, (name,)), None)


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("boxed", r"#### 3 \boxed{4}", "4"),
        ("hashes", "so\n#### 1,234\n", "1,234"),
        ("hashes", "#### 3\n#### 4", "4"),
        ("hashes", "### 3", None),
        ("phrase", "The final answer is 3.5. I hope so.", "3.5"),
        ("phrase", r"The answer is $\frac{1}{2}$. Done.", r"\frac{1}{2}"),
        ("phrase", r"The answer is: \(x+1\), as wanted", "x+1"),
        ("phrase", "Final Answer: **12**", "12"),
        ("phrase", "The answer is 3. No, the answer is 4\nBye", "4"),
        ("phrase", "The answers are many", None),
        ("choice", "I choose (B) over (C).", "C"),
        ("choice", "Answer: D, since A fails", "D"),
        ("choice", "the option is **E**", "E"),
        ("choice", "therefore B.", "B"),
        ("choice", "A lamp and Bob", None),
        ("last_number", "3 apples and 1,234.50 pears, of 2/3", "2/3"),
        ("last_number", "from 3 to -5.", "-5"),
        ("last_number", "3-5", "5"),
        ("last_number", "1,234, or so", "1,234"),
        ("last_number", "x2 and y_3", None),
    ],
)
def test_each_rule_takes_the_last_of_its_kind(name, text, answer):
    assert _only(name, text) == answer


def test_the_rules_are_tried_in_the_given_order():
    text = r"Answer: 7 \boxed{4} #### 5"
    assert list(candidates(text, ("hashes", "boxed", "last_number"))) == ["5", "4", "5"]
    assert list(candidates("nothing", ALL)) == []


@given(
    st.text() | st.lists(st.sampled_from(["answer is", "####", "(A)", " ", "$", "7"])).map("".join)
)
def test_any_text_is_read_without_an_error(text):
    assert all(isinstance(answer, str) for answer in candidates(text, ALL))


@pytest.mark.parametrize("piece", ["answer is ", "#### ", "(A", "$", " ", "1,", "9", "option is "])
def test_a_megabyte_of_anything_does_not_make_it_slow(piece):
    started = time.perf_counter()
    list(candidates(piece * (10**6 // len(piece)), ALL))
    # Quadratic scanning would take hours.
    assert time.perf_counter() - started < 30.0
