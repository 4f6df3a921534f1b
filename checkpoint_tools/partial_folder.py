"""A folder that gets its name only when all of it is written.

Until then it has a hidden name beside the target, so that nothing unfinished looks finished.
"""

import fcntl
import os
import shutil
import uuid
from pathlib import Path

_RESERVE = 1.01
"""Free space wanted per byte to write: indexes and small files come on top of the weights."""
_MODEL_FILES = ("config.json", "metadata.json")


class PartialFolder:
    """The hidden folder; one process at a time may write for a target."""

    def __init__(self, target: str | Path, *, num_bytes: int, overwrite: bool) -> None:
        """Create it, empty: what an interrupted writer left is removed.

        Args:
            target: the name it gets at the end.
            num_bytes: that are going to be written.
            overwrite: replace an existing target at the end.

        Raises:
            ValueError: the target exists, or is no model folder and therefore not overwritten.
            RuntimeError: the disk is too full, or another process is writing for the target.
        """
        self.target = Path(target).absolute()
        self._overwrite = overwrite
        self._refuse_existing()
        self.path = self.target.with_name(f".{self.target.name}.partial")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = os.open(self.path, os.O_RDONLY)
        try:
            self._take_over()
            self._check_space(num_bytes)
        except RuntimeError:
            os.close(self._lock)
            raise

    def publish(self) -> Path:
        """Give the folder its name, when every byte of it is on the disk.

        Returns:
            The target.

        Raises:
            ValueError: the target has appeared meanwhile.
        """
        self._refuse_existing()
        for file in self.path.rglob("*"):
            _flush(file)
        if self.target.exists():
            old = self.target.with_name(f".{self.target.name}.replaced-{uuid.uuid4().hex[:8]}")
            self.target.rename(old)
            self.path.rename(self.target)
            shutil.rmtree(old)
        else:
            self.path.rename(self.target)
        _flush(self.target.parent)
        self._unlock()
        return self.target

    def discard(self) -> None:
        """Remove what has been written; the target is left as it was. Does nothing when done."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()

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
        is_model = any((self.target / name).is_file() for name in _MODEL_FILES)
        if not is_model and (not self.target.is_dir() or any(self.target.iterdir())):
            raise ValueError(
                f"{self.target}: only a model or checkpoint folder is overwritten, got something "
                "else. Choose another name, or remove it yourself."
            )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
