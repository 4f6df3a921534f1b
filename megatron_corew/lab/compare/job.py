"""Starts one run of a comparison as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from megatron_corew.lab.compare.plan import SETTING, Cell
from megatron_corew.rollout import child_of

LOG_FILE = "compare.log"
PACKAGE_ROOT = Path(__file__).parents[3]


def train_command(cell: Cell) -> list[str]:
    """The command of a run, as a user would type it."""
    return [
        *(sys.executable, "-m", "megatron_corew.cli"),
        *("train", str(SETTING), *cell.overrides),
    ]


def start_training(cell: Cell) -> subprocess.Popen[bytes]:
    """Start the training command of a run; it ends when this process does.

    Args:
        cell: The run; its output goes to ``logs/compare.log`` in its folder.

    Returns:
        The process.
    """
    cell.folder.logs.mkdir(parents=True, exist_ok=True)
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    guard = [sys.executable, "-IS", child_of.__file__, str(os.getpid())]
    with (cell.folder.logs / LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            guard + train_command(cell),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
