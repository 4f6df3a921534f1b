"""What both directions of a conversion share: workers, the check of values, the account of it."""

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol, TypeVar

import torch
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from torch import Tensor

Item = TypeVar("Item")

WORKERS = 2
"""Threads of a conversion, unless its user says otherwise."""


@dataclass(kw_only=True, slots=True)
class Values:
    """Checks that the converted values are finite."""

    source: Path
    allow_nonfinite: bool
    nonfinite: list[str] = field(default_factory=list)
    """Tensors with NaN or infinity, where they are allowed."""

    def check(self, name: str, tensor: Tensor) -> None:
        """Refuse, or note, a tensor with a NaN or an infinity.

        Args:
            name: for the message.
            tensor: any shape, floating point.

        Raises:
            ValueError: it holds one, and that is not allowed.
        """
        # Both extremes are NaN if any number is.
        if tensor.numel() == 0 or torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
            return
        if not self.allow_nonfinite:
            count = int((~torch.isfinite(tensor)).sum())
            raise ValueError(
                f"{self.source}: need finite numbers, got {count} NaN or infinite ones in {name}. "
                "Use a sound checkpoint, or a type that holds them (--dtype), or keep them "
                "(--allow-nonfinite)."
            )
        self.nonfinite.append(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What a conversion did."""

    target: Path
    num_bytes: int
    """Of the written weights."""
    seconds: float
    peak_bytes: int
    """Largest resident memory of the process, mapped files included."""
    dtype: torch.dtype
    nonfinite: tuple[str, ...]

    def __str__(self) -> str:
        """One plain sentence, and another about numbers that are not finite."""
        text = (
            f"wrote {self.num_bytes / 1e9:.3g} GB in {str(self.dtype).removeprefix('torch.')} to "
            f"{self.target} in {self.seconds:.1f} s: {self.num_bytes / 1e9 / self.seconds:.2g} "
            f"GB/s, peak memory {self.peak_bytes / 1e9:.2f} GB"
        )
        if not self.nonfinite:
            return text
        names = sorted(set(self.nonfinite))
        return f"{text}\nNaN or infinity kept in {len(names)} tensors: {', '.join(names)}"


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes.

    Unlike getrusage's figure it does not begin with that of the process which started this one.
    """
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None, "every Linux since 2.6 says it"
    return int(peak[1]) * 1024


class Stopwatch:
    """Measures a conversion from its start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def account(self, target: Path, num_bytes: int, dtype: torch.dtype, values: Values) -> Account:
        """The account of a finished conversion."""
        return Account(
            target=target,
            num_bytes=num_bytes,
            seconds=time.monotonic() - self._start,
            peak_bytes=peak_memory(),
            dtype=dtype,
            nonfinite=tuple(values.nonfinite),
        )


def in_parallel(work: Callable[[Item], object], items: Iterable[Item], *, workers: int) -> None:
    """Do ``work`` on each item in threads; after the first failure no further item is begun.

    Args:
        work: releases Python's lock while it copies, reads or writes.
        items: in the order in which they are begun.
        workers: threads.

    Raises:
        Whatever ``work`` raised first.
    """
    stopped = Event()

    def unless_stopped(item: Item) -> None:
        if stopped.is_set():
            return
        try:
            work(item)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(unless_stopped, item) for item in items]
        try:
            for future in futures:
                future.result()
        finally:
            # Also after Ctrl-C, which reaches this thread only.
            stopped.set()


class Writer(Protocol):
    """A folder in the making, of either format."""

    num_bytes: int

    def finish(self) -> Path:
        """Complete it."""
        ...

    def discard(self) -> None:
        """Remove it, unless it is complete."""
        ...


def fill(
    writer: Writer,
    work: Callable[[Item, Callable[[int], None]], object],
    items: Iterable[Item],
    *,
    workers: int,
) -> Path:
    """Fill a folder in threads, under a progress bar; what a failure leaves is removed.

    Args:
        writer: of the folder.
        work: writes what belongs to one item, and reports bytes to the function it is given.
        items: in the order in which they are begun.
        workers: threads.

    Returns:
        The finished folder.
    """
    progress, advance = _progress_bar(writer.num_bytes)
    try:
        with progress:
            in_parallel(lambda item: work(item, advance), items, workers=workers)
        return writer.finish()
    finally:
        writer.discard()


def _progress_bar(num_bytes: int) -> tuple[Progress, Callable[[int], None]]:
    progress = Progress(
        TextColumn("converting"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    task = progress.add_task("converting", total=num_bytes)
    return progress, lambda count: progress.advance(task, count)
