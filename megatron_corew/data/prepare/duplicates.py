"""Finds questions that stand in a data set more than once."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from megatron_corew.answers.keys import canonical_key, decides
from megatron_corew.data.prepare.schema import PreparedRow


def repeated(rows: Sequence[PreparedRow], *, ignore_white_space: bool) -> dict[str, PreparedRow]:
    """Find the rows whose question an earlier row already asks.

    Args:
        rows: in the order of the file; the first of equal questions is the one to keep.
        ignore_white_space: False: equal means the same characters. True: white space may differ,
            which never changes a question.

    Returns:
        Id of each repetition -> the first row with this question.
    """
    first: dict[str, PreparedRow] = {}
    found: dict[str, PreparedRow] = {}
    for row in rows:
        text = _without_spaces(row.question) if ignore_white_space else row.question
        kept = first.setdefault(text, row)
        if kept is not row:
            found[row.id] = kept
    return found


def contradicted(rows: Sequence[PreparedRow]) -> dict[str, tuple[str, ...]]:
    """Find equal questions whose answers cannot all be true.

    Args:
        rows: white space does not count in their questions.

    Returns:
        Id of every row of such a group -> the answers of the group. Answers that merely may
        differ (``\\sqrt{40}``, ``2\\sqrt{10}``) do not contradict each other.
    """
    groups: dict[str, list[PreparedRow]] = defaultdict(list)
    for row in rows:
        groups[_without_spaces(row.question)].append(row)
    found: dict[str, tuple[str, ...]] = {}
    for group in groups.values():
        answers = tuple(dict.fromkeys(row.answer for row in group if row.answer is not None))
        if any(_differ(a, b) for a, b in combinations(answers, 2)):
            found |= {row.id: answers for row in group}
    return found


def _differ(a: str, b: str) -> bool:
    first, second = canonical_key(a), canonical_key(b)
    return first is not None and second is not None and decides(first, second) is False


def _without_spaces(text: str) -> str:
    return "".join(text.split())
