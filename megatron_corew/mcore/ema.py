"""The compensated update of an exponential moving average, as one pass over memory.

Two forms with the same bits. Compiled: one kernel (C++ on a CPU, Triton on a GPU) that reads and
writes every number once. Eager: nine operations over blocks that stay in the cache, for small
models and for machines that cannot compile.
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# Elements per block of the eager form: a few blocks of float32 fit the cache.
_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 22}
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


def _moved(value: Tensor, source: Tensor, carried: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The new value, and what rounding kept from it."""
    step = carried + weight * ((source - value) - carried)
    moved = value + step
    return moved, step - (moved - value)


def _in_one_pass(value: Tensor, source: Tensor, residual: Tensor, weight: Tensor) -> None:
    moved, rest = _moved(value, source, residual.float(), weight)
    residual.copy_(rest)
    value.copy_(moved)


def _pairs_in_one_pass(value: Tensor, source: Tensor, residual: Tensor, weight: Tensor) -> None:
    """The same for a bfloat16 residual, two numbers to an integer.

    Inductor's vectors are as wide as float32; for half as wide bfloat16 it loads and stores
    through masks, which CPUs do slowly. Whole words it does not.

    Args:
        value: int64, two float32.
        source: int64, two float32.
        residual: int32, two bfloat16.
        weight: float32.
    """
    (low, high), (source_low, source_high) = _halves(value), _halves(source)
    low, low_rest = _moved(low, source_low, (residual << 16).view(torch.float32), weight)
    high, high_rest = _moved(high, source_high, (residual & -(1 << 16)).view(torch.float32), weight)
    residual.copy_(((_rounded(low_rest) >> 16) & 0xFFFF) | (_rounded(high_rest) & -(1 << 16)))
    low_word, high_word = (part.view(torch.int32).to(torch.int64) for part in (low, high))
    value.copy_((high_word << 32) | (low_word & 0xFFFFFFFF))


def _halves(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """The float32 numbers in the low and the high half of int64."""
    low, high = (pairs & 0xFFFFFFFF).to(torch.int32), (pairs >> 32).to(torch.int32)
    return low.view(torch.float32), high.view(torch.float32)


def _rounded(number: Tensor) -> Tensor:
    """A finite float32 whose upper half is the nearest bfloat16, ties to even; as int32."""
    bits = number.view(torch.int32)
    return bits + 0x7FFF + ((bits >> 16) & 1)


@cache
def _compiled(form: Callable[..., None]) -> Callable[..., None]:
    return torch.compile(form, dynamic=True, fullgraph=True)


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
        self._by_pairs = compiled and device.type == "cpu" and residual != torch.float32
        in_blocks = self._by_pairs or not compiled
        self.scratch = torch.empty(3, _BLOCK[device.type] if in_blocks else 0, device=device)

    @torch.no_grad()
    def __call__(self, value: Tensor, source: Tensor, residual: Tensor, *, weight: float) -> None:
        """Update one tensor.

        Args:
            value: [n] float32, contiguous, written.
            source: [n] float32.
            residual: [n] float32 or bfloat16, written.
            weight: share in [0, 1].
        """
        tensors = (value, source, residual)
        done = self._compiled_part(tensors, weight) if self._compiled else 0
        if done < len(value):
            size = self.scratch.shape[1]
            for parts in zip(*(t[done:].split(size) for t in tensors), strict=True):
                self._block(*parts, weight)

    def _compiled_part(self, tensors: tuple[Tensor, Tensor, Tensor], weight: float) -> int:
        """Update as many numbers from the first on as the compiled form can; returns how many."""
        factor = torch.tensor(weight, device=tensors[0].device)
        if not self._by_pairs:
            _compiled(_in_one_pass)(*tensors, factor)
            return len(tensors[0])
        if done := _in_pairs(tensors):
            words = (torch.int64, torch.int64, torch.int32)
            pairs = (t[:done].view(word) for t, word in zip(tensors, words, strict=True))
            _compiled(_pairs_in_one_pass)(*pairs, factor)
        return done

    def _block(self, value: Tensor, source: Tensor, residual: Tensor, weight: float) -> None:
        step, moved, carried = self.scratch[:, : len(value)]
        carried.copy_(residual)
        torch.sub(source, value, out=step).sub_(carried)
        # Not one addition with a factor: that fuses its rounding on some machines only.
        step.mul_(weight).add_(carried)
        torch.add(value, step, out=moved)
        residual.copy_(step.sub_(torch.sub(moved, value, out=carried)))
        value.copy_(moved)


def _in_pairs(tensors: tuple[Tensor, ...]) -> int:
    """How many numbers from the first on can be taken two at a time.

    A view that starts in the middle of a pair has none; Megatron's shards start at multiples
    of 64.
    """
    starts_even = all(tensor.storage_offset() % 2 == 0 for tensor in tensors)
    return len(tensors[0]) // 2 * 2 if starts_even else 0
