"""Linear layers whose operands are rounded to FP8 as Transformer Engine's block recipe does.

Every product has both operands in e4m3 with one power-of-two scale per block, accumulated in the
tensors' own precision. Rounded values are kept in float32 or bfloat16, which both hold them
exactly, so any device can run it.

| product | first operand | second operand |
|---|---|---|
| output = input weight^T | input, 1 x 128 along its width | weight, 128 x 128 |
| input gradient = gradient weight | gradient, 1 x 128 along its width | weight, 128 x 128 |
| weight gradient = gradient^T input | gradient, 128 x 1 along the tokens | input, the same |

Both directions round the original numbers, never rounded ones.

Source: DeepSeek-V3, arXiv:2412.19437, section 3.3; NVIDIA TransformerEngine,
common/recipe/__init__.py (Float8BlockScaling: E4M3 forward and backward, x and grad blocks of one
dimension, weight blocks of two, power-of-two scales) and tests/pytorch/references
(quantize_scale_calc.py, blockwise_quantizer_reference.py).

Dimension key:
    M: tokens    K: input width    N: output width
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_corew.mcore import platform

platform.redirect_torch()

from megatron.core.tensor_parallel import (  # noqa: E402
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)

BLOCK = 128
"""Numbers that share a scale, along a row or along both sides of a tile."""
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def scales(largest: Tensor) -> Tensor:
    """The factors that bring blocks into the range of e4m3: 448 / largest, down to a power of two.

    Args:
        largest: float32, the largest magnitude of each block. Zero gives 1; infinity gives 0,
            so that the block becomes NaN and the step is seen to be broken.
    """
    wanted = (_LARGEST / largest).clamp(max=torch.finfo(torch.float32).max)
    _, exponent = torch.frexp(wanted)
    power = torch.ldexp(torch.ones_like(wanted), exponent - 1)
    power = torch.where(largest.isinf(), 0.0, power)
    return torch.where(largest == 0, 1.0, power)


def _to_e4m3_and_back(blocks: Tensor, dims: tuple[int, ...]) -> Tensor:
    wide = blocks.float()
    scale = scales(wide.abs().amax(dim=dims, keepdim=True))
    rounded = (wide * scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return (rounded.float() / scale).to(blocks.dtype)


def round_rows(matrix: Tensor) -> Tensor:
    """Round a matrix in blocks of 1 x 128 along its rows; the last block may be shorter."""
    rows, width = matrix.shape
    blocks = F.pad(matrix, (0, -width % BLOCK)).view(rows, -1, BLOCK)
    return _to_e4m3_and_back(blocks, (2,)).view(rows, -1)[:, :width]


def round_tiles(matrix: Tensor) -> Tensor:
    """Round a matrix in tiles of 128 x 128; the last ones may be smaller."""
    height, width = matrix.shape
    padded = F.pad(matrix, (0, -width % BLOCK, 0, -height % BLOCK))
    tiles = padded.view(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK)
    return _to_e4m3_and_back(tiles, (1, 3)).view(padded.shape)[:height, :width]


class RoundedLinear(torch.autograd.Function):
    """output = input weight^T with all three products of training in FP8."""

    @staticmethod
    def forward(ctx: Any, input_MK: Tensor, weight_NK: Tensor) -> Tensor:
        """[M, K], [N, K] -> [M, N]."""
        ctx.save_for_backward(input_MK, weight_NK)
        return round_rows(input_MK) @ round_tiles(weight_NK).t()

    @staticmethod
    def backward(ctx: Any, gradient_MN: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Gradients of input and weight."""
        input_MK, weight_NK = ctx.saved_tensors
        by_token_NM = round_rows(gradient_MN.t().contiguous())
        by_token_KM = round_rows(input_MK.t().contiguous())
        return round_rows(gradient_MN) @ round_tiles(weight_NK), by_token_NM @ by_token_KM.t()


class _Rounded:
    """Replaces the matrix product of Megatron's parallel linear layers."""

    def _forward_impl(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        tp_group: Any,
        **_: Any,
    ) -> Tensor:
        if sequence_parallel:
            input = gather_from_sequence_parallel_region(input, group=tp_group)
        elif allreduce_dgrad:
            input = copy_to_tensor_model_parallel_region(input, group=tp_group)
        output = RoundedLinear.apply(input.flatten(0, -2), weight).unflatten(0, input.shape[:-1])
        return output if bias is None else output + bias


class RoundedColumnParallelLinear(_Rounded, ColumnParallelLinear):  # type: ignore[misc]
    """Megatron's linear cut along its output, in emulated FP8."""


class RoundedRowParallelLinear(_Rounded, RowParallelLinear):  # type: ignore[misc]
    """Megatron's linear cut along its input, in emulated FP8."""
