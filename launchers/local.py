"""Starts a run on this machine with NeMo-Run's local executor."""

import nemo_run as run

from launchers import experiment
from launchers.cluster import check_here
from launchers.options import Launch, run_command


def start(launch: Launch, dry_run: bool) -> str:
    """Run the whole job script as one task, and wait for it.

    Raises:
        ValueError: the cluster file is not one of a single machine.
        RuntimeError: the job failed.
    """
    if launch.cluster.scheduler != "none":
        raise ValueError("scheduler: need none, got slurm. Use python -m launchers.slurm.")
    # One task: the local scheduler leaves the servers running when the trainer has ended well.
    task = run.Script(inline=launch.bundle.command("job.sh"))
    executor = run.LocalExecutor(launcher=None, packager=run.Packager())
    if not dry_run:
        check_here(launch.cluster, ("bash",))
    return experiment.start(launch, [("job", task, executor)], dry_run=dry_run, detach=False)


if __name__ == "__main__":
    run_command(
        start,
        help="Run on this machine, trainer and servers.",
        example="python -m launchers.local configs/runs/demo.yaml "
        "--cluster configs/clusters/local.yaml",
    )
