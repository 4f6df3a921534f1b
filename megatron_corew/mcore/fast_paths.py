"""Which optional fast paths this process uses, and why not the others.

Nothing here is required. The package called ``apex`` on PyPI is another one: what counts is
NVIDIA apex's compiled extensions.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from megatron_corew.mcore import ema, platform

_ON = "on"


def transformer_engine() -> Literal["absent", "half", "complete"]:
    """How much of Transformer Engine is installed.

    Its core wheel comes without the extension for torch, which is built apart; with the core
    alone every import of Megatron-Core fails.

    Source: NVIDIA TransformerEngine, common/__init__.py (where it looks for the extension).
    """
    spec = find_spec("transformer_engine")
    if spec is None or not spec.submodule_search_locations:
        return "absent"
    root = Path(next(iter(spec.submodule_search_locations)))
    folders = (root.parent, root, root / "wheel_lib")
    found = any(any(folder.glob("transformer_engine_torch*.so")) for folder in folders)
    return "complete" if found else "half"


def check_transformer_engine() -> None:
    """Refuse a Transformer Engine that is half installed.

    Raises:
        ValueError: with what to install.
    """
    if transformer_engine() == "half":
        raise ValueError(
            "Transformer Engine: need its core and its torch extension, got the core only, with "
            "which Megatron-Core cannot be imported. Install transformer-engine-torch of the same "
            "version (pip install --no-build-isolation), or uninstall transformer-engine."
        )


def uses_transformer_engine() -> bool:
    """Whether layers are Transformer Engine's: on a GPU, where it is installed."""
    return platform.has_cuda() and transformer_engine() == "complete"


def _extension(name: str) -> bool:
    return platform.has_cuda() and find_spec(name) is not None


def fuses_weight_gradients() -> bool:
    """Whether linears add their weight gradients into the float32 buffer as they multiply.

    Megatron-Core's own linears need apex for it and refuse the setting otherwise, also beside
    Transformer Engine.
    """
    return _extension("fused_weight_gradient_mlp_cuda")


def fused_adam() -> Literal["Transformer Engine", "apex"] | None:
    """Whose fused Adam Megatron-Core takes, in its own order; None: torch's."""
    if uses_transformer_engine():
        return "Transformer Engine"
    # apex's Adam is a module of Python that loads this one.
    return "apex" if _extension("amp_C") and find_spec("apex") is not None else None


def report(teacher_elements: int) -> dict[str, str]:
    """Fast path -> ``on``, with whose it is, or ``off`` and what is missing.

    Args:
        teacher_elements: numbers that this process's teacher update moves; 0: no teacher.
    """
    gpu = "" if platform.has_cuda() else ", no GPU"
    engine, adam = transformer_engine(), fused_adam()
    device = torch.device("cuda" if platform.has_cuda() else "cpu")
    if ema.compiles(teacher_elements, device):
        update = _ON
    else:
        update = f"off: {ema.compiler_missing(device) or 'small model'}"
    return {
        "transformer_engine": _ON if uses_transformer_engine() else f"off: {engine}{gpu}",
        "fused_weight_gradients": _ON
        if fuses_weight_gradients()
        else f"off: no apex with --cuda_ext{gpu}",
        "fused_adam": f"{_ON}: {adam}"
        if adam
        else f"off: neither Transformer Engine nor apex{gpu}",
        "compiled_teacher_update": update if teacher_elements else "off: no teacher",
    }
