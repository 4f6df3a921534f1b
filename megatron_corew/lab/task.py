"""The lab's task: sums of two to four digits, each asked in two ways.

The corpus the policy is pretrained on is imperfect on purpose. Some of its answers follow the
surface of the question (the first number shown) and not its meaning: a majority vote on one
view can settle on them, while a vote on the other view contradicts them. A corpus may also hold a
short cut that is the same in both views (the largest number), which nothing contradicts.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "eval"]

POLICY_FOLDER = Path(__file__).parent / "policy"
"""The policy shipped with the package, a Hugging Face folder."""

SLIPS = (-10, -3, -2, -1, 1, 2, 3, 10)
"""Errors of one addition in the corpus."""
MAX_LINES = 7
"""Most running totals of a corpus answer, repeated ones included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabTask:
    """The rates of the task; a triple holds the value for 2, 3 and 4 numbers."""

    corpus_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Relative frequency of each length in the pretraining corpus."""
    row_weights: tuple[float, float, float] = (0.22, 0.39, 0.39)
    """Relative frequency of each length in the questions of a run."""
    original_share: float = 0.5
    """Share of the corpus questions in the original wording."""
    echo_rates: tuple[float, float, float] = (0.14, 0.34, 0.50)
    """Share of corpus answers that repeat the first number shown."""
    zero_rates: tuple[float, float, float] = (0.03, 0.04, 0.05)
    """Share of corpus answers that are just zero."""
    largest_rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Share of corpus answers that repeat the largest number, the same one in both wordings."""
    slip_rate: float = 0.08
    """Chance of an error in each addition."""
    repeat_rate: float = 0.05
    """Chance that a running total is written once more."""


DEFAULT_TASK = LabTask()

CORPORA: dict[str, LabTask] = {
    "demo": DEFAULT_TASK,
    "echo": LabTask(echo_rates=(0.15, 0.38, 0.54)),
    "clean": LabTask(echo_rates=(0.04, 0.10, 0.16), slip_rate=0.16),
    "shared": LabTask(echo_rates=(0.0, 0.0, 0.0), largest_rates=(0.15, 0.38, 0.54)),
}
"""The corpus of every shipped policy: the demo's; one whose short cut is another in each view;
one with hardly any; one whose short cut is the same in both."""


def original_text(numbers: Sequence[int]) -> str:
    """Ask for a sum in the original wording.

    Args:
        numbers: The digits to add.

    Returns:
        For example ``4+9+7=``.
    """
    return "+".join(map(str, numbers)) + "="


def rephrase(numbers: Sequence[int], rng: random.Random) -> tuple[str, list[int]]:
    """Ask for the same sum with the numbers in another order and in other words.

    Args:
        numbers: The digits to add, in the order of the original.
        rng: Source of the order and of the wording.

    Returns:
        The question and its numbers in the order shown. The first one differs from the
        original's whenever the numbers are not all equal.
    """
    others = [at for at, number in enumerate(numbers) if number != numbers[0]]
    first = rng.choice(others or range(len(numbers)))
    rest = [number for at, number in enumerate(numbers) if at != first]
    rng.shuffle(rest)
    shown = [numbers[first], *rest]
    commas, spaces = ",".join(map(str, shown)), " ".join(map(str, shown))
    wording = rng.choice((f"add {commas}:", f"sum {commas}?", f"{spaces} total:"))
    return wording, shown


def corpus_answer(numbers: Sequence[int], rng: random.Random, task: LabTask) -> str:
    r"""Write one answer of the pretraining corpus.

    Args:
        numbers: Two to four digits, in the order the question shows them.
        rng: Source of the faults.
        task: Rates of the faults.

    Returns:
        Running totals and the boxed sum, for example ``13;20;\boxed{20}``, or a lazy
        ``\boxed{4}``.
    """
    kind = len(numbers) - 2
    short_cuts = (numbers[0], 0, max(numbers), None)
    rates = (task.echo_rates[kind], task.zero_rates[kind], task.largest_rates[kind])
    (lazy,) = rng.choices(short_cuts, (*rates, 1 - sum(rates)))
    if lazy is not None:
        return f"\\boxed{{{lazy}}}"
    total = numbers[0]
    lines: list[str] = []
    for number in numbers[1:]:
        total += number
        if rng.random() < task.slip_rate:
            total = max(0, total + rng.choice(SLIPS))
        lines.append(str(total))
        while rng.random() < task.repeat_rate and len(lines) < MAX_LINES:
            lines.append(str(total))
    return ";".join(lines) + f";\\boxed{{{total}}}"


def corpus_pair(rng: random.Random, task: LabTask = DEFAULT_TASK) -> tuple[str, str]:
    """Draw one question and answer of the pretraining corpus.

    Args:
        rng: Source of the pair.
        task: Rates of the task.

    Returns:
        The question in either wording and an answer that is not always right.
    """
    shown = _draw_numbers(rng, task.corpus_weights)
    if rng.random() < task.original_share:
        question = original_text(shown)
    else:
        question, shown = rephrase(shown, rng)
    return question, corpus_answer(shown, rng, task)


def is_held_out(numbers: Sequence[int]) -> bool:
    """Say which split a sum belongs to.

    Args:
        numbers: The numbers to add, in any order: the order does not matter.

    Returns:
        True for the quarter of all sums that only the eval split asks.
    """
    # A checksum and not hash(): the split must be the same in every process.
    return zlib.crc32(bytes(sorted(numbers))) % 4 == 0


def lab_rows(
    split: Split, count: int, *, seed: int = 0, task: LabTask = DEFAULT_TASK
) -> list[dict[str, str]]:
    """Make the questions of a run, each in both wordings.

    No sum of one split is asked in the other split, in whatever order: a quarter of all sets
    of numbers is held out.

    Args:
        split: ``train``, or ``eval`` for the held-out sums.
        count: Number of rows.
        seed: The same seed gives the same rows.
        task: Rates of the task.

    Returns:
        Rows with ``id``, ``prompt``, ``rephrased`` and the true ``answer``.

    Raises:
        ValueError: An unknown split or a negative count.
    """
    if split not in ("train", "eval"):
        raise ValueError(f"lab_rows: need split 'train' or 'eval', got {split!r}.")
    if count < 0:
        raise ValueError(f"lab_rows: need a count of 0 or more, got {count}.")
    rng = random.Random(f"{split}-{seed}")
    rows: list[dict[str, str]] = []
    while len(rows) < count:
        numbers = _draw_numbers(rng, task.row_weights)
        if is_held_out(numbers) != (split == "eval"):
            continue
        rows.append(
            {
                "id": f"{split}-{len(rows):06d}",
                "prompt": original_text(numbers),
                "rephrased": rephrase(numbers, rng)[0],
                "answer": str(sum(numbers)),
            }
        )
    return rows


def _draw_numbers(rng: random.Random, weights: Sequence[float]) -> list[int]:
    count = rng.choices((2, 3, 4), weights)[0]
    return [rng.randint(1, 9) for _ in range(count)]
