"""What Slurm is told: the flags of a job, of each of its steps, and how it is requeued."""

import shlex
from pathlib import Path

from launchers.cluster import Cluster
from launchers.placement import Placement
from megatron_corew.config import Config


def job(config: Config, cluster: Cluster, placement: Placement, logs: Path) -> list[str]:
    """Flags of the job, for ``#SBATCH`` lines.

    Args:
        config: names the job.
        cluster: partition, account, limits.
        placement: number of nodes.
        logs: folder of the run's logs.
    """
    values: dict[str, str | int | None] = {
        "job-name": f"corew-{config.run.name}",
        "nodes": placement.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cluster.cpus_per_node,
        "account": cluster.account,
        "partition": cluster.partition,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "time": cluster.time_limit,
        "output": str(logs / "job-%j.log"),
        "open-mode": "append",
        **_gpus(cluster),
        **requeue(cluster),
    }
    flags = [f"--{name}={shlex.quote(str(value))}" for name, value in values.items() if value]
    switches = ["--exclusive"] if cluster.exclusive else []
    switches += ["--requeue"] if cluster.max_requeues else ["--no-requeue"]
    return [*flags, *switches, *cluster.sbatch_args]


def _gpus(cluster: Cluster) -> dict[str, str | int | None]:
    if not cluster.gpus_per_node or cluster.gpu_request == "none":
        return {}
    if cluster.gpu_request == "gres":
        return {"gres": f"gpu:{cluster.gpus_per_node}"}
    return {"gpus-per-node": cluster.gpus_per_node}


def requeue(cluster: Cluster) -> dict[str, str | int | None]:
    """The signal that comes before the time limit."""
    return {"signal": f"B:USR1@{cluster.end_signal_s}"} if cluster.max_requeues else {}


def requeue_trap(cluster: Cluster) -> str:
    """Shell lines that put the job back into the queue when the signal comes.

    Slurm itself requeues a preempted job (``--requeue``); both ways the run resumes from its
    last checkpoint, because the job does what it did before.
    """
    return (
        f'requeue() {{ [ "${{SLURM_RESTART_COUNT:-0}}" -lt {cluster.max_requeues} ] && '
        'scontrol requeue "$SLURM_JOB_ID"; exit 143; }\n'
        "trap requeue USR1"
    )


def step_arguments(cluster: Cluster, first_node: int, nodes: int) -> list[str]:
    """Arguments that put one task on each node of a range of the allocation.

    Args:
        cluster: cores per node and further arguments.
        first_node: counted from the first node of the allocation.
        nodes: number of nodes, one task each.
    """
    cores = [f"--cpus-per-task={cluster.cpus_per_node}"] if cluster.cpus_per_node else []
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--relative={first_node}",
        # Steps on the same nodes share what the job has, GPUs included.
        "--overlap",
        *cores,
        *cluster.srun_args,
    ]


def step(cluster: Cluster, first_node: int, nodes: int) -> str:
    """A step of the plain script, up to its command; ends with a space."""
    arguments = [*step_arguments(cluster, first_node, nodes), "--kill-on-bad-exit=1"]
    if cluster.container is not None:
        arguments.append(f"--container-image={cluster.container}")
        arguments.append(f"--container-mounts={','.join(cluster.mounts)}")
    return shlex.join(["srun", *arguments]) + " "
