"""Keeps what cannot be used in a file, each row with its reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from megatron_corew.data.prepare.schema import PreparedRow

QUARANTINE_FILE = "quarantine.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantined:
    """A row that is not used."""

    id: str
    source: str
    reason: str
    """One of few, to count by."""
    detail: str
    """What exactly is wrong with this row."""
    row: PreparedRow | None
    """The row as far as it could be read; None: not even a question."""
    meta: Mapping[str, Any]

    @classmethod
    def of(cls, row: PreparedRow, *, reason: str, detail: str) -> Self:
        """A readable row that is not used."""
        return cls(
            id=row.id, source=row.source, reason=reason, detail=detail, row=row, meta=row.meta
        )


def write_quarantine(entries: Sequence[Quarantined], path: Path) -> None:
    """Write the rows in the schema of prepared questions plus ``reason`` and ``detail``.

    Args:
        entries: may be empty: the file is empty then.
        path: jsonl file to write; it is replaced. `corew rephrase` reads it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(_record(entry), ensure_ascii=False) + "\n")


def _record(entry: Quarantined) -> dict[str, Any]:
    if entry.row is not None:
        record = entry.row.as_record()
    else:
        record = {
            "id": entry.id,
            "source": entry.source,
            "messages": None,
            "answer": None,
            "rephrased_messages": None,
            "meta": json.dumps(entry.meta, ensure_ascii=False, sort_keys=True),
        }
    return {**record, "reason": entry.reason, "detail": entry.detail}
