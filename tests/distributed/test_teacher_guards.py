"""What the teacher refuses, and what it may rely on, in one process."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megatron_corew.mcore.checkpoint import Checkpoints
from megatron_corew.mcore.main_parameters import leaf_optimizers, main_parameters
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.teacher import Teacher
from tests.distributed.parts import (
    config_for,
    made_up_batch,
    policy_for,
    teacher_for,
    train_batch,
)
from tests.models import save

FAMILIES = ("qwen3_tied", "qwen3_moe_untied")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("guards")
    for family in FAMILIES:
        save(family, root / family)
    return root


def test_weights_changed_behind_the_optimizers_back_are_refused(root):
    config = config_for(str(root / "qwen3_tied"), dtype="bfloat16")
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        changed = next(policy.module.parameters())
        with torch.no_grad():
            changed[0] += 1.0
        with pytest.raises(RuntimeError, match=r"got 1 that differ.*reload_model_params"):
            teacher_for(config, policy)
        policy.optimizer.reload_model_params()
        teacher_for(config, policy)


@pytest.mark.parametrize("action", ["update", "install", "save", "load"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_installed_teacher_is_neither_updated_nor_installed_nor_saved(
    root, tmp_path, dtype, action
):
    config = config_for(str(root / "qwen3_tied"), dtype=dtype)
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        teacher = teacher_for(config, policy)
        checkpoints = Checkpoints(tmp_path, config, policy, teacher)
        actions = {
            "update": lambda: teacher.update(0.1),
            "install": lambda: teacher.installed().__enter__(),
            "save": lambda: checkpoints.save(1),
            "load": lambda: checkpoints.load(1),
        }
        checkpoints.save(1)
        with teacher.installed(), pytest.raises(AssertionError, match="while it is installed"):
            actions[action]()


def test_optimizers_without_plain_float32_main_parameters_are_refused():
    with pytest.raises(ValueError, match="plain float32 main parameters, got SimpleNamespace"):
        leaf_optimizers(SimpleNamespace(is_stub_optimizer=False))


def test_a_main_parameter_of_another_type_is_refused(root):
    config = config_for(str(root / "qwen3_tied"), dtype="bfloat16")
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        main = main_parameters(policy.optimizer)[0].main
        main.data = main.data.bfloat16()
        with pytest.raises(ValueError, match=r"need float32 main parameters, got torch\.bfloat16"):
            teacher_for(config, policy)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_changes_parameters_only_so_a_teacher_of_them_is_whole(root, family):
    config = config_for(str(root / family))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        before = {name: tensor.clone() for name, tensor in policy.module.named_buffers()}
        weight = next(policy.module.parameters()).detach().clone()
        policy.step(train_batch(made_up_batch()), learning_rate=1e-3)
        assert not torch.equal(weight, next(policy.module.parameters()))
        after = dict(policy.module.named_buffers())
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name]), name


def test_every_pass_tells_fp8_layers_that_their_cached_weights_are_old(root, monkeypatch):
    # Transformer Engine keeps a weight's FP8 copy from the first micro-batch of a pass to its
    # last; the copy of a pass before may be of the other set of weights.
    config = config_for(str(root / "qwen3_tied"))
    with parallel_world(config.parallel, seed=0) as layout:
        policy, rollouts = policy_for(config, layout), made_up_batch()
        told = []
        monkeypatch.setattr(policy.ddp[0], "set_is_first_microbatch", lambda: told.append(1))
        teacher = teacher_for(config, policy)
        assert len(policy._plan(rollouts)) > 1
        for passes in (1, 2):
            with teacher.installed():
                policy.score(rollouts)
            assert len(told) == 2 * passes - 1
            policy.step(train_batch(rollouts), learning_rate=1e-3)
            assert len(told) == 2 * passes


def test_scoring_is_without_dropout_and_training_with_it(root):
    config = config_for(str(root / "qwen3_tied"))
    with parallel_world(config.parallel, seed=0) as layout:
        policy, rollouts = policy_for(config, layout), made_up_batch()
        modes = []
        layer = policy.module[0].decoder.layers[0]
        layer.register_forward_hook(lambda module, *_: modes.append(module.training))
        policy.score(rollouts)
        assert modes
        assert not any(modes)
        modes.clear()
        policy.step(train_batch(rollouts), learning_rate=1e-3)
        assert modes
        assert all(modes)


@pytest.mark.parametrize("moved", [True, False], ids=["moving_into_still", "still_into_moving"])
def test_a_checkpoint_of_the_other_kind_of_teacher_is_refused(root, tmp_path, moved):
    config = config_for(str(root / "qwen3_tied"))
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        moving = teacher_for(config, policy)
        still = Teacher(policy.optimizer, policy.ddp, residual=None, offload=False)
        writer, reader = (moving, still) if moved else (still, moving)
        Checkpoints(tmp_path, config, policy, writer).save(1)
        Checkpoints(tmp_path, config, policy, writer).load(1)
        with pytest.raises(ValueError, match=r"a teacher that (moves|stands still), got the other"):
            Checkpoints(tmp_path, config, policy, reader).load(1)
