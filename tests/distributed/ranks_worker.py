"""Errors on one rank reach all ranks. Argument: out.json"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from megatron_corew.ranks import is_driver, on_driver


def error_of(action) -> list[str]:
    """Type and text of what every rank sees when ``action`` is called on all of them."""
    try:
        action()
        seen = "no error"
    except (ValueError, RuntimeError) as error:
        seen = f"{type(error).__name__}: {error}"
    everywhere: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everywhere, seen)
    return everywhere


def fail(error: Exception):
    """Raise on rank 0 only; no other rank may come here."""
    assert is_driver()
    raise error


def main() -> None:
    """Measure and write."""
    dist.init_process_group("gloo")
    shared: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(shared, on_driver(lambda: {"rank": dist.get_rank()}))
    measured = {
        "shared": shared,
        "value_error": error_of(lambda: on_driver(lambda: fail(ValueError("a knob")))),
        "os_error": error_of(lambda: on_driver(lambda: fail(FileNotFoundError("a file")))),
    }
    if is_driver():
        Path(sys.argv[1]).write_text(json.dumps(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
