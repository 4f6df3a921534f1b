"""The environment variables that a job sets: one table, with the reason of each row.

``docs/launch.md`` shows the same rows. A cluster file's ``variables`` wins over them.
"""

from dataclasses import dataclass
from typing import Literal

from launchers.cluster import Cluster
from megatron_corew.config import Config

Process = Literal["trainer", "server"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One row: a variable, who gets it, when, and why."""

    name: str
    value: str
    """May name ``{cache}``, ``{interface}`` and ``{threads}``."""
    who: Literal["all", "trainer", "server"]
    when: Literal["always", "gpu", "infiniband", "ethernet", "interface"]
    why: str


TABLE = (
    Variable(
        "PYTHONUNBUFFERED", "1", "all", "always", "logs show the last line of a killed process"
    ),
    Variable("HF_HOME", "{cache}/huggingface", "all", "always", "one download for all nodes"),
    Variable("TOKENIZERS_PARALLELISM", "false", "all", "always", "no threads before a fork"),
    Variable(
        "OMP_NUM_THREADS", "{threads}", "trainer", "always", "torchrun's processes share cores"
    ),
    Variable("VLLM_CACHE_ROOT", "{cache}/vllm", "server", "always", "compiled kernels are kept"),
    Variable("VLLM_NO_USAGE_STATS", "1", "server", "always", "nothing leaves the cluster"),
    Variable("NCCL_DEBUG", "WARN", "all", "gpu", "errors of the fabric get into the logs"),
    Variable(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "trainer", "gpu", "a dead rank ends the others"
    ),
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", "1", "trainer", "gpu", "Megatron orders kernels by it"),
    Variable(
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "trainer",
        "gpu",
        "less fragmentation with mixed lengths",
    ),
    Variable("NCCL_IB_TIMEOUT", "22", "all", "infiniband", "busy fabrics exceed the default of 20"),
    Variable(
        "UCX_MEMTYPE_CACHE", "n", "all", "infiniband", "UCX's cache misses torch's allocations"
    ),
    Variable("NCCL_IB_DISABLE", "1", "all", "ethernet", "no search for devices that are not there"),
    Variable("UCX_TLS", "tcp,cuda_copy,self", "all", "ethernet", "UCX's half of the same"),
    Variable("NCCL_SOCKET_IFNAME", "{interface}", "all", "interface", "NCCL meets on this device"),
    Variable("GLOO_SOCKET_IFNAME", "{interface}", "all", "interface", "Gloo meets on this device"),
)


def environment(config: Config, cluster: Cluster, process: Process) -> dict[str, str]:
    """The variables of one kind of process, the cluster's own ones last."""
    in_force = {
        "always": True,
        "gpu": cluster.gpus_per_node > 0,
        "infiniband": cluster.fabric == "infiniband",
        "ethernet": cluster.fabric == "ethernet",
        "interface": cluster.interface is not None,
    }
    facts = {
        "cache": cluster.cache,
        "interface": cluster.interface,
        "threads": config.parallel.threads,
    }
    chosen = {
        row.name: row.value.format(**facts)
        for row in TABLE
        if in_force[row.when] and row.who in ("all", process)
    }
    return chosen | dict(cluster.variables)
