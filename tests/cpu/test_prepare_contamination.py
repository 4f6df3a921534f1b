"""Evaluation questions inside other questions: nothing obvious missed, nothing innocent caught."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_corew.data.prepare.contamination import EvaluationIndex, tokens_of

WORDS = [f"w{chr(97 + at)}{chr(97 + at)}" for at in range(24)]
LONG = " ".join(WORDS)  # 24 words: 12 different 13-grams
SHORT = "What is $2+3$?"


def index(*questions: str, overlap: float = 0.6) -> EvaluationIndex:
    return EvaluationIndex({"exam": questions}, ngram=13, overlap=overlap)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SHORT, "verbatim"),
        (f"\n{SHORT} ", "verbatim"),
        ("what is  $ 2 + 3 $", "normalised"),
        (
            r"What is \( \left. 2+3 \right. \)?".replace(r"\left.", "").replace(r"\right.", ""),
            "normalised",
        ),
        ("What is $2-3$?", None),
        ("What is $2+4$?", None),
        (f"Tell me: {SHORT}", None),
    ],
)
def test_a_short_question_is_found_only_whole_and_its_signs_count(text, kind):
    match = index(SHORT).find(text)
    assert (match and match.kind) == kind


def test_the_share_is_that_of_the_evaluation_questions_ngrams():
    exam = index(LONG)
    # 20 words in a row hold 8 of the 12 13-grams; 19 hold 7, which is less than 0.6.
    match = exam.find("before " + " ".join(WORDS[:20]) + " after")
    assert match is not None
    assert (match.kind, match.question) == ("n-grams", 0)
    assert match.share == pytest.approx(8 / 12)
    assert exam.find(" ".join(WORDS[:19])) is None
    # Inside a much longer text the evaluation question is as present as alone.
    assert exam.find("x " * 500 + LONG + " y" * 500).share == 1.0


def test_one_changed_word_in_the_middle_of_a_long_question_is_not_enough_to_hide_it():
    words = [
        *WORDS,
        *(f"v{chr(97 + at)}" for at in range(26)),
        *(f"u{chr(97 + at)}" for at in range(26)),
    ]
    changed = list(words)
    changed[40] = "other"
    match = index(" ".join(words)).find(" ".join(changed))
    # 76 words: 64 13-grams, of which 13 hold the changed word.
    assert match is not None
    assert match.share == pytest.approx(51 / 64)


def test_drawings_alone_make_no_match():
    drawing = "[asy] " + "draw((0,0)--(1,1)); " * 20 + "[/asy]"
    exam = index(f"{LONG} {drawing}")
    assert exam.find(f"{drawing} What is the area of this other figure with all its sides?") is None
    assert exam.find(f"{LONG} [asy] dot((2,2)); [/asy]").kind == "n-grams"
    # Nor does another drawing in the middle hide the words around it.
    first, last = " ".join(WORDS[:12]), " ".join(WORDS[12:])
    assert exam.find(f"{first} [asy] dot((2,2)); [/asy] {last}").share == 1.0


def test_the_first_set_and_the_first_question_win_a_tie():
    exam = EvaluationIndex(
        {"a": ["other", LONG + " end"], "b": [LONG + " end"]}, ngram=13, overlap=0.6
    )
    match = exam.find(f"{LONG} end and so on")
    assert (match.set_name, match.question) == ("a", 1)
    assert exam.counts == {"a": 2, "b": 1}


def test_a_formula_of_a_few_ngrams_is_no_evidence():
    formula = r"Find $\frac{1}{2}+\frac{1}{3}+\frac{1}{4}+\frac15$"
    assert 13 < len(tokens_of(formula)) < 20
    assert index(formula).find(f"{formula} and then the sum of all integers") is None


def test_tokens_have_no_typesetting():
    assert tokens_of(r"Let $\left(x^{2}\right)$.") == ("let", "(", "x", "^", "2", ")")
    assert tokens_of(r"$\dfrac{1}{2}\, \ge 3$") == tokens_of(r"\(\frac{1}{2} \ge 3\)")
    assert tokens_of("") == ()


@given(st.text())
def test_any_text_finds_itself_and_nothing_raises(text):
    match = index("unrelated", text).find(text)
    assert match is not None
    assert match.kind == "verbatim"


@given(st.text(max_size=60), st.text(max_size=60))
def test_white_space_between_tokens_never_matters(left, right):
    assert tokens_of(f"{left} . {right}") == tokens_of(f"{left}\n .\t {right}")
