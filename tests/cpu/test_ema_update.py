"""The compensated EMA update on plain tensors."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_corew.mcore import ema
from megatron_corew.mcore.ema import EmaUpdate

CPU = torch.device("cpu")


def follow(value, source, *, weight, steps, residual=torch.float32, compiled=False):
    """``steps`` updates towards a fixed policy; the teacher and what rounding kept from it."""
    rest = torch.zeros_like(value, dtype=residual)
    update = EmaUpdate(CPU, residual, compiled=compiled)
    for _ in range(steps):
        update(value, source, rest, weight=weight)
    return value.double() + rest.double()


def test_moves_a_share_of_the_way():
    # 0 + 0.1 (1 - 0) = 0.1 and 10 + 0.1 (0 - 10) = 9.
    moved = follow(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 0.0]), weight=0.1, steps=1)
    torch.testing.assert_close(moved, torch.tensor([0.1, 9.0]).double())


def test_what_rounding_kept_is_part_of_the_teacher():
    # The teacher is value 0 + residual 1; half of the way to a policy of 0 it is 0.5, all of
    # which the value can hold.
    value, rest = torch.zeros(1), torch.ones(1)
    EmaUpdate(CPU, torch.float32, compiled=False)(value, torch.zeros(1), rest, weight=0.5)
    assert (value.item(), rest.item()) == (0.5, 0.0)


def test_three_updates_at_decay_99_percent_leave_the_known_rest():
    # teacher 1, policy 0, decay 0.99: 0.99^3 = 0.970299.
    moved = follow(torch.ones(1), torch.zeros(1), weight=0.01, steps=3)
    assert float(moved) == pytest.approx(0.970299, abs=1e-7)


def test_weight_one_copies_the_policy():
    policy = torch.randn(50)
    moved = follow(torch.randn(50), policy, weight=1.0, steps=1)
    torch.testing.assert_close(moved.float(), policy)


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_at_the_smallest_weight_the_movement_is_right_within_two_percent(residual):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1 << 16, generator=generator) * 0.02
    policy = start + 2e-5
    weight, steps = 1e-5, 300
    wanted = (policy.double() - start.double()) * (1 - (1 - weight) ** steps)

    moved = follow(start.clone(), policy, weight=weight, steps=steps, residual=residual)
    error = (moved - start.double() - wanted).norm() / wanted.norm()
    assert float(error) <= 0.02

    # Why the residual is there: without it most of the movement is lost to rounding.
    plain = start.clone()
    for _ in range(steps):
        plain += weight * (policy - plain)
    assert float((plain.double() - start.double() - wanted).norm() / wanted.norm()) > 0.3


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_a_tensor_longer_than_a_block_is_updated_like_its_parts(residual):
    count = ema._BLOCK["cpu"] + 3
    value, policy = torch.randn(count), torch.randn(count)
    rest = (torch.randn(count) * 1e-8).to(residual)
    whole, kept = value.clone(), rest.clone()
    update = EmaUpdate(CPU, residual, compiled=False)
    update(whole, policy, kept, weight=0.3)
    for part in (slice(0, 1000), slice(1000, count)):
        v, r = value[part].clone(), rest[part].clone()
        update(v, policy[part], r, weight=0.3)
        assert torch.equal(whole[part], v)
        assert torch.equal(kept[part], r)


class Allocations(TorchDispatchMode):
    """Collects the memory of every result of an operation."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = storage.nbytes()
        return out


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_an_update_allocates_nothing(residual):
    count = 3 * ema._BLOCK["cpu"]
    update = EmaUpdate(CPU, residual, compiled=False)
    known = [torch.randn(count), torch.randn(count), torch.zeros(count, dtype=residual)]
    with Allocations() as allocations:
        update(*known, weight=0.3)
    ours = {t.untyped_storage().data_ptr() for t in [*known, update.scratch]}
    assert allocations.made.keys() <= ours
    assert update.scratch.nbytes <= 3 * 4 * ema._BLOCK["cpu"]


def test_small_models_and_machines_without_a_compiler_are_not_compiled(monkeypatch):
    enough = ema._WORTH_COMPILING
    monkeypatch.setattr(ema.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert ema.compiles(enough, CPU)
    assert not ema.compiles(enough - 1, CPU)
    monkeypatch.setattr(ema, "find_spec", lambda name: None)
    assert ema.compiles(enough, CPU)
    assert not ema.compiles(enough, torch.device("cuda"))
    monkeypatch.setattr(ema.shutil, "which", lambda name: None)
    assert not ema.compiles(enough, CPU)


@pytest.mark.slow
@pytest.mark.skipif(ema.compiler_missing(CPU) is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_the_compiled_form_has_the_same_bits(residual):
    for count in (1, 17, 4099, ema._PIECE + 5):
        generator = torch.Generator().manual_seed(count)
        value, policy = torch.randn(2, count, generator=generator)
        rest = (torch.randn(count, generator=generator) * 1e-8).to(residual)
        results = []
        for compiled in (False, True):
            v, r = value.clone(), rest.clone()
            update = EmaUpdate(CPU, residual, compiled=compiled)
            for weight in (0.3, 1e-5):
                update(v, policy, r, weight=weight)
            results.append((v, r))
        (eager, kept), (fused, kept_too) = results
        assert torch.equal(eager, fused)
        assert torch.equal(kept, kept_too)
