"""Rows of questions from wherever they are: a file, the Hugging Face hub, or the lab."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import datasets

from megatron_corew.lab.task import lab_rows

Row = Mapping[str, Any]
LAB_TRAIN_ROWS = 2048
LAB_EVAL_ROWS = 256
"""Rows of the lab's splits where the run does not ask for a number."""

_FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


def read_rows(source: str, *, split: str, knob: str, subset: str | None = None) -> Sequence[Row]:
    """Read all rows of a file or of a split of a hub data set.

    Args:
        source: a .parquet, .jsonl or .json file, or a hub id ``owner/name``.
        split: split of a hub data set; a file has none.
        knob: the dotted key that named the source, for messages.
        subset: configuration of a hub data set; None: its default.

    Returns:
        The rows in the order of the file.

    Raises:
        ValueError: no such file or data set, not readable as what it is, or without rows.
        RuntimeError: the hub cannot be reached.
    """
    datasets.disable_progress_bars()
    rows = (
        _read_hub(source, split, subset, knob) if _is_hub_id(source) else _read_file(source, knob)
    )
    if not len(rows):
        raise ValueError(f"{knob}: need at least one row, got none in {source}.")
    return rows


def read_lab(split: Literal["train", "eval"], count: int | None) -> Sequence[Row]:
    """Make rows of the built-in task.

    Args:
        split: which questions; the two splits share no sum.
        count: number of rows; None: the lab's own number.

    Returns:
        Rows with ``id``, ``prompt``, ``rephrased`` and ``answer``.
    """
    return lab_rows(split, count or (LAB_TRAIN_ROWS if split == "train" else LAB_EVAL_ROWS))


def require_column(rows: Sequence[Row], column: str, *, knob: str, source: str) -> None:
    """Refuse a column that the data do not have.

    Args:
        rows: what ``read_rows`` gave.
        column: name, dotted for nested fields.
        knob: the dotted key that named the column.
        source: where the rows are from, for the message.

    Raises:
        ValueError: the column is not there; the message lists those that are.
    """
    if not has_column(rows, column):
        names = ", ".join(_column_names(rows[0]))
        raise ValueError(f"{knob}: need a column of {source}, got {column!r}. It has: {names}.")


def has_column(rows: Sequence[Row], column: str) -> bool:
    """Whether the data have a column, dotted for nested fields."""
    present = _walk(rows[0], column)[0]
    # A nested field stays hidden where the first rows hold nothing at all above it.
    return present or any(_walk(row, column)[0] for row in rows)


def cell(row: Row, column: str) -> Any:
    """The value of a column, dotted for nested fields; None where a row has none."""
    return _walk(row, column)[1]


def _walk(row: Row, column: str) -> tuple[bool, Any]:
    if column in row:
        return True, row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _column_names(row: Row, prefix: str = "") -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _column_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _is_hub_id(source: str) -> bool:
    """Whether a name can only mean the hub: a missing file must never be asked for there."""
    path = Path(source).expanduser()
    owner, slash, name = source.partition("/")
    plain = bool(slash and name) and "/" not in name and not source.startswith((".", "~", "/"))
    return plain and path.suffix not in _FORMATS and not path.exists() and not Path(owner).exists()


def _read_file(source: str, knob: str) -> Sequence[Row]:
    path = Path(source).expanduser()
    kind = _FORMATS.get(path.suffix)
    if not path.is_file():
        raise ValueError(
            f"{knob}: need a file that exists (.parquet, .jsonl, .json), a hub id owner/name, or "
            f"lab; got {source!r}, which is none of them."
        )
    if kind is None:
        raise ValueError(f"{knob}: need a .parquet, .jsonl or .json file, got {source!r}.")
    if not path.stat().st_size:
        raise ValueError(f"{knob}: need at least one row, got none in {source}.")
    try:
        table = datasets.load_dataset(kind, data_files=[str(path)], split="train")
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        cause = " ".join(str(error.__cause__ or error).split())
        raise ValueError(
            f"{knob}: need a readable {kind} file, got {source!r}: {cause}."
        ) from error
    return cast(Sequence[Row], table)


def _read_hub(source: str, split: str, subset: str | None, knob: str) -> Sequence[Row]:
    try:
        table = datasets.load_dataset(source, name=subset, split=split)
    except ConnectionError as error:
        raise RuntimeError(
            f"{knob}: the hub cannot be reached for {source!r}: {error}. "
            f"Set {knob} to a local file."
        ) from error
    except (ValueError, datasets.exceptions.DatasetsError, FileNotFoundError) as error:
        cause = " ".join(str(error).split())
        raise ValueError(
            f"{knob}: need a data set of the hub with split {split!r}, got {source!r}: {cause}."
        ) from error
    return cast(Sequence[Row], table)
