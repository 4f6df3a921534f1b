"""Finds what is wrong with a rephrased question by looking at its text.

A checker of text cannot tell whether the answer survived: ``rephrase.preservation`` asks a model.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from megatron_corew.config import Count, Positive, Section

RephrasingFault = Literal[
    "missing",
    "placeholder",
    "identical",
    "diagram lost",
    "numbers lost",
    "too short",
    "too long",
    "another language",
]

# What a rewriting model leaves behind when it repeats its template: "<rewritten question>". A
# whole question in angle brackets, digits and formulas included, is still a question.
_PLACEHOLDER = re.compile(r"\s*<[A-Za-z _-]{1,40}>\s*")
_DIAGRAM = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|\\begin\{tikzpicture\}.*?(?:\\end\{tikzpicture\}|\Z)", re.S
)
_SHORT_FRACTION = re.compile(r"\\([dt]?frac)\s*(\d)\s*(\d)")
_SEPARATOR = re.compile(r",\\!|\{,\}|\\[,! ]|,")
_THOUSANDS = re.compile(rf"(?<![\d,.])\d{{1,3}}(?:(?:{_SEPARATOR.pattern})\d{{3}})+(?!\d|,\d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_WORDS = {
    "2": "two twice double doubled doubles half halves second pair both squared square squares",
    "3": "three thrice triple third thirds cube cubed cubes cubic",
    "4": "four fourth quarter quarters quadruple",
    "5": "five fifth fifths",
    "6": "six sixth sixths",
    "7": "seven seventh sevenths",
    "8": "eight eighth eighths",
    "9": "nine ninth ninths",
    "10": "ten tenth tenths",
    "11": "eleven eleventh",
    "12": "twelve twelfth dozen",
    "13": "thirteen thirteenth",
    "14": "fourteen fourteenth",
    "15": "fifteen fifteenth",
    "16": "sixteen sixteenth",
    "17": "seventeen seventeenth",
    "18": "eighteen eighteenth",
    "19": "nineteen nineteenth",
    "20": "twenty twentieth score",
    "30": "thirty thirtieth",
    "40": "forty fortieth",
    "50": "fifty fiftieth",
    "60": "sixty sixtieth",
    "70": "seventy seventieth",
    "80": "eighty eightieth",
    "90": "ninety ninetieth",
    "100": "hundred hundredth century percent",
    "1000": "thousand thousandth",
    "1000000": "million millionth",
}
_NUMBER_OF_WORD = {word: number for number, words in _WORDS.items() for word in words.split()}
_ENGLISH_WORDS = frozenset(
    re.findall(
        r"\w+",
        """the of and to is are was were be been what which who how many much that this these those
        with from for by at on it its has have had if then than each there their they them as find
        one two first let where when will would can does do""",
    )
)
_ENGLISH = 0.1
"""Share of such words in a text of English: seldom below 0.2 in problems, near 0 elsewhere."""
_MIN_WORDS = 8
_FORMULA = re.compile(r"\$[^$]*\$|\\\[.*?\\\]|\\\(.*?\\\)|\\[a-zA-Z]+", re.S)
_TENS = {str(tens) for tens in range(20, 100, 10)}
# Greek letters stand in formulas of any language.
_SCRIPTS_OF_FORMULAS = {
    "LATIN",
    "GREEK",
    "MATHEMATICAL",
    "MICRO",
    "KELVIN",
    "ANGSTROM",
    "DOUBLE-STRUCK",
    "SCRIPT",
}


class RephrasingLimits(Section):
    """How far a rephrasing may be from its original."""

    min_length: Positive = 0.25
    """Shortest rephrasing, in lengths of the original (characters, diagrams left out)."""
    max_length: Positive = 6.0
    """Longest rephrasing, in lengths of the original. Short originals may grow to ``slack``."""
    slack: Count = 600
    """Characters that a rephrasing may always have: a story around ``1+1`` is long."""


def rephrasing_faults(
    original: str, rephrased: str | None, limits: RephrasingLimits
) -> tuple[RephrasingFault, ...]:
    """List what is wrong with a rephrasing.

    Args:
        original: the question.
        rephrased: what should say the same in other words; None or blank: there is none.
        limits: lengths that are still credible.

    Returns:
        Every fault found, the decisive one first; empty for a sound rephrasing.
    """
    if rephrased is None or not rephrased.strip():
        return ("missing",)
    found: list[RephrasingFault] = []
    if is_placeholder(rephrased):
        found.append("placeholder")
    if _flat(original) == _flat(rephrased):
        found.append("identical")
    if diagrams(original) and not diagrams(rephrased):
        found.append("diagram lost")
    if lost_numbers(original, rephrased):
        found.append("numbers lost")
    plain, length = len(without_diagrams(original)), len(without_diagrams(rephrased))
    if length < limits.min_length * plain:
        found.append("too short")
    if length > max(limits.max_length * plain, limits.slack):
        found.append("too long")
    if _is_in_another_language(original, rephrased):
        found.append("another language")
    return tuple(found)


def is_placeholder(text: str) -> bool:
    """Whether a text is only a name in angle brackets, such as ``<rewritten question>``."""
    return _PLACEHOLDER.fullmatch(text) is not None


def diagrams(text: str) -> list[str]:
    """The diagrams drawn in code (Asymptote, TikZ), unclosed ones included."""
    return _DIAGRAM.findall(text)


def lost_numbers(original: str, rephrased: str) -> list[str]:
    """The numbers of a question that its rephrasing has neither in digits nor in words.

    Args:
        original: the question; numbers inside diagrams do not count.
        rephrased: what should contain them; numbers inside its diagrams count.

    Returns:
        The lost numbers, each once, in the order of the original. 0 and 1 are never lost: a text
        says them in too many ways (``a``, ``unit``, ``none``).
    """
    words = re.findall(r"[a-z]+", rephrased.lower())
    joined, apart = _join_thousands(rephrased), rephrased
    present = {"0", "1", *_numbers(joined), *_numbers(apart), *_numbers_in_words(words)}
    plain = without_diagrams(original)
    # "(1,200)" is a number or a point: the reading that misses less counts.
    readings = (_numbers(_join_thousands(plain)), _numbers(plain))
    lost = [[one for one in dict.fromkeys(found) if one not in present] for found in readings]
    return min(lost, key=len)


def _join_thousands(text: str) -> str:
    return _THOUSANDS.sub(lambda number: _SEPARATOR.sub("", number[0]), text)


def _numbers(text: str) -> list[str]:
    """Numbers in one spelling, without zeros that have no meaning."""
    return [_canonical(one) for one in _NUMBER.findall(_SHORT_FRACTION.sub(r"\\\1 \2 \3", text))]


def _numbers_in_words(words: Sequence[str]) -> Iterator[str]:
    """Numbers said in words, ``twenty five`` both as its parts and as 25."""
    values = [_NUMBER_OF_WORD.get(word) for word in words]
    yield from (value for value in values if value is not None)
    for tens, ones in pairwise(values):
        if tens in _TENS and ones is not None and len(ones) == 1:
            yield str(int(tens) + int(ones))


def _canonical(number: str) -> str:
    whole, point, decimals = number.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return f"{whole}{point}{decimals}" if decimals else whole


def without_diagrams(text: str) -> str:
    """The text with a space in place of each diagram."""
    return _DIAGRAM.sub(" ", text)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _is_in_another_language(original: str, rephrased: str) -> bool:
    """Whether a text brings in a script, or leaves English: no other language is known here."""
    if _scripts(rephrased) - _scripts(original) - _SCRIPTS_OF_FORMULAS:
        return True
    was, now = _english_share(original), _english_share(rephrased)
    return was is not None and now is not None and was > _ENGLISH > now


def _english_share(text: str) -> float | None:
    """Share of words that only English sentences are full of; None: too few words to tell."""
    words = re.findall(r"[^\W\d_]{2,}", _FORMULA.sub(" ", without_diagrams(text)).lower())
    if len(words) < _MIN_WORDS:
        return None
    return sum(word in _ENGLISH_WORDS for word in words) / len(words)


def _scripts(text: str) -> set[str]:
    """First words of the letters' Unicode names: LATIN, CJK, CYRILLIC and so on."""
    letters = {char for char in text if char.isalpha() and not char.isascii()}
    return {unicodedata.name(char, "UNKNOWN").split()[0] for char in letters}
