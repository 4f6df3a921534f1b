"""Runs a worker script in real gloo processes, under a time-out, and reads what it measured."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_worker(
    script: str, *arguments: str, processes: int, out: Path, timeout_s: float = 400.0
) -> dict[str, Any]:
    """Run ``tests/distributed/<script>`` under torchrun and return the JSON it wrote to ``out``.

    Rank 0 writes; a non-zero exit or a time-out fails the test with the workers' output.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(processes), "-m", f"tests.distributed.{script}"),
        *arguments,
        str(out),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{script} failed:\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return json.loads(out.read_text())
