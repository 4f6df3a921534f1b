"""Counts the parameters that one rank holds, from the same table that loads and exports them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from checkpoint_tools.weight_map.architecture import Architecture
from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.table import weight_table
from megatron_corew.config import ParallelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Numbers of parameters, by what shards their optimizer state."""

    dense: int = 0
    """Everything but experts."""
    experts: int = 0
    linear: int = 0
    """Of both, those in linear layers, which FP8 applies to."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts

    def __add__(self, other: "Parameters") -> "Parameters":
        return Parameters(
            dense=self.dense + other.dense,
            experts=self.experts + other.experts,
            linear=self.linear + other.linear,
        )

    def times(self, count: int) -> "Parameters":
        """``count`` times as many."""
        return Parameters(
            dense=self.dense * count, experts=self.experts * count, linear=self.linear * count
        )


@lru_cache(maxsize=256)
def _pieces(
    architecture: Architecture, tensor: int, expert: int, expert_tensor: int
) -> dict[str, Parameters]:
    """This rank's part of the embedding, one layer, the final norm and the output layer."""
    padded = -(-architecture.vocab_size // tensor) * tensor
    counts: dict[str, Parameters] = {}
    for entry in weight_table(replace(architecture, num_layers=1), padded_vocab=padded):
        piece = entry.megatron_name.split(".")[1 if entry.megatron_name[0] == "d" else 0]
        held = _held(entry, tensor, expert, expert_tensor)
        counts[piece] = counts.get(piece, Parameters()) + held
    if architecture.tied:
        # On the last of several stages it is a second copy of the embedding.
        counts["output_layer"] = counts["embedding"]
    return counts


def _held(entry: Entry, tensor: int, expert: int, expert_tensor: int) -> Parameters:
    count = prod(entry.megatron_shape)
    linear = "linear_" in entry.megatron_name and entry.megatron_name.endswith("weight")
    if entry.expert is not None:
        # The experts of a layer are alike: a share of each counts as that share of them whole.
        here = entry.expert % expert == 0
        part = count // expert_tensor if here else 0
        return Parameters(experts=part, linear=part)
    part = count if entry.parallel == "replicated" else count // tensor
    return Parameters(dense=part, linear=part if linear else 0)


def stage_parameters(
    architecture: Architecture, parallel: ParallelConfig, stage: int
) -> Parameters:
    """The parameters of a rank on a pipeline stage.

    Args:
        architecture: the model.
        parallel: a layout that can hold it.
        stage: pipeline rank.
    """
    pieces = _pieces(architecture, parallel.tensor, parallel.expert, parallel.expert_tensor)
    held = pieces["layers"].times(architecture.num_layers // parallel.pipeline)
    first, last = stage == 0, stage == parallel.pipeline - 1
    if first:
        held += pieces["embedding"]
    if last:
        held += pieces["final_layernorm"]
    if last and not (first and architecture.tied):
        held += pieces["output_layer"]
    return held


def whole_model(architecture: Architecture) -> Parameters:
    """The parameters of the model in one process."""
    return stage_parameters(architecture, ParallelConfig(), 0)


def active_parameters(architecture: Architecture) -> tuple[int, int]:
    """Weights that one token is multiplied with in the layers: dense ones, experts' ones."""
    layers = _pieces(architecture, 1, 1, 1)["layers"].times(architecture.num_layers)
    mixture = architecture.mixture
    if mixture is None:
        return layers.linear, 0
    used = layers.experts * mixture.experts_per_token // mixture.num_experts
    return layers.linear - layers.experts, used
