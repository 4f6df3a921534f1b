"""Reads and writes Hugging Face model folders, one tensor at a time.

Only safetensors: pickled weights can run code when they are loaded.
"""

import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_tools.weight_map.architecture import read_architecture
from checkpoint_tools.weight_map.entry import Entry, Shape
from checkpoint_tools.weight_map.table import weight_table

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
COPIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Constants that old Llama folders keep; computed from the config here.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"
_FLOATS = ("F64", "F32", "F16", "BF16")
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
        self.config = _read_config(self.folder)
        self.architecture = read_architecture(self.config)
        self._stored = _read_headers(self.folder)

    def names(self) -> tuple[str, ...]:
        """Names of the stored tensors, as ordered in the files."""
        return tuple(self._stored)

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
            raise ValueError(f"{self.folder}: no tensor {name}. Set model.path to a whole model.")
        # A handle kept open would keep every page it has touched resident.
        with safe_open(self._stored[name].file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
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
        shapes = _shapes(table)
        stored = dict(self._stored)
        if _HEAD in stored and _HEAD not in shapes:
            self._check_tied_head()
            del stored[_HEAD]
        missing = [name for name in shapes if name not in stored]
        extra = [name for name in stored if name not in shapes]
        if missing:
            hint = " tie_word_embeddings is not set in config.json." if _HEAD in missing else ""
            raise ValueError(
                f"{self.folder}: {_first(missing)} missing.{hint} Set model.path to a whole model "
                "whose config.json fits its weights."
            )
        if extra:
            raise ValueError(
                f"{self.folder}: {_first(extra)} not part of a {self.architecture.family} model. "
                "Set model.path to a model whose config.json fits its weights."
            )
        for name, shape in shapes.items():
            if stored[name].shape != shape or stored[name].dtype not in _FLOATS:
                raise ValueError(
                    f"{self.folder}: {name} must be {list(shape)} in floating point, got "
                    f"{list(stored[name].shape)} in {stored[name].dtype}. "
                    "Set model.path to a model whose config.json fits its weights."
                )

    def _check_tied_head(self) -> None:
        if not torch.equal(self.read(_HEAD), self.read(_EMBEDDING)):
            raise ValueError(
                f"{self.folder}: config.json says tie_word_embeddings, but {_HEAD} differs from "
                f"{_EMBEDDING}. Set tie_word_embeddings to false, or remove {_HEAD}."
            )


class HfWriter:
    """Writes a Hugging Face folder tensor by tensor, with at most one shard in memory.

    Everything goes to a hidden folder beside the target, which gets the target's name when all is
    there. As a context manager it finishes on success, unless that was done, and clears away on an
    error.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        source_folder: str | Path,
        dtype: torch.dtype,
        shard_bytes: float = 5e9,
        overwrite: bool = False,
    ) -> None:
        """Start a folder.

        Args:
            folder: the target.
            source_folder: where config, generation config and tokenizer come from.
            dtype: type of the written weights.
            shard_bytes: a weight file is closed before it grows beyond this, in bytes.
            overwrite: replace an existing target at the end.

        Raises:
            ValueError: the target exists, or the source has no supported config.
        """
        self.folder = Path(folder).absolute()
        self._source = Path(source_folder)
        self._config = _read_config(self._source)
        self._missing = _shapes(weight_table(read_architecture(self._config)))
        self._dtype = dtype
        self._shard_bytes = shard_bytes
        self._overwrite = overwrite
        self._refuse_existing()
        self._shard: dict[str, Tensor] = {}
        self._shards: list[tuple[str, ...]] = []
        self._total_bytes = 0
        self._partial = _hidden_sibling(self.folder, "writing")
        self._partial.mkdir(parents=True)

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor; it is copied, so the caller may change it afterwards.

        Args:
            name: Hugging Face name.
            tensor: any device, dtype and layout.

        Raises:
            ValueError: the name is unknown or was added before, or the shape is wrong.
        """
        shape = self._missing.get(name)
        if shape is None or shape != tuple(tensor.shape):
            needed = f"of shape {list(shape)}" if shape else "in the source's model, and only once"
            raise ValueError(
                f"{self.folder}: need each tensor {needed}, got {name} of {list(tensor.shape)}."
            )
        own = tensor.detach().to(
            "cpu", self._dtype, copy=True, memory_format=torch.contiguous_format
        )
        if self._shard and _num_bytes(self._shard) + own.nbytes > self._shard_bytes:
            self._write_shard()
        self._shard[name] = own
        del self._missing[name]

    def finish(self) -> Path:
        """Write what is left and give the folder its name.

        Returns:
            The finished folder.

        Raises:
            ValueError: tensors have not been added, or the target has appeared meanwhile.
        """
        if self._missing:
            raise ValueError(f"{self.folder}: {_first(list(self._missing))} not added.")
        self._write_shard()
        self._name_shards()
        config = dict(self._config)
        # Both spellings are read by transformers 5, only the longer one before it.
        spelled = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
        config |= dict.fromkeys(spelled, str(self._dtype).removeprefix("torch."))
        _write_json(self._partial / "config.json", config)
        for name in COPIED_FILES:
            if (self._source / name).is_file():
                shutil.copyfile(self._source / name, self._partial / name)
        self._publish()
        return self.folder

    def discard(self) -> None:
        """Remove what has been written; the target is left as it was."""
        self._shard.clear()
        shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self) -> Self:
        """Nothing to do: the writer is open from the start."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish, or clear away after an error."""
        try:
            if kind is None and self._partial.exists():
                self.finish()
        finally:
            self.discard()

    def _write_shard(self) -> None:
        file = self._partial / f"{len(self._shards)}.safetensors"
        save_file(self._shard, file, metadata={"format": "pt"})
        # safetensors makes files for their owner only; the folder's other files are for all.
        file.chmod(0o644)
        self._shards.append(tuple(self._shard))
        self._total_bytes += _num_bytes(self._shard)
        self._shard.clear()

    def _name_shards(self) -> None:
        """Shards are named by their number of all shards, which is known only at the end."""
        count = len(self._shards)
        if count == 1:
            (self._partial / "0.safetensors").rename(self._partial / SINGLE_FILE)
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards):
            file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            (self._partial / f"{number}.safetensors").rename(self._partial / file)
            weight_map |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        _write_json(self._partial / INDEX_FILE, index)

    def _publish(self) -> None:
        self._refuse_existing()
        if not self.folder.exists():
            self._partial.rename(self.folder)
            return
        old = _hidden_sibling(self.folder, "replaced")
        self.folder.rename(old)
        self._partial.rename(self.folder)
        shutil.rmtree(old)

    def _refuse_existing(self) -> None:
        if self.folder.exists() and not self._overwrite:
            raise ValueError(
                f"{self.folder}: need a folder that does not exist yet, got an existing one. "
                "Choose another name, or overwrite it (--overwrite)."
            )


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: need a Hugging Face model folder, got none. Set model.path.")
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(
            f"{folder}: need config.json, got none. Set model.path to a whole Hugging Face folder."
        )
    return _read_json(file)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: need JSON, got: {error}. Fetch the model again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: need a JSON object, got {type(content).__name__}.")
    return content


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
            + (f"{how} safetensors." if pickled else "Set model.path to a whole model.")
        )
    return {name: where for name, where in stored.items() if not name.endswith(_DERIVED_SUFFIX)}


def _read_indexed(folder: Path) -> dict[str, _Stored]:
    weight_map: Mapping[str, str] = _read_json(folder / INDEX_FILE).get("weight_map", {})
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


def _shapes(table: Sequence[Entry]) -> dict[str, Shape]:
    return {
        name: shape
        for entry in table
        for name, shape in zip(entry.hf_names, entry.hf_shapes, strict=True)
    }


def _first(names: Sequence[str]) -> str:
    """The first names, how many more, and the verb."""
    more = f" and {len(names) - _NAMED_IN_ERRORS} more" if len(names) > _NAMED_IN_ERRORS else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names[:_NAMED_IN_ERRORS])}{more} {verb}"


def _num_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _hidden_sibling(folder: Path, purpose: str) -> Path:
    return folder.parent / f".{folder.name}.{purpose}-{uuid.uuid4().hex[:8]}"


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
