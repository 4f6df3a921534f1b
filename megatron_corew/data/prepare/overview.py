"""Describes a data set for a person: counts, lengths, samples, as lines of text."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from megatron_corew.data.prepare.schema import PreparedRow

BAR = 40
"""Characters of the longest bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def count_lines(rows: Sequence[PreparedRow]) -> list[str]:
    """How many questions there are, and what is known of them.

    Args:
        rows: at least one.

    Returns:
        Questions, answers, rephrasings, and the values of ``level`` where the rows have one.
    """
    total = len(rows)
    answers = sum(row.answer is not None for row in rows)
    rephrased = sum(row.rephrased_messages is not None for row in rows)
    lines = [
        f"{total} questions from {', '.join(sorted({row.source for row in rows}))}",
        f"  {answers} with an answer, {rephrased} with a rephrasing",
    ]
    levels = Counter(str(row.meta["level"]) for row in rows if "level" in row.meta)
    if levels:
        lines.append(f"  {', '.join(f'{count} {name}' for name, count in sorted(levels.items()))}")
    return lines


def length_lines(
    rows: Sequence[PreparedRow], length: Callable[[str], int], unit: str, limit: int | None
) -> list[str]:
    """Histograms of the lengths of both views.

    Args:
        rows: at least one.
        length: of a text.
        unit: what it counts.
        limit: longest prompt of a run; None: not compared.

    Returns:
        For each view a summary and ten bars.
    """
    views = {
        "original": [length(row.question) for row in rows],
        "rephrased": [length(row.rephrasing) for row in rows if row.rephrasing is not None],
    }
    lines: list[str] = []
    for view, lengths in views.items():
        if not lengths:
            continue
        ordered = sorted(lengths)
        marks = {"median": ordered[len(ordered) // 2], "99 %": ordered[len(ordered) * 99 // 100]}
        text = ", ".join(f"{name} {value}" for name, value in marks.items())
        over = ""
        if limit is not None:
            over = f", {sum(value > limit for value in lengths)} over {limit}"
        lines.append(f"{view}, {unit}: {text}, longest {ordered[-1]}{over}")
        lines += histogram(lengths)
    return lines


def histogram(values: Sequence[int], bins: int = 10) -> list[str]:
    """Bars of equal width in value.

    Args:
        values: at least one, none negative.
        bins: at most so many bars.

    Returns:
        One line per bar: its range (both ends included), the bar, the count.
    """
    width = max(1, -(-(max(values) + 1) // bins))
    counts = Counter(value // width for value in values)
    last, most = max(counts), max(counts.values())
    digits = len(str((last + 1) * width - 1))
    return [
        f"  {at * width:>{digits}} to {(at + 1) * width - 1:>{digits}} "
        f"{_bar(counts[at] / most)} {counts[at]}"
        for at in range(last + 1)
    ]


def sample_lines(rows: Sequence[PreparedRow], count: int, seed: int) -> Iterator[str]:
    """Some questions with their rephrasings and answers.

    Args:
        rows: to draw from.
        count: how many.
        seed: the same seed shows the same questions.

    Returns:
        Lines, each at most 400 characters of one text.
    """
    chosen = sorted(random.Random(seed).sample(range(len(rows)), min(count, len(rows))))
    for place in chosen:
        row = rows[place]
        yield f"{row.id}  answer: {row.answer}"
        yield f"  original:  {_short(row.question)}"
        if row.rephrasing is not None:
            yield f"  rephrased: {_short(row.rephrasing)}"


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    # A bin that is not empty shows at least a line.
    eighths = max(eighths, 1) if share > 0 else 0
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _EIGHTHS[rest]).ljust(BAR + 1)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 400 else f"{flat[:399]}…"
