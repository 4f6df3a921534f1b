"""Hands a conversion to NVIDIA's Megatron-Bridge, for families that have no table here.

Megatron-Bridge needs Transformer Engine and a GPU's build of it, so it is never a dependency.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from checkpoint_tools.partial_folder import PartialFolder


def hf_to_megatron(hf_folder: Path, out: Path, *, overwrite: bool) -> None:
    """Convert with AutoBridge.import_ckpt.

    Args:
        hf_folder: the source.
        out: Megatron-Bridge's checkpoint folder to write.
        overwrite: replace ``out`` if it exists.

    Raises:
        RuntimeError: Megatron-Bridge is not installed.
        ValueError: ``out`` exists.

    Source: megatron.bridge, models/conversion/auto_bridge.py.
    """
    bridge = _auto_bridge()
    partial = PartialFolder(out, num_bytes=_size(hf_folder), overwrite=overwrite, own_files=())
    try:
        bridge.import_ckpt(str(hf_folder), str(partial.path))
        partial.publish()
    finally:
        partial.discard()


def megatron_to_hf(checkpoint: Path, out: Path, *, like: Path | None, overwrite: bool) -> None:
    """Convert with AutoBridge.export_ckpt.

    Args:
        checkpoint: a checkpoint of Megatron-Bridge.
        out: Hugging Face folder to write.
        like: Hugging Face folder of the model; Megatron-Bridge cannot do without.
        overwrite: replace ``out`` if it exists.

    Raises:
        RuntimeError: Megatron-Bridge is not installed.
        ValueError: ``like`` is missing, or ``out`` exists.

    Source: megatron.bridge, models/conversion/auto_bridge.py.
    """
    if like is None:
        raise ValueError("--like: need the model's Hugging Face folder with megatron-bridge.")
    bridge = _auto_bridge()
    partial = PartialFolder(out, num_bytes=_size(like), overwrite=overwrite, own_files=())
    try:
        bridge.from_hf_pretrained(str(like)).export_ckpt(str(checkpoint), str(partial.path))
        partial.publish()
    finally:
        partial.discard()


def refuse_options(*given: object) -> None:
    """Refuse what Megatron-Bridge would not be told of.

    Args:
        given: anything true stands for an option in use.

    Raises:
        ValueError: an option is in use.
    """
    if any(given):
        raise ValueError(
            "--backend megatron-bridge: need no option but --like and --overwrite, got others, "
            "which it does not know. Leave them out."
        )


def is_installed() -> bool:
    """Whether Megatron-Bridge and the Transformer Engine that it imports are there."""
    # find_spec raises for a child of a missing parent; megatron-core has the parent.
    return find_spec("megatron.bridge") is not None and find_spec("transformer_engine") is not None


def _auto_bridge() -> Any:
    if not is_installed():
        raise RuntimeError(
            "--backend megatron-bridge: need the packages megatron-bridge and transformer-engine, "
            "got neither or one. Install both, or leave --backend out."
        )
    from megatron.bridge import AutoBridge

    return AutoBridge


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
