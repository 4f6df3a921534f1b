"""Lets Megatron-Core run without CUDA: redirects the few CUDA calls that it makes to the CPU.

Nothing is changed where CUDA is present. Each redirection acts only on callers inside
``megatron/core``; everybody else gets torch as it is. In record mode every redirected call site
is kept, so that an upgrade of Megatron-Core shows what it newly reaches for.

``redirect_torch`` comes before the first import of megatron, ``redirect_megatron`` after it.
"""

import functools
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

_CPU = torch.device("cpu")
_INSIDE = "/megatron/core/"
# Modules that create tensors with device="cuda", and the factories they use. They get a namespace
# of their own: wrapping torch.tensor for everybody would break torch's device contexts, which know
# factories by identity (transformers then loads rotary frequencies from unset memory).
_FACTORY_MODULES = (
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.optimizer.optimizer",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.utils",
)
_FACTORIES = ("tensor", "zeros", "ones")

_GPU_ADVICE = r".*(Apex is|Transformer Engine|CUDA_DEVICE_MAX_CONNECTIONS|cuda_graph_scope)"
_CHECKPOINT_MODULES = r"(megatron\.core\.dist_checkpointing|torch\.distributed\.checkpoint)\."

_sites: defaultdict[str, set[str]] = defaultdict(set)
_state = {"redirected": False, "recording": False}


def has_cuda() -> bool:
    """Whether a CUDA device is present; nothing is redirected then."""
    return torch.cuda.is_available()


def device() -> torch.device:
    """The device that this process trains on."""
    return torch.device("cuda", torch.cuda.current_device()) if has_cuda() else _CPU


def record() -> None:
    """Keep the Megatron-Core call sites of every redirection from now on."""
    _state["recording"] = True


def recorded_sites() -> dict[str, list[str]]:
    """Redirected calls, each with its sorted ``file:line`` sites in Megatron-Core."""
    return {what: sorted(sites) for what, sites in _sites.items()}


def _called_from_megatron(what: str) -> bool:
    frame = sys._getframe(2)
    where = frame.f_code.co_filename
    if _INSIDE not in where:
        return False
    if _state["recording"]:
        _sites[what].add(f"{where.split(_INSIDE)[1]}:{frame.f_lineno}")
    return True


def _redirect_call(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _called_from_megatron(f"{getattr(owner, '__name__', owner)}.{name}"):
            return replacement(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, call)


def _redirect_type_name() -> None:
    original = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        # Megatron-Core sorts parameters by names like "torch.cuda.FloatTensor".
        if not args and isinstance(answer, str) and _called_from_megatron("Tensor.type()"):
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    torch.Tensor.type = type_name  # type: ignore[assignment, method-assign]


def _splits_on_host(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """The part of the token dispatcher that copies its counts to the host on a stream of its own.

    Here they are on the host; only the exchange's splits must become plain numbers.
    """
    if point == dispatcher.cuda_dtoh_point:
        for name in ("input_splits", "output_splits"):
            splits = getattr(dispatcher, name)
            setattr(dispatcher, name, None if splits is None else splits.tolist())
    return tokens_per_expert


class _Torch(ModuleType):
    """torch as a Megatron-Core module sees it: its factories make CPU tensors."""

    def __init__(self, where: str) -> None:
        super().__init__("torch")
        for name in _FACTORIES:
            setattr(self, name, _cpu_factory(name, where))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _cpu_factory(name: str, where: str) -> Callable[..., torch.Tensor]:
    original = getattr(torch, name)

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "cuda":
            if _state["recording"]:
                line = sys._getframe(1).f_lineno
                _sites[f"torch.{name}(device='cuda')"].add(f"{where}:{line}")
            kwargs["device"] = _CPU
        return original(*args, **kwargs)

    return create


def redirect_torch() -> None:
    """Redirect the CUDA calls of Megatron-Core in torch; does nothing with CUDA, or twice."""
    if has_cuda() or _state["redirected"]:
        return
    _state["redirected"] = True
    # Advice about kernels and environment variables that only a GPU has a use for.
    warnings.filterwarnings("ignore", message=_GPU_ADVICE, category=UserWarning)
    # Megatron-Core's checkpoints still use torch's older sharded tensors.
    warnings.filterwarnings("ignore", category=FutureWarning, module=_CHECKPOINT_MODULES)
    _redirect_call(torch.cuda, "current_device", lambda: _CPU)
    _redirect_call(torch.cuda, "synchronize", lambda *_, **__: None)
    _redirect_call(torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state())
    # torch's own setter on a machine without CUDA only queues the seed for later.
    _redirect_call(torch.cuda, "manual_seed", torch.default_generator.manual_seed)
    _redirect_call(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)
    _redirect_type_name()


def redirect_megatron() -> None:
    """Give Megatron-Core the CPU's factories, generator and streams; does nothing with CUDA."""
    if has_cuda():
        return
    for name in _FACTORY_MODULES:
        module = import_module(name)
        module.torch = _Torch(name)  # type: ignore[attr-defined]
    random = import_module("megatron.core.tensor_parallel.random")
    # These two reach into torch.cuda's generators, which a machine without CUDA does not have.
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()  # type: ignore[attr-defined]
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)  # type: ignore[attr-defined]
    dispatcher = import_module("megatron.core.transformer.moe.token_dispatcher")
    all_to_all = dispatcher.MoEAlltoAllTokenDispatcher
    # Any object keeps it from making a CUDA stream, which is used in the replaced method only.
    all_to_all.cuda_dtoh_stream = _CPU
    all_to_all._maybe_dtoh_and_synchronize = _splits_on_host
