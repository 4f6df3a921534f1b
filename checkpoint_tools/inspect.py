"""Says what a model folder is: format, architecture, sizes, types, layout, what is missing."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from checkpoint_tools.command import one_line_errors, standalone
from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.megatron_folder import HF_FOLDER, TEACHER_PREFIX, MegatronReader
from checkpoint_tools.megatron_index import is_megatron_folder, read_index
from checkpoint_tools.weight_map.architecture import Architecture
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.table import weight_table

Facts = dict[str, str]
_EMBEDDING = "embedding.word_embeddings.weight"
_MODEL = ("embedding.", "decoder.", "output_layer.")
_OPTIMIZER = ("optimizer.", "corew.exp_avg")


def inspect_hf(folder: Path) -> Facts:
    """The facts of a Hugging Face folder.

    Args:
        folder: any folder with config.json and safetensors; it need not be complete.

    Raises:
        ValueError, RuntimeError: it cannot be read at all.
    """
    reader = HfReader(folder)
    table = weight_table(reader.architecture)
    types = Counter(str(dtype).removeprefix("torch.") for dtype in reader.dtypes().values())
    return {
        "format": "Hugging Face",
        **_architecture(reader.architecture, table),
        "dtype": ", ".join(f"{name} ({count} tensors)" for name, count in types.items()),
        "files": str(len(set(reader.files().values()))),
        "size": f"{_size(folder, '*.safetensors') / 1e9:.3f} GB",
        "complete": _verdict(lambda: reader.check_complete(table)),
    }


def inspect_megatron(folder: Path, *, config_folder: Path | None = None) -> Facts:
    """The facts of a distributed checkpoint.

    Args:
        folder: the checkpoint; it need not be complete.
        config_folder: Hugging Face folder that describes the model; None: the checkpoint's own.

    Raises:
        ValueError, RuntimeError: it cannot be read at all, or its files are cut short.
    """
    tensors = {
        key: stored
        for key, stored in read_index(folder).state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    weights = {key: stored for key, stored in tensors.items() if key.startswith(_MODEL)}
    types = Counter(str(one.properties.dtype).removeprefix("torch.") for one in weights.values())
    facts = {
        "format": "Megatron-Core distributed checkpoint",
        "dtype": ", ".join(f"{name} ({count} stacked tensors)" for name, count in types.items()),
        "files": str(len(list(folder.glob("*.distcp")))),
        "size": f"{_size(folder, '*.distcp') / 1e9:.3f} GB",
        "cut for tensor size": _cut(weights),
        "holds": ", ".join(_holds(tensors)),
    }
    if _EMBEDDING in weights:
        facts["padded vocabulary"] = str(weights[_EMBEDDING].size[0])
    if config_folder is None and not (folder / HF_FOLDER).is_dir():
        return facts | {"complete": "unknown: no config stored, name one (--like)"}
    try:
        reader = MegatronReader(folder, config_folder=config_folder)
    except ValueError as error:
        return facts | {"complete": f"no: {error}"}
    return facts | _architecture(reader.architecture, reader.table) | {"complete": "yes"}


def _architecture(arch: Architecture, table: Sequence[Entry]) -> Facts:
    parameters = sum(math.prod(shape) for entry in table for shape in entry.hf_shapes)
    facts = {
        "architecture": arch.family,
        "parameters": f"{parameters:,}",
        "layers": str(arch.num_layers),
        "hidden size": str(arch.hidden_size),
        "heads": f"{arch.num_heads} query, {arch.num_kv_heads} key/value, of {arch.head_size}",
        "feed-forward size": str(arch.ffn_size),
        "vocabulary": str(arch.vocab_size),
        "output layer": "tied to the embedding" if arch.tied else "its own",
        "rope": f"theta {arch.rope_theta:g}",
        "query and key norm": "yes" if arch.qk_norm else "no",
        "qkv bias": "yes" if arch.qkv_bias else "no",
    }
    if (mixture := arch.mixture) is not None:
        facts["experts"] = (
            f"{mixture.num_experts} of {mixture.expert_ffn_size}, {mixture.experts_per_token} per "
            "token"
        )
        del facts["feed-forward size"]
    if (scaling := arch.rope_scaling) is not None:
        facts["rope"] += f", llama3 scaling by {scaling.factor:g}"
    return facts


def _holds(tensors: Mapping[str, TensorStorageMetadata]) -> Iterator[str]:
    """Whose state a checkpoint carries."""
    if any(key.startswith(_MODEL) for key in tensors):
        yield "weights"
    if any(key.startswith(TEACHER_PREFIX) for key in tensors):
        yield "the teacher's weights"
    if any(key.startswith(_OPTIMIZER) for key in tensors):
        yield "optimizer state"


def _cut(weights: Mapping[str, TensorStorageMetadata]) -> str:
    """For how many tensor-parallel ranks the attention is cut: each reads boxes of its own."""
    key = next((key for key in weights if key.endswith("linear_qkv.weight")), None)
    if key is None:
        return "unknown"
    return str(len({chunk.offsets[-2] for chunk in weights[key].chunks}))


def _verdict(check: Callable[[], None]) -> str:
    try:
        check()
    except ValueError as error:
        return f"no: {error}"
    return "yes"


def _size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def command(
    path: Annotated[Path, typer.Argument(help="Hugging Face folder or checkpoint.")],
    like: Annotated[
        Path | None, typer.Option(help="Hugging Face folder for a checkpoint without config.")
    ] = None,
) -> None:
    """Say what a folder holds, without reading weights; exits with 1 when it is incomplete."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with one_line_errors():
        is_megatron = is_megatron_folder(path)
        facts = inspect_megatron(path, config_folder=like) if is_megatron else inspect_hf(path)
        width = max(map(len, facts))
        for name, value in facts.items():
            console.print(f"{name:<{width}}  {value}")
    if facts["complete"].startswith("no"):
        raise typer.Exit(1)


EXAMPLE = "Example: corew-convert inspect ckpt/qwen3-8b"

if __name__ == "__main__":
    standalone(command, EXAMPLE)
