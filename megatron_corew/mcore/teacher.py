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
from megatron_corew.mcore.ema import EmaUpdate, compiles
from megatron_corew.mcore.main_parameters import (
    MainParameter,
    check_coverage,
    check_mains_match,
    leaf_optimizers,
    main_parameters,
)
from megatron_corew.mcore.offload import PIECE, host_like, settle_copies

platform.redirect_torch()

from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.optimizer.optimizer import FP32Optimizer  # noqa: E402

# Elements that are held aside at a time while contents are swapped.
_CHUNK = 1 << 17


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


class Teacher:
    """A slow (or still) copy of the policy.

    Args:
        optimizer: the policy's Megatron optimizer, after its weights are loaded.
        ddp: this rank's pieces of the policy under Megatron's data parallelism.
        residual: type of the rounding residual; None: none (a teacher that never moves).
        offload: keep the teacher in host memory; it is updated on the device piece by piece.

    Raises:
        ValueError: a trained parameter has no main parameter, or one that is not float32.
        RuntimeError: the model's weights are not those of the main parameters.
    """

    def __init__(
        self, optimizer: Any, ddp: Any, *, residual: torch.dtype | None, offload: bool
    ) -> None:
        mains = main_parameters(optimizer)
        check_coverage(ddp, mains)
        check_mains_match(mains)
        self.leaves, self.updates, self.residual_dtype = leaf_optimizers(optimizer), 0, residual
        self._ddp, self._installed, self._open_graphs = ddp, False, 0
        for piece in ddp:
            piece.register_forward_hook(self._watch_graph)
        self._offload, device = offload, platform.device()

        def zeros(main: Tensor, dtype: torch.dtype) -> Tensor:
            like = main.detach()
            if offload:
                return host_like(like, dtype)
            return torch.zeros_like(like, dtype=dtype, device=device)

        self.shards = [
            Shard(
                main,
                zeros(main.main, torch.float32).copy_(main.main.detach()),
                None if residual is None else zeros(main.main, residual),
            )
            for main in mains
        ]
        held = sum(shard.value.numel() for shard in self.shards)
        self.elements = 0 if residual is None else held
        self._held = torch.empty(_CHUNK, device=device)
        self._ema = (
            None
            if residual is None
            else EmaUpdate(device, residual, compiled=compiles(held, device))
        )

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Mix a share ``weight`` of today's policy into the teacher. Local: no communication."""
        self.refuse_while_installed("update")
        self.updates += 1
        if weight == 0.0:
            return
        assert self._ema is not None, "teacher: one without a residual never moves"
        for shard in self.shards:
            assert shard.residual is not None
            parts = shard.value, shard.source.main.detach(), shard.residual
            value, source, rest = (part.view(-1) for part in parts)
            if self._offload or source.device != self._held.device:
                self._update_brought(self._ema, value, source, rest, weight)
            else:
                self._ema(value, source, rest, weight=weight)

    def _update_brought(
        self, ema: EmaUpdate, value: Tensor, source: Tensor, residual: Tensor, weight: float
    ) -> None:
        for parts in zip(*(part.split(PIECE) for part in (value, source, residual)), strict=True):
            here = [part.to(self._held.device, non_blocking=True, copy=True) for part in parts]
            ema(*here, weight=weight)
            parts[0].copy_(here[0], non_blocking=True)
            parts[2].copy_(here[2], non_blocking=True)
            # Else they would still be there when the next ones come.
            here.clear()
        settle_copies()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hold the teacher's weights in the policy's parameters; restore the policy at the end.

        Collective over the data-parallel group. Only between steps: between a forward pass and
        its backward pass gradients would be silently wrong, so that is refused. After an error
        inside the block the policy is not restored: the error ends the run, and a rank that
        restored alone would wait for the others in a gather instead of ending it.
        """
        self.refuse_while_installed("install")
        assert not self._open_graphs, "teacher: cannot install before a forward's backward pass"
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

    def refuse_while_installed(self, action: str) -> None:
        """Stop where an action would take one set of weights for the other."""
        assert not self._installed, f"teacher: cannot {action} while it is installed"

    def _watch_graph(self, _piece: Any, _inputs: Any, output: Tensor) -> None:
        """Count forward passes whose backward pass is still to come."""
        # Megatron marks a copied view as requiring a gradient even where none is recorded.
        if torch.is_grad_enabled() and output.requires_grad:
            self._open_graphs += 1
            output.register_hook(self._close_graph)

    def _close_graph(self, _gradient: Tensor) -> None:
        self._open_graphs -= 1

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
            for value, main in zip(*(part.split(_CHUNK) for part in pairs), strict=True):
                held = self._held[: len(value)].copy_(value)
                value.copy_(main)
                main.copy_(held)
