"""A job submitted to stand-ins for Slurm's commands really trains.

The stand-ins run the generated scripts on this machine: two "nodes" with one trainer process
each (tensor parallel across the nodes), and others with a vLLM server each.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from megatron_corew.doctor.facts import port_error
from megatron_corew.observe.metrics import read_metrics

ROOT = Path(__file__).parents[2]
STUBS = Path(__file__).parent / "stubs"
SBATCH = (sys.executable, "-m", "launchers.sbatch")
LAUNCHER_PYTHON = ROOT / ".venv-launcher" / "bin" / "python"
SMALL = [
    str(ROOT / "configs" / "runs" / "demo.yaml"),
    "servers.start_timeout_s=540",
    "rollout.prompts_per_step=4",
    "evaluate.questions=8",
]
RUN = [*SMALL, "run.steps=2", "--nodes", "2", "--policy-nodes", "1"]


def first_of_free_ports(count: int) -> int:
    """The first of some free ports in a row, below those that the kernel gives to clients."""
    start = 20000 + os.getpid() % 9000
    return next(
        first
        for first in range(start, 32000)
        if not any(port_error(port) for port in range(first, first + count))
    )


@pytest.fixture
def job_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a job that does not outlive its test."""
    yield tmp_path
    pid = tmp_path / "job.pid"
    if pid.exists() and not (tmp_path / "job.rc").exists():
        os.killpg(int(pid.read_text()), signal.SIGKILL)


def cluster_file(folder: Path) -> Path:
    """A cluster whose shared folders are in ``folder``."""
    (folder / "buckets").mkdir()
    facts = {
        "scheduler": "slurm",
        "partition": "test",
        "workdir": str(folder),
        "python": sys.executable,
        "cache": str(folder / "cache"),
        "bucket_folder": str(folder / "buckets"),
        "gpus_per_node": 0,
        "first_port": first_of_free_ports(3),
        "variables": {"PYTHONPATH": str(ROOT)},
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(facts))
    return path


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{STUBS}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "STUB_DIR": str(folder),
        "STUB_NODES": "4",
        "NEMORUN_HOME": str(folder / "nemo"),
    }


def call(folder: Path, *command: str, **variables: str) -> str:
    variables = environment(folder) | variables
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 840
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def job_code(folder: Path) -> int:
    """Wait for the job and return its exit code."""
    wait_until(lambda: (folder / "job.rc").exists())
    return int((folder / "job.rc").read_text())


def check_trained(folder: Path) -> None:
    logs = "\n".join(path.read_text() for path in (folder / "runs/demo/logs").rglob("*.log"))
    assert job_code(folder) == 0, (folder / "job.log").read_text() + logs
    records = read_metrics(folder / "runs" / "demo")
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(record["gap/mean"] <= 1e-5 for record in records[1:])
    # Both nodes ran a part of the trainer, and the server asked for the token.
    job = next((folder / "runs/demo/logs").glob("job-4242-0"))
    assert {path.name for path in job.glob("trainer-node*.log")} == {
        "trainer-node0.log",
        "trainer-node1.log",
    }
    assert list(job.glob("policy-node0-*.log"))
    token = (folder / "runs/demo/launch/token").read_text()
    assert token not in logs + (folder / "job.log").read_text()


@pytest.mark.parametrize("cluster", ["slurm_plain", "slurm_pyxis_h100"])
def test_a_dry_run_prints_the_scripts_and_the_picture_and_writes_nothing(tmp_path, cluster):
    file = str(ROOT / "configs" / "clusters" / f"{cluster}.yaml")
    output = call(tmp_path, *SBATCH, *RUN, "--cluster", file, "--dry-run")
    assert "#SBATCH --nodes=3" in output
    assert "\nnode 2  +- policy server :29401 on GPU 0\n" in output
    assert "submit with: sbatch" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.vllm
def test_the_plain_script_trains_through_sbatch_and_srun(job_folder):
    cluster = cluster_file(job_folder)
    call(job_folder, *SBATCH, *RUN, "--cluster", str(cluster), "--teacher-nodes", "1")
    call(job_folder, "sbatch", str(job_folder / "runs/demo/launch/job.sh"))
    check_trained(job_folder)
    calls = (job_folder / "calls.log").read_text()
    assert calls.count("--kill-on-bad-exit=1") == 3
    # Policy and teacher had a server each: the teacher's weights were pushed in every step.
    assert len(list((job_folder / "runs/demo/logs/job-4242-0").glob("teacher-node0-*.log"))) == 1
    config = (job_folder / "runs/demo/config.yaml").read_text()
    first = yaml.safe_load(cluster.read_text())["first_port"]
    assert f"policy:\n  - http://localhost:{first + 1}\n" in config
    assert f"teacher:\n  - http://localhost:{first + 2}\n" in config
    assert "scontrol show hostnames all" in calls


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not LAUNCHER_PYTHON.exists(), reason="needs `make launcher`")
def test_nemo_run_submits_a_job_that_trains(job_folder):
    cluster = cluster_file(job_folder)
    command = [str(LAUNCHER_PYTHON), "-m", "launchers.slurm", *RUN, "--cluster", str(cluster)]
    call(job_folder, *command)
    check_trained(job_folder)
    calls = (job_folder / "calls.log").read_text()
    assert "sbatch --requeue --parsable" in calls
    assert "--relative=2" in calls


@pytest.mark.slow
@pytest.mark.vllm
def test_a_job_at_its_time_limit_goes_back_to_the_queue_and_on_from_its_checkpoint(job_folder):
    cluster, knobs = cluster_file(job_folder), ["run.steps=4", "checkpoint.every=1"]
    call(job_folder, *SBATCH, *SMALL, *knobs, "--cluster", str(cluster))
    script = str(job_folder / "runs/demo/launch/job.sh")
    call(job_folder, "sbatch", script)
    run = job_folder / "runs/demo"
    wait_until(lambda: (run / "checkpoints/latest").exists() or (job_folder / "job.rc").exists())
    # As Slurm does for --signal=B:USR1: the batch shell alone is told.
    os.kill(int((job_folder / "batch.pid").read_text()), signal.SIGUSR1)
    assert job_code(job_folder) == 143
    assert "scontrol requeue 4242" in (job_folder / "calls.log").read_text()
    saved = int((run / "checkpoints/latest").read_text())
    (job_folder / "job.rc").unlink()
    call(job_folder, "sbatch", script, SLURM_RESTART_COUNT="1")
    assert job_code(job_folder) == 0, (job_folder / "job.log").read_text()
    records = read_metrics(run)
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["attempt"] for record in records[1:]] == [1] * saved + [2] * (4 - saved)
    assert {path.name for path in (run / "logs").glob("job-4242-*")} == {"job-4242-0", "job-4242-1"}
