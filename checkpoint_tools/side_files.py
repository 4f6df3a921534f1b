"""The small files of a Hugging Face folder: config, generation config, tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

CONFIG_FILE = "config.json"
COPIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types that weights may be written in, as config.json spells them."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json.

    Raises:
        ValueError: there is no such folder, no config in it, or no JSON object in that.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: need a Hugging Face folder or a checkpoint, got neither. Name one."
        )
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ValueError(f"{folder}: need {CONFIG_FILE}, got none. {_hint(folder)}")
    return read_json(file)


def _hint(folder: Path) -> str:
    """What the caller may have meant."""
    if (folder / ".metadata").is_file():
        return "This is a checkpoint already, not a Hugging Face folder."
    if steps := sorted(path.name for path in folder.glob("step-*")):
        return f"Name one step, for example {steps[-1]}."
    return "Use a whole Hugging Face folder."


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: the file holds no JSON, or something else than an object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: need JSON, got: {error}. Fetch the model again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: need a JSON object, got {type(content).__name__}.")
    return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON object as transformers does."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_side_files(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Copy all side files; only the type of the weights is written anew, where it changes.

    Args:
        source: a Hugging Face folder.
        target: an existing folder.
        dtype: type of the weights that the config of ``target`` announces.
    """
    config = read_config(source)
    # Both spellings are read by transformers 5, only the longer one before it.
    spelled = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    written = config | dict.fromkeys(spelled, str(dtype).removeprefix("torch."))
    if written == config:
        shutil.copyfile(source / CONFIG_FILE, target / CONFIG_FILE)
    else:
        write_json(target / CONFIG_FILE, written)
    for name in COPIED_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
