"""What is wrong with a rephrasing, seen from its text."""

import pytest

from megatron_corew.data.prepare.rephrasings import (
    RephrasingLimits,
    lost_numbers,
    rephrasing_faults,
)

QUESTION = "Tom has 12 apples and eats 5. How many are left?"
SOUND = "Of the 12 pears in her basket Ann sells 5. How many does she keep?"
LIMITS = RephrasingLimits()


def faults(original: str, rephrased: str | None) -> tuple[str, ...]:
    return rephrasing_faults(original, rephrased, LIMITS)


@pytest.mark.parametrize(
    ("rephrased", "expected"),
    [
        (SOUND, ()),
        (None, ("missing",)),
        (" \n", ("missing",)),
        ("<rewritten question>", ("placeholder", "numbers lost")),
        (" <Rewritten Question>\n", ("placeholder", "numbers lost")),
        (QUESTION, ("identical",)),
        (QUESTION.replace(" ", "\n ") + " ", ("identical",)),
        (SOUND.replace("12", "twelve"), ()),
        (SOUND.replace("12", "some"), ("numbers lost",)),
        ("12 - 5 = ?", ("too short",)),
        (SOUND + " So it goes on." * 40, ("too long",)),
        (SOUND + " 多少?", ("another language",)),
        (SOUND.replace("pears", "яблок"), ("another language",)),
        (
            "De las 12 peras de su cesta Ana vende 5. Cuantas peras le quedan ahora a Ana?",
            ("another language",),
        ),
        (SOUND.replace("pears", "\N{GREEK SMALL LETTER ALPHA}-pears, café"), ()),
    ],
)
def test_each_fault_is_named_and_a_sound_rephrasing_has_none(rephrased, expected):
    assert faults(QUESTION, rephrased) == expected


@pytest.mark.parametrize("opening", ["[asy]", "\\begin{tikzpicture}"], ids=["asymptote", "tikz"])
def test_a_diagram_must_stay_a_diagram(opening):
    drawing = f"{opening} draw((0,0)--(77,99)); "
    closing = "[/asy]" if opening == "[asy]" else "\\end{tikzpicture}"
    original = f"{QUESTION} {drawing}{closing}"
    assert faults(original, SOUND) == ("diagram lost",)
    assert faults(original, f"{SOUND} {drawing}{closing}") == ()
    # A drawing that the source forgot to close is a drawing.
    assert faults(f"{QUESTION} {drawing}", SOUND) == ("diagram lost",)
    # The original had none: nothing is lost.
    assert faults(QUESTION, f"{SOUND} {drawing}") == ()


@pytest.mark.parametrize(
    ("original", "rephrased", "lost"),
    [
        ("3 and 4", "4 and 3", []),
        ("3 and 4", "three and 4.0", []),
        ("3, 3 and 14", "a third of 13", ["14"]),
        ("2 apples at 0.50", "two apples at .5", []),
        ("1,234 and 56", "1234 and 56", []),
        ("1234 and 56", "1,234 and 56", []),
        ("$1{,}234{,}567$", "$1\\,234\\,567$", []),
        ("(1,234,5)", "(1, 234, 5)", []),
        ("points (1,200) or (2,300)", "x = 1, y = 200; x = 2, y = 300", []),
        ("$\\frac34$", "3/4", []),
        ("$\\dfrac{3}{4}$", "$\\frac 34$", []),
        ("25 eggs, 12 boxes", "twenty-five eggs in a dozen boxes", []),
        ("25 eggs", "twenty eggs, then five", ["25"]),
        ("26 eggs", "twenty-five eggs", ["26"]),
        ("x^2 + 7", "the square of x, and 7", []),
        ("1 or 0 of 9", "one of nine", []),
        ("50 days in 2024", "50 days", ["2024"]),
        ("007", "7", []),
    ],
)
def test_a_number_may_change_its_spelling_but_not_vanish(original, rephrased, lost):
    assert lost_numbers(original, rephrased) == lost


def test_numbers_that_only_the_drawing_has_are_not_missed():
    assert lost_numbers("area of 5 [asy] draw((0,0)--(77,99)); [/asy]", "area of 5") == []
