"""Finds questions that also stand in an evaluation set.

Three nets, each wider than the one before: the same characters (ends stripped), the same
normalised text, most n-grams of the evaluation question. Operators survive the normalisation:
``2+3`` and ``2-3`` are two questions.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_corew.data.prepare.rephrasings import without_diagrams

Kind = Literal["verbatim", "normalised", "n-grams"]

# Typesetting without meaning: sizes of brackets, spaces, maths delimiters.
_TYPESETTING = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|[,;:!\s()\[\]]|qquad|quad)|[$~]"
)
_FRACTIONS = re.compile(r"\\[dt]frac")
_MIN_GRAMS = 8
"""Different n-grams of an evaluation question below which only the whole question is found: a
formula such as ``\\frac{1}{2}+\\frac{1}{3}`` stands in many questions."""
_TOKEN = re.compile(r"\\?[^\W\d_]+|\d+|[^\w\s]|_")
# Braces only group; those of a set keep their backslash.
_GROUPING = re.compile(r"[{}]")
_END = re.compile(r"[\s.?!]+$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """An evaluation question found in a text."""

    set_name: str
    question: int
    """Its place in the evaluation set, from 0."""
    kind: Kind
    share: float
    """Share of the evaluation question's n-grams in the text; 1 when the text is the same."""


class EvaluationIndex:
    """The questions of all evaluation sets, ready to be searched for.

    Args:
        sets: name -> questions.
        ngram: length of the n-grams, in tokens (words, numbers, signs). A shorter evaluation
            question can be found only whole.
        overlap: smallest share of an evaluation question's different n-grams that is a match.
    """

    def __init__(self, sets: Mapping[str, Sequence[str]], *, ngram: int, overlap: float) -> None:
        self._ngram = ngram
        self._overlap = overlap
        self._verbatim: dict[str, tuple[str, int]] = {}
        self._normalised: dict[tuple[str, ...], tuple[str, int]] = {}
        self._grams: dict[tuple[str, ...], set[tuple[str, int]]] = defaultdict(set)
        self._sizes: dict[tuple[str, int], int] = {}
        self.counts = {name: len(questions) for name, questions in sets.items()}
        for name, questions in sets.items():
            for place, text in enumerate(questions):
                self._add(text, (name, place))

    def _add(self, text: str, where: tuple[str, int]) -> None:
        tokens = tokens_of(text)
        self._verbatim.setdefault(text.strip(), where)
        self._normalised.setdefault(tokens, where)
        grams = self._grams_of(tokens_of(without_diagrams(text)))
        self._sizes[where] = len(grams)
        for gram in grams:
            self._grams[gram].add(where)

    def find(self, text: str) -> Match | None:
        """Search for evaluation questions in a text.

        Args:
            text: a question, or its rephrasing.

        Returns:
            The closest match; of equally close ones, the first in the order of the sets.
        """
        if (where := self._verbatim.get(text.strip())) is not None:
            return _match(where, "verbatim", 1.0)
        tokens = tokens_of(text)
        if tokens and (where := self._normalised.get(tokens)) is not None:
            return _match(where, "normalised", 1.0)
        shared: Counter[tuple[str, int]] = Counter()
        # Many questions open their drawings with the same lines of code.
        for gram in self._grams_of(tokens_of(without_diagrams(text))):
            shared.update(self._grams.get(gram, ()))
        shares = {
            where: count / self._sizes[where]
            for where, count in shared.items()
            if self._sizes[where] >= _MIN_GRAMS
        }
        best = max(shares.values(), default=0.0)
        if not shares or best < self._overlap:
            return None
        order = list(self.counts)
        where = min(
            (where for where, share in shares.items() if share == best),
            key=lambda one: (order.index(one[0]), one[1]),
        )
        return _match(where, "n-grams", best)

    def _grams_of(self, tokens: tuple[str, ...]) -> set[tuple[str, ...]]:
        size = self._ngram
        return {tokens[at : at + size] for at in range(len(tokens) - size + 1)}


def tokens_of(text: str) -> tuple[str, ...]:
    r"""Normalise a text to words, numbers and signs.

    Args:
        text: natural language and LaTeX.

    Returns:
        Lower-case tokens without typesetting: ``Let $\left(x^{2}\right)$.`` is ``let ( x ^ 2 )``.
    """
    text = unicodedata.normalize("NFKC", text)
    text = _FRACTIONS.sub(r"\\frac", _TYPESETTING.sub(" ", text)).lower()
    return tuple(_TOKEN.findall(_END.sub("", _GROUPING.sub(" ", text))))


def _match(where: tuple[str, int], kind: Kind, share: float) -> Match:
    return Match(set_name=where[0], question=where[1], kind=kind, share=share)
