"""The scaling histories that FP8 layers keep beside their weights.

Only delayed scaling has any: each of its layers scales by the largest magnitudes of the steps
before. Blockwise and tensorwise scaling look at today's numbers, and every layer of Megatron-Core
names an extra state that says nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from megatron_corew.config import PrecisionConfig

EXTRA_STATE = "_extra_state"


@contextmanager
def kept_histories(model: nn.Module, precision: PrecisionConfig) -> Iterator[None]:
    """Put the histories back at the end, so that passes inside leave no trace."""
    stateful = [
        module
        for module in (model.modules() if precision.keeps_histories else ())
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
    before = [module.get_extra_state() for module in stateful]
    yield
    for module, state in zip(stateful, before, strict=True):
        module.set_extra_state(state)


def without_empty_states(
    state: Mapping[str, Any], precision: PrecisionConfig, stored: Iterable[str] | None = None
) -> dict[str, Any]:
    """The part of a model's checkpoint description that is worth writing, or can be read.

    Args:
        state: name -> Megatron's description of a tensor or object.
        precision: of the run.
        stored: keys of a checkpoint that is to be read; histories that it lacks start anew.
    """
    keys = None if stored is None else set(stored)

    def wanted(name: str, described: Any) -> bool:
        if not name.endswith(EXTRA_STATE):
            return True
        return precision.keeps_histories and (keys is None or described.unique_key in keys)

    return {name: described for name, described in state.items() if wanted(name, described)}


def load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Fill a model from its checkpoint; extra states may be missing on either side.

    Raises:
        RuntimeError: a weight is missing, or one that the model does not have.
    """
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [name for name in (*missing, *unexpected) if not name.endswith(EXTRA_STATE)]
    if wrong:
        raise RuntimeError(
            f"checkpoint: need the model's weights, got {len(missing)} missing and "
            f"{len(unexpected)} unknown ones, first {wrong[0]}. Set model.path to the model that "
            "the checkpoint was made with."
        )
