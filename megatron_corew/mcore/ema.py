"""The compensated update of an exponential moving average, as one pass over memory.

Two forms with the same bits. Compiled: one kernel (C++ on a CPU, Triton on a GPU) that reads and
writes every number once. Eager: nine operations over blocks that stay in the cache, for small
models and for machines that cannot compile.
"""

import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# Elements per block of the eager form: a few blocks of float32 fit the cache.
_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 22}
# Elements per piece of a bfloat16 residual that is widened for the compiled form on a CPU.
_PIECE = 1 << 20
# Below so many elements a step gains less than a tenth of a second, and compiling costs seconds.
_WORTH_COMPILING = 1 << 26


def compiler_missing(device: torch.device) -> str | None:
    """What torch.compile lacks for this device; None: nothing."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "no C++ compiler (g++ or $CXX)"
    if device.type == "cuda" and find_spec("triton") is None:
        return "no package triton"
    return None


def compiles(elements: int, device: torch.device) -> bool:
    """Whether so many elements are worth the compiled form, and it can be had."""
    return elements >= _WORTH_COMPILING and compiler_missing(device) is None


def _in_one_pass(value: Tensor, source: Tensor, residual: Tensor, weight: Tensor) -> None:
    carried = residual.float()
    step = carried + weight * ((source - value) - carried)
    moved = value + step
    residual.copy_(step - (moved - value))
    value.copy_(moved)


@cache
def _compiled() -> "torch._dynamo.eval_frame.OptimizedModule":
    return torch.compile(_in_one_pass, dynamic=True, fullgraph=True)


class EmaUpdate:
    """Moves ``value + residual`` a share of the way to ``source``, in place.

    At the paper's last weight (1e-4, or 1e-5 in its script) a step is below half a unit in the
    last place of most values: a plain float32 average would stand still.

    Args:
        device: of the tensors.
        residual: float32 or bfloat16.
        compiled: which form; see ``compiles``.

    Source: compensated sum after Kahan; Co-rewarding-II, arXiv:2508.00410, eq. 9 to 11.
    """

    def __init__(self, device: torch.device, residual: torch.dtype, *, compiled: bool) -> None:
        self._compiled = compiled
        # Inductor stores half a vector of bfloat16 through a mask, which CPUs do slowly.
        self._widens = device.type == "cpu" and residual != torch.float32
        if compiled:
            self.scratch = torch.empty(1, _PIECE if self._widens else 0, device=device)
        else:
            self.scratch = torch.empty(3, _BLOCK[device.type], device=device)

    @torch.no_grad()
    def __call__(self, value: Tensor, source: Tensor, residual: Tensor, *, weight: float) -> None:
        """Update one tensor.

        Args:
            value: [n] float32, contiguous, written.
            source: [n] float32.
            residual: [n] float32 or bfloat16, written.
            weight: share in [0, 1].
        """
        if self._compiled and not self._widens:
            _compiled()(value, source, residual, torch.tensor(weight, device=value.device))
            return
        step = self._widened if self._compiled else self._block
        size = self.scratch.shape[1]
        for parts in zip(value.split(size), source.split(size), residual.split(size), strict=True):
            step(*parts, weight)

    def _widened(self, value: Tensor, source: Tensor, residual: Tensor, weight: float) -> None:
        wide = self.scratch[0, : len(value)].copy_(residual)
        _compiled()(value, source, wide, torch.tensor(weight))
        residual.copy_(wide)

    def _block(self, value: Tensor, source: Tensor, residual: Tensor, weight: float) -> None:
        step, moved, carried = self.scratch[:, : len(value)]
        carried.copy_(residual)
        torch.sub(source, value, out=step).sub_(carried)
        # Not one addition with a factor: that fuses its rounding on some machines only.
        step.mul_(weight).add_(carried)
        torch.add(value, step, out=moved)
        residual.copy_(step.sub_(torch.sub(moved, value, out=carried)))
        value.copy_(moved)
