"""Runs and clusters for the tests of the launchers."""

from typing import Any

from launchers.cluster import Cluster
from megatron_corew.config import Config


def run_of(
    *,
    method: str = "co_rewarding_iii",
    parallel: dict[str, Any] | None = None,
    servers: dict[str, Any] | None = None,
    root: str = "runs",
) -> Config:
    """The lab's run with another layout."""
    return Config.model_validate(
        {
            "method": method,
            "run": {"name": "test", "root": root, "steps": 2},
            "model": {"path": "lab"},
            "data": {"train": "lab"},
            "parallel": parallel or {},
            "servers": servers or {},
        }
    )


def cluster_of(**values: Any) -> Cluster:
    """A Slurm cluster of nodes with eight GPUs."""
    facts = {
        "scheduler": "slurm",
        "workdir": "/shared/corew",
        "python": "/opt/venv/bin/python",
        "cache": "/shared/cache",
        "gpus_per_node": 8,
    }
    return Cluster.model_validate(facts | values)
