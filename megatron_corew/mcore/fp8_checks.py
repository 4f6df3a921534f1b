"""Whether this machine can compute an FP8 recipe; needs no Megatron."""

from importlib.metadata import PackageNotFoundError, version

import torch

from megatron_corew.config import PrecisionConfig
from megatron_corew.mcore import fast_paths, platform

# Recipe -> smallest compute capability, CUDA and Transformer Engine.
# Source: NVIDIA TransformerEngine, pytorch/quantization.py (check_fp8_support,
# check_fp8_block_scaling_support); Megatron-Core, fp8_utils.py (get_fp8_recipe).
_NEEDS = {
    "delayed": ((8, 9), (12, 1), (1, 0)),
    "tensorwise": ((8, 9), (12, 1), (2, 2)),
    "blockwise": ((9, 0), (12, 9), (2, 3)),
}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def check_recipe(precision: PrecisionConfig) -> None:
    """Refuse a recipe that Transformer Engine, the chip or CUDA cannot do.

    Raises:
        ValueError: what is missing, and what to do.
    """
    if not precision.transformer_engine:
        return
    recipe, instead = precision.fp8, "or set precision.fp8=emulate (slow) or off."
    if fast_paths.transformer_engine() == "absent":
        raise ValueError(
            f"precision.fp8: need Transformer Engine for {recipe}, got none. Install "
            f"transformer-engine[core-cu13] and transformer-engine-torch, {instead}"
        )
    fast_paths.check_transformer_engine()
    if not platform.has_cuda():
        raise ValueError(f"precision.fp8: need a GPU for {recipe}, got none. Use one, {instead}")
    chip, cuda, engine = _NEEDS[recipe]
    try:
        installed = version("transformer-engine")
    except PackageNotFoundError:
        installed = "0.0"
    found = {
        "compute capability": (chip, torch.cuda.get_device_capability()),
        "CUDA": (cuda, _numbers(torch.version.cuda or "0.0")),
        "Transformer Engine": (engine, _numbers(installed)),
    }
    for what, (needed, got) in found.items():
        if got < needed:
            raise ValueError(
                f"precision.fp8: need {what} {'.'.join(map(str, needed))} for {recipe}, got "
                f"{'.'.join(map(str, got))}. Choose another recipe, {instead}"
            )
