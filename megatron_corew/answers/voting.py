"""Majority votes over groups of answers that may be spelled differently.

The vote groups (clusters) are the connected components of symmetric equality between distinct
keys, so neither they nor the label depend on the order of the samples (unless the tie rule is
``first``). The label is spelled as the shortest spelling in the winning cluster, the first in
lexicographic order among equally short ones.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import Literal, TypeVar

from megatron_corew.types import Vote

TieRule = Literal["abstain", "first", "shortest"]
K = TypeVar("K", bound=Hashable)


def components(keys: Iterable[K], are_equal: Callable[[K, K], bool]) -> dict[K, K]:
    """Join equal keys, and keys that are equal to a common one.

    Args:
        keys: any order, with repetitions.
        are_equal: symmetric; called for distinct keys only, and not for those joined already.

    Returns:
        Key -> the key that stands for its component.
    """
    parent = {key: key for key in keys}

    def root(key: K) -> K:
        while parent[key] != key:
            key = parent[key]
        return key

    for a, b in combinations(parent, 2):
        if root(a) != root(b) and are_equal(a, b):
            parent[root(b)] = root(a)
    return {key: root(key) for key in parent}


def vote(
    answers: Sequence[str | None],
    clusters: Sequence[Hashable | None],
    *,
    tie: TieRule,
    min_share: float,
) -> Vote:
    """Elect the label of one group.

    Args:
        answers: the answer of each response, None where there is none.
        clusters: what each answer means; equal values vote together. None without an answer.
        tie: label of a tied vote: none (``abstain``), the tied answer seen first (``first``), or
            the one with the shortest spelling (``shortest``).
        min_share: smallest share of all responses that makes a label.

    Returns:
        The vote. Its cluster numbers count from 0 in the order of first appearance.

    Raises:
        ValueError: unknown tie rule.
    """
    if tie not in ("abstain", "first", "shortest"):
        raise ValueError(f"vote: need abstain, first or shortest, got {tie!r}. Set answers.tie.")
    numbers: dict[Hashable, int] = {}
    numbered = [None if c is None else numbers.setdefault(c, len(numbers)) for c in clusters]
    counts = Counter(number for number in numbered if number is not None)
    top = max(counts.values(), default=0)
    tied = [number for number in numbers.values() if counts[number] == top]
    share = top / len(answers) if answers else 0.0
    labels = [_spelling(answers, numbered, number) for number in tied]
    is_tie = len(tied) > 1
    label = None
    if tied and share >= min_share and not (is_tie and tie == "abstain"):
        label = min(labels, key=_spelling_order) if tie == "shortest" else labels[0]
    return Vote(
        answers=tuple(answers), clusters=tuple(numbered), label=label, share=share, tie=is_tie
    )


def _spelling_order(answer: str) -> tuple[int, str]:
    return len(answer), answer


def _spelling(answers: Sequence[str | None], numbers: Sequence[int | None], wanted: int) -> str:
    pairs = zip(answers, numbers, strict=True)
    spellings = (answer for answer, number in pairs if number == wanted and answer is not None)
    return min(spellings, key=_spelling_order)
