"""Optimizer and teacher in host memory: the same bits, and little on the device at a time.

Without a GPU the device is the host; what moves things between the two runs all the same.
"""

import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from megatron_corew.mcore import offload, teacher
from megatron_corew.mcore.offload import HostAdam
from megatron_corew.mcore.parallel import parallel_world
from tests.distributed.launch import run_worker
from tests.distributed.offload_worker import CASES
from tests.distributed.parts import (
    config_for,
    made_up_batch,
    policy_for,
    teacher_for,
    train_batch,
)
from tests.models import save


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("offload")
    for family in ("qwen3_tied", "qwen3_moe_untied"):
        save(family, root / family)
    return root


@pytest.fixture(scope="module")
def measured(root: Path) -> Callable[[int], dict[str, dict[str, list[int]]]]:
    """Number of processes -> case -> what was compared -> tensors that differ, tensors."""

    @cache
    def by(processes: int) -> dict[str, dict[str, list[int]]]:
        return run_worker(
            "offload_worker",
            *(str(root), str(root / f"saved_{processes}")),
            processes=processes,
            out=root / f"{processes}.json",
        )

    return by


@pytest.mark.parametrize(
    ("processes", "case"), [(count, name) for count, cases in CASES.items() for name in cases]
)
def test_training_and_resuming_with_the_state_on_the_host_gives_the_same_bits(
    measured, processes, case
):
    found = measured(processes)[case]
    assert found.keys() == {
        "trained",
        "loaded_from_hosted",
        "resumed_from_hosted",
        "loaded_from_plain",
        "resumed_from_plain",
    }
    for what, (differing, tensors) in found.items():
        assert tensors > 100, (case, what)
        assert differing == 0, (case, what)


def adam_of(class_of_adam: type, main: torch.Tensor, **knobs: float) -> HostAdam:
    return HostAdam(class_of_adam([{"params": [main]}], lr=1e-2, **knobs), [main])


def test_a_piece_never_sees_another_pieces_count_of_steps(monkeypatch):
    class CountsPerGroup(torch.optim.Optimizer):
        """As apex and Transformer Engine: one count of steps per group; moves by it."""

        def __init__(self, groups: list, lr: float) -> None:
            super().__init__(groups, {"lr": lr})

        def step(self) -> None:
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for parameter in group["params"]:
                    parameter += group["step"]

    monkeypatch.setattr(offload, "PIECE", 4)
    main = torch.zeros(10)
    main.grad = torch.ones(10)
    adam = adam_of(CountsPerGroup, main)
    adam.step()
    adam.step()
    # 1 and 2, in each of three pieces.
    assert torch.equal(main, torch.full((10,), 3.0))
    assert adam.param_groups[0]["step"] == 2


def test_main_parameters_stand_in_without_memory_and_come_back():
    main = torch.arange(6.0)
    adam = adam_of(torch.optim.AdamW, main)
    with adam.standing_in():
        assert main.shape == (6,)
        assert main.untyped_storage().nbytes() == 4
    assert torch.equal(main, torch.arange(6.0))
    # Also where the update is skipped by an error.
    with pytest.raises(RuntimeError, match="stop"), adam.standing_in():
        raise RuntimeError("stop")
    assert torch.equal(main, torch.arange(6.0))


def most_copied(monkeypatch, action) -> int:
    """Most elements that are brought to the device and there at a time while ``action`` runs."""
    largest, there, original = 0, [], torch.Tensor.to

    def to(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        nonlocal largest
        result = original(tensor, *args, **kwargs)
        if kwargs.get("copy"):
            there.append(weakref.ref(result))
            alive = [copied for one in there if (copied := one()) is not None]
            largest = max(largest, sum(copied.numel() for copied in alive))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", to)
        action()
    return largest


def test_no_more_than_a_piece_is_on_the_device_at_a_time(root, monkeypatch):
    for module in (offload, teacher):
        monkeypatch.setattr(module, "PIECE", 512)
    config = config_for(str(root / "qwen3_tied"), offload=True, dtype="bfloat16")
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        slow = teacher_for(config, policy)
        batch = train_batch(made_up_batch())
        stepped = most_copied(monkeypatch, lambda: policy.step(batch, learning_rate=1e-3))
        followed = most_copied(monkeypatch, lambda: slow.update(0.1))
    # Two moments and a main parameter; value, main parameter and residual.
    assert (stepped, followed) == (3 * 512, 3 * 512)
