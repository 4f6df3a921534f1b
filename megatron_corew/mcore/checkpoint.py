"""Saves and resumes everything a run needs: policy, optimizer, teacher, RNG, the step.

Written with Megatron's dist_checkpointing into a folder aside, checked, then renamed; only then
``latest`` names it. Weights and optimizer state may be loaded under another layout.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader

from megatron_corew.config import Config
from megatron_corew.mcore import platform
from megatron_corew.mcore.fp8_state import load_weights, without_empty_states
from megatron_corew.mcore.main_parameters import (
    MainParameter,
    leaf_optimizers,
    main_parameters,
    whole_parameters,
)
from megatron_corew.mcore.offload import HostAdam
from megatron_corew.mcore.policy import Policy
from megatron_corew.mcore.teacher import Teacher
from megatron_corew.ranks import on_driver
from megatron_corew.runs import checkpoint_folder

platform.redirect_torch()

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing import ShardedObject  # noqa: E402
from megatron.core.dist_checkpointing.core import CheckpointingException  # noqa: E402
from megatron.core.dist_checkpointing.optimizer import (  # noqa: E402
    get_param_id_to_sharded_param_map,
    make_sharded_optimizer_tensor,
)
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker  # noqa: E402

_LATEST, _META = "latest", "corew.json"
_PREFIX = "corew"
_RESIDUAL = f"{_PREFIX}.residual"


class Checkpoints:
    """The checkpoints of one run. All methods are collective.

    Args:
        folder: holds one folder per checkpoint.
        config: of the run; its resolved form is stored with every checkpoint.
        policy: saved and restored in place.
        teacher: the same; None when the run has none.
    """

    def __init__(
        self, folder: Path, config: Config, policy: Policy, teacher: Teacher | None
    ) -> None:
        self.folder, self.config = folder, config
        self.policy, self.teacher = policy, teacher

    def save(self, step: int) -> Path:
        """Write the state after ``step``, then drop all but the newest checkpoints.

        Raises:
            RuntimeError: the folder cannot be written; older checkpoints stay as they are.
        """
        self._refuse_while_installed("be saved")
        final = checkpoint_folder(self.folder, step)
        aside = final.with_name(f".{final.name}.partial")
        on_driver(lambda: _fresh_folder(aside))
        try:
            dist_checkpointing.save(self._state(with_rng=True), str(aside))
        except CheckpointingException as error:
            raise RuntimeError(f"checkpoint {aside}: cannot be written: {error}") from error
        return on_driver(lambda: self._publish(aside, final, step))

    def load(self, step: int) -> None:
        """Restore the state after ``step``.

        Raises:
            ValueError: the checkpoint has a teacher and this run none, or one that moves and this
                run one that does not; or the reverse.
            RuntimeError: files are missing or damaged.
        """
        self._refuse_while_installed("be loaded")
        folder = checkpoint_folder(self.folder, step)
        meta = on_driver(lambda: self._read_matching_meta(folder))
        # The RNG of a rank means nothing under another number of ranks; training draws none.
        same_world = meta["world_size"] == dist.get_world_size()
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
        state = self._state(with_rng=same_world, stored=stored)
        try:
            loaded = dist_checkpointing.load(state, str(folder))
        except CheckpointingException as error:
            raise RuntimeError(
                f"checkpoint {folder}: cannot be read: {error}. Remove it, write an older step "
                "into the file latest, and start again."
            ) from error
        for name, chunk in self.policy.module.named_children():
            load_weights(chunk, loaded["model"][name])
        _start_adam(self.policy, loaded["adam_step"])
        order = {
            id(parameter): index
            for index, parameter in enumerate(
                whole_parameters(self.policy.optimizer, lambda main: main.main, torch.float32)
            )
        }
        with torch.no_grad():
            for name, (_, local) in _per_parameter(self.policy, self.teacher).items():
                for main in main_parameters(self.policy.optimizer):
                    whole = loaded[name][order[id(main.parameter)]]
                    local(main).copy_(main.part_of(whole))
        if self.teacher is not None:
            self.teacher.updates = loaded["teacher_updates"]
        if same_world:
            _restore_rng(loaded["rng"])

    def _state(self, *, with_rng: bool, stored: Iterable[str] | None = None) -> dict[str, Any]:
        optimizer = self.policy.optimizer
        model = {
            name: without_empty_states(chunk.sharded_state_dict(), self.config.precision, stored)
            for name, chunk in self.policy.module.named_children()
        }
        state = {
            "model": model,
            "adam_step": _adam_step(self.policy),
            "teacher_updates": 0 if self.teacher is None else self.teacher.updates,
        }
        if with_rng:
            state["rng"] = _rng_object()
        for name, (dtype, local) in _per_parameter(self.policy, self.teacher).items():
            state[name] = _sharded(optimizer, model, name, dtype, local)
        return state

    def _publish(self, aside: Path, final: Path, step: int) -> Path:
        meta = {"has_teacher": self.teacher is not None, "world_size": dist.get_world_size()}
        (aside / _META).write_text(json.dumps(meta, indent=1))
        _sync_to_disk(aside)
        _verify(aside)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        pointer = self.folder / f".{_LATEST}.partial"
        pointer.write_text(str(step))
        pointer.replace(self.folder / _LATEST)
        older = sorted(self.folder.glob("step-*"))[: -self.config.checkpoint.keep]
        for folder in older:
            shutil.rmtree(folder)
        return final

    def _read_matching_meta(self, folder: Path) -> dict[str, Any]:
        meta = read_meta(folder)
        # Torch answers damaged files with a BaseException that says little.
        _verify(folder)
        if meta["has_teacher"] != (self.teacher is not None):
            raise ValueError(
                f"checkpoint {folder}: need one {'with' if self.teacher else 'without'} a teacher "
                f"for method {self.config.method}, got the other. Start a new run.name."
            )
        if self.teacher is not None:
            _check_residual(folder, self.teacher)
        return meta

    def _refuse_while_installed(self, action: str) -> None:
        if self.teacher is not None:
            self.teacher.refuse_while_installed(action)


def _check_residual(folder: Path, teacher: Teacher) -> None:
    """Torch would answer a missing residual with a BaseException."""
    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    moved, moves = any(_RESIDUAL in key for key in keys), teacher.residual_dtype is not None
    if moved != moves:
        needed = "moves" if moves else "stands still"
        raise ValueError(
            f"checkpoint {folder}: need one with a teacher that {needed}, got the other. Set "
            "method to the checkpoint's, or start a new run.name."
        )


def read_meta(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: whether it has a teacher, how many ranks wrote it.

    Raises:
        RuntimeError: the folder is not a complete checkpoint.
    """
    file = folder / _META
    if not file.exists():
        raise RuntimeError(f"checkpoint: need a complete checkpoint, got {folder} without {_META}.")
    meta: dict[str, Any] = json.loads(file.read_text())
    return meta


