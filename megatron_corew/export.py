"""Writes the policy or the teacher of a checkpoint as a Hugging Face folder."""

import math
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from checkpoint_tools.hf_folder import HfReader, HfWriter
from checkpoint_tools.weight_map.table import weight_table
from megatron_corew import preflight
from megatron_corew.config_file import load_config
from megatron_corew.runs import RunFolder, checkpoint_folder


def export_checkpoint(
    folder: RunFolder, out: Path, *, step: int | None, teacher: bool, overwrite: bool
) -> str:
    """Export one checkpoint, in this process.

    Args:
        folder: of the run.
        out: Hugging Face folder to write.
        step: which checkpoint; None: the newest.
        teacher: the teacher's weights instead of the policy's.
        overwrite: replace ``out`` if it exists.

    Returns:
        What was written, in one line.

    Raises:
        ValueError: no such run or checkpoint, a method without teacher, or ``out`` exists.
    """
    checkpoint = _find(folder, step)
    config = load_config(folder.config_file)

    from megatron_corew.mcore.export import checkpoint_stream, single_process
    from megatron_corew.mcore.model import DTYPES
    from megatron_corew.mcore.parallel import parallel_world

    if teacher and not config.preset.needs_teacher:
        raise ValueError(
            f"--teacher: need a run whose method has a teacher, got {config.method}. Leave "
            "--teacher out."
        )
    source = preflight.model_folder(config)
    reader, dtype = HfReader(source), DTYPES[config.model.dtype]
    alone = single_process(config, dtype="float32" if teacher else config.model.dtype)
    columns = (TextColumn("exporting"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        HfWriter(out, source_folder=source, dtype=dtype, overwrite=overwrite) as writer,
        parallel_world(alone.parallel, seed=0) as layout,
        Progress(*columns) as progress,
    ):
        stream = checkpoint_stream(checkpoint, alone, reader.architecture, layout, teacher=teacher)
        shapes = [s for entry in weight_table(reader.architecture) for s in entry.hf_shapes]
        total = sum(math.prod(shape) for shape in shapes) * dtype.itemsize
        task, num_bytes = progress.add_task("export", total=total), 0
        for name, tensor in stream:
            assert tensor is not None, "a single process holds every tensor"
            writer.add(name, tensor)
            num_bytes += tensor.numel() * dtype.itemsize
            progress.update(task, completed=num_bytes)
        writer.finish()
    role = "teacher" if teacher else "policy"
    return f"wrote the {role} of {checkpoint} to {out}: {num_bytes / 1e6:.1f} MB, {dtype}"


def _find(folder: RunFolder, step: int | None) -> Path:
    steps = folder.steps()
    if not folder.config_file.exists() or not steps:
        raise ValueError(
            f"RUN_FOLDER: need the folder of a run with a checkpoint, got {folder.path}."
        )
    if step is not None and step not in steps:
        raise ValueError(f"--step: need one of {', '.join(map(str, steps))}, got {step}.")
    return checkpoint_folder(folder.checkpoints, steps[-1] if step is None else step)
