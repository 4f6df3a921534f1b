"""A model's weights by Hugging Face name, whichever of the two formats keeps them."""

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_folder import MegatronReader
from checkpoint_tools.megatron_index import is_megatron_folder
from checkpoint_tools.weight_map.architecture import Architecture
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.table import weight_table


class Source(Protocol):
    """What both formats offer."""

    folder: Path
    config_folder: Path
    config: dict[str, Any]
    architecture: Architecture
    table: tuple[Entry, ...]

    def read(self, entry: Entry) -> dict[str, Tensor]:
        """The Hugging Face tensors of one row of ``table``."""
        ...


class HfSource:
    """A Hugging Face folder as a source."""

    def __init__(self, folder: Path) -> None:
        """Open a folder and check that it is complete.

        Raises:
            ValueError, RuntimeError: as HfReader does.
        """
        self.reader = HfReader(folder)
        self.folder = self.config_folder = folder
        self.config, self.architecture = self.reader.config, self.reader.architecture
        self.table = weight_table(self.architecture)
        self.reader.check_complete(self.table)

    def read(self, entry: Entry) -> dict[str, Tensor]:
        """The tensors of one row of ``table``, by memory map."""
        return {name: self.reader.read(name) for name in entry.hf_names}


def open_source(
    folder: Path, *, config_folder: Path | None = None, teacher: bool = False
) -> Source:
    """Open a model of either format.

    Args:
        folder: a Hugging Face folder or a distributed checkpoint.
        config_folder: Hugging Face folder with the config of a checkpoint that keeps none.
        teacher: of a checkpoint, the teacher's weights.

    Raises:
        ValueError, RuntimeError: it is neither, or not a sound one.
    """
    if is_megatron_folder(folder):
        return MegatronReader(folder, config_folder=config_folder, teacher=teacher)
    return HfSource(folder)
