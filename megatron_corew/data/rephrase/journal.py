"""The append-only record of every attempt, from which an interrupted job goes on."""

import fcntl
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One answer of the rewriting model and the verdict on it."""

    id: str
    """Of the question."""
    version: str
    """Of prompt, model and checks; see ``prompt.prompt_version``."""
    digest: str
    """Of the question's text: a changed question is another question."""
    number: int
    """0 for the first attempt."""
    seed: int
    fault: str | None
    """Why the rephrasing is not accepted; None: it is."""
    detail: str
    """More on the fault, or a remark on an accepted one; may be empty."""
    rephrased: str | None

    @property
    def key(self) -> Key:
        """What attempts of the same job share."""
        return (self.id, self.version, self.digest)


class Journal:
    """Attempts in a jsonl file; one process at a time.

    Raises:
        RuntimeError: another process is writing to the file.
        ValueError: the file is no journal.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise RuntimeError(
                f"{path}: need it for this job alone, got another process that writes to it. Wait "
                "for it, or choose another --out."
            ) from error
        self._attempts: dict[Key, list[Attempt]] = defaultdict(list)
        self._load()

    def attempts(self, key: Key) -> Sequence[Attempt]:
        """The attempts so far, first to last."""
        return tuple(self._attempts.get(key, ()))

    def append(self, attempt: Attempt) -> None:
        """Record an attempt; it survives the end of this process from now on."""
        self._attempts[attempt.key].append(attempt)
        self._file.write(json.dumps(asdict(attempt), ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Let another process write."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self) -> None:
        self._file.seek(0)
        text = self._file.read()
        whole, newline, torn = text.rpartition("\n")
        if torn:
            # A process that was killed while it wrote: that attempt is made again.
            self._file.truncate(len((whole + newline).encode()))
        for number, line in enumerate(whole.split("\n") if whole else (), start=1):
            try:
                attempt = Attempt(**json.loads(line))
            except (json.JSONDecodeError, TypeError) as error:
                raise ValueError(
                    f"{self._path}: line {number}: need an attempt of `corew rephrase`, got "
                    f"{line[:60]!r}. Choose another --out."
                ) from error
            self._attempts[attempt.key].append(attempt)
