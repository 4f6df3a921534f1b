"""Models and checkpoints that several files of tests convert. Nobody may change the shared ones."""

from pathlib import Path

import pytest

from checkpoint_tools import hf_to_megatron
from checkpoint_tools.megatron_writer import Layout
from tests import models
from tests.cpu.conversions import FAMILIES


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Family -> Hugging Face folder with 4 key/value heads, which four ranks can share."""
    root = tmp_path_factory.mktemp("models")
    return {family: models.save(family, root / family, kv_heads=4) for family in FAMILIES}


@pytest.fixture(scope="session")
def qwen(folders) -> Path:
    return folders["qwen2_untied"]


@pytest.fixture
def checkpoint(qwen, tmp_path) -> Path:
    hf_to_megatron.convert(qwen, tmp_path / "checkpoint", layout=Layout(tensor=2, pipeline=2))
    return tmp_path / "checkpoint"
