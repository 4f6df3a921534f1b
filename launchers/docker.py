"""Starts a run in a Docker container on this machine with NeMo-Run's Docker executor."""

import os

import nemo_run as run

from launchers import experiment
from launchers.options import Launch, run_command


def start(launch: Launch, dry_run: bool) -> str:
    """Run the whole job script in one container: trainer and servers share one image.

    Raises:
        ValueError: the cluster file names no container, or is one of Slurm.
        RuntimeError: the job failed.
    """
    cluster = launch.cluster
    if cluster.scheduler != "none":
        raise ValueError("scheduler: need none, got slurm. Use python -m launchers.slurm.")
    if cluster.container is None:
        raise ValueError("container: need the tag of an image, got none. Set container.")
    if cluster.secrets:
        raise ValueError(
            "secrets: need an empty list, because NeMo-Run would write their values to disk for "
            "Docker. Put the Hugging Face token into the file huggingface/token of the cache."
        )
    executor = run.DockerExecutor(
        container_image=cluster.container,
        num_gpus=-1 if cluster.gpus_per_node else None,
        # Weights go through /dev/shm, NCCL's buffers too.
        ipc_mode="host",
        network="host",
        ulimits=["memlock:-1", "stack:67108864"],
        volumes=list(cluster.mounts),
        # The user below has no home in the image; what is kept there may go into the cache.
        env_vars={"HOME": cluster.cache},
        launcher=None,
        packager=run.Packager(),
        # The token is for the eyes of its owner only.
        additional_kwargs={"user": f"{os.getuid()}:{os.getgid()}"},
    )
    return experiment.run_here(launch, executor, needs="docker", dry_run=dry_run)


if __name__ == "__main__":
    run_command(
        start,
        help="Run in a container on this machine.",
        example="python -m launchers.docker configs/runs/demo.yaml "
        "--cluster configs/clusters/docker_one_node.yaml",
    )
