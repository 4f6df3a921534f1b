"""What the tests of conversions share."""

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests import models

FAMILIES = (*models.FAMILIES, *models.MIXTURES)


def contents_of_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def changed(source: Path, target: Path, change) -> Path:
    """A copy of a model with its dict of weights changed."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def no_traces(folder: Path, *known: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(known)
