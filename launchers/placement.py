"""Decides which node and which GPU runs what. Pure arithmetic on a run and a cluster."""

from dataclasses import dataclass
from typing import Literal

from launchers.cluster import Cluster
from megatron_corew.config import Config

Role = Literal["policy", "teacher"]
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """How many nodes a user asks for."""

    nodes: int = 1
    """Trainer nodes."""
    policy_nodes: int = 0
    """Nodes with policy servers only; 0: the servers run on the trainer's nodes."""
    teacher_nodes: int = 0
    """Nodes with teacher servers only; 0: policy and teacher take turns, or ``teacher_servers``."""
    teacher_servers: int = 0
    """Servers of every trainer node that hold the teacher, when they run there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The servers of one role: the same ones on every node of a range."""

    role: Role
    first_node: int
    nodes: int
    gpus: tuple[tuple[int, ...], ...]
    """GPUs of each server of a node; an empty tuple is a CPU server."""
    first_port: int

    @property
    def ports(self) -> range:
        """Ports of the servers of a node, in the order of ``gpus``."""
        return range(self.first_port, self.first_port + len(self.gpus))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Who runs where."""

    trainer_nodes: int
    processes_per_node: int
    trainer_gpus: tuple[int, ...]
    """GPUs of the trainer on each of its nodes; empty on CPU."""
    pools: tuple[Pool, ...]
    master_port: int

    @property
    def nodes(self) -> int:
        """Nodes of the allocation; the trainer's come first."""
        return max([self.trainer_nodes, *(pool.first_node + pool.nodes for pool in self.pools)])

    @property
    def shares_gpus(self) -> bool:
        """Whether trainer and servers use the same GPUs."""
        mine = set(self.trainer_gpus)
        return any(
            mine & set(gpus)
            for pool in self.pools
            if pool.first_node < self.trainer_nodes
            for gpus in pool.gpus
        )


def place(config: Config, cluster: Cluster, wish: Wish) -> Placement:
    """Put trainer and servers onto nodes and GPUs.

    Args:
        config: the run; its layout and ``servers.tensor_parallel`` are used.
        cluster: GPUs per node and ports.
        wish: how many nodes.

    Returns:
        The placement. Servers on trainer nodes take the GPUs that the trainer leaves free, or
        share the trainer's when it leaves none.

    Raises:
        ValueError: something does not fit; names the option or key.
    """
    _check_wish(config, cluster, wish)
    per_node = config.parallel.processes // wish.nodes
    trainer_gpus = tuple(range(per_node)) if cluster.gpus_per_node else ()
    if wish.policy_nodes:
        pools = _dedicated_pools(config, cluster, wish)
    else:
        free = tuple(range(per_node, cluster.gpus_per_node))
        pools = _pools_beside_trainer(config, cluster, wish, free or trainer_gpus)
    placement = Placement(
        trainer_nodes=wish.nodes,
        processes_per_node=per_node,
        trainer_gpus=trainer_gpus,
        pools=pools,
        master_port=cluster.first_port,
    )
    if any(pool.first_node + pool.nodes > 1 for pool in pools) and cluster.bucket_folder is None:
        raise ValueError(
            "bucket_folder: need a folder that all nodes share, because servers run on other nodes "
            "than the trainer's first; got none. Set bucket_folder in the cluster file."
        )
    return placement


