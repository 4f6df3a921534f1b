"""Turns the rows of any source into prepared rows; what cannot be one is named with its reason."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from megatron_corew.answers.boxes import last_boxed
from megatron_corew.config import DataConfig
from megatron_corew.data.prepare.quarantine import Quarantined
from megatron_corew.data.prepare.schema import Message, PreparedRow, user_message
from megatron_corew.data.prepare.sources import PREPARED, AnswerForm, Layout
from megatron_corew.data.sources import Row, cell
from megatron_corew.data.views import Item, Messages, Pairing, read_pairing

# What people may want to know of a question later; solutions are left behind.
META_COLUMNS = ("level", "type", "subject", "difficulty", "year", "url", "unique_id")
_WHOLE_AS_DECIMAL = re.compile(r"(-?\d+)\.0")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRows:
    """All rows of a source: those that are questions, and the others."""

    rows: tuple[PreparedRow, ...]
    broken: tuple[Quarantined, ...]
    notes: Mapping[str, int]
    """What was changed or is odd -> rows."""

    @property
    def total(self) -> int:
        """Rows of the source."""
        return len(self.rows) + len(self.broken)


def read_source(config: DataConfig, *, layout: Layout, name: str) -> SourceRows:
    """Read a source, join its views by id and bring every row into the one schema.

    Args:
        config: where the rows are and what the columns are called, as a run would say it.
        layout: the same columns, with the form of the answer.
        name: of the data set; it begins every id.

    Returns:
        Every row, in the order of the file, either prepared or broken. A row is broken when its
        question is empty or of another kind, when its answer is empty although the source has
        answers, and when its two views state different answers.

    Raises:
        ValueError: the source cannot be read or joined at all.
        RuntimeError: the hub cannot be reached.
    """
    pairing = read_pairing(
        config, "train", needs_rephrasings=False, needs_answers=False, lab_rows=None
    )
    reader = _RowReader(name, layout)
    for place, item_id in enumerate(pairing.rows):
        reader.read(pairing, item_id, place)
    strays = len(pairing.partners.keys() - pairing.rows.keys())
    if strays:
        reader.notes["rephrasings without a question"] += strays
    return SourceRows(
        rows=tuple(reader.rows), broken=tuple(reader.broken), notes=dict(reader.notes)
    )


class _RowReader:
    """Rows of one source, sorted into sound and broken ones."""

    def __init__(self, name: str, layout: Layout) -> None:
        self._name = name
        self._layout = layout
        self.rows: list[PreparedRow] = []
        self.broken: list[Quarantined] = []
        self.notes: Counter[str] = Counter()

    def read(self, pairing: Pairing, item_id: str, place: int) -> None:
        """Sort one row in."""
        row = pairing.rows[item_id]
        row_id = self._row_id(item_id)
        try:
            item = pairing.item(item_id)
        except ValueError as error:
            self._reject(row_id, "unreadable row", str(error), {"row": place})
            return
        meta = {"row": place} | _meta(row)
        original = None if item.original is None else self._user_part(item.original)
        if not original or not original[-1]["content"].strip():
            self._reject(row_id, "no question", f"row {place} has no text to ask", meta)
            return
        prepared = PreparedRow(
            id=row_id,
            source=row["source"] if self._layout == PREPARED else self._name,
            messages=original,
            answer=self._answer(item),
            rephrased_messages=(
                None if item.rephrased is None else self._user_part(item.rephrased) or None
            ),
            meta=meta,
        )
        if self._layout.answer is not None and prepared.answer is None:
            detail = f"row {place} has no answer although the source has a column of answers"
            self.broken.append(Quarantined.of(prepared, reason="no answer", detail=detail))
            return
        self.rows.append(prepared)

    def _row_id(self, item_id: str) -> str:
        return item_id if self._layout == PREPARED else f"{self._name}-{item_id}"

    def _reject(self, row_id: str, reason: str, detail: str, meta: Mapping[str, object]) -> None:
        self.broken.append(
            Quarantined(
                id=row_id, source=self._name, reason=reason, detail=detail, row=None, meta=meta
            )
        )

    def _user_part(self, question: str | Messages) -> tuple[Message, ...]:
        """The messages without those of the system, which belong to the run."""
        if isinstance(question, str):
            return user_message(question)
        kept = tuple(message for message in question if message["role"] != "system")
        if len(kept) < len(question):
            self.notes["texts with a system message, taken out"] += 1
        return kept

    def _answer(self, item: Item) -> str | None:
        if item.answer is None:
            return None
        answer = _READERS[self._layout.answer_form](item.answer)
        whole = _WHOLE_AS_DECIMAL.fullmatch(answer or "")
        if whole is None:
            return answer
        self.notes["answers like 142.0, written 142"] += 1
        return whole[1]


def _after_hashes(text: str) -> str | None:
    """The answer of GSM8K's solutions, whose thousands have commas."""
    return text.rpartition("####")[2].strip().replace(",", "") or None


_READERS: Mapping[AnswerForm, Callable[[str], str | None]] = {
    "plain": lambda text: text,
    "boxed": last_boxed,
    "hashes": _after_hashes,
}


def _meta(row: Row) -> dict[str, object]:
    """What is kept of a row for people; a row that was prepared before keeps all it had."""
    earlier = row.get("meta")
    if isinstance(earlier, str):
        return dict(json.loads(earlier))
    places: Sequence[str] = [*META_COLUMNS, *(f"extra_info.{name}" for name in META_COLUMNS)]
    values = {place.rpartition(".")[2]: cell(row, place) for place in places if cell(row, place)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}
