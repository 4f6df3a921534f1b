"""Where Megatron-Core's distributed checkpoints keep a weight: its key, and its place in it.

A checkpoint stacks the layers of a model (and the experts of a layer) into one tensor per kind of
weight, and names it as the Transformer Engine spec does, whichever spec wrote it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkpoint_tools.weight_map.entry import Entry
from checkpoint_tools.weight_map.names import te_name

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")
# Linears of the local spec and modules of the Transformer Engine spec that save an extra state.
_STATELESS = ("embedding.", "output_layer.", ".router.weight", ".bias")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One weight's place in a checkpoint."""

    key: str
    index: tuple[int, ...]
    """(), (layer,) or (layer, expert): where it stands among the stacked ones."""
    stack: tuple[int, ...]
    """How many layers, and how many experts, the key stacks; as long as ``index``."""

    @property
    def extra_state(self) -> str:
        """Name of the extra state beside the weight, as a ShardedObject of Megatron-Core."""
        index, stack = self.index or (0,), self.stack or (1,)
        start, size = (".".join(map(str, numbers)) for numbers in (index, stack))
        return f"{self.key.removesuffix('.weight')}._extra_state/shard_{start}_{size}"


def places(table: Sequence[Entry]) -> dict[str, Place]:
    """Where each weight of a model is kept.

    Args:
        table: ``weight_table`` of the whole model.

    Returns:
        Megatron name of the local spec -> place, in the table's order.

    Source: megatron-core 0.16, TransformerBlock.sharded_state_dict and the experts' of moe/.
    """
    names = [entry.megatron_name for entry in table]
    layers = 1 + max(_numbers(_LAYER, names), default=-1)
    experts = 1 + max(_numbers(_EXPERT, names), default=-1)
    return {name: _place(name, layers, experts) for name in names}


def extra_states(table: Sequence[Entry]) -> tuple[str, ...]:
    """The extra states that one of the two specs asks for when it loads a checkpoint.

    Args:
        table: ``weight_table`` of the whole model.

    Returns:
        Names in the checkpoint. Without FP8 all of them are empty; both specs accept an empty one.
    """
    return tuple(
        place.extra_state
        for name, place in places(table).items()
        if not place.key.endswith("layer_norm_weight")
        and not any(part in name for part in _STATELESS)
    )


def _numbers(pattern: re.Pattern[str], names: Sequence[str]) -> Iterator[int]:
    for name in names:
        if match := pattern.search(name):
            yield int(match[1])


def _place(local_name: str, layers: int, experts: int) -> Place:
    layer, expert = _LAYER.match(local_name), _EXPERT.search(local_name)
    if layer is None:
        return Place(key=local_name, index=(), stack=())
    if expert is None:
        key = _LAYER.sub(
            "decoder.layers.", te_name(local_name, "sequential_experts" if experts else "dense")
        )
        return Place(key=key, index=(int(layer[1]),), stack=(layers,))
    key = _LAYER.sub("decoder.layers.", _EXPERT.sub(".experts.", local_name))
    return Place(key=key, index=(int(layer[1]), int(expert[1])), stack=(layers, experts))
