"""Starts the trainer's processes on this machine, or joins the ones that a launcher started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from megatron_corew.config import Config
from megatron_corew.rollout import child_of
from megatron_corew.runs import RunFolder

# Slurm's name of a value -> torchrun's.
_FROM_SLURM = {
    "SLURM_PROCID": "RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_LOCALID": "LOCAL_RANK",
}

_INSIST_S = 60
"""Seconds after an interrupt until SIGTERM follows: twice as long as torchrun lets its processes
live. Python loses an interrupt that comes while it runs a callback, as between fork and exec."""
SIGNALLED = {128 + signal.SIGINT: "interrupted", 128 + signal.SIGTERM: "ended by SIGTERM"}
"""Exit codes of the trainer's processes after a signal to all of them."""


def join_slurm() -> None:
    """Take rank and world size from srun, where torchrun has not set them.

    Raises:
        ValueError: under srun without a meeting point for the processes.
    """
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    if "RANK" in os.environ or "SLURM_STEP_ID" not in os.environ or tasks == 1:
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ValueError(
                f"{name}: need the address where {tasks} srun tasks meet, got none. Export "
                "MASTER_ADDR (a node's name) and MASTER_PORT (a free port) before srun."
            )
    os.environ.update({ours: os.environ[slurm] for slurm, ours in _FROM_SLURM.items()})


def is_worker() -> bool:
    """Whether this process is already one of the trainer's (torchrun or srun started it)."""
    return "RANK" in os.environ


def torchrun_command(config: Config, folder: RunFolder) -> list[str]:
    """The command that starts all trainer processes of a run on this machine."""
    processes = config.parallel.processes
    # Rank 0 keeps the terminal for the progress display; the others write to files.
    quiet = ",".join(f"{rank}:3" for rank in range(1, processes)) or "0"
    return [
        *(sys.executable, "-m", "megatron_corew.torchrun", "--standalone"),
        *("--nproc-per-node", str(processes)),
        *("--log-dir", str(folder.logs / "trainer"), "--redirects", quiet),
        *("-m", "megatron_corew.run", str(folder.config_file)),
    ]


def start_processes(config: Config, folder: RunFolder) -> int:
    """Run the trainer's processes to their end and return the exit code; 128 + n after signal n.

    An interrupt or SIGTERM is passed on and waited for, so that the processes end in their own
    order; they end by themselves when this process is killed.
    """
    # torchrun lets an interrupt through when it can end well; Python would die of it before.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    (folder.logs / "trainer").mkdir(parents=True, exist_ok=True)
    package_root = str(Path(__file__).parents[1])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(config.parallel.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    guard = [sys.executable, "-IS", child_of.__file__, str(os.getpid())]
    process = subprocess.Popen(guard + torchrun_command(config, folder), env=environment)
    if signal.SIGINT in signal.sigpending():
        # It came before torchrun was there to get it.
        process.send_signal(signal.SIGINT)
    interrupts: list[int] = []

    def insist_later(*_: object) -> None:
        # Counted from the first: who presses again and again is not to wait longer.
        if not interrupts:
            signal.alarm(_INSIST_S)
        interrupts.append(signal.SIGINT)

    # The terminal sends an interrupt to the whole process group, torchrun included.
    signal.signal(signal.SIGINT, insist_later)
    signal.signal(signal.SIGALRM, lambda *_: process.terminate())
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    code = process.wait()
    signal.alarm(0)
    return 128 + signal.SIGINT if interrupts and code == 128 + signal.SIGTERM else code
