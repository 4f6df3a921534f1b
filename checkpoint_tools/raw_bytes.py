"""A tensor as the bytes of a file, and back, without a copy where memory allows."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def raw_bytes(tensor: Tensor) -> Any:
    """A contiguous tensor's own memory, or a contiguous copy's.

    Args:
        tensor: any shape and dtype, on the CPU.

    Returns:
        A flat uint8 numpy array, which files can write.
    """
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def with_own_storage(tensor: Tensor) -> Tensor:
    """The same values in a storage that ends where the tensor ends.

    torch.save writes the whole storage behind a view, for memory maps the whole file.

    Args:
        tensor: any shape and dtype, on the CPU.

    Returns:
        A contiguous tensor of the same shape and dtype; shares memory where it can.
    """
    return torch.from_numpy(raw_bytes(tensor)).view(tensor.dtype).reshape(tensor.shape)


def mapped(file: Path, *, start: int, count: int, dtype: torch.dtype) -> Tensor:
    """Map numbers of a file into memory; their pages are read when they are used.

    Args:
        file: holds them as raw memory.
        start: of the first byte in the file.
        count: of the numbers.
        dtype: their type.

    Returns:
        [count] of ``dtype``; its map is closed when it is dropped.

    Raises:
        RuntimeError: the file ends before them. Reading on would kill the process.
    """
    size, there = count * dtype.itemsize, file.stat().st_size - start
    if size > there:
        raise RuntimeError(
            f"{file}: need {size} bytes from byte {start} on, got {there}. The file is damaged."
        )
    content = torch.from_file(str(file), shared=False, size=start + size, dtype=torch.uint8)
    part = content[start:]
    # Nothing aligns what one checkpoint file holds; unaligned numbers are copied.
    return (part if start % dtype.itemsize == 0 else part.clone()).view(dtype)
