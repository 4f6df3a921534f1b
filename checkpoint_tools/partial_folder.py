"""A folder that gets its name only when all of it is written.

Until then it has a hidden name beside the target, so that nothing unfinished looks finished.
"""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import BinaryIO

_RESERVE = 1.01
"""Free space wanted per byte to write: indexes and small files come on top of the weights."""
_FLUSHED_BYTES = 64e6
"""The disk is given a file's bytes in strides of at least this many, while others are written."""
_FLUSHERS = 4
"""Threads that wait for the disk."""


class PartialFolder:
    """The hidden folder; one process at a time may write for a target."""

    def __init__(
        self, target: str | Path, *, num_bytes: int, overwrite: bool, own_files: Sequence[str]
    ) -> None:
        """Create it, empty: what an interrupted writer left is removed.

        Args:
            target: the name it gets at the end; a link is followed.
            num_bytes: that are going to be written.
            overwrite: replace an existing target at the end.
            own_files: patterns of the names that a folder of this kind holds. A folder that holds
                anything else is never overwritten.

        Raises:
            ValueError: the target exists, or holds what would be lost.
            RuntimeError: the disk is too full, or another process is writing for the target.
        """
        self.target = Path(target).resolve()
        self._overwrite, self._own_files = overwrite, own_files
        self.path = self.target.with_name(f".{self.target.name}.partial")
        self._replaced = self.target.with_name(f".{self.target.name}.replaced")
        self._recover()
        self._refuse_existing()
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise RuntimeError(f"{self.path}: need this name for a folder, got a file or a link.")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = os.open(self.path, os.O_RDONLY)
        try:
            self._take_over()
            self._check_space(num_bytes)
        except RuntimeError:
            self._unlock()
            raise
        self._flusher = ThreadPoolExecutor(_FLUSHERS)
        self._flushes: list[Future[None]] = []
        self._unflushed: Counter[Path] = Counter()
        self._counting = Lock()

    def reserve(self, file: BinaryIO, num_bytes: int) -> None:
        """Take the disk's space for a file of this folder, whose numbers come in any order.

        Args:
            file: empty, opened for writing.
            num_bytes: its size from now on.

        Raises:
            RuntimeError: the disk, or the user's share of it, is too full.
        """
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            raise RuntimeError(
                f"{self.target}: need {num_bytes / 1e9:.2f} GB for a file, got: {error.strerror}. "
                "Make room, or write to another disk."
            ) from error

    def wrote(self, file: Path, num_bytes: int) -> None:
        """Let the disk begin with what a file has got; threads may call it at the same time.

        Without it the disk would begin when everything else is done.

        Args:
            file: in this folder.
            num_bytes: written to it since the last call.
        """
        with self._counting:
            self._unflushed[file] += num_bytes
            if self._unflushed[file] >= _FLUSHED_BYTES:
                self._unflushed[file] = 0
                self._flushes.append(self._flusher.submit(_flush_numbers, file))

    def publish(self) -> Path:
        """Give the folder its name, when every byte of it is on the disk.

        Returns:
            The target.

        Raises:
            ValueError: the target has appeared meanwhile.
            RuntimeError: the disk failed.
            OSError: it cannot be renamed; the old target keeps its name.
        """
        self._refuse_existing()
        self._flush_all()
        if self.target.exists():
            self.target.rename(self._replaced)
        try:
            self.path.rename(self.target)
        finally:
            self._recover()
        shutil.rmtree(self._replaced, ignore_errors=True)
        _flush(self.target.parent)
        self._flusher.shutdown()
        self._unlock()
        return self.target

    def discard(self) -> None:
        """Remove what has been written; the target is left as it was. Does nothing when done."""
        if self._lock is not None:
            self._flusher.shutdown(cancel_futures=True)
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()

    def _flush_all(self) -> None:
        try:
            for flush in self._flushes:
                flush.result()
            # Together, so that the file system needs few transactions.
            list(self._flusher.map(_flush, self.path.rglob("*")))
        except OSError as error:
            raise RuntimeError(
                f"{self.target}: the disk did not take what was written: {error.strerror}. Make "
                "room, or write to another disk."
            ) from error

    def _recover(self) -> None:
        """Give a replaced target its name back, if nothing has taken that."""
        if self._replaced.exists() and not self.target.exists():
            self._replaced.rename(self.target)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_over(self) -> None:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RuntimeError(
                f"{self.target}: another process is writing it. Wait for it, or choose another "
                "name."
            ) from error
        for left in self.path.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _check_space(self, num_bytes: int) -> None:
        free, needed = shutil.disk_usage(self.path).free, int(num_bytes * _RESERVE)
        if free < needed:
            self.path.rmdir()
            raise RuntimeError(
                f"{self.target}: need {needed / 1e9:.2f} GB on the disk, got {free / 1e9:.2f} GB "
                "free. Make room, or write to another disk."
            )

    def _refuse_existing(self) -> None:
        if not self.target.exists():
            return
        if not self._overwrite:
            raise ValueError(
                f"{self.target}: need a folder that does not exist yet, got an existing one. "
                "Choose another name, or overwrite it (--overwrite)."
            )
        files = sorted(self.target.iterdir()) if self.target.is_dir() else [self.target]
        for file in files:
            if not any(file.match(pattern) for pattern in self._own_files):
                raise ValueError(
                    f"{self.target}: only a folder that was written here is overwritten, got one "
                    f"with {file.name}. Choose another name, or remove it yourself."
                )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _flush_numbers(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.close(descriptor)
