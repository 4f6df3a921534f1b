"""Writes the folder of a rephrased data set."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron_corew.data.prepare.quarantine import QUARANTINE_FILE, write_quarantine
from megatron_corew.data.prepare.schema import QUESTIONS_FILE, PreparedRow, write_prepared
from megatron_corew.data.rephrase.job import Rephrased


def write_rephrased(done: Rephrased, rows: Sequence[PreparedRow], folder: Path) -> list[str]:
    """Write the questions with their rephrasings, and those that got none.

    Args:
        done: outcome of the job.
        rows: all questions of the data; those that were not part of the job stay as they are.
        folder: is made; files of the same names are replaced.

    Returns:
        A summary for a person, line by line.

    Raises:
        ValueError: no question has a rephrasing.
    """
    new = {row.id: row for row in done.rows}
    lost = {entry.id for entry in done.quarantined}
    kept = [new.get(row.id, row) for row in rows if row.id not in lost]
    write_quarantine(done.quarantined, folder / QUARANTINE_FILE)
    if not kept:
        raise ValueError(
            f"need at least one rephrasing, got none of {len(rows)} questions "
            f"({', '.join(_faults(done))}); see {folder / QUARANTINE_FILE}. Change the recipe, "
            "check.refuse or the model."
        )
    write_prepared(kept, folder / QUESTIONS_FILE)
    return [
        f"{len(rows)} questions, {len(new)} rephrased, {len(lost)} quarantined, "
        f"{len(rows) - len(new) - len(lost)} left as they were; {done.asked} answers asked for now",
        *(f"  refused: {fault}" for fault in _faults(done)),
        f"written to {folder}",
    ]


def _faults(done: Rephrased) -> Iterator[str]:
    return (f"{count} {fault}" for fault, count in done.faults.items())
