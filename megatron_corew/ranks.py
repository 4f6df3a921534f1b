"""Agreement between the trainer's processes: what rank 0 learns, and what fails, reaches all.

Every function here is collective: all ranks call it, and it returns after the slowest.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")


def is_driver() -> bool:
    """Whether this process is the one that talks to the world (rank 0, or the only one)."""
    return not dist.is_initialized() or dist.get_rank() == 0


def on_driver(action: Callable[[], T]) -> T:
    """Run ``action`` on rank 0 only and give its result, or its error, to every rank.

    Args:
        action: called on rank 0; its result must be picklable (it travels between our own
            processes only).

    Returns:
        The result, the same on every rank.

    Raises:
        ValueError, RuntimeError: what ``action`` raised (OSError becomes RuntimeError), on every
            rank, so that nobody waits for a rank that is gone.
    """
    outcome: list[object] = [None, None]
    if is_driver():
        try:
            outcome[0] = action()
        except ValueError as error:
            outcome[1] = ValueError(str(error))
        except (RuntimeError, OSError) as error:
            outcome[1] = RuntimeError(str(error) or type(error).__name__)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(outcome, src=0)
    if isinstance(outcome[1], Exception):
        raise outcome[1]
    return cast(T, outcome[0])
