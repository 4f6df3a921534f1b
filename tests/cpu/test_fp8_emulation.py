"""Linear layers in emulated FP8, on plain tensors."""

import math

import pytest
import torch

from megatron_corew.mcore.fp8_emulation import (
    BLOCK,
    RoundedLinear,
    round_rows,
    round_tiles,
    scales,
)


def test_a_scale_is_448_over_the_largest_rounded_down_to_a_power_of_two():
    # 448 -> 1; 448/449 < 1 -> 1/2; 448/3 = 149.3 -> 128; 448/7 = 64 exactly; 448/0.001 = 448,000
    # -> 2^18 = 262,144.
    largest = torch.tensor([448.0, 449.0, 3.0, 7.0, 0.001])
    assert scales(largest).tolist() == [1.0, 0.5, 128.0, 64.0, 262144.0]


def test_blocks_of_zeros_and_of_tiny_numbers_have_finite_scales():
    assert scales(torch.tensor([0.0])).tolist() == [1.0]
    # 448 / 2^-149 overflows: the largest power of two that float32 has.
    assert scales(torch.tensor([2.0**-149])).tolist() == [2.0**127]


def test_numbers_are_rounded_to_three_bits_after_the_first_at_the_scale_of_their_block():
    # Largest 3: scale 128. 3 * 128 = 384 = 1.5 * 2^8, exact. 1.1 * 128 = 140.8 = 1.1 * 2^7, whose
    # neighbours are 136 and 144: 144 / 128 = 1.125. 0.3 * 128 = 38.4: 36 or 40 -> 40: 0.3125.
    # 1e-5 * 128 = 0.00128; the step of the smallest numbers is 2^-9 = 0.00195 -> 2^-9 / 128.
    row = torch.zeros(1, BLOCK)
    row[0, :4] = torch.tensor([-3.0, 1.1, 0.3, 1e-5])
    assert round_rows(row)[0, :5].tolist() == [-3.0, 1.125, 0.3125, 2.0**-16, 0.0]


def test_a_tie_goes_to_the_even_number():
    # Largest 448: scale 1. Between 16 and 32 the step is 2: 17 lies between 16 (even) and 18.
    row = torch.tensor([[448.0, 17.0, 19.0]])
    assert round_rows(row).tolist() == [[448.0, 16.0, 20.0]]


def test_rows_have_a_scale_for_every_128_numbers_and_tiles_one_for_both_sides():
    # 1e-4 beside 448 is below half the smallest step (2^-9) and vanishes; in a block of its own
    # it is kept to 3 bits.
    matrix = torch.full((2, 2 * BLOCK), 1e-4)
    matrix[0, 0] = 448.0
    by_rows, by_tiles = round_rows(matrix), round_tiles(matrix)
    assert (by_rows[0, 1:BLOCK] == 0).all()
    assert by_rows[0, BLOCK:].tolist() == pytest.approx([1e-4] * BLOCK, rel=1 / 16)
    assert by_rows[1].tolist() == pytest.approx([1e-4] * 2 * BLOCK, rel=1 / 16)
    assert (by_tiles[:, 1:BLOCK] == 0).all()
    assert by_tiles[:, BLOCK:].flatten().tolist() == pytest.approx([1e-4] * 2 * BLOCK, rel=1 / 16)
    tall = torch.full((BLOCK + 1, 1), 1e-4)
    tall[0, 0] = 448.0
    assert (round_tiles(tall)[1:BLOCK] == 0).all()
    assert round_tiles(tall)[BLOCK:].tolist() == [[pytest.approx(1e-4, rel=1 / 16)]]


@pytest.mark.parametrize("rounding", [round_rows, round_tiles])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_idempotent_and_within_a_sixteenth(rounding, dtype):
    matrix = torch.randn(130, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    once = rounding(matrix)
    assert once.dtype == dtype
    assert once.shape == matrix.shape
    assert torch.equal(rounding(once), once)
    # Half a step is 1/16 of a normal number; the smallest normal number is 2^-6 of at most 448.
    error = (once.float() - matrix.float()).abs()
    assert (error <= matrix.float().abs() / 16 + 2.0**-10).all()


def test_a_broken_number_breaks_its_block_only():
    row = torch.ones(1, 2 * BLOCK)
    row[0, 3] = math.inf
    rounded = round_rows(row)
    assert rounded[0, 3].isnan()
    assert (rounded[0, BLOCK:] == 1).all()


def gradients(linear, inputs, weight, gradient):
    x, w = inputs.clone().requires_grad_(), weight.clone().requires_grad_()
    out = linear(x, w)
    out.backward(gradient)
    return out.detach(), x.grad, w.grad


def test_each_product_rounds_its_operands_along_its_own_sum():
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(140, 200, generator=generator) for _ in range(2))
    g = torch.randn(140, 140, generator=generator)
    out, dx, dw = gradients(RoundedLinear.apply, x, w, g)
    torch.testing.assert_close(out, round_rows(x) @ round_tiles(w).t())
    torch.testing.assert_close(dx, round_rows(g) @ round_tiles(w))
    torch.testing.assert_close(dw, round_rows(g.t()) @ round_rows(x.t()).t())


def test_results_are_close_to_the_exact_ones_as_rounding_predicts():
    # A value's rounding error is uniform in its step: a relative error of about 0.026 (rms) per
    # operand, so 0.026 * sqrt(2) = 0.037 for a sum of products of independent numbers.
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.randn(256, 384, generator=generator) for _ in range(2))
    g = torch.randn(256, 256, generator=generator)
    exact = gradients(torch.nn.functional.linear, x, w, g)
    rounded = gradients(RoundedLinear.apply, x, w, g)
    for name, a, b in zip(("output", "input", "weight"), exact, rounded, strict=True):
        error = float((a - b).norm() / a.norm())
        assert error == pytest.approx(0.037, abs=0.006), name


def test_training_follows_the_exact_loss_curve():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(128, 32, generator=generator)
    start = [torch.randn(*shape, generator=generator) / 8 for shape in ((48, 32), (8, 48))]
    wanted = torch.tanh(inputs @ torch.randn(32, 8, generator=generator) / 6)

    def train(linear):
        weights = [w.clone().requires_grad_() for w in start]
        adam, losses = torch.optim.Adam(weights, lr=1e-2), []
        for _ in range(50):
            hidden = torch.relu(linear(inputs, weights[0]))
            loss = (linear(hidden, weights[1]) - wanted).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    exact, rounded = train(torch.nn.functional.linear), train(RoundedLinear.apply)
    assert rounded[-1] < 0.1 * rounded[0]
    assert not torch.equal(exact, rounded)
    # FP8 ends on a floor of its own noise, far below the loss that was taken away.
    assert (exact - rounded).abs().max() < 0.02 * exact[0]


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU with FP8",
)
@pytest.mark.parametrize("shape", [(256, 384), (128, 256)])
def test_rounding_equals_that_of_transformer_engine(shape):
    te = pytest.importorskip("transformer_engine_torch")
    blockwise = pytest.importorskip("transformer_engine.pytorch.tensor.float8_blockwise_tensor")
    matrix = torch.randn(*shape, device="cuda")
    for dims, rounding in ((1, round_rows), (2, round_tiles)):
        quantizer = blockwise.Float8BlockQuantizer(
            fp8_dtype=te.DType.kFloat8E4M3,
            rowwise=True,
            columnwise=False,
            force_pow_2_scales=True,
            amax_epsilon=0.0,
            block_scaling_dim=dims,
        )
        assert torch.equal(quantizer(matrix).dequantize(), rounding(matrix))
