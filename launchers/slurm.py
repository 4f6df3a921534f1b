"""Submits a run to Slurm with NeMo-Run's executor; with a container the cluster needs Pyxis."""

import shlex

import nemo_run as run
from nemo_run.config import get_nemorun_home

from launchers import experiment, slurm_flags
from launchers.cluster import Cluster, check_here
from launchers.options import Launch, run_command

# Seconds between the starts of the steps, and between looks at them.
STEP_WAIT_S = 2


def start(launch: Launch, dry_run: bool) -> str:
    """Submit trainer and servers as steps of one allocation.

    Raises:
        ValueError: the cluster file is not one of Slurm, or does not fit this machine.
    """
    if launch.cluster.scheduler != "slurm":
        raise ValueError("scheduler: need slurm, got none. Use python -m launchers.local.")
    if not dry_run:
        check_here(launch.cluster, ("sbatch", "scontrol"))
    placement = launch.placement
    ranges = [("trainer", 0, placement.trainer_nodes)]
    ranges += [(pool.role, pool.first_node, pool.nodes) for pool in placement.pools]
    tasks = [
        (
            name,
            run.Script(inline=launch.bundle.command(f"{name}.sh")),
            _executor(launch, slurm_flags.step_arguments(launch.cluster, first, nodes)),
        )
        for name, first, nodes in ranges
    ]
    return experiment.start(launch, tasks, dry_run=dry_run, detach=True)


def _executor(launch: Launch, step_arguments: list[str]) -> run.SlurmExecutor:
    """One step of the allocation; the first executor's flags are those of the whole job."""
    cluster, nodes = launch.cluster, launch.placement.nodes
    gres = cluster.gpu_request == "gres" and cluster.gpus_per_node
    per_node = cluster.gpu_request == "gpus-per-node" and cluster.gpus_per_node
    return run.SlurmExecutor(
        account=cluster.account,
        partition=cluster.partition,
        qos=cluster.qos,
        constraint=cluster.constraint,
        time=cluster.time_limit,
        nodes=nodes,
        ntasks_per_node=1,
        cpus_per_task=cluster.cpus_per_node,
        gpus_per_node=cluster.gpus_per_node if per_node else None,
        gres=f"gpu:{cluster.gpus_per_node}" if gres else None,
        exclusive=cluster.exclusive or None,
        container_image=cluster.container,
        container_mounts=list(cluster.mounts),
        srun_args=step_arguments,
        additional_parameters=_extra(cluster),
        setup_lines=_setup(launch),
        # A launcher of the first executor would wrap the servers too: torchrun is in trainer.sh.
        launcher=None,
        # Values given here would be exported unquoted and reach the next step: trainer.sh and
        # the others export their own.
        env_vars={},
        job_name_prefix="corew.",
        # The job's files must lie where NeMo-Run itself looks for them.
        tunnel=run.LocalTunnel(job_dir=f"{get_nemorun_home()}/experiments"),
        packager=run.Packager(),
        wait_time_for_group_job=STEP_WAIT_S,
        monitor_group_job_wait_time=STEP_WAIT_S,
        # A failed job is not repeated; only its time limit and preemption requeue it.
        retries=0,
    )


def _extra(cluster: Cluster) -> dict[str, object]:
    pairs = [argument.removeprefix("--").split("=", 1) for argument in cluster.sbatch_args]
    switch = {"requeue": True} if cluster.max_requeues else {"no_requeue": True}
    return {
        "open_mode": "append",
        **slurm_flags.requeue(cluster),
        **switch,
        **{name.replace("-", "_"): value for name, value in pairs},
    }


def _setup(launch: Launch) -> str:
    lines = [f"source {shlex.quote(str(launch.bundle.prologue))}"]
    if launch.cluster.max_requeues:
        lines.append(slurm_flags.requeue_trap(launch.cluster))
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(
        start,
        help="Submit to Slurm with NeMo-Run.",
        example="python -m launchers.slurm configs/runs/demo.yaml "
        "--cluster configs/clusters/slurm_pyxis_h100.yaml --nodes 2 --policy-nodes 1",
    )
