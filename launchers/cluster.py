"""The facts of a cluster, read from ``configs/clusters/*.yaml``.

Needs pydantic and YAML only. What is wrong is said before anything is submitted, by its key.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from megatron_corew.config import Count, Section

AbsolutePath = Annotated[str, Field(pattern=r"^/\S*$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Cluster(Section):
    """One machine or one partition of a cluster."""

    scheduler: Literal["slurm", "none"]
    """``slurm``, or ``none`` for this machine."""
    workdir: AbsolutePath
    """Folder that all nodes see under this path; relative paths of the run start here."""
    python: AbsolutePath
    """Interpreter with the project installed, inside the container if there is one."""
    cache: AbsolutePath
    """Shared folder of the Hugging Face and vLLM caches."""
    gpus_per_node: Annotated[int, Field(ge=0)]
    """GPUs of a node; 0: a CPU machine."""
    cpus_per_node: Count | None = None
    """Cores of a node for one task; None: Slurm's own choice, which may be a single core."""
    fabric: Literal["infiniband", "ethernet", "none"] = "none"
    """What connects the nodes; chooses rows of variables.py."""
    interface: str | None = None
    """Network device for NCCL's and Gloo's sockets, as ``ip link`` names it; None: their choice."""
    bucket_folder: AbsolutePath | None = None
    """Shared folder for weight pushes; needed when servers run on other nodes than the trainer's
    first one. None: shared memory of that node."""
    first_port: Annotated[int, Field(ge=1024, le=65000)] = 29400
    """Port of the trainer's meeting point; servers take the ones after it."""
    container: str | None = None
    """Image: a Pyxis reference or .sqsh file, or a Docker tag; None: no container."""
    mounts: tuple[Annotated[str, Field(pattern=r"^/[^:]*:/[^:]*(:\w+)?$")], ...] = ()
    """``host:container[:flags]``; workdir, cache and bucket_folder must keep their paths."""
    account: str | None = None
    """Slurm account."""
    partition: str | None = None
    """Slurm partition."""
    qos: str | None = None
    """Slurm quality of service."""
    constraint: str | None = None
    """Slurm node feature."""
    time_limit: Annotated[str, Field(pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$")] = "04:00:00"
    """[days-]hours:minutes:seconds. Quote it in YAML."""
    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How the cluster wants GPUs to be asked for."""
    exclusive: bool = True
    """Whole nodes."""
    srun_args: tuple[str, ...] = ()
    """Further arguments of every srun, such as ``--mpi=none``."""
    sbatch_args: tuple[Annotated[str, Field(pattern=r"^--[a-z-]+=\S+$")], ...] = ()
    """Further ``--key=value`` of the job."""
    setup: tuple[str, ...] = ()
    """Shell lines before anything starts, such as ``module load cuda``."""
    secrets: tuple[Name, ...] = ()
    """NAMES of variables that must be set where the job is submitted; Slurm passes them on."""
    variables: Mapping[Name, str] = Field(default_factory=dict)
    """Environment variables that win over variables.py."""
    max_requeues: Annotated[int, Field(ge=0)] = 10
    """How often a job may go back to the queue, at its time limit or when it is preempted."""
    end_signal_s: Count = 120
    """Seconds before the time limit at which the job goes back to the queue."""

    @model_validator(mode="after")
    def shared_folders_keep_their_paths_in_the_container(self) -> Self:
        """Scripts name workdir, cache and bucket_folder by one path everywhere."""
        if self.container is None:
            if self.mounts:
                raise ValueError("mounts: need a container to mount into, got none. Set container.")
            return self
        for key in ("workdir", "cache", "bucket_folder"):
            path: str | None = getattr(self, key)
            if path is not None and not any(_keeps(mount, path) for mount in self.mounts):
                raise ValueError(
                    f"mounts: need {key} {path} under its own path, got {list(self.mounts)}. "
                    f"Add {path}:{path}."
                )
        return self

    @model_validator(mode="after")
    def slurm_keys_are_for_slurm(self) -> Self:
        """A setting without effect is an error."""
        if self.scheduler == "none":
            for key in ("account", "partition", "qos", "constraint", "srun_args", "sbatch_args"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key}: needs scheduler slurm, got none. Remove {key}.")
        return self


def _keeps(mount: str, path: str) -> bool:
    host, inside, *_ = mount.split(":")
    return host == inside and Path(path).is_relative_to(inside)


def load_cluster(path: Path) -> Cluster:
    """Read the facts of a cluster.

    Raises:
        ValueError: an unreadable file or a wrong value; one line that names the key.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"--cluster: need a readable YAML file, got {path}: {problem}.") from error
    try:
        return Cluster.model_validate(values)
    except ValidationError as error:
        raise ValueError(" ".join(_explain(path, one) for one in error.errors())) from error


def _explain(path: Path, detail: object) -> str:
    assert isinstance(detail, dict)
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "value_error":
        return f"{path}: {detail['ctx']['error']}"
    if detail["type"] == "extra_forbidden":
        return f"{path}: {key}: unknown key. Known keys: {', '.join(Cluster.model_fields)}."
    if detail["type"] == "missing":
        return f"{path}: {key}: needed, got nothing."
    need = detail["msg"].removeprefix("Input should be ")
    return f"{path}: {key}: need {need}, got {detail['input']!r}."


def check_here(cluster: Cluster, programs: tuple[str, ...]) -> None:
    """Refuse to submit from a machine where the job could not start.

    Args:
        cluster: the facts.
        programs: commands that submitting needs, such as ``sbatch``.

    Raises:
        ValueError: names the key of the cluster file, or the secret, that is missing here.
    """
    for program in programs:
        if shutil.which(program) is None:
            raise ValueError(f"scheduler: need the command {program} on PATH, got none.")
    for name in cluster.secrets:
        if not os.environ.get(name):
            raise ValueError(f"secrets: need the variable {name} set here, got none. Export it.")
    hosts = [("mounts", mount.split(":")[0]) for mount in cluster.mounts]
    for key, folder in (("workdir", cluster.workdir), *hosts):
        if not Path(folder).is_dir():
            raise ValueError(f"{key}: need an existing folder, got {folder}. Create it or mend it.")
    if cluster.container is None and not Path(cluster.python).is_file():
        raise ValueError(f"python: need an interpreter, got {cluster.python}.")
    image = cluster.container or ""
    if image.startswith("/") and not Path(image).is_file():
        raise ValueError(f"container: need an existing image file, got {image}.")
