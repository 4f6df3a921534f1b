"""Files of one JSON object per line that survive a kill in the middle of a line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

_TAIL_BYTES = 1 << 16


def open_for_append(path: Path) -> TextIO:
    """Open a file for new lines; half a line left by a kill is cut off first.

    Args:
        path: the file; made when it does not exist.
    """
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(_last_line(file)[1])
    return path.open("a", encoding="utf-8")


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line, without reading the ones before it; None when there is none.

    Args:
        path: the file; it may be missing.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        text, _ = _last_line(file)
    return json.loads(text) if text else None


def append(file: TextIO, *lines: dict[str, Any]) -> None:
    """Write whole lines and hand them to the system, so that a kill loses none of them.

    Args:
        file: from ``open_for_append``.
        lines: objects of JSON values; no NaN or infinity.
    """
    file.write("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    file.flush()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects one by one; a last line without its end is left out.

    Args:
        path: the file; one that does not exist has no lines.

    Raises:
        ValueError: a line before the last one is not a JSON object.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}: line {number} is not a JSON object: {error}.") from error
            yield value


def _last_line(file: BinaryIO) -> tuple[bytes, int]:
    """The last line that has its end, and the offset behind it."""
    size = file.seek(0, os.SEEK_END)
    tail, start = b"", size
    while start > 0 and tail.count(b"\n") < 2:
        start = max(0, start - _TAIL_BYTES)
        file.seek(start)
        tail = file.read(size - start)
    whole = tail[: tail.rfind(b"\n") + 1]
    return whole.rstrip(b"\n").rpartition(b"\n")[2], start + len(whole)