def _fresh_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _verify(folder: Path) -> None:
    """Every file that the index names is there and as long as the index says."""
    index = FileSystemReader(folder).read_metadata()
    ends: dict[str, int] = {}
    for stored in (index.storage_data or {}).values():
        end = stored.offset + stored.length
        ends[stored.relative_path] = max(ends.get(stored.relative_path, 0), end)
    for name, end in ends.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else 0
        if size < end:
            raise RuntimeError(
                f"checkpoint: need {end} bytes in {folder / name}, got {size}. When saving: is the "
                "disk full? When resuming: write an older step into the file latest."
            )


def _sync_to_disk(folder: Path) -> None:
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _rng_object() -> ShardedObject:
    state = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "tracker": {name: s.clone() for name, s in get_cuda_rng_tracker().get_states().items()},
    }
    if platform.has_cuda():
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject("rng", state, (dist.get_world_size(),), (dist.get_rank(),))


def _restore_rng(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _per_parameter(
    policy: Policy, teacher: Teacher | None
) -> dict[str, tuple[torch.dtype, Callable[[MainParameter], Tensor]]]:
    """Everything that lies beside the main parameters: name -> dtype, this rank's part."""

    def moment(name: str) -> Callable[[MainParameter], Tensor]:
        def local(main: MainParameter) -> Tensor:
            moments = main.owner.optimizer.state[main.main]
            # Before its first step Adam has no moments; zero is what they start from.
            return moments[name] if name in moments else torch.zeros_like(main.main.detach())

        return local

    parts: dict[str, tuple[torch.dtype, Callable[[MainParameter], Tensor]]] = {
        "exp_avg": (torch.float32, moment("exp_avg")),
        "exp_avg_sq": (torch.float32, moment("exp_avg_sq")),
    }
    if policy.dtype != torch.float32:
        # In float32 the mains are the model's parameters, which are saved as such.
        parts["main"] = (torch.float32, lambda main: main.main)
    if teacher is not None:
        shards = {id(shard.source.main): shard for shard in teacher.shards}
        parts["teacher"] = (torch.float32, lambda main: shards[id(main.main)].value)
        if teacher.residual_dtype is not None:
            parts["residual"] = (
                teacher.residual_dtype,
                lambda main: shards[id(main.main)].residual,
            )
    return parts


def _sharded(
    optimizer: Any,
    model_state: dict[str, Any],
    name: str,
    dtype: torch.dtype,
    local: Callable[[MainParameter], Tensor],
) -> dict[int, Any]:
    """Parameter number -> Megatron's description of the whole tensor, cut like the model's."""
    whole = whole_parameters(optimizer, local, dtype)
    ids = get_param_id_to_sharded_param_map(model_state, whole.keys())
    return {
        index: make_sharded_optimizer_tensor(ids[index], tensor, prefix=f"{_PREFIX}.{name}")
        for index, tensor in enumerate(whole.values())
    }


def _adam_step(policy: Policy) -> int:
    for leaf in leaf_optimizers(policy.optimizer):
        for group in leaf.optimizer.param_groups:
            for main in group["params"]:
                return int(leaf.optimizer.state[main].get("step", group.get("step", 0)))
    return 0


def _start_adam(policy: Policy, step: int) -> None:
    for main in main_parameters(policy.optimizer):
        adam = main.owner.optimizer
        moments = adam.state[main.main]
        for name in ("exp_avg", "exp_avg_sq"):
            moments.setdefault(name, torch.zeros_like(main.main.detach()))
        inner = adam.inner if isinstance(adam, HostAdam) else adam
        if isinstance(inner, torch.optim.Adam):
            # One tensor each: Adam counts every one of them up.
            moments["step"] = torch.tensor(float(step))
        else:
            for group in adam.param_groups:
                group["step"] = step
