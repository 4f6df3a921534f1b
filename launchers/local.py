"""Starts a run on this machine with NeMo-Run's local executor."""

import nemo_run as run

from launchers import experiment
from launchers.options import Launch, run_command


def start(launch: Launch, dry_run: bool) -> str:
    """Run the whole job script as one task, and wait for it.

    Raises:
        ValueError: the cluster file is not one of a single machine.
        RuntimeError: the job failed.
    """
    if launch.cluster.scheduler != "none":
        raise ValueError("scheduler: need none, got slurm. Use python -m launchers.slurm.")
    executor = run.LocalExecutor(launcher=None, packager=run.Packager())
    return experiment.run_here(launch, executor, needs="bash", dry_run=dry_run)


if __name__ == "__main__":
    run_command(
        start,
        help="Run on this machine, trainer and servers.",
        example="python -m launchers.local configs/runs/demo.yaml "
        "--cluster configs/clusters/local.yaml",
    )