def _check_wish(config: Config, cluster: Cluster, wish: Wish) -> None:
    processes = config.parallel.processes
    if config.servers.policy or config.servers.teacher:
        raise ValueError("servers.policy: need an empty list, the launcher places the servers.")
    if processes % wish.nodes:
        raise ValueError(
            f"--nodes: need a divisor of the {processes} trainer processes (parallel.tensor x "
            f".pipeline x .data), got {wish.nodes}."
        )
    if cluster.gpus_per_node and processes // wish.nodes > cluster.gpus_per_node:
        least = -(-processes // cluster.gpus_per_node)
        raise ValueError(
            f"--nodes: need {least} or more for {processes} trainer processes on nodes of "
            f"{cluster.gpus_per_node} GPUs (gpus_per_node), got {wish.nodes}."
        )
    if cluster.scheduler == "none" and wish.nodes + wish.policy_nodes + wish.teacher_nodes > 1:
        raise ValueError("--nodes: need 1 where scheduler is none. Use a Slurm cluster file.")
    if wish.teacher_nodes and not wish.policy_nodes:
        raise ValueError("--teacher-nodes: need --policy-nodes too, or use --teacher-servers.")
    if wish.teacher_servers and wish.policy_nodes:
        raise ValueError("--teacher-servers: is for servers on trainer nodes; use --teacher-nodes.")
    if (wish.teacher_nodes or wish.teacher_servers) and not config.preset.needs_teacher:
        raise ValueError(
            f"--teacher-nodes: method {config.method} samples no teacher. Leave it out."
        )


def _servers_on(config: Config, cluster: Cluster, gpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Cut GPUs into servers of ``servers.tensor_parallel`` each."""
    if not cluster.gpus_per_node:
        return [()]
    width = config.servers.tensor_parallel
    if len(gpus) % width:
        raise ValueError(
            f"servers.tensor_parallel: need a divisor of the {len(gpus)} GPUs that a node has for "
            f"servers, got {width}."
        )
    return [gpus[start : start + width] for start in range(0, len(gpus), width)]


def _dedicated_pools(config: Config, cluster: Cluster, wish: Wish) -> tuple[Pool, ...]:
    servers = tuple(_servers_on(config, cluster, tuple(range(cluster.gpus_per_node))))
    port = cluster.first_port + 1
    teachers = wish.nodes + wish.policy_nodes
    # Ports of their own, as if all were on one machine.
    cuts: list[tuple[Role, int, int, int]] = [
        ("policy", wish.nodes, wish.policy_nodes, port),
        ("teacher", teachers, wish.teacher_nodes, port + len(servers)),
    ]
    return tuple(
        Pool(role=role, first_node=first, nodes=nodes, gpus=servers, first_port=first_port)
        for role, first, nodes, first_port in cuts
        if nodes
    )


def _pools_beside_trainer(
    config: Config, cluster: Cluster, wish: Wish, gpus: tuple[int, ...]
) -> tuple[Pool, ...]:
    servers = _servers_on(config, cluster, gpus)
    if not cluster.gpus_per_node:
        servers += [()] * wish.teacher_servers
    policies = len(servers) - wish.teacher_servers
    if policies < 1:
        raise ValueError(
            f"--teacher-servers: need fewer than the {len(servers)} servers of a node, got "
            f"{wish.teacher_servers}."
        )
    port = cluster.first_port + 1
    cuts: list[tuple[Role, list[tuple[int, ...]], int]] = [("policy", servers[:policies], port)]
    if wish.teacher_servers:
        cuts.append(("teacher", servers[policies:], port + policies))
    return tuple(
        Pool(role=role, first_node=0, nodes=wish.nodes, gpus=tuple(mine), first_port=first)
        for role, mine, first in cuts
    )


def picture(placement: Placement) -> str:
    """The placement as text: a line per node and what runs on it."""
    lines = []
    for node in range(placement.nodes):
        parts = []
        if node < placement.trainer_nodes:
            gpus = _gpus(placement.trainer_gpus)
            first = node * placement.processes_per_node
            last = first + placement.processes_per_node - 1
            parts.append(f"trainer ranks {first}-{last} on {gpus}")
        for pool in placement.pools:
            if pool.first_node <= node < pool.first_node + pool.nodes:
                parts += [
                    f"{pool.role} server :{port} on {_gpus(gpus)}"
                    for port, gpus in zip(pool.ports, pool.gpus, strict=True)
                ]
        lines += [f"node {node}  +- {parts[0]}", *(f"        |  {part}" for part in parts[1:])]
    if placement.shares_gpus:
        lines.append("trainer and servers SHARE GPUs: keep servers.gpu_memory_share low")
    return "\n".join(lines)


def _gpus(gpus: tuple[int, ...]) -> str:
    return f"GPU {','.join(map(str, gpus))}" if gpus else "CPU"
