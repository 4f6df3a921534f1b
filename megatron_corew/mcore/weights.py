"""Weights between Hugging Face names and this rank's parameters, one tensor at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from checkpoint_tools.hf_folder import HfReader
from checkpoint_tools.weight_map.architecture import Architecture
from checkpoint_tools.weight_map.table import Entry, local_name, weight_table
from megatron_corew.mcore import platform
from megatron_corew.mcore.model import HiddenStateModel, padded_vocab_size
from megatron_corew.mcore.parallel import Layout

platform.redirect_torch()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel import (  # noqa: E402
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)

_EMBEDDING, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


def gather_sequence(hidden: Tensor, layout: Layout) -> Tensor:
    """[S / tensor size or S, B, D] -> [S, B, D] on every tensor-parallel rank.

    The backward pass sums the ranks' gradients: each scores its own part of the vocabulary.
    """
    if layout.sequence_parallel:
        return gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    return copy_to_tensor_model_parallel_region(hidden) if layout.tensor_size > 1 else hidden


def global_parameters(chunks: Iterable[HiddenStateModel]) -> dict[str, torch.nn.Parameter]:
    """This rank's parameters by local-spec name with the layer's number in the whole model."""
    parameters = {}
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            parts = local_name(name).split(".")
            if parts[:2] == ["decoder", "layers"]:
                # Megatron counts layers from 1, over all stages and pieces.
                parts[2] = str(chunk.decoder.layers[int(parts[2])].layer_number - 1)
            parameters[".".join(parts)] = parameter
    return parameters


@torch.no_grad()
def load(chunks: Iterable[HiddenStateModel], reader: HfReader, layout: Layout) -> None:
    """Fill this rank's parameters from a Hugging Face folder.

    Raises:
        ValueError: the folder misses a tensor, has one too many, or one of another shape.
        RuntimeError: a parameter of the model has no entry in the weight table.
    """
    table = _table(reader.architecture, layout)
    reader.check_complete(table)
    wanted = global_parameters(chunks)
    for entry in table:
        # A tied output layer on the last stage is a second copy of the embedding.
        tied_copy = entry.megatron_name == _EMBEDDING and reader.architecture.tied
        names = [entry.megatron_name] + ([_OUTPUT] if tied_copy else [])
        targets = [wanted.pop(name) for name in names if name in wanted]
        if not targets:
            continue
        whole = entry.to_megatron({name: reader.read(name) for name in entry.hf_names})
        for target in targets:
            target.copy_(entry.split(whole, layout.tensor_rank, layout.tensor_size))
    if wanted:
        raise RuntimeError(
            f"weights: {len(wanted)} parameters of the model have no entry in the weight table, "
            f"first {next(iter(wanted))}. This architecture needs a table of its own."
        )


@torch.no_grad()
def stream(
    chunks: Iterable[HiddenStateModel], architecture: Architecture, layout: Layout
) -> Iterator[tuple[str, Tensor | None]]:
    """(Hugging Face name, whole tensor) in the table's order; the tensor is None except on rank 0.

    Collective: every rank must walk the stream to its end. At most one whole tensor exists.
    """
    mine = global_parameters(chunks)
    owners = _owners(mine, layout)
    for entry in _table(architecture, layout):
        owner = owners[entry.megatron_name]
        whole = _collect(entry, mine.get(entry.megatron_name), owner, layout)
        tensors = entry.to_hf(whole) if whole is not None else {}
        for name in entry.hf_names:
            yield name, tensors.get(name)


@dataclass(frozen=True, slots=True)
class _Owner:
    stage: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _table(architecture: Architecture, layout: Layout) -> tuple[Entry, ...]:
    padded = padded_vocab_size(architecture, layout.tensor_size)
    return weight_table(architecture, padded_vocab=padded)


def _owners(mine: dict[str, torch.nn.Parameter], layout: Layout) -> dict[str, _Owner]:
    local = {name: (tuple(p.shape), p.dtype) for name, p in mine.items()}
    stages: list[dict[str, tuple[tuple[int, ...], torch.dtype]]] = [{}] * layout.pipeline_size
    dist.all_gather_object(stages, local, group=parallel_state.get_pipeline_model_parallel_group())
    owners: dict[str, _Owner] = {}
    for stage, names in enumerate(stages):
        for name, (shape, dtype) in names.items():
            owners.setdefault(name, _Owner(stage, shape, dtype))
    return owners


def _collect(
    entry: Entry, parameter: torch.nn.Parameter | None, owner: _Owner, layout: Layout
) -> Tensor | None:
    """The whole Megatron tensor on rank 0; None on the others."""
    if layout.data_rank != 0 or layout.context_rank != 0:
        return None
    pieces = 1 if entry.parallel == "replicated" else layout.tensor_size
    stacked = torch.empty(pieces, *owner.shape, dtype=owner.dtype, device=platform.device())
    if layout.pipeline_rank == owner.stage and parameter is not None:
        if pieces == 1:
            stacked[0] = parameter.detach()
        else:
            group = parallel_state.get_tensor_model_parallel_group()
            dist.all_gather(list(stacked.unbind()), parameter.detach(), group=group)
    if layout.tensor_rank != 0:
        return None
    if owner.stage != 0:
        group = parallel_state.get_pipeline_model_parallel_group()
        if layout.pipeline_rank == owner.stage:
            dist.send(stacked, dst=0, group=group)
        elif layout.pipeline_rank == 0:
            dist.recv(stacked, src=dist.get_global_rank(group, owner.stage), group=group)
    if layout.pipeline_rank != 0:
        return None
    return entry.join(list(stacked.unbind()))
