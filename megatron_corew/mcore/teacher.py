"""The EMA teacher: float32 shards beside the optimizer's main parameters, on the same ranks.

The update needs no communication, because teacher and main parameters are cut the same way. To
run or export the teacher its weights are put into the policy's own parameters and taken out
again bit for bit; there is no second model in memory.

Two kinds of parameters:
    separate: the model is bfloat16 and the main parameter another tensor. Installing lets the
        optimizer copy from the teacher's tensors instead of the mains, which are not touched.
    aliased: the model is float32 and the main parameter is the model's own (or a flat view of
        it). Installing swaps contents; while installed, the teacher's tensors hold the policy.

Source: Co-rewarding-II, arXiv:2508.00410, eq. 9 to 11; compensated sum after Kahan.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_corew.mcore import platform
from megatron_corew.mcore.main_parameters import (
    MainParameter,
    check_coverage,
    leaf_optimizers,
    main_parameters,
)

platform.redirect_torch()

from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.optimizer.optimizer import FP32Optimizer  # noqa: E402

# Elements per chunk of an update: what is read and written stays in cache on a CPU.
_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 24}


@dataclass(slots=True)
class Shard:
    """The teacher of one main parameter."""

    source: MainParameter
    """The policy's side."""
    value: Tensor
    """float32, shaped as the main parameter."""
    residual: Tensor | None
    """What rounding has kept from ``value`` so far; None: a teacher that never moves."""


def _main_groups(optimizer: Any) -> str:
    distributed = isinstance(optimizer, DistributedOptimizer)
    return "shard_fp32_from_float16_groups" if distributed else "fp32_from_float16_groups"


@torch.no_grad()
def ema_update(
    value: Tensor, source: Tensor, residual: Tensor | None, *, weight: float, scratch: Tensor
) -> None:
    """Move ``value + residual`` a share ``weight`` of the way to ``source``, in place.

    At the paper's last weight (1e-4, or 1e-5 in its script) a step is below half a unit in the
    last place of most values: a plain float32 teacher would stand still.

    Args:
        value: [n] float32, contiguous, written.
        source: [n] float32.
        residual: [n] float32 or bfloat16, written; None: plain update.
        weight: share in [0, 1].
        scratch: [3, >= n] float32 working memory.
    """
    step, moved, carried = scratch[:, : len(value)]
    if residual is None:
        value.add_(torch.sub(source, value, out=step), alpha=weight)
        return
    carried.copy_(residual)
    torch.sub(source, value, out=step).sub_(carried)
    torch.add(carried, step, alpha=weight, out=step)
    torch.add(value, step, out=moved)
    residual.copy_(step.sub_(torch.sub(moved, value, out=carried)))
    value.copy_(moved)


class Teacher:
    """A slow (or still) copy of the policy.

    Args:
        optimizer: the policy's Megatron optimizer, after its weights are loaded.
        ddp: the policy's model under Megatron's data parallelism.
        residual: type of the rounding residual; None: none (a teacher that never moves).

    Raises:
        ValueError: a trained parameter has no main parameter, or one that is not float32.
    """

    def __init__(self, optimizer: Any, ddp: Any, *, residual: torch.dtype | None) -> None:
        mains = main_parameters(optimizer)
        check_coverage(ddp, mains)
        self.leaves, self.updates, self.residual_dtype = leaf_optimizers(optimizer), 0, residual
        self._ddp, self._installed = ddp, False
        self.shards = [
            Shard(
                main,
                main.main.detach().clone(),
                None if residual is None else torch.zeros_like(main.main.detach(), dtype=residual),
            )
            for main in mains
        ]
        self._chunk = _CHUNK[platform.device().type]
        longest = max((main.main.numel() for main in mains), default=1)
        self._scratch = torch.empty(3, min(self._chunk, longest), device=platform.device())

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Mix a share ``weight`` of today's policy into the teacher. Local: no communication."""
        self._refuse_while_installed("update")
        self.updates += 1
        if weight == 0.0:
            return
        for shard in self.shards:
            parts = [shard.value.view(-1), shard.source.main.detach().view(-1)]
            rests = shard.residual.view(-1).split(self._chunk) if shard.residual is not None else []
            for index, (value, main) in enumerate(
                zip(*(part.split(self._chunk) for part in parts), strict=True)
            ):
                residual = rests[index] if rests else None
                ema_update(value, main, residual, weight=weight, scratch=self._scratch)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hold the teacher's weights in the policy's parameters; restore the policy at the end.

        Collective over the data-parallel group. Only between steps: between a forward pass and
        its backward pass gradients would be silently wrong. After an error inside the block the
        policy is not restored: the error ends the run, and a rank that restored alone would wait
        for the others in a gather instead of ending it.
        """
        self._refuse_while_installed("install")
        with torch.no_grad():
            self._settle_gathers()
            flags = [group.param_gather_dispatched for group in self._bucket_groups()]
            self._installed = True
            self._copy_to_model(teacher=True)
        yield
        with torch.no_grad():
            self._settle_gathers()
            self._copy_to_model(teacher=False)
            # False means "gather before the next forward" and must stay so.
            for group, flag in zip(self._bucket_groups(), flags, strict=True):
                group.param_gather_dispatched = flag
            self._installed = False

    def _refuse_while_installed(self, action: str) -> None:
        assert not self._installed, f"teacher: cannot {action} while it is installed"

    def _bucket_groups(self) -> list[Any]:
        if not any(isinstance(leaf, DistributedOptimizer) for leaf in self.leaves):
            return []
        return list(self._ddp.bucket_groups + self._ddp.expert_parallel_bucket_groups)

    def _settle_gathers(self) -> None:
        # With a gather in flight, start_param_sync(force_sync=True) waits and gathers nothing.
        for group in self._bucket_groups():
            if group.param_gather_handle is not None:
                group.param_gather_handle.wait()
                group.param_gather_handle = None

    def _copy_to_model(self, *, teacher: bool) -> None:
        self._swap_aliased()
        values = iter([shard.value for shard in self.shards if not shard.source.aliased])
        for leaf in self.leaves:
            if isinstance(leaf, FP32Optimizer):
                continue
            name = _main_groups(leaf)
            mains = getattr(leaf, name)
            if teacher:
                setattr(leaf, name, [[next(values) for _ in group] for group in mains])
            try:
                leaf._copy_main_params_to_model_params()
            finally:
                setattr(leaf, name, mains)
        if self._bucket_groups():
            self._ddp.start_param_sync(force_sync=True)

    def _swap_aliased(self) -> None:
        for shard in self.shards:
            if not shard.source.aliased:
                continue
            pairs = (shard.value.view(-1), shard.source.main.detach().view(-1))
            for value, main in zip(*(part.split(self._chunk) for part in pairs), strict=True):
                held = self._scratch[0, : len(value)].copy_(value)
                value.copy_(main)
                main.copy_(held)
