"""The launch folder of a run: the configuration and the scripts that every launcher starts.

``trainer.sh``, ``policy.sh`` and ``teacher.sh`` run once per node of their kind; ``prologue.sh``
finds the nodes; ``job.sh`` is the whole job for plain Slurm and for one machine.
"""

import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from launchers import slurm_flags
from launchers.cluster import Cluster
from launchers.placement import LOOPBACK, Placement, Pool, picture
from launchers.variables import environment
from megatron_corew.config import Config
from megatron_corew.config_file import save_config

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """All that a job needs, before it is written."""

    folder: Path
    """``<run.root>/<run.name>/launch``, under the cluster's workdir."""
    config: Config
    """The run, with the launcher's paths in its section ``servers``."""
    scripts: Mapping[str, str]
    """File name -> text."""

    @property
    def job(self) -> Path:
        """The script of the whole job."""
        return self.folder / "job.sh"

    @property
    def prologue(self) -> Path:
        """The script that finds the nodes."""
        return self.folder / "prologue.sh"

    @property
    def token(self) -> Path:
        """The secret that the servers ask for."""
        return self.folder / "token"

    def command(self, name: str) -> str:
        """The shell command that becomes one of the scripts."""
        return f"exec bash {shlex.quote(str(self.folder / name))}"

    def write(self) -> None:
        """Write the folder; a token that exists stays."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Slurm opens the job's log before the job can make a folder for it.
        (self.folder.parent / "logs").mkdir(exist_ok=True)
        save_config(self.config, self.folder / "config.yaml")
        for name, text in self.scripts.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        if not self.token.exists():
            self.token.touch(mode=0o600)
            self.token.write_text(secrets.token_urlsafe(32), encoding="utf-8")


def make_bundle(config: Config, cluster: Cluster, placement: Placement) -> Bundle:
    """Render the scripts of a run on a cluster.

    Args:
        config: the run; a relative ``run.root`` is taken from the cluster's workdir.
        cluster: its facts.
        placement: who runs where.

    Returns:
        The folder's content; nothing is written yet.
    """
    run_folder = Path(cluster.workdir) / config.run.root / config.run.name
    folder = run_folder / "launch"
    common = {
        "workdir": shlex.quote(cluster.workdir),
        "python": shlex.quote(cluster.python),
        "launch": shlex.quote(str(folder)),
        "config": shlex.quote(str(folder / "config.yaml")),
    }
    scripts = {
        "prologue.sh": _prologue(cluster, placement, run_folder / "logs"),
        "trainer.sh": _render(
            "trainer.sh.j2",
            **common,
            placement=placement,
            gpus=_listed(placement.trainer_gpus),
            environment=_quoted(environment(config, cluster, "trainer")),
        ),
    }
    for pool in placement.pools:
        scripts[f"{pool.role}.sh"] = _render(
            "servers.sh.j2",
            **common,
            pool=pool,
            servers=[(p, _listed(g)) for p, g in zip(pool.ports, pool.gpus, strict=True)],
            environment=_quoted(environment(config, cluster, "server")),
        )
    scripts["job.sh"] = _job(config, cluster, placement, common, run_folder / "logs")
    return Bundle(folder=folder, config=_addressed(config, cluster, placement), scripts=scripts)


def _addressed(config: Config, cluster: Cluster, placement: Placement) -> Config:
    """The run with what only the launcher knows; the addresses come when the job runs."""
    folder = Path(cluster.workdir) / config.run.root / config.run.name / "launch"
    servers = config.servers.model_copy(
        update={
            "host": LOOPBACK if placement.nodes == 1 else "0.0.0.0",
            "token_file": str(folder / "token"),
            "bucket_folder": cluster.bucket_folder or config.servers.bucket_folder,
        }
    )
    return config.model_copy(update={"servers": servers})


def _prologue(cluster: Cluster, placement: Placement, logs: Path) -> str:
    addresses: dict[str, list[tuple[int, int]]] = {"policy": [], "teacher": []}
    for pool in placement.pools:
        addresses[pool.role] = _addresses(pool)
    return _render(
        "prologue.sh.j2",
        slurm=cluster.scheduler == "slurm",
        setup=cluster.setup,
        secrets=cluster.secrets,
        logs=shlex.quote(str(logs)),
        loopback=LOOPBACK,
        nodes=placement.nodes,
        addresses=addresses,
    )


def _addresses(pool: Pool) -> list[tuple[int, int]]:
    """Node number and port of every server of a pool."""
    nodes = range(pool.first_node, pool.first_node + pool.nodes)
    return [(node, port) for node in nodes for port in pool.ports]


def _job(
    config: Config,
    cluster: Cluster,
    placement: Placement,
    common: Mapping[str, str],
    logs: Path,
) -> str:
    slurm = cluster.scheduler == "slurm"
    steps = {
        pool.role: slurm_flags.step(cluster, pool.first_node, pool.nodes) if slurm else ""
        for pool in placement.pools
    }
    return _render(
        "job.sh.j2",
        **common,
        flags=slurm_flags.job(config, cluster, placement, logs) if slurm else [],
        requeue=slurm_flags.requeue_trap(cluster) if slurm and cluster.max_requeues else "",
        picture=picture(placement),
        servers=list(steps.items()),
        trainer=slurm_flags.step(cluster, 0, placement.trainer_nodes) if slurm else "",
    )


def _render(template: str, **values: object) -> str:
    return _TEMPLATES.get_template(template).render(**values)


def _quoted(values: Mapping[str, str]) -> dict[str, str]:
    return {name: shlex.quote(value) for name, value in values.items()}


def _listed(gpus: tuple[int, ...]) -> str:
    return ",".join(map(str, gpus))
