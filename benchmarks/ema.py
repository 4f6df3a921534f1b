"""Measures the teacher's update against copying as many bytes, in one run on one thread.

    python benchmarks/ema.py [--elements N] [--repeats N]

Bytes that must move, per element: read policy 4, teacher 4 and residual; write teacher 4 and
residual: 20 with a float32 residual, 16 with a bfloat16 one. A copy of n bytes reads and writes
n / 2 each. Update and copy take turns; the figure is the median of the ratios. On a CPU the time
is the process's own, which a busy machine disturbs less. Prints one JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from megatron_corew.mcore.ema import EmaUpdate, compiler_missing


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """How long the action takes: device time on a GPU, the process's own on a CPU."""
    if device.type == "cpu":
        start = time.process_time()
        action()
        return time.process_time() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    action()
    end_event.record()
    torch.cuda.synchronize()
    return start_event.elapsed_time(end_event) / 1e3


def measure(
    residual: torch.dtype, *, compiled: bool, elements: int, repeats: int, device: torch.device
) -> dict[str, Any]:
    """One row of the table."""
    policy, teacher = torch.randn(2, elements, device=device).mul_(0.02)
    rest = torch.zeros(elements, dtype=residual, device=device)
    moved = 12 + 2 * rest.element_size()
    origin = torch.zeros(elements * moved // 8, device=device)
    target = torch.empty_like(origin)
    start = time.perf_counter()
    update = EmaUpdate(device, residual, compiled=compiled)
    update(teacher, policy, rest, weight=1e-4)
    first = time.perf_counter() - start
    target.copy_(origin)
    pairs = [
        (
            seconds(lambda: update(teacher, policy, rest, weight=1e-4), device),
            seconds(lambda: target.copy_(origin), device),
        )
        for _ in range(repeats)
    ]
    ema_s, copy_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "residual": str(residual).removeprefix("torch."),
        "form": "compiled" if compiled else "eager",
        "bytes_per_element": moved,
        "ema_gb_s": round(elements * moved / ema_s / 1e9, 1),
        "copy_gb_s": round(elements * moved / copy_s / 1e9, 1),
        "of_copy": round(statistics.median(copy / ema for ema, copy in pairs), 2),
        "first_call_s": round(first, 1),
        "scratch_mb": round(update.scratch.nbytes / 2**20, 1),
    }


def main() -> None:
    """Print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--repeats", type=int, default=15)
    knobs = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    missing = compiler_missing(device)
    rows = [
        measure(
            residual,
            compiled=compiled,
            elements=knobs.elements,
            repeats=knobs.repeats,
            device=device,
        )
        for compiled in ([False] if missing else [True, False])
        for residual in (torch.float32, torch.bfloat16)
    ]
    report = {"device": str(device), "elements": knobs.elements, "not_compiled": missing}
    print(json.dumps(report | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
