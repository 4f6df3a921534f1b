"""The one schema of prepared questions, as a row and as a parquet file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from megatron_corew.data.sources import Row, read_rows, require_column

Message = Mapping[str, str]

_MESSAGES = [{"role": datasets.Value("string"), "content": datasets.Value("string")}]
FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "source": datasets.Value("string"),
        "messages": _MESSAGES,
        "answer": datasets.Value("string"),
        "rephrased_messages": _MESSAGES,
        "meta": datasets.Value("string"),
    }
)
QUESTIONS_FILE = "questions.parquet"
"""Name of the prepared questions in the folder that `corew prepare` writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRow:
    """One question: its text, its true answer and its rephrasing where known."""

    id: str
    """Unique in its file; the same for both views."""
    source: str
    """Data set it comes from."""
    messages: tuple[Message, ...]
    """What the user says, without any system message: that one belongs to the run."""
    answer: str | None
    rephrased_messages: tuple[Message, ...] | None
    meta: Mapping[str, Any]
    """What else is known of it, for people: level, subject, place in the source."""

    @property
    def question(self) -> str:
        """The text of the question: of several messages, the last."""
        return self.messages[-1]["content"]

    @property
    def rephrasing(self) -> str | None:
        """The text of the rephrased question, if there is one."""
        return self.rephrased_messages[-1]["content"] if self.rephrased_messages else None

    def as_record(self) -> dict[str, Any]:
        """The row as columns of ``FEATURES``."""
        rephrased = self.rephrased_messages
        return {
            "id": self.id,
            "source": self.source,
            "messages": [dict(message) for message in self.messages],
            "answer": self.answer,
            "rephrased_messages": None if rephrased is None else [dict(one) for one in rephrased],
            "meta": json.dumps(self.meta, ensure_ascii=False, sort_keys=True),
        }


def user_message(text: str) -> tuple[Message, ...]:
    """A question of one message."""
    return ({"role": "user", "content": text},)


def write_prepared(rows: Sequence[PreparedRow], path: Path) -> None:
    """Write rows as a parquet file of ``FEATURES``, whole or not at all.

    Args:
        rows: may be empty: the file then has the columns and no row.
        path: file to write; its folder is made, a file of this name is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [row.as_record() for row in rows]
    columns = {name: [record[name] for record in records] for name in FEATURES}
    aside = path.with_name(f".{path.name}.part")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, features=FEATURES).to_parquet(aside)
    aside.replace(path)


def read_prepared(source: str, *, knob: str) -> list[PreparedRow]:
    """Read prepared questions.

    Args:
        source: a file of ``FEATURES`` (parquet or jsonl, other columns are ignored), or the
            folder that `corew prepare` wrote.
        knob: what named it on the command line, for messages.

    Returns:
        The rows in the order of the file; rows without a question are left out.

    Raises:
        ValueError: no such file, no row, or another schema.
    """
    if (Path(source) / QUESTIONS_FILE).is_file():
        source = str(Path(source) / QUESTIONS_FILE)
    rows = read_rows(source, split="train", knob=knob)
    for column in FEATURES:
        require_column(
            rows, column, knob=f"{knob} (prepare it with `corew prepare`)", source=source
        )
    return [_from_record(row) for row in rows if row["messages"]]


def _from_record(row: Row) -> PreparedRow:
    rephrased = row["rephrased_messages"]
    return PreparedRow(
        id=row["id"],
        source=row["source"],
        messages=tuple(row["messages"]),
        answer=row["answer"],
        rephrased_messages=tuple(rephrased) if rephrased else None,
        meta=json.loads(row["meta"]) if row["meta"] else {},
    )
