"""Writes a plain sbatch script: neither NeMo-Run nor Pyxis, any Slurm."""

import shlex

from launchers.cluster import check_here
from launchers.options import Launch, run_command


def start(launch: Launch, dry_run: bool) -> str:
    """Write the launch folder and say how to submit it.

    Raises:
        ValueError: the cluster file is not one of Slurm, or does not fit this machine.
    """
    if launch.cluster.scheduler != "slurm":
        raise ValueError("scheduler: need slurm, got none. Use python -m launchers.local.")
    command = shlex.join(["sbatch", str(launch.bundle.job)])
    if dry_run:
        return f"dry run: would write {launch.bundle.folder}; submit with: {command}"
    check_here(launch.cluster, ("sbatch",))
    launch.bundle.write()
    return f"written: {launch.bundle.folder}\nsubmit with: {command}"


if __name__ == "__main__":
    run_command(
        start,
        help="Write a plain sbatch script of a run.",
        example="python -m launchers.sbatch configs/runs/demo.yaml "
        "--cluster configs/clusters/slurm_plain.yaml --nodes 2 --policy-nodes 1",
    )
