"""Reads Hugging Face model folders, one tensor at a time.

Only safetensors: pickled weights can run code when they are loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from checkpoint_tools.side_files import DTYPES, read_config, read_json
from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.entry import Entry, Shape

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Constants that old Llama folders keep; computed from the config here.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"
_FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_NAMED_IN_ERRORS = 3


class _Stored(NamedTuple):
    """Where a tensor is, and what the file's header says of it."""

    file: Path
    shape: Shape
    dtype: str


class HfReader:
    """A Hugging Face folder: its config, and its tensors by memory map.

    The headers of all weight files are read at once, so that a missing or cut file shows before
    any work is done. Constants computed from the config (rotary frequencies) are not listed.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder.

        Args:
            folder: holds config.json and model.safetensors, or an index with its shards.

        Raises:
            ValueError: the folder, its config or its safetensors are missing, or the architecture
                is not supported.
            RuntimeError: a weight file is cut short or does not fit the index.
        """
        self.folder = Path(folder)
        self.config = read_config(self.folder)
        self.architecture = read_architecture(self.config)
        self._stored = _read_headers(self.folder)

    def names(self) -> tuple[str, ...]:
        """Names of the stored tensors, as ordered in the files."""
        return tuple(self._stored)

    def files(self) -> dict[str, str]:
        """Tensor name -> name of the weight file that holds it, as ordered in the files."""
        return {name: stored.file.name for name, stored in self._stored.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        """Tensor name -> stored type.

        Raises:
            ValueError: a tensor is not floating point.
        """
        for name, stored in self._stored.items():
            if stored.dtype not in _FLOATS:
                raise ValueError(
                    f"{stored.file}: {name} must be floating point, got {stored.dtype}. "
                    "Use an unquantised model."
                )
        return {name: _FLOATS[stored.dtype] for name, stored in self._stored.items()}

    def common_dtype(self) -> torch.dtype:
        """The stored type of the weights, which must all have the same.

        Raises:
            ValueError: there are several.
        """
        return common_dtype(self.folder, self.dtypes().values())

    def read(self, name: str) -> Tensor:
        """Map one tensor into memory; its pages are read when they are used.

        Args:
            name: Hugging Face name.

        Returns:
            The tensor in its stored shape and dtype, on the CPU. It owns its map: nothing stays
            open or resident once it is dropped.

        Raises:
            ValueError: there is no such tensor.
        """
        if name not in self._stored:
            raise ValueError(f"{self.folder}: no tensor {name}. Use a whole model.")
        # A handle kept open would keep every page it has touched resident.
        try:
            with safe_open(self._stored[name].file, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise RuntimeError(f"{self._stored[name].file}: {name}: {error}.") from error
        return tensor

    def check_complete(self, table: Sequence[Entry]) -> None:
        """Compare the stored names, shapes and types with a table, without reading weights.

        A stored output layer of a tied model is accepted when it equals the embedding.

        Args:
            table: ``weight_table`` of this folder's architecture.

        Raises:
            ValueError: a tensor is missing, unexpected, of another shape or not floating point;
                names the first ones.
        """
        shapes = hf_shapes(table)
        stored = dict(self._stored)
        if _HEAD in stored and _HEAD not in shapes:
            self._check_tied_head()
            del stored[_HEAD]
        missing = [name for name in shapes if name not in stored]
        extra = [name for name in stored if name not in shapes]
        if missing:
            alone = missing == [_HEAD]
            hint = " tie_word_embeddings is not set in config.json." if alone else ""
            raise ValueError(
                f"{self.folder}: {first_names(missing)} missing.{hint} Use a whole "
                "model whose config.json fits its weights."
            )
        if extra:
            raise ValueError(
                f"{self.folder}: {first_names(extra)} not part of a {self.architecture.family} "
                "model. Use a model whose config.json fits its weights."
            )
        for name, shape in shapes.items():
            if stored[name].shape != shape or stored[name].dtype not in _FLOATS:
                raise ValueError(
                    f"{self.folder}: {name} must be {list(shape)} in floating point, got "
                    f"{list(stored[name].shape)} in {stored[name].dtype}. "
                    "Use a model whose config.json fits its weights."
                )

    def _check_tied_head(self) -> None:
        if not _same_numbers(self.read(_HEAD), self.read(_EMBEDDING)):
            raise ValueError(
                f"{self.folder}: config.json says tie_word_embeddings, but {_HEAD} differs from "
                f"{_EMBEDDING}. Set tie_word_embeddings to false, or remove {_HEAD}."
            )


def common_dtype(folder: Path, dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The one type that all weights of a model have.

    Raises:
        ValueError: there are several, or it is none that is written here.
    """
    types = set(dtypes)
    if len(types) == 1 and types <= set(DTYPES.values()):
        return types.pop()
    names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
    raise ValueError(
        f"{folder}: need weights of one type out of {', '.join(DTYPES)}, got {names}. "
        "Choose one (--dtype)."
    )


def has_weights(folder: Path) -> bool:
    """Whether a folder holds safetensors, not only config and tokenizer."""
    return (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()


def _read_headers(folder: Path) -> dict[str, _Stored]:
    if (folder / SINGLE_FILE).is_file():
        stored = _read_header(folder / SINGLE_FILE)
    elif (folder / INDEX_FILE).is_file():
        stored = _read_indexed(folder)
    else:
        pickled = next((file.name for file in sorted(folder.glob("*.bin"))), None)
        got = f"only the pickled {pickled}" if pickled else "none"
        how = "Load it with transformers where you trust it and call save_pretrained to get"
        raise ValueError(
            f"{folder}: need {SINGLE_FILE} or {INDEX_FILE}, got {got}. "
            + (f"{how} safetensors." if pickled else "Use a whole model.")
        )
    return {name: where for name, where in stored.items() if not name.endswith(_DERIVED_SUFFIX)}


def _read_indexed(folder: Path) -> dict[str, _Stored]:
    weight_map: Mapping[str, str] = read_json(folder / INDEX_FILE).get("weight_map", {})
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise RuntimeError(
            f"{folder / INDEX_FILE}: need weight_map from tensor names to file names, got "
            "something else. Fetch the model again."
        )
    stored: dict[str, _Stored] = {}
    for file in dict.fromkeys(weight_map.values()):
        if not (folder / file).is_file():
            raise RuntimeError(
                f"{folder / INDEX_FILE}: need {file} beside it, got none. Fetch the model again."
            )
        stored |= _read_header(folder / file)
    for name, file in weight_map.items():
        if name not in stored or stored[name].file.name != file:
            raise RuntimeError(
                f"{folder / INDEX_FILE}: need {name} in {file}, got none. Fetch the model again."
            )
    return stored


def _read_header(file: Path) -> dict[str, _Stored]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {
                name: _Stored(file, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except SafetensorError as error:
        raise RuntimeError(
            f"{file}: need a whole safetensors file, got: {error}. Fetch the model again."
        ) from error


def hf_shapes(table: Sequence[Entry]) -> dict[str, Shape]:
    """Hugging Face name -> shape of every tensor of a table, in its order."""
    return {
        name: shape
        for entry in table
        for name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True)
    }


def _same_numbers(one: Tensor, two: Tensor) -> bool:
    """Equal whatever their types, NaN included; part by part, for an embedding is large."""
    if one.shape != two.shape:
        return False
    pairs = zip(one, two, strict=True)
    return all(torch.allclose(a.double(), b.double(), 0, 0, equal_nan=True) for a, b in pairs)


def first_names(names: Sequence[str]) -> str:
    """The first few names, how many more, and the verb, for messages."""
    more = f" and {len(names) - _NAMED_IN_ERRORS} more" if len(names) > _NAMED_IN_ERRORS else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names[:_NAMED_IN_ERRORS])}{more} {verb}"
