"""Finds the architecture that a plan is about, on a machine without the model's weights too."""

import json
from pathlib import Path
from typing import Any

from checkpoint_tools.weight_map.architecture import Architecture, read_architecture
from megatron_corew.config import Config

_FACTS = Path(__file__).with_name("known_models.json")
_LAB_POLICY = Path(__file__).parents[1] / "lab" / "policy"


def architecture_of(config: Config) -> Architecture:
    """The model of ``model.path``.

    The path may be a Hugging Face folder, a config.json, a checkpoint of corew-convert, ``lab``,
    or a path that does not exist here and ends with the name of a published model.

    Raises:
        ValueError: nothing is there, and the name is not known.
    """
    path = _LAB_POLICY if config.model.path == "lab" else Path(config.model.path)
    for file in (path, path / "config.json", path / "hf" / "config.json"):
        if file.is_file():
            return read_architecture(json.loads(file.read_text(encoding="utf-8")))
    known = known_configs()
    if path.name.lower() not in known:
        raise ValueError(
            f"model.path: need a Hugging Face folder, a config.json or the name of a known model "
            f"({', '.join(sorted(known))}), got {path}. Give model.path=FOLDER/config.json."
        )
    return read_architecture(known[path.name.lower()])


def known_configs() -> dict[str, dict[str, Any]]:
    """Lower-case model name -> the keys of its published config.json that decide shapes."""
    facts = json.loads(_FACTS.read_text(encoding="utf-8"))
    return {
        name.partition("/")[2].lower(): fact["config"] for fact in facts for name in fact["models"]
    }
