"""Writes the policy or the teacher of a checkpoint as a Hugging Face folder."""

from pathlib import Path

from checkpoint_tools.megatron_to_hf import convert
from checkpoint_tools.side_files import DTYPES
from megatron_corew import preflight
from megatron_corew.config_file import load_config
from megatron_corew.runs import RunFolder, checkpoint_folder


def export_checkpoint(
    folder: RunFolder, out: Path, *, step: int | None, teacher: bool, overwrite: bool
) -> str:
    """Export one checkpoint, in this process; optimizer state is not read.

    Args:
        folder: of the run.
        out: Hugging Face folder to write.
        step: which checkpoint; None: the newest.
        teacher: the teacher's weights instead of the policy's.
        overwrite: replace ``out`` if it exists.

    Returns:
        What was written, in one line.

    Raises:
        ValueError: no such run or checkpoint, a method without teacher, weights that are not
            finite, or ``out`` exists.
        RuntimeError: a file of the checkpoint is damaged, or the disk is full.
    """
    checkpoint = _find(folder, step)
    config = load_config(folder.config_file)
    if teacher and not config.preset.needs_teacher:
        raise ValueError(
            f"--teacher: need a run whose method has a teacher, got {config.method}. Leave "
            "--teacher out."
        )
    account = convert(
        checkpoint,
        out,
        like=preflight.model_folder(config),
        teacher=teacher,
        dtype=DTYPES[config.model.dtype],
        overwrite=overwrite,
    )
    return f"{'teacher' if teacher else 'policy'} of {checkpoint}: {account}"


def _find(folder: RunFolder, step: int | None) -> Path:
    steps = folder.steps()
    if not folder.config_file.exists() or not steps:
        raise ValueError(
            f"RUN_FOLDER: need the folder of a run with a checkpoint, got {folder.path}."
        )
    if step is not None and step not in steps:
        raise ValueError(f"--step: need one of {', '.join(map(str, steps))}, got {step}.")
    return checkpoint_folder(folder.checkpoints, steps[-1] if step is None else step)
