"""Keeps the optimizer's state in host memory, and steps it on the device piece by piece.

Between updates the device holds neither Adam's moments nor the float32 main parameters of a
bfloat16 model. An update brings them in one piece after the other and lets the Adam that would run
without offloading step the piece: Adam treats every number by itself, so the bits are the same.

Megatron-Core's ``optimizer_cpu_offload`` is not used: it steps with torch's Adam on the host, which
rounds unlike the fused Adams of a GPU, keeps the main parameters on the device too, and refuses to
run without CUDA.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from megatron_corew.mcore import platform
from megatron_corew.mcore.main_parameters import leaf_optimizers, main_parameters

# Elements on the device at a time: 64 MB for each float32 tensor. A multiple of every vector
# width, so that a CPU's kernels treat the same numbers as the rest of a vector.
PIECE = 1 << 24


def host_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros of the tensor's shape in host memory that a GPU can copy from by itself."""
    return torch.zeros(tensor.shape, dtype=dtype, pin_memory=platform.has_cuda())


def settle_copies() -> None:
    """Wait for copies to the host: the processor may read them from here on."""
    if platform.has_cuda():
        torch.cuda.synchronize()


class HostAdam:
    """Takes the place of the Adam inside one of Megatron's optimizers.

    Args:
        adam: torch's, apex's or Transformer Engine's, before its first step.
        separate: the main parameters that are not the model's own; they move to the host.
    """

    def __init__(self, adam: Any, separate: Iterable[Tensor]) -> None:
        self.inner, self.param_groups = adam, adam.param_groups
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        for group in self.param_groups:
            for main in group["params"]:
                moments = {
                    name: host_like(main, torch.float32) for name in ("exp_avg", "exp_avg_sq")
                }
                # The others count their steps once per group.
                counter = {"step": torch.tensor(0.0)} if isinstance(adam, torch.optim.Adam) else {}
                self.state[main] = moments | counter
        self._hosts: dict[Tensor, Tensor] = {}
        for main in separate:
            self._hosts[main] = host_like(main, main.dtype).copy_(main.detach())
        self._show_mains()

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Let Megatron hang gradients on main parameters that are not on the gradients' device."""
        for main, host in self._hosts.items():
            # The shape without the memory; nobody reads the numbers before ``step`` is over.
            main.data = torch.empty((), device=platform.device()).expand(host.shape)
        try:
            yield
        finally:
            self._show_mains()

    @torch.no_grad()
    def step(self) -> None:
        """One update of everything that has a gradient."""
        for group in self.param_groups:
            counted = {}
            for main in group["params"]:
                if main.grad is not None:
                    counted = self._step_main(group, main)
            group |= counted
        settle_copies()
        # Megatron now copies the main parameters into the model.
        self._show_mains()

    def _show_mains(self) -> None:
        for main, host in self._hosts.items():
            main.data = host

    def _step_main(self, group: dict[str, Any], main: Tensor) -> dict[str, int]:
        """Step one main parameter; returns the group's count of steps, where it has one."""
        state, held = self.state[main], self._hosts.get(main)
        value, counted, step = main.detach() if held is None else held, {}, None
        parts = (state["exp_avg"], state["exp_avg_sq"], value, main.grad)
        for exp_avg, exp_avg_sq, piece, grad in zip(*map(_pieces, parts), strict=True):
            step = state["step"].clone() if "step" in state else None
            hosts = (exp_avg, exp_avg_sq) if held is None else (exp_avg, exp_avg_sq, piece)
            counted = self._step_piece(group, hosts, piece, grad, step)
        if step is not None:
            state["step"] = step
        return counted

    def _step_piece(
        self,
        group: dict[str, Any],
        hosts: tuple[Tensor, ...],
        value: Tensor,
        grad: Tensor,
        step: Tensor | None,
    ) -> dict[str, int]:
        """Bring the moments, and the value where it is the third of ``hosts``; step; write back."""
        here = [host.to(platform.device(), non_blocking=True, copy=True) for host in hosts]
        stepped = here[2] if len(here) == 3 else value
        stepped.grad = grad
        own = {"exp_avg": here[0], "exp_avg_sq": here[1]}
        # A group and a state of its own: no piece sees another one's count of steps.
        alone = group | {"params": [stepped]}
        self.inner.param_groups = [alone]
        self.inner.state = {stepped: own if step is None else own | {"step": step}}
        self.inner.step()
        for host, moved in zip(hosts, here, strict=True):
            host.copy_(moved, non_blocking=True)
        # Else this piece would still be there when the next one comes.
        self.inner.param_groups, self.inner.state = [], {}
        return {"step": alone["step"]} if "step" in alone else {}


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.view(-1).split(PIECE)


def offload(optimizer: Any) -> list[HostAdam]:
    """Move the state of a Megatron optimizer to the host, before its first step.

    Returns:
        What now steps; empty where this rank's optimizers hold nothing.
    """
    moved = []
    for leaf in leaf_optimizers(optimizer):
        separate = [main.main for main in main_parameters(leaf) if not main.aliased]
        leaf.optimizer = HostAdam(leaf.optimizer, separate)
        moved.append(leaf.optimizer)
    return moved


@contextmanager
def standing_in(adams: Iterable[HostAdam]) -> Iterator[None]:
    """``HostAdam.standing_in`` for all of them."""
    with ExitStack() as stack:
        for adam in adams:
            stack.enter_context(adam.standing_in())
        yield
