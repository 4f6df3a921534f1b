"""The compensated EMA update on plain tensors."""

import pytest
import torch

from megatron_corew.mcore.teacher import ema_update


def follow(value, source, *, weight, steps, residual):
    """``steps`` updates towards a fixed policy; the teacher with what rounding kept from it."""
    rest = None if residual is None else torch.zeros_like(value, dtype=residual)
    scratch = torch.empty(3, len(value))
    for _ in range(steps):
        ema_update(value, source, rest, weight=weight, scratch=scratch)
    return value.double() + (0 if rest is None else rest.double())


def test_moves_a_share_of_the_way():
    # 0 + 0.1 (1 - 0) = 0.1 and 10 + 0.1 (0 - 10) = 9.
    moved = follow(
        torch.tensor([0.0, 10.0]),
        torch.tensor([1.0, 0.0]),
        weight=0.1,
        steps=1,
        residual=torch.float32,
    )
    torch.testing.assert_close(moved, torch.tensor([0.1, 9.0]).double())


def test_three_updates_at_decay_99_percent_leave_the_known_rest():
    # teacher 1, policy 0, decay 0.99: 0.99^3 = 0.970299.
    moved = follow(torch.ones(1), torch.zeros(1), weight=0.01, steps=3, residual=torch.float32)
    assert float(moved) == pytest.approx(0.970299, abs=1e-7)


def test_weight_one_copies_the_policy():
    policy = torch.randn(50)
    moved = follow(torch.randn(50), policy, weight=1.0, steps=1, residual=torch.float32)
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
    plain = follow(start.clone(), policy, weight=weight, steps=steps, residual=None)
    assert float((plain - start.double() - wanted).norm() / wanted.norm()) > 0.3
