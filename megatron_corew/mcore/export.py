"""Reads the policy's or the teacher's weights out of a checkpoint, without optimizer state."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config, ParallelConfig
from megatron_corew.mcore import platform, weights
from megatron_corew.mcore.model import HiddenStateModel, build_model
from megatron_corew.mcore.parallel import Layout

platform.redirect_torch()

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing.optimizer import (  # noqa: E402
    get_param_id_to_sharded_param_map,
    make_sharded_optimizer_tensor,
)

TEACHER_PREFIX = "corew.teacher"
"""Where a checkpoint keeps the teacher's tensors, named after the model's."""


def single_process(config: Config, *, dtype: str) -> Config:
    """The run's configuration for one process."""
    return config.model_copy(
        update={
            "parallel": ParallelConfig(threads=config.parallel.threads),
            "model": config.model.model_copy(update={"dtype": dtype}),
        }
    )


def checkpoint_stream(
    folder: Path, config: Config, architecture: Architecture, layout: Layout, *, teacher: bool
) -> Iterator[tuple[str, Tensor | None]]:
    """(Hugging Face name, whole tensor) of one checkpoint; must run in a world of one process.

    Args:
        folder: a complete checkpoint.
        config: as ``single_process`` gives it; float32 for the teacher.
        architecture: of the model that the run started from.
        layout: of the single process.
        teacher: the teacher's weights instead of the policy's.
    """
    model = build_model(architecture, config, layout)
    state = model.sharded_state_dict()
    if teacher:
        _load_teacher(folder, model, state)
    else:
        loaded = dist_checkpointing.load({"model": state}, str(folder))
        model.load_state_dict(loaded["model"])
    return weights.stream([model], architecture, layout)


@torch.no_grad()
def _load_teacher(folder: Path, model: HiddenStateModel, state: dict[str, object]) -> None:
    parameters = list(model.parameters())
    ids = get_param_id_to_sharded_param_map(state, parameters)
    wanted = {
        index: make_sharded_optimizer_tensor(ids[index], parameter.detach(), prefix=TEACHER_PREFIX)
        for index, parameter in enumerate(parameters)
    }
    loaded = dist_checkpointing.load({"teacher": wanted}, str(folder))["teacher"]
    for index, parameter in enumerate(parameters):
        parameter.copy_(loaded[index])
