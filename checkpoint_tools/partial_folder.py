"""A folder that gets its name only when all of it is written.

Until then it has a hidden name beside the target, so that nothing unfinished looks finished.
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_RESERVE = 1.01
"""Free space wanted per byte to write: indexes and small files come on top of the weights."""


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

    def publish(self) -> Path:
        """Give the folder its name, when every byte of it is on the disk.

        Returns:
            The target.

        Raises:
            ValueError: the target has appeared meanwhile.
            OSError: it cannot be renamed; the old target keeps its name.
        """
        self._refuse_existing()
        for file in self.path.rglob("*"):
            _flush(file)
        if self.target.exists():
            self.target.rename(self._replaced)
        try:
            self.path.rename(self.target)
        finally:
            self._recover()
        shutil.rmtree(self._replaced, ignore_errors=True)
        _flush(self.target.parent)
        self._unlock()
        return self.target

    def discard(self) -> None:
        """Remove what has been written; the target is left as it was. Does nothing when done."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()

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
