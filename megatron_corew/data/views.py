"""The views of a question, joined by id and never by the place of a row.

An id stays with its row from the start, so that no filter or shuffle can pair a question with
the rephrasing or the answer of its neighbour.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from megatron_corew.config import DataConfig
from megatron_corew.data.sources import (
    Row,
    cell,
    has_column,
    read_lab,
    read_rows,
    require_column,
)

Messages = Sequence[Mapping[str, str]]
Split = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One question as the data have it, before any rendering."""

    id: str
    original: str | Messages | None
    rephrased: str | Messages | None
    answer: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """The rows of a split by id, and where each finds its second view."""

    config: DataConfig
    rows: Mapping[str, Row]
    """Id -> row, in the order of the file."""
    partners: Mapping[str, Row]
    """Id -> row with the rephrasing: the same row, or the one of the second file."""
    rephrased_column: str | None
    """Column of the rephrasing in ``partners``; None: the data have no second view."""

    def items(self) -> Iterator[Item]:
        """Every question, in the order of the file.

        Raises:
            ValueError: a question that is neither text nor messages, an answer with no one
                spelling, or partners whose answers differ.
        """
        for item_id in self.rows:
            yield self.item(item_id)

    def item(self, item_id: str) -> Item:
        """One question.

        Raises:
            ValueError: as ``items``.
        """
        row = self.rows[item_id]
        partner = self.partners.get(item_id) if self.rephrased_column else None
        answer = _answer(self.config, row, item_id)
        if partner is not None and partner is not row:
            self._refuse_another_answer(item_id, answer, partner)
        return Item(
            id=item_id,
            original=_question(row, self.config.prompt_column, item_id),
            rephrased=_question(partner, self.rephrased_column, item_id)
            if partner is not None and self.rephrased_column
            else None,
            answer=answer,
        )

    def _refuse_another_answer(self, item_id: str, answer: str | None, partner: Row) -> None:
        column = self.config.answer_column
        if column is None or not has_column([partner], column):
            return
        other = _answer(self.config, partner, item_id)
        if other != answer:
            raise ValueError(
                f"data.id_column: need one answer for both views of question {item_id}, got "
                f"{answer!r} and {other!r}: the two files do not pair. Set data.id_column to a "
                "column that joins them."
            )


def read_pairing(
    config: DataConfig,
    split: Split,
    *,
    needs_rephrasings: bool,
    needs_answers: bool,
    lab_rows: int | None,
) -> Pairing:
    """Read a split and join its views by id; nothing is dropped.

    Args:
        config: where the data are and what their columns are called.
        split: ``train`` or ``eval``.
        needs_rephrasings: True refuses data without a second view.
        needs_answers: True refuses data without an answer column.
        lab_rows: rows to make when the source is the lab; None: the lab's own number.

    Returns:
        The joined rows.

    Raises:
        ValueError: no source, a missing column, an id that is empty or stands twice, or two files
            that cannot be joined; the message names the knob.
        RuntimeError: the hub cannot be reached.
    """
    source = config.train if split == "train" else config.eval
    second = config.train_rephrased if split == "train" else config.eval_rephrased
    if source is None:
        raise ValueError(f"data.{split}: need questions, got null. Set data.{split}.")
    if source == "lab":
        config = DataConfig(
            train=source, rephrased_column="rephrased", answer_column="answer", id_column="id"
        )
        rows, second = read_lab(split, lab_rows), None
    else:
        rows = read_rows(
            source, split=_hub_split(config, split), subset=config.subset, knob=f"data.{split}"
        )
    _require_columns(config, rows, source, needs_answers=needs_answers)
    if second is not None:
        return _pair_files(config, split, rows, second)
    # The columns describe the training data; held-out data may do without a second view.
    column = config.rephrased_column
    if column and split == "eval" and not needs_rephrasings and not has_column(rows, column):
        column = None
    if column is None and needs_rephrasings:
        raise ValueError(
            f"data.rephrased_column: need rephrased questions for {source}, got none. Set "
            f"data.rephrased_column or data.{split}_rephrased."
        )
    if column is not None:
        require_column(rows, column, knob="data.rephrased_column", source=source)
    by_id = _by_id(config, rows, source)
    return Pairing(config=config, rows=by_id, partners=by_id, rephrased_column=column)


def _pair_files(config: DataConfig, split: Split, rows: Sequence[Row], second: str) -> Pairing:
    knob = f"data.{split}_rephrased"
    if config.rephrased_column:
        raise ValueError(
            f"data.rephrased_column: need one place of the rephrasings, got two: the column "
            f"{config.rephrased_column!r} and {knob}. Set one of them to null."
        )
    others = read_rows(second, split=_hub_split(config, split), subset=config.subset, knob=knob)
    if config.id_column is None and len(rows) != len(others):
        raise ValueError(
            f"{knob}: need as many rows as data.{split} to pair them by row number, got "
            f"{len(others)} and {len(rows)}. Set data.id_column to a column that joins them."
        )
    require_column(others, config.prompt_column, knob="data.prompt_column", source=second)
    if config.id_column is not None:
        require_column(others, config.id_column, knob="data.id_column", source=second)
    source = config.train if split == "train" else config.eval
    return Pairing(
        config=config,
        rows=_by_id(config, rows, source or ""),
        partners=_by_id(config, others, second),
        rephrased_column=config.prompt_column,
    )


def _hub_split(config: DataConfig, split: Split) -> str:
    return config.split if split == "train" else config.eval_split


def _require_columns(
    config: DataConfig, rows: Sequence[Row], source: str, *, needs_answers: bool
) -> None:
    if needs_answers and not config.answer_column:
        raise ValueError(
            f"data.answer_column: need true answers for {source}, got null. Set data.answer_column."
        )
    for name in ("prompt_column", "answer_column", "id_column"):
        column = getattr(config, name)
        if column is not None:
            require_column(rows, column, knob=f"data.{name}", source=source)


def _by_id(config: DataConfig, rows: Sequence[Row], source: str) -> dict[str, Row]:
    by_id: dict[str, Row] = {}
    for at, row in enumerate(rows):
        row_id = str(at)
        if config.id_column is not None:
            row_id = _as_text(cell(row, config.id_column), "data.id_column", row_id) or ""
        if not row_id or row_id in by_id:
            problem = f"{row_id!r} twice" if row_id else "none"
            raise ValueError(
                f"data.id_column: need an id of its own in every row of {source}, got {problem} "
                f"(row {at}). Set data.id_column to a column without repeats."
            )
        by_id[row_id] = row
    return by_id


def _answer(config: DataConfig, row: Row, item_id: str) -> str | None:
    if config.answer_column is None:
        return None
    return _as_text(cell(row, config.answer_column), "data.answer_column", item_id)


def _as_text(value: Any, knob: str, item_id: str) -> str | None:
    """Text and numbers alike as stripped text; None for an empty one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{knob}: need text or a number, got {value!r:.80} for question {item_id}. Name a "
            "nested field by dots."
        )
    return str(value).strip() or None


def _question(row: Row, column: str, item_id: str) -> str | Messages | None:
    value = cell(row, column)
    if value is None or isinstance(value, str):
        return value
    is_chat = isinstance(value, list) and all(
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in value
    )
    if not is_chat:
        raise ValueError(
            f"data: need text or a list of {{role, content}} in column {column!r}, got "
            f"{value!r:.80} for question {item_id}. Set data.prompt_column or "
            "data.rephrased_column."
        )
    return cast(Messages, value)
