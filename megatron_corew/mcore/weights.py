"""Weights between Hugging Face names and this rank's parameters, one tensor at a time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from checkpoint_tools.sources import Source
from checkpoint_tools.weight_map.architecture import Architecture
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.names import local_name, shift_expert
from checkpoint_tools.weight_map.table import weight_table
from megatron_corew.mcore import platform
from megatron_corew.mcore.model import HiddenStateModel, padded_vocab_size
from megatron_corew.mcore.parallel import Layout

platform.redirect_torch()

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


def global_parameters(
    chunks: Iterable[HiddenStateModel], layout: Layout
) -> dict[str, torch.nn.Parameter]:
    """This rank's parameters by local-spec name, layer and expert numbered in the whole model."""
    parameters = {}
    for chunk in chunks:
        experts = (chunk.config.num_moe_experts or 0) // layout.expert_size
        for name, parameter in chunk.named_parameters():
            parts = local_name(name).split(".")
            if parts[:2] == ["decoder", "layers"]:
                # Megatron counts layers from 1, over all stages and pieces.
                parts[2] = str(chunk.decoder.layers[int(parts[2])].layer_number - 1)
            parameters[shift_expert(".".join(parts), layout.expert_rank * experts)] = parameter
    return parameters


@torch.no_grad()
def load(chunks: Iterable[HiddenStateModel], source: Source, layout: Layout) -> None:
    """Fill this rank's parameters from a Hugging Face folder or a converted checkpoint.

    Raises:
        RuntimeError: a parameter of the model has no entry in the weight table.
    """
    wanted = global_parameters(chunks, layout)
    # The source's rows differ from this layout's in the padding of the vocabulary only.
    for stored, entry in zip(source.table, _table(source.architecture, layout), strict=True):
        # A tied output layer on the last stage is a second copy of the embedding.
        tied_copy = entry.megatron_name == _EMBEDDING and source.architecture.tied
        names = [entry.megatron_name] + ([_OUTPUT] if tied_copy else [])
        targets = [wanted.pop(name) for name in names if name in wanted]
        if not targets:
            continue
        whole = entry.to_megatron(source.read(stored))
        for target in targets:
            target.copy_(entry.split(whole, *_cut(entry, layout)))
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
    mine = global_parameters(chunks, layout)
    table = _table(architecture, layout)
    holders = _holders(table, mine, layout)
    for entry in table:
        whole = _collect(entry, mine.get(entry.megatron_name), holders[entry.megatron_name])
        tensors = entry.to_hf(whole) if whole is not None else {}
        for name in entry.hf_names:
            yield name, tensors.get(name)


@dataclass(frozen=True, slots=True)
class _Shard:
    rank: int
    """Of the process, in the world."""
    shape: tuple[int, ...]
    dtype: torch.dtype


def _table(architecture: Architecture, layout: Layout) -> tuple[Entry, ...]:
    padded = padded_vocab_size(architecture, layout.tensor_size)
    return weight_table(architecture, padded_vocab=padded)


def _cut(entry: Entry, layout: Layout) -> tuple[int, int]:
    """Which part of the entry this rank holds, of how many."""
    if entry.expert is not None:
        return layout.expert_tensor_rank, layout.expert_tensor_size
    return layout.tensor_rank, layout.tensor_size


def _holders(
    table: tuple[Entry, ...], mine: dict[str, torch.nn.Parameter], layout: Layout
) -> dict[str, list[_Shard]]:
    """For every entry the first process that holds each of its parts, in the parts' order."""
    local = [
        (entry.megatron_name, _cut(entry, layout)[0], tuple(parameter.shape), parameter.dtype)
        for entry in table
        if (parameter := mine.get(entry.megatron_name)) is not None
    ]
    ranks: list[list[tuple[str, int, tuple[int, ...], torch.dtype]]] = [[]] * dist.get_world_size()
    dist.all_gather_object(ranks, local)
    found: defaultdict[str, dict[int, _Shard]] = defaultdict(dict)
    for rank, parameters in enumerate(ranks):
        for name, part, shape, dtype in parameters:
            found[name].setdefault(part, _Shard(rank, shape, dtype))
    holders = {name: [shards[part] for part in sorted(shards)] for name, shards in found.items()}
    return {
        entry.megatron_name: holders[entry.megatron_name][: 1 if _is_copied(entry) else None]
        for entry in table
    }


def _is_copied(entry: Entry) -> bool:
    return entry.parallel == "replicated"


def _collect(
    entry: Entry, parameter: torch.nn.Parameter | None, holders: list[_Shard]
) -> Tensor | None:
    """The whole Megatron tensor on rank 0; None on the others."""
    rank, parts = dist.get_rank(), []
    for shard in holders:
        if rank not in (0, shard.rank):
            continue
        part = torch.empty(shard.shape, dtype=shard.dtype, device=platform.device())
        if rank == shard.rank:
            assert parameter is not None
            part.copy_(parameter.detach())
        if shard.rank != 0 and rank == 0:
            dist.recv(part, src=shard.rank)
        elif shard.rank != 0:
            dist.send(part, dst=0)
        parts.append(part)
    return entry.join(parts) if rank == 0 else None
