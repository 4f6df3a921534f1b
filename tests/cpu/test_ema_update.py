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


def test_rounding_by_integers_takes_the_nearest_bfloat16_and_the_even_one_of_two():
    # bfloat16 numbers near 1 are 2^-7 apart: 1 + 2^-8 lies between 1 (even) and 1 + 2^-7 (odd).
    numbers = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 3e38])
    wanted = torch.tensor([1.0, 1 + 2**-6, 1 + 2**-7, -1.0, 3e38]).bfloat16()
    assert torch.equal((ema._rounded(numbers) >> 16).to(torch.int16), wanted.view(torch.int16))


def test_two_numbers_to_an_integer_give_the_bits_of_one_after_the_other():
    generator = torch.Generator().manual_seed(0)
    value, policy, rest = torch.randn(3, 4096, generator=generator)
    rest = (rest * torch.tensor([1e-8, -1.0]).repeat(2048)).bfloat16()
    by_pairs, carried = value.clone(), rest.clone()
    for weight in (torch.tensor(0.3), torch.tensor(1e-5)):
        ema._in_one_pass(value, policy, rest, weight)
        ema._pairs_in_one_pass(
            by_pairs.view(torch.int64), policy.view(torch.int64), carried.view(torch.int32), weight
        )
    assert torch.equal(value, by_pairs)
    assert torch.equal(rest, carried)


@pytest.mark.slow
@pytest.mark.skipif(ema.compiler_missing(CPU) is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_the_compiled_form_has_the_same_bits(residual):
    # An even and an odd number of elements, and views that start in the middle of a pair.
    for count, start in ((1, 0), (2, 0), (17, 0), (4099, 0), (4099, 1), (ema._BLOCK["cpu"] + 6, 0)):
        generator = torch.Generator().manual_seed(count)
        value, policy = torch.randn(2, count, generator=generator)
        policy = torch.cat([torch.zeros(start), policy])[start:]
        # What is carried is small; large numbers and both signs try the rounding as well.
        scale = torch.tensor([1e-8, 1.0, -1e3]).repeat(count)[:count]
        rest = (torch.randn(count, generator=generator) * scale).to(residual)
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
