"""Majority votes over groups of answers that may be spelled differently.

The vote groups (clusters) are the connected components of symmetric equality between distinct
keys, so neither they nor the label depend on the order of the samples (unless the tie rule is
``first``). The label is spelled as the shortest spelling in the winning cluster, the first in
lexicographic order among equally short ones.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import Generic, Literal, TypeVar

from megatron_corew.types import Vote

TieRule = Literal["abstain", "first", "shortest"]
K = TypeVar("K", bound=Hashable)


class _Forest(Generic[K]):
    """Disjoint sets of keys."""

    def __init__(self) -> None:
        self._parent: dict[K, K] = {}

    def root(self, key: K) -> K:
        parent = self._parent
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[above]
        return key

    def join(self, a: K, b: K) -> bool:
        """Make one set of two; False if they were one already."""
        one, other = self.root(a), self.root(b)
        self._parent[other] = one
        return one != other


class Components(Generic[K]):
    """Keys joined with those they equal, and with those that equal a common one."""

    def __init__(self, keys: Iterable[K], are_equal: Callable[[K, K], bool | None]) -> None:
        """Join what is known to be equal.

        Args:
            keys: any order, with repetitions.
            are_equal: symmetric; None where it cannot tell. Called for distinct keys only, and
                not for those joined already.
        """
        self._joined: _Forest[K] = _Forest()
        self._open: list[tuple[K, K]] = []
        for a, b in combinations(dict.fromkeys(keys), 2):
            if self.root(a) != self.root(b):
                verdict = are_equal(a, b)
                if verdict:
                    self.join(a, b)
                elif verdict is None:
                    self._open.append((a, b))

    def root(self, key: K) -> K:
        """Return the key that stands for the component of ``key``."""
        return self._joined.root(key)

    def join(self, a: K, b: K) -> None:
        """Make one component of two keys' components."""
        self._joined.join(a, b)

    def questions(self) -> list[tuple[K, K]]:
        """Take the next undecided pairs.

        Returns:
            Pairs whose answers are all of use: none is decided by the others being equal. Call
            again when they are joined or not; empty when every pair is decided. The components in
            the end are the same for any order of keys and questions.
        """
        asked: list[tuple[K, K]] = []
        later: list[tuple[K, K]] = []
        forest: _Forest[K] = _Forest()
        for a, b in self._open:
            one, other = self.root(a), self.root(b)
            if one != other:
                (asked if forest.join(one, other) else later).append((a, b))
        self._open = later
        return asked


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
