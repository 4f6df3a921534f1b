"""Converts a Megatron-Core distributed checkpoint into a Hugging Face folder."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from checkpoint_tools import megatron_bridge
from checkpoint_tools.command import (
    DTYPE_OF,
    AllowNonfinite,
    Backend,
    Converter,
    Overwrite,
    Workers,
    WrittenType,
    one_line_errors,
    standalone,
)
from checkpoint_tools.conversion import WORKERS, Account, Stopwatch, Values, fill
from checkpoint_tools.hf_folder import has_weights
from checkpoint_tools.hf_writer import HfWriter
from checkpoint_tools.megatron_folder import MegatronReader
from checkpoint_tools.weight_map.entry import Entry

_SIZES = {"": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def convert(
    checkpoint: Path,
    out: Path,
    *,
    like: Path | None = None,
    shard_bytes: float | None = None,
    teacher: bool = False,
    dtype: torch.dtype | None = None,
    workers: int = WORKERS,
    allow_nonfinite: bool = False,
    overwrite: bool = False,
) -> Account:
    """Convert; at most one tensor per worker is in memory. Optimizer state is not read.

    Args:
        checkpoint: the source, of one step.
        out: Hugging Face folder to write.
        like: Hugging Face folder that gives config and tokenizer, and, if it has weights, the
            layout and names of the weight files; None: what the checkpoint itself keeps.
        shard_bytes: largest size of a weight file; None: as in ``like``, else 5 GB.
        teacher: the teacher's weights instead of the policy's.
        dtype: of the written weights; None: as stored.
        workers: threads.
        allow_nonfinite: keep NaN and infinity instead of refusing them.
        overwrite: replace ``out`` if it exists.

    Returns:
        Size, speed and memory.

    Raises:
        ValueError: the source is no checkpoint of a known model, has no config or no teacher, its
            values are not finite, or ``out`` exists.
        RuntimeError: a file of the source is damaged, or the disk is full.
    """
    stopwatch = Stopwatch()
    reader = MegatronReader(checkpoint, config_folder=like, teacher=teacher)
    dtype = dtype or reader.dtype
    values = Values(source=checkpoint, allow_nonfinite=allow_nonfinite)
    writer = HfWriter(
        out,
        source_folder=reader.config_folder,
        dtype=dtype,
        shard_bytes=5e9 if shard_bytes is None else shard_bytes,
        like=like is not None and shard_bytes is None and has_weights(like),
        overwrite=overwrite,
    )

    def write(entry: Entry, advance: Callable[[int], None]) -> None:
        for name, tensor in reader.read(entry).items():
            converted = tensor.to(dtype)
            values.check(name, converted)
            writer.add(name, converted)
            advance(converted.nbytes)

    target = fill(writer, write, reader.table, workers=workers)
    return stopwatch.account(target, writer.num_bytes, dtype, values)


def command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CKPT", help="Folder of one step.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Hugging Face folder to write.")],
    like: Annotated[
        Path | None,
        typer.Option(help="Hugging Face folder that gives config, tokenizer and file layout."),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(help="Largest file; default: as --like, else 5GB."),
    ] = None,
    teacher: Annotated[
        bool, typer.Option("--teacher", help="The teacher of a training checkpoint.")
    ] = False,
    dtype: WrittenType = None,
    workers: Workers = WORKERS,
    allow_nonfinite: AllowNonfinite = False,
    overwrite: Overwrite = False,
    backend: Converter = Backend.NATIVE,
) -> None:
    """Convert a Megatron-Core distributed checkpoint into a Hugging Face folder.

    Takes checkpoints of corew-convert and of corew train, written under any layout.
    """
    with one_line_errors():
        if backend is Backend.MEGATRON_BRIDGE:
            megatron_bridge.refuse_options(
                shard_size, teacher, dtype, workers != WORKERS, allow_nonfinite
            )
            megatron_bridge.megatron_to_hf(checkpoint, out, like=like, overwrite=overwrite)
            return
        account = convert(
            checkpoint,
            out,
            like=like,
            shard_bytes=None if shard_size is None else parse_size(shard_size),
            teacher=teacher,
            dtype=None if dtype is None else DTYPE_OF[dtype.value],
            workers=workers,
            allow_nonfinite=allow_nonfinite,
            overwrite=overwrite,
        )
        typer.echo(account)


def parse_size(text: str) -> float:
    """Bytes of a size such as 5GB or 500MB.

    Raises:
        ValueError: it is no such size.
    """
    match = re.fullmatch(r"([0-9.]+) ?([KMGT]B)?", text.upper())
    try:
        size = float(match[1]) * _SIZES[match[2] or ""] if match else 0.0
    except ValueError:
        size = 0.0
    if size <= 0:
        raise ValueError(f"--shard-size: need a size with KB, MB, GB or TB, got {text!r}.")
    return size


EXAMPLE = "Example: corew-convert megatron-to-hf ckpt/qwen3-8b exported/qwen3-8b"

if __name__ == "__main__":
    standalone(command, EXAMPLE)
