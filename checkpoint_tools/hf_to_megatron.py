"""Converts a Hugging Face folder into a Megatron-Core distributed checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

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
from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_writer import Layout, MegatronWriter, PlannedFile
from checkpoint_tools.weight_map.pieces import Piece
from checkpoint_tools.weight_map.table import weight_table


def convert(
    hf_folder: Path,
    out: Path,
    *,
    layout: Layout,
    dtype: torch.dtype | None = None,
    workers: int = WORKERS,
    allow_nonfinite: bool = False,
    overwrite: bool = False,
) -> Account:
    """Convert; at most one tensor per worker is in memory.

    Args:
        hf_folder: the source.
        out: the checkpoint to write.
        layout: of the ranks that will read it most often; any other may read it too.
        dtype: of the written weights; None: as stored.
        workers: threads.
        allow_nonfinite: keep NaN and infinity instead of refusing them.
        overwrite: replace ``out`` if it exists.

    Returns:
        Size, speed and memory.

    Raises:
        ValueError: the source is not a complete model of a known family, the layout does not
            divide it, its values are not finite, or ``out`` exists.
        RuntimeError: a file of the source is damaged, or the disk is full.
    """
    stopwatch, reader = Stopwatch(), HfReader(hf_folder)
    reader.check_complete(weight_table(reader.architecture))
    dtype = dtype or reader.common_dtype()
    values = Values(source=hf_folder, allow_nonfinite=allow_nonfinite)
    writer = MegatronWriter(
        out, source_folder=hf_folder, dtype=dtype, layout=layout, overwrite=overwrite
    )

    def write(file: PlannedFile, advance: Callable[[int], None]) -> None:
        def build(piece: Piece) -> Tensor:
            tensor = piece.build({name: reader.read(name) for name in piece.hf_names}).to(dtype)
            values.check(" or ".join(piece.hf_names), tensor)
            advance(tensor.nbytes)
            return tensor

        writer.write(file, build)

    target = fill(writer, write, writer.files, workers=workers)
    return stopwatch.account(target, writer.num_bytes, dtype, values)


def command(
    hf_folder: Annotated[Path, typer.Argument(metavar="HF_DIR", help="Folder with safetensors.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Checkpoint folder to write.")],
    tensor: Annotated[int, typer.Option(min=1, help="Tensor-parallel size to cut for.")] = 1,
    pipeline: Annotated[int, typer.Option(min=1, help="Pipeline-parallel size.")] = 1,
    expert: Annotated[int, typer.Option(min=1, help="Expert-parallel size (MoE).")] = 1,
    dtype: WrittenType = None,
    workers: Workers = WORKERS,
    allow_nonfinite: AllowNonfinite = False,
    overwrite: Overwrite = False,
    backend: Converter = Backend.NATIVE,
) -> None:
    """Convert a Hugging Face folder into a Megatron-Core distributed checkpoint.

    The checkpoint may be loaded under any layout; the sizes given here only decide how the files
    are cut, so that the ranks of that layout read nothing twice.
    """
    with one_line_errors():
        layout = Layout(tensor=tensor, pipeline=pipeline, expert=expert)
        if backend is Backend.MEGATRON_BRIDGE:
            megatron_bridge.refuse_options(
                layout != Layout(), dtype, workers != WORKERS, allow_nonfinite
            )
            megatron_bridge.hf_to_megatron(hf_folder, out, overwrite=overwrite)
            return
        account = convert(
            hf_folder,
            out,
            layout=layout,
            dtype=None if dtype is None else DTYPE_OF[dtype.value],
            workers=workers,
            allow_nonfinite=allow_nonfinite,
            overwrite=overwrite,
        )
        typer.echo(account)


EXAMPLE = "Example: corew-convert hf-to-megatron models/qwen3-8b ckpt/qwen3-8b --tensor 4"

if __name__ == "__main__":
    standalone(command, EXAMPLE)
